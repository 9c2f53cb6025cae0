"""
What a log that was cut off owes, and which messages still wait (P-3, A-2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsh_core.content import ErrorInfo, Tagged
from dsh_core.session.events import (
    ApprovalAskedEvent,
    ApprovalDecidedEvent,
    InboxDroppedEvent,
    InboxQueuedEvent,
    PromptBlockedEvent,
    SteeringMessageEvent,
    StepEndEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEndEvent,
    TurnStartEvent,
    UserMessageEvent,
)
from dsh_core.session.surface import calls_of, depth_of

if TYPE_CHECKING:
    from dsh_core.session.event import SessionEvent
    from dsh_core.session.log import Session

__all__ = ["INTERRUPTED_TEXT", "NOT_STARTED_TEXT", "interrupted_turn_closers", "is_balanced", "pending_messages"]

NOT_STARTED_TEXT: Final = "The call was not started: the turn ended before. Nothing was done; it is safe to call again."
INTERRUPTED_TEXT: Final = (
    "The call was interrupted while it ran: it may have taken effect, wholly or in part. "
    "Check the state before calling again."
)


def interrupted_turn_closers(events: Sequence[SessionEvent]) -> list[Any]:
    """
    What must be appended to close a log that a crash cut off.

    Args:
        events: The whole log.

    Returns:
        Event data, in order: one error result for each unanswered call of the open turn (`NOT_STARTED` where
        nothing can have happened, else `INTERRUPTED`), `step/end` and `turn/end` where they are owed. Empty
        for a log that is closed.
    """
    opened = _open_part(events)
    if not opened:
        return []
    turn = opened[0].turn
    step: int | None = None
    for data in opened:
        if type(data) is StepStartEvent:
            step = data.step
        elif type(data) is StepEndEvent:
            step = None
    closers: list[Any] = [_result(turn, made_in, call, opened) for call, made_in in _unanswered(opened).items()]
    if step is not None:
        closers.append(StepEndEvent(turn, step))
    closers.append(TurnEndEvent(turn, Tagged("interrupted")))
    return closers


def _open_part(events: Sequence[SessionEvent]) -> list[Any]:
    part: list[Any] = []
    for event in reversed(events):
        if type(event.data) is TurnEndEvent:
            return []
        part.append(event.data)
        if type(event.data) is TurnStartEvent:
            return part[::-1]
    return []


def _unanswered(opened: Iterable[Any]) -> dict[str, int]:
    """The calls without a result, in order, with the steps that made them."""
    calls: dict[str, int] = {}
    for data in opened:
        calls.update((block.id, data.step) for block in calls_of(data))
        if type(data) is ToolResultEvent:
            calls.pop(data.call_id, None)
    return calls


def _result(turn: int, step: int, call: str, opened: Sequence[Any]) -> ToolResultEvent:
    started = any(type(data) is ToolCallEvent and data.call_id == call for data in opened)
    if started and not _waits_for_approval(call, opened):
        return ToolResultEvent(turn, step, call, INTERRUPTED_TEXT, True, ErrorInfo("InterruptedError", "INTERRUPTED"))
    return ToolResultEvent(turn, step, call, NOT_STARTED_TEXT, True, ErrorInfo("NotStarted", "NOT_STARTED"))


def _waits_for_approval(call: str, opened: Sequence[Any]) -> bool:
    asked = False
    for data in opened:
        if type(data) is ApprovalAskedEvent and data.call_id == call:
            asked = True
        elif type(data) is ApprovalDecidedEvent and data.call_id == call and data.outcome == "approved":
            asked = False
    return asked


def pending_messages(events: Sequence[SessionEvent], seed_length: int = 0) -> list[InboxQueuedEvent]:
    """
    The messages that were accepted and have not run, in the order in which they were accepted.

    Args:
        events: The whole log.
        seed_length: Events before this seq belong to the session this one was forked from.
    """
    waiting: dict[str, InboxQueuedEvent] = {}
    for index in range(seed_length, len(events)):
        data = events[index].data
        kind = type(data)
        if kind is InboxQueuedEvent:
            waiting[data.message_id] = data
        elif kind is InboxDroppedEvent:
            for message_id in data.message_ids:
                waiting.pop(message_id, None)
        elif kind in (UserMessageEvent, PromptBlockedEvent, SteeringMessageEvent):
            waiting.pop(data.message_id, None)
    return list(waiting.values())


def is_balanced(session: Session, before_seq: int | None = None) -> bool:
    """
    Whether the surface may be cut there: no call on one side has its result on the other (S-6).

    Args:
        session: The session.
        before_seq: Seq of the node before which the cut lies; None, or a seq that is not on the surface, means
            behind the last node.
    """
    nodes = list(session.surface.nodes)
    cut = nodes.index(before_seq) if before_seq in nodes else len(nodes)
    return depth_of([session.events[seq].data for seq in nodes[:cut]]) == 0
