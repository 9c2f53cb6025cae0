"""
The tools `bash`, `bash_output` and `bash_kill`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._markers import hookimpl
from dsh_core.config import state_dir
from dsh_core.content import ErrorInfo, Source, TextBlock
from dsh_core.errors import AgentDisposed
from dsh_core.tools import ToolContext, ToolDefinition, ToolError, ToolResult
from dsh_tools_local._environment import child_environment
from dsh_tools_local._output import Output, SpillDirectory
from dsh_tools_local._process import Command, new_token
from dsh_tools_local._tasks import Task, TaskTable, describe_code

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.harness import Harness
    from dsh_core.session.log import Session

__all__ = ["ShellConfig", "ShellPlugin"]

_DESCRIPTION: Final = """\
Run a command with bash and return its output (stdout and stderr in order) and exit code. Each call is a fresh \
shell in the session's working directory; `cd` and variables do not carry over. There is no terminal and stdin is \
empty: nothing can ask, page or open an editor, so give messages and answers on the command line. For what runs \
on (servers, watchers) set `background` and look at it with `bash_output`. Prefer `read`, `edit`, `glob` and \
`grep` over cat, sed, find and grep."""


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
        bash = ToolDefinition(
            "bash", _DESCRIPTION, _BASH, self._bash, destructive=True, open_world=True
        )
        output = ToolDefinition(
            "bash_output",
            "Read what a background task printed since the last look, and whether it still runs.",
            _BASH_OUTPUT,
            self._bash_output,
            read_only=True,
            parallel=True,
            repeatable=True,
        )
        kill = ToolDefinition(
            "bash_kill",
            "End a background task with everything it started.",
            _BASH_KILL,
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
        run = _Run(command, output, seconds)
        try:
            async with asyncio.timeout(seconds):
                await command.wait()
        except TimeoutError:
            run.timed_out = True
        except asyncio.CancelledError:
            # The result is given all the same: the model shall see how far the command came (L-10).
            run.interrupted = True
        if run.timed_out or run.interrupted:
            run.unkillable = await self._end(command)
        await command.settle()
        task = self._keep_what_is_left(arguments, context, run)
        if task is None:
            command.close()
            output.close()
        return run.result(task)

    async def _end(self, command: Command) -> list[int]:
        try:
            return await command.end(self._config.grace)
        except asyncio.CancelledError:
            command.close()
            raise

    def _keep_what_is_left(self, arguments: Mapping[str, Any], context: ToolContext, run: _Run) -> Task | None:
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
            text += f"; these processes could not be ended: {_pids(left)}"
        return ToolResult((TextBlock(text),), is_error=bool(left), meta={"task": task.id, "unkillable": left})


@attrs.define(eq=False)
class _Run:
    """What is known of a command that was waited for; time-out and exit code are separate facts."""

    command: Command
    output: Output
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    left: list[int] = attrs.field(factory=list)
    unkillable: list[int] = attrs.field(factory=list)

    def result(self, task: Task | None) -> ToolResult:
        """Output first, then one bracketed line for each fact."""
        code = self.command.returncode
        text = self.output.text().rstrip("\n") or "(no output)"
        return ToolResult(
            (TextBlock("\n".join([text, *self._facts(code, task)])),),
            is_error=self._failed(code),
            error=ErrorInfo("bash", self._code()) if self._failed(code) else None,
            meta=self._meta(code, task),
        )

    def _failed(self, code: int | None) -> bool:
        return self.timed_out or self.interrupted or code != 0

    def _code(self) -> str:
        return "TIMEOUT" if self.timed_out else "INTERRUPTED" if self.interrupted else "EXIT_CODE"

    def _facts(self, code: int | None, task: Task | None) -> list[str]:
        facts = []
        if self.timed_out:
            facts.append(f"[timed out after {self.seconds:g} s and was ended; it may have taken effect]")
        if self.interrupted:
            facts.append("[interrupted and ended; it may have taken effect]")
        if code is not None and code != 0:
            facts.append(f"[{describe_code(code)}]")
        if task is not None:
            who = f"processes {_pids(self.left)}" if self.left else "a process"
            facts.append(f"[{who} left running in the background as task {task.id}; see bash_output and bash_kill]")
        if self.unkillable:
            facts.append(f"[these processes could not be ended: {_pids(self.unkillable)}]")
        return facts

    def _meta(self, code: int | None, task: Task | None) -> dict[str, Any]:
        path = self.output.path
        return {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": _signal_name(code),
            "timed_out": self.timed_out,
            "interrupted": self.interrupted,
            "output_bytes": self.output.total,
            "output_file": os.fspath(path) if path else None,
            "task": task.id if task else None,
        }


def _signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return str(-code)


def _pids(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:10])) + (f" and {len(pids) - 10} more" if len(pids) > 10 else "")


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


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_BASH: Final = _object(
    ["command"],
    command={"type": "string", "description": "The command, as one would type it into bash."},
    description={"type": "string", "description": "What it does, in five to ten words, for the person who watches."},
    timeout={"type": "number", "exclusiveMinimum": 0, "description": "Seconds it may take."},
    workdir={"type": "string", "description": "Directory to run in; relative to the session's working directory."},
    background={"type": "boolean", "description": "Return at once and let it run on as a background task."},
)
_TASK_ID: Final = {"type": "string", "description": "The task, such as bg-1a2b3c."}
_BASH_OUTPUT: Final = _object(
    ["task_id"],
    task_id=_TASK_ID,
    wait={"type": "number", "minimum": 0, "maximum": 60, "description": "Seconds to wait for something new."},
)
_BASH_KILL: Final = _object(["task_id"], task_id=_TASK_ID)
