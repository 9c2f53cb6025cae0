"""
The slot for maintenance of an idle agent: wakes wait behind it, cancel ends it, its events lie in a turn of
their own (A-9).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dsh_core._turn import error_reason
from dsh_core.content import Tagged
from dsh_core.errors import Busy, HarnessError
from dsh_core.session.events import TurnEndEvent, TurnStartEvent

if TYPE_CHECKING:
    from dsh_core._loop import LoopAgent

__all__ = ["ExclusiveSlot"]


class ExclusiveSlot:
    """
    Args:
        agent: The agent whose idle time is taken.
    """

    def __init__(self, agent: LoopAgent) -> None:
        self._agent = agent
        self._task: asyncio.Task[object] | None = None
        self._name = ""
        self._cause: str | None = None
        self._freed = asyncio.Event()
        self._freed.set()

    @property
    def held(self) -> bool:
        """Whether somebody holds the slot."""
        return not self._freed.is_set()

    async def free(self) -> None:
        """Return when nobody holds the slot."""
        await self._freed.wait()

    def cancel(self, reason: str) -> None:
        """End the maintenance that runs, if any."""
        if self._task is not None and self._cause is None:
            self._cause = reason
            self._task.cancel()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """
        Hold the slot for the length of the block.

        Args:
            name: What is being done, for the log and for whoever finds the agent busy.

        Raises:
            Busy: A turn runs or is about to, or other maintenance holds the slot.
            HarnessError: The maintenance was cancelled (`CANCELLED`).
        """
        turn = self._enter(name)
        try:
            yield
        except asyncio.CancelledError:
            self._leave(turn, Tagged("aborted", reason=self._cause or "host"))
            if self._cause is None:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise HarnessError(f"{name} of {self._agent.id!r} was cancelled: {self._cause}", "CANCELLED") from None
        except BaseException as error:
            self._leave(turn, error_reason(error, 0))
            raise
        else:
            self._leave(turn, Tagged("completed") if self._cause is None else Tagged("aborted", reason=self._cause))
        finally:
            self._release()
        await self._agent.flush_turn(turn)

    def _enter(self, name: str) -> int:
        agent = self._agent
        if self.held:
            raise Busy(f"agent {agent.id!r} is busy with {self._name}; wait until it is idle")
        if agent.run is not None or agent.wake_owed:
            raise Busy(f"agent {agent.id!r} is running a turn; wait for when_idle() before {name}")
        turn = agent.session.last_turn + 1
        agent.session.append(TurnStartEvent(turn, Tagged("maintenance", name=name)))
        self._task, self._name, self._cause = asyncio.current_task(), name, None
        self._freed.clear()
        agent.maintenance_began()
        return turn

    def _leave(self, turn: int, reason: Tagged) -> None:
        self._task = None
        if self._agent.session.open_turn == turn:
            self._agent.session.append(TurnEndEvent(turn, reason))

    def _release(self) -> None:
        self._task = None
        self._freed.set()
        self._agent.maintenance_ended()
