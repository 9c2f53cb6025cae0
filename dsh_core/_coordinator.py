"""
Write-behind: carries the events of live sessions to a backend (P-1).

`record` only notes. What a crash must not lose (`inbox/*`, `tool/call`, `tool/result`, `approval/*`) goes out
in the next iteration of the loop, anything else within 50 ms, and barriers wait for the write. One background
task writes for all sessions; an idle session costs an empty list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Final

from dsh_core._markers import hookimpl
from dsh_core.errors import SessionExists
from dsh_core.session.event import release_all_bytes, release_bytes
from dsh_core.session.events import (
    ApprovalAskedEvent,
    ApprovalDecidedEvent,
    InboxDroppedEvent,
    InboxQueuedEvent,
    ToolCallEvent,
    ToolResultEvent,
)

if TYPE_CHECKING:
    from dsh_core.persistence import SessionPersistence
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["PersistenceCoordinator"]

WRITE_DELAY: Final = 0.05
"""Seconds after which an event is written at the latest."""

RETRY_DELAY: Final = 1.0
"""Seconds between attempts of the background writer while the store fails."""

_URGENT: Final[frozenset[type]] = frozenset(
    {InboxQueuedEvent, InboxDroppedEvent, ToolCallEvent, ToolResultEvent, ApprovalAskedEvent, ApprovalDecidedEvent}
)


class _Live:
    """One live session: what is still to be written, and how far the backend is."""

    __slots__ = ("attached", "buffer", "failed", "lock", "session", "unsynced", "written")

    def __init__(self, session: Session, written: int) -> None:
        self.session = session
        self.written = written
        self.buffer: list[SessionEvent] = [*session.events[written:]]
        self.lock = asyncio.Lock()
        self.attached = False
        self.failed = False
        self.unsynced = False


class PersistenceCoordinator:
    """
    Writes the events of attached sessions.

    Args:
        backend: The store; its `durability` says when it is synced.
        report: Called with session id and error when a background write fails, once until a write succeeds.
            Failures at barriers are raised to whoever waits there.
    """

    def __init__(self, backend: SessionPersistence, *, report: Callable[[str, BaseException], object]) -> None:
        self.backend = backend
        self._report = report
        self._live: dict[str, _Live] = {}
        self._dirty: dict[str, _Live] = {}
        self._writer: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._roused = False
        self._timer: asyncio.TimerHandle | None = None
        self._delay = 0.0

    async def attach(self, session: Session, *, stored: int) -> None:
        """
        Write this session from now on, beginning with the events the backend does not have.

        Args:
            session: The session.
            stored: How many of its events the backend has, after `load`; 0 for a new session, which is
                created here.

        Raises:
            SessionExists: A new session's id is stored already, or attached here.
            SessionLocked: Somebody else owns it.
        """
        if session.id in self._live:
            raise SessionExists(f"session {session.id!r} is attached already; dispose of its agent first")
        live = self._live[session.id] = _Live(session, stored)
        try:
            if not stored:
                await self.backend.create(session.header)
        except BaseException:
            del self._live[session.id]
            raise
        live.attached = True
        if live.buffer:
            self._mark(live, urgent=True)

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        """Note an appended event; never raises. The bytes stay with the event until they are written (P-2)."""
        live = self._live.get(session.id)
        if live is None:
            release_bytes(event)
            return
        live.buffer.append(event)
        if live.attached:
            known = session.id in self._dirty
            if type(event.data) in _URGENT:
                if not (known and self._roused):  # else the writer is on its way
                    self._mark(live, urgent=True)
            elif not known:
                self._mark(live, urgent=False)

    @hookimpl
    async def session_flush(self, session: Session, barrier: str) -> None:
        """The hook; see `flush`."""
        await self.flush(session, barrier)

    async def flush(self, session: Session, barrier: str) -> None:
        """
        Hand on what was logged so far, and make it durable where `durability` asks for it.

        Raises:
            StorageError: The store failed; everything unwritten is kept for the next attempt.
        """
        flushing = self.begin_flush(session, barrier)
        if flushing is not None:
            await flushing

    def begin_flush(self, session: Session, barrier: str) -> Awaitable[None] | None:
        """`flush` to be awaited, or None where nothing is to be done."""
        live = self._live.get(session.id)
        if live is None:
            return None
        if live.buffer or live.lock.locked() or (live.unsynced and self._syncs_at(barrier)):
            return self._flush(live, barrier)
        return None

    async def _flush(self, live: _Live, barrier: str) -> None:
        if live.buffer or live.lock.locked():
            await self._write(live)
        if live.unsynced and self._syncs_at(barrier):
            live.unsynced = False
            try:
                await self.backend.sync(live.session.id)
            except BaseException:
                live.unsynced = True
                raise

    async def written(self, session_id: str, seq: int) -> None:
        """
        Return when the event is in the operating system's hands.

        Raises:
            StorageError: The store failed.
        """
        live = self._live.get(session_id)
        if live is not None and live.written <= seq:
            await self._write(live)

    async def release(self, session_id: str) -> None:
        """
        Write what is left and give the session back; nothing to do if it is not attached.

        Raises:
            StorageError: The last write failed; the session is given back nevertheless.
        """
        live = self._live.get(session_id)
        if live is None:
            return
        try:
            await self._write(live)
        finally:
            self._live.pop(session_id, None)
            self._dirty.pop(session_id, None)
            await self.backend.release(session_id)

    async def aclose(self) -> None:
        """
        Release every session and stop writing; the backend stays open.

        Raises:
            ExceptionGroup: Last writes failed.
        """
        errors: list[Exception] = []
        for session_id in [*self._live]:
            try:
                await self.release(session_id)
            except Exception as error:  # noqa: BLE001 - the other sessions must still be written
                errors.append(error)
        await self._stop()
        if errors:
            raise ExceptionGroup("sessions could not be written at the end", errors)

    # -- writing -----------------------------------------------------------------------------------------

    def _syncs_at(self, barrier: str) -> bool:
        durability = self.backend.durability
        return durability == "step" or (durability == "turn" and barrier in ("turn", "dispose"))

    async def _write(self, live: _Live) -> None:
        """Write the whole buffer, behind the write under way; what fails is put back in front."""
        await live.lock.acquire()  # `async with` would be two coroutines more, twice a step
        try:
            if live.buffer:
                await self._write_batch(live)
        finally:
            live.lock.release()

    async def _write_batch(self, live: _Live) -> None:
        batch, live.buffer = live.buffer, []
        self._dirty.pop(live.session.id, None)
        try:
            await self.backend.append(live.session.id, batch)
        except BaseException as error:
            live.buffer = batch + live.buffer
            live.failed = live.failed or isinstance(error, Exception)
            self._dirty[live.session.id] = live
            self._arm(RETRY_DELAY)
            raise
        live.written = batch[-1].seq + 1
        live.unsynced = True
        live.failed = False
        release_all_bytes(batch)

    def _mark(self, live: _Live, *, urgent: bool) -> None:
        self._dirty[live.session.id] = live
        if urgent:
            self._rouse()
        else:
            self._arm(WRITE_DELAY)

    def _arm(self, delay: float) -> None:
        # One timer for all sessions, and only one: who is already waiting is early enough for the newcomer.
        if self._timer is not None:
            if self._delay <= delay:
                return
            self._timer.cancel()
        self._delay = delay
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire, context=Context())

    def _expire(self) -> None:
        self._timer = None
        if self._dirty:
            self._rouse()

    def _rouse(self) -> None:
        self._roused = True
        if self._writer is None:
            # A context of its own: what a plugin logs must not make the plugin the owner of the writer.
            self._writer = asyncio.get_running_loop().create_task(
                self._write_behind(), name="dsh-persistence-writer", context=Context()
            )
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _write_behind(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._roused = False
            for live in [*self._dirty.values()]:
                await self._write_in_background(live)
            if not self._roused:
                self._wake = loop.create_future()
                await self._wake
                self._wake = None

    async def _write_in_background(self, live: _Live) -> None:
        known = live.failed
        try:
            await self._write(live)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the writer of all the others goes on
            if not known:
                self._report(live.session.id, error)

    async def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        writer, self._writer, self._wake = self._writer, None, None
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
