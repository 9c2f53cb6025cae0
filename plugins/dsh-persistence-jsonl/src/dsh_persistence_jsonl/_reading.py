"""
Reading logs: whole ones for `load` and `inspect`, head and tail for `list`.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dsh_core.errors import SessionCorrupt
from dsh_core.persistence import Damage, RawLog, SessionSummary, decode_header
from dsh_persistence_jsonl._files import opened_file, read_all
from dsh_persistence_jsonl._lines import BOM, Parsed, opened, parse
from dsh_persistence_jsonl._names import SUFFIX, id_from_stem

if TYPE_CHECKING:
    from dsh_core.session import SessionHeader

__all__ = ["parse_file", "raw_log", "summary"]

_log = logging.getLogger("dsh")

_HEAD: Final = (1 << 16, 1 << 22)
_TAIL: Final = (1 << 14, 1 << 20)


def parse_file(path: Path) -> Parsed:
    """All lines of a log, the header's among them."""
    with opened_file(path, os.O_RDONLY) as fd:
        data = read_all(fd)
    if data.startswith(BOM):
        return parse(data[len(BOM) :], len(BOM))
    return parse(data)


def raw_log(path: Path, session_id: str) -> RawLog:
    """
    Read a log as the base class wants it.

    Raises:
        SessionCorrupt: The header is unreadable or belongs to another session.
    """
    found = parse_file(path)
    header = _header(found, path, session_id)
    for line, what in found.notes:
        _log.warning("%s, line %d: %s; skipped", path, line, what)
    return RawLog(header, found.records[1:], _damage(found, path), found.positions[1:])


def _header(found: Parsed, path: Path, session_id: str) -> SessionHeader:
    way_out = f"`dsh sessions repair {session_id}` keeps a backup and saves every readable record"
    if not found.records:
        raise SessionCorrupt(f"{path}, line 1, byte 0: the header is cut off or damaged; {way_out}")
    try:
        header = decode_header(found.records[0])
    except ValueError as error:
        raise SessionCorrupt(f"{path}, line 1, byte 0: not a session header: {error}; {way_out}") from error
    if header.id != session_id:
        raise SessionCorrupt(
            f"{path} holds session {header.id!r}, not {session_id!r}: the file was renamed by hand; name it back"
        )
    return header


def _damage(found: Parsed, path: Path) -> Damage | None:
    if found.bad is None:
        return None
    what = "a line is damaged" if found.behind else "the last line is cut off or damaged"
    return Damage(found.bad, f"{path}, line {found.bad_line}: {what}", len(found.behind))


class _Tail(NamedTuple):
    events: int | None
    updated_at: int | None
    ok: bool


def summary(path: Path) -> SessionSummary | None:
    """What a list shows of one log, from a bounded head and tail; None if it vanished."""
    try:
        with opened_file(path, os.O_RDONLY) as fd:
            there = os.fstat(fd)
            head = _first_line(fd, there.st_size)
            header = _readable_header(head)
            tail = _read_tail(fd, len(head) + 1, there.st_size)
    except OSError:
        return None
    fallback = header.created_at if header is not None and tail.events == 0 else there.st_mtime_ns // 1_000_000
    updated_at = tail.updated_at if tail.updated_at is not None else fallback
    session_id = header.id if header is not None else id_from_stem(path.name.removesuffix(SUFFIX))
    state = "ok" if header is not None and tail.ok else "damaged"
    return SessionSummary(session_id, header, tail.events, updated_at, state)


def _first_line(fd: int, size: int) -> bytes:
    head = b""
    for window in _HEAD:
        head = os.pread(fd, window, 0)
        if b"\n" in head or len(head) >= size:
            break
    return head.partition(b"\n")[0]


def _readable_header(line: bytes) -> SessionHeader | None:
    record = opened(line.removeprefix(BOM).rstrip(b"\r"))
    if record is None:
        return None
    try:
        return decode_header(record)
    except ValueError:
        return None


def _read_tail(fd: int, begin: int, size: int) -> _Tail:
    if size <= begin:
        return _Tail(0, None, True)
    for window in _TAIL:
        start = max(begin, size - window)
        data = os.pread(fd, size - start, start)
        if start > begin:
            data = data.partition(b"\n")[2]
        tail = _last_record(data)
        if tail is not None:
            return tail
        if start == begin:
            return _Tail(0, None, not data.strip(b"\x00\r\n\t "))
    return _Tail(None, None, True)


def _last_record(data: bytes) -> _Tail | None:
    ok = True
    lines = data.split(b"\n")
    for index in range(len(lines) - 1, -1, -1):
        record = opened(lines[index].rstrip(b"\r"))
        if record is not None:
            event = json.loads(record)
            return _Tail(event["seq"] + 1, event["time"], ok)
        final = index == len(lines) - 1
        if lines[index] if final else lines[index].strip(b"\x00\r\t "):
            ok = False
    return None
