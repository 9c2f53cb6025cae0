"""
One session: an append-only log of events, and everything that is folded from it as it grows (S-1 to S-8).

`append` is synchronous: validate, snapshot, push, notify. A refused append leaves no trace. The session
knows nothing of hooks or disks; a sink is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol, overload

from dsh_core.content import ToolCallBlock
from dsh_core.errors import HarnessError, InvariantViolation, NotSerializable, SequenceError
from dsh_core.session._registry import event_type_of
from dsh_core.session.chunks import MAX_AGE_MS, ChunkPacker, StreamChunk
from dsh_core.session.codec import Replace, SessionEvent, encode_record, prepare_data, prepare_pack, release_bytes
from dsh_core.session.events import (
    AssistantMessageEvent,
    StepEndEvent,
    StepStartEvent,
    ToolResultEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from dsh_core.session.header import SessionHeader
from dsh_core.session.projection import MessageView, Projection
from dsh_core.session.surface import Surface

__all__ = ["EventLog", "Session", "SessionEvent", "SessionSink"]

_log: Final = logging.getLogger("dsh")


def _now() -> int:
    return time.time_ns() // 1_000_000


class SessionSink(Protocol):
    """Whoever has to know of a session's events."""

    def check(self, session: Session, event: SessionEvent) -> None:
        """Before the push; raising refuses the append."""

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        """Right after the push, with the event's bytes; never raises."""

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell observers; contains their failures."""

    def created(self, session: Session) -> None:
        """The session became live."""

    def disposed(self, session: Session) -> None:
        """The session is no longer live."""


class EventLog(Sequence[SessionEvent]):
    """The events of a session, read-only. `session_id` says which session's."""

    __slots__ = ("_events", "session_id")

    def __init__(self, events: list[SessionEvent], session_id: str) -> None:
        self._events = events
        self.session_id = session_id

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        found = self._events[index]
        return tuple(found) if isinstance(found, list) else found

    def __iter__(self) -> Iterator[SessionEvent]:
        return iter(self._events)

    def __reversed__(self) -> Iterator[SessionEvent]:
        return reversed(self._events)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EventLog):
            return self._events == other._events
        if isinstance(other, Sequence):
            return len(other) == len(self) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return id(self._events)

    def __repr__(self) -> str:
        return f"<EventLog of {self.session_id!r}: {len(self)} events>"


class Session:
    """
    A session. Plugins read it and append event types of their own.

    Args:
        header: What is known of it before its first event.
        seed: Events it starts with; they are checked and not announced.
        sink: Who is told of events.
        clock: Epoch milliseconds.
    """

    def __init__(
        self,
        header: SessionHeader,
        *,
        seed: Iterable[SessionEvent] = (),
        sink: SessionSink | None = None,
        clock: Callable[[], int] = _now,
    ) -> None:
        self.header = header
        self.id = header.id
        self._sink: SessionSink | None = None
        self._clock = clock
        self._events: list[SessionEvent] = []
        self._surface = Surface()
        self._projection: Projection | None = None
        self._last_time = 0
        self._last_turn = 0
        self._open_turn: int | None = None
        self._open_step: int | None = None
        self._open_calls: dict[str, ToolCallBlock] = {}
        self._call_ids: set[str] = set()
        self._packer: ChunkPacker | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = ""
        self._deferred: deque[Callable[[], None]] = deque()
        for event in seed:
            self._load(event)
        self._projection = Projection(self._events[seq].data for seq in self._surface.nodes)
        self._sink = sink

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def events(self) -> EventLog:
        """The log, read-only."""
        return EventLog(self._events, self.header.id)

    @property
    def surface(self) -> Surface:
        """The nodes that are messages now, by position."""
        return self._surface

    def derive_messages(self) -> MessageView:
        """The conversation as a model reads it (S-4): an immutable view, not a copy."""
        if self._projection is None:
            self._projection = Projection(self._events[seq].data for seq in self._surface.nodes)
        return self._projection.view()

    @property
    def turn_open(self) -> bool:
        """Whether a turn is open, answered from the log."""
        return self._open_turn is not None

    @property
    def open_turn(self) -> int | None:
        """Number of the open turn, or None."""
        return self._open_turn

    @property
    def open_step(self) -> int | None:
        """Number of the open step, or None."""
        return self._open_step

    @property
    def last_turn(self) -> int:
        """Number of the last turn, 0 before the first."""
        return self._last_turn

    @property
    def used_call_ids(self) -> AbstractSet[str]:
        """The ids of all tool calls of the session."""
        return self._call_ids

    def unanswered_calls(self) -> list[ToolCallBlock]:
        """The calls on the surface that have no result, in order."""
        return list(self._open_calls.values())

    def __repr__(self) -> str:
        return f"<session {self.id!r}: {len(self._events)} events>"

    # -- appending ---------------------------------------------------------------------------------------

    def append(self, data: Any, *, replace: tuple[int, int] | None = None, sources: Iterable[int] = ()) -> SessionEvent:
        """
        Append an event.

        Args:
            data: An instance of an event class.
            replace: First and last seq of the run of nodes a message takes the place of (S-3).
            sources: Seqs of the events it was made from; a replacement lists everything it shadows.

        Returns:
            The event, already in the log and announced.

        Raises:
            NotSerializable: The data do not survive JSON; names the event type and the path.
            InvariantViolation: A rule of the surface, or a plugin's invariant, refuses it.
            HarnessError: Called from inside an observer of this session (`REENTRANT`).
        """
        if self._busy:
            self._refuse_reentrance()
        if self._packer is not None:
            self.close_pack()
        if replace is None and not sources:  # almost every event
            if type(data) is ToolResultEvent and data.call_id not in self._open_calls:
                self._refuse_result(data)
            snapshot, encoded = prepare_data(data)
            return self._push(snapshot, encoded, None, (), self._clock())
        mark = Replace(*replace) if replace is not None else None
        sources = tuple(sources)
        self._check_references(data, mark, sources)
        snapshot, encoded = prepare_data(data)
        return self._push(snapshot, encoded, mark, sources, self._clock())

    def validate(self, data: Any) -> None:
        """Raise what `append` would raise for the data alone; changes nothing."""
        prepare_data(data)

    def defer(self, work: Callable[[], None]) -> None:
        """Run `work` now, or inside a round of notification directly after it, in call order (S-2)."""
        if self._busy:
            self._deferred.append(work)
        else:
            work()

    def _refuse_reentrance(self) -> None:
        raise HarnessError(
            f"session.append was called from inside {self._busy} of session {self.id!r}; "
            "append after it, or use agent.send, steer, inject or cancel",
            "REENTRANT",
        )

    def _check_references(self, data: Any, mark: Replace | None, sources: Sequence[int]) -> None:
        kind = event_type_of(type(data))
        if kind is None:
            raise NotSerializable(
                f"{type(data).__name__} is not an event class; register it with @session_event('area/what')"
            )
        bad = [seq for seq in sources if type(seq) is not int or not 0 <= seq < len(self._events)]
        if bad:
            raise InvariantViolation(f"sources {bad} are not seqs of earlier events")
        if mark is not None:
            if not kind.surface:
                raise InvariantViolation(f"{kind.name} is not a message, so it cannot replace any")
            self._surface.check(data, mark, sources, lambda seq: self._events[seq].data)
        elif type(data) is ToolResultEvent and data.call_id not in self._open_calls:
            self._refuse_result(data)

    def _refuse_result(self, data: ToolResultEvent) -> None:
        what = "was answered already" if data.call_id in self._call_ids else "was never made"
        raise InvariantViolation(f"tool/result: call {data.call_id!r} {what}")

    def _push(self, data: Any, encoded: bytes, mark: Replace | None, sources: tuple[int, ...], now: int) -> SessionEvent:
        seq = len(self._events)
        moment = now if now > self._last_time else self._last_time
        record = encode_record(type(data), seq, moment, encoded, mark, sources)
        event = SessionEvent(seq, moment, data, mark, sources, record)
        sink = self._sink
        if sink is None:
            self._take(event)
            release_bytes(event)
            return event
        self._busy = "a check"
        try:
            sink.check(self, event)
        finally:
            self._busy = ""
        self._take(event)
        sink.record(self, event, record)
        self._busy = "an observer"
        try:
            sink.notify(self, event)
        finally:
            self._busy = ""
        if self._deferred:
            self._run_deferred()
        return event

    def _run_deferred(self) -> None:
        while self._deferred and not self._busy:
            work = self._deferred.popleft()
            try:
                work()
            except Exception:  # its caller has gone; the appender is not to blame
                _log.exception("session %s: an event that an observer asked for was refused", self.id)

    # -- folding -----------------------------------------------------------------------------------------

    def _load(self, event: SessionEvent) -> None:
        if event.seq != len(self._events):
            raise SequenceError(f"session {self.id!r}: event {event.seq} stands where {len(self._events)} belongs")
        if event.surface is not None:
            self._surface.check(event.data, event.surface, event.sources, lambda seq: self._events[seq].data)
        self._take(event)

    def _take(self, event: SessionEvent) -> None:
        self._events.append(event)
        self._last_time = event.time
        data = event.data
        kind = type(data)
        if kind is TurnStartEvent:
            self._open_turn = self._last_turn = data.turn
        elif kind is TurnEndEvent:
            self._open_turn = self._open_step = None
        elif kind is StepStartEvent:
            self._open_step = data.step
        elif kind is StepEndEvent:
            self._open_step = None
        else:
            found = event_type_of(kind)
            if found is not None and found.surface:
                self._take_message(event)

    def _take_message(self, event: SessionEvent) -> None:
        data = event.data
        if type(data) is AssistantMessageEvent:
            for block in data.content:
                if type(block) is ToolCallBlock:
                    self._open_calls[block.id] = block
                    self._call_ids.add(block.id)
        elif type(data) is ToolResultEvent:
            self._open_calls.pop(data.call_id, None)
        if event.surface is None:
            self._surface.append(event.seq)
            if self._projection is not None:
                self._projection.add(data)
        else:
            self._surface.replace(event.seq, event.surface)
            self._projection = None

    # -- chunks ------------------------------------------------------------------------------------------

    def append_chunk(self, turn: int, step: int, attempt: int, chunk: StreamChunk) -> None:
        """Log a raw chunk; consecutive chunks share an event (S-8)."""
        if self._busy:
            self._refuse_reentrance()
        packer = self._packer
        now = self._clock()
        if packer is None or packer.key != (turn, step, attempt):
            self.close_pack()
            packer = self._packer = ChunkPacker(turn, step, attempt)
        elif packer.is_old(now):
            self._write_pack(packer)
        if packer.add(chunk, now):
            self._write_pack(packer)
        elif self._timer is None:
            self._start_timer(MAX_AGE_MS)

    def close_pack(self) -> None:
        """Write the chunks that wait for more."""
        packer, self._packer = self._packer, None
        if packer is not None:
            self._write_pack(packer)

    def _write_pack(self, packer: ChunkPacker) -> None:
        started = packer.started
        data = packer.take()
        if data is not None:
            snapshot, encoded = prepare_pack(data)
            self._push(snapshot, encoded, None, (), started)

    def _start_timer(self, milliseconds: int) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._timer = loop.call_later(milliseconds / 1000, self._pack_is_due)

    def _pack_is_due(self) -> None:
        self._timer = None
        packer = self._packer
        if packer is None or not len(packer):
            return
        left = MAX_AGE_MS - (self._clock() - packer.started)
        if left > 0 or self._busy:
            self._start_timer(max(left, 1))
        else:
            self._write_pack(packer)

    # -- life --------------------------------------------------------------------------------------------

    def attach(self, sink: SessionSink) -> None:
        """Tell `sink` of events from now on."""
        self._sink = sink

    def detach(self) -> None:
        """Tell nobody any more; the session stays readable."""
        self._sink = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
