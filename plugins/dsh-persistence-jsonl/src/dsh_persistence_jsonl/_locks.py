"""
Who may write a session: `flock` on the log itself.

The descriptor that carries the lock is the one that writes, so an open session costs one descriptor, and the
kernel gives the lock back when the process dies. A session that is not stored yet is locked through the
file that will become its log. A note beside it names the holder, for the message of whoever is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsh_core.errors import SessionLocked, StorageError
from dsh_persistence_jsonl._files import append_all, make_private_dir, open_file, opened_file, read_all, same_file
from dsh_persistence_jsonl._names import file_stem

__all__ = ["HeldLog", "LockTable"]

_ATTEMPTS = 20


class HeldLog:
    """
    A log this process may write: its descriptor and how far the good bytes reach.

    Args:
        fd: Descriptor, open for reading and appending.
        path: Name of the log; None while nothing is stored.
        fresh: Name of the file that will become the log.

    `size` is where the good bytes end, `suspect` how many bytes a failed write may have left behind them,
    `unended` whether the last line lacks its line end, `synced` how far the log is durable, `renamed` whether
    its name is not yet.
    """

    __slots__ = ("fd", "fresh", "inode", "path", "renamed", "size", "suspect", "synced", "unended")

    def __init__(self, fd: int, path: Path | None, fresh: Path) -> None:
        self.path = path
        self.fresh = fresh
        self.renamed = False
        self.suspect = 0
        self.use(fd)

    def use(self, fd: int) -> None:
        """Go on with this descriptor of the log."""
        there = os.fstat(fd)
        self.fd = fd
        self.inode = (there.st_dev, there.st_ino)
        self.size = there.st_size
        self.synced = -1
        self.unended = self.size > 0 and os.pread(fd, 1, self.size - 1) != b"\n"


class LockTable:
    """
    The sessions that one store object holds.

    Args:
        folder: Where fresh files and notes lie.
        find: Finds a session's log.
    """

    def __init__(self, folder: Path, find: Callable[[str], Path | None]) -> None:
        self.folder = folder
        self._find = find
        self.held: dict[str, HeldLog] = {}
        self.duplicates: set[int] = set()
        self.forked = False
        _tables.add(self)

    def acquire(self, session_id: str) -> HeldLog:
        """
        Take a session.

        Raises:
            SessionLocked: Somebody has it.
            StorageError: The file system knows no locks.
        """
        if session_id in self.held:
            raise self._refusal(session_id)
        for _ in range(_ATTEMPTS):
            log = self._attempt(session_id)
            if log is not None:
                self.held[session_id] = log
                with suppress(OSError):  # the lock holds without the note
                    self._note(session_id)
                return log
        raise SessionLocked(f"session {session_id!r} is opened and closed all the time by others; try again")

    def release(self, session_id: str, log: HeldLog) -> None:
        """Give a session back; a second time does nothing."""
        if self.held.get(session_id) is not log:
            return
        del self.held[session_id]
        with suppress(OSError):
            self._holder_path(session_id).unlink(missing_ok=True)
        # Taken away under the lock: unlocked, the file may be the next owner's already.
        if log.path is None and same_file(log.fd, log.fresh):
            with suppress(OSError):
                log.fresh.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(log.fd, fcntl.LOCK_UN)  # a duplicate in a worker thread must not keep the lock
        os.close(log.fd)

    def _attempt(self, session_id: str) -> HeldLog | None:
        """Open and lock what there is; None if it changed meanwhile."""
        path = self._find(session_id)
        fresh = self.folder / f"{file_stem(session_id)}.new"
        target = path or fresh
        if path is None:
            make_private_dir(self.folder)
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if path is None else 0)
        try:
            fd = open_file(target, flags)
        except FileNotFoundError:
            return None
        try:
            self._flock(fd, session_id)
            if not same_file(fd, target) or self._find(session_id) != path:
                os.close(fd)
                return None
            if path is None:
                os.ftruncate(fd, 0)  # what a crash left of a session that never was
            return HeldLog(fd, path, fresh)
        except BaseException:
            os.close(fd)
            raise

    def _flock(self, fd: int, session_id: str) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise self._refusal(session_id) from None
            raise StorageError(
                f"cannot lock session {session_id!r} in {self.folder.parent}: {error}; keep the store on a local disk"
            ) from error

    # -- the holder's note -------------------------------------------------------------------------------

    def _holder_path(self, session_id: str) -> Path:
        return self.folder / f"{file_stem(session_id)}.holder"

    def _note(self, session_id: str) -> None:
        make_private_dir(self.folder)
        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        with opened_file(self._holder_path(session_id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            append_all(fd, note)

    def _refusal(self, session_id: str) -> SessionLocked:
        return SessionLocked(
            f"session {session_id!r} is open for writing in {self._holder(session_id)}; close it there, or fork it"
        )

    def _holder(self, session_id: str) -> str:
        try:
            with opened_file(self._holder_path(session_id), os.O_RDONLY) as fd:
                note = json.loads(read_all(fd))
            pid, host = int(note["pid"]), str(note["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return f"another process on {socket.gethostname()}"
        here = " (this process)" if (pid, host) == (os.getpid(), socket.gethostname()) else ""
        return f"process {pid} on {host}{here}"


_tables: weakref.WeakSet[LockTable] = weakref.WeakSet()


def _drop_inherited_locks() -> None:
    # A forked child shares the descriptors, and with them the locks: they would outlive the parent.
    for table in _tables:
        for fd in {*table.duplicates, *(log.fd for log in table.held.values())}:
            with suppress(OSError):
                os.close(fd)
        table.forked = table.forked or bool(table.held)
        table.held.clear()
        table.duplicates.clear()


os.register_at_fork(after_in_child=_drop_inherited_locks)
