"""
Changing a log this process holds: publish, append, cut, replace. Each all or nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dsh_core.errors import SessionExists
from dsh_persistence_jsonl._files import (
    append_all,
    beside,
    make_private_dir,
    open_file,
    read_all,
    require_real_dir,
    sync_dir,
)

if TYPE_CHECKING:
    from dsh_persistence_jsonl._locks import HeldLog

__all__ = ["append", "cut", "publish", "replace", "with_header"]


def publish(log: HeldLog, path: Path, data: bytes) -> None:
    """
    Write a new log and give it its name, exclusively.

    Raises:
        SessionExists: Something has the name.
    """
    try:
        append_all(log.fd, data)
        make_private_dir(path.parent)
        require_real_dir(path.parent)
        os.link(log.fresh, path, follow_symlinks=False)
    except OSError as error:
        os.ftruncate(log.fd, 0)
        if isinstance(error, FileExistsError) and error.filename2 == str(path):
            raise SessionExists(f"{path} exists already; choose another session id") from error
        raise
    with suppress(OSError):  # a second name in the locks' folder does no harm; it goes with the session
        log.fresh.unlink()
    log.path, log.size, log.renamed, log.synced = path, len(data), True, -1


def append(log: HeldLog, data: bytes) -> None:
    """
    Append whole lines with one write.

    Raises:
        OSError: The disk failed, or somebody moved, removed or changed the log; it is as it was.
    """
    if log.suspect:
        _roll_back(log)
    if log.unended:
        data = b"\n" + data
    try:
        append_all(log.fd, data)
        _confirm(log, log.size + len(data))
    except BaseException:
        log.suspect = len(data)
        with suppress(OSError):  # tried again before the next write; until then the tail is torn
            _roll_back(log)
        raise
    log.size += len(data)
    log.unended = False


def _confirm(log: HeldLog, size: int) -> None:
    # Afterwards, not before: what is acknowledged was there under its name when it was.
    assert log.path is not None
    try:
        there = os.lstat(log.path)
    except FileNotFoundError:
        raise OSError(errno.ESTALE, "the log was removed or renamed while it was open", str(log.path)) from None
    if (there.st_dev, there.st_ino) != log.inode:
        raise OSError(errno.ESTALE, "the log was replaced while it was open", str(log.path))
    if there.st_size != size:
        raise OSError(errno.ESTALE, "somebody else changed the log while it was open", str(log.path))


def _roll_back(log: HeldLog) -> None:
    # Bytes that somebody else put there meanwhile stay: only our own, which are the last, go.
    os.ftruncate(log.fd, max(log.size, os.fstat(log.fd).st_size - log.suspect))
    log.suspect = 0


def cut(log: HeldLog, position: int) -> Path:
    """Remove everything from `position` on, durably, after keeping it in a file beside the log."""
    assert log.path is not None
    kept = beside(log.path, "torn", read_all(log.fd)[position:])
    os.ftruncate(log.fd, position)
    os.fsync(log.fd)
    sync_dir(log.path.parent)
    log.use(log.fd)
    return kept


def replace(log: HeldLog, change: Callable[[bytes], bytes]) -> None:
    """Put changed contents in the log's place, durably and at once; the lock moves along."""
    assert log.path is not None
    with suppress(FileNotFoundError):
        log.fresh.unlink()
    make_private_dir(log.fresh.parent)
    fd = open_file(log.fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        append_all(fd, change(read_all(log.fd)))
        os.fsync(fd)
        os.replace(log.fresh, log.path)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            log.fresh.unlink()
        raise
    old = log.fd
    log.use(fd)
    os.close(old)
    sync_dir(log.path.parent)


def with_header(line: bytes) -> Callable[[bytes], bytes]:
    """The change that gives a log another header line."""

    def change(data: bytes) -> bytes:
        _, _, rest = data.partition(b"\n")
        return line + rest

    return change
