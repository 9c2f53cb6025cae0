"""Who may write: other instances, other processes, dead ones, and children."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket

import pytest
from dsh_persistence_jsonl import JsonlPersistence

from dsh_core.content import Tagged
from dsh_core.errors import SessionExists, SessionLocked, StorageError
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import TurnEndEvent, TurnStartEvent

pytestmark = pytest.mark.anyio

OWNER = """
import asyncio, sys
from dsh_core.content import Tagged
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import TurnEndEvent, TurnStartEvent
from dsh_persistence_jsonl import JsonlPersistence

async def main():
    store = JsonlPersistence(sys.argv[1])
    await store.create(SessionHeader(id="s", created_at=1))
    if sys.argv[2] == "written":
        await store.append("s", [SessionEvent(0, 1, TurnStartEvent(1, Tagged("message")))])
    print("ready")
    sys.stdin.readline()

asyncio.run(main())
"""

RACER = """
import asyncio, sys
from dsh_core.content import Tagged
from dsh_core.errors import SessionExists, SessionLocked, SessionNotFound
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import ToolCallEvent, TurnEndEvent, TurnStartEvent
from dsh_persistence_jsonl import JsonlPersistence

async def visit(store, name):
    try:
        try:
            seq = len((await store.load("s")).events)
        except SessionNotFound:
            seq = 0
            await store.create(SessionHeader(id="s", created_at=1))
        turn = seq // 3 + 1
        for data in (TurnStartEvent(turn, Tagged("message")), ToolCallEvent(turn, 1, f"c{turn}", name),
                     TurnEndEvent(turn, Tagged("completed"))):
            await store.append("s", [SessionEvent(seq, 1, data)])
            seq += 1
            await asyncio.sleep(0)
    except (SessionLocked, SessionExists):
        return 0
    finally:
        await store.release("s")
    return 1

async def main():
    store, won = JsonlPersistence(sys.argv[1]), 0
    for _ in range(300):
        won += await visit(store, sys.argv[2])
        await asyncio.sleep(0.0005)
    print(won)

asyncio.run(main())
"""


def events(turn: int = 1, seq: int = 0) -> list[SessionEvent]:
    return [
        SessionEvent(seq, 1, TurnStartEvent(turn, Tagged("message"))),
        SessionEvent(seq + 1, 1, TurnEndEvent(turn, Tagged("completed"))),
    ]


@pytest.mark.parametrize("state", ["written", "new"])
async def test_another_process_is_refused_by_name_and_takes_over_after_its_death(root, tmp_path, process, state):
    """P-4, log-3, log-6: also for a session without events, and through another path to the store."""
    child = process(OWNER, root, state)
    assert child.stdout.readline() == "ready\n"
    link = tmp_path / "link"
    link.symlink_to(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for store in (JsonlPersistence(root), JsonlPersistence(link)):
        for attempt in (
            store.create(SessionHeader(id="s", created_at=1)),
            store.load("s") if state == "written" else store.append("s", events()),
            store.append("s", events(1, 1)),
        ):
            with pytest.raises(SessionLocked, match=rf"process {child.pid} on {socket.gethostname()}"):
                await attempt
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    child.send_signal(signal.SIGKILL)
    child.wait()
    store = JsonlPersistence(root)
    if state == "written":
        assert [event.type for event in (await store.load("s")).events] == ["turn/start", "turn/end"]
    else:
        await store.create(SessionHeader(id="s", created_at=1))
        await store.append("s", events())
    assert (await store.inspect("s")).damage is None


async def test_readers_are_never_blocked(root, process):
    """P-4: inspect, read_from, has and list work below a live owner."""
    child = process(OWNER, root, "written")
    assert child.stdout.readline() == "ready\n"
    store = JsonlPersistence(root)
    assert len((await store.inspect("s")).events) == 1
    assert len(await store.read_from("s", 0)) == 1
    assert await store.has("s")
    assert [found.events async for found in store.list()] == [1]


async def test_another_instance_in_this_process_is_refused(root, store):
    """P-4: in-process exclusivity, and the message says that it is this process."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    with pytest.raises(SessionLocked, match=f"process {os.getpid()} .*this process"):
        await JsonlPersistence(root).load("s")
    await store.release("s")
    other = JsonlPersistence(root)
    await other.load("s")
    with pytest.raises(SessionLocked):
        await store.append("s", events(2, 2))
    await other.aclose()


async def test_a_stale_note_of_a_holder_means_nothing(root, store):
    """log-6: a dead pid, a pid of another program, or rubbish; the kernel's lock alone counts."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    await store.release("s")
    note = next(root.glob(".locks")) / f"{next(root.rglob('*.jsonl')).stem}.holder"
    for text in ('{"pid": 999999999, "host": "gone"}', f'{{"pid": {os.getppid()}, "host": "x"}}', "rubbish", "[]"):
        note.write_text(text)
        await store.load("s")
        await store.release("s")
    await store.load("s")
    note.write_text("rubbish")
    with pytest.raises(SessionLocked, match="another process"):
        await JsonlPersistence(root).load("s")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads is the point here
async def test_a_forked_child_keeps_no_lock_and_cannot_write(root, store):
    """P-4: a grandchild never keeps a lock; a store from before the fork refuses to write in the child."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    read_end, write_end = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:  # only plain calls: the child must not run the test's event loop
        try:
            os.close(hold_write)
            attempt = store.append("s", events(2, 2))
            try:
                attempt.send(None)
                os.write(write_end, b"wrote")
            except StorageError:
                os.write(write_end, b"refused")
            os.read(hold_read, 1)
        finally:
            os._exit(0)
    os.close(hold_read)
    assert os.read(read_end, 10) == b"refused"
    await store.release("s")
    other = JsonlPersistence(root)
    assert len((await other.load("s")).events) == 2
    await other.append("s", events(2, 2))
    for fd in (read_end, write_end, hold_write):
        os.close(fd)
    os.waitpid(child, 0)
    await other.aclose()


async def test_a_started_program_inherits_no_descriptor(root, store, process):
    """P-4: O_CLOEXEC on everything."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    child = process("import os; print([os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')])")
    assert str(root) not in child.stdout.readline()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through /proc")
async def test_an_open_session_costs_one_descriptor_and_a_closed_one_none(root, store):
    """1,000 agents fit below the usual limit of 1,024 descriptors."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        await store.create(SessionHeader(id=f"s{number}", created_at=1))
        await store.append(f"s{number}", events())
        await store.sync(f"s{number}")
    assert len(os.listdir("/proc/self/fd")) <= before + 100
    await store.aclose()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_locking_alone(root, store):
    """§1, raw: a session that does not exist can be locked; the release may be called twice."""
    release = await store._lock("s")
    with pytest.raises(SessionLocked):
        await store._lock("s")
    with pytest.raises(SessionLocked):
        await JsonlPersistence(root)._lock("s")
    release()
    release()
    again = await store._lock("s")
    release()
    with pytest.raises(SessionLocked):
        await JsonlPersistence(root)._lock("s")
    again()
    assert not [path for path in root.rglob("*") if path.is_file()]


async def test_raw_writes_without_a_lock_are_exclusive(root, store):
    """§1, raw: `first` is exclusive, what is not there is not found, a holder elsewhere is respected."""
    header = SessionHeader(id="s", created_at=1)
    await store._write(header, [b'{"seq":0}'], first=True)
    with pytest.raises(SessionExists):
        await store._write(header, [b'{"seq":0}'], first=True)
    await store._write(header, [b'{"seq":1}', b'{"seq":2}'], first=False)
    assert (await store._read("s")).records == [b'{"seq":0}', b'{"seq":1}', b'{"seq":2}']
    release = await JsonlPersistence(root)._lock("s")
    with pytest.raises(SessionLocked):
        await store._write(header, [b'{"seq":3}'], first=False)
    release()


async def test_processes_that_race_for_a_session_never_mix(root, process):
    """P-4: one writer at any time, from creation on."""
    racers = [process(RACER, root, f"p{number}") for number in range(4)]
    won = 0
    for racer in racers:
        output, _ = await asyncio.to_thread(racer.communicate)
        won += int(output)
    stored = await JsonlPersistence(root).inspect("s")
    assert stored.damage is None
    assert won > 0
    assert len(stored.events) == 3 * won
    assert [event.type for event in stored.events] == ["turn/start", "tool/call", "turn/end"] * won


async def test_a_release_never_takes_away_what_the_next_owner_holds(tmp_path, monkeypatch):
    """P-4: an owner that wrote nothing leaves; whoever takes the session at that very moment keeps it."""
    import fcntl

    leaving, next_owner = JsonlPersistence(tmp_path), JsonlPersistence(tmp_path)
    await leaving.create(SessionHeader(id="s", created_at=1))
    flock, taken = fcntl.flock, []

    def unlocked(fd: int, operation: int) -> None:
        flock(fd, operation)
        if operation == fcntl.LOCK_UN and not taken:
            taken.append(next_owner._locks.acquire("s"))

    monkeypatch.setattr(fcntl, "flock", unlocked)
    await leaving.release("s")
    assert taken
    fresh = taken[0].fresh
    assert fresh.exists()
    assert os.fstat(taken[0].fd).st_ino == fresh.stat().st_ino
    next_owner._locks.release("s", taken[0])
