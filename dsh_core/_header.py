"""
The wire form of a session's header, under the name by which backends know it (S-9).
"""

from __future__ import annotations

from dsh_core.session.header import decode_header, encode_header

__all__ = ["decode_header", "encode_header"]
