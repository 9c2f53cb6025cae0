"""
The slot for maintenance of an idle agent: wakes wait behind it, cancel ends it, its events lie in a turn of
their own (A-9).
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dsh_core._turn import error_reason
from dsh_core.content import Tagged
from dsh_core.errors import Busy, HarnessError
from dsh_core.session.events import TurnEndEvent, TurnStartEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
        self._cause: Tagged | None = None
        self._freed = asyncio.Event()
        self._freed.set()

    @property
    def held(self) -> bool:
        """Whether somebody holds the slot."""
        return not self._freed.is_set()

    async def free(self) -> None:
        """Return when nobody holds the slot."""
        await self._freed.wait()

    def cancel(self, cause: Tagged) -> None:
        """End the maintenance that runs, if any; the first cause stays."""
        if self._task is not None and self._cause is None:
            self._cause = cause
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
        outcome = Tagged("completed")
        try:
            yield
        except asyncio.CancelledError:
            outcome = Tagged("aborted", reason="host")
            if self._cause is None:
                raise
        except BaseException as error:
            outcome = error_reason(error, 0)
            raise
        finally:
            cause = self._leave(turn, outcome)
            if cause is not None:
                await _take_cancellation()
            self._release()
        await self._agent.flush_turn(turn)
        if cause is not None:
            why = cause.reason if cause.kind == "aborted" else cause.kind
            raise HarnessError(f"{name} of {self._agent.id!r} was cancelled: {why}", "CANCELLED")

    def _enter(self, name: str) -> int:
        agent = self._agent
        if self.held:
            raise Busy(f"agent {agent.id!r} is busy with {self._name}; wait until it is idle")
        if agent.run is not None or agent.wake_owed:
            raise Busy(f"agent {agent.id!r} is running a turn; wait for when_idle() before {name}")
        agent.close_left_open()
        turn = agent.session.last_turn + 1
        agent.session.append(TurnStartEvent(turn, Tagged("maintenance", name=name)))
        self._task, self._name, self._cause = asyncio.current_task(), name, None
        self._freed.clear()
        agent.maintenance_began()
        return turn

    def _leave(self, turn: int, outcome: Tagged) -> Tagged | None:
        """Close the maintenance turn; a recorded cause wins over what came of it, and is returned."""
        cause, self._task = self._cause, None
        if self._agent.session.open_turn == turn:
            try:
                self._agent.session.append(TurnEndEvent(turn, cause or outcome))
            except Exception as error:  # noqa: BLE001 - a plugin refuses it: the slot is free all the same
                self._agent.report_error(error, turn, 0, "turn/end")
        return cause

    def _release(self) -> None:
        self._task = None
        self._freed.set()
        self._agent.maintenance_ended()


async def _take_cancellation() -> None:
    """Take the cancellation that `cancel` sent, whether or not it has been delivered by now."""
    task = asyncio.current_task()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if task is not None:
        task.uncancel()
