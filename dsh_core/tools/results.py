"""
Results that dsh itself gives to calls, in words that tell "did not run" from "may have run" (L-10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsh_core.content import Content, ErrorInfo
from dsh_core.tools.definition import ToolResult

__all__ = [
    "error_result",
    "interrupted",
    "invalid_arguments",
    "not_started",
    "timed_out",
    "unknown_tool",
]

_SUGGESTIONS: Final = 3


def error_result(code: str, text: Content, name: str | None = None) -> ToolResult:
    """
    The result of a call that failed or did not run.

    Args:
        code: `NOT_STARTED`, `INTERRUPTED`, `DENIED`, `UNKNOWN_TOOL`, `INVALID_ARGUMENTS`, `TIMEOUT`,
            `TOOL_ERROR`, or a tool's own.
        text: For the model.
        name: Name of the error behind it; made of the code when left out.
    """
    return ToolResult(text, is_error=True, error=ErrorInfo(name or code.title().replace("_", ""), code))


def not_started(why: str = "the turn was cancelled before its start") -> ToolResult:
    """A call that never began; repeating it is safe."""
    return error_result("NOT_STARTED", f"This call did not run: {why}.")


def interrupted(why: str = "the turn was cancelled") -> ToolResult:
    """A call that had begun; nobody knows how far it came."""
    return error_result(
        "INTERRUPTED",
        f"This call was interrupted while it ran ({why}). It may have taken effect, wholly or in part: check before "
        "you repeat it.",
    )


def timed_out(seconds: float, *, still_running: bool = False) -> ToolResult:
    """
    A call that took longer than its tool allows.

    Args:
        seconds: What the tool allows.
        still_running: It ignored that its time was up.
    """
    what = "given up" if still_running else "stopped"
    running = " It could not be stopped and may still be running." if still_running else ""
    return error_result(
        "TIMEOUT",
        f"This call was {what} after {seconds:g} s, the time limit of the tool.{running} It may have taken effect, "
        "wholly or in part: check before you repeat it.",
    )


def unknown_tool(name: str, offered: Sequence[str]) -> ToolResult:
    """
    A call of a tool that was not on offer, or of none.

    Args:
        name: What the model called.
        offered: Names that were on offer.
    """
    if not name:
        return error_result(
            "UNKNOWN_TOOL", "This call names no tool, so nothing was run. Call again with a tool's name."
        )
    from difflib import get_close_matches

    close = get_close_matches(name, offered, _SUGGESTIONS, 0.6) or sorted(offered)[:20]
    advice = f"Tools on offer: {', '.join(close)}." if close else "No tool is on offer."
    shown = name if len(name) <= 200 else name[:200] + "…"
    return error_result("UNKNOWN_TOOL", f"There is no tool {shown!r} on offer, so nothing was run. {advice}")


def invalid_arguments(tool: str, problems: Sequence[str]) -> ToolResult:
    """A call whose arguments are broken or violate the schema; all that is wrong is listed."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return error_result(
        "INVALID_ARGUMENTS",
        f"The arguments of {tool!r} are not valid, so nothing was run:\n{listed}\nMend them and call again.",
    )
