"""Rules of the persistence contract: creating, appending, reading, listing, changing, removing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from dsh_core.errors import (
    NotSerializable,
    SequenceError,
    SessionExists,
    SessionLocked,
    SessionNotFound,
)
from dsh_core.session import SessionEvent, encode_event
from dsh_core.testing._stores import TURN, Stores, each_raises, header, rule, seqs, turn

if TYPE_CHECKING:
    from dsh_core.persistence import SessionPersistence

__all__ = ["StoreRules"]

ILLEGAL_IDS = [
    "", ".", "..", "../x", "/tmp/x", "a/b", "a\\b", "C:x", "c:\\x", "a\0b", "a\nb", "a\x7fb", "a\x85b", "x" * 201,
]  # fmt: skip

ALIKE_IDS = [
    "a", "A", "ä", "Ä", "a\u0308", "日本", "東京", "x" * 200, "x" * 199 + "y", "X" * 200, "a b", "a_b", "a-b", "a%20b",
    "aa:b", ".hidden", "-", "~", "😀" * 200, "con", "nul.txt", "a.", "a..", "..a", "%2e%2e",
]  # fmt: skip

TEXTS = {
    "separators": "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e",
    "controls": "\x00\x01\t\r\n\x1f\x7f",
    "json": '"}]\\\n{"seq":0,"crc":"00000000"}',
    "scripts": "日本語 עברית ‮ e\u0301 😀 \U0010ffff \ufeff",
}


class StoreRules:
    """What every store does with what it is given."""

    # -- creating ----------------------------------------------------------------------------------------

    @rule
    async def test_create_stores_nothing_until_the_first_event(self, stores: Stores) -> None:
        """§1: a session that was created and never used leaves nothing behind."""
        store = stores()
        await store.create(header())
        assert not await stores().has("s"), "create must write nothing; the header goes along with the first batch"
        assert [found.id async for found in stores().list()] == []
        with pytest.raises(SessionNotFound):
            await stores().inspect("s")
        await store.append("s", turn())
        assert await stores().has("s")

    @rule
    async def test_create_refuses_an_id_that_exists(self, stores: Stores) -> None:
        """§1, §10: stored is `SessionExists`; owned elsewhere, stored or not, is `SessionLocked`."""
        store = await stores.saved()
        with pytest.raises(SessionExists):
            await store.create(header())
        with pytest.raises(SessionExists):
            await stores().create(header(cwd="/"))
        await store.load("s")
        with pytest.raises(SessionLocked):
            await stores().create(header())
        await store.create(header("new"))
        with pytest.raises(SessionLocked):
            await stores().create(header("new"))

    @rule
    async def test_a_refused_create_leaves_no_lock(self, stores: Stores) -> None:
        """§1: whoever was refused owns nothing."""
        store = await stores.saved()
        with pytest.raises(SessionExists):
            await store.create(header())
        await stores().load("s")

    @rule
    async def test_the_header_comes_back_as_it_was_given(self, stores: Stores) -> None:
        """S-9: every member, and metadata without loss."""
        given = header(
            cwd="/tmp/日本", parent="p", seed_length=3, spawned_by="q", agent="main",
            metadata={"deep": [{"a": None, "b": 1.5, "c": "\u2028"}], "big": 2**53 - 1},
        )  # fmt: skip
        store = stores()
        await store.create(given)
        await store.append("s", turn())
        assert (await stores().inspect("s")).header == given

    # -- appending ---------------------------------------------------------------------------------------

    @rule
    async def test_what_is_appended_is_read_by_everybody_at_once(self, stores: Stores) -> None:
        """§1: it is in the operating system's hands when `append` returns."""
        store = stores()
        await store.create(header())
        for number in range(5):
            await store.append("s", turn(number + 1, TURN * number))
            assert await seqs(stores()) == list(range(TURN * (number + 1))), "another instance must see it already"

    @rule
    async def test_events_come_back_as_the_bytes_they_were(self, stores: Stores) -> None:
        """P-2: the record is kept byte for byte."""
        store = await stores.saved(turns=2)
        events = (await store.inspect("s")).events
        assert list(map(encode_event, events)) == list(map(encode_event, [*turn(1), *turn(2, TURN)]))

    @rule
    async def test_a_batch_must_continue_the_log(self, stores: Stores) -> None:
        """§1: first seq equals the stored next seq, contiguous, else `SequenceError`, and nothing is written."""
        store = stores()
        await store.create(header())
        events = turn()
        for wrong in (events[1:], [events[0], events[2]], [events[0], events[0]], events[::-1]):
            with pytest.raises(SequenceError):
                await store.append("s", wrong)
            assert not await store.has("s"), "a refused batch must leave no trace"
        await store.append("s", events)
        for wrong in (events, events[-1:], turn(2, TURN + 1), [*turn(2, TURN), turn(3, TURN)[0]]):
            with pytest.raises(SequenceError):
                await store.append("s", wrong)
        assert await seqs(store) == list(range(TURN))

    @rule
    async def test_an_empty_batch_does_nothing(self, stores: Stores) -> None:
        """§1: it takes no ownership either."""
        store = stores()
        await store.append("s", [])
        assert not await store.has("s")
        other = stores()
        await other.create(header())

    @rule
    async def test_append_to_an_id_nobody_created_is_not_found(self, stores: Stores) -> None:
        """§1: and it can be created afterwards, by others too."""
        with pytest.raises(SessionNotFound):
            await stores().append("s", turn())
        await stores().create(header())

    @rule
    async def test_parallel_appends_do_not_mix(self, stores: Stores) -> None:
        """§1: of one session and of many, through one instance."""
        store = stores()
        names = [f"s{number}" for number in range(5)]
        for name in names:
            await store.create(header(name))
        await asyncio.gather(
            *(store.append(name, turn(number + 1, TURN * number)) for number in range(10) for name in names)
        )
        for name in names:
            assert await seqs(store, name) == list(range(10 * TURN))

    @rule
    async def test_the_caller_may_reuse_its_batch(self, stores: Stores) -> None:
        """P-2: a snapshot is taken on hand-over."""
        store = stores()
        await store.create(header())
        batch = turn()
        await store.append("s", batch)
        batch.clear()
        assert await seqs(store) == list(range(TURN))

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
    @rule
    async def test_text_comes_back_identical(self, stores: Stores, text: str) -> None:
        """log-7: Unicode, separators, control characters, and text that looks like a record."""
        store = stores()
        await store.create(header(metadata={"text": text}))
        await store.append("s", turn(text=text))
        stored = await stores().inspect("s")
        assert stored.events[2].data.arguments == text
        assert stored.header.metadata["text"] == text

    @rule
    async def test_a_record_of_sixteen_mebibytes_comes_back(self, stores: Stores) -> None:
        """Size extremes."""
        store = stores()
        await store.create(header())
        text = "x" * (16 << 20)
        await store.append("s", turn(text=text))
        await store.append("s", turn(2, TURN))
        assert (await stores().inspect("s")).events[2].data.arguments == text

    @rule
    async def test_a_hundred_thousand_events_come_back(self, stores: Stores) -> None:
        """Size extremes: many batches, one load."""
        store = stores()
        await store.create(header())
        seq = 0
        while seq < 100_000:
            batch = [event for index in range(1000) for event in turn(seq // TURN + index + 1, seq + TURN * index)]
            await store.append("s", batch)
            seq += len(batch)
        await store.release("s")
        loaded = await store.load("s")
        assert len(loaded.events) == seq
        assert loaded.events[-1].seq == seq - 1

    # -- reading -----------------------------------------------------------------------------------------

    @rule
    async def test_read_from_is_inclusive_and_empty_beyond_the_end(self, stores: Stores) -> None:
        """§1: for viewers that follow a live session."""
        store = stores()
        await store.create(header())
        await store.append("s", turn())
        viewer = stores()
        assert [event.seq for event in await viewer.read_from("s", 3)] == [3, 4]
        assert list(await viewer.read_from("s", TURN)) == []
        assert list(await viewer.read_from("s", 999)) == []
        await store.append("s", turn(2, TURN))
        assert [event.seq for event in await viewer.read_from("s", TURN)] == list(range(TURN, 2 * TURN))

    @rule
    async def test_reading_what_is_not_there_is_not_found(self, stores: Stores) -> None:
        """§1: by every reader."""
        await stores.saved()
        store = stores()
        await each_raises(
            SessionNotFound,
            store.load("n"),
            store.inspect("n"),
            store.read_from("n", 0),
            store.delete("n"),
            store.update("n", metadata={}),
        )
        assert not await store.has("n")

    @rule
    async def test_list_tells_each_session_from_header_and_last_record(self, stores: Stores) -> None:
        """§1: id, header, count, time of the last event, state."""
        await stores.saved("one", turns=1)
        await stores.saved("two", turns=3)
        found = {summary.id: summary async for summary in stores().list()}
        assert found.keys() == {"one", "two"}
        for name, turns in (("one", 1), ("two", 3)):
            summary = found[name]
            assert summary.header == header(name)
            assert summary.events in (None, TURN * turns), "`events` is the count, or None if it is not to be seen"
            assert summary.updated_at == turn(turns, TURN * (turns - 1))[-1].time
            assert summary.state == "ok"

    @rule
    async def test_list_works_while_sessions_are_written(self, stores: Stores) -> None:
        """P-4: readers are never blocked, and see only what has events."""
        store = stores()
        await store.create(header("live"))
        await store.append("live", turn())
        await store.create(header("empty"))
        assert [found.id async for found in stores().list()] == ["live"]

    # -- changing and removing ---------------------------------------------------------------------------

    @rule
    async def test_update_changes_the_metadata_only(self, stores: Stores) -> None:
        """§1: of a closed session, of one's own open one, and before the first event."""
        store = await stores.saved()
        await store.update("s", metadata={"title": "one", "other": [1]})
        await store.load("s")
        await store.update("s", metadata={"title": "two" * 5000})
        await store.append("s", turn(2, TURN))
        stored = await stores().inspect("s")
        assert dict(stored.header.metadata) == {"title": "two" * 5000}, "metadata is replaced, not merged"
        assert attrs.evolve(stored.header, metadata={}) == header()
        assert await seqs(stores()) == list(range(2 * TURN)), "the events must stay, and appends go on"
        await store.create(header("new"))
        await store.update("new", metadata={"a": 1})
        await store.append("new", turn())
        assert dict((await stores().inspect("new")).header.metadata) == {"a": 1}

    @rule
    async def test_metadata_that_json_cannot_hold_is_refused(self, stores: Stores) -> None:
        """§10: where it is handed in, and nothing changes."""
        store = await stores.saved()
        bad: dict[str, Any] = {"a": float("nan"), "b": object(), "c": b"x", "d": {1: 2}}
        for name, value in bad.items():
            with pytest.raises(NotSerializable):
                await store.update("s", metadata={name: value})
        assert dict((await store.inspect("s")).header.metadata) == {}

    @rule
    async def test_a_deleted_session_is_gone_and_its_id_free(self, stores: Stores) -> None:
        """§1: what lies beside it too; others stay."""
        store = await stores.saved()
        await stores.saved("other")
        await store.delete("s")
        assert not await stores().has("s")
        assert [found.id async for found in stores().list()] == ["other"]
        await store.create(header(metadata={"second": True}))
        await store.append("s", turn())
        stored = await stores().load("other")
        assert len(stored.events) == TURN
        assert len((await stores().inspect("s")).events) == TURN

    @rule
    async def test_delete_refuses_an_open_session(self, stores: Stores) -> None:
        """§1: open here or elsewhere; nothing is removed."""
        store = await stores.saved()
        await store.load("s")
        for other in (store, stores()):
            with pytest.raises(SessionLocked):
                await other.delete("s")
        assert await seqs(stores()) == list(range(TURN))

    @rule
    async def test_sync_of_a_session_without_events_does_nothing(self, stores: Stores) -> None:
        """§1: created, or not even that."""
        store = stores()
        await store.sync("nobody")
        await store.create(header())
        await store.sync("s")
        assert not await store.has("s")
        await store.append("s", turn())
        await store.sync("s")

    # -- ids ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("session_id", ILLEGAL_IDS, ids=ascii)
    @rule
    async def test_illegal_ids_are_refused_at_every_entry_point(self, stores: Stores, session_id: str) -> None:
        """P-5: a `ValueError`, by one rule, `sync` included."""
        store = stores()
        attempts: list[Callable[[SessionPersistence], Awaitable[object]]] = [
            lambda s: s.create(header(session_id)), lambda s: s.append(session_id, turn()),
            lambda s: s.load(session_id), lambda s: s.inspect(session_id), lambda s: s.read_from(session_id, 0),
            lambda s: s.has(session_id), lambda s: s.delete(session_id), lambda s: s.update(session_id, metadata={}),
            lambda s: s.release(session_id), lambda s: s.sync(session_id),
        ]  # fmt: skip
        for attempt in attempts:
            with pytest.raises(ValueError):
                await attempt(store)
        assert [found.id async for found in stores().list()] == []

    @rule
    async def test_ids_that_look_alike_are_different_sessions(self, stores: Stores) -> None:
        """P-5: case, Unicode forms, lengths, and names some disks do not like."""
        store = stores()
        for number, session_id in enumerate(ALIKE_IDS):
            await store.create(header(session_id, metadata={"number": number}))
            await store.append(session_id, turn(text=session_id))
        await store.aclose()
        reader = stores()
        for number, session_id in enumerate(ALIKE_IDS):
            stored = await reader.inspect(session_id)
            assert (stored.header.id, stored.header.metadata["number"]) == (session_id, number)
            assert stored.events[2].data.arguments == session_id
        assert {found.id async for found in reader.list()} == {*ALIKE_IDS}

    # -- the raw part ------------------------------------------------------------------------------------

    @rule
    async def test_raw_write_with_first_is_exclusive(self, stores: Stores) -> None:
        """§1: `_write(first=True)` of a stored session is `SessionExists` and changes nothing."""
        store = await stores.saved()
        before = (await store._read("s")).records
        with pytest.raises(SessionExists):
            await store._write(header(), _records(turn()), first=True)
        assert list((await store._read("s")).records) == list(before)

    @rule
    async def test_raw_write_without_first_needs_the_session(self, stores: Stores) -> None:
        """§1: `_write(first=False)` of an unknown session is `SessionNotFound` and makes nothing."""
        store = stores()
        with pytest.raises(SessionNotFound):
            await store._write(header(), _records(turn()), first=False)
        assert not await store.has("s")

    @rule
    async def test_raw_read_gives_back_the_records(self, stores: Stores) -> None:
        """§1: `_read` returns the bytes that `_write` was given, which the backend copied."""
        store = stores()
        records = _records(turn())
        given = [*records]
        await store._write(header(), given, first=True)
        given.clear()
        await store._write(header(), _records(turn(2, TURN)), first=False)
        raw = await store._read("s")
        assert list(raw.records) == [*records, *_records(turn(2, TURN))]
        assert raw.damage is None
        assert raw.header == header()


def _records(events: list[SessionEvent]) -> list[bytes]:
    return [encode_event(event) for event in events]
