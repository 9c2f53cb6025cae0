"""Rules of the persistence contract: what `load` makes of a log that a crash or a newer version left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import pytest

from dsh_core.errors import SessionCorrupt, UnsupportedFormat
from dsh_core.session import encode_event
from dsh_core.testing._stores import TURN, Stores, each_raises, header, rule, seqs, turn

if TYPE_CHECKING:
    from dsh_core.persistence import SessionPersistence

__all__ = ["RecoveryRules"]


class RecoveryRules:
    """No session is ever bricked, and nothing readable is thrown away silently."""

    corrupt_tail: Callable[[str], Awaitable[None] | None] | None = None
    """Optional backdoor: a method `corrupt_tail(self, session_id)` that leaves half a record at a log's end."""

    @rule
    async def test_an_open_turn_is_closed_durably(self, stores: Stores) -> None:
        """P-3: calls are answered, step and turn are closed, before `load` returns."""
        store = stores()
        await store.create(header())
        await store.append("s", turn()[:3])
        await store.release("s")
        loaded = await store.load("s")
        types = [event.type for event in loaded.events]
        assert types[:3] == ["turn/start", "step/start", "tool/call"]
        assert types[-2:] == ["step/end", "turn/end"]
        assert loaded.events[-1].data.reason["kind"] == "interrupted"
        assert (await stores().inspect("s")).events == loaded.events, "what closes the turn must be stored"
        assert loaded.damage is None

    @rule
    async def test_recovery_is_idempotent(self, stores: Stores) -> None:
        """P-3: loading again, here or elsewhere, changes nothing."""
        store = stores()
        await store.create(header())
        await store.append("s", turn()[:2])
        await store.release("s")
        first = await store.load("s")
        assert (await store.load("s")).events == first.events
        await store.release("s")
        assert (await stores().load("s")).events == first.events

    @rule
    async def test_a_recovered_log_goes_on(self, stores: Stores) -> None:
        """P-3: without a gap in seq."""
        store = stores()
        await store.create(header())
        await store.append("s", turn()[:2])
        await store.release("s")
        seq = len((await store.load("s")).events)
        await store.append("s", turn(2, seq))
        assert await seqs(stores()) == list(range(seq + TURN))

    @rule
    async def test_inspect_changes_nothing(self, stores: Stores) -> None:
        """§1: it neither closes a turn nor takes a lock."""
        store = stores()
        await store.create(header())
        await store.append("s", turn()[:2])
        await store.release("s")
        assert await seqs(store) == [0, 1]
        assert await seqs(store) == [0, 1]
        await store.append("s", turn()[2:])

    @rule
    async def test_a_sequence_gap_is_corrupt(self, stores: Stores) -> None:
        """P-3, §10: `load` refuses, `inspect` shows what is readable and the damage, and nothing changes."""
        store = stores()
        await self._raw(store, 0, 1, 3, 4)
        before = (await store._read("s")).records
        with pytest.raises(SessionCorrupt):
            await store.load("s")
        with pytest.raises(SessionCorrupt):
            await store.append("s", turn(2, TURN))
        seen = await store.inspect("s")
        assert [event.seq for event in seen.events] == [0, 1]
        assert seen.damage is not None
        assert seen.damage.records_after == 2
        assert (await store._read("s")).records == before
        await stores().create(header("other"))

    @rule
    async def test_a_repeated_earlier_record_is_corrupt(self, stores: Stores) -> None:
        """§10: a batch that was stored twice is no retry."""
        store = stores()
        await self._raw(store, 0, 1, 2, 1, 2)
        with pytest.raises(SessionCorrupt):
            await store.load("s")

    @rule
    async def test_a_refused_load_leaves_no_lock(self, stores: Stores) -> None:
        """P-4: so that `repair` and `delete` can have it."""
        store = stores()
        await self._raw(store, 0, 2)
        with pytest.raises(SessionCorrupt):
            await store.load("s")
        other = stores()
        (await other._lock("s"))()
        await other.delete("s")

    @rule
    async def test_a_newer_format_is_shown_and_not_resumed(self, stores: Stores) -> None:
        """S-10, log-11: bytes unchanged."""
        store = stores()
        await store._write(header(format=2), [encode_event(event) for event in turn()], first=True)
        await each_raises(UnsupportedFormat, store.load("s"), store.append("s", turn(2, TURN)))
        seen = await store.inspect("s")
        assert (seen.header.format, len(seen.events)) == (2, TURN)
        assert [found.id async for found in store.list()] == ["s"]

    @rule
    async def test_unknown_events_are_kept_byte_for_byte(self, stores: Stores) -> None:
        """S-10, log-11: ignorable ones load; others refuse a resume."""
        record = (
            b'{"seq":5,"time":1800000000000,"type":"future/note","data":{"a":[1]},"ignorable":true,"extra":"\xc3\xa4"}'
        )
        store = await stores.saved()
        await store._write(header(), [record], first=False)
        loaded = await store.load("s")
        assert encode_event(loaded.events[TURN]) == record
        await store.append("s", turn(2, TURN + 1))
        await store.release("s")
        rule_record = b'{"seq":11,"time":1800000000000,"type":"future/rule","data":{}}'
        await store._write(header(), [rule_record], first=False)
        with pytest.raises(UnsupportedFormat):
            await store.load("s")
        assert len((await store.inspect("s")).events) == 2 * TURN + 2

    @rule
    async def test_a_torn_tail_is_cut_and_reported(self, stores: Stores) -> None:
        """P-3, log-1: the next append goes on, and a second load shows no damage."""
        if self.corrupt_tail is None:
            pytest.skip("the backend offers no corrupt_tail backdoor")
        store = await stores.saved()
        made = self.corrupt_tail("s")
        if made is not None:
            await made
        seen = await store.inspect("s")
        assert seen.damage is not None
        assert seen.damage.records_after == 0
        assert len(seen.events) == TURN
        loaded = await store.load("s")
        assert loaded.damage is not None, "load must report what it cut off"
        assert len(loaded.events) == TURN
        await store.append("s", turn(2, TURN))
        await store.release("s")
        again = await stores().load("s")
        assert again.damage is None
        assert len(again.events) == 2 * TURN

    @staticmethod
    async def _raw(store: SessionPersistence, *numbers: int) -> None:
        """A log with these seqs, all different records unless the number is the same."""
        events = turn()
        await store._write(header(), [encode_event(events[number]) for number in numbers], first=True)


class UpdateRules:
    """Metadata and recovery together."""

    @rule
    async def test_update_keeps_an_open_turn_open(self, stores: Stores) -> None:
        """§1: changing a title is no recovery."""
        store = stores()
        await store.create(header())
        await store.append("s", turn()[:2])
        await store.release("s")
        await store.update("s", metadata={"a": 1})
        stored = await stores().inspect("s")
        assert len(stored.events) == 2
        assert stored.header == attrs.evolve(header(), metadata={"a": 1})
