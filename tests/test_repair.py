"""What a log that was cut off owes, and which messages still wait."""

from __future__ import annotations

from typing import Any

import pytest
from logs import Log, NoteEvent

from dsh_core.content import ErrorInfo
from dsh_core.session import Session, SessionEvent, SessionHeader, interrupted_turn_closers
from dsh_core.session.events import (
    ApprovalAskedEvent,
    ApprovalDecidedEvent,
    InboxDroppedEvent,
    PromptBlockedEvent,
    StepEndEvent,
    ToolResultEvent,
    TurnEndEvent,
)
from dsh_core.session.repair import pending_messages


def closers(log: Log) -> list[Any]:
    return interrupted_turn_closers(log.session.events)


def named(data: Any) -> str:
    """One closer as a word."""
    if isinstance(data, ToolResultEvent):
        assert data.is_error
        assert data.error is not None
        return f"{data.call_id} {data.error.code}"
    return "step/end" if isinstance(data, StepEndEvent) else f"turn/end {data.reason.kind}"


def repaired(log: Log) -> Log:
    """The session as it is after the closers were appended."""
    for data in closers(log):
        log.session.append(data)
    return log


def test_a_closed_log_owes_nothing() -> None:
    """P-3, case 24: empty, or whole turns, with or without what may stand between turns."""
    log = Log()
    assert closers(log) == []
    log.turn()
    assert closers(log) == []
    log.session.append(NoteEvent())
    log.queue()
    assert closers(log) == []


def test_an_open_turn_owes_its_end() -> None:
    """P-3, case 24: reason interrupted."""
    log = Log()
    log.turn()
    log.start()
    log.user()
    assert [named(data) for data in closers(log)] == ["turn/end interrupted"]
    assert closers(log)[0].turn == 2


def test_an_open_step_owes_its_end_first() -> None:
    """P-3, case 24."""
    log = Log()
    log.start()
    log.step()
    assert [named(data) for data in closers(log)] == ["step/end", "turn/end interrupted"]


def test_a_closed_step_owes_nothing_of_its_own() -> None:
    """P-3: the number of the open step is what is closed."""
    log = Log()
    log.start()
    log.round_trip("a")
    assert [named(data) for data in closers(log)] == ["turn/end interrupted"]
    log.step()
    assert closers(log)[0] == StepEndEvent(1, 2)


def test_every_unanswered_call_gets_one_result_in_order() -> None:
    """L-10, cases 25 and 26: answered ones are left alone; the code says whether it can have run."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b", "c", "d"])
    log.call("a")
    log.result("a")
    log.call("c")
    log.call("b")
    assert [named(data) for data in closers(log)] == [
        "b INTERRUPTED",
        "c INTERRUPTED",
        "d NOT_STARTED",
        "step/end",
        "turn/end interrupted",
    ]


def test_the_texts_tell_did_not_run_from_may_have_run() -> None:
    """L-10, pair-5: the model must not be told otherwise."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b"])
    log.call("a")
    interrupted, not_started = (data.content[0].text for data in closers(log)[:2])
    assert "may have taken effect" in interrupted
    assert "not started" in not_started
    assert "may have" not in not_started


@pytest.mark.parametrize(
    ("outcome", "code"), [(None, "NOT_STARTED"), ("rejected", "NOT_STARTED"), ("approved", "INTERRUPTED")]
)
def test_a_call_that_waited_for_approval_has_not_run(outcome: str | None, code: str) -> None:
    """L-14: unless the answer was yes."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a"])
    log.call("a")
    log.session.append(ApprovalAskedEvent("q", "a", "add"))
    if outcome is not None:
        log.session.append(ApprovalDecidedEvent("q", "a", outcome))
    assert named(closers(log)[0]) == f"a {code}"


def test_calls_of_earlier_turns_are_left_alone() -> None:
    """P-3: only the open turn is closed."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["old"])
    log.step_end()
    log.end()
    assert closers(log) == []
    log.start()
    assert [named(data) for data in closers(log)] == ["turn/end interrupted"]


def test_a_call_event_without_a_message_owes_nothing() -> None:
    """P-3: no provider has seen it."""
    log = Log()
    log.start()
    log.step()
    log.call("ghost")
    assert [named(data) for data in closers(log)] == ["step/end", "turn/end interrupted"]


def test_a_repaired_log_owes_nothing_more() -> None:
    """P-3, pair-2: repairing twice adds nothing, and the model reads balanced calls."""
    log = Log()
    log.start()
    log.user()
    log.step()
    log.answer("", ["a", "b"])
    log.call("a")
    assert closers(repaired(log)) == []
    assert log.roles() == ["user hi", "assistant", "result a", "result b"]
    assert not log.session.turn_open
    assert log.session.unanswered_calls() == []


def test_every_prefix_of_a_log_can_be_closed() -> None:
    """P-3: whatever event was the last to reach the disk."""
    log = Log()
    log.turn()
    log.start()
    log.user()
    log.round_trip("a", "b")
    log.steering()
    log.step()
    log.answer("done")
    log.step_end()
    log.end()
    for length in range(len(log.session.events) + 1):
        cut = Log(Session(SessionHeader("t"), seed=log.session.events[:length]))
        repaired(cut)
        assert not cut.session.turn_open
        assert cut.session.unanswered_calls() == []
        assert closers(cut) == []


def test_closers_are_plain_event_data() -> None:
    """10-api: whoever appends them gives seq and time."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a"])
    log.call("a")
    result, step, turn = closers(log)
    assert result.error == ErrorInfo("InterruptedError", "INTERRUPTED")
    assert (result.turn, result.step) == (1, 1)
    assert step == StepEndEvent(1, 1)
    assert isinstance(turn, TurnEndEvent)


# -- messages that wait ----------------------------------------------------------------------------------


def test_messages_wait_until_they_run_are_blocked_or_dropped() -> None:
    """A-2, case 58: in the order in which they were accepted, both lanes merged."""
    log = Log()
    ids = [log.queue(f"t{number}", "steering" if number % 2 else "queued") for number in range(6)]
    log.start()
    log.session.append(PromptBlockedEvent(ids[0], "t0"))
    log.session.append(InboxDroppedEvent([ids[2], ids[3]]))
    log.user("runs at once")
    assert [waiting.message_id for waiting in pending_messages(log.session.events)] == [ids[1], ids[4], ids[5]]


def test_a_fork_does_not_inherit_what_waits() -> None:
    """S-9: the inbox is folded from events behind the seed."""
    log = Log()
    log.queue("theirs")
    seed: list[SessionEvent] = [*log.session.events]
    fork = Log(Session(SessionHeader("f", seed_length=len(seed)), seed=seed))
    mine = fork.queue("mine")
    assert [w.message_id for w in pending_messages(fork.session.events, len(seed))] == [mine]
    assert len(pending_messages(fork.session.events)) == 2
