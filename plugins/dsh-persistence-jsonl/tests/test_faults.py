"""Disks that fill up or break, files that vanish, processes that are killed."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal

import pytest
from dsh_persistence_jsonl import JsonlPersistence

from dsh_core.content import Tagged
from dsh_core.errors import StorageError
from dsh_core.persistence import PersistenceCoordinator
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import ToolCallEvent, TurnEndEvent, TurnStartEvent

pytestmark = pytest.mark.anyio

WRITER = """
import asyncio, sys
from dsh_core.content import Tagged
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import ToolCallEvent, TurnEndEvent, TurnStartEvent
from dsh_persistence_jsonl import JsonlPersistence

async def main():
    store = JsonlPersistence(sys.argv[1])
    seq = 0
    if await store.has("s"):
        seq = len((await store.load("s")).events)
    else:
        await store.create(SessionHeader(id="s", created_at=1))
    number = 0
    while True:
        number += 1
        batch = [TurnStartEvent(number, Tagged("message"))]
        batch += [ToolCallEvent(number, 1, f"c{seq}-{i}", "t", "x" * 3000) for i in range(20)]
        batch.append(TurnEndEvent(number, Tagged("completed")))
        await store.append("s", [SessionEvent(seq + i, 1, data) for i, data in enumerate(batch)])
        seq += len(batch)
        print(seq)

asyncio.run(main())
"""


def events(turn: int = 1, seq: int = 0, text: str = "") -> list[SessionEvent]:
    data = [
        TurnStartEvent(turn, Tagged("message")),
        ToolCallEvent(turn, 1, f"c{turn}", "t", text),
        TurnEndEvent(turn, Tagged("completed")),
    ]
    return [SessionEvent(seq + index, 1, item) for index, item in enumerate(data)]


def full(after: int):
    """A `write` of a disk that takes only `after` more bytes, then a short write and ENOSPC."""
    real, left = os.write, [after]

    def write(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(fd, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    return write


@pytest.mark.parametrize("room", [0, 1, 30, 100, 150])
@pytest.mark.parametrize("earlier", [0, 3])
async def test_a_full_disk_leaves_the_log_as_it_was(root, store, monkeypatch, room, earlier):
    """log-8: visible error, the file loads, later appends continue without a gap."""
    await store.create(SessionHeader(id="s", created_at=1))
    if earlier:
        await store.append("s", events())
    before = {path: path.read_bytes() for path in root.rglob("*.jsonl")}
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full(room))
        with pytest.raises(StorageError, match="No space left"):
            await store.append("s", events(2, earlier))
    assert {path: path.read_bytes() for path in root.rglob("*.jsonl")} == before
    await store.append("s", events(2, earlier))
    await store.release("s")
    loaded = await store.load("s")
    assert loaded.damage is None
    assert [event.seq for event in loaded.events] == list(range(earlier + 3))


async def test_short_writes_are_continued(root, store, monkeypatch):
    """P-1: a write that takes less than everything is no failure."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events(text="x" * 100))
    await store.append("s", events(2, 3))
    assert (await store.inspect("s")).events == (*events(text="x" * 100), *events(2, 3))


async def test_a_roll_back_that_fails_is_made_up_for(root, store, monkeypatch):
    """P-1: half a batch whose removal failed is removed before the next write."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())

    def refuse(*args):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full(50))
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StorageError):
            await store.append("s", events(2, 3))
    torn = await store.inspect("s")
    assert torn.damage is not None
    assert torn.damage.records_after == 0
    await store.append("s", events(2, 3))
    again = await store.inspect("s")
    assert again.damage is None
    assert len(again.events) == 6


async def test_a_failing_sync_comes_out(store, monkeypatch):
    """§1: EIO comes out of `sync`, as a `StorageError` that keeps the number; a later sync may succeed."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.sync("s")
    await store.append("s", events())

    def refuse(fd):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match="Input/output error") as caught:
            await store.sync("s")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EIO
    await store.sync("s")


async def test_sync_reaches_the_file_and_its_folder_once(store, monkeypatch):
    """P-1: a new log's name is made durable too; nothing new, nothing to do."""
    calls = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.fstat(fd).st_ino) or real(fd))
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    await store.sync("s")
    path = store._path("s")
    assert calls == [path.stat().st_ino, path.parent.stat().st_ino, store.root.stat().st_ino]
    await store.sync("s")
    assert len(calls) == 3
    await store.append("s", events(2, 3))
    await store.sync("s")
    assert calls[3:] == [path.stat().st_ino]


@pytest.mark.parametrize("harm", ["removed", "renamed", "replaced", "store removed", "store renamed", "grown"])
async def test_append_never_returns_while_nothing_is_stored(root, store, harm):
    """§10: a log that vanished or changed under its owner makes `append` raise; foreign bytes are left alone."""
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    path = store._path("s")
    data = path.read_bytes()
    moved = path
    if harm == "removed":
        path.unlink()
    elif harm == "renamed":
        moved = path.rename(path.with_name("moved"))
    elif harm == "replaced":
        path.with_name("other").write_bytes(data)
        path.with_name("other").rename(path)
    elif harm == "store removed":
        shutil.rmtree(root)
    elif harm == "store renamed":
        moved = root.rename(root.with_name("moved")) / path.relative_to(root)
    else:
        with path.open("ab") as file:
            file.write(b"foreign\n")
        data += b"foreign\n"
    for _ in range(2):
        with pytest.raises(StorageError, match="while it was open"):
            await store.append("s", events(2, 3))
    if moved.exists():
        assert moved.read_bytes() == data
    await store.aclose()


async def test_a_store_that_vanished_before_the_first_event_is_an_error(root, store):
    """§10: nothing is acknowledged."""
    await store.create(SessionHeader(id="s", created_at=1))
    shutil.rmtree(root)
    with pytest.raises(StorageError):
        await store.append("s", events())
    await store.release("s")
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", events())
    assert len((await store.inspect("s")).events) == 3


async def test_an_unusable_store_is_one_clear_error(tmp_path):
    """P-6, log-9: the probe names the path and the remedy; so does creating."""
    (tmp_path / "file").write_text("")
    store = JsonlPersistence(tmp_path / "file" / "store")
    with pytest.raises(StorageError, match=r"file/store.*make it writable.*DSH_STATE_DIR"):
        await store.probe()
    with pytest.raises(StorageError):
        await store.create(SessionHeader(id="s", created_at=1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_store_is_one_clear_error(root, store):
    """P-6, log-9: 0555."""
    root.mkdir(mode=0o555)
    with pytest.raises(StorageError, match="make it writable"):
        await store.probe()


async def test_a_probe_that_cannot_write_says_so_and_leaves_nothing(root, store, monkeypatch):
    """P-6: a full disk is found before the first model call."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full(0))
        with pytest.raises(StorageError, match="No space left"):
            await store.probe()
    assert [*root.iterdir()] == []
    await store.probe()
    assert [*root.iterdir()] == []


async def test_a_killed_process_loses_nothing_that_was_acknowledged(root, process):
    """P-1: kill -9 in the middle of writing, again and again, on one log."""
    chance = random.Random(7)
    acknowledged = 0
    for _ in range(6):
        child = process(WRITER, root)
        child.stdout.readline()
        await asyncio.sleep(chance.random() * 0.05)
        child.send_signal(signal.SIGKILL)
        output, _ = await asyncio.to_thread(child.communicate)
        acknowledged = max([acknowledged, *map(int, output.split())])
        store = JsonlPersistence(root)
        loaded = await store.load("s")
        assert len(loaded.events) >= acknowledged
        assert loaded.damage is None or loaded.damage.records_after == 0
        assert loaded.events[-1].type == "turn/end"
        await store.aclose()


async def test_write_behind_survives_a_disk_that_was_full(root, store, monkeypatch):
    """P-1, log-8: the coordinator keeps the buffer and writes all of it once, in order."""
    reports: list[str] = []
    coordinator = PersistenceCoordinator(store, report=lambda session_id, error: reports.append(session_id))

    class Live:
        id = "s"
        header = SessionHeader(id="s", created_at=1)
        events: tuple[SessionEvent, ...] = ()

    await coordinator.attach(Live, stored=0)
    for number in range(4):
        with monkeypatch.context() as patch:
            if number < 2:
                patch.setattr(os, "write", full(40))
            for event in events(number + 1, 3 * number):
                coordinator.record(Live, event, b"")
            await asyncio.sleep(0.01)
    await coordinator.flush(Live, "turn")
    await coordinator.aclose()
    assert reports == ["s"]
    assert [event.seq for event in (await store.inspect("s")).events] == list(range(12))
