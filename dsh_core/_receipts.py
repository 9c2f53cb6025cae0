"""
What a sender holds of a message: two waits, neither of which owns the message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from dsh_core.agent.types import TurnResult

__all__ = ["LoopReceipt"]


class LoopReceipt:
    """
    The receipt of one message; see `dsh_core.agent.Receipt`.

    Args:
        message_id: Id of the message.
        stored: Makes the wait for "with the operating system".
        guard: Raises where waiting would wait for itself (A-5).
    """

    __slots__ = ("_done", "_guard", "_outcome", "_stored", "message_id")

    def __init__(
        self,
        message_id: str,
        stored: Callable[[], Coroutine[Any, Any, None]],
        guard: Callable[[], None],
    ) -> None:
        self.message_id = message_id
        self._stored = stored
        self._guard = guard
        self._outcome: TurnResult | BaseException | None = None
        self._done: asyncio.Event | None = None

    @property
    def stored(self) -> Awaitable[None]:
        """Await it to know that the message is with the operating system."""
        return _Wait(self._stored)

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    def settle(self, outcome: TurnResult | BaseException) -> None:
        """Set the outcome; the first one stays."""
        if self._outcome is None:
            self._outcome = outcome
            if self._done is not None:
                self._done.set()

    async def _wait(self) -> TurnResult:
        if self._outcome is None:
            self._guard()
            if self._done is None:
                self._done = asyncio.Event()
            await self._done.wait()
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self._wait().__await__()


class _Wait:
    """An awaitable that may be awaited any number of times, or never, without a warning."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, None, None]:
        return self._make().__await__()
