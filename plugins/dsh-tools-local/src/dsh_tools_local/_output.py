"""
The output of a command: bounded in memory while it is read, whole on disk.

Head and tail are kept. Once they no longer hold everything, all bytes go to a file of the user's own, up to
a bound of its own.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["Output", "SpillDirectory", "clean_text"]

_KEEP_SECONDS: Final = 7 * 24 * 3600.0


class SpillDirectory:
    """
    Where the whole output of commands lies when it is too long for a result.

    Args:
        path: The directory; it is made private (0700) when the first file is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ready = False

    def open(self) -> tuple[Path, BinaryIO] | None:
        """A new private file, or None where none can be made: the command must go on all the same."""
        try:
            if not self._ready:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._prune()
                self._ready = True
            path = self.path / f"output-{secrets.token_hex(8)}.txt"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            return path, open(os.open(path, flags, 0o600), "wb")
        except OSError:
            return None

    def _prune(self) -> None:
        """Remove files that are older than a week: nobody else does."""
        old = time.time() - _KEEP_SECONDS
        for path in self.path.glob("output-*.txt"):
            if path.lstat().st_mtime < old:
                path.unlink(missing_ok=True)


class Output:
    """
    What a command printed.

    Args:
        limit: Bytes that are kept in memory, half of them the first and half the last.
        spill: Where the rest goes.
        max_spill: Bytes the file may have.
    """

    def __init__(self, limit: int, spill: SpillDirectory, max_spill: int) -> None:
        self._half = max(limit // 2, 8)
        self._spill = spill
        self._max_spill = max_spill
        self._head = bytearray()
        self._tail = bytearray()
        self._file: BinaryIO | None = None
        self._failed = False
        self.path: Path | None = None
        self.spilled = 0
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._file is None and not self._failed and self.total + len(data) > 2 * self._half:
            self._start_file()
        self._write(data)
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:  # trimmed now and then, not for every read
            del self._tail[: -self._half]

    def _start_file(self) -> None:
        opened = self._spill.open()
        if opened is None:
            self._failed = True
            return
        self.path, self._file = opened
        self._write(bytes(self._head + self._tail))

    def _write(self, data: bytes) -> None:
        if self._file is None or self.spilled >= self._max_spill:
            return
        try:
            self.spilled += self._file.write(data[: self._max_spill - self.spilled])
            self._file.flush()
        except OSError:  # the disk is full: the result still has head and tail
            self._max_spill = self.spilled

    def close(self) -> None:
        """No more bytes come."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._max_spill = self.spilled
            self._file = None
            self._failed = True

    def text(self) -> str:
        """Head and tail with a marker between them; cut at characters."""
        if self.total <= 2 * self._half:
            return clean_text(bytes(self._head + self._tail))
        tail = bytes(self._tail[-self._half :])
        tail = _without_broken_start(tail)
        head = _without_broken_end(bytes(self._head))
        left_out = self.total - len(head) - len(tail)
        return f"{clean_text(head)}\n[… {left_out} of {self.total} bytes left out{self._where()} …]\n{clean_text(tail)}"

    def since(self, offset: int, *, ended: bool) -> tuple[str, int]:
        """
        What came after `offset`, and the offset to go on from.

        Args:
            offset: Bytes seen before.
            ended: Nothing more will come, so a broken character at the end is not waited for.
        """
        head_end = len(self._head)
        start = self.total - len(self._tail)
        if offset < head_end and start == head_end:
            data = bytes(self._head[offset:] + self._tail)
        elif offset >= start:
            data = bytes(self._tail[offset - start :])
        else:
            return self._after_loss(offset, ended=ended)
        if len(data) > 2 * self._half:
            return self._after_loss(offset, ended=ended)
        whole = data if ended else _without_broken_end(data)
        return clean_text(whole), offset + len(whole)

    def _after_loss(self, offset: int, *, ended: bool) -> tuple[str, int]:
        tail = bytes(self._tail[-self._half :])
        whole = _without_broken_start(tail if ended else _without_broken_end(tail))
        end = self.total - (0 if ended else len(tail) - len(_without_broken_end(tail)))
        return f"[… {end - len(whole) - offset} bytes left out{self._where()} …]\n{clean_text(whole)}", end

    def _where(self) -> str:
        if self.path is None:
            return "; they could not be kept" if self._failed else ""
        cut = f" (its first {self.spilled} bytes)" if self.spilled < self.total else ""
        return f"; full output{cut}: {self.path}"


def clean_text(data: bytes) -> str:
    """Bytes as text: what is not UTF-8, and NUL, which many a consumer cannot take, become U+FFFD."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd")


def _without_broken_end(data: bytes) -> bytes:
    """Drop the beginning of a character that was cut off at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return data[:-back] if length > back else data
    return data


def _without_broken_start(data: bytes) -> bytes:
    """Drop the rest of a character that was cut off before the start."""
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
