"""
The raw part of a store of sessions: what every backend implements, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from dsh_core.errors import SessionCorrupt, SessionNotFound, StorageError

if TYPE_CHECKING:
    from dsh_core._stored import Damage, RawLog, SessionSummary
    from dsh_core.session import SessionHeader

__all__ = ["RawStore"]


class RawStore(ABC):
    """Bytes in and out of a store, by session."""

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
