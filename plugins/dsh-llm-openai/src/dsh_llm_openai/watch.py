"""
A limit on silence that costs nothing per event.

`asyncio.timeout` round each read would cost several microseconds a delta. Here one timer looks, when it
fires, whether there was an event since; only a read that is really waiting is interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["Silence", "SilenceWatch"]

T = TypeVar("T")


class Silence(Exception):
    """Nothing came for too long."""


class SilenceWatch:
    """
    Interrupts a wait when nothing came for `limit` seconds.

    Args:
        limit: Seconds; None for no limit.
    """

    __slots__ = ("_expired", "_handle", "_last", "_limit", "_loop", "_task")

    def __init__(self, limit: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._last = self._loop.time()
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._expired = False
        self._arm()

    def touch(self) -> None:
        """Something came."""
        self._last = self._loop.time()

    def set_limit(self, limit: float | None) -> None:
        """Go on with another limit, counted from now."""
        if self._handle is not None:
            self._handle.cancel()
        self._limit = limit
        self.touch()
        self._arm()

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """
        Wait for something.

        Raises:
            Silence: The limit was reached while waiting.
        """
        task = self._task = asyncio.current_task()
        asked_before = task.cancelling() if task is not None else 0
        try:
            return await awaitable
        except asyncio.CancelledError:
            # our own cancel, unless somebody else has asked for one as well
            if self._expired and task is not None and task.uncancel() <= asked_before:
                raise Silence from None
            raise
        finally:
            self._task = None

    def _arm(self) -> None:
        self._handle = None if self._limit is None else self._loop.call_at(self._last + self._limit, self._fire)

    def _fire(self) -> None:
        assert self._limit is not None
        if self._task is None:
            self.touch()  # the consumer is busy, so the silence is not the provider's
        elif self._last + self._limit <= self._loop.time():
            self._expired = True
            self._handle = None
            self._task.cancel()
            return
        self._arm()
