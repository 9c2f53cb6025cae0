"""
What the invariants know of one log: everything a rule may ask, folded from its events.

A second reading of the log, on purpose independent of how the session keeps its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core.content import ToolCallBlock
from dsh_core.session import events as ev
from dsh_core.session._registry import event_type_of

if TYPE_CHECKING:
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["Call", "LogState", "calls_of"]


@attrs.define(eq=False)
class Call:
    """
    A call that waits for its result.

    Args:
        name: The tool, as the message has it.
        turn: The turn of the message.
        taken_up: Whether its `tool/call` is in the log.
        rewritten: Whether a gate has changed its arguments.
    """

    name: str
    turn: int
    taken_up: bool = False
    rewritten: bool = False


class LogState:
    """
    Everything before the next event, folded.

    Args:
        seed_length: Events before this seq belong to the session this one was forked from; messages that
            wait there wait in vain.
    """

    def __init__(self, seed_length: int = 0) -> None:
        self.seed_length = seed_length
        self.seen = 0
        self.time = 0
        self.turn = 0
        self.turn_open = False
        self.step = 0
        self.step_open = False
        self.attempt = 1
        self.answered = False
        self.nodes: list[int] = []
        self.calls: dict[str, Call] = {}
        self.call_ids: set[str] = set()
        self.accepted: set[str] = set()
        self.waiting: set[str] = set()
        self.approvals: set[str] = set()
        self.asked: dict[str, str] = {}

    def follow(self, session: Session) -> None:
        """Fold what the log has and the state has not; whatever it is, it is history."""
        events = session.events
        for seq in range(self.seen, len(events)):
            self._take(events[seq])

    def unanswered(self) -> list[str]:
        """Ids of the calls of the current turn that wait for a result."""
        return [call_id for call_id, call in self.calls.items() if call.turn == self.turn]

    def _take(self, event: SessionEvent) -> None:
        self.seen, self.time = event.seq + 1, event.time
        kind = event_type_of(type(event.data))
        if kind is not None and kind.surface:
            self._take_node(event)
        fold = _FOLDS.get(type(event.data))
        if fold is not None:
            fold(self, event.data)

    def _take_node(self, event: SessionEvent) -> None:
        mark = event.surface
        if mark is None:
            self.nodes.append(event.seq)
        else:
            self.nodes[self.nodes.index(mark.first) : self.nodes.index(mark.last) + 1] = [event.seq]

    # -- one fold for each type ----------------------------------------------------------------------------

    def _start_turn(self, data: ev.TurnStartEvent) -> None:
        self.turn, self.turn_open, self.step, self.step_open = data.turn, True, 0, False

    def _end_turn(self, _: ev.TurnEndEvent) -> None:
        self.turn_open = self.step_open = False

    def _start_step(self, data: ev.StepStartEvent) -> None:
        self.step, self.step_open, self.attempt, self.answered = data.step, True, 1, False

    def _end_step(self, _: ev.StepEndEvent) -> None:
        self.step_open = False

    def _retry(self, data: ev.RequestRetryEvent) -> None:
        self.attempt = data.attempt

    def _answer(self, data: ev.AssistantMessageEvent) -> None:
        self.answered = True
        for block in calls_of(data):
            self.calls[block.id] = Call(block.name, data.turn)
            self.call_ids.add(block.id)

    def _result(self, data: ev.ToolResultEvent) -> None:
        self.calls.pop(data.call_id, None)

    def _take_up(self, data: ev.ToolCallEvent) -> None:
        if data.call_id in self.calls:
            self.calls[data.call_id].taken_up = True

    def _rewrite(self, data: ev.ToolRewrittenEvent) -> None:
        if data.call_id in self.calls:
            self.calls[data.call_id].rewritten = True

    def _queue(self, data: ev.InboxQueuedEvent) -> None:
        self.accepted.add(data.message_id)
        if self.seen > self.seed_length:
            self.waiting.add(data.message_id)

    def _drop(self, data: ev.InboxDroppedEvent) -> None:
        self.waiting.difference_update(data.message_ids)

    def _use(self, data: Any) -> None:
        self.accepted.add(data.message_id)
        self.waiting.discard(data.message_id)

    def _ask(self, data: ev.ApprovalAskedEvent) -> None:
        self.approvals.add(data.approval_id)
        self.asked[data.approval_id] = data.call_id

    def _decide(self, data: ev.ApprovalDecidedEvent) -> None:
        self.asked.pop(data.approval_id, None)


def calls_of(data: object) -> Iterator[ToolCallBlock]:
    """The tool calls of an assistant message; none for any other event."""
    if isinstance(data, ev.AssistantMessageEvent):
        yield from (block for block in data.content if isinstance(block, ToolCallBlock))


_FOLDS: Final[Mapping[type, Callable[[LogState, Any], None]]] = MappingProxyType(
    {
        ev.TurnStartEvent: LogState._start_turn,
        ev.TurnEndEvent: LogState._end_turn,
        ev.StepStartEvent: LogState._start_step,
        ev.StepEndEvent: LogState._end_step,
        ev.RequestRetryEvent: LogState._retry,
        ev.AssistantMessageEvent: LogState._answer,
        ev.ToolResultEvent: LogState._result,
        ev.ToolCallEvent: LogState._take_up,
        ev.ToolRewrittenEvent: LogState._rewrite,
        ev.InboxQueuedEvent: LogState._queue,
        ev.InboxDroppedEvent: LogState._drop,
        ev.UserMessageEvent: LogState._use,
        ev.SteeringMessageEvent: LogState._use,
        ev.PromptBlockedEvent: LogState._use,
        ev.ApprovalAskedEvent: LogState._ask,
        ev.ApprovalDecidedEvent: LogState._decide,
    }
)
