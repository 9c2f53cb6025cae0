"""
Who made a registration, and how it is undone.

A context variable names the plugin on whose behalf code runs: it is set round `register`, `start` and each
hook call, and child tasks inherit it. Whatever is registered meanwhile is written down with that owner, so
that unloading the plugin undoes it (H-7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsh_core.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["InFlight", "Owner", "Registration", "acting", "acting_for", "current_owner", "own"]

T = TypeVar("T")


class Registration:
    """
    One thing that was registered. Call it to undo the registration; a second call does nothing.

    Also a context manager that undoes on exit.
    """

    __slots__ = ("_owner", "_undo")

    def __init__(self, undo: Callable[[], object], owner: Owner | None = None) -> None:
        self._undo: Callable[[], object] | None = undo
        self._owner = owner

    def __call__(self) -> None:
        undo, self._undo = self._undo, None
        if undo is None:
            return
        if self._owner is not None:
            self._owner.forget(self)
        undo()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exc: object) -> None:
        self()


class Owner:
    """
    One loaded plugin as the owner of registrations and tasks.

    Args:
        name: The plugin's name.
        trusted: True for plugins handed in by code, False for those found through entry points (L-15).

    Attributes:
        held: Agents depend on something it provides, so it must not go while one lives.
    """

    __slots__ = ("_idle", "_registrations", "_running", "held", "name", "tasks", "trusted")

    def __init__(self, name: str, *, trusted: bool = True) -> None:
        self.name = name
        self.trusted = trusted
        self.held = False
        self._registrations: dict[int, Registration] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self._running: set[InFlight] = set()
        self._idle: asyncio.Future[None] | None = None

    def adopt(self, registration: Registration) -> None:
        """Write a registration down."""
        self._registrations[id(registration)] = registration

    def forget(self, registration: Registration) -> None:
        """Strike a registration that has been undone."""
        self._registrations.pop(id(registration), None)

    def undo_all(self) -> list[Exception]:
        """Undo every registration, newest first, and return what went wrong."""
        errors: list[Exception] = []
        for registration in list(reversed(self._registrations.values())):
            try:
                registration()
            except Exception as error:  # noqa: BLE001 - every other registration must still be undone
                errors.append(error)
        self._registrations.clear()
        return errors

    # -- calls that are running --------------------------------------------------------------------------

    def in_flight(self, what: str = "") -> InFlight:
        """
        Write down a call of this plugin's code while it runs, so that unloading can wait for it or end it.

        Args:
            what: What runs, for messages: `hook agent_request`, `tool shell`.
        """
        return InFlight(self, what)

    @property
    def running(self) -> list[InFlight]:
        """The calls that are running now."""
        return [*self._running]

    async def idle(self, seconds: float) -> bool:
        """Wait until no call is running, at most `seconds`; tells whether that was reached."""
        if not self._running:
            return True
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._idle], timeout=seconds)
        return not self._running

    def _entered(self, call: InFlight) -> None:
        self._running.add(call)

    def _left(self, call: InFlight) -> None:
        self._running.discard(call)
        if self._idle is not None and not self._running:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None

    def __repr__(self) -> str:
        return f"<Owner {self.name!r}>"


class InFlight:
    """
    A call of a plugin's code that is running in the current task, and the way to end it from outside.

    Ending works as `asyncio.timeout` does: the task is cancelled, and the cancellation is turned into the
    given error where the call ends. A call that swallows it and returns keeps its result.

    Args:
        owner: The plugin, or None.
        what: What runs, for messages.
        seconds: End it after this time, not counting pauses.
    """

    __slots__ = ("_cancelling", "_error", "_left", "_owner", "_paused", "_seconds", "_timer", "task", "what")

    def __init__(self, owner: Owner | None, what: str = "", seconds: float | None = None) -> None:
        self.what = what
        self.task: asyncio.Task[Any] | None = None
        self._owner = owner
        self._seconds = seconds
        self._left = seconds
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._cancelling = 0

    def __enter__(self) -> InFlight:
        self.task = asyncio.current_task()
        if self.task is None:
            raise RuntimeError("a call in flight has to run in a task")
        self._cancelling = self.task.cancelling()
        if self._left is not None and not self._paused:
            self._timer = asyncio.get_running_loop().call_later(self._left, self._expire)
        if self._owner is not None:
            self._owner._entered(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, traceback: object) -> None:
        if self._owner is not None:
            self._owner._left(self)
        if self._timer is not None:
            self._timer.cancel()
        self._left = None
        if self._error is None or self.task is None:
            return
        ours = self.task.uncancel() <= self._cancelling
        if ours and isinstance(raised, asyncio.CancelledError):
            raise self._error from raised

    def interrupt(self, error: BaseException) -> None:
        """End the call: `error` is raised where it was running. Only the first interruption counts."""
        if self._error is None and self.task is not None:
            self._error = error
            self.task.cancel()

    def pause(self) -> None:
        """Stop the clock: what runs now is not the plugin's."""
        self._paused = True
        if self._timer is not None and self._left is not None:
            self._left = max(self._timer.when() - asyncio.get_running_loop().time(), 0)
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """Let the clock go on."""
        self._paused = False
        if self.task is not None and self._left is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._left, self._expire)

    def _expire(self) -> None:
        self.interrupt(TimeoutError(f"no answer within {self._seconds:g} s"))


acting: Final[ContextVar[Owner | None]] = ContextVar("dsh_owner", default=None)
"""The plugin on whose behalf code runs; `acting_for` sets it."""


def current_owner() -> Owner | None:
    """The plugin on whose behalf this code runs, or None for the embedder's own code."""
    return acting.get()


@contextmanager
def acting_for(owner: Owner | None) -> Iterator[None]:
    """Name `owner` as the plugin on whose behalf the body runs."""
    token = acting.set(owner)
    try:
        yield
    finally:
        acting.reset(token)


def own(undo: Callable[[], object]) -> Registration:
    """Make a `Registration` of `undo` that belongs to the current owner."""
    owner = acting.get()
    registration = Registration(undo, owner)
    if owner is not None:
        owner.adopt(registration)
    return registration


def spawn_owned(coro: Coroutine[Any, Any, T], name: str, owner: Owner | None) -> asyncio.Task[T]:
    """Start a task that ends with its owner."""
    if owner is not None:
        coro = _Contained(coro, name)
    task = asyncio.get_running_loop().create_task(coro, name=name)
    if owner is not None:
        owner.tasks.add(task)
        task.add_done_callback(owner.tasks.discard)
    return task


class _Contained(Coroutine[Any, Any, T]):
    """A plugin's coroutine that may fail but not exit: `SystemExit` in a task would stop the whole loop."""

    def __init__(self, inner: Coroutine[Any, Any, T], name: str) -> None:
        self._inner = inner
        self._name = name

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except SystemExit as error:
            raise self._failure(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except SystemExit as raised:
            raise self._failure(raised) from raised

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    def _failure(self, error: SystemExit) -> HarnessError:
        return HarnessError(f"task {self._name!r} wanted to end the process with SystemExit({error.code!r})")
