"""
What the suites for backends are written with: rules, stores that close themselves, events, second processes.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import pytest

from dsh_core.content import Tagged
from dsh_core.persistence import SessionPersistence
from dsh_core.session import SessionEvent, SessionHeader
from dsh_core.session.events import StepEndEvent, StepStartEvent, ToolCallEvent, TurnEndEvent, TurnStartEvent

__all__ = ["BackendFactory", "Stores", "each_raises", "forked", "header", "rule", "seqs", "turn"]

BackendFactory: TypeAlias = Callable[[], SessionPersistence]

TURN = 5
"""Events of one `turn`."""


class Stores:
    """
    Makes instances that all see the same store, and closes them.

    Args:
        factory: The fixture of the backend's author.
    """

    def __init__(self, factory: BackendFactory) -> None:
        self._factory = factory
        self._made: list[SessionPersistence] = []

    def __call__(self) -> SessionPersistence:
        """Another instance."""
        made = self._factory()
        assert all(made is not other for other in self._made), "backend_factory must return a new instance each time"
        self._made.append(made)
        return made

    async def saved(self, session_id: str = "s", *, turns: int = 1) -> SessionPersistence:
        """An instance in whose store a session lies that nobody owns."""
        store = self()
        await store.create(header(session_id))
        for number in range(turns):
            await store.append(session_id, turn(number + 1, TURN * number))
        await store.release(session_id)
        return store

    async def aclose(self) -> None:
        """Close every instance."""
        for made in self._made:
            await made.aclose()


def rule(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """
    Make a plain test of a coroutine that takes `stores`.

    The test runs its own event loop, so that no plugin for asynchronous tests, in whatever mode, has a say.
    """
    first, stores, *others = inspect.signature(test).parameters.values()
    assert stores.name == "stores"

    def run(self: object, backend_factory: BackendFactory, **arguments: object) -> None:
        async def main() -> None:
            made = Stores(backend_factory)
            try:
                await test(self, made, **arguments)
            finally:
                await made.aclose()

        asyncio.run(main())

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    run.__module__ = test.__module__
    run.__dict__.update(test.__dict__)
    factory = inspect.Parameter("backend_factory", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([first, factory, *others])  # type: ignore[attr-defined]
    return run


def header(session_id: str = "s", **values: Any) -> SessionHeader:
    """A header."""
    return SessionHeader(id=session_id, created_at=1_700_000_000_000, **values)


def turn(number: int = 1, seq: int = 0, *, text: str = "") -> list[SessionEvent]:
    """A closed turn of five events, all different from those of other turns."""
    data = [
        TurnStartEvent(number, Tagged("message")),
        StepStartEvent(number, 1),
        ToolCallEvent(number, 1, f"call-{number}", "tool", text),
        StepEndEvent(number, 1),
        TurnEndEvent(number, Tagged("completed")),
    ]
    return [SessionEvent(seq + index, 1_700_000_000_000 + seq + index, item) for index, item in enumerate(data)]


async def each_raises(
    expected: type[Exception], *attempts: Coroutine[Any, Any, object], match: str | None = None
) -> None:
    """Await each; every one must raise `expected`."""
    left = [*attempts]
    try:
        while left:
            with pytest.raises(expected, match=match):
                await left.pop(0)
    finally:
        for attempt in left:
            attempt.close()  # a failure is reported as what it is, not as a coroutine that was never awaited


async def seqs(store: SessionPersistence, session_id: str = "s") -> list[int]:
    """The stored seqs, as a reader sees them."""
    return [event.seq for event in (await store.inspect(session_id)).events]


class Child:
    """A forked process; what it reports is read line by line."""

    def __init__(self, pid: int, reports: int) -> None:
        self.pid = pid
        self._reports = os.fdopen(reports)

    def report(self) -> str:
        """The next report, or the empty string if it has ended."""
        return self._reports.readline().strip()

    def kill(self) -> list[str]:
        """End it as nothing else can, and return what it had reported."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.join()

    def join(self) -> list[str]:
        """Wait for its end, and return what it had reported."""
        left = self._reports.read().split()
        if self.pid:
            os.waitpid(self.pid, 0)
            self.pid = 0
        self._reports.close()
        return left


@contextmanager
def forked(work: Callable[[Callable[[object], None]], Awaitable[None]]) -> Iterator[Child]:
    """Run `work(report)` in a forked process, which is killed at the end of the block."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a thread left by somebody else does not matter here
        pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(work, write_end)
    os.close(write_end)
    child = Child(pid, read_end)
    try:
        yield child
    finally:
        if child.pid:
            child.kill()


def _child(work: Callable[[Callable[[object], None]], Awaitable[None]], write_end: int) -> None:
    def report(what: object) -> None:
        os.write(write_end, f"{what}\n".encode())

    async def main() -> None:
        await work(report)

    code = 1
    try:
        asyncio.run(main())
        code = 0
    except BaseException as error:  # noqa: BLE001 - the test reads it; nothing may unwind into the copied pytest
        os.write(write_end, f"{type(error).__name__}:{error}\n".replace(" ", "_").encode())
    finally:
        os._exit(code)
