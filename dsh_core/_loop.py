"""
The driver: an agent's verbs, and the task that turns accepted messages into turns.

`call the model, run the tools, repeat` is in `_turnrun`; here is when a turn starts, what stops it, and what
is told to whom.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from dsh_core._exclusive import ExclusiveSlot
from dsh_core._inbox import Entry, Inbox, Lane
from dsh_core._ownership import Registration, acting_for, current_owner
from dsh_core._receipts import LoopReceipt
from dsh_core._turnrun import TurnRun, running_turn
from dsh_core.agent.registry import starting_agent
from dsh_core.content import (
    Content,
    Context,
    ContextLike,
    Message,
    Source,
    Tagged,
    ToolSchema,
    as_blocks,
    as_contexts,
)
from dsh_core.errors import AgentDisposed, HarnessError, MessageDropped, StorageError
from dsh_core.session.events import (
    ContextMessageEvent,
    InboxDroppedEvent,
    InboxQueuedEvent,
    RequestHeaderEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from dsh_core.session.repair import interrupted_turn_closers, pending_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from dsh_core.agent.types import Agent, AgentOptions, TurnResult
    from dsh_core.harness import Harness
    from dsh_core.session.log import Session
    from dsh_core.tools.definition import PendingCall

__all__ = ["LoopAgent"]

_log: Final = logging.getLogger("dsh")
_progress: Final = logging.getLogger("dsh.progress")


class LoopAgent:
    """
    The agent of the built-in loop; see `dsh_core.agent.Agent`.

    Args:
        harness: The harness.
        session: Its session.
        options: How it runs.
        parent: The agent it descends from, or None.
    """

    grace: float = 5.0
    """Seconds a cancelled turn has before it is given up (A-7)."""

    def __init__(self, harness: Harness, session: Session, options: AgentOptions, parent: Agent | None) -> None:
        self.harness = harness
        self.session = session
        self.id = session.id
        self.options = options
        self.parent = parent
        self.status = "idle"
        self.watchers: list[Callable[[object], None]] = []
        self.inbox = Inbox(_pending_entries(session))
        self.run: TurnRun | None = None
        self._slot = ExclusiveSlot(self)
        self._woken = False
        self._stopping = False
        self._driver: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._exited = asyncio.Event()
        self._header: RequestHeaderEvent | None = _last_header(session)
        self._header_is_ours = False

    @property
    def model(self) -> str | None:
        """The model of its options, else of the configuration."""
        return self.options.model or self.harness.config.model

    @property
    def pending(self) -> Sequence[Message]:
        """Messages that were accepted and have not run."""
        return tuple(entry.message for entry in self.inbox.all())

    def __repr__(self) -> str:
        return f"<agent {self.id!r} {self.status}>"

    # -- verbs -------------------------------------------------------------------------------------------

    def send(self, content: Content, *, source: Source | None = None) -> LoopReceipt:
        """Queue a prompt and wake the agent (A-1)."""
        self._refuse_disposed()
        return self.accept(content, source or _default_source(), "queued")

    def steer(self, content: Content, *, source: Source | None = None) -> LoopReceipt:
        """Add to the running turn between two steps; the same as `send` when idle."""
        self._refuse_disposed()
        running = self.run is not None and not self.run.closed
        return self.accept(content, source or _default_source(), "steering" if running else "queued")

    def accept(self, content: Content, source: Source, lane: Lane) -> LoopReceipt:
        """Log a message as accepted, put it into its lane and wake the driver (A-2)."""
        blocks = as_blocks(content)
        if not blocks:
            raise ValueError("an empty message cannot be sent; give it some text or blocks")
        message = Message("user", blocks, source, uuid.uuid4().hex)
        entry = Entry(message)
        queued = InboxQueuedEvent(entry.id, lane, blocks, source)
        self.session.validate(queued)
        # Chunks that wait are logged before: what their observers do must not find a message the log does not have.
        self.session.write_pack()
        logged = _Logged()
        entry.receipt = LoopReceipt(entry.id, lambda: self._stored(logged), self._refuse_waiting_inside)
        self.inbox.add(entry, lane)
        self.session.defer(lambda: self._log_accepted(entry, logged, queued))
        self.harness.hooks.agent_queued(agent=self, message=message, lane=lane)
        self._wake_up()
        return entry.receipt

    def _log_accepted(self, entry: Entry, logged: _Logged, queued: InboxQueuedEvent) -> None:
        try:
            logged.append(self.session, queued)
        except Exception as error:  # refused by a plugin's check: it was never accepted
            self.inbox.take(entry)
            if entry.receipt is not None:
                entry.receipt.settle(error)
            raise

    def inject(self, content: ContextLike | Content, *, source: Source | None = None, pinned: bool = False) -> None:
        """Add context without running the model: into the open turn, else as a turn of its own (A-1)."""
        self._refuse_disposed()
        contexts = _as_injected(content, source or _default_source())
        events = [ContextMessageEvent(one.content, one.source, pinned) for one in contexts]
        for event in events:
            self.session.validate(event)
        self.session.defer(lambda: self._inject(events))

    def _inject(self, events: Sequence[ContextMessageEvent]) -> None:
        if self.session.turn_open:
            for event in events:
                self.session.append(event)
            return
        turn = self.session.last_turn + 1
        self.session.append(TurnStartEvent(turn, Tagged("injection")))
        try:
            for event in events:
                self.session.append(event)
        finally:  # also when a plugin refuses one of them
            self.session.append(TurnEndEvent(turn, Tagged("completed")))
        self.harness.spawn_internal(self.flush_turn(turn), name=f"dsh-flush-{self.id}")

    def cancel(self, reason: str = "cancelled") -> list[Message]:
        """Stop the running turn and empty the inbox; what was dropped is returned (A-3)."""
        for child in self.harness.agents.descendants(self):
            child.agent.cancel(reason)
        dropped = self._drop(self.inbox.clear(), reason)
        self._woken = False
        if self.run is not None:
            self._stop_run(self.run, Tagged("aborted", reason=reason))
        self._slot.cancel(Tagged("aborted", reason=reason))
        return dropped

    def cancel_message(self, message_id: str, reason: str) -> None:
        """Stop what one message caused: its turn, or only the message while it waits (A-7)."""
        entry, run = self.inbox.find(message_id), self.run
        if entry is not None:
            self.inbox.take(entry)
            self._drop([entry], reason)
        if run is not None and (
            (entry is not None and entry is run.admitting) or any(one.id == message_id for one in run.entries)
        ):
            self._stop_run(run, Tagged("aborted", reason=reason))

    def _drop(self, entries: list[Entry], reason: str) -> list[Message]:
        if entries:
            dropped = InboxDroppedEvent([entry.id for entry in entries], reason)
            self.session.defer(lambda: _append(self.session, dropped))
            for entry in entries:
                if entry.receipt is not None:
                    entry.receipt.settle(MessageDropped(f"the message was dropped before it ran: {reason}"))
        return [entry.message for entry in entries]

    def _stop_run(self, run: TurnRun, cause: Tagged) -> None:
        first = not run.stopped
        run.stop(cause)
        if first and run.stopped:
            asyncio.get_running_loop().call_later(self.grace, self._abandon, run)

    async def when_idle(self) -> None:
        """Return when no turn runs and none is about to start (A-4)."""
        self._refuse_waiting_inside()
        if not self._stopping:
            await self._idle.wait()
        if self._stopping:
            await self._exited.wait()

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """The slot for maintenance of an idle agent (A-9)."""
        self._refuse_disposed()
        return self._slot.hold(name)

    def watch(self, callback: Callable[[object], None]) -> Registration:
        """Have `callback` called with each chunk and each event of this agent as they come."""
        self._set_watchers([*self.watchers, callback])

        def undo() -> None:
            self._set_watchers([one for one in self.watchers if one is not callback])

        return Registration(undo)

    def _set_watchers(self, watchers: list[Callable[[object], None]]) -> None:
        self.watchers = watchers
        if watchers:
            self.harness.watchers[self.id] = watchers
        else:
            self.harness.watchers.pop(self.id, None)

    # -- waiting -----------------------------------------------------------------------------------------

    def inside(self) -> bool:
        """Whether the caller runs in a hook or tool of this agent's running turn, or while it is made."""
        if self._driver is None and starting_agent.get() is self:
            return True
        run = running_turn.get()
        while run is not None:
            if run.agent is self and run is self.run:
                return True
            run = run.outer
        return False

    def _refuse_waiting_inside(self) -> None:
        if self.inside():
            raise HarnessError(
                f"waiting for agent {self.id!r} from inside its own turn would never end; "
                "keep the receipt and await it after the turn, or use harness.spawn",
                "WOULD_DEADLOCK",
            )

    def _refuse_disposed(self) -> None:
        if self._stopping:
            raise AgentDisposed(f"agent {self.id!r} is disposed; resume session {self.id!r} to go on")

    async def _stored(self, logged: _Logged) -> None:
        await logged.wait()
        if self.harness.writer is not None:
            await self.harness.writer.written(self.id, logged.seq)

    # -- the driver --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the driver."""
        if self._stopping:
            return
        with acting_for(None):  # whoever creates an agent does not own its loop
            self._driver = asyncio.get_running_loop().create_task(self._drive(), name=f"dsh-agent-{self.id}")
        self._driver.add_done_callback(self._exit)

    def request_stop(self) -> None:
        """Stop the running turn with the cause `disposed` and take no more messages."""
        if self._stopping:
            return
        self._stopping = True
        if self.run is not None:
            self._stop_run(self.run, Tagged("disposed"))
            asyncio.get_running_loop().call_later(self.grace, self._end_aftermath, self.run)
        self._slot.cancel(Tagged("disposed"))
        self._wake.set()
        if self._driver is None:
            self._exit(None)

    async def stopped(self) -> None:
        """Return when the driver has exited and the last events are flushed."""
        await self._exited.wait()
        await self._slot.free()
        self.close_left_open()
        await self._flush("dispose", self.session.last_turn)

    def _wake_up(self) -> None:
        self._woken = True
        self._idle.clear()
        self._wake.set()

    @property
    def wake_owed(self) -> bool:
        """Whether a turn is about to start."""
        return self._woken

    def maintenance_began(self) -> None:
        """Hold turns back while the exclusive slot is held."""
        self._idle.clear()
        self._set_status("running")

    def maintenance_ended(self) -> None:
        """Go on with what was accepted while the exclusive slot was held."""
        if self._woken:
            self._wake.set()
        else:
            self._set_idle()

    async def _drive(self) -> None:
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            while self._may_run():
                self._woken = False
                if self.inbox.queued and await self._run_turn():
                    self._woken = self._woken or self.inbox.queued > 0
            if not self._slot.held:
                self._set_idle()

    def _may_run(self) -> bool:
        return self._woken and not self._stopping and not self._slot.held

    def _set_idle(self) -> None:
        if self._woken or self._stopping:
            return
        self._idle.set()
        self._set_status("idle")

    def _exit(self, driver: asyncio.Task[None] | None) -> None:
        if driver is not None and not driver.cancelled() and driver.exception() is not None:
            _log.error("the driver of agent %s failed", self.id, exc_info=driver.exception())
        self._stopping = True
        for entry in self.inbox.all():
            if entry.receipt is not None:
                entry.receipt.settle(
                    AgentDisposed(
                        f"agent {self.id!r} was disposed before the message ran; it is still pending in the log",
                        pending=True,
                    )
                )
        self._set_status("disposed")
        self._idle.set()
        self._exited.set()

    def _set_status(self, status: str) -> None:
        if self.status not in (status, "disposed"):
            self.status = status
            self.harness.hooks.agent_status(agent=self, status=status)

    # -- one turn ----------------------------------------------------------------------------------------

    async def _run_turn(self) -> bool:
        """Run one turn; False when it could not be opened, so that its messages wait for the next wake."""
        self.close_left_open()
        run = TurnRun(self)
        self.run = run
        loop = asyncio.get_running_loop()
        run.settled = loop.create_future()
        self._set_status("running")
        if run.stopped or not self.inbox.queued:
            self.run = None
            return True
        run.task = loop.create_task(self._whole_turn(run), name=f"dsh-turn-{self.id}-{run.turn}")
        run.task.add_done_callback(lambda _: run.settle())
        try:
            await run.settled
            if run.abandoned and run.result is not None:
                await self._aftermath(run, run.result)
        except asyncio.CancelledError:
            await self._host_cancelled(run)
            raise
        finally:
            self._after_turn(run)
        return run.result is not None

    def close_left_open(self) -> None:
        """Close a turn whose last events a plugin refused; it is what a crash at that point would have left."""
        if not self.session.turn_open:
            return
        try:
            for data in interrupted_turn_closers(self.session.events):
                self.session.append(data)
        except Exception as error:  # noqa: BLE001 - refused again: the next turn, or a resume, has to close it
            self.report_error(error, self.session.last_turn, 0, "turn/end")

    async def _whole_turn(self, run: TurnRun) -> None:
        await run.execute()
        if run.result is not None and not run.abandoned:
            await self._aftermath(run, run.result)

    async def _aftermath(self, run: TurnRun, result: TurnResult) -> None:
        await self._announce_end(run, result)
        await self._flush("turn", run.turn)

    def _after_turn(self, run: TurnRun) -> None:
        run.close()
        self.run = None
        self.inbox.queue_steering()
        outcome = run.result or StorageError(
            f"turn {run.turn} of session {self.id!r} could not be closed: a plugin refused its last events"
        )
        for entry in run.entries:
            if entry.receipt is not None:
                entry.receipt.settle(outcome)

    async def _host_cancelled(self, run: TurnRun) -> None:
        """The host cancelled the driver: close the turn as aborted, within the grace, and go."""
        if run.task is None or run.task.done():
            return
        run.stop(Tagged("aborted", reason="host"))
        await asyncio.wait({run.task}, timeout=self.grace)
        if not run.task.done():
            self._abandon(run)

    def _abandon(self, run: TurnRun) -> None:
        """Give up a turn that ignored its cancellation for the whole grace (A-7)."""
        if run.closed or run.task is None or run.task.done():
            return
        _log.warning(
            "session %s: turn %d ignored its cancellation for %g s and was given up; still running: %s",
            self.id,
            run.turn,
            self.grace,
            ", ".join(call_id for call_id, state in run.calls.items() if state == "running") or "a plugin or adapter",
        )
        run.abandoned = True
        run.close()
        run.settle()

    def _end_aftermath(self, run: TurnRun) -> None:
        """What follows a closed turn (hooks, flush) must not hold up a dispose for ever."""
        if run.closed and run.task is not None and not run.task.done():
            _log.warning("session %s: what follows turn %d was cut off by dispose", self.id, run.turn)
            run.task.cancel()
            run.settle()

    async def _announce_end(self, run: TurnRun, result: TurnResult) -> None:
        try:
            await self.harness.hooks.agent_turn_end(agent=self, result=result)
        except Exception as error:  # noqa: BLE001 - contained: the turn is closed, the agent goes on
            self.report_error(error, run.turn, run.step, "hook:agent_turn_end")

    async def flush_turn(self, turn: int) -> None:
        """Make a turn that the driver did not run durable."""
        await self._flush("turn", turn)

    async def _flush(self, barrier: str, turn: int) -> None:
        try:
            await self.harness.hooks.session_flush(session=self.session, barrier=barrier)
        except Exception as error:  # noqa: BLE001 - contained: the backend keeps its buffer, the agent goes on (L-16)
            self.report_error(error, turn, 0, "hook:session_flush")

    # -- told to others ----------------------------------------------------------------------------------

    def report_error(self, error: BaseException, turn: int, step: int, origin: str) -> None:
        """Tell observers of a failure."""
        self.harness.report_error(self, turn, step, error, origin)

    def report_progress(self, call: PendingCall, text: str) -> None:
        """Tell a person who watches how far a call has come."""
        _progress.info("%s: %s", call.name, text, extra={"session_id": self.id, "call_id": call.call_id})

    def header_reason(
        self,
        provider: str,
        model: str,
        params: Mapping[str, Any],
        system: str | None,
        tools: tuple[ToolSchema, ...],
    ) -> str | None:
        """Why a request needs a new header in the log, or None (L-9)."""
        last, ours = self._header, self._header_is_ours
        if last is None:
            return "initial"
        same = (
            (last.tools is tools or last.tools == tools)
            and last.system == system
            and (last.provider, last.model) == (provider, model)
            and last.params == params
        )
        if same and ours:
            return None
        return "change" if ours else "resume"

    def header_logged(self, header: RequestHeaderEvent) -> None:
        """Remember the header that is in force."""
        self._header, self._header_is_ours = header, True


class _Logged:
    """The moment an accepted message reaches the log, which inside an observer is a little later (S-2)."""

    __slots__ = ("_event", "error", "seq")

    def __init__(self) -> None:
        self.seq = -1
        self.error: Exception | None = None
        self._event: asyncio.Event | None = None

    def append(self, session: Session, data: object) -> None:
        try:
            self.seq = session.append(data).seq
        except Exception as error:
            self.error = error
            raise
        finally:
            if self._event is not None:
                self._event.set()

    async def wait(self) -> None:
        if self.seq < 0 and self.error is None:
            self._event = self._event or asyncio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error


def _append(session: Session, data: object) -> None:
    session.append(data)


def _pending_entries(session: Session) -> list[Entry]:
    pending = pending_messages(session.events, session.header.seed_length)
    return [Entry(Message("user", one.content, one.source, one.message_id)) for one in pending]


def _last_header(session: Session) -> RequestHeaderEvent | None:
    own = session.events[session.header.seed_length :] if session.header.parent else session.events
    return next((event.data for event in reversed(own) if isinstance(event.data, RequestHeaderEvent)), None)


def _default_source() -> Source:
    owner = current_owner()
    return Source.plugin(owner.name) if owner is not None else Source.user()


def _as_injected(content: ContextLike | Content, source: Source) -> tuple[Context, ...]:
    if isinstance(content, str | Context):
        return as_contexts(content, source)
    items = list(content) if not hasattr(content, "__attrs_attrs__") else [content]
    if any(isinstance(item, str | Context) for item in items):
        return as_contexts(items, source)  # type: ignore[arg-type]
    return (Context(as_blocks(items), source),)  # type: ignore[arg-type]
