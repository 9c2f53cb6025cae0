"""Rules of the persistence contract: disks that fill up or break."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dsh_core.errors import StorageError
from dsh_core.testing._stores import TURN, Stores, header, rule, seqs, turn

__all__ = ["FaultRules"]


class FaultRules:
    """A failure is one clear error, leaves the store as it was, and does not outlast its cause."""

    disk_faults = True
    """False for a backend that does not write through `os.open`, `os.write`, `os.fsync`, `os.ftruncate`,
    `os.replace` and `os.link`; the suite patches these."""

    def _need_faults(self) -> None:
        if not self.disk_faults:
            pytest.skip("the backend declares that it does not write through the functions the suite patches")

    @pytest.mark.parametrize("room", [0, 1, 100, 600])
    @rule
    async def test_a_full_disk_leaves_the_store_as_it_was(
        self, stores: Stores, monkeypatch: pytest.MonkeyPatch, room: int
    ) -> None:
        """log-8: `StorageError`; when space comes back, the same batch is stored once, without a gap."""
        self._need_faults()
        store = await stores.saved()
        await store.load("s")
        with monkeypatch.context() as patch:
            disk = _Disk(room)
            patch.setattr(os, "write", disk.write)
            with pytest.raises(StorageError):
                await store.append("s", turn(2, TURN, text="x" * 2000))
            assert disk.refused, "the append did not write through os.write: set disk_faults = False"
        seen = await stores().inspect("s")
        assert (len(seen.events), seen.damage) == (TURN, None), "half a batch must be rolled back"
        await store.append("s", turn(2, TURN, text="x" * 2000))
        assert await seqs(stores()) == list(range(2 * TURN))

    @pytest.mark.parametrize("room", [0, 1, 100])
    @rule
    async def test_a_full_disk_at_the_first_batch_leaves_no_session(
        self, stores: Stores, monkeypatch: pytest.MonkeyPatch, room: int
    ) -> None:
        """log-8: header and first batch are stored together or not at all."""
        self._need_faults()
        store = stores()
        await store.create(header())
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", _Disk(room).write)
            with pytest.raises(StorageError):
                await store.append("s", turn())
        assert not await stores().has("s")
        assert [found.id async for found in stores().list()] == []
        await store.append("s", turn())
        assert await seqs(stores()) == list(range(TURN))

    @rule
    async def test_short_writes_are_continued(self, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        """log-8: `write` may take less than it is given."""
        self._need_faults()
        real = os.write
        store = stores()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:11]))
            await store.create(header())
            await store.append("s", turn())
            await store.append("s", turn(2, TURN))
        seen = await stores().inspect("s")
        assert seen.events == (*turn(), *turn(2, TURN))

    @rule
    async def test_a_failing_sync_comes_out(self, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        """§1: EIO is never swallowed."""
        self._need_faults()
        store = stores()
        await store.create(header())
        await store.append("s", turn())
        with monkeypatch.context() as patch:
            _break(patch, "fsync", "fdatasync")
            with pytest.raises((OSError, StorageError)):
                await store.sync("s")
        await store.sync("s")
        assert await seqs(stores()) == list(range(TURN))

    @pytest.mark.parametrize("function", ["open", "write", "link", "replace", "ftruncate"])
    @rule
    async def test_errors_of_the_disk_are_storage_errors(
        self, stores: Stores, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        """§1: whatever call fails, the final methods raise `StorageError` or do what they promise."""
        self._need_faults()
        store = await stores.saved()
        with monkeypatch.context() as patch:
            _break(patch, function)
            outcomes = []
            attempts: list[Callable[[], Awaitable[object]]] = [
                lambda: store.create(header("new")),
                lambda: store.append("new", turn()),
                lambda: store.append("s", turn(2, TURN)),
                lambda: store.update("s", metadata={"a": 1}),
            ]
            for attempt in attempts:
                try:
                    await attempt()
                    outcomes.append("done")
                except StorageError:
                    outcomes.append("refused")
                except Exception as error:  # noqa: BLE001 - the message shows it
                    outcomes.append(f"{type(error).__name__}: {error}")
        allowed = {"done", "refused"}
        assert {outcome for outcome in outcomes if not outcome.startswith("SessionNotFound")} <= allowed, outcomes
        seen = await stores().inspect("s")
        assert seen.damage is None
        assert len(seen.events) == (2 * TURN if outcomes[2] == "done" else TURN)
        assert bool(seen.header.metadata) == (outcomes[3] == "done")

    @rule
    async def test_a_failed_delete_can_be_repeated(self, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        """§1: the session is there or it is gone, never half."""
        self._need_faults()
        store = await stores.saved()
        with monkeypatch.context() as patch:
            _break(patch, "unlink", "remove")
            try:
                await store.delete("s")
            except StorageError:
                assert await seqs(stores()) == list(range(TURN))
        if await store.has("s"):
            await store.delete("s")
        assert not await stores().has("s")


class _Disk:
    """A disk that takes only so many more bytes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._write = os.write
        self.refused = False

    def write(self, fd: int, data: Any) -> int:
        if not self._room:
            self.refused = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(fd, bytes(data)[: self._room])
        self._room -= taken
        return taken


def _break(patch: pytest.MonkeyPatch, *functions: str) -> None:
    def refuse(*args: object, **kwargs: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    broken: Callable[..., Any] = refuse
    for function in functions:
        if hasattr(os, function):
            patch.setattr(os, function, broken)
