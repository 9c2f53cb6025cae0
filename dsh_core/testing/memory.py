"""
A store of sessions in memory, for tests: everything of a real one but the disk.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

import attrs

from dsh_core.errors import SessionExists, SessionLocked, SessionNotFound
from dsh_core.persistence import Damage, RawLog, SessionPersistence, SessionSummary, check_session_id
from dsh_core.session import SessionHeader, decode_event

__all__ = ["MemoryPersistence", "MemoryStore"]

_Log: TypeAlias = tuple[SessionHeader, list[bytes]]


@attrs.define(eq=False)
class MemoryStore:
    """
    What instances of `MemoryPersistence` share, as instances of other backends share a directory.

    Args:
        logs: Header and records of each session.
        damage: The damage that reading reports.
        locks: Who is open for writing.
        synced: Ids that were synced, in order.
        failure: Raised by each write while it is set.
    """

    logs: dict[str, _Log] = attrs.Factory(dict)
    damage: dict[str, Damage] = attrs.Factory(dict)
    locks: dict[str, object] = attrs.Factory(dict)
    synced: list[str] = attrs.Factory(list)
    failure: OSError | None = None


class MemoryPersistence(SessionPersistence):
    """
    Sessions in memory.

    Args:
        store: What is shared with other instances; an own one when left out.
    """

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__()
        self.store = store if store is not None else MemoryStore()

    async def _write(self, header: SessionHeader, records: Sequence[bytes], *, first: bool) -> None:
        if self.store.failure is not None:
            raise self.store.failure
        if first:
            if header.id in self.store.logs:
                raise SessionExists(f"session {header.id!r} is in the store already")
            self.store.logs[header.id] = (header, [*records])
        else:
            self._log(header.id)[1].extend(records)

    async def _read(self, session_id: str) -> RawLog:
        header, records = self._log(session_id)
        return RawLog(header, tuple(records), self.store.damage.get(session_id))

    async def _cut(self, session_id: str, damage: Damage) -> None:
        self.store.damage.pop(session_id, None)

    async def _lock(self, session_id: str) -> Callable[[], None]:
        if session_id in self.store.locks:
            raise SessionLocked(
                f"session {session_id!r} is open for writing in process {os.getpid()} on {socket.gethostname()}"
            )
        token = self.store.locks[session_id] = object()

        def release() -> None:
            if self.store.locks.get(session_id) is token:
                del self.store.locks[session_id]

        return release

    async def _delete(self, session_id: str) -> None:
        del self.store.logs[session_id]
        self.store.damage.pop(session_id, None)

    async def _update(self, header: SessionHeader) -> None:
        self.store.logs[header.id] = (header, self._log(header.id)[1])

    async def list(self) -> AsyncIterator[SessionSummary]:
        """All sessions."""
        for session_id, (header, records) in [*self.store.logs.items()]:
            updated_at = decode_event(records[-1]).time if records else header.created_at
            state = "damaged" if session_id in self.store.damage else "ok"
            yield SessionSummary(session_id, header, len(records), updated_at, state)

    async def sync(self, session_id: str) -> None:
        """Remember that it was asked for."""
        check_session_id(session_id)
        if session_id in self.store.logs:
            self.store.synced.append(session_id)

    def _log(self, session_id: str) -> _Log:
        try:
            return self.store.logs[session_id]
        except KeyError:
            raise SessionNotFound(f"no session {session_id!r} in this store") from None
