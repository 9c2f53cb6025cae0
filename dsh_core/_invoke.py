"""
One call of one implementation: as its owner, plain or awaited, with its time limit, watched.

A coroutine is run up to its first suspension at once; only if it suspends does it get the bookkeeping of a
call in flight and its timer. Most implementations never suspend, and they cost little more than a function.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._ownership import InFlight, Owner, acting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence

__all__ = ["BLOCKED_SECONDS", "Pending", "Step", "begin", "in_thread", "is_awaitable"]

_log: Final = logging.getLogger("dsh")

BLOCKED_SECONDS: Final = 1.0
"""A plain implementation that keeps the loop longer than this is named in a warning (H-4)."""


@attrs.frozen(eq=False)
class Step:
    """
    One implementation in a plan.

    Args:
        fn: The function, bound, as one of all arguments of the hook.
        bare: The function, bound, as it is.
        pick: Takes the arguments of `bare` out of the hook's; None where it takes them all.
        hook: Name of the hook.
        plugin: Name of the plugin.
        owner: The plugin as owner of what is registered meanwhile.
        is_async: A coroutine function.
        limit: Seconds it may take once it has suspended, or None.
        plain: A plain function of the core itself: it registers nothing and keeps nobody waiting, so that it is
            called without the bookkeeping.
    """

    fn: Callable[..., Any]
    bare: Callable[..., Any]
    pick: Callable[[Any], Sequence[Any]] | None
    hook: str
    plugin: str
    owner: Owner | None
    is_async: bool = False
    limit: float | None = None
    plain: bool = False


def is_awaitable(value: object) -> bool:
    """Whether `value` has to be awaited; quick for the values hooks return."""
    return value is not None and hasattr(type(value), "__await__")


def begin(step: Step, args: Sequence[Any]) -> Any:
    """
    Call an implementation and run it up to its first suspension.

    Returns:
        Its result, or a `Pending` to await.
    """
    pick = step.pick
    if pick is not None:
        args = pick(args)
    if step.plain:
        result = step.bare(*args)
        return _advance(step, _as_coroutine(result)) if result is not None and is_awaitable(result) else result
    before = acting.get()
    acting.set(step.owner)
    started = perf_counter()
    try:
        result = step.bare(*args)
        if step.is_async:  # `_advance`, written out
            try:
                waiting_for = result.send(None)
            except StopIteration as stop:
                return stop.value
            return Pending(step, result, waiting_for)
        return _advance(step, _as_coroutine(result)) if result is not None and is_awaitable(result) else result
    finally:
        acting.set(before)
        if perf_counter() - started > BLOCKED_SECONDS:
            watch(step, started)


def watch(step: Step, started: float) -> float:
    """Name a plugin that kept the loop too long; returns the time, so that the next step can start from it."""
    now = perf_counter()
    if now - started > BLOCKED_SECONDS:
        _log.warning(
            "plugin %s blocked the event loop for %.1f s in hook %s; make it a coroutine that awaits, "
            "or set hooks.timeout to run plain functions in threads",
            step.plugin, now - started, step.hook,
        )  # fmt: skip
    return now


def _advance(step: Step, coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        waiting_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return Pending(step, coroutine, waiting_for)


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class Pending:
    """The rest of an implementation that has suspended; await it once."""

    __slots__ = ("_coroutine", "_step", "_waiting_for", "flight")

    def __init__(self, step: Step, coroutine: Coroutine[Any, Any, Any], waiting_for: Any) -> None:
        self._step = step
        self.flight = InFlight(step.owner, f"hook {step.hook}", step.limit)
        self._coroutine = coroutine
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, None, Any]:
        step = self._step
        before = acting.get()
        acting.set(step.owner)
        try:
            with self.flight:
                return (yield from self._rest())
        finally:
            acting.set(before)

    def _rest(self) -> Generator[Any, None, Any]:
        """What `yield from` would do, had it not begun already."""
        coroutine = self._coroutine
        waiting_for = self._waiting_for
        while True:
            try:
                yield waiting_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed on
                try:
                    waiting_for = coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value
                continue
            return (yield from coroutine.__await__())


def in_thread(function: Callable[..., Any], name: str) -> Callable[..., Awaitable[Any]]:
    """
    A coroutine function that runs a plain function in a thread of its own, in the caller's context.

    A thread that does not come back is abandoned: it is a daemon, and its late result is dropped. The
    loop's executor would be joined at exit and would hang with it.
    """

    async def call(*args: Any) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        outcome: list[tuple[bool, Any]] = []
        context = contextvars.copy_context()

        def work() -> None:
            try:
                outcome.append((True, context.run(function, *args)))
            except BaseException as error:  # noqa: BLE001 - handed on
                outcome.append((False, error))
            try:
                loop.call_soon_threadsafe(_wake, done, outcome[0][1])
            except RuntimeError:  # the loop has been closed meanwhile
                _drop(outcome[0][1])

        threading.Thread(target=work, name=name, daemon=True).start()
        await done
        returned, value = outcome[0]
        if not returned:
            raise value
        return await value if is_awaitable(value) else value

    return call


def _wake(done: asyncio.Future[None], value: object) -> None:
    if done.done():
        _drop(value)
    else:
        done.set_result(None)


def _drop(value: object) -> None:
    """Let go of a late result: a coroutine among them was never begun and has to be closed."""
    if inspect.iscoroutine(value):
        value.close()
