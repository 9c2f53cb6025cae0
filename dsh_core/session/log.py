"""
One session: an append-only log of events, and everything that is folded from it as it grows (S-1 to S-8).

`append` is synchronous: validate, snapshot, push, notify. A refused append leaves no trace. The session
knows nothing of hooks or disks; a sink is told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from dsh_core.errors import HarnessError, InvariantViolation, SequenceError
from dsh_core.session._views import View
from dsh_core.session.codec import encode_record, prepare_data
from dsh_core.session.event import Replace, SessionEvent, make_event
from dsh_core.session.events import (
    AssistantChunkEvent,
    AssistantMessageEvent,
    RequestRetryEvent,
    StepEndEvent,
    StepStartEvent,
    TurnEndEvent,
    TurnStartEvent,
    UnknownEvent,
)
from dsh_core.session.projection import MessageView, Projection
from dsh_core.session.sink import SessionSink
from dsh_core.session.stream import ChunkStream, now_ms
from dsh_core.session.surface import MESSAGES, Surface, SurfaceFold, is_message

if TYPE_CHECKING:
    from dsh_core.content import ToolCallBlock
    from dsh_core.session.chunks import StreamChunk
    from dsh_core.session.header import SessionHeader

__all__ = ["EventLog", "Session", "SessionEvent", "SessionSink"]

_log: Final = logging.getLogger("dsh")


class EventLog(View[SessionEvent]):
    """
    The events of a session, read-only; it grows with the session.

    Args:
        events: The list.
        session_id: Whose they are.
    """

    __slots__ = ("session_id",)

    def __init__(self, events: list[SessionEvent], session_id: str) -> None:
        super().__init__(events, 0)
        self.session_id = session_id

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        found = self._items[index]
        return tuple(found) if type(found) is list else found

    def __iter__(self) -> Any:
        return iter(self._items)

    def __reversed__(self) -> Any:
        return reversed(self._items)

    def __repr__(self) -> str:
        return f"<events of session {self.session_id!r}: {len(self)}>"


class Session:
    """
    A session. Plugins read it and append event types of their own.

    Not thread-safe: it belongs to the event loop of its agent.

    Args:
        header: What is known of it before its first event.
        seed: Events it starts with; they are checked and not announced.
        sink: Who is told of events.
        clock: Epoch milliseconds; what it gives is never let run backwards.

    Raises:
        SequenceError: The seed has a gap.
        NotSerializable: A seed event made by hand does not survive JSON.
        InvariantViolation: A seed event replaces nodes that are not there, or is no message and replaces some.
    """

    def __init__(
        self,
        header: SessionHeader,
        *,
        seed: Iterable[SessionEvent] = (),
        sink: SessionSink | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.header = header
        self.id = header.id
        self._clock = clock or now_ms
        self._sink = sink
        self._events: list[SessionEvent] = []
        self._log = EventLog(self._events, header.id)
        self._surface = SurfaceFold(self._events)
        self._face = Surface(self._surface)
        self._projection = Projection(self._surface, self._events)
        self._last_time = 0
        self._last_turn = 0
        self._last_turn_seq = 0
        self._open_turn: int | None = None
        self._open_step: int | None = None
        self._stream = ChunkStream(self._clock, self._write_pack)
        self._busy = ""
        self._deferred: deque[Callable[[], object]] = deque()
        self._running_deferred = False
        for event in seed:
            self._load(event)
        self._warn_ignored()

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def events(self) -> EventLog:
        """The log, read-only; it grows with the session."""
        return self._log

    @property
    def surface(self) -> Surface:
        """The nodes that are messages now, by position."""
        return self._face

    def derive_messages(self) -> MessageView:
        """The conversation as a model reads it (S-4): an immutable view, not a copy."""
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
    def last_turn_seq(self) -> int:
        """Seq of the last `turn/start`, 0 before the first."""
        return self._last_turn_seq

    @property
    def used_call_ids(self) -> AbstractSet[str]:
        """The ids of all tool calls of the session (L-12)."""
        return self._surface.call_ids

    def unanswered_calls(self) -> list[ToolCallBlock]:
        """The calls on the surface that have no result, in order."""
        return list(self._surface.open_calls.values())

    @property
    def notifying(self) -> bool:
        """Whether observers are being told of an event just now."""
        return bool(self._busy)

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
            raise self._reentrant()
        snapshot, encoded = prepare_data(data)
        kind = type(data)
        cited: tuple[int, ...] = ()
        mark = None
        if replace is not None or sources:
            cited = tuple(sources)
            mark = self._checked_mark(data, replace, cited)
        stream = self._stream
        if stream.packer is not None:  # chunks go before any other event; what arrives meanwhile ends no stream
            stream.end() if kind in _ENDS_STREAM else stream.write()
        if kind in MESSAGES:
            self._surface.check(data, mark, cited)
        clock = self._clock
        now = time_ns() // 1_000_000 if clock is now_ms else clock()  # a call less, eleven times a step
        return self._push(snapshot, encoded, mark, cited, now)

    def validate(self, data: Any) -> None:
        """
        Raise what `append` would raise for the data alone; changes nothing.

        Raises:
            NotSerializable: The data do not survive JSON.
        """
        prepare_data(data)

    def defer(self, work: Callable[[], object]) -> None:
        """
        Run `work` now, or inside a round of notification directly after it, in call order (S-2).

        Args:
            work: What is to be done; put off, its failure is logged, because its caller has gone.
        """
        if self._busy:
            self._deferred.append(work)
        else:
            work()

    def _reentrant(self) -> HarnessError:
        return HarnessError(
            f"session.append was called from inside {self._busy} of session {self.id!r}; append when it has "
            "returned, or use agent.send, steer, inject or cancel, whose events follow by themselves",
            "REENTRANT",
        )

    def _checked_mark(self, data: Any, replace: tuple[int, int] | None, sources: tuple[int, ...]) -> Replace | None:
        length = len(self._events)
        bad = [seq for seq in sources if type(seq) is not int or not 0 <= seq < length]
        if bad:
            raise InvariantViolation(f"sources {bad} are not seqs of earlier events; the log has {length}")
        if len(set(sources)) != len(sources):
            raise InvariantViolation(f"sources {list(sources)} name an event twice")
        if replace is None:
            return None
        if not is_message(data):
            raise InvariantViolation(f"{type(data).__name__} is no message, so it cannot take the place of any")
        first, last = replace
        return Replace(first, last)

    def _push(
        self, data: Any, encoded: bytes, mark: Replace | None, sources: tuple[int, ...], now: int
    ) -> SessionEvent:
        seq = len(self._events)
        moment = now if now > self._last_time else self._last_time
        sink = self._sink
        if sink is None:
            event = make_event(seq, moment, data, mark, sources)
            self._take(event)
            return event
        write = sink.record
        record = None if write is None else encode_record(type(data), seq, moment, encoded, mark, sources)
        event = make_event(seq, moment, data, mark, sources, encoded=record)
        self._busy = "a check"
        try:
            sink.check(self, event)
            self._take(event)
            if write is not None and record is not None:
                write(self, event, record)
            self._busy = "an observer"
            sink.notify(self, event)
        finally:
            self._busy = ""
            if self._deferred:  # also when a check refuses the event: its verbs were accepted all the same
                self._run_deferred()
        return event

    def _run_deferred(self) -> None:
        if self._running_deferred:
            return  # an event of deferred work: the loop that runs the work goes on with what this round added
        self._running_deferred = True
        try:
            while self._deferred:
                work = self._deferred.popleft()
                try:
                    work()
                except Exception:  # noqa: BLE001 - its caller has gone, and the appender is not to blame
                    _log.exception("session %s: what an observer asked for was refused", self.id)
        finally:
            self._running_deferred = False

    # -- folding -----------------------------------------------------------------------------------------

    def _load(self, event: SessionEvent) -> None:
        seq = len(self._events)
        if event.seq != seq:
            raise SequenceError(f"session {self.id!r}: a seed event has seq {event.seq} where {seq} belongs")
        if event.surface is not None and not is_message(event.data) and type(event.data) is not UnknownEvent:
            raise InvariantViolation(
                f"session {self.id!r}: seed event {seq} ({event.type}) is no message to replace any"
            )
        if not event._sealed and type(event.data) is not UnknownEvent:
            snapshot, _ = prepare_data(event.data)
            event = make_event(seq, event.time, snapshot, event.surface, event.sources)
        self._take(event)

    def _warn_ignored(self) -> None:
        ignored = self._surface.ignored
        if ignored:
            _log.warning(
                "session %s: results that no call waits for are left out of the conversation (calls %s)",
                self.id,
                ", ".join(sorted(set(ignored))),
            )

    def _take(self, event: SessionEvent) -> None:
        data = event.data
        kind = type(data)
        self._events.append(event)
        self._last_time = event.time
        if kind in MESSAGES:
            self._surface.push(event)
        elif kind is StepStartEvent:
            self._open_step = data.step
        elif kind is StepEndEvent:
            self._open_step = None
        elif kind is TurnStartEvent:
            self._open_turn = self._last_turn = data.turn
            self._last_turn_seq = event.seq
        elif kind is TurnEndEvent:
            self._open_turn = self._open_step = None

    # -- chunks ------------------------------------------------------------------------------------------

    def append_chunk(self, turn: int, step: int, attempt: int, chunk: StreamChunk) -> None:
        """
        Log a raw chunk; consecutive chunks share an event (S-8).

        Args:
            turn: Number of the turn.
            step: Number of the step.
            attempt: Number of the attempt.
            chunk: The chunk.

        Raises:
            NotSerializable: The adapter produced something that is no chunk.
            HarnessError: Called from inside an observer of this session (`REENTRANT`).
        """
        if self._busy:
            raise self._reentrant()
        self._stream.add((turn, step, attempt), chunk)

    def close_pack(self) -> None:
        """Write the chunks that wait for more; the stream they belong to is over."""
        self._stream.end()

    def write_pack(self) -> None:
        """Write the chunks that have come so far; the stream goes on. Inside an observer it does nothing."""
        if not self._busy:
            self._stream.write()

    def _write_pack(self, pack: AssistantChunkEvent, started: int) -> None:
        data, encoded = prepare_data(pack)
        self._push(data, encoded, None, (), started)

    # -- life --------------------------------------------------------------------------------------------

    def attach(self, sink: SessionSink) -> None:
        """Tell `sink` of events from now on."""
        self._sink = sink

    def detach(self) -> None:
        """Tell nobody any more; the session stays readable."""
        self._sink = None
        self._stream.forget_timer()


_ENDS_STREAM: Final = frozenset({AssistantMessageEvent, RequestRetryEvent, StepEndEvent, TurnEndEvent})
