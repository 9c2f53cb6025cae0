"""
What a turn owes, decided from the log: how it ended, what closes it, what it came to.

Pure: no I/O, no awaits. The driver appends what these functions return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._failures import told
from dsh_core._structured import OutputMismatch, parse_output
from dsh_core.agent.types import TurnResult
from dsh_core.content import Message, Tagged, ToolResultBlock, Usage, text_of
from dsh_core.errors import HarnessError, LlmError
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    SteeringMessageEvent,
    StepEndEvent,
    ToolResultEvent,
    TurnEndEvent,
    TurnStartEvent,
    UserMessageEvent,
)
from dsh_core.session.projection import frame_context

if TYPE_CHECKING:
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["Outcome", "error_reason", "open_events", "result_of", "turn_events"]


@attrs.define
class Outcome:
    """
    How a turn is going to end. Each fact is kept apart; `reason` weighs them (L-3, L-7).

    Args:
        stop: The first recorded cause of a stop: aborted or disposed.
        error: A failure.
        rejected: Every prompt was blocked.
        limit: A plugin set a limit.
        max_tokens: An answer was cut by the token limit; stays true whatever follows.
    """

    stop: Tagged | None = None
    error: Tagged | None = None
    rejected: Tagged | None = None
    limit: Tagged | None = None
    max_tokens: bool = False

    def reason(self) -> Tagged:
        """Recorded stop, then error, rejection, limit, max-tokens, completed."""
        weighed = self.stop or self.error or self.rejected or self.limit
        if weighed is not None:
            return weighed
        return Tagged("max-tokens") if self.max_tokens else Tagged("completed")


def error_reason(error: BaseException, step: int) -> Tagged:
    """
    The turn-end reason for a failure.

    Args:
        error: What was raised; the code of a `HarnessError` is kept, anything else is `UNKNOWN`.
        step: Number of the step that failed, 0 before the first.
    """
    code = error.code if isinstance(error, HarnessError) else "UNKNOWN"
    fields: dict[str, Any] = {"step": step, "message": told(error), "code": code}
    if isinstance(error, LlmError) and error.status is not None:
        fields["status"] = error.status
    return Tagged("error", **fields)


def turn_events(session: Session, turn: int) -> Sequence[SessionEvent]:
    """The events from `turn/start` of `turn` to the end of the log or its `turn/end`."""
    events = session.events
    start = session.last_turn_seq
    if session.last_turn != turn:
        starts = (one.seq for one in reversed(events) if type(one.data) is TurnStartEvent and one.data.turn == turn)
        start = next(starts, 0)
    found: Sequence[SessionEvent] = events[start:]
    return found


def open_events(session: Session, turn: int, reason: Tagged) -> Iterable[object]:
    """
    The event data that close a turn whose calls are all answered: `step/end` and `turn/end`, each only
    where the log says it is owed.
    """
    if session.open_turn != turn:
        return
    if session.open_step is not None:
        yield StepEndEvent(turn, session.open_step)
    yield TurnEndEvent(turn, reason)


def result_of(session: Session, turn: int, reason: Tagged, output_type: Any = None) -> TurnResult:
    """What `turn` came to, read from the log; `output` only where the turn completed."""
    events = turn_events(session, turn)
    answers = [data for data in map(_data_of, events) if type(data) is AssistantMessageEvent]
    text = next((text for one in reversed(answers) if (text := text_of(one.content))), "")
    usage = _sum([one.usage for one in answers if one.usage is not None])
    return TurnResult(
        text=text,
        output=_output(output_type, text) if reason.kind == "completed" else None,
        reason=reason,
        turn=turn,
        usage=usage,
        messages=_TurnMessages(events),
        session_id=session.id,
        events=events,
    )


_data_of: Final = attrgetter("data")


def _sum(used: Sequence[Usage]) -> Usage:
    """Long turns have many, so they are not added up one by one."""
    return Usage(
        sum([one.input for one in used]),
        sum([one.output for one in used]),
        sum([one.cache_read for one in used]),
        sum([one.cache_write for one in used]),
        sum([one.reasoning for one in used]),
    )


def _output(output_type: Any, text: str) -> Any:
    # Where the plugin that asks for structured output is off, a turn may complete with an answer that does not match.
    if output_type is None:
        return None
    try:
        return parse_output(output_type, text)
    except OutputMismatch:
        return None


class _TurnMessages(Sequence[Message]):
    """The messages a turn added, made when somebody looks: most callers want only the text."""

    __slots__ = ("_events", "_made")

    def __init__(self, events: Sequence[SessionEvent]) -> None:
        self._events = events
        self._made: tuple[Message, ...] | None = None

    def _messages(self) -> tuple[Message, ...]:
        if self._made is None:
            made = (_message_of(event.data) for event in self._events)
            self._made = tuple(message for message in made if message is not None)
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._messages()[index]

    def __len__(self) -> int:
        return len(self._messages())

    def __repr__(self) -> str:
        return repr(self._messages())


def _message_of(data: object) -> Message | None:
    match data:
        case UserMessageEvent() | SteeringMessageEvent():
            return Message("user", data.content, data.source, data.message_id)
        case ContextMessageEvent():
            return frame_context(data)
        case AssistantMessageEvent() if data.content:
            return Message("assistant", data.content)
        case ToolResultEvent():
            return Message("user", ToolResultBlock(data.call_id, data.content, data.is_error))
    return None
