"""
Putting a new content in the place of a file: all or nothing, with mode, owner and links kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from dsh_core.errors import ToolError
from dsh_tools_local._paths import refusal, show

__all__ = ["create", "replace"]


def create(path: Path, content: bytes) -> None:
    """
    Make a new file.

    Raises:
        ToolError: It appeared meanwhile, or cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path, content, 0o666)
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces what somebody else just made
        finally:
            os.unlink(temporary)
        _sync_directory(path.parent)
    except FileExistsError as error:
        if path.exists():
            raise ToolError(f"{show(path)} was made by somebody else meanwhile; read it first", "NOT_READ") from error
        raise refusal(path, error) from error
    except OSError as error:
        raise refusal(path, error) from error


def replace(path: Path, content: bytes, before: os.stat_result) -> None:
    """
    Give a file a new content.

    Args:
        path: The real path, no link.
        content: The new content.
        before: The file's state when its old content was read.

    Raises:
        ToolError: It was changed since, or cannot be written.
    """
    try:
        if not os.access(path, os.W_OK):  # a rename would get round the file's own mode
            raise PermissionError
        if before.st_nlink > 1:
            _still_the_same(path, before)
            _in_place(path, content)  # a new file would leave the other names with the old content
            return
        try:
            temporary = _temporary(path, content, stat.S_IMODE(before.st_mode))
        except PermissionError:  # the directory is closed, the file is not
            _still_the_same(path, before)
            _in_place(path, content)
            return
        try:
            _copy_attributes(path, temporary, before)
            _still_the_same(path, before)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_directory(path.parent)
    except OSError as error:
        raise refusal(path, error) from error


def _still_the_same(path: Path, before: os.stat_result) -> None:
    now = os.stat(path)
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        raise ToolError(f"{show(path)} was changed by somebody else just now; read it again", "CHANGED_SINCE_READ")


def _temporary(path: Path, content: bytes, mode: int) -> str:
    name = os.path.join(path.parent, f".dsh-{secrets.token_hex(8)}.tmp")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
    except BaseException:
        os.unlink(name)
        raise
    return name


def _copy_attributes(path: Path, temporary: str, before: os.stat_result) -> None:
    with contextlib.suppress(OSError):  # only the superuser may give files away
        os.chown(temporary, before.st_uid, before.st_gid)
    with contextlib.suppress(OSError):  # extended attributes, where the disk has them
        shutil.copystat(path, temporary)
    os.chmod(temporary, stat.S_IMODE(before.st_mode))
    os.utime(temporary)


def _in_place(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system can
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
