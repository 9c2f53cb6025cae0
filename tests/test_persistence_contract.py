"""The persistence contract passes honest backends and catches faulty ones."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator

import attrs
import pytest

from dsh_core.errors import SessionNotFound
from dsh_core.persistence import Damage, RawLog, SessionSummary
from dsh_core.testing import PersistenceContract
from dsh_core.testing.memory import MemoryPersistence, MemoryStore


class TestMemoryPersistence(PersistenceContract):
    """The honest store in memory keeps every rule that it can."""

    persistent = False
    disk_faults = False

    @pytest.fixture
    def backend_factory(self):
        self.store = MemoryStore()
        return lambda: MemoryPersistence(self.store)

    def corrupt_tail(self, session_id):
        self.store.damage[session_id] = Damage(5, "half a record", 0)


# -- faulty backends: each is honest but for one thing ---------------------------------------------------


class WritesHeaderAtOnce(MemoryPersistence):
    async def _lock(self, session_id):
        from dsh_core.session import SessionHeader

        release = await super()._lock(session_id)
        self.store.logs.setdefault(session_id, (SessionHeader(id=session_id), []))
        return release


class LosesTheLastRecord(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, records[:-1], first=first)


class WritesTwice(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, records, first=first)
        if not first:
            await super()._write(header, records, first=False)


class OverwritesExisting(MemoryPersistence):
    async def _write(self, header, records, *, first):
        if first:
            self.store.logs.pop(header.id, None)
        await super()._write(header, records, first=first)


class CreatesOnAppend(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, records, first=first or header.id not in self.store.logs)


class KeepsTheCallersList(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, records, first=first)
        if first:
            self.store.logs[header.id] = (header, records)


class ReordersRecords(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, sorted(records, key=len), first=first)


class BuffersUntilRelease(MemoryPersistence):
    def __init__(self, store):
        super().__init__(store)
        self.waiting = []

    async def _write(self, header, records, *, first):
        if first:
            await super()._write(header, records, first=True)
        else:
            self.waiting.append((header, records))

    async def aclose(self):
        for header, records in self.waiting:
            await super()._write(header, records, first=False)
        await super().aclose()


class NoLock(MemoryPersistence):
    async def _lock(self, session_id):
        return lambda: None


class LockPerInstance(MemoryPersistence):
    def __init__(self, store):
        super().__init__(store)
        self.mine = MemoryPersistence(MemoryStore())

    async def _lock(self, session_id):
        return await self.mine._lock(session_id)


class ReleaseFreesOthers(MemoryPersistence):
    async def _lock(self, session_id):
        await super()._lock(session_id)
        return lambda: self.store.locks.pop(session_id, None)


class ReleaseOnlyOnce(MemoryPersistence):
    async def _lock(self, session_id):
        await super()._lock(session_id)
        return lambda: self.store.locks.pop(session_id)


class NeverReleases(MemoryPersistence):
    async def _lock(self, session_id):
        await super()._lock(session_id)
        return lambda: None


class NamesNobody(MemoryPersistence):
    async def _lock(self, session_id):
        from dsh_core.errors import SessionLocked

        try:
            return await super()._lock(session_id)
        except SessionLocked:
            raise SessionLocked("locked") from None


class LocksOnlyWhatExists(MemoryPersistence):
    async def _lock(self, session_id):
        if session_id not in self.store.logs:
            return lambda: None
        return await super()._lock(session_id)


class ReadersLock(MemoryPersistence):
    async def _read(self, session_id):
        if session_id in self.store.locks and session_id not in self._slots:
            await self._lock(session_id)
        return await super()._read(session_id)


class IgnoresCase(MemoryPersistence):
    def _log(self, session_id):
        for known, log in self.store.logs.items():
            if known.lower() == session_id.lower():
                return log
        raise SessionNotFound(session_id)


class TruncatesIds(MemoryPersistence):
    def _log(self, session_id):
        for known, log in self.store.logs.items():
            if known[:100] == session_id[:100]:
                return log
        raise SessionNotFound(session_id)


class NormalisesText(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(header, [record.replace("\u2028".encode(), b"\\n") for record in records], first=first)


class SplitsLinesLikeText(MemoryPersistence):
    async def _read(self, session_id):
        raw = await super()._read(session_id)
        joined = b"\n".join(raw.records).decode()
        return attrs.evolve(raw, records=[line.encode() for line in joined.splitlines()])


class ForgetsMetadata(MemoryPersistence):
    async def _write(self, header, records, *, first):
        await super()._write(attrs.evolve(header, metadata={}), records, first=first)


class ForgetsCwd(MemoryPersistence):
    async def _read(self, session_id):
        raw = await super()._read(session_id)
        return attrs.evolve(raw, header=attrs.evolve(raw.header, cwd=None))


class UpdateDropsEvents(MemoryPersistence):
    async def _update(self, header):
        self.store.logs[header.id] = (header, [])


class UpdateMerges(MemoryPersistence):
    async def _update(self, header):
        old = self.store.logs[header.id][0]
        await super()._update(attrs.evolve(header, metadata={**old.metadata, **header.metadata}))


class DeleteKeepsTheLog(MemoryPersistence):
    async def _delete(self, session_id):
        pass


class DeleteTakesEverything(MemoryPersistence):
    async def _delete(self, session_id):
        self.store.logs.clear()


class SyncTakesAnyId(MemoryPersistence):
    async def sync(self, session_id):
        self.store.synced.append(session_id)


class SyncNeedsEvents(MemoryPersistence):
    async def sync(self, session_id):
        self._log(session_id)
        await super().sync(session_id)


class ListsTheWrongTime(MemoryPersistence):
    async def list(self):
        async for summary in super().list():
            yield attrs.evolve(summary, updated_at=summary.updated_at // 1000)


class ListsTheWrongCount(MemoryPersistence):
    async def list(self):
        async for summary in super().list():
            yield attrs.evolve(summary, events=summary.events - 1)


class ListsOnlyTheFirst(MemoryPersistence):
    async def list(self):
        async for summary in super().list():
            yield summary
            return


class ListsOpenSessions(MemoryPersistence):
    async def list(self):
        async for summary in super().list():
            yield summary
        for session_id in self.store.locks.keys() - self.store.logs.keys():
            yield SessionSummary(session_id, None, 0, 0)


class HidesGaps(MemoryPersistence):
    async def _read(self, session_id):
        raw = await super()._read(session_id)
        return RawLog(raw.header, raw.records[:2], None) if len(raw.records) == 4 else raw


class CutsNothing(MemoryPersistence):
    async def _cut(self, session_id, damage):
        pass


class CutsTooMuch(MemoryPersistence):
    async def _cut(self, session_id, damage):
        await super()._cut(session_id, damage)
        del self.store.logs[session_id][1][-1]


class ReportsNoDamage(MemoryPersistence):
    async def _read(self, session_id):
        return attrs.evolve(await super()._read(session_id), damage=None)


class SharesOneInstance(MemoryPersistence):
    """Its factory returns the same object each time."""


class ForgetsToClose(MemoryPersistence):
    async def aclose(self):
        pass


FAULTY = [
    value
    for value in [*globals().values()]
    if isinstance(value, type) and issubclass(value, MemoryPersistence) and value is not MemoryPersistence
]


def rules() -> Iterator[tuple[str, Callable[..., None], dict[str, object]]]:
    """Every test of the suite with each of its parameters, but for those that patch the disk or take long."""
    for name in dir(PersistenceContract):
        test = getattr(PersistenceContract, name)
        if not name.startswith("test_") or "hundred_thousand" in name or "sixteen" in name:
            continue
        marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for values in itertools.product(*(list(values) for _, values in marks)):
            yield name, test, {argument: value for (argument, _), value in zip(marks, values, strict=True)}


def factory_of(faulty: type[MemoryPersistence], store: MemoryStore) -> Callable[[], MemoryPersistence]:
    """What the author of this backend would define."""
    if faulty is SharesOneInstance:
        one = faulty(store)
        return lambda: one
    return lambda: faulty(store)


def broken_rules(faulty: type[MemoryPersistence]) -> list[str]:
    """The rules that this backend is found to break."""
    broken = []
    for name, test, parameters in rules():
        if "monkeypatch" in inspect.signature(test).parameters:
            continue
        suite = TestMemoryPersistence()
        suite.store = MemoryStore()
        try:
            test(suite, factory_of(faulty, suite.store), **parameters)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception):
            broken.append(name)
    return broken


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda faulty: faulty.__name__)
def test_every_faulty_backend_is_caught(faulty):
    """Quality: the suite must fail for wrong backends."""
    assert broken_rules(faulty)


def test_an_honest_backend_breaks_no_rule():
    """Quality: what the check above counts is the fault, not the check."""
    assert broken_rules(MemoryPersistence) == []
    assert len(FAULTY) >= 20


def test_a_suite_without_a_factory_says_what_to_define():
    """Quality: the message tells how to mend it."""
    assert "backend_factory" in PersistenceContract.__doc__


def test_the_store_in_memory_fails_on_demand():
    """`MemoryStore.failure` is raised by each write while it is set."""
    from dsh_core.errors import StorageError
    from dsh_core.testing._stores import header, turn

    async def main():
        backend = MemoryPersistence()
        await backend.create(header())
        backend.store.failure = OSError("full")
        with pytest.raises(StorageError, match="full"):
            await backend.append("s", turn())
        backend.store.failure = None
        await backend.append("s", turn())

    asyncio.run(main())
