"""The persistence seam: what the base class promises for every backend, and write-behind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence

import attrs
import pytest

from dsh_core.content import Tagged
from dsh_core.errors import (
    NotSerializable,
    SequenceError,
    SessionCorrupt,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    StorageError,
    UnsupportedFormat,
)
from dsh_core.persistence import (
    Damage,
    PersistenceCoordinator,
    RawLog,
    SessionPersistence,
    SessionSummary,
    check_session_id,
)
from dsh_core.session import Session, SessionEvent, SessionHeader, decode_event, encode_event
from dsh_core.session.events import (
    ApprovalAskedEvent,
    ApprovalDecidedEvent,
    InboxDroppedEvent,
    InboxQueuedEvent,
    StepEndEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEndEvent,
    TurnStartEvent,
)

pytestmark = pytest.mark.anyio

ILLEGAL_IDS = [
    "", ".", "..", "../x", "/tmp/x", "a/b", "a\\b", "C:x", "c:\\x", "a\0b", "a\nb", "\x85", "x" * 201, "\ud800"
]  # fmt: skip


@attrs.define
class Shelf:
    """What instances of `MemoryPersistence` share: the disk."""

    logs: dict[str, tuple[SessionHeader, list[bytes]]] = attrs.Factory(dict)
    damage: dict[str, Damage] = attrs.Factory(dict)
    locks: set[str] = attrs.Factory(set)
    fault: OSError | None = None
    synced: list[str] = attrs.Factory(list)


class MemoryPersistence(SessionPersistence):
    """An honest backend that keeps bytes in a dict."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.shelf = shelf
        self.stall: asyncio.Event | None = None

    async def _write(self, header: SessionHeader, records: Sequence[bytes], *, first: bool) -> None:
        if self.shelf.fault is not None:
            raise self.shelf.fault
        if first and header.id in self.shelf.logs:
            raise SessionExists(header.id)
        if first:
            self.shelf.logs[header.id] = (header, [])
        self._log(header.id)[1].extend(records)
        if self.stall is not None:
            await self.stall.wait()

    async def _read(self, session_id: str) -> RawLog:
        header, records = self._log(session_id)
        return RawLog(header, [*records], self.shelf.damage.get(session_id))

    async def _cut(self, session_id: str, damage: Damage) -> None:
        del self.shelf.damage[session_id]

    async def _lock(self, session_id: str) -> Callable[[], None]:
        if session_id in self.shelf.locks:
            raise SessionLocked(session_id)
        self.shelf.locks.add(session_id)
        return lambda: self.shelf.locks.discard(session_id)

    async def _delete(self, session_id: str) -> None:
        del self.shelf.logs[session_id]

    async def _update(self, header: SessionHeader) -> None:
        self.shelf.logs[header.id] = (header, self._log(header.id)[1])

    async def list(self) -> AsyncIterator[SessionSummary]:
        for session_id, (header, records) in self.shelf.logs.items():
            yield SessionSummary(session_id, header, len(records), 0)

    async def sync(self, session_id: str) -> None:
        self.shelf.synced.append(check_session_id(session_id))

    def _log(self, session_id: str) -> tuple[SessionHeader, list[bytes]]:
        try:
            return self.shelf.logs[session_id]
        except KeyError:
            raise SessionNotFound(session_id) from None


def turn(number: int, seq: int = 0, *, steps: int = 1) -> list[SessionEvent]:
    """A closed turn."""
    data: list[object] = [TurnStartEvent(number, Tagged("message"))]
    for step in range(1, steps + 1):
        data += [StepStartEvent(number, step), StepEndEvent(number, step)]
    data.append(TurnEndEvent(number, Tagged("completed")))
    return [SessionEvent(seq + index, 1000 + seq + index, item) for index, item in enumerate(data)]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def backend(shelf: Shelf) -> MemoryPersistence:
    return MemoryPersistence(shelf)


async def stored(backend: SessionPersistence, session_id: str = "s", events: Sequence[SessionEvent] = ()) -> None:
    """A session that is stored and owned by nobody."""
    await backend.create(SessionHeader(id=session_id, created_at=1))
    await backend.append(session_id, events or turn(1))
    await backend.release(session_id)


# -- creating and appending ------------------------------------------------------------------------------


async def test_create_writes_nothing_until_the_first_event(backend, shelf):
    """§1: create takes ownership and leaves the store as it is."""
    await backend.create(SessionHeader(id="s", created_at=1))
    assert not shelf.logs
    assert not await backend.has("s")
    await backend.append("s", turn(1))
    assert await backend.has("s")
    assert (await backend.inspect("s")).events == tuple(turn(1))


async def test_create_refuses_an_id_that_is_stored_or_open(backend, shelf):
    """§1, §10: stored is `SessionExists`, owned elsewhere is `SessionLocked`, and so are both at once."""
    await stored(backend)
    with pytest.raises(SessionExists):
        await backend.create(SessionHeader(id="s", created_at=1))
    assert not shelf.locks
    await backend.load("s")
    with pytest.raises(SessionExists):
        await backend.create(SessionHeader(id="s", created_at=1))
    with pytest.raises(SessionLocked):
        await MemoryPersistence(shelf).create(SessionHeader(id="s", created_at=1))


async def test_batches_must_continue_the_log_without_a_gap(backend):
    """§1: first seq equals the stored next seq and the batch is contiguous, else `SequenceError`."""
    events = turn(1)
    await backend.create(SessionHeader(id="s", created_at=1))
    for wrong in (events[1:], [events[0], events[2]], [events[0], events[0]]):
        with pytest.raises(SequenceError, match="'s'"):
            await backend.append("s", wrong)
    await backend.append("s", events)
    with pytest.raises(SequenceError, match="goes on at 4"):
        await backend.append("s", events)
    assert (await backend.inspect("s")).events == tuple(events)


async def test_an_empty_batch_does_nothing(backend, shelf):
    """§1: neither ownership nor a write, but the id is checked."""
    await backend.append("nobody", [])
    assert not shelf.logs
    assert not shelf.locks
    assert not backend._slots
    with pytest.raises(ValueError):
        await backend.append("../x", [])


async def test_append_to_an_id_nobody_created_is_not_found(backend, shelf):
    """§1: and leaves no lock."""
    with pytest.raises(SessionNotFound):
        await backend.append("nobody", turn(1))
    assert not shelf.locks
    assert not backend._slots


async def test_a_first_append_takes_ownership_and_finds_the_end(backend, shelf):
    """§1: ownership is taken by the first append too."""
    await stored(backend)
    other = MemoryPersistence(shelf)
    await other.append("s", turn(2, 4))
    with pytest.raises(SessionLocked):
        await backend.append("s", turn(3, 8))
    assert len((await backend.inspect("s")).events) == 8


async def test_parallel_appends_of_one_session_keep_their_order(backend):
    """§1: the batches of one instance never mix."""
    await backend.create(SessionHeader(id="s", created_at=1))
    await asyncio.gather(*(backend.append("s", turn(n + 1, 4 * n)) for n in range(20)))
    assert [event.seq for event in (await backend.inspect("s")).events] == list(range(80))


async def test_a_failed_write_is_a_storage_error_and_the_batch_can_be_written_again(backend, shelf):
    """§1: all or nothing, and the cause is kept."""
    await backend.create(SessionHeader(id="s", created_at=1))
    shelf.fault = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StorageError, match=r"'s'.*No space left") as caught:
        await backend.append("s", turn(1))
    assert isinstance(caught.value.__cause__, OSError)
    shelf.fault = None
    await backend.append("s", turn(1))
    assert (await backend.inspect("s")).events == tuple(turn(1))


@pytest.mark.parametrize("earlier", [0, 4])
async def test_a_cancelled_write_is_looked_up_before_the_next(backend, earlier):
    """§1: whether the cancelled batch was stored or not, repeating it stores it once."""
    await backend.create(SessionHeader(id="s", created_at=1))
    if earlier:
        await backend.append("s", turn(1))
    batch = turn(2, earlier)
    backend.stall = asyncio.Event()
    task = asyncio.create_task(backend.append("s", batch))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    backend.stall = None
    await backend.append("s", [*batch, *turn(3, earlier + 4)])
    assert [event.seq for event in (await backend.inspect("s")).events] == list(range(earlier + 8))


# -- ownership -------------------------------------------------------------------------------------------


async def test_a_second_owner_is_refused_by_whatever_door(backend, shelf):
    """P-4: create, load, append, delete and update of a session owned elsewhere write no byte."""
    await stored(backend)
    await backend.load("s")
    before = [*shelf.logs["s"][1]]
    other = MemoryPersistence(shelf)
    with pytest.raises(SessionLocked):
        await other.load("s")
    with pytest.raises(SessionLocked):
        await other.append("s", turn(2, 4))
    with pytest.raises(SessionLocked):
        await other.delete("s")
    with pytest.raises(SessionLocked):
        await other.update("s", metadata={"a": 1})
    assert shelf.logs["s"][1] == before
    assert (await other.inspect("s")).events == tuple(turn(1))


async def test_release_and_aclose_give_sessions_back(backend, shelf):
    """§1: ownership is held until release or aclose; releasing twice or what is not owned does nothing."""
    for name in ("a", "b", "c"):
        await stored(backend, name)
        await backend.load(name)
    await backend.release("a")
    await backend.release("a")
    assert shelf.locks == {"b", "c"}
    await backend.aclose()
    assert not shelf.locks
    assert not backend._slots


async def test_ownership_ends_only_after_the_last_write(backend, shelf):
    """P-4: a release during a write waits for it."""
    await backend.create(SessionHeader(id="s", created_at=1))
    backend.stall = asyncio.Event()
    writing = asyncio.create_task(backend.append("s", turn(1)))
    await asyncio.sleep(0)
    releasing = asyncio.create_task(backend.release("s"))
    await asyncio.sleep(0.01)
    assert shelf.locks == {"s"}
    backend.stall.set()
    await asyncio.gather(writing, releasing)
    assert not shelf.locks


async def test_delete_refuses_an_open_session_and_removes_a_closed_one(backend, shelf):
    """§1: `delete` refuses a session open for writing, here or elsewhere."""
    await stored(backend)
    await backend.load("s")
    with pytest.raises(SessionLocked):
        await backend.delete("s")
    await backend.release("s")
    await backend.delete("s")
    assert not await backend.has("s")
    assert not shelf.locks
    with pytest.raises(SessionNotFound):
        await backend.delete("s")


async def test_update_changes_the_metadata_only(backend):
    """§1: of stored, open and still unwritten sessions; JSON must be able to hold it (§10)."""
    await stored(backend)
    await backend.update("s", metadata={"title": "one"})
    opened = await backend.load("s")
    assert dict(opened.header.metadata) == {"title": "one"}
    await backend.update("s", metadata={"title": "two"})
    await backend.append("s", turn(2, 4))
    again = await backend.inspect("s")
    assert dict(again.header.metadata) == {"title": "two"}
    assert attrs.evolve(again.header, metadata={}) == SessionHeader(id="s", created_at=1)
    assert len(again.events) == 8
    await backend.create(SessionHeader(id="new", created_at=1))
    await backend.update("new", metadata={"a": 1})
    await backend.append("new", turn(1))
    assert dict((await backend.inspect("new")).header.metadata) == {"a": 1}
    with pytest.raises(NotSerializable):
        await backend.update("s", metadata={"bad": object()})
    with pytest.raises(SessionNotFound):
        await backend.update("nobody", metadata={})


# -- recovery --------------------------------------------------------------------------------------------


async def test_load_closes_an_open_turn_durably_and_once(backend, shelf):
    """P-3: the interrupted turn is kept and closed; loading again changes nothing."""
    await stored(backend, events=turn(1)[:2])
    first = await backend.load("s")
    assert [event.type for event in first.events[2:]] == ["step/end", "turn/end"]
    assert first.events[-1].data.reason["kind"] == "interrupted"
    assert [event.seq for event in first.events] == [0, 1, 2, 3]
    assert first.events[-1].time >= first.events[1].time
    assert "s" in shelf.synced
    records = [*shelf.logs["s"][1]]
    assert await backend.load("s") == first
    await backend.release("s")
    assert (await MemoryPersistence(shelf).load("s")).events == first.events
    assert shelf.logs["s"][1] == records


async def test_load_cuts_a_torn_tail_and_reports_it(backend, shelf):
    """P-3: nothing behind the first bad byte is a record, so it is cut."""
    await stored(backend)
    shelf.damage["s"] = torn = Damage(4, "half a record", 0)
    assert (await backend.inspect("s")).damage == torn
    loaded = await backend.load("s")
    assert loaded.damage == torn
    assert loaded.events == tuple(turn(1))
    assert (await backend.load("s")).damage is None


async def test_a_record_behind_damage_makes_the_log_corrupt(backend, shelf):
    """P-3: `load` refuses, `inspect` shows what is readable; nothing is changed and no lock is left."""
    await stored(backend)
    shelf.damage["s"] = Damage(4, "line 6 is damaged", 3)
    with pytest.raises(SessionCorrupt, match="at 4: line 6 is damaged; 3 readable"):
        await backend.load("s")
    with pytest.raises(SessionCorrupt):
        await backend.append("s", turn(2, 4))
    assert not shelf.locks
    seen = await backend.inspect("s")
    assert seen.damage is not None
    assert len(seen.events) == 4


async def test_a_sequence_gap_is_corrupt_wherever_it_lies(backend, shelf):
    """P-3, §10: `inspect` shows a pure gap as damage."""
    for missing in (0, 1, 2):
        await stored(backend, f"s{missing}")
        del shelf.logs[f"s{missing}"][1][missing]
        with pytest.raises(SessionCorrupt, match=f"seq {missing + 1}, expected {missing}"):
            await backend.load(f"s{missing}")
        seen = await backend.inspect(f"s{missing}")
        assert len(seen.events) == missing
        assert seen.damage is not None
        assert seen.damage.records_after == 3 - missing


async def test_a_whole_record_that_is_no_event_is_corrupt(backend, shelf):
    """P-3: a crash does not make such a record, so it is never cut off silently."""
    await stored(backend)
    shelf.logs["s"][1].append(b'{"seq":4}')
    with pytest.raises(SessionCorrupt, match="record 4 is not an event"):
        await backend.load("s")
    assert len(shelf.logs["s"][1]) == 5


async def test_a_newer_format_is_shown_but_not_resumed(backend, shelf):
    """S-10: the error says what to upgrade, and the bytes stay."""
    await stored(backend)
    shelf.logs["s"] = (attrs.evolve(shelf.logs["s"][0], format=2), shelf.logs["s"][1])
    shelf.damage["s"] = Damage(4, "half a record", 0)
    with pytest.raises(UnsupportedFormat, match=r"newer version.*upgrade dsh-core"):
        await backend.load("s")
    with pytest.raises(UnsupportedFormat):
        await backend.update("s", metadata={})
    assert "s" in shelf.damage
    assert not shelf.locks
    assert len((await backend.inspect("s")).events) == 4


async def test_unknown_events_are_kept_if_ignorable_and_refuse_a_resume_if_not(backend, shelf):
    """S-10: unsupported and corrupt are different errors."""
    ignorable = b'{"seq":4,"time":2000,"type":"future/note","data":{"x":[1, 2]},"ignorable":true,"new":1}'
    await stored(backend)
    shelf.logs["s"][1].append(ignorable)
    loaded = await backend.load("s")
    assert encode_event(loaded.events[4]) == ignorable
    await backend.release("s")
    shelf.logs["s"][1].append(b'{"seq":5,"time":2000,"type":"future/rule","data":{}}')
    with pytest.raises(UnsupportedFormat, match="future/rule"):
        await backend.load("s")
    assert len((await backend.inspect("s")).events) == 6


async def test_read_from_is_inclusive_and_empty_beyond_the_end(backend, shelf):
    """§1: for viewers that follow, without a lock."""
    await stored(backend)
    await backend.load("s")
    viewer = MemoryPersistence(shelf)
    assert [event.seq for event in await viewer.read_from("s", 2)] == [2, 3]
    assert not list(await viewer.read_from("s", 4))
    assert not list(await viewer.read_from("s", 99))
    with pytest.raises(ValueError):
        await viewer.read_from("s", -1)


# -- ids and the class itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ILLEGAL_IDS)
async def test_illegal_ids_are_refused_at_every_entry_point_before_any_access(backend, session_id):
    """P-5: one rule, a `ValueError`."""

    async def forbidden(*args, **kwargs):
        raise AssertionError("the store was touched")

    for name in ("_write", "_read", "_cut", "_lock", "_delete", "_update", "_exists"):
        setattr(backend, name, forbidden)
    for attempt in (
        backend.create(SessionHeader(id=session_id, created_at=1)),
        backend.append(session_id, turn(1)),
        backend.load(session_id),
        backend.inspect(session_id),
        backend.read_from(session_id, 0),
        backend.has(session_id),
        backend.delete(session_id),
        backend.update(session_id, metadata={}),
        backend.release(session_id),
        backend.sync(session_id),
    ):
        with pytest.raises(ValueError):
            await attempt
    assert not backend._slots


@pytest.mark.parametrize("session_id", ["a", "x" * 200, "Ünïcode", "日本", "a b", "ab:c", "..a", "-", "😀", "1:x"])
def test_legal_ids(session_id):
    """P-5: everything else is legal."""
    assert check_session_id(session_id) == session_id


def test_overriding_a_final_method_is_refused_when_the_class_is_made():
    """§1: also through a mixin."""
    with pytest.raises(TypeError, match=r"Bad.append overrides a final method"):
        type("Bad", (MemoryPersistence,), {"append": lambda self: None})
    mixin = type("Mixin", (), {"load": lambda self: None})
    with pytest.raises(TypeError, match=r"Worse.load"):
        type("Worse", (mixin, MemoryPersistence), {})


async def test_bytes_made_at_append_are_the_bytes_written(backend, shelf):
    """P-2: text comes back as it went in."""
    text = "half \u2028 \u2029 \x85 \x0b \x1c 日本 😀"
    events = [SessionEvent(0, 1, ToolCallEvent(1, 1, "c", "t", text))]
    await stored(backend, events=events)
    assert shelf.logs["s"][1] == [encode_event(event) for event in events]
    assert (await backend.inspect("s")).events[0].data.arguments == text


# -- write-behind ----------------------------------------------------------------------------------------


class Sink:
    """Hands events to the coordinator, as the harness does."""

    def __init__(self, coordinator: PersistenceCoordinator) -> None:
        self.coordinator = coordinator

    def check(self, session, event):
        pass

    def record(self, session, event, encoded):
        self.coordinator.record(session, event, encoded)

    def notify(self, session, event):
        pass

    created = disposed = lambda self, session: None


@pytest.fixture
async def coordinator(backend):
    """A coordinator whose reports are collected in `coordinator.reports`."""
    reports: list[tuple[str, BaseException]] = []
    made = PersistenceCoordinator(backend, report=lambda session_id, error: reports.append((session_id, error)))
    made.reports = reports
    yield made
    backend.shelf.fault = None
    await made.aclose()


def live(coordinator, session_id="s", seed=()):
    """A live session whose events reach the coordinator."""
    return Session(SessionHeader(id=session_id, created_at=1), seed=seed, sink=Sink(coordinator))


def seqs(shelf, session_id="s"):
    """The stored seqs, or None if nothing is stored."""
    if session_id not in shelf.logs:
        return None
    return [decode_event(record).seq for record in shelf.logs[session_id][1]]


async def test_ordinary_events_go_out_within_fifty_milliseconds(coordinator, shelf):
    """P-1: nothing is written at once, everything soon, in one batch."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    session.append(TurnStartEvent(1, Tagged("message")))
    session.append(StepStartEvent(1, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seqs(shelf) is None
    await asyncio.sleep(0.1)
    assert seqs(shelf) == [0, 1]


@pytest.mark.parametrize(
    "data",
    [
        InboxQueuedEvent("m", "queued", "hi"),
        InboxDroppedEvent(("m",)),
        ToolCallEvent(1, 1, "c", "t"),
        ToolResultEvent(1, 1, "c"),
        ApprovalAskedEvent("a", "c", "t"),
        ApprovalDecidedEvent("a", "c", "approved"),
    ],
)
async def test_what_a_crash_must_not_lose_goes_out_in_the_next_iteration(coordinator, shelf, data):
    """P-1: inbox, calls, results and approvals do not wait for the timer, nor does what came before them."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    coordinator.record(session, first := SessionEvent(0, 1, TurnStartEvent(1, Tagged("message"))), encode_event(first))
    coordinator.record(session, second := SessionEvent(1, 1, data), encode_event(second))
    await asyncio.sleep(0)
    assert seqs(shelf) == [0, 1]
    coordinator.record(session, third := SessionEvent(2, 1, data), encode_event(third))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seqs(shelf) == [0, 1, 2]


@pytest.mark.parametrize("barrier", ["request", "tool", "turn", "dispose"])
async def test_barriers_wait_for_the_write(coordinator, shelf, barrier):
    """L-16: everything logged so far is with the backend when the flush returns."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    session.append(TurnStartEvent(1, Tagged("message")))
    await coordinator.session_flush(session, barrier)
    assert seqs(shelf) == [0]


@pytest.mark.parametrize(
    ("durability", "synced"),
    [("turn", ["turn", "dispose"]), ("step", ["request", "tool", "turn", "dispose"]), ("none", [])],
)
async def test_durability_says_which_barriers_sync(coordinator, backend, shelf, durability, synced):
    """P-1: fsync at turn end, at request and tool barriers too, or never."""
    backend.durability = durability
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    session.append(TurnStartEvent(1, Tagged("message")))
    done = []
    for step, barrier in enumerate(["request", "tool", "turn", "dispose"], 1):
        session.append(StepStartEvent(1, step))
        session.append(StepEndEvent(1, step))
        await coordinator.session_flush(session, barrier)
        if shelf.synced:
            done.append(barrier)
            shelf.synced.clear()
    assert done == synced
    await coordinator.session_flush(session, "turn")
    assert not shelf.synced


async def test_written_returns_when_the_event_is_with_the_backend(coordinator, shelf):
    """A-2, P-1: `receipt.stored` does not wait for a timer, and raises if the store fails."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    event = session.append(InboxQueuedEvent("m", "queued", "hi"))
    await coordinator.written("s", event.seq)
    assert seqs(shelf) == [0]
    shelf.fault = OSError(errno.ENOSPC, "full")
    await coordinator.written("s", event.seq)
    event = session.append(InboxQueuedEvent("n", "queued", "hi"))
    with pytest.raises(StorageError):
        await coordinator.written("s", event.seq)


async def test_a_failing_store_is_reported_once_and_everything_is_written_later_once(coordinator, shelf):
    """P-1: a failed write keeps the buffer; a later one writes all of it once, in order."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    shelf.fault = OSError(errno.ENOSPC, "full")
    for number in range(3):
        session.append(InboxQueuedEvent(f"m{number}", "queued", "hi"))
        await asyncio.sleep(0.01)
    assert [session_id for session_id, _ in coordinator.reports] == ["s"]
    with pytest.raises(StorageError):
        await coordinator.session_flush(session, "request")
    assert seqs(shelf) is None
    shelf.fault = None
    session.append(InboxQueuedEvent("m3", "queued", "hi"))
    await coordinator.session_flush(session, "turn")
    assert seqs(shelf) == [0, 1, 2, 3]
    shelf.fault = OSError(errno.ENOSPC, "full")
    session.append(InboxQueuedEvent("m4", "queued", "hi"))
    await asyncio.sleep(0.01)
    assert len(coordinator.reports) == 2


async def test_a_failing_store_is_tried_again_without_a_new_event(coordinator, shelf, monkeypatch):
    """P-1: an idle session's buffer is written when the store works again."""
    monkeypatch.setattr("dsh_core._coordinator.RETRY_DELAY", 0.02)
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    shelf.fault = OSError(errno.ENOSPC, "full")
    session.append(InboxQueuedEvent("m", "queued", "hi"))
    await asyncio.sleep(0.05)
    shelf.fault = None
    await asyncio.sleep(0.1)
    assert seqs(shelf) == [0]


async def test_one_failing_session_does_not_hold_up_the_others(coordinator, shelf):
    """P-1: there is one writer for all sessions, and it goes on."""
    bad, good = live(coordinator, "bad"), live(coordinator, "good")
    await coordinator.attach(bad, stored=0)
    await coordinator.attach(good, stored=0)
    shelf.logs["bad"] = (bad.header, [])  # somebody broke in: creating it fails from now on
    bad.append(InboxQueuedEvent("m", "queued", "hi"))
    good.append(InboxQueuedEvent("m", "queued", "hi"))
    await asyncio.sleep(0.01)
    assert seqs(shelf, "good") == [0]
    assert [session_id for session_id, _ in coordinator.reports] == ["bad"]
    del shelf.logs["bad"]
    await coordinator.session_flush(bad, "turn")
    assert seqs(shelf, "bad") == [0]


async def test_a_thousand_sessions_share_one_task_and_one_timer(coordinator, shelf):
    """P-1: idle sessions cost no task, no timer and no bytes."""
    before = len(asyncio.all_tasks())
    sessions = [live(coordinator, f"s{number}") for number in range(1000)]
    for session in sessions:
        await coordinator.attach(session, stored=0)
        session.append(TurnStartEvent(1, Tagged("message")))
    timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]
    assert sum("_expire" in repr(handle) for handle in timers) == 1
    await asyncio.sleep(0.1)
    assert len(shelf.logs) == 1000
    assert len(asyncio.all_tasks()) <= before + 1
    assert not coordinator._dirty
    assert all(not entry.buffer for entry in coordinator._live.values())


async def test_a_seed_and_a_loaded_log_are_continued_where_the_backend_stands(coordinator, backend, shelf):
    """S-11, P-1: seed events of a fork are written, stored ones are not written again."""
    await stored(backend)
    fork = live(coordinator, "fork", seed=(await backend.inspect("s")).events)
    await coordinator.attach(fork, stored=0)
    await asyncio.sleep(0.01)
    assert seqs(shelf, "fork") == [0, 1, 2, 3]
    loaded = await backend.load("s")
    resumed = live(coordinator, "s", seed=loaded.events)
    await coordinator.attach(resumed, stored=len(loaded.events))
    resumed.append(TurnStartEvent(2, Tagged("message")))
    await coordinator.session_flush(resumed, "turn")
    assert seqs(shelf) == [0, 1, 2, 3, 4]


async def test_attach_refuses_what_the_backend_refuses_and_leaves_nothing(coordinator, backend, shelf):
    """A-5: a failed attach can be tried again."""
    await stored(backend)
    session = live(coordinator)
    with pytest.raises(SessionExists):
        await coordinator.attach(session, stored=0)
    session.append(InboxQueuedEvent("m", "queued", "hi"))
    await backend.delete("s")
    await coordinator.attach(session, stored=0)
    await asyncio.sleep(0.01)
    assert seqs(shelf) == [0]
    with pytest.raises(SessionExists):
        await coordinator.attach(live(coordinator), stored=0)


async def test_release_writes_what_is_left_and_gives_the_session_back(coordinator, shelf):
    """P-4: ownership ends only after the last write; releasing again does nothing."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    session.append(TurnStartEvent(1, Tagged("message")))
    await coordinator.release("s")
    assert seqs(shelf) == [0]
    assert not shelf.locks
    await coordinator.release("s")
    session.append(StepStartEvent(1, 1))
    await coordinator.session_flush(session, "turn")
    await coordinator.written("s", 1)
    assert seqs(shelf) == [0]


async def test_a_failing_last_write_is_raised_and_the_session_given_back(coordinator, shelf):
    """P-1: `aclose` tries every session, says what failed, and leaves no lock and no task."""
    for name in ("a", "b"):
        session = live(coordinator, name)
        await coordinator.attach(session, stored=0)
        session.append(TurnStartEvent(1, Tagged("message")))
    before = asyncio.all_tasks()
    shelf.fault = OSError(errno.EIO, "broken")
    with pytest.raises(ExceptionGroup) as caught:
        await coordinator.aclose()
    assert len(caught.value.exceptions) == 2
    assert not shelf.locks
    assert asyncio.all_tasks() <= before


async def test_bytes_are_let_go_once_they_are_written(coordinator):
    """P-2: encoded once, released afterwards."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    event = session.append(TurnStartEvent(1, Tagged("message")))
    assert event._encoded is not None
    await coordinator.session_flush(session, "request")
    assert event._encoded is None


async def test_a_cancelled_barrier_loses_and_doubles_nothing(coordinator, backend, shelf):
    """P-1: a turn cancelled while it waits for a write keeps the log whole."""
    session = live(coordinator)
    await coordinator.attach(session, stored=0)
    session.append(TurnStartEvent(1, Tagged("message")))
    backend.stall = asyncio.Event()
    waiting = asyncio.create_task(coordinator.session_flush(session, "request"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    backend.stall = None
    session.append(TurnEndEvent(1, Tagged("aborted")))
    await coordinator.session_flush(session, "turn")
    assert seqs(shelf) == [0, 1]
    assert not coordinator.reports
