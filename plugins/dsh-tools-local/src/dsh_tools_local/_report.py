"""
What a command that was waited for came to, as the model and front ends are told.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core import TextBlock, ToolResult
from dsh_core.content import ErrorInfo
from dsh_tools_local._tasks import Task, describe_code

if TYPE_CHECKING:
    from dsh_tools_local._output import Output
    from dsh_tools_local._process import Command

__all__ = ["Run", "pids"]


@attrs.define(eq=False)
class Run:
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
            who = f"processes {pids(self.left)}" if self.left else "a process"
            facts.append(f"[{who} left running in the background as task {task.id}; see bash_output and bash_kill]")
        if self.unkillable:
            facts.append(f"[these processes could not be ended: {pids(self.unkillable)}]")
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


def pids(numbers: list[int]) -> str:
    """Process numbers for a message."""
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more
