"""
Saving what is readable of a corrupt log.

Sequence numbers are kept, because events refer to each other by them: where events are lost, records of type
`log/lost` stand in their place, which every reader may leave out.
"""

from __future__ import annotations

import json
from pathlib import Path

from dsh_core.persistence import decode_header, encode_header
from dsh_core.session import SessionHeader, decode_event
from dsh_persistence_jsonl._lines import BOM, Parsed, parse, seal

__all__ = ["repaired"]


def repaired(data: bytes, session_id: str, path: Path) -> tuple[bytes, int]:
    """The contents of the repaired log, and its number of events."""
    found = parse(data.removeprefix(BOM))
    events: dict[int, tuple[int, bytes]] = {}
    for record in (*found.records, *(record for _, record in found.behind)):
        known = _event(record)
        if known is not None:
            seq, time = known
            events.setdefault(seq, (time, record))
    header = _saved_header(found, data, session_id, min((time for time, _ in events.values()), default=0))
    return b"".join(map(seal, [encode_header(header), *_filled(events)])), max(events, default=-1) + 1


def _event(record: bytes) -> tuple[int, int] | None:
    try:
        event = decode_event(record)
    except Exception:  # noqa: BLE001 - whatever it is, it is no readable event
        return None
    return event.seq, event.time


def _filled(events: dict[int, tuple[int, bytes]]) -> list[bytes]:
    records: list[bytes] = []
    last = min((time for time, _ in events.values()), default=0)
    for seq in range(max(events, default=-1) + 1):
        time, record = events.get(seq, (last, b""))
        lost = {"seq": seq, "time": time, "type": "log/lost", "data": {}, "ignorable": True}
        records.append(record or json.dumps(lost, separators=(",", ":")).encode())
        last = time
    return records


def _saved_header(found: Parsed, data: bytes, session_id: str, created_at: int) -> SessionHeader:
    first_line = data.removeprefix(BOM).partition(b"\n")[0].strip()
    for candidate in (*found.records[:1], first_line):
        try:
            header = decode_header(candidate)
        except ValueError:  # unreadable: the next candidate, or a header of our own
            continue
        if header.id == session_id:
            return header
    return SessionHeader(id=session_id, created_at=created_at)
