"""The live sessions: made, listed, entered, detached, forked."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from logs import Log, NoteEvent

import dsh_core as dsh
from dsh_core.content import Tagged
from dsh_core.errors import HarnessError, NotSerializable, SequenceError, SessionExists
from dsh_core.session import Session, SessionEvent, SessionHeader, SessionStore
from dsh_core.session.events import StepEndEvent, StepStartEvent, ToolResultEvent, TurnEndEvent, TurnStartEvent
from dsh_core.session.fork import fork_prefix
from dsh_core.testing import ScriptedPlugin, text

pytestmark = pytest.mark.anyio


class Sink:
    """A sink that remembers; `raising` makes the announcement of a session fail."""

    def __init__(self, raising: bool = False) -> None:
        self.told: list[str] = []
        self.raising = raising

    def check(self, session: Session, event: SessionEvent) -> None: ...

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        self.told.append(f"event {session.id} {event.seq}")

    def notify(self, session: Session, event: SessionEvent) -> None: ...

    def created(self, session: Session) -> None:
        self.told.append(f"created {session.id}")
        if self.raising:
            raise RuntimeError("no")

    def disposed(self, session: Session) -> None:
        self.told.append(f"disposed {session.id}")


def seed_of(*turns: str) -> list[SessionEvent]:
    log = Log()
    for prompt in turns:
        log.turn(prompt)
    return [*log.session.events]


def test_a_session_is_listed_and_announced() -> None:
    """10-api: create, get, list."""
    sink = Sink()
    store = SessionStore(sink)
    session = store.create("s")
    session.append(NoteEvent())
    assert store.get("s") is session
    assert store.list() == [session]
    assert store.get("other") is None
    assert sink.told == ["created s", "event s 0"]


def test_an_id_is_made_up_when_left_out() -> None:
    """10-api: unique and legal."""
    store = SessionStore()
    ids = {store.create().id for _ in range(50)}
    assert len(ids) == 50
    assert all(SessionStore().create(one).id == one for one in ids)


def test_a_live_id_is_taken() -> None:
    """A-6, case 20: named in the error; nothing else happens."""
    store = SessionStore()
    first = store.create("s")
    with pytest.raises(SessionExists, match="'s'"):
        store.create("s")
    assert store.list() == [first]


@pytest.mark.parametrize(
    "session_id",
    ["", "../x", "/tmp/x", "a/b", "..", ".", "a\0b", "a\nb", "C:\\x", "C:x", "a\\b", "\ud800", "x" * 201],
    ids=ascii,
)
def test_an_id_that_could_be_a_path_is_refused(session_id: str) -> None:
    """log-5: a ValueError that says why."""
    with pytest.raises(ValueError, match="session id"):
        SessionStore().create(session_id)


@pytest.mark.parametrize("session_id", ["a", "trip-2026", "a.b_c", "Ünïcode 東京", "x" * 200, "..."])
def test_harmless_ids_are_taken(session_id: str) -> None:
    """log-5: the harmless twins."""
    assert SessionStore().create(session_id).id == session_id


def test_a_relative_directory_is_refused() -> None:
    """S-9, case 20."""
    store = SessionStore()
    with pytest.raises(ValueError, match="absolute"):
        store.create("s", cwd="here")
    assert store.get("s") is None
    assert store.create("s", cwd="/work").header.cwd == "/work"


def test_metadata_is_a_json_object_that_cannot_be_changed() -> None:
    """S-9: checked, copied, frozen."""
    given: dict[str, Any] = {"a": [1]}
    session = SessionStore().create("s", metadata=given)
    given["a"].append(2)
    assert session.header.metadata == {"a": [1]}
    with pytest.raises(TypeError):
        session.header.metadata["b"] = 1  # type: ignore[index]
    with pytest.raises(NotSerializable):
        SessionStore().create("t", metadata={"a": object()})


def test_a_failed_announcement_leaves_the_id_free() -> None:
    """Case 20: the entry is rolled back."""
    sink = Sink(raising=True)
    store = SessionStore(sink)
    with pytest.raises(RuntimeError):
        store.create("s")
    assert store.get("s") is None
    sink.raising = False
    assert store.create("s").id == "s"


async def test_a_created_listener_that_raises_is_contained(dsh_harness: Any) -> None:
    """H observe: it neither stops the session nor the other listeners."""
    heard: list[str] = []

    class Bad:
        @dsh.hookimpl(tryfirst=True)
        def session_created(self, session: Session) -> None:
            raise RuntimeError("no")

    class Good:
        @dsh.hookimpl
        def session_created(self, session: Session) -> None:
            heard.append(session.id)

    async with dsh_harness(plugins=[Bad(), Good()]) as harness:
        assert harness.sessions.create("s") is harness.sessions.get("s")
    assert heard == ["s"]


def test_a_prepared_session_cannot_shadow_a_live_one() -> None:
    """Case 21: the id is checked again when it is entered."""
    store = SessionStore()
    prepared = store.prepare(store.header("s"), ())
    live = store.create("s")
    with pytest.raises(SessionExists):
        store.enter(prepared)
    assert store.get("s") is live


def test_a_detached_session_is_gone_and_tells_nobody() -> None:
    """Case 22: it stays readable; detaching twice is nothing."""
    sink = Sink()
    store = SessionStore(sink)
    session = store.create("s")
    store.detach(session)
    store.detach(session)
    session.append(NoteEvent())
    assert store.get("s") is None
    assert sink.told == ["created s", "disposed s"]
    assert len(session.events) == 1
    assert store.create("s") is not session


def test_detaching_a_stale_session_leaves_the_live_one() -> None:
    """Case 21: identity counts, not the id."""
    store = SessionStore()
    stale = store.prepare(store.header("s"), ())
    live = store.create("s")
    store.detach(stale)
    assert store.get("s") is live


# -- seeds -----------------------------------------------------------------------------------------------


def test_a_seed_is_taken_over_and_the_header_says_how_much_is_inherited() -> None:
    """S-9, case 23: seed_length is given, not inferred."""
    seed = seed_of("one", "two")
    session = SessionStore().create("s", seed=seed, seed_length=5, parent="p")
    assert list(session.events) == seed
    assert session.header.seed_length == 5
    assert session.header.parent == "p"
    assert session.last_turn == 2


def test_a_seed_with_a_gap_is_refused() -> None:
    """Case 7: distinct errors for distinct faults."""
    store = SessionStore()
    with pytest.raises(SequenceError):
        store.create("s", seed=seed_of("one")[1:])
    assert store.get("s") is None


def test_a_seed_with_data_that_do_not_survive_json_is_refused() -> None:
    """Case 7: as strict as an append."""
    store = SessionStore()
    with pytest.raises(NotSerializable, match="test/note"):
        store.create("s", seed=[SessionEvent(0, 1, NoteEvent({1, 2}))])
    assert store.get("s") is None


def test_a_seed_that_is_changed_afterwards_changes_nothing() -> None:
    """Case 7, S-2: a snapshot is taken."""
    value = {"a": [1]}
    note = NoteEvent(value, ["t"])
    session = SessionStore().create("s", seed=[SessionEvent(0, 1, note)])
    value["a"].append(2)
    note.tags.append("u")
    note.value = None
    assert session.events[0].data == NoteEvent({"a": [1]}, ["t"])


def test_a_seed_ends_outside_a_turn() -> None:
    """Section 8: OPEN_TURN."""
    store = SessionStore()
    with pytest.raises(HarnessError) as caught:
        store.create("s", seed=seed_of("one")[:-1])
    assert caught.value.code == "OPEN_TURN"
    assert store.get("s") is None


def test_a_seed_is_balanced() -> None:
    """Section 8: UNBALANCED."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a"])
    log.step_end()
    log.end()
    with pytest.raises(HarnessError) as caught:
        SessionStore().create("s", seed=log.session.events)
    assert caught.value.code == "UNBALANCED"


def test_events_of_a_live_session_can_seed_another() -> None:
    """S-11: the source is not touched, and both go on alone."""
    store = SessionStore()
    source = Log(store.create("s"))
    source.turn("one")
    copy = Log(store.create("t", seed=source.session.events, seed_length=len(source.session.events)))
    copy.turn("two")
    source.turn("three")
    assert copy.roles() == ["user one", "assistant", "user two", "assistant"]
    assert source.roles() == ["user one", "assistant", "user three", "assistant"]


# -- forks -----------------------------------------------------------------------------------------------


def forkable() -> list[SessionEvent]:
    log = Log()
    log.turn("one")
    log.session.append(NoteEvent())
    log.turn("two")
    log.start()
    return [*log.session.events]


def test_a_fork_ends_at_the_last_turn_that_ended() -> None:
    """S-11, case 29: an open turn is not taken along."""
    events = forkable()
    prefix = fork_prefix(events, None)
    assert isinstance(prefix[-1].data, TurnEndEvent)
    assert prefix[-1].data.turn == 2
    assert len(fork_prefix([TurnStart], None)) == 0


TurnStart = SessionEvent(0, 1, TurnStartEvent(1, Tagged("message")))


def test_a_boundary_is_a_turns_end_inclusive() -> None:
    """S-11: every other seq is refused; one inside a turn is OPEN_TURN and names the nearest legal one."""
    events = forkable()
    codes: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event.data, TurnEndEvent):
            assert fork_prefix(events, event.seq)[-1] is event
            continue
        with pytest.raises(HarnessError) as caught:
            fork_prefix(events, event.seq)
        codes.setdefault(caught.value.code, set()).add(event.type)
        assert "nearest legal boundary is" in str(caught.value)
    assert codes["INVALID_BOUNDARY"] == {"test/note"} | ({"inbox/queued"} & codes["INVALID_BOUNDARY"])
    assert {"turn/start", "step/start", "user/message", "assistant/message"} <= codes["OPEN_TURN"]


@pytest.mark.parametrize("boundary", [-1, 10_000])
def test_a_boundary_outside_of_the_log_is_invalid(boundary: int) -> None:
    """S-11, case 29."""
    with pytest.raises(HarnessError) as caught:
        fork_prefix(forkable(), boundary)
    assert caught.value.code == "INVALID_BOUNDARY"


async def test_a_forked_agent_goes_on_counting(dsh_harness: Any, dsh_scripted: Any) -> None:
    """S-11, case 29: its own turns follow the inherited ones; the source is unchanged."""
    adapter = dsh_scripted(text("one"), text("two"))
    options = dsh.AgentOptions(model="scripted/x")
    async with dsh_harness(plugins=[ScriptedPlugin(adapter)]) as harness:
        async with await harness.agents.create("s", options=options) as source:
            await source.agent.send("first")
            before = list(source.agent.session.events)
            async with await harness.agents.fork("s", session_id="f", options=options) as fork:
                result = await fork.agent.send("second")
                header = fork.agent.session.header
                assert result.turn == 2
                assert header.parent == "s"
                assert header.seed_length == len(fork_prefix(before, None))
                with pytest.raises(HarnessError) as caught:
                    await harness.agents.fork("s", boundary=1, options=options)
                assert caught.value.code in {"OPEN_TURN", "INVALID_BOUNDARY"}
            assert list(source.agent.session.events) == before


def test_headers_tell_what_they_are_made_of() -> None:
    """S-9: every member, and its type."""
    header = SessionStore(clock=lambda: 77).header("s", cwd="/w", parent="p", spawned_by="b", agent="a")
    assert header == SessionHeader("s", 1, 77, "/w", "p", 0, "b", "a", {})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        header.id = "t"  # type: ignore[misc]


def test_step_events_of_a_seed_count() -> None:
    """S-7: what is open is told from the whole log."""
    session = Session(
        SessionHeader("s"),
        seed=[TurnStart, SessionEvent(1, 1, StepStartEvent(1, 1)), SessionEvent(2, 1, StepEndEvent(1, 1))],
    )
    assert (session.open_turn, session.open_step) == (1, None)


def test_a_second_answer_in_a_seed_is_tolerated() -> None:
    """S-6: on read."""
    log = Log()
    log.start()
    log.round_trip("a")
    log.end()
    events = [*log.session.events, SessionEvent(len(log.session.events), 9_000, ToolResultEvent(1, 1, "a", "again"))]
    assert len(SessionStore().create("s", seed=events).events) == len(events)
