"""
A plain function in a daemon thread of its own, awaited from the loop.

Not `asyncio.to_thread`: its pool is shared and joined at exit, so that one function that hangs would block
others and the end of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["ABANDON_AFTER", "TimeUp", "run_in_thread"]

T = TypeVar("T")

ABANDON_AFTER: Final = 5.0
"""Seconds a thread has to come back after it was told to stop."""

log = logging.getLogger("dsh")


class TimeUp(Exception):
    """
    A body took longer than its tool allows.

    Args:
        still_running: It did not stop, either.
    """

    def __init__(self, still_running: bool = False) -> None:
        super().__init__(still_running)
        self.still_running = still_running


_Outcome = tuple[Any, BaseException | None]


async def run_in_thread(
    function: Callable[..., T], *arguments: Any, name: str, cancelled: asyncio.Event, timeout: float | None = None
) -> T:
    """
    Run a plain function in a thread, with the caller's context variables.

    A thread cannot be stopped, only told: on cancellation `cancelled` is set and the thread is waited for,
    so that nobody reports a call as over while it still works. What it returns then is its result. After
    `ABANDON_AFTER` seconds, or at a second cancellation, it is abandoned and its late result dropped.

    Args:
        function: The function.
        arguments: What to call it with.
        name: Name of the thread.
        cancelled: Set when the function should stop.
        timeout: Seconds until it is told to stop.

    Raises:
        TimeUp: The time was up, whether or not the function came back afterwards.
        asyncio.CancelledError: Cancelled, and the thread was abandoned.
    """
    future = _start(function, arguments, name)
    try:
        await asyncio.wait({future}, timeout=timeout)
    except asyncio.CancelledError:
        if await _told_to_stop(future, cancelled, name):
            return _take(future.result())  # type: ignore[no-any-return]
        raise
    if future.done():
        return _take(future.result())  # type: ignore[no-any-return]
    raise TimeUp(still_running=not await _told_to_stop(future, cancelled, name))


async def _told_to_stop(future: asyncio.Future[_Outcome], cancelled: asyncio.Event, name: str) -> bool:
    """Tell a thread to stop and wait for it; whether it came back in time."""
    cancelled.set()
    await asyncio.wait({future}, timeout=ABANDON_AFTER)
    if not future.done():
        log.warning("%s still runs %g s after it was told to stop; its result will be dropped", name, ABANDON_AFTER)
    return future.done()


def _start(function: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> asyncio.Future[_Outcome]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Outcome] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(outcome: _Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    def work() -> None:
        outcome: _Outcome
        try:
            outcome = context.run(function, *arguments), None
        except BaseException as error:  # noqa: BLE001 - everything a body raises is told to its caller, SystemExit too
            outcome = None, error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("%s ended after its event loop; its result is dropped", name)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _take(outcome: _Outcome) -> Any:
    value, error = outcome
    if error is None:
        return value
    if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
        # A KeyboardInterrupt raised by a function is its own affair; on the loop it would end the program.
        raise RuntimeError(f"the function raised {type(error).__name__}") from error
    raise error
