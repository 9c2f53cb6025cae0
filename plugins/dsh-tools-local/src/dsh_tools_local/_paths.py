"""
Paths as models give them, and what may be opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from dsh_core.errors import ToolError

__all__ = ["open_regular", "refusal", "resolve", "show"]

_KINDS = (
    (stat.S_ISDIR, "is a directory; list it with glob"),
    (stat.S_ISFIFO, "is a pipe, which may never give an end"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISSOCK, "is a socket"),
)


def resolve(path: object, cwd: str | None) -> Path:
    """
    The path a tool was given, absolute; links and `..` are left to the operating system.

    Raises:
        ToolError: It cannot be a path.
    """
    text = str(path)
    if not text or "\x00" in text:
        raise ToolError(f"{text!r} is not a path; give the path of a file", "INVALID_PATH")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ToolError(f"{text!r} is not a path: it holds half a character", "INVALID_PATH") from None
    return Path(cwd or os.getcwd(), os.path.expanduser(text))


def show(path: str | os.PathLike[str]) -> str:
    """A path as text that every consumer can take: what is not UTF-8 becomes U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def refusal(path: Path, error: OSError) -> ToolError:
    """A failure of the operating system in words."""
    if isinstance(error, FileNotFoundError):
        return ToolError(f"{show(path)} does not exist; look with glob", "NOT_FOUND")
    if isinstance(error, NotADirectoryError):
        return ToolError(f"{show(path)}: a part of this path is a file, not a directory", "NOT_FOUND")
    if isinstance(error, IsADirectoryError):
        return ToolError(f"{show(path)} is a directory; list it with glob", "NOT_A_FILE")
    if isinstance(error, PermissionError):
        return ToolError(f"{show(path)}: permission denied", "PERMISSION_DENIED")
    return ToolError(f"{show(path)}: {error.strerror or error}", "IO_ERROR")


def open_regular(path: Path) -> BinaryIO:
    """
    Open a regular file for reading, and nothing that could block.

    Raises:
        ToolError: It is something else, or not there.
    """
    try:
        _check_kind(path, os.stat(path).st_mode)  # before opening: opening a device may already act on it
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise refusal(path, error) from error
    file = open(handle, "rb")
    try:
        _check_kind(path, os.fstat(handle).st_mode)
    except ToolError:
        file.close()
        raise
    return file


def _check_kind(path: Path, mode: int) -> None:
    for is_kind, words in _KINDS:
        if is_kind(mode):
            raise ToolError(f"{show(path)} {words}", "NOT_A_FILE")
