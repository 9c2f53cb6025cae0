"""
Shortening old tool results: often that is enough, and it costs no request (C-7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core.content import Block, TextBlock
from dsh_core.session.events import ToolResultEvent

if TYPE_CHECKING:
    from dsh_core.session import Session

__all__ = ["LIMIT", "shorten_results", "shortened", "too_long"]

LIMIT: Final = 8 * 1024
_HEAD: Final = 4 * 1024
_TAIL: Final = 1024


def too_long(session: Session, seqs: Iterable[int]) -> Iterator[int]:
    """The nodes among `seqs` that are tool results with more than 8 KiB of text."""
    for seq in seqs:
        data = session.events[seq].data
        if isinstance(data, ToolResultEvent) and _size(data.content) > LIMIT:
            yield seq


def shorten_results(session: Session, seqs: Iterable[int]) -> int:
    """
    Put shortened copies in place of tool results; the originals stay in the log.

    Returns:
        How many were replaced.
    """
    count = 0
    for seq in list(seqs):
        data: ToolResultEvent = session.events[seq].data
        session.append(attrs.evolve(data, content=shortened(data.content, seq)), replace=(seq, seq), sources=[seq])
        count += 1
    return count


def shortened(content: tuple[Block, ...], seq: int) -> tuple[Block, ...]:
    """
    Head and tail of the text with a marker between; other blocks stay as they are.

    Args:
        content: The content of a result.
        seq: Where the original lies in the log.
    """
    text = "".join(block.text for block in content if isinstance(block, TextBlock)).encode()
    head = text[:_HEAD].decode("utf-8", "ignore")
    tail = text[-_TAIL:].decode("utf-8", "ignore")
    left_out = len(text) - len(head.encode()) - len(tail.encode())
    marker = f"\n[… {left_out} bytes left out to save room; the whole output is event {seq} of the log …]\n"
    others = tuple(block for block in content if not isinstance(block, TextBlock))
    return (TextBlock(head + marker + tail), *others)


def _size(content: Iterable[Block]) -> int:
    return sum(len(block.text.encode()) for block in content if isinstance(block, TextBlock))
