"""
Ending a command with everything it started.

`killpg` misses children that called `setsid`, and a dead leader has no children to ask for. So members are
found three ways: by session, by descent, and by the mark in their environment, which survives both.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

import psutil

from dsh_tools_local._environment import TASK_MARK

__all__ = ["Family"]

_POLL: Final = 0.02
_ROUNDS: Final = 50


class Family:
    """
    The processes of one command.

    Args:
        leader: Pid of the shell, which leads the session and is not reaped yet.
        token: The mark in its descendants' environment.
    """

    def __init__(self, leader: int, token: str) -> None:
        self._leader = psutil.Process(leader)
        self._token = token
        self._started = self._leader.create_time()
        self._leader_gone = False
        self._survivors: set[psutil.Process] = set()

    def leader_exits(self) -> None:
        """
        Call it between the exit of the leader and its being reaped.

        From then on its number may be given to others, so what is left of its session is written down now.
        """
        self._survivors = {each for each in psutil.process_iter() if self._in_session(each)}
        self._leader_gone = True

    def survivors(self) -> list[int]:
        """What of the session outlived the leader and still lives: cheap, for the normal end of a command."""
        return sorted(process.pid for process in self._survivors if _alive(process))

    def members(self) -> list[psutil.Process]:
        """Every living process; a look at all processes of the machine."""
        found: set[psutil.Process] = set()
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or process.create_time() < self._started or not _alive(process):
                    continue
                children.setdefault(process.ppid(), []).append(process)
            except psutil.Error:
                continue
            if process in self._survivors or self._in_session(process) or self._is_marked(process):
                found.add(process)
        return _with_descendants(found, children)

    def _in_session(self, process: psutil.Process) -> bool:
        try:
            return not self._leader_gone and os.getsid(process.pid) == self._leader.pid and _alive(process)
        except OSError:
            return False

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(TASK_MARK) == self._token)
        except (OSError, psutil.Error):
            return False

    async def end(self, grace: float) -> list[int]:
        """
        End them: SIGTERM, `grace` seconds, SIGKILL.

        Returns:
            The processes that could not be ended, because they belong to somebody else.
        """
        try:
            await self._ask(grace)
            for _ in range(_ROUNDS):  # what is forked between the look and the signal is found the next time
                if not self.kill():
                    return []
                await asyncio.sleep(_POLL)
        except asyncio.CancelledError:
            self.kill()
            raise
        return sorted(process.pid for process in self.members())

    async def _ask(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        asked: set[psutil.Process] = set()
        while (living := self.members()) and loop.time() < deadline:
            for process in living:
                if process not in asked:
                    asked.add(process)
                    _send(process, signal.SIGTERM)
                    _send(process, signal.SIGCONT)  # what is stopped cannot end
            await asyncio.sleep(_POLL)

    def kill(self) -> bool:
        """Send SIGKILL to all of them; tells whether there was anything."""
        living = self.members()
        for process in living:
            _send(process, signal.SIGKILL)
        return bool(living)


def _with_descendants(found: set[psutil.Process], children: dict[int, list[psutil.Process]]) -> list[psutil.Process]:
    waiting = list(found)
    while waiting:
        new = [child for child in children.get(waiting.pop().pid, []) if child not in found]
        found.update(new)
        waiting += new
    return list(found)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # checks that the number is still the same process
    except (OSError, psutil.Error):
        return
