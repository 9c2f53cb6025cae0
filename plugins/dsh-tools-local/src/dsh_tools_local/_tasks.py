"""
What runs on behind a session's back: background commands, and what commands left behind.

A session owns its tasks: it reads them, ends them, and takes them along when it goes.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core.errors import ToolError

if TYPE_CHECKING:
    from dsh_tools_local._output import Output
    from dsh_tools_local._process import Command

__all__ = ["Task", "TaskTable"]

_KEEP_ENDED: Final = 50


@attrs.define(eq=False)
class Task:
    """
    One task.

    Args:
        id: Its name for the model.
        command: The command line, for lists.
        process: What runs.
        output: What it printed.
        offset: How much of that has been read.
        killed: It was ended by `bash_kill`.
    """

    id: str
    command: str
    process: Command
    output: Output
    offset: int = 0
    killed: bool = False

    def state(self) -> str:
        """In words."""
        code = self.process.returncode
        if code is None:
            return "running"
        if self.process.running():
            return f"its shell ended with {describe_code(code)}; processes it started are still running"
        return f"{'killed' if self.killed else 'ended'}, {describe_code(code)}"

    @property
    def over(self) -> bool:
        """Nothing of it lives and nothing more can be read."""
        return not self.process.running() and not self.process.pipe_open


def describe_code(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class TaskTable:
    """All tasks, by the session that owns them."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._tasks: dict[str, dict[str, Task]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, session_id: str, command: str, process: Command, output: Output) -> Task:
        """Enter a task."""
        mine = self._tasks.setdefault(session_id, {})
        for stale in [task for task in mine.values() if task.over][:-_KEEP_ENDED]:
            del mine[stale.id]
        task = Task(f"bg-{secrets.token_hex(3)}", command, process, output)
        mine[task.id] = task
        process.throttled = True
        return task

    def running(self, session_id: str) -> int:
        """How many of a session's shells run."""
        return sum(task.process.returncode is None for task in self._tasks.get(session_id, {}).values())

    def get(self, session_id: str, task_id: str) -> Task:
        """
        A task of this session.

        Raises:
            ToolError: It has no such task.
        """
        mine = self._tasks.get(session_id, {})
        if task_id in mine:
            return mine[task_id]
        known = "; ".join(f"{task.id} ({task.command[:60]})" for task in mine.values()) or "there are none"
        raise ToolError(f"this session has no background task {task_id!r}; known: {known}", "UNKNOWN_TASK")

    async def kill(self, task: Task) -> list[int]:
        """End one task; returns what could not be ended."""
        task.killed = True
        left = await task.process.end(self._grace)
        await task.process.settle()
        task.process.close()
        task.output.close()
        return left

    def end_session(self, session_id: str) -> asyncio.Task[None] | None:
        """Begin to end what a session owns."""
        mine = self._tasks.pop(session_id, {})
        if not mine:
            return None
        ending = asyncio.get_running_loop().create_task(self._end(mine.values()), name="dsh-shell-end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _end(self, tasks: Iterable[Task]) -> None:
        await asyncio.gather(*(self.kill(task) for task in tasks))

    async def end_all(self) -> None:
        """End everything and wait for it."""
        for session_id in list(self._tasks):
            self.end_session(session_id)
        while self._ending:
            await asyncio.gather(*self._ending)
