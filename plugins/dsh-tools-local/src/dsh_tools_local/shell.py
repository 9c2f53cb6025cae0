"""
The tools `bash`, `bash_output` and `bash_kill`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core import AgentDisposed, Source, TextBlock, ToolContext, ToolDefinition, ToolError, ToolResult, hookimpl
from dsh_core.config import state_dir
from dsh_tools_local._environment import child_environment
from dsh_tools_local._output import Output, SpillDirectory
from dsh_tools_local._process import Command, new_token
from dsh_tools_local._report import Run, pids
from dsh_tools_local._schemas import BASH, BASH_KILL, BASH_OUTPUT, BASH_TEXT
from dsh_tools_local._tasks import Task, TaskTable, describe_code

if TYPE_CHECKING:
    from dsh_core import Agent, Harness, Session

__all__ = ["ShellConfig", "ShellPlugin"]


@attrs.frozen(kw_only=True)
class ShellConfig:
    """
    `[plugins.shell]`.

    Args:
        timeout: Seconds a command gets when the model names none.
        max_timeout: Seconds it may ask for.
        grace: Seconds between SIGTERM and SIGKILL.
        max_output: Bytes of output in a result.
        max_spill: Bytes of output in the file that holds the rest.
        spill_dir: Where those files lie; the state directory when left out.
        keep_env: Names of variables that commands get although they look like secrets.
        max_tasks: Background commands a session may have running.
    """

    timeout: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    max_timeout: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    grace: float = attrs.field(default=2.0, validator=attrs.validators.ge(0))
    max_output: int = attrs.field(default=32_000, validator=attrs.validators.ge(100))
    max_spill: int = attrs.field(default=256 << 20, validator=attrs.validators.ge(0))
    spill_dir: Path | None = None
    keep_env: tuple[str, ...] = ()
    max_tasks: int = attrs.field(default=16, validator=attrs.validators.ge(1))


class ShellPlugin:
    """
    Commands for an agent.

    Args:
        config: Limits.
    """

    name = "shell"
    Config = ShellConfig

    def __init__(self, config: ShellConfig | None = None) -> None:
        self._config = config or ShellConfig()
        self._tasks = TaskTable(self._config.grace)
        self._spill = SpillDirectory(self._config.spill_dir or state_dir() / "output")

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the tools."""
        for definition in self.tools():
            harness.tools.register(definition)

    @hookimpl
    async def session_flush(self, session: Session, barrier: str) -> None:
        """End a session's background tasks before its agent is gone."""
        if barrier == "dispose" and (ending := self._tasks.end_session(session.id)) is not None:
            await asyncio.shield(ending)

    @hookimpl
    def agent_disposed(self, agent: Agent) -> None:
        """The same, for what was started after the last flush."""
        self._tasks.end_session(agent.id)

    async def stop(self) -> None:
        """End all background tasks when the plugin is unloaded."""
        await self._tasks.end_all()

    def tools(self) -> tuple[ToolDefinition, ...]:
        """The definitions, for harnesses that register tools by hand."""
        bash = ToolDefinition("bash", BASH_TEXT, BASH, self._bash, destructive=True, open_world=True)
        output = ToolDefinition(
            "bash_output",
            "Read what a background task printed since the last look, and whether it still runs.",
            BASH_OUTPUT,
            self._bash_output,
            read_only=True,
            parallel=True,
            repeatable=True,
        )
        kill = ToolDefinition(
            "bash_kill",
            "End a background task with everything it started.",
            BASH_KILL,
            self._bash_kill,
            idempotent=True,
        )
        return bash, output, kill

    # -- bash --------------------------------------------------------------------------------------------

    async def _bash(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if arguments.get("background"):
            return self._start_background(arguments, context)
        config = self._config
        seconds = min(float(arguments.get("timeout") or config.timeout), config.max_timeout)
        output = self._output()
        command = self._start(arguments, context, output)
        run = Run(command, output, seconds)
        try:
            await self._watch(run)
        except BaseException:  # cancelled once more while it was being ended
            command.kill()
            command.close()
            output.close()
            raise
        task = self._keep_what_is_left(arguments, context, run)
        if task is None:
            command.close()
            output.close()
        return run.result(task)

    async def _watch(self, run: Run) -> None:
        """Wait for the end, or bring it about."""
        try:
            async with asyncio.timeout(run.seconds):
                await run.command.wait()
        except TimeoutError:
            run.timed_out = True
        except asyncio.CancelledError:
            # The result is given all the same: the model shall see how far the command came (L-10).
            run.interrupted = True
        if run.timed_out or run.interrupted:
            run.unkillable = await run.command.end(self._config.grace)
        await run.command.settle()

    def _keep_what_is_left(self, arguments: Mapping[str, Any], context: ToolContext, run: Run) -> Task | None:
        """What outlived its shell becomes a task of the session."""
        if run.timed_out or run.interrupted:
            return None
        run.left = run.command.left_behind()
        if not run.left and not run.command.pipe_open:
            return None
        task = self._tasks.add(context.session.id, arguments["command"], run.command, run.output)
        task.offset = run.output.total
        return task

    def _output(self) -> Output:
        return Output(self._config.max_output, self._spill, self._config.max_spill)

    def _start(self, arguments: Mapping[str, Any], context: ToolContext, output: Output) -> Command:
        line = str(arguments["command"])
        if not line.strip():
            raise ToolError("the command is empty; give a command to run", "INVALID_ARGUMENTS")
        cwd = _directory(arguments.get("workdir"), context.cwd)
        token = new_token()
        env = child_environment(os.environ, token, self._config.keep_env)
        try:
            return Command([*_shell(), line], cwd=cwd, env=env, token=token, output=output)
        except (OSError, ValueError) as error:  # too long, a NUL, half a surrogate pair, no more processes
            raise ToolError(f"the command could not be started: {error}", "NOT_STARTED") from error

    def _start_background(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if self._tasks.running(context.session.id) >= self._config.max_tasks:
            raise ToolError(
                f"this session already has {self._config.max_tasks} background tasks running; end one with bash_kill",
                "TOO_MANY_TASKS",
            )
        output = self._output()
        command = self._start(arguments, context, output)
        task = self._tasks.add(context.session.id, arguments["command"], command, output)
        _announce_end(task, context)
        return ToolResult(
            (TextBlock(f"Background task {task.id} was started. Read it with bash_output, end it with bash_kill."),),
            meta={"task": task.id, "pid": command.pid},
        )

    # -- tasks -------------------------------------------------------------------------------------------

    async def _bash_output(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        task = self._tasks.get(context.session.id, arguments["task_id"])
        await _news(task, min(float(arguments.get("wait") or 0), 60.0))
        if task.process.returncode is not None:
            await task.process.settle()  # what is said of the end shall hold of the output too
        over = task.over
        text, task.offset = task.output.since(task.offset, ended=over)
        state = task.state()
        return ToolResult(
            (TextBlock(f"{text or '(no new output)'}\n[{task.id}: {state}]"),),
            meta={"task": task.id, "state": state, "exit_code": task.process.returncode, "offset": task.offset},
        )

    async def _bash_kill(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        task = self._tasks.get(context.session.id, arguments["task_id"])
        if task.over:
            return ToolResult((TextBlock(f"{task.id} needs no killing: {task.state()}"),), meta={"task": task.id})
        left = await self._tasks.kill(task)
        text = f"{task.id}: {task.state()}"
        if left:
            text += f"; these processes could not be ended: {pids(left)}"
        return ToolResult((TextBlock(text),), is_error=bool(left), meta={"task": task.id, "unkillable": left})


def _shell() -> list[str]:
    bash = shutil.which("bash")
    return [bash, "--noprofile", "--norc", "-c"] if bash else ["/bin/sh", "-c"]


def _directory(workdir: object, cwd: str | None) -> str:
    base = cwd or os.getcwd()
    path = os.path.join(base, os.path.expanduser(str(workdir))) if workdir else base
    try:
        found = os.path.isdir(path)
    except ValueError:
        found = False
    if not found:
        raise ToolError(f"there is no directory {path!r} to run in; give an existing one as workdir", "NOT_FOUND")
    return path


async def _news(task: Task, seconds: float) -> None:
    """Wait until the task prints or ends, at most so long."""
    if seconds <= 0 or task.output.total > task.offset or task.over:
        return
    task.process.activity.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await task.process.activity.wait()


def _announce_end(task: Task, context: ToolContext) -> None:
    """Tell the agent when a background command is over: a note for its next request, which wakes nobody."""

    async def announce() -> None:
        code = await task.process.wait()
        if task.killed:
            return
        text = f"Background task {task.id} ended with {describe_code(code)}; bash_output has what it printed."
        with contextlib.suppress(AgentDisposed):
            context.agent.inject(text, source=Source.plugin("shell"))

    context.agent.harness.spawn(announce(), name=f"bash {task.id}")
