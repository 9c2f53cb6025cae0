"""
What a store holds, as values: raw logs, damage, stored sessions, summaries.

Pure: nothing here touches a disk. What decides whether a log is whole, torn or corrupt is here, once, for
every backend (P-3).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from dsh_core.session import SessionEvent, SessionHeader, decode_event

__all__ = ["Damage", "RawLog", "SessionSummary", "StoredSession", "decode_log"]


@attrs.frozen
class Damage:
    """
    The first bad byte of a stored log.

    Args:
        position: Where it lies: the byte offset in a file, or the number of the record.
        reason: What is wrong there, with the place in words a person can look up.
        records_after: How many readable records follow. None means a torn tail, which `load` cuts off; any
            means the log is corrupt.
    """

    position: int
    reason: str
    records_after: int = 0


@attrs.frozen
class RawLog:
    """
    One log as its bytes are, for the base class to judge.

    Args:
        header: The session's header.
        records: The records that are physically whole, up to the first bad byte.
        damage: That byte, if there is one.
        positions: Where each record begins, in the unit of `Damage.position`; empty if that is its number.
    """

    header: SessionHeader
    records: Sequence[bytes]
    damage: Damage | None = None
    positions: Sequence[int] = ()

    def position(self, index: int) -> int:
        """Where record `index` begins."""
        return self.positions[index] if self.positions else index


@attrs.frozen
class StoredSession:
    """
    A session as it was read.

    Args:
        header: Its header.
        events: Its events, in order.
        damage: From `load`, the torn tail that was cut off; from `inspect`, whatever is wrong.
    """

    header: SessionHeader
    events: tuple[SessionEvent, ...]
    damage: Damage | None = None


@attrs.frozen
class SessionSummary:
    """
    What a list shows of a session, from its header and its last record alone.

    Args:
        id: The session's id, taken from the store if the header is unreadable.
        header: Its header, or None if it is unreadable.
        events: How many events it has, or None if that was not to be seen.
        updated_at: When its last event happened, in epoch milliseconds.
        state: `ok` or `damaged`, judging only what was read.
    """

    id: str
    header: SessionHeader | None
    events: int | None
    updated_at: int
    state: str = "ok"


def decode_log(raw: RawLog) -> tuple[tuple[SessionEvent, ...], Damage | None]:
    """
    Decode the records up to the first that is not the event it should be.

    A record whose bytes are whole but which is no event, or not the next one, was not torn by a crash: it
    counts as a readable record behind damage, so the log is corrupt.
    """
    events: list[SessionEvent] = []
    with _collector_paused():
        for index, record in enumerate(raw.records):
            try:
                event = decode_event(record)
            except Exception as error:  # noqa: BLE001 - whatever decoding stumbles over is a fact about the log
                return tuple(events), _bad_record(raw, index, f"record {index} is not an event: {error}")
            if event.seq != index:
                return tuple(events), _bad_record(raw, index, f"record {index} has seq {event.seq}, expected {index}")
            events.append(event)
    return tuple(events), raw.damage


def _bad_record(raw: RawLog, index: int, reason: str) -> Damage:
    behind = raw.damage.records_after if raw.damage is not None else 0
    return Damage(raw.position(index), reason, len(raw.records) - index + behind)


@contextmanager
def _collector_paused() -> Iterator[None]:
    # Decoding makes many objects and no garbage; the collector would walk all of them again and again.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
