"""Rules of the persistence contract: who may write, and what a killed owner leaves."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dsh_core.errors import SessionExists, SessionLocked, SessionNotFound
from dsh_core.testing._stores import TURN, BackendFactory, Stores, each_raises, forked, header, rule, seqs, turn

if TYPE_CHECKING:
    from dsh_core.persistence import SessionPersistence

__all__ = ["OwnershipRules"]


class OwnershipRules:
    """One writer at any time."""

    persistent = True
    """False for a store in memory: no second process, nothing to reopen after a kill."""

    cross_process = True
    """False for a store that only one process can reach."""

    def _need_processes(self) -> None:
        if not (self.persistent and self.cross_process):
            pytest.skip("the backend declares that no second process can reach its store")
        if not hasattr(os, "fork"):
            pytest.skip("second processes are forked, which this platform cannot")

    @rule
    async def test_a_second_instance_is_refused(self, stores: Stores) -> None:
        """P-4: by create, load, first append and update, and no byte is written."""
        owner = await stores.saved()
        await owner.load("s")
        other = stores()
        await each_raises(
            SessionLocked,
            other.load("s"),
            other.append("s", turn(2, TURN)),
            other.create(header()),
            other.update("s", metadata={"a": 1}),
        )
        stored = await other.inspect("s")
        assert (len(stored.events), dict(stored.header.metadata)) == (TURN, {})

    @rule
    async def test_the_refusal_names_the_holder(self, stores: Stores) -> None:
        """P-4: process and host, so that a person can find it."""
        owner = await stores.saved()
        await owner.load("s")
        with pytest.raises(SessionLocked) as caught:
            await stores().load("s")
        assert str(os.getpid()) in str(caught.value), "SessionLocked must name the holder's pid"
        assert socket.gethostname() in str(caught.value), "SessionLocked must name the holder's host"

    @rule
    async def test_each_way_of_taking_ownership_takes_it(self, stores: Stores) -> None:
        """§1: create, load, first append."""
        first = stores()
        await first.create(header())
        with pytest.raises(SessionLocked):
            await stores().append("s", turn())
        await first.append("s", turn())
        await first.release("s")
        second = stores()
        await second.append("s", turn(2, TURN))
        with pytest.raises(SessionLocked):
            await first.load("s")
        await second.release("s")
        await first.load("s")
        with pytest.raises(SessionLocked):
            await second.append("s", turn(3, 2 * TURN))

    @rule
    async def test_release_gives_one_session_back_and_aclose_all(self, stores: Stores) -> None:
        """§1: releasing again, or what is not owned, does nothing."""
        owner, other = stores(), stores()
        for name in ("a", "b", "c"):
            await owner.create(header(name))
            await owner.append(name, turn())
        await owner.release("a")
        await owner.release("a")
        await owner.release("never")
        await other.load("a")
        for name in ("b", "c"):
            with pytest.raises(SessionLocked):
                await other.load(name)
        await owner.aclose()
        for name in ("b", "c"):
            await other.load(name)

    @rule
    async def test_a_release_elsewhere_frees_nothing(self, stores: Stores) -> None:
        """P-4: only the owner gives back."""
        owner = await stores.saved()
        await owner.load("s")
        other = stores()
        await other.release("s")
        await other.aclose()
        with pytest.raises(SessionLocked):
            await stores().load("s")

    @rule
    async def test_readers_are_never_blocked(self, stores: Stores) -> None:
        """P-4: inspect, read_from, has and list below an owner, and reading takes nothing."""
        owner = await stores.saved()
        reader = stores()
        await reader.inspect("s")
        await owner.load("s")
        assert await seqs(reader) == list(range(TURN))
        assert len(await reader.read_from("s", 0)) == TURN
        assert await reader.has("s")
        assert [found.id async for found in reader.list()] == ["s"]
        await owner.append("s", turn(2, TURN))

    @rule
    async def test_the_owner_may_load_again(self, stores: Stores) -> None:
        """§1: and gets the same."""
        store = await stores.saved()
        assert await store.load("s") == await store.load("s")
        await store.append("s", turn(2, TURN))

    @rule
    async def test_parallel_loads_of_one_instance_end_in_one_owner(self, stores: Stores) -> None:
        """§1: nobody locks itself out."""
        store = await stores.saved()
        loaded = await asyncio.gather(*(store.load("s") for _ in range(5)))
        assert all(one == loaded[0] for one in loaded)
        await store.release("s")
        await stores().load("s")

    @rule
    async def test_of_many_instances_one_wins(self, stores: Stores) -> None:
        """P-4: racing for one id, whatever the order."""
        racing = [stores() for _ in range(8)]
        results = await asyncio.gather(*(store.create(header()) for store in racing), return_exceptions=True)
        assert [result for result in results if result is None] == [None], "exactly one create must succeed"
        assert all(isinstance(result, SessionLocked | None) for result in results)

    @rule
    async def test_raw_locks(self, stores: Stores) -> None:
        """§1: what does not exist can be locked; the release is plain and may be called twice."""
        one, other = stores(), stores()
        release = await one._lock("s")
        with pytest.raises(SessionLocked):
            await other._lock("s")
        release()
        release()
        again = await other._lock("s")
        release()
        with pytest.raises(SessionLocked):
            await one._lock("s")
        again()
        assert not await one.has("s")

    # -- processes ---------------------------------------------------------------------------------------

    def test_another_process_is_refused_and_a_dead_one_is_not_in_the_way(self, backend_factory: BackendFactory) -> None:
        """P-4, log-3, log-6: the refusal names the holder; kill -9 frees the session."""
        self._need_processes()

        async def own(report: Callable[[object], None]) -> None:
            store = backend_factory()
            await store.create(header())
            await store.append("s", turn()[:2])
            report("owned")
            await asyncio.sleep(60)

        async def refused(pid: int) -> None:
            store = backend_factory()
            await each_raises(
                SessionLocked, store.load("s"), store.append("s", turn()[2:]), store.create(header()), match=str(pid)
            )
            assert await seqs(store) == [0, 1]
            await store.aclose()

        async def taken_over() -> None:
            store = backend_factory()
            loaded = await store.load("s")
            assert loaded.events[-1].type == "turn/end"
            await store.aclose()

        with forked(own) as child:
            assert child.report() == "owned"
            asyncio.run(refused(child.pid))
            child.kill()
            asyncio.run(taken_over())

    def test_a_grandchild_keeps_no_lock(self, backend_factory: BackendFactory) -> None:
        """§1: a program the owner started may outlive it."""
        self._need_processes()

        async def own(report: Callable[[object], None]) -> None:
            store = backend_factory()
            await store.create(header())
            await store.append("s", turn())
            pid = os.fork()
            if pid == 0:
                os.execvp("sleep", ["sleep", "20"])
            report(pid)
            await asyncio.sleep(60)

        async def taken_over() -> None:
            store = backend_factory()
            await store.load("s")
            await store.aclose()

        with forked(own) as child:
            grandchild = int(child.report())
            try:
                child.kill()
                asyncio.run(taken_over())
            finally:
                os.kill(grandchild, 9)

    def test_what_was_acknowledged_survives_a_kill(self, backend_factory: BackendFactory) -> None:
        """P-1: kill -9 at random points; batches survive whole or as a prefix, never with a hole."""
        self._need_processes()
        chance = random.Random(3)

        async def write(report: Callable[[object], None]) -> None:
            store = backend_factory()
            seq = len((await store.load("s")).events) if await store.has("s") else 0
            if not seq:
                await store.create(header())
            while True:
                await store.append("s", turn(seq // TURN + 1, seq, text="x" * 5000))
                seq += TURN
                report(seq)

        async def check(acknowledged: int) -> None:
            store = backend_factory()
            loaded = await store.load("s")
            await store.aclose()
            assert [event.seq for event in loaded.events] == list(range(len(loaded.events)))
            assert len(loaded.events) >= acknowledged, "an acknowledged event is lost"

        for _ in range(8):
            with forked(write) as child:
                first = child.report()
                assert first.isdigit(), first
                time.sleep(chance.random() * 0.03)
                reported = child.kill()
            asyncio.run(check(max(map(int, [first, *reported]))))

    def test_processes_that_race_never_mix(self, backend_factory: BackendFactory) -> None:
        """P-4: one writer at any time, from creation on; the losers write no byte."""
        self._need_processes()

        async def race(report: Callable[[object], None]) -> None:
            store, won = backend_factory(), 0
            for _ in range(40):
                won += await _visit(store)
                await asyncio.sleep(0.001)
            report(won)
            await store.aclose()

        with forked(race) as one, forked(race) as two, forked(race) as three:
            reports = [child.join() for child in (one, two, three)]
        assert all(len(report) == 1 and report[0].isdigit() for report in reports), reports
        won = sum(int(report[0]) for report in reports)
        assert won > 0

        async def count() -> int:
            store = backend_factory()
            stored = await store.inspect("s")
            assert stored.damage is None
            await store.aclose()
            return len(stored.events)

        assert asyncio.run(count()) == TURN * won


async def _visit(store: SessionPersistence) -> int:
    """Own the session for one turn, if nobody else does."""
    try:
        try:
            seq = len((await store.load("s")).events)
        except SessionNotFound:
            seq = 0
            await store.create(header())
        for event in turn(seq // TURN + 1, seq):
            await store.append("s", [event])
            await asyncio.sleep(0)
    except (SessionLocked, SessionExists):
        return 0
    finally:
        await store.release("s")
    return 1
