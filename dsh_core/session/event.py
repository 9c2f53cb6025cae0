"""
The events of a log as values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs
import msgspec

from dsh_core.errors import NotSerializable
from dsh_core.session._registry import EventType, event_type_of
from dsh_core.session.events import UnknownEvent

__all__ = ["Replace", "SessionEvent", "known_type", "make_event", "release_all_bytes", "release_bytes"]


class _Flags(msgspec.Struct, frozen=True):
    ignorable: bool = False


@attrs.frozen
class Replace:
    """
    The surface mark of an event that takes the place of a run of nodes.

    Args:
        first: Seq of the first node of the run, by position.
        last: Seq of the last.
    """

    first: int
    last: int


@attrs.frozen(weakref_slot=False)
class SessionEvent:
    """
    One event of a log.

    Args:
        seq: Its index in the log.
        time: Epoch milliseconds; never decreases within a session.
        data: What happened, an instance of a registered event class.
        surface: The run of nodes it replaces, or None.
        sources: Seqs of the events it was made from.
    """

    seq: int
    time: int
    data: Any = attrs.field(hash=False)
    surface: Replace | None = None
    sources: tuple[int, ...] = ()
    # The record made at the append, until it is written; the record as it was read, where that says more
    # than the data; whether the data are a snapshot that nobody can change.
    _encoded: bytes | None = attrs.field(default=None, init=False, eq=False, repr=False)
    _read: bytes | None = attrs.field(default=None, init=False, eq=False, repr=False)
    _sealed: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    @property
    def type(self) -> str:
        """Wire name of the event's type."""
        data = self.data
        return data.type if type(data) is UnknownEvent else known_type(type(data)).name

    @property
    def ignorable(self) -> bool:
        """Whether a reader that does not know the type may leave the event out."""
        if type(self.data) is UnknownEvent:
            return msgspec.json.decode(self.data.raw, type=_Flags).ignorable
        return known_type(type(self.data)).ignorable


class _Draft:
    """An event before it is handed out: the same slots as `SessionEvent`, which must stay in step."""

    __slots__ = ("_encoded", "_read", "_sealed", "data", "seq", "sources", "surface", "time")

    seq: int
    time: int
    data: Any
    surface: Replace | None
    sources: tuple[int, ...]
    _encoded: bytes | None
    _read: bytes | None
    _sealed: bool


def make_event(
    seq: int,
    time: int,
    data: Any,
    surface: Replace | None,
    sources: tuple[int, ...],
    *,
    encoded: bytes | None = None,
    read: bytes | None = None,
) -> SessionEvent:
    """
    An event whose data are a snapshot that nobody can change.

    Filling a draft and turning it into an event costs a third of the initialiser of a frozen class, which
    every append would pay.

    Args:
        seq: Its index in the log.
        time: Epoch milliseconds.
        data: The snapshot.
        surface: The run of nodes it replaces, or None.
        sources: Seqs of the events it was made from.
        encoded: Its record, kept until it is written.
        read: Its record as it was read, kept for good because it says more than the data.
    """
    draft = _Draft()
    draft.seq = seq
    draft.time = time
    draft.data = data
    draft.surface = surface
    draft.sources = sources
    draft._encoded = encoded
    draft._read = read
    draft._sealed = True
    draft.__class__ = SessionEvent  # type: ignore[assignment]
    return draft  # type: ignore[return-value]


def release_bytes(event: SessionEvent) -> None:
    """Let go of the bytes of an event that has been written, or that nobody will write."""
    release_all_bytes((event,))


def release_all_bytes(events: Iterable[SessionEvent]) -> None:
    """The same for a batch."""
    for event in events:
        _set_encoded(event, None)


_set_encoded: Final = SessionEvent.__dict__["_encoded"].__set__


def known_type(cls: type) -> EventType:
    """
    The type for which a class is registered.

    Raises:
        NotSerializable: For none; the message says how to register it.
    """
    found = event_type_of(cls)
    if found is None:
        raise NotSerializable(f"{cls.__name__} is not an event class; register it with @session_event('area/what')")
    return found
