"""
One running command: started, read, waited for, ended.

Not asyncio's subprocess transport: that one waits for the pipes to close, which background children may hold
open for ever, and does not take reading one's own way.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from dsh_tools_local._tree import Family

__all__ = ["Command", "Sink", "new_token"]

_READ: Final = 1 << 16
_PAUSE: Final = 0.005
_SETTLE: Final = 0.1
_SETTLE_AT_MOST: Final = 1.0


class Sink(Protocol):
    """Takes what a command prints."""

    def feed(self, data: bytes) -> None: ...


def new_token() -> str:
    """A token that marks the processes of one command."""
    return secrets.token_hex(12)


class Command:
    """
    A command in its own session and process group, without a terminal and with empty stdin.

    Args:
        argv: What to run.
        cwd: Where.
        env: Its environment, with the mark.
        token: The mark.
        output: Takes stdout, and stderr in the same order.
        errors: Takes stderr instead.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        token: str,
        output: Sink,
        errors: Sink | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[int] = set()
        self._exited = asyncio.Event()
        self._closed = asyncio.Event()
        self.activity = asyncio.Event()
        self.throttled = False
        self._process = self._start(list(argv), cwd, env, [output] if errors is None else [output, errors])
        self.pid = self._process.pid
        self._family = Family(self.pid, token)
        self._watch_exit()

    def _start(
        self, argv: list[str], cwd: str | None, env: Mapping[str, str], sinks: list[Sink]
    ) -> subprocess.Popen[bytes]:
        pipes = [os.pipe() for _ in sinks]
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[-1][1],
                start_new_session=True,
            )
        except BaseException:
            for reading, _ in pipes:
                os.close(reading)
            raise
        finally:
            for _, writing in pipes:
                os.close(writing)
        for (reading, _), sink in zip(pipes, sinks, strict=True):
            os.set_blocking(reading, False)
            self._open.add(reading)
            self._loop.add_reader(reading, self._read, reading, sink)
        return process

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self, pipe: int, sink: Sink) -> None:
        try:
            data = os.read(pipe, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(pipe)
        else:
            sink.feed(data)
            if self.throttled:
                self._pause(pipe, sink)
        self.activity.set()

    def _pause(self, pipe: int, sink: Sink) -> None:
        """Let a command nobody waits for print no faster than some MB a second: it must not eat the loop's time."""
        self._loop.remove_reader(pipe)
        self._loop.call_later(_PAUSE, self._resume, pipe, sink)

    def _resume(self, pipe: int, sink: Sink) -> None:
        if pipe in self._open:
            self._loop.add_reader(pipe, self._read, pipe, sink)

    def _close(self, pipe: int) -> None:
        self._loop.remove_reader(pipe)
        os.close(pipe)
        self._open.discard(pipe)
        if not self._open:
            self._closed.set()

    async def settle(self) -> None:
        """Read what is already in the pipe after the shell's exit, without waiting for those who keep it open."""
        deadline = self._loop.time() + _SETTLE_AT_MOST
        while not self._closed.is_set() and self._loop.time() < deadline:
            self.activity.clear()
            try:
                async with asyncio.timeout(_SETTLE):
                    await self.activity.wait()
            except TimeoutError:
                return

    # -- the end -----------------------------------------------------------------------------------------

    def _watch_exit(self) -> None:
        try:
            handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a kernel without it
            threading.Thread(target=self._wait_in_thread, name=f"dsh-wait-{self.pid}", daemon=True).start()
            return
        self._loop.add_reader(handle, self._exit_seen, handle)

    def _exit_seen(self, handle: int) -> None:
        self._loop.remove_reader(handle)
        os.close(handle)
        self._exit()

    def _wait_in_thread(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            self._loop.call_soon_threadsafe(self._exit)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _exit(self) -> None:
        self._family.leader_exits()
        self._process.wait()
        self._exited.set()
        self.activity.set()

    @property
    def returncode(self) -> int | None:
        """The shell's exit code, negative for a signal, None while it runs."""
        return self._process.returncode if self._exited.is_set() else None

    async def wait(self) -> int:
        """Wait for the exit of the shell, not of what it left behind."""
        await self._exited.wait()
        return int(self._process.returncode)

    @property
    def pipe_open(self) -> bool:
        """Whether somebody may still write."""
        return not self._closed.is_set()

    def left_behind(self) -> list[int]:
        """Processes of the shell's session that outlived it."""
        return self._family.survivors()

    def running(self) -> bool:
        """Whether anything of it lives; a look at every process of the machine."""
        return not self._exited.is_set() or bool(self._family.members())

    async def end(self, grace: float) -> list[int]:
        """
        End it and everything it started, within `grace` seconds and a little.

        Returns:
            The processes that could not be ended.
        """
        left = await self._family.end(grace)
        if self.pid not in left:
            await self._exited.wait()
        return left

    def kill(self) -> None:
        """End it at once, without waiting."""
        self._family.kill()

    def close(self) -> None:
        """Stop reading."""
        for pipe in list(self._open):
            self._close(pipe)
