"""
The terminal as a plugin: shows what happens, answers questions if somebody is there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from dsh_cli.terminal import Terminal, visible
from dsh_core import ApprovalGranted, ApprovalRefused, hookimpl
from dsh_core.session.events import (
    ApprovalDecidedEvent,
    RequestRetryEvent,
    ToolCallEvent,
    ToolResultEvent,
)

if TYPE_CHECKING:
    from dsh_core import Agent, Approval, Session, SessionEvent

__all__ = ["Asker", "FrontEnd"]

_ANSWERS = "[y]es once, [s]ession, [a]lways here, [n]o, or a note to the model"


class Asker(Protocol):
    """Puts a question to a person and returns the line they type; cancelling withdraws it."""

    async def __call__(self, question: str) -> str: ...


class FrontEnd:
    """
    The plugin `cli`.

    Args:
        terminal: Where to show things.
        asker: How to ask, or None when nobody is there: questions then stay unanswered and calls are denied.
        quiet: Show warnings and questions only.
    """

    name = "cli"

    def __init__(self, terminal: Terminal, asker: Asker | None = None, *, quiet: bool = False) -> None:
        self._terminal = terminal
        self._asker = asker
        self._quiet = quiet
        self.unanswered: list[str] = []

    @hookimpl
    async def approval_request(self, agent: Agent, approval: Approval) -> Any:
        """Ask the person; without one, leave the question to others."""
        if self._asker is None:
            return None
        # Whole, however long: nobody can agree to what is cut off.
        self._terminal.note(describe_call(approval.call.name, approval.call.arguments), style="1")
        self._terminal.note(f"  {visible(approval.reason)}")
        if approval.rule is not None:
            self._terminal.note(f"  'always' would store: {visible(approval.rule)}")
        return _decision(await self._asker(f"Allow? {_ANSWERS}: "), approval.rule)

    @hookimpl
    def session_event(self, session: Session, event: SessionEvent) -> None:
        """Show calls, failures and retries; remember questions that nobody could answer."""
        data = event.data
        if isinstance(data, ApprovalDecidedEvent) and data.outcome == "unavailable":
            self.unanswered.append(data.call_id)
            self._terminal.warn("a tool call was denied because nobody could be asked; see --permission-mode")
        if self._quiet:
            return
        if isinstance(data, ToolCallEvent):
            self._terminal.note(describe_raw_call(data.name, data.arguments))
        elif isinstance(data, ToolResultEvent) and data.is_error:
            self._terminal.note(f"  failed: {_first_line(data)}", style="31")
        elif isinstance(data, RequestRetryEvent):
            error = data.error.get("message", "the request failed")
            self._terminal.note(f"  retry {data.attempt} in {data.delay_ms / 1000:g} s: {error}", style="33")


def describe_call(name: str, arguments: Any) -> str:
    """One call on one line, in its final form, hidden characters made visible."""
    return describe_raw_call(name, json.dumps(arguments, ensure_ascii=False), limit=None)


def describe_raw_call(name: str, arguments: str, limit: int | None = 2000) -> str:
    """One call on one line, as the model wrote it."""
    text = visible(arguments)
    cut = text if limit is None or len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"
    return f"⚙ {visible(name)} {cut}"


def _first_line(data: ToolResultEvent) -> str:
    for block in data.content:
        text = getattr(block, "text", "")
        if text:
            return visible(text.splitlines()[0][:300])
    return "without a message"


def _decision(answer: str, rule: str | None) -> ApprovalGranted | ApprovalRefused:
    word = answer.strip().lower()
    if word in ("y", "yes"):
        return ApprovalGranted()
    if word in ("s", "session"):
        return ApprovalGranted("session")
    if word in ("a", "always"):
        return ApprovalGranted("project" if rule is not None else None)
    if word in ("", "n", "no"):
        return ApprovalRefused()
    return ApprovalRefused(answer.strip())
