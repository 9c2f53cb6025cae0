"""
Opening, writing and syncing files of the store, never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["append_all", "beside", "make_private_dir", "open_file", "opened_file", "read_all", "same_file", "sync_dir"]

_NO_LINKS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def make_private_dir(path: Path) -> None:
    """Make a directory with mode 0700, and what is missing above it; refuse a link in its place."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private_dir(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)


def require_real_dir(path: Path) -> None:
    """Raise if `path` is not a directory itself, but a link or a file."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory of its own (links are not followed)", str(path))


def open_file(path: Path, flags: int) -> int:
    """
    Open a regular file with mode 0600, not inherited by child processes.

    Raises:
        OSError: It is missing, a link (ELOOP), or no regular file.
    """
    fd = os.open(path, flags | _NO_LINKS, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened_file(path: Path, flags: int) -> Iterator[int]:
    """`open_file` that closes."""
    fd = open_file(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    """Everything from the beginning of the file as it is now."""
    size = os.fstat(fd).st_size
    pieces: list[bytes] = []
    position = 0
    while position < size:
        piece = os.pread(fd, size - position, position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def append_all(fd: int, data: bytes) -> None:
    """Write all of `data`; a short write goes on where it stopped."""
    written = os.write(fd, data)
    while written < len(data):
        more = os.write(fd, memoryview(data)[written:])
        if not more:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        written += more


def same_file(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def sync_dir(path: Path) -> None:
    """Make names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def beside(path: Path, kind: str, data: bytes) -> Path:
    """Keep `data` durably in a new file beside a log, named after it."""
    number = 1
    while True:
        kept = path.with_name(f"{path.name}.{kind}-{number}")
        try:
            fd = open_file(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            number += 1
            continue
        break
    try:
        append_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return kept
