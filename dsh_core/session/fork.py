"""
Where a session may be forked: behind a turn's end, never inside a turn (S-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh_core.errors import HarnessError
from dsh_core.session.events import TurnEndEvent

if TYPE_CHECKING:
    from dsh_core.session.log import SessionEvent

__all__ = ["fork_prefix"]


def fork_prefix(events: Sequence[SessionEvent], boundary: int | None) -> Sequence[SessionEvent]:
    """
    The events a fork starts with.

    Args:
        events: The source's log.
        boundary: Seq of a `turn/end`, inclusive; None for the last one, or for nothing where no turn has ended.

    Raises:
        HarnessError: `OPEN_TURN` for a seq inside a turn, `INVALID_BOUNDARY` for any other that is not the
            seq of a `turn/end`; the message names the nearest legal one.
    """
    ends = [event.seq for event in events if isinstance(event.data, TurnEndEvent)]
    if boundary is None:
        return events[: ends[-1] + 1] if ends else events[:0]
    if boundary in ends:
        return events[: boundary + 1]
    nearest = min(ends, key=lambda seq: abs(seq - boundary), default=None)
    hint = f"the nearest legal boundary is {nearest}" if nearest is not None else "no turn has ended yet"
    if not 0 <= boundary < len(events):
        raise HarnessError(f"there is no event {boundary} in a log of {len(events)} events; {hint}", "INVALID_BOUNDARY")
    inside = _inside_turn(events, boundary)
    what = "lies inside a turn" if inside else "is not the end of a turn"
    raise HarnessError(f"event {boundary} {what}; {hint}", "OPEN_TURN" if inside else "INVALID_BOUNDARY")


def _inside_turn(events: Sequence[SessionEvent], boundary: int) -> bool:
    for event in reversed(events[: boundary + 1]):
        if event.type == "turn/start":
            return True
        if event.type == "turn/end":
            return False
    return False
