"""
Reading a prompt from standard input without ever waiting for a pipe that has nothing to say.
"""

from __future__ import annotations

import os
import select
import stat
from typing import Final

from dsh_core import ConfigError

__all__ = ["LIMIT", "piped_text"]

LIMIT: Final = 4 * 1024 * 1024
"""Bytes of piped text that are accepted."""

_PATIENCE: Final = 0.25
"""Seconds to wait for the first byte of a pipe when there is a prompt already."""


def piped_text(*, wait: bool, descriptor: int = 0) -> str | None:
    """
    The text on standard input, or None where there is none.

    Args:
        wait: Wait for the text however long it takes; without it, a pipe that stays silent is left alone.
        descriptor: File descriptor to read.

    Raises:
        ConfigError: More than `LIMIT` bytes came.
    """
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return None
    if stat.S_ISCHR(mode) or (not wait and not _has_text(descriptor, mode)):
        return None
    data = _read(descriptor)
    return data.decode("utf-8", "replace").lstrip("\ufeff") if data else None


def _has_text(descriptor: int, mode: int) -> bool:
    if stat.S_ISREG(mode):
        return True
    return bool(select.select([descriptor], [], [], _PATIENCE)[0])


def _read(descriptor: int) -> bytes:
    data = bytearray()
    while True:
        piece = _piece(descriptor)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > LIMIT:
            raise ConfigError(
                f"standard input has more than {LIMIT // (1024 * 1024)} MiB; put it into a file and name the file"
            )


def _piece(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, 65536)
        except BlockingIOError:  # whoever started us left the pipe non-blocking
            select.select([descriptor], [], [])
        except OSError:
            return b""
