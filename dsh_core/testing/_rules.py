"""
The rules of the log, one function for each type of event: what the next event must not be (S-12).

All of them only look; what has been appended is folded by `_fold` before the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dsh_core.session import events as ev
from dsh_core.session._registry import event_type_of
from dsh_core.testing._fold import Call, LogState, calls_of

if TYPE_CHECKING:
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["Broken", "check"]


class Broken(Exception):
    """A rule that an event would break, in words."""


def check(log: LogState, session: Session, event: SessionEvent) -> None:
    """
    Look at the next event.

    Args:
        log: Everything before it.
        session: The session, for the data of events that a replacement shadows.
        event: What is about to be appended.

    Raises:
        Broken: The first rule it would break.
    """
    _require(event.seq == log.seen, f"seq is {event.seq}, the log goes on at {log.seen} (S-1)")
    _require(event.time >= log.time, f"time {event.time} is earlier than {log.time}, the event before (S-1)")
    _check_sources(event)
    _check_enclosure(log, event.data)
    if event.surface is not None:
        _check_replacement(log, session, event)
        return
    rule = _RULES.get(type(event.data))
    if rule is not None:
        rule(log, event.data)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise Broken(rule)


# -- any event -------------------------------------------------------------------------------------------


def _check_sources(event: SessionEvent) -> None:
    sources = event.sources
    if sources:
        _require(len(set(sources)) == len(sources), f"sources {list(sources)} name an event twice")
        _require(all(0 <= seq < event.seq for seq in sources), f"sources {list(sources)} are not all earlier events")


def _check_enclosure(log: LogState, data: object) -> None:
    kind = event_type_of(type(data))
    inside = log.turn_open or isinstance(data, ev.TurnStartEvent) or (kind is not None and kind.between_turns)
    _require(inside, "it lies outside every turn (S-7)")


def _check_replacement(log: LogState, session: Session, event: SessionEvent) -> None:
    mark, data = event.surface, event.data
    assert mark is not None
    kind = event_type_of(type(data))
    _require(kind is not None and kind.surface, "it is no message, so it cannot replace any (S-3)")
    _require(
        not (log.step_open and log.answered),
        f"the surface is replaced inside step {log.step}, after its answer; only between two attempts (S-7)",
    )
    nodes = log.nodes
    for seq in (mark.first, mark.last):
        _require(seq in nodes, f"it replaces {mark.first}…{mark.last}, and node {seq} is not on the surface (S-3)")
    first, behind = nodes.index(mark.first), nodes.index(mark.last) + 1
    _require(first < behind, f"it replaces {mark.first}…{mark.last}, which runs backwards on the surface (S-3)")
    uncited = [seq for seq in nodes[first:behind] if seq not in event.sources]
    _require(not uncited, f"it shadows {uncited} without naming them in sources (S-3)")
    shadowed = [session.events[seq].data for seq in nodes[first:behind]]
    if not _is_shortening(data, shadowed):
        _check_balance(data, *([session.events[seq].data for seq in nodes[:cut]] for cut in (first, behind)))


def _is_shortening(data: object, shadowed: Sequence[object]) -> bool:
    if len(shadowed) != 1 or not isinstance(data, ev.ToolResultEvent):
        return False
    old = shadowed[0]
    return isinstance(old, ev.ToolResultEvent) and (old.call_id, old.turn, old.step) == (
        data.call_id,
        data.turn,
        data.step,
    )


def _check_balance(data: object, before: Sequence[object], behind: Sequence[object]) -> None:
    _require(
        not isinstance(data, ev.ToolResultEvent),
        "a tool result may replace only the one of the same call, turn and step (S-3)",
    )
    _require(not isinstance(data, ev.AssistantMessageEvent), "an answer cannot take the place of messages (S-3)")
    for side, nodes in (("before", before), ("behind", behind)):
        _require(not _open_calls(nodes), f"the cut {side} the replaced run separates calls from results (S-6)")


def _open_calls(nodes: Iterable[object]) -> set[str]:
    waiting: set[str] = set()
    for data in nodes:
        waiting.update(block.id for block in calls_of(data))
        if isinstance(data, ev.ToolResultEvent):
            waiting.discard(data.call_id)
    return waiting


# -- turns and steps -------------------------------------------------------------------------------------


def _turn_start(log: LogState, data: ev.TurnStartEvent) -> None:
    _require(not log.turn_open, f"turn {log.turn} is still open")
    _require(data.turn == log.turn + 1, f"turn {data.turn} follows turn {log.turn} (S-7)")


def _turn_end(log: LogState, data: ev.TurnEndEvent) -> None:
    _in_turn(log, data)
    _require(not log.step_open, f"step {log.step} is still open")
    _all_answered(log)


def _step_start(log: LogState, data: ev.StepStartEvent) -> None:
    _in_turn(log, data)
    _require(not log.step_open, f"step {log.step} is still open")
    _require(data.step == log.step + 1, f"step {data.step} follows step {log.step} (S-7)")
    _all_answered(log)


def _step_end(log: LogState, data: ev.StepEndEvent) -> None:
    _in_step(log, data)
    _all_answered(log)


def _in_turn(log: LogState, data: Any) -> None:
    _require(data.turn == log.turn, f"it names turn {data.turn}, turn {log.turn} is open")


def _in_step(log: LogState, data: Any) -> None:
    _in_turn(log, data)
    _require(log.step_open, f"it names step {data.step}, and no step is open")
    _require(data.step == log.step, f"it names step {data.step}, step {log.step} is open")


def _all_answered(log: LogState) -> None:
    open_calls = log.unanswered()
    _require(not open_calls, f"calls {open_calls} have no result (L-10)")


def _continuation(log: LogState, data: ev.TurnContinuationEvent) -> None:
    _in_turn(log, data)
    _require(not log.step_open, f"step {log.step} is still open")
    _require(data.step == log.step, f"it names step {data.step}, the last one was {log.step}")


# -- requests and answers --------------------------------------------------------------------------------


def _unanswered_step(log: LogState, data: Any) -> None:
    _in_step(log, data)
    _require(not log.answered, f"step {log.step} has its assistant/message already")


def _in_attempt(log: LogState, data: Any) -> None:
    _unanswered_step(log, data)
    _require(data.attempt == log.attempt, f"it names attempt {data.attempt}, attempt {log.attempt} runs")


def _retry(log: LogState, data: ev.RequestRetryEvent) -> None:
    _unanswered_step(log, data)
    _require(data.attempt == log.attempt + 1, f"attempt {data.attempt} follows attempt {log.attempt}")


def _answer(log: LogState, data: ev.AssistantMessageEvent) -> None:
    _in_attempt(log, data)
    ids = [block.id for block in calls_of(data)]
    _require(all(ids), "a call has no id (L-12)")
    used = sorted({call_id for call_id in ids if ids.count(call_id) > 1 or call_id in log.call_ids})
    _require(not used, f"call ids {used} were used before (L-12)")


# -- calls and results -----------------------------------------------------------------------------------


def _waiting_call(log: LogState, call_id: str) -> Call:
    call = log.calls.get(call_id)
    if call is None:
        why = "was answered already" if call_id in log.call_ids else "is in no assistant/message of the session"
        raise Broken(f"call {call_id!r} {why} (L-10)")
    return call


def _tool_call(log: LogState, data: ev.ToolCallEvent) -> None:
    _in_step(log, data)
    call = _waiting_call(log, data.call_id)
    _require(not call.taken_up, f"call {data.call_id!r} was taken up before")
    _require(data.name == call.name, f"call {data.call_id!r} is one of {call.name!r}, not of {data.name!r}")


def _tool_result(log: LogState, data: ev.ToolResultEvent) -> None:
    _in_turn(log, data)
    _require(data.step == log.step, f"it names step {data.step}, the last one is {log.step}")
    call = _waiting_call(log, data.call_id)
    closing = data.error is not None and data.error.code == "NOT_STARTED"
    _require(call.taken_up or closing, f"call {data.call_id!r} was not taken up, and the result is not NOT_STARTED")


def _rewritten(log: LogState, data: ev.ToolRewrittenEvent) -> None:
    call = _waiting_call(log, data.call_id)
    _require(call.taken_up, f"call {data.call_id!r} was not taken up")
    _require(not call.rewritten, f"call {data.call_id!r} was rewritten before (L-13)")


def _asked(log: LogState, data: ev.ApprovalAskedEvent) -> None:
    _require(data.approval_id not in log.approvals, f"approval {data.approval_id!r} was asked before (L-14)")
    call = _waiting_call(log, data.call_id)
    _require(call.taken_up, f"call {data.call_id!r} was not taken up")


def _decided(log: LogState, data: ev.ApprovalDecidedEvent) -> None:
    asked = log.asked.get(data.approval_id)
    _require(asked is not None, f"approval {data.approval_id!r} does not wait for an answer (L-14)")
    _require(asked == data.call_id, f"approval {data.approval_id!r} is for call {asked!r}, not {data.call_id!r} (L-14)")


# -- messages --------------------------------------------------------------------------------------------


def _queued(log: LogState, data: ev.InboxQueuedEvent) -> None:
    _require(data.message_id not in log.accepted, f"message {data.message_id!r} was accepted before (A-2)")


def _dropped(log: LogState, data: ev.InboxDroppedEvent) -> None:
    _require(len(set(data.message_ids)) == len(data.message_ids), "it drops a message twice (A-2)")
    for message_id in data.message_ids:
        _waits(log, message_id)


def _prompt(log: LogState, data: ev.UserMessageEvent | ev.PromptBlockedEvent) -> None:
    _require(not log.step_open, f"a prompt has no place inside step {log.step} (S-7)")
    _waits(log, data.message_id)


def _steering(log: LogState, data: ev.SteeringMessageEvent) -> None:
    _in_turn(log, data)
    _waits(log, data.message_id)


def _waits(log: LogState, message_id: str) -> None:
    why = "has been used or dropped already" if message_id in log.accepted else "was never queued"
    _require(message_id in log.waiting, f"message {message_id!r} {why} (A-2)")


_RULES: Final[Mapping[type, Callable[[LogState, Any], None]]] = MappingProxyType(
    {
        ev.TurnStartEvent: _turn_start,
        ev.TurnEndEvent: _turn_end,
        ev.StepStartEvent: _step_start,
        ev.StepEndEvent: _step_end,
        ev.TurnContinuationEvent: _continuation,
        ev.RequestHeaderEvent: _in_attempt,
        ev.RequestRetryEvent: _retry,
        ev.AssistantChunkEvent: _in_attempt,
        ev.AssistantMessageEvent: _answer,
        ev.ToolCallEvent: _tool_call,
        ev.ToolResultEvent: _tool_result,
        ev.ToolRewrittenEvent: _rewritten,
        ev.ApprovalAskedEvent: _asked,
        ev.ApprovalDecidedEvent: _decided,
        ev.InboxQueuedEvent: _queued,
        ev.InboxDroppedEvent: _dropped,
        ev.UserMessageEvent: _prompt,
        ev.PromptBlockedEvent: _prompt,
        ev.SteeringMessageEvent: _steering,
    }
)
