"""
Reading for a model: lines with numbers, images as blocks, bounded in every direction.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from dsh_core.content import Block, ImageBlock, TextBlock
from dsh_core.errors import ToolError
from dsh_tools_local._observed import HASH_LIMIT, Version
from dsh_tools_local._paths import open_regular, show

__all__ = ["MAX_IMAGE", "Page", "read_page", "read_whole"]

MAX_LINES: Final = 2_000
MAX_LINE: Final = 2_000
MAX_TEXT: Final = 50 * 1024
MAX_IMAGE: Final = 5 << 20
MAX_EDIT: Final = 64 << 20
_SNIFF: Final = 8192
_PIECE: Final = 1 << 16

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@attrs.frozen
class Page:
    """
    What a read gives.

    Args:
        content: For the model.
        version: What was seen.
        meta: For front ends.
    """

    content: tuple[Block, ...]
    version: Version
    meta: dict[str, object]


def read_whole(path: Path) -> tuple[bytes, os.stat_result]:
    """
    All bytes of a file that is to be changed, and its state.

    Raises:
        ToolError: It cannot be read, or is too large to be edited.
    """
    with open_regular(path) as file:
        stat = os.fstat(file.fileno())
        if stat.st_size > MAX_EDIT:
            raise ToolError(f"{show(path)} has {stat.st_size} bytes, too many to edit; use a command", "TOO_LARGE")
        return file.read(), stat


def read_page(path: Path, offset: int, limit: int, stopped: Callable[[], bool]) -> Page:
    """
    Read a file for a model.

    Args:
        path: The file.
        offset: First line, from 1.
        limit: Number of lines.
        stopped: Tells whether the call was cancelled.

    Raises:
        ToolError: It is no file, binary, or has no such line.
    """
    with open_regular(path) as file:
        start = file.read(_SNIFF)
        media_type = _image_type(start)
        if media_type:
            return _image(path, file, start, media_type)
        if b"\x00" in start:
            raise ToolError(f"{show(path)} is a binary file; look at it with a command such as file or xxd", "BINARY")
        file.seek(0)
        return _text(path, file, offset, limit, stopped)


def _image_type(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES if start.startswith(magic)), None)


def _image(path: Path, file: BinaryIO, start: bytes, media_type: str) -> Page:
    data = start + file.read(MAX_IMAGE + 1 - len(start))
    if len(data) > MAX_IMAGE:
        raise ToolError(f"{show(path)} is an image of more than {MAX_IMAGE} bytes; make it smaller first", "TOO_LARGE")
    block = ImageBlock(media_type, base64.b64encode(data).decode("ascii"))
    return Page((block,), Version.of(data), {"path": show(path), "media_type": media_type, "bytes": len(data)})


class _Lines:
    """Collects the wanted lines while the whole file passes by, for its hash and its number of lines."""

    def __init__(self, offset: int, limit: int) -> None:
        self.first, self.last = offset, offset + limit - 1
        self.number = 0
        self.shown: list[str] = []
        self.room = MAX_TEXT
        self.damaged = False
        self.cut = 0
        self._full = False

    def add(self, start: bytes, length: int) -> None:
        """Take a line of which `start` is the first part."""
        self.number += 1
        if self._full or not self.first <= self.number <= self.last:
            return
        text = self._decode(start, length)
        self.room -= len(text) + 8
        if self.room < 0 and self.shown:
            self._full = True
            self.last = self.number - 1
            return
        self.shown.append(f"{self.number:6}\t{text}")

    def _decode(self, start: bytes, length: int) -> str:
        if self.number == 1:
            start = start.removeprefix(b"\xef\xbb\xbf")
        whole = len(start) >= length
        text = start.decode("utf-8", "replace" if whole else "ignore")
        self.damaged = self.damaged or (whole and "\ufffd" in text and b"\xef\xbf\xbd" not in start)
        text = text.removesuffix("\n").removesuffix("\r").replace("\x00", "\ufffd")
        if whole and len(text) <= MAX_LINE:
            return text
        self.cut += 1
        return f"{text[:MAX_LINE]}[… line of {length} bytes cut …]"


def _text(path: Path, file: BinaryIO, offset: int, limit: int, stopped: Callable[[], bool]) -> Page:
    stat = os.fstat(file.fileno())
    lines = _Lines(offset, limit)
    hashing = hashlib.blake2b(digest_size=20) if stat.st_size <= HASH_LIMIT else None
    size = 0
    while piece := file.readline(_PIECE):
        start, length = piece, 0
        while piece:
            length += len(piece)
            if hashing is not None:
                hashing.update(piece)
            if piece.endswith(b"\n"):
                break
            piece = file.readline(_PIECE)
        lines.add(start, length)
        size += length
        if stopped() or (hashing is None and lines.number > lines.last):
            break  # a file too large to hash is not read to its end either
    version = Version(size, hashing.hexdigest()) if hashing is not None else Version.of_large(stat)
    whole = hashing is not None
    text = _render(path, lines, offset, whole)
    meta = {"path": show(path), "first": offset, "lines": len(lines.shown), "total": lines.number if whole else None}
    return Page((TextBlock(text),), version, meta)


def _render(path: Path, lines: _Lines, offset: int, whole: bool) -> str:
    if not lines.number:
        return f"({show(path)} is empty)"
    if not lines.shown:
        raise ToolError(f"{show(path)} has {lines.number} lines, none at {offset}; give less", "NO_SUCH_LINE")
    notes = []
    end = offset + len(lines.shown) - 1
    if end < lines.number:
        total = f"of {lines.number}" if whole else "of more"
        notes.append(f"[lines {offset} to {end} {total}; go on with offset={end + 1}]")
    if lines.damaged:
        notes.append("[not all of it is UTF-8: \ufffd stands for what is not]")
    return "\n".join([*lines.shown, *notes])
