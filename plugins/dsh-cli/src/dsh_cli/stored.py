"""
`dsh sessions`: what is stored, read without taking ownership.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dsh_cli.agents import is_of
from dsh_cli.exits import COMPLETED
from dsh_cli.frontend import describe_raw_call
from dsh_cli.settings import inspection_config
from dsh_cli.terminal import Terminal, prints_aside, visible
from dsh_core import ConfigError, Harness, TextBlock, ToolResultBlock, encode_event
from dsh_core.session import events as ev

if TYPE_CHECKING:
    from dsh_core import SessionEvent, SessionPersistence, SessionSummary, StoredSession

__all__ = ["list_sessions", "repair_session", "show_session"]


def list_sessions(everywhere: bool, as_json: bool) -> int:
    """
    Print the stored sessions, the newest first.

    Args:
        everywhere: Those of every directory, not only of this one.
        as_json: One JSON object a line.
    """

    async def show(backend: SessionPersistence, terminal: Terminal) -> None:
        found = [summary async for summary in backend.list() if everywhere or _is_here(summary)]
        found.sort(key=lambda summary: summary.updated_at or 0, reverse=True)
        for summary in found:
            terminal.json(json.dumps(_as_json(summary))) if as_json else terminal.line(_as_line(summary, everywhere))
        if not found and not as_json:
            terminal.note("no sessions here" + ("" if everywhere else "; --all shows those of other directories"))

    return asyncio.run(_with_backend(show))


def show_session(session_id: str, raw: bool) -> int:
    """
    Print one session.

    Args:
        session_id: Its id.
        raw: The events as JSON, one a line.
    """

    async def show(backend: SessionPersistence, terminal: Terminal) -> None:
        stored = await backend.inspect(session_id)
        if raw:
            for event in stored.events:
                terminal.json(encode_event(event).decode("utf-8"))
        else:
            _show_readably(stored, terminal)
        if stored.damage is not None:
            terminal.warn(f"damaged at {stored.damage.position}: {stored.damage.reason}")

    return asyncio.run(_with_backend(show))


def repair_session(session_id: str) -> int:
    """
    Save every readable record of a damaged session.

    Args:
        session_id: Its id.
    """

    async def repair(backend: SessionPersistence, terminal: Terminal) -> None:
        events = await backend.repair(session_id)
        terminal.line(f"session {visible(session_id)} has {events} events now; the damaged log is kept beside it")

    return asyncio.run(_with_backend(repair))


async def _with_backend(use: Callable[[Any, Terminal], Awaitable[None]]) -> int:
    terminal, cwd = Terminal(), os.getcwd()
    with prints_aside():
        async with Harness(config=inspection_config(cwd, only_storage=True), cwd=cwd) as harness:
            if harness.persistence is None:
                raise ConfigError("nothing is loaded that stores sessions; install dsh-persistence-jsonl")
            await use(harness.persistence, terminal)
    return COMPLETED


def _is_here(summary: SessionSummary) -> bool:
    # One whose header tells no directory may be of this one.
    return summary.header is None or summary.header.cwd is None or is_of(summary, os.getcwd())


def _as_json(summary: SessionSummary) -> dict[str, Any]:
    header = summary.header
    return {
        "id": summary.id,
        "cwd": header.cwd if header else None,
        "created_at": header.created_at if header else None,
        "updated_at": summary.updated_at,
        "events": summary.events,
        "state": summary.state,
    }


def _as_line(summary: SessionSummary, everywhere: bool) -> str:
    when = _time(summary.updated_at)
    where = f"  {visible(summary.header.cwd or '')}" if everywhere and summary.header is not None else ""
    state = "" if summary.state == "ok" else f"  [{summary.state}]"
    return f"{when}  {visible(summary.id)}{state}{where}"


def _time(milliseconds: int | None) -> str:
    if not milliseconds:
        return "-" * 16
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _show_readably(stored: StoredSession, terminal: Terminal) -> None:
    header = stored.header
    terminal.line(f"session {visible(header.id)}, {len(stored.events)} events, in {visible(header.cwd or '-')}")
    if header.parent:
        terminal.line(f"forked from {visible(header.parent)}")
    for event in stored.events:
        for line in _lines(event):
            terminal.line(line)


def _lines(event: SessionEvent) -> list[str]:
    match event.data:
        case ev.TurnStartEvent(turn=turn, trigger=trigger):
            return ["", f"── turn {turn} ({trigger.kind}) · {_time(event.time)}"]
        case ev.UserMessageEvent(content=content, source=source):
            who = "user" if source is None or source.kind == "user" else f"{source.kind} {source.name or ''}".strip()
            return [f"{who}: {_text(content)}"]
        case ev.SteeringMessageEvent(content=content):
            return [f"steering: {_text(content)}"]
        case ev.ContextMessageEvent(content=content, source=source):
            return [f"context ({source.name or source.kind if source else 'unknown'}): {_text(content)}"]
        case ev.PromptBlockedEvent(content=content, reason=reason):
            return [f"blocked ({visible(reason)}): {_text(content)}"]
        case ev.AssistantMessageEvent(content=content, interrupted=interrupted) if _text(content).strip():
            return [f"assistant{' (interrupted)' if interrupted else ''}: {_text(content)}"]
        case ev.ToolCallEvent(name=name, arguments=arguments):
            return [f"  {describe_raw_call(name, arguments)}"]
        case ev.ToolResultEvent(content=content, is_error=failed):
            return [f"  {'failed' if failed else 'result'}: {_text(content, 600)}"]
        case ev.ApprovalDecidedEvent(outcome=outcome, by=by):
            return [f"  approval: {outcome}{f' by {by}' if by else ''}"]
        case ev.RequestRetryEvent(attempt=attempt, error=error):
            return [f"  retry {attempt}: {visible(str(error.get('message', '')))}"]
        case ev.TurnEndEvent(reason=reason):
            detail = reason.message or reason.reason
            return [f"── {reason.kind}" + (f": {visible(str(detail))}" if detail else "")]
    return []


def _text(content: Any, limit: int = 4000) -> str:
    parts = []
    for block in content:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            parts.append(_text(block.content, limit))
        elif type(block).__name__ == "ImageBlock":
            parts.append(f"[image {block.media_type}]")
    text = "".join(parts)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"
