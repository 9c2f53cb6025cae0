"""
The seam between live sessions and where they are stored.

A backend subclasses `SessionPersistence` and implements the raw part: writing, reading, cutting and locking
bytes. The rest, in which a mistake loses data, is here and final: ids, ownership, order, recovery.
`PersistenceCoordinator` carries the events of live sessions to a backend.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import attrs

from dsh_core._coordinator import PersistenceCoordinator
from dsh_core._header import decode_header, encode_header
from dsh_core._stored import Damage, RawLog, SessionSummary, StoredSession, decode_log
from dsh_core.errors import (
    SequenceError,
    SessionCorrupt,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    StorageError,
    UnsupportedFormat,
)
from dsh_core.session import SessionEvent, SessionHeader, encode_event, interrupted_turn_closers
from dsh_core.session._json import freeze_json
from dsh_core.session.events import UnknownEvent
from dsh_core.session.header import FORMAT
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


class SessionPersistence(ABC):
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

    # -- the raw part, for backends ----------------------------------------------------------------------

    @abstractmethod
    async def _write(self, header: SessionHeader, records: Sequence[bytes], *, first: bool) -> None:
        """
        Append records, all or nothing; a failure leaves the store as it was.

        Args:
            header: The session's header, passed on every call.
            records: One complete JSON object each, without line end. Copy what you keep.
            first: The session is new: store the header too, exclusively.

        Raises:
            SessionExists: `first`, and the id is stored.
            SessionNotFound: Not `first`, and the id is not stored.
            OSError: The base class makes a `StorageError` of it.
        """

    @abstractmethod
    async def _read(self, session_id: str) -> RawLog:
        """
        Read the records that are physically whole, up to the first bad byte; needs no lock.

        Blank or NUL-only lines and a record that repeats its predecessor byte for byte are skipped with a
        warning on logger `dsh`.

        Raises:
            SessionNotFound: No such session.
            SessionCorrupt: The header is unreadable.
        """

    @abstractmethod
    async def _cut(self, session_id: str, damage: Damage) -> None:
        """Remove a torn tail durably, under the lock, keeping the removed bytes beside the log."""

    @abstractmethod
    async def _lock(self, session_id: str) -> Callable[[], None]:
        """
        Take the session, which need not exist, exclusively across processes and instances.

        Returns:
            A plain function that gives it back; it may be called twice. The death of the process, forked
            children notwithstanding, gives it back too.

        Raises:
            SessionLocked: Somebody has it; the message names process and host.
        """

    @abstractmethod
    async def _delete(self, session_id: str) -> None:
        """Remove the session and what lies beside it durably, under the lock."""

    @abstractmethod
    async def _update(self, header: SessionHeader) -> None:
        """Replace the stored header durably and atomically, under the lock."""

    async def _exists(self, session_id: str) -> bool:
        """Whether anything is stored under this id; override it if there is a cheaper way than reading."""
        try:
            await self._read(session_id)
        except SessionNotFound:
            return False
        except SessionCorrupt:
            return True
        return True

    @abstractmethod
    def list(self) -> AsyncIterator[SessionSummary]:
        """All sessions, reading the header and the last complete record of each, no more."""

    @abstractmethod
    async def sync(self, session_id: str) -> None:
        """
        Make what was appended durable; nothing to do for a session without events.

        Raises:
            ValueError: The id is illegal; ask `check_session_id`.
            OSError: The disk failed; a `StorageError` is as good.
        """

    async def repair(self, session_id: str) -> int:
        """
        Save every readable record of a corrupt log, keeping a backup.

        Returns:
            How many events the session has now.

        Raises:
            StorageError: This backend cannot repair.
        """
        raise StorageError(f"{type(self).__name__} cannot repair session {session_id!r}; export what `inspect` shows")

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
                with _failing(f"look for session {session_id!r}"):
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
            async with slot.lock:
                if slot.next_seq is None:
                    events = await self._remaining(session_id, slot, events)
                await self._store(session_id, slot, events)
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
            closers = _closing_events(stored.events)
            if closers:
                await self._store(session_id, slot, closers)
            if closers or stored.damage is not None:
                with _failing(f"make the recovery of session {session_id!r} durable"):
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
        with _failing(f"read session {session_id!r}"):
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
        with _failing(f"look for session {session_id!r}"):
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
                with _failing(f"delete session {session_id!r}"):
                    if not await self._exists(session_id):
                        raise _not_found(session_id)
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
        frozen = _checked_metadata(session_id, metadata)
        async with self._entered(session_id) as slot:
            if slot.release is not None and slot.header is not None:
                header = attrs.evolve(slot.header, metadata=frozen)
                if slot.stored:
                    with _failing(f"update session {session_id!r}"):
                        await self._update(header)
                slot.header = header
                return
            release = await self._locked(session_id)
            try:
                with _failing(f"update session {session_id!r}"):
                    header = (await self._read(session_id)).header
                    _refuse_newer(header)
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
        same = len(known) <= len(events) and all(map(_same_event, known, events))
        return events[len(known) :] if same else events

    async def _recovered(self, session_id: str, slot: _Slot) -> StoredSession:
        with _failing(f"read session {session_id!r}"):
            raw = await self._read(session_id)
        _refuse_newer(raw.header)
        events, damage = decode_log(raw)
        _refuse_unknown(session_id, events)
        if damage is not None:
            if damage.records_after:
                raise _corrupt(session_id, damage)
            with _failing(f"cut the torn tail of session {session_id!r}"):
                await self._cut(session_id, damage)
        return StoredSession(raw.header, events, damage)

    async def _store(self, session_id: str, slot: _Slot, events: Sequence[SessionEvent]) -> None:
        expected = slot.next_seq
        assert expected is not None
        assert slot.header is not None
        if not events:
            return
        for event in events:
            if event.seq != expected:
                raise _out_of_sequence(session_id, slot.next_seq, events, event.seq, expected)
            expected += 1
        records = [encode_event(event) for event in events]
        try:
            await self._write(slot.header, records, first=not slot.stored)
        except StorageError:
            raise
        except OSError as error:
            raise _storage_error(f"write session {session_id!r}", error) from error
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
        with _failing(f"lock session {session_id!r}"):
            return await self._lock(session_id)


def _same_event(one: SessionEvent, other: SessionEvent) -> bool:
    return encode_event(one) == encode_event(other)


def _checked_metadata(session_id: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    frozen: Mapping[str, Any] = freeze_json(dict(metadata), where=f"metadata of session {session_id!r}")
    return frozen


def _refuse_newer(header: SessionHeader) -> None:
    if header.format > FORMAT:
        raise UnsupportedFormat(
            f"session {header.id!r} was written by a newer version (format {header.format}, this one knows {FORMAT}); "
            "upgrade dsh-core to resume it; `dsh sessions show` and `export` work"
        )


def _is_foreign(event: SessionEvent) -> bool:
    """Whether this version must not go on from a log with this event, because it cannot know what it means."""
    return isinstance(event.data, UnknownEvent) and not event.ignorable


def _refuse_unknown(session_id: str, events: Sequence[SessionEvent]) -> None:
    names = sorted({event.type for event in events if _is_foreign(event)})
    if names:
        raise UnsupportedFormat(
            f"session {session_id!r} was written by a newer version or with a plugin that is missing here: unknown "
            f"event type(s) {', '.join(names)}; upgrade dsh-core or install the plugin to resume it"
        )


def _closing_events(events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
    """What closes the turn that a crash left open, as events (P-3)."""
    closers = interrupted_turn_closers(events)
    if not closers:
        return ()
    now = max(events[-1].time, time.time_ns() // 1_000_000)
    return [SessionEvent(len(events) + index, now, data) for index, data in enumerate(closers)]


@contextmanager
def _failing(doing: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _storage_error(doing, error) from error


def _storage_error(doing: str, error: OSError) -> StorageError:
    return StorageError(f"cannot {doing}: {error}; nothing was changed, mend the cause and try again")


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"no session {session_id!r} in the store; `dsh sessions list` shows what there is")


def _corrupt(session_id: str, damage: Damage) -> SessionCorrupt:
    return SessionCorrupt(
        f"session {session_id!r} is corrupt at {damage.position}: {damage.reason}; {damage.records_after} readable "
        f"record(s) follow. `dsh sessions repair {session_id}` keeps a backup and saves every readable record"
    )


def _out_of_sequence(
    session_id: str, stored: int | None, events: Sequence[SessionEvent], seq: int, expected: int
) -> SequenceError:
    if expected == stored:
        return SequenceError(
            f"session {session_id!r}: the batch begins with seq {seq}, but the stored log goes on at {stored}; "
            "append every event once, in order"
        )
    return SequenceError(f"session {session_id!r}: seq {seq} follows {expected - 1} in a batch of {len(events)}")
