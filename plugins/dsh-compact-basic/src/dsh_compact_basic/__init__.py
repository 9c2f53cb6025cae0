"""
Compaction for dsh agents: shorten old results, summarise old turns, repair overflows.
"""

from __future__ import annotations

from dsh_compact_basic.basic import BasicCompaction
from dsh_compact_basic.config import CompactConfig
from dsh_compact_basic.plugin import CompactPlugin

__all__ = ["BasicCompaction", "CompactConfig", "CompactPlugin"]
