"""
The lines of a log: sealing a record with its checksum, and reading back what may be damaged.

Pure: bytes in, bytes out. A line is the record without its closing brace, then `,"crc":"xxxxxxxx"}` with the
CRC-32 of everything before that comma. Only LF separates lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from zlib import crc32

__all__ = ["BOM", "Parsed", "opened", "parse", "salvage", "seal", "seal_all"]

BOM: Final = b"\xef\xbb\xbf"

_SEAL: Final = len(b',"crc":"01234567"}')
_END: Final = re.compile(rb',"crc":"[0-9a-f]{8}"}')
_START: Final = re.compile(rb'\{"(?:seq|format)":')
_BLANK: Final = b"\x00\t\r "


class Parsed(NamedTuple):
    """
    What the lines of a log hold.

    Args:
        records: Whole records up to the first bad byte, without checksum.
        positions: Byte offset of each.
        bad: Byte offset of the first bad byte, or None.
        bad_line: Its line, counted from 1.
        behind: Whole records found behind it: (line, record).
        notes: What was skipped: (line, what).
        ended: Whether the last good line has its line end.
    """

    records: list[bytes]
    positions: list[int]
    bad: int | None
    bad_line: int
    behind: list[tuple[int, bytes]]
    notes: list[tuple[int, str]]
    ended: bool


def seal(record: bytes) -> bytes:
    """The line of a record, with its line end."""
    body = record[:-1]
    return body + b',"crc":"%08x"}\n' % crc32(body)


def seal_all(records: Iterable[bytes]) -> bytes:
    """The lines of several records."""
    lines = []
    for record in records:  # `seal`, written out: this is done with every event
        body = record[:-1]
        lines.append(body + b',"crc":"%08x"}\n' % crc32(body))
    return b"".join(lines)


def opened(line: bytes) -> bytes | None:
    """The record of a whole line without its line end, or None if the checksum does not fit."""
    cut = len(line) - _SEAL
    if cut > 0 and line[cut:] == b',"crc":"%08x"}' % crc32(line[:cut]):
        return line[:cut] + b"}"
    return None


def salvage(chunk: bytes) -> Iterator[tuple[int, int, bytes]]:
    """
    Whole records within damaged bytes, wherever they begin: (begin, end, record).

    A quote inside a JSON string is escaped, so the beginning of a record cannot occur inside another's text.
    """
    starts = [0, *(match.start() for match in _START.finditer(chunk, 1))]
    done = 0
    for match in _END.finditer(chunk):
        for start in starts:
            if done <= start < match.start():
                record = opened(chunk[start : match.end()])
                if record is not None:
                    yield start, match.end(), record
                    done = match.end()
                    break


def parse(data: bytes, offset: int = 0, line: int = 1, *, last: bytes | None = None) -> Parsed:
    """
    Read the lines of `data`.

    Args:
        data: Bytes that begin at a line's beginning.
        offset: Where they begin in the file.
        line: Number of their first line.
        last: The record before them.
    """
    found = Parsed([], [], None, 0, [], [], True)
    lines = data.split(b"\n")
    position = offset
    for number, raw in enumerate(lines, line):
        final = number == line + len(lines) - 1
        if final and not raw:
            break
        text = raw[:-1] if raw.endswith(b"\r") else raw
        record = opened(text)
        if record is None:
            if final or raw.strip(_BLANK):
                return _damaged(found, lines, number - line, position, number)
            found.notes.append((number, "blank"))
        elif record == last:
            found.notes.append((number, "repeats its predecessor"))
        else:
            found.records.append(record)
            found.positions.append(position)
            last = record
        position += len(raw) + 1
        if final:
            found = found._replace(ended=False)
    return found


def _damaged(found: Parsed, lines: list[bytes], index: int, position: int, number: int) -> Parsed:
    """The first bad byte lies in `lines[index]`, perhaps behind a record that is whole but for its line end."""
    pieces = list(salvage(lines[index]))
    bad, ended = position, True
    if pieces and pieces[0][0] == 0:
        _, end, record = pieces.pop(0)
        found.records.append(record)
        found.positions.append(position)
        bad, ended = position + end, False
    behind = [(number, record) for _, _, record in pieces]
    for later, raw in enumerate(lines[index + 1 :], number + 1):
        whole = opened(raw.rstrip(b"\r"))
        behind += [(later, whole)] if whole is not None else [(later, record) for _, _, record in salvage(raw)]
    return found._replace(bad=bad, bad_line=number, behind=behind, ended=ended)
