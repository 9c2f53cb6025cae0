"""
The raw part of the store: one append-only file a session, in a folder per working directory.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsh_core.errors import SessionExists, SessionNotFound, StorageError
from dsh_core.persistence import Damage, RawLog, SessionPersistence, SessionSummary, check_session_id, encode_header
from dsh_persistence_jsonl import _writing
from dsh_persistence_jsonl._files import beside, make_private_dir, open_file, opened_file, read_all, sync_dir
from dsh_persistence_jsonl._lines import seal, seal_all
from dsh_persistence_jsonl._locks import HeldLog, LockTable
from dsh_persistence_jsonl._names import SUFFIX, file_stem, folder_name
from dsh_persistence_jsonl._reading import raw_log, summary
from dsh_persistence_jsonl._repairing import repaired

if TYPE_CHECKING:
    from dsh_core.session import SessionHeader

__all__ = ["DURABILITIES", "JsonlPersistence"]

DURABILITIES: Final = ("turn", "step", "none")

_INLINE: Final = 1 << 17
_LIST_CHUNK: Final = 128


class SyncError(StorageError, OSError):
    """The disk failed to make a log durable; `errno` says how."""


class JsonlPersistence(SessionPersistence):
    """
    Sessions as JSONL files.

    Args:
        root: Directory of the store; made when it is first needed.
        durability: When the coordinator syncs: `turn` (at its end), `step` (before requests and tools too),
            `none`.

    Writes happen inline, on the calling thread: one `write` a batch. Syncing and whatever reads or moves much
    happens in worker threads.

    Raises:
        ValueError: The durability is unknown.
    """

    def __init__(self, root: str | os.PathLike[str], *, durability: str = "turn") -> None:
        super().__init__()
        if durability not in DURABILITIES:
            raise ValueError(f"durability {durability!r} is unknown; choose one of {', '.join(DURABILITIES)}")
        self.durability = durability
        self.root = Path(os.path.realpath(os.path.expanduser(root)))
        self._locks = LockTable(self.root / ".locks", self._find)

    async def probe(self) -> None:
        """
        Find out whether the store can be used, by writing and removing one small file (P-6).

        Raises:
            StorageError: It cannot; the message names the path and the remedy.
        """
        probe = self.root / f".probe-{os.getpid()}"
        try:
            make_private_dir(self.root)
            with suppress(FileNotFoundError):
                probe.unlink()
            with opened_file(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                os.write(fd, b"\n")
            probe.unlink()
        except OSError as error:
            with suppress(OSError):
                probe.unlink()
            raise StorageError(
                f"sessions cannot be stored in {self.root}: {error.strerror or error}; make it writable, set "
                "DSH_STATE_DIR or plugins.persistence-jsonl.root to another directory, or disable persistence-jsonl"
            ) from error

    # -- the raw part ------------------------------------------------------------------------------------

    async def _write(self, header: SessionHeader, records: Sequence[bytes], *, first: bool) -> None:
        if self._locks.forked:
            raise StorageError(f"session {header.id!r} was opened before a fork; make a new store in the child process")
        log = self._locks.held.get(header.id)
        if log is None:
            with self._holding(header.id) as taken:
                self._write_log(taken, header, records, first=first)
        else:
            self._write_log(log, header, records, first=first)

    def _write_log(self, log: HeldLog, header: SessionHeader, records: Sequence[bytes], *, first: bool) -> None:
        data = seal_all(records)
        if first:
            if log.path is not None:
                raise SessionExists(f"session {header.id!r} is stored already in {log.path}; choose another id")
            path = self.root / folder_name(header.cwd) / (file_stem(header.id) + SUFFIX)
            _writing.publish(log, path, seal(encode_header(header)) + data)
        elif log.path is None:
            raise _not_found(header.id, self.root)
        elif data:
            _writing.append(log, data)

    async def _read(self, session_id: str) -> RawLog:
        path = self._path(session_id)
        try:
            if os.lstat(path).st_size <= _INLINE:
                return raw_log(path, session_id)
            return await asyncio.to_thread(raw_log, path, session_id)
        except FileNotFoundError as error:
            raise _not_found(session_id, self.root) from error

    async def _cut(self, session_id: str, damage: Damage) -> None:
        with self._holding(session_id) as log:
            await asyncio.to_thread(_writing.cut, log, damage.position)

    async def _lock(self, session_id: str) -> Callable[[], None]:
        log = self._locks.acquire(session_id)
        return lambda: self._locks.release(session_id, log)

    async def _delete(self, session_id: str) -> None:
        path = self._path(session_id)
        prefix = f"{path.name}."
        for name in os.listdir(path.parent):
            if name.startswith(prefix):
                os.unlink(path.parent / name)
        (self._locks.folder / f"{file_stem(session_id)}.new").unlink(missing_ok=True)
        os.unlink(path)
        await asyncio.to_thread(sync_dir, path.parent)

    async def _update(self, header: SessionHeader) -> None:
        with self._holding(header.id) as log:
            if log.path is None:
                raise _not_found(header.id, self.root)
            await asyncio.to_thread(_writing.replace, log, _writing.with_header(seal(encode_header(header))))

    async def _exists(self, session_id: str) -> bool:
        return self._find(session_id) is not None

    # -- for everybody -----------------------------------------------------------------------------------

    async def list(self) -> AsyncIterator[SessionSummary]:
        """All sessions, from the first line and a bounded tail of each log."""
        paths = self._logs()
        while chunk := tuple(itertools.islice(paths, _LIST_CHUNK)):
            for found in await asyncio.to_thread(lambda some: [summary(path) for path in some], chunk):
                if found is not None:
                    yield found

    async def sync(self, session_id: str) -> None:
        """
        Make what was appended durable; nothing to do for a session without events.

        Raises:
            ValueError: The id is illegal (P-5).
            StorageError: The disk failed; it is an OSError too.
        """
        check_session_id(session_id)
        log = self._locks.held.get(session_id)
        path = log.path if log is not None else self._find(session_id)
        if path is None or (log is not None and log.synced == log.size):
            return
        folders = (path.parent, self.root) if log is None or log.renamed else ()
        size = log.size if log is not None else 0
        try:
            await self._sync_file(os.dup(log.fd) if log is not None else open_file(path, os.O_RDONLY), folders)
        except OSError as error:
            raise _sync_error(session_id, path, error) from error
        if log is not None:
            log.synced, log.renamed = size, False

    async def _sync_file(self, fd: int, folders: Sequence[Path]) -> None:
        self._locks.duplicates.add(fd)

        def work() -> None:
            try:
                os.fsync(fd)
                for folder in folders:
                    sync_dir(folder)
            finally:
                self._locks.duplicates.discard(fd)
                os.close(fd)

        await asyncio.to_thread(work)

    async def repair(self, session_id: str) -> int:
        """
        Save every readable record of a corrupt log; the log as it was is kept beside it.

        Returns:
            How many events the session has now. Lost ones are replaced by ignorable `log/lost` records, so
            that the others keep their numbers.

        Raises:
            ValueError: The id is illegal (P-5).
            SessionNotFound: No such session.
            SessionLocked: It is open for writing.
        """
        check_session_id(session_id)
        path = self._path(session_id)
        release = await self._lock(session_id)
        try:
            return await asyncio.to_thread(self._repair, session_id, path)
        finally:
            release()

    def _repair(self, session_id: str, path: Path) -> int:
        log = self._locks.held[session_id]
        data = read_all(log.fd)
        contents, count = repaired(data, session_id, path)
        beside(path, "backup", data)
        _writing.replace(log, lambda _: contents)
        return count

    # -- finding -----------------------------------------------------------------------------------------

    @contextmanager
    def _holding(self, session_id: str) -> Iterator[HeldLog]:
        """The held log, or for as long as this takes."""
        log = self._locks.held.get(session_id)
        if log is not None:
            yield log
            return
        log = self._locks.acquire(session_id)
        try:
            yield log
        finally:
            self._locks.release(session_id, log)

    def _path(self, session_id: str) -> Path:
        path = self._find(session_id)
        if path is None:
            raise _not_found(session_id, self.root)
        return path

    def _find(self, session_id: str) -> Path | None:
        name = file_stem(session_id) + SUFFIX
        for folder in self._folders():
            path = folder / name
            with suppress(FileNotFoundError):
                os.lstat(path)
                return path
        return None

    def _folders(self) -> Sequence[Path]:
        try:
            with os.scandir(self.root) as entries:
                return sorted(
                    self.root / entry.name
                    for entry in entries
                    if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return []

    def _logs(self) -> Iterator[Path]:
        for folder in self._folders():
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                yield from sorted(
                    folder / entry.name
                    for entry in entries
                    if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False)
                )


def _not_found(session_id: str, root: Path) -> SessionNotFound:
    return SessionNotFound(f"no session {session_id!r} in {root}; `dsh sessions list` shows what there is")


def _sync_error(session_id: str, path: Path, error: OSError) -> SyncError:
    failed = SyncError(
        f"session {session_id!r}: {path} could not be made durable: {error.strerror or error}; it is written, but may "
        "be lost with the power; check the disk"
    )
    failed.errno = error.errno if error.errno is not None else errno.EIO
    return failed
