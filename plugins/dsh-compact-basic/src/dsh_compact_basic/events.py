"""
What a compaction writes into the log (C-6).

The order is `compact/start`, shortened results, `compact/summary`, one replacing `user/message`, `compact/end`;
a crash between any two leaves a valid session.
"""

from __future__ import annotations

import attrs

from dsh_core.session.events import session_event

__all__ = ["CompactEndEvent", "CompactStartEvent", "CompactSummaryEvent"]


@session_event("compact/start")
@attrs.frozen
class CompactStartEvent:
    """
    An attempt begins.

    Args:
        trigger: `pressure`, `overflow` or `manual`.
        estimate: Estimated tokens of the next request.
    """

    trigger: str
    estimate: int = 0


@session_event("compact/summary")
@attrs.frozen
class CompactSummaryEvent:
    """
    A summary was accepted; the `user/message` that puts it in place follows.

    Args:
        text: The model's text.
        first: Seq of the first node it stands for.
        last: Seq of the last one.
        shadowed: How many nodes it stands for.
        before: Estimated tokens of those nodes.
        after: Estimated tokens of the message in their place.
    """

    text: str
    first: int
    last: int
    shadowed: int
    before: int
    after: int


@session_event("compact/end")
@attrs.frozen
class CompactEndEvent:
    """
    An attempt is over.

    Args:
        error: Why nothing was summarised, or None.
    """

    error: str | None = None
