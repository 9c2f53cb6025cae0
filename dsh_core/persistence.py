"""
The seam between live sessions and where they are stored.

A backend subclasses `SessionPersistence` and implements the raw part: writing, reading, cutting and locking
bytes. The rest, in which a mistake loses data, is here and final: ids, ownership, order, recovery.
`PersistenceCoordinator` carries the events of live sessions to a backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import attrs

from dsh_core._coordinator import PersistenceCoordinator
from dsh_core._header import decode_header, encode_header
from dsh_core._judging import (
    checked_metadata,
    closing_events,
    corrupt,
    failing,
    not_found,
    out_of_sequence,
    refuse_newer,
    refuse_unknown,
    same_event,
    storage_error,
)
from dsh_core._rawstore import RawStore
from dsh_core._stored import Damage, RawLog, SessionSummary, StoredSession, decode_log
from dsh_core.errors import (
    SessionExists,
    SessionLocked,
    SessionNotFound,
    StorageError,
)
from dsh_core.session import SessionEvent, SessionHeader, encode_event
from dsh_core.session.ids import check_session_id

__all__ = [
    "Damage",
    "PersistenceCoordinator",
    "RawLog",
    "SessionPersistence",
    "SessionSummary",
    "StoredSession",
    "check_session_id",
    "decode_header",
    "encode_header",
]


class _Slot:
    """What this instance knows of one session; owned while `release` is set."""

    __slots__ = ("header", "lock", "next_seq", "release", "stored", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.release: Callable[[], None] | None = None
        self.header: SessionHeader | None = None
        self.stored = False
        # None while the stored length is unknown: not read yet, or a write was cancelled half way.
        self.next_seq: int | None = None

    def own(self, release: Callable[[], None], header: SessionHeader, next_seq: int, *, stored: bool) -> None:
        self.release, self.header, self.next_seq, self.stored = release, header, next_seq, stored


class SessionPersistence(RawStore):
    """
    Base class of stores of sessions.

    A backend implements the methods that begin with an underscore, `list`, `sync` and `aclose`. The others
    are final; overriding one is refused when the class is made. `durability` says when the coordinator calls
    `sync`: at the end of a turn (`turn`), before requests and tools too (`step`), or never (`none`).
    """

    durability: str = "turn"

    _FINAL: ClassVar[tuple[str, ...]] = (
        "append", "create", "delete", "has", "inspect", "load", "read_from", "release", "update",
    )  # fmt: skip

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in SessionPersistence._FINAL:
            if getattr(cls, name) is not getattr(SessionPersistence, name):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides a final method of SessionPersistence; implement _write, _read, "
                    "_cut, _lock, _delete, _update, list, sync and aclose instead"
                )

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}

    async def aclose(self) -> None:
        """Give back every session. Overrides call `super().aclose()`."""
        for session_id in [*self._slots]:
            await self.release(session_id)

    # -- the final part ----------------------------------------------------------------------------------

    async def create(self, header: SessionHeader) -> None:
        """
        Take a new id. Nothing is written until the first event.

        Raises:
            ValueError: The id is illegal (P-5).
            SessionLocked: Somebody else owns it.
            SessionExists: It is stored, or created here already.
        """
        session_id = header.id
        async with self._entered(session_id) as slot:
            if slot.release is not None:
                raise SessionExists(f"session {session_id!r} is open in this store; choose another id")
            release = await self._locked(session_id)
            try:
                with failing(f"look for session {session_id!r}"):
                    if await self._exists(session_id):
                        raise SessionExists(f"session {session_id!r} is stored already; load it or choose another id")
            except BaseException:
                release()
                raise
            slot.own(release, header, 0, stored=False)

    async def append(self, session_id: str, events: Sequence[SessionEvent]) -> None:
        """
        Append a batch, all or nothing; it is in the operating system's hands when this returns.

        Takes ownership if nobody has it.

        Raises:
            ValueError: The id is illegal (P-5).
            SequenceError: The batch does not continue the stored log, or has a gap.
            SessionNotFound: Nobody created the session.
            SessionLocked: Somebody else owns it.
            SessionCorrupt: What is stored is corrupt, so nothing may be appended.
            StorageError: The write failed; the store is as it was.
        """
        slot = self._slots.get(session_id) or self._slot(session_id)
        if not events:
            self._leave(session_id, slot)
            return
        slot.users += 1
        try:
            await slot.lock.acquire()  # `async with` would be two coroutines more, at every barrier
            try:
                if slot.next_seq is None:
                    events = await self._remaining(session_id, slot, events)
                await self._store(session_id, slot, events)
            finally:
                slot.lock.release()
        finally:
            slot.users -= 1
            self._leave(session_id, slot)

    async def load(self, session_id: str) -> StoredSession:
        """
        Take the session and bring it back whole: a torn tail is cut off, an open turn is closed, durably (P-3).

        The owner may load again, though not below a live session, whose open turn would be closed; to look
        at one, use `inspect`.

        Raises:
            ValueError: The id is illegal (P-5).
            SessionNotFound: No such session.
            SessionLocked: Somebody else owns it.
            SessionCorrupt: A readable record lies behind a bad one or behind a gap.
            UnsupportedFormat: Written by a newer version or with a plugin that is missing; nothing changed.
            StorageError: The store failed.
        """
        async with self._entered(session_id) as slot:
            stored = await self._take(session_id, slot)
            closers = closing_events(stored.events)
            if closers:
                await self._store(session_id, slot, closers)
            if closers or stored.damage is not None:
                with failing(f"make the recovery of session {session_id!r} durable"):
                    await self.sync(session_id)
            return attrs.evolve(stored, events=(*stored.events, *closers)) if closers else stored

    async def inspect(self, session_id: str) -> StoredSession:
        """
        Read without a lock and without changing anything; what is readable of a damaged log, with `damage`.

        Raises:
            ValueError: The id is illegal (P-5).
            SessionNotFound: No such session.
            SessionCorrupt: The header is unreadable.
        """
        check_session_id(session_id)
        with failing(f"read session {session_id!r}"):
            raw = await self._read(session_id)
        events, damage = decode_log(raw)
        return StoredSession(raw.header, events, damage)

    async def read_from(self, session_id: str, seq: int) -> tuple[SessionEvent, ...]:
        """The readable events from `seq` on, inclusive; none beyond the end. For viewers that follow."""
        if seq < 0:
            raise ValueError(f"seq {seq} is negative; events count from 0")
        return (await self.inspect(session_id)).events[seq:]

    async def has(self, session_id: str) -> bool:
        """Whether the session is stored, readable or not."""
        check_session_id(session_id)
        with failing(f"look for session {session_id!r}"):
            return await self._exists(session_id)

    async def delete(self, session_id: str) -> None:
        """
        Remove a session that nobody has open.

        Raises:
            ValueError: The id is illegal (P-5).
            SessionNotFound: No such session.
            SessionLocked: It is open for writing, here or elsewhere.
        """
        async with self._entered(session_id) as slot:
            if slot.release is not None:
                raise SessionLocked(f"session {session_id!r} is open for writing here; release it before deleting it")
            release = await self._locked(session_id)
            try:
                with failing(f"delete session {session_id!r}"):
                    if not await self._exists(session_id):
                        raise not_found(session_id)
                    await self._delete(session_id)
            finally:
                release()

    async def update(self, session_id: str, *, metadata: Mapping[str, Any]) -> None:
        """
        Replace the embedder's metadata; nothing else of a header ever changes.

        Raises:
            ValueError: The id is illegal (P-5).
            NotSerializable: JSON cannot hold the metadata.
            SessionNotFound: No such session.
            SessionLocked: Somebody else owns it.
        """
        check_session_id(session_id)
        frozen = checked_metadata(session_id, metadata)
        async with self._entered(session_id) as slot:
            if slot.release is not None and slot.header is not None:
                header = attrs.evolve(slot.header, metadata=frozen)
                if slot.stored:
                    with failing(f"update session {session_id!r}"):
                        await self._update(header)
                slot.header = header
                return
            release = await self._locked(session_id)
            try:
                with failing(f"update session {session_id!r}"):
                    header = (await self._read(session_id)).header
                    refuse_newer(header)
                    await self._update(attrs.evolve(header, metadata=frozen))
            finally:
                release()

    async def release(self, session_id: str) -> None:
        """Give the session back, after the write that is under way; nothing to do if it is not owned."""
        async with self._entered(session_id) as slot:
            release, slot.release, slot.next_seq = slot.release, None, None
            if release is not None:
                release()

    # -- under the slot's lock ---------------------------------------------------------------------------

    async def _take(self, session_id: str, slot: _Slot) -> StoredSession:
        """Own the session and know its end: lock, read, judge, cut."""
        mine = slot.release
        release = mine or await self._locked(session_id)
        try:
            stored = await self._recovered(session_id, slot)
        except BaseException:
            if mine is None:
                release()
            raise
        slot.own(release, stored.header, len(stored.events), stored=True)
        return stored

    async def _remaining(self, session_id: str, slot: _Slot, events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
        """Find the stored end, and what of the batch a cancelled write of ours has not stored already."""
        retried = slot.release is not None
        try:
            stored = (await self._take(session_id, slot)).events
        except SessionNotFound:
            if not retried or slot.stored:
                raise
            slot.next_seq, stored = 0, ()
        known = stored[events[0].seq :] if retried else ()
        same = len(known) <= len(events) and all(map(same_event, known, events))
        return events[len(known) :] if same else events

    async def _recovered(self, session_id: str, slot: _Slot) -> StoredSession:
        with failing(f"read session {session_id!r}"):
            raw = await self._read(session_id)
        refuse_newer(raw.header)
        events, damage = decode_log(raw)
        refuse_unknown(session_id, events)
        if damage is not None:
            if damage.records_after:
                raise corrupt(session_id, damage)
            with failing(f"cut the torn tail of session {session_id!r}"):
                await self._cut(session_id, damage)
        return StoredSession(raw.header, events, damage)

    async def _store(self, session_id: str, slot: _Slot, events: Sequence[SessionEvent]) -> None:
        expected = slot.next_seq
        assert expected is not None
        assert slot.header is not None
        if not events:
            return
        records = []
        for event in events:
            if event.seq != expected:
                raise out_of_sequence(session_id, slot.next_seq, events, event.seq, expected)
            expected += 1
            records.append(event._encoded or encode_event(event))
        try:
            await self._write(slot.header, records, first=not slot.stored)
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(f"write session {session_id!r}", error) from error
        except asyncio.CancelledError:
            slot.next_seq = None  # nobody knows whether it was written: read before the next write
            raise
        slot.next_seq, slot.stored = expected, True

    # -- slots -------------------------------------------------------------------------------------------

    def _slot(self, session_id: str) -> _Slot:
        check_session_id(session_id)
        slot = self._slots.get(session_id)
        if slot is None:
            slot = self._slots[session_id] = _Slot()
        return slot

    def _leave(self, session_id: str, slot: _Slot) -> None:
        if slot.release is None and not slot.users:
            self._slots.pop(session_id, None)

    @asynccontextmanager
    async def _entered(self, session_id: str) -> AsyncIterator[_Slot]:
        slot = self._slot(session_id)
        slot.users += 1
        try:
            async with slot.lock:
                yield slot
        finally:
            slot.users -= 1
            self._leave(session_id, slot)

    async def _locked(self, session_id: str) -> Callable[[], None]:
        with failing(f"lock session {session_id!r}"):
            return await self._lock(session_id)
