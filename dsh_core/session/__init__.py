"""
The session: an append-only log of events, and what is read from it.
"""

from __future__ import annotations

from dsh_core.session.chunks import unpack_chunks
from dsh_core.session.codec import Replace, SessionEvent, decode_event, encode_event
from dsh_core.session.events import session_event
from dsh_core.session.header import SessionHeader
from dsh_core.session.log import Session
from dsh_core.session.repair import interrupted_turn_closers, is_balanced
from dsh_core.session.request import rebuild_request
from dsh_core.session.store import SessionStore

__all__ = [
    "Replace",
    "Session",
    "SessionEvent",
    "SessionHeader",
    "SessionStore",
    "decode_event",
    "encode_event",
    "interrupted_turn_closers",
    "is_balanced",
    "rebuild_request",
    "session_event",
    "unpack_chunks",
]
