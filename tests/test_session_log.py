"""The log: what an append does, what it refuses, who is told."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
import pytest
from logs import Clock, Log, NoteEvent

import dsh_core as dsh
from dsh_core.content import Source, Tagged, TextBlock, ToolCallBlock, ToolResultBlock
from dsh_core.errors import HarnessError, InvariantViolation, NotSerializable, SequenceError
from dsh_core.session import Session, SessionEvent, SessionHeader
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    RequestHeaderEvent,
    StepStartEvent,
    ToolResultEvent,
    TurnStartEvent,
    UnknownEvent,
    UserMessageEvent,
)
from dsh_core.testing import text

pytestmark = pytest.mark.anyio


def stable_id(value: object) -> str:
    """A test's name that is the same in every process: no memory address in it."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


class Sink:
    """A sink that remembers, and runs what a test wants run at each stage."""

    def __init__(self, *, check: Any = None, notify: Any = None) -> None:
        self.told: list[tuple[str, int]] = []
        self._check = check
        self._notify = notify

    def check(self, session: Session, event: SessionEvent) -> None:
        self.told.append(("check", len(session.events)))
        if self._check is not None:
            self._check(session, event)

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        self.told.append(("record", len(session.events)))

    def notify(self, session: Session, event: SessionEvent) -> None:
        self.told.append(("notify", len(session.events)))
        if self._notify is not None:
            self._notify(session, event)

    def created(self, session: Session) -> None:
        self.told.append(("created", len(session.events)))

    def disposed(self, session: Session) -> None:
        self.told.append(("disposed", len(session.events)))


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# -- appending -------------------------------------------------------------------------------------------


def test_seq_is_the_index_and_starts_at_0() -> None:
    """S-1: seq starts at 0 and equals the index."""
    log = Log()
    log.turn()
    assert [event.seq for event in log.session.events] == list(range(len(log.session.events)))


def test_an_event_is_in_the_log_when_observers_hear_of_it() -> None:
    """S-1: validate, snapshot, push, notify; the check comes before the push."""
    sink = Sink()
    session = Session(SessionHeader("s"), sink=sink)
    session.append(NoteEvent(1))
    assert sink.told == [("check", 0), ("record", 1), ("notify", 1)]


def test_time_never_decreases() -> None:
    """S-1: a clock that jumps back does not turn the log round."""
    clock = Clock(5_000)
    session = Session(SessionHeader("s"), clock=clock)
    for now in (5_000, 3_000, 6_000, 1):
        clock.now = now
        session.append(NoteEvent(now))
    assert [event.time for event in session.events] == [5_000, 5_000, 6_000, 6_000]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$"),
        ({"a": math.inf}, ".a "),
        ([1, -math.inf], "[1]"),
        (b"bytes", "$"),
        ({"a": {1, 2}}, ".a "),
        ({"a": [(1, 2)]}, ".a[0]"),
        ({"a": {1: 2}}, ".a "),
        (object(), "$"),
        (2**53, "$"),
        ([-(2**53)], "[0]"),
        (cycle(), "contains itself"),
    ],
    ids=stable_id,
)
def test_what_does_not_survive_json_is_refused_with_type_and_path(value: Any, path: str) -> None:
    """S-2: the error names event type and path, and nothing is in the log."""
    session = Session(SessionHeader("s"))
    with pytest.raises(NotSerializable) as caught:
        session.append(NoteEvent(value))
    assert "test/note" in str(caught.value)
    assert path in str(caught.value)
    assert len(session.events) == 0


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 2**53 - 1, -(2**53) + 1, 0.5, "", "ü\u2028\x0b", [], {}, [{"a": [None]}]],
    ids=stable_id,
)
def test_json_values_are_kept_as_they_are(value: Any) -> None:
    """S-2: the harmless twins of what is refused."""
    session = Session(SessionHeader("s"))
    stored = session.append(NoteEvent(value)).data.value
    assert stored == value
    assert type(stored) is type(value) or isinstance(stored, list | dict)


def test_the_same_object_twice_is_no_cycle() -> None:
    """S-2: a shared value is copied twice."""
    shared = {"a": 1}
    session = Session(SessionHeader("s"))
    assert session.append(NoteEvent([shared, shared])).data.value == [{"a": 1}, {"a": 1}]


def test_changing_what_was_appended_changes_nothing_in_the_log() -> None:
    """S-2: plain values, a plugin's changeable event, the list of sources, a core event's free-form field."""
    session = Session(SessionHeader("s"))
    value, sources, params = {"deep": [1]}, [0], {"extra": {"a": 1}}
    session.append(NoteEvent())
    mutable = NoteEvent(value, ["x"])
    note = session.append(mutable, sources=sources)
    header = session.append(RequestHeaderEvent(1, 1, params=params))
    value["deep"].append(2)
    sources.append(7)
    params["extra"]["a"] = 2
    mutable.tags.append("y")
    mutable.value = None
    assert note.data.value == {"deep": [1]}
    assert note.data.tags == ["x"]
    assert note.sources == (0,)
    assert header.data.params == {"extra": {"a": 1}}


def test_what_is_in_the_log_cannot_be_changed() -> None:
    """S-2: events, their data and free-form values in them refuse."""
    session = Session(SessionHeader("s"))
    event = session.append(NoteEvent({"a": [1]}))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.seq = 7  # type: ignore[misc]
    with pytest.raises(TypeError, match="immutable"):
        event.data.value["a"] = 2
    with pytest.raises(TypeError, match="immutable"):
        event.data.value["a"].append(2)
    with pytest.raises((TypeError, AttributeError)):
        session.events.append(event)  # type: ignore[attr-defined]


def test_lone_surrogates_are_stored_as_replacement_characters() -> None:
    """S-2, log-4: in values, keys and blocks; a pair in two halves is the character it means."""
    session = Session(SessionHeader("s"))
    note = session.append(NoteEvent({"k\ud800": "a\udc80b"}))
    message = session.append(ContextMessageEvent("cut \ud83d", Source.plugin("p")))
    pair = session.append(ContextMessageEvent("\ud83d\ude00", Source.plugin("p\udcff")))
    assert note.data.value == {"k\ufffd": "a\ufffdb"}
    assert message.data.content == (TextBlock("cut \ufffd"),)
    assert pair.data.content == (TextBlock("\U0001f600"),)
    assert pair.data.source == Source.plugin("p\ufffd")


@pytest.mark.parametrize(
    "data",
    [
        StepStartEvent(1, "1"),  # type: ignore[arg-type]
        StepStartEvent(True, 1),
        StepStartEvent(2**53, 1),
        TurnStartEvent(1, {"kind": "message"}),  # type: ignore[arg-type]
        ContextMessageEvent("x", "me"),  # type: ignore[arg-type]
    ],
    ids=stable_id,
)
def test_a_field_of_the_wrong_type_is_refused(data: Any) -> None:
    """S-2: event data are typed; the error names the type and the field."""
    session = Session(SessionHeader("s"))
    with pytest.raises(NotSerializable, match="/"):
        session.append(data)
    assert len(session.events) == 0


def test_a_class_that_is_no_event_is_refused() -> None:
    """S-2: the error says how to register one."""
    session = Session(SessionHeader("s"))
    with pytest.raises(NotSerializable, match="@session_event"):
        session.append(Tagged("x"))
    with pytest.raises(NotSerializable, match="UnknownEvent"):
        session.append(UnknownEvent("a/b", b"{}"))


def test_validate_says_what_append_would_say() -> None:
    """S-2: and leaves no trace."""
    session = Session(SessionHeader("s"))
    session.validate(NoteEvent({"fine": 1}))
    with pytest.raises(NotSerializable, match="test/note"):
        session.validate(NoteEvent(b""))
    assert len(session.events) == 0


@pytest.mark.parametrize("sources", [(0,), (-1,), ("0",), (True,)], ids=stable_id)
def test_sources_are_earlier_events(sources: Any) -> None:
    """S-3: what an event was made from must be in the log."""
    session = Session(SessionHeader("s"))
    with pytest.raises(InvariantViolation, match="sources"):
        session.append(NoteEvent(), sources=sources)
    assert len(session.events) == 0


def test_a_refused_append_leaves_no_trace() -> None:
    """S-1: whoever refuses it, the session is as before."""

    def refuse(session: Session, event: SessionEvent) -> None:
        if isinstance(event.data, AssistantMessageEvent):
            raise InvariantViolation("no answers here")

    log = Log(sink=Sink(check=refuse))
    log.start()
    log.user()
    log.step()
    before = (len(log.session.events), log.session.surface.nodes, log.roles(), log.session.unanswered_calls())
    with pytest.raises(InvariantViolation, match="no answers here"):
        log.answer("text", ["c1"])
    assert (
        len(log.session.events),
        log.session.surface.nodes,
        log.roles(),
        log.session.unanswered_calls(),
    ) == before
    assert log.step_end().seq == before[0]


# -- results ---------------------------------------------------------------------------------------------


def test_a_second_result_for_a_call_is_refused() -> None:
    """L-10, pair-3: one answer a call; the second is named in the error."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["c1"])
    log.result("c1", "first")
    with pytest.raises(InvariantViolation, match=r"c1.*(already|has its result)"):
        log.result("c1", "second")
    assert log.roles() == ["assistant", "result c1"]


def test_a_result_without_a_call_is_refused() -> None:
    """S-6: refused on write."""
    log = Log()
    log.start()
    log.step()
    with pytest.raises(InvariantViolation, match=r"c1.*never made"):
        log.result("c1")


# -- observers -------------------------------------------------------------------------------------------


def test_append_from_inside_an_observer_is_refused() -> None:
    """S-2: and says what to do instead; the event that was being announced stays."""
    caught: list[HarnessError] = []

    def append(session: Session, event: SessionEvent) -> None:
        with pytest.raises(HarnessError, match=r"agent\.send") as error:
            session.append(NoteEvent())
        caught.append(error.value)

    session = Session(SessionHeader("s"), sink=Sink(notify=append))
    session.append(NoteEvent(1))
    assert [error.code for error in caught] == ["REENTRANT"]
    assert [event.data.value for event in session.events] == [1]


def test_append_from_inside_a_check_is_refused() -> None:
    """S-2: a check looks, it does not write."""
    session = Session(SessionHeader("s"), sink=Sink(check=lambda session, event: session.append(NoteEvent())))
    with pytest.raises(HarnessError, match="from inside a check"):
        session.append(NoteEvent(1))
    assert len(session.events) == 0


def test_deferred_work_runs_directly_after_the_round_in_call_order() -> None:
    """S-2: and what it appends makes a round of its own."""

    def notify(session: Session, event: SessionEvent) -> None:
        if event.data.value == "first":
            session.defer(lambda: session.append(NoteEvent("a")) and None)
            session.defer(lambda: session.append(NoteEvent("b")) and None)
            assert len(session.events) == 1

    session = Session(SessionHeader("s"), sink=Sink(notify=notify))
    session.append(NoteEvent("first"))
    session.append(NoteEvent("second"))
    assert [event.data.value for event in session.events] == ["first", "a", "b", "second"]


def test_deferred_work_that_fails_does_not_reach_the_appender(caplog: pytest.LogCaptureFixture) -> None:
    """S-2: its caller has gone; it is logged, and what was asked for behind it still runs."""

    def notify(session: Session, event: SessionEvent) -> None:
        if event.seq == 0:
            session.defer(lambda: session.append(NoteEvent(b"")) and None)
            session.defer(lambda: session.append(NoteEvent("b")) and None)

    session = Session(SessionHeader("s"), sink=Sink(notify=notify))
    session.append(NoteEvent("first"))
    assert [event.data.value for event in session.events] == ["first", "b"]
    assert "refused" in caplog.text


def test_work_deferred_during_a_check_runs_although_the_append_is_refused() -> None:
    """S-2: what was accepted is not lost with somebody else's event."""

    def check(session: Session, event: SessionEvent) -> None:
        if event.data.value == "bad":
            session.defer(lambda: session.append(NoteEvent("kept")) and None)
            raise InvariantViolation("no")

    session = Session(SessionHeader("s"), sink=Sink(check=check))
    with pytest.raises(InvariantViolation):
        session.append(NoteEvent("bad"))
    assert [event.data.value for event in session.events] == ["kept"]


def test_outside_of_a_round_deferred_work_runs_at_once() -> None:
    """S-2: defer is a plain call then."""
    session = Session(SessionHeader("s"))
    session.defer(lambda: session.append(NoteEvent("now")) and None)
    assert [event.data.value for event in session.events] == ["now"]


async def test_an_observer_that_raises_leaves_the_event_and_the_others(
    dsh_harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """S-1, H observe: append returns, the event stays, the failure is logged with the plugin's name."""
    heard: list[int] = []

    class Bad:
        @dsh.hookimpl(tryfirst=True)
        def session_event(self, event: SessionEvent) -> None:
            raise RuntimeError("observer down")

    class Good:
        @dsh.hookimpl
        def session_event(self, event: SessionEvent) -> None:
            heard.append(event.seq)

    async with dsh_harness(plugins=[Bad(), Good()]) as harness:
        session = harness.sessions.create("s")
        assert session.append(NoteEvent(1)).seq == 0
    assert heard == [0]
    assert "Bad" in caplog.text
    assert "observer down" in caplog.text


async def test_agent_verbs_in_an_observer_are_appended_behind_the_round(dsh_chat: Any) -> None:
    """S-2: inject and steer from a session_event observer, in call order."""

    class Busybody:
        def __init__(self) -> None:
            self.agent: Any = None

        @dsh.hookimpl
        def agent_created(self, agent: Any) -> None:
            self.agent = agent

        @dsh.hookimpl
        def session_event(self, event: SessionEvent) -> None:
            if event.type == "user/message":
                self.agent.inject("one")
                self.agent.inject("two")

    async with dsh_chat(text("ok"), plugins=[Busybody()]) as chat:
        await chat.ask("hi")
        types = [event.type for event in chat.agent.session.events]
        behind = types.index("user/message") + 1
        assert types[behind : behind + 2] == ["context/message", "context/message"]


# -- seeds -----------------------------------------------------------------------------------------------


def test_a_seed_with_a_gap_is_refused() -> None:
    """S-1: seq equals the index, in a seed too."""
    log = Log()
    log.turn()
    events = [*log.session.events]
    del events[2]
    with pytest.raises(SequenceError, match="3 where 2 belongs"):
        Session(SessionHeader("t"), seed=events)


def test_a_seed_replacement_has_to_fit() -> None:
    """S-3: as strict as an append."""
    log = Log()
    log.turn()
    events = [*log.session.events]
    bad = SessionEvent(
        len(events), events[-1].time, UserMessageEvent("r", "x"), dsh.session.Replace(0, 0), sources=(0,)
    )
    with pytest.raises(InvariantViolation, match="not on the surface"):
        Session(SessionHeader("t"), seed=[*events, bad])


def test_a_seed_is_not_announced_and_the_log_goes_on_behind_it() -> None:
    """S-9: consumers read it from the session."""
    log = Log()
    log.turn()
    sink = Sink()
    session = Session(SessionHeader("t"), seed=log.session.events, sink=sink)
    assert sink.told == []
    assert session.last_turn == 1
    event = session.append(NoteEvent())
    assert event.seq == len(log.session.events)
    assert event.time >= log.session.events[-1].time


def test_a_log_replayed_as_a_seed_gives_the_same_session() -> None:
    """S-4: identical surface and messages, replacements included."""
    log = Log()
    log.turn("one")
    log.start()
    first, last = log.session.surface.nodes
    log.user("two")
    log.replace(first, last)
    log.round_trip("c1", "c2")
    log.end()
    copy = Session(SessionHeader("t"), seed=log.session.events)
    assert copy.surface.nodes == log.session.surface.nodes
    assert copy.derive_messages() == log.session.derive_messages()
    assert copy.used_call_ids == log.session.used_call_ids
    assert copy.last_turn == log.session.last_turn


# -- what a session knows --------------------------------------------------------------------------------


def test_open_turn_and_step_are_read_from_the_log() -> None:
    """S-7: both from the log, never from a flag of the loop."""
    log = Log()
    session = log.session

    def where() -> tuple[bool, int | None, int | None, int]:
        return session.turn_open, session.open_turn, session.open_step, session.last_turn

    assert where() == (False, None, None, 0)
    log.start()
    assert where() == (True, 1, None, 1)
    log.step()
    assert where() == (True, 1, 1, 1)
    log.step_end()
    log.end()
    assert where() == (False, None, None, 1)


def test_unanswered_calls_are_those_without_a_result_in_order() -> None:
    """L-10: what closing a turn owes."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b", "c"])
    log.result("b")
    assert log.session.unanswered_calls() == [ToolCallBlock("a", "add", "{}"), ToolCallBlock("c", "add", "{}")]
    assert log.session.used_call_ids == {"a", "b", "c"}


def test_detached_sessions_tell_nobody() -> None:
    """A-5: the object stays readable and writable, alone."""
    sink = Sink()
    session = Session(SessionHeader("s"), sink=sink)
    session.detach()
    session.append(NoteEvent())
    assert sink.told == []
    assert len(session.events) == 1


def test_events_read_like_a_sequence() -> None:
    """10-api: a read-only sequence that knows its session."""
    log = Log()
    log.turn()
    events = log.session.events
    assert events.session_id == "s"
    assert next(reversed(events)) is events[-1]
    assert events[1:3] == (events[1], events[2])
    assert events == list(events)
    assert isinstance(events[0].data, TurnStartEvent)


def test_a_shortened_result_is_no_second_answer() -> None:
    """S-3: the replacement of a result keeps the call answered."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["c1"])
    old = log.result("c1", "long")
    log.session.append(ToolResultEvent(1, 1, "c1", "short"), replace=(old.seq, old.seq), sources=[old.seq])
    assert log.session.unanswered_calls() == []
    (message,) = log.session.derive_messages()[1:]
    assert message.content == (ToolResultBlock("c1", "short"),)
