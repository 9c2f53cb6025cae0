"""
`dsh run`: one prompt, one answer, one exit code.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import attrs

from dsh_cli.agents import agent_for, chat_with, require_model
from dsh_cli.exits import INTERRUPTED, code_of_turn
from dsh_cli.frontend import FrontEnd
from dsh_cli.interrupts import on_interrupt
from dsh_cli.settings import Settings, opened_harness
from dsh_cli.stdin import piped_text
from dsh_cli.terminal import Terminal, prints_aside
from dsh_core import Chat, ConfigError, MessageDropped, PromptBlocked, SessionEvent, TextDelta, encode_event

if TYPE_CHECKING:
    from dsh_cli.frontend import Asker
    from dsh_core import TurnResult

__all__ = ["run_prompt", "terminal_asker"]


def run_prompt(prompt: str | None, form: str, session: str | None, resume: str | None, settings: Settings) -> int:
    """
    Run one prompt.

    Args:
        prompt: The prompt, or None to read it from standard input.
        form: `text`, `json` or `stream-json`.
        session: Create or resume the session of this name.
        resume: Only resume this session; the empty string for the last one.
        settings: The other options.

    Returns:
        The exit code.
    """
    text, terminal = _whole_prompt(prompt, resume), Terminal()
    with prints_aside():
        return asyncio.run(_run(text, form, session, resume, settings, terminal))


def _whole_prompt(prompt: str | None, resume: str | None) -> str:
    piped = piped_text(wait=prompt is None)
    parts = [part for part in (prompt, piped) if part and part.strip()]
    if not parts:
        hint = f" (--resume took {resume!r} as the session; put the prompt before it)" if resume else ""
        raise ConfigError(f"there is no prompt: give one as an argument or on standard input{hint}")
    return "\n\n".join(parts)


async def _run(
    prompt: str, form: str, session: str | None, resume: str | None, settings: Settings, terminal: Terminal
) -> int:
    asker = terminal_asker(terminal) if form == "text" else None
    front_end = FrontEnd(terminal, asker, quiet=form != "text")
    async with opened_harness(settings, terminal, [front_end]) as harness:
        async with await agent_for(harness, session, resume) as handle:
            require_model(harness)
            chat = chat_with(harness, handle)
            with on_interrupt(lambda: handle.agent.cancel("interrupted")):
                result = await _answer(chat, prompt, form, terminal)
            return _report(result, handle.agent.id, form, terminal, front_end)


async def _answer(chat: Chat, prompt: str, form: str, terminal: Terminal) -> TurnResult | Exception:
    streams = form == "text" and terminal.shows_stream
    try:
        async for item in chat.stream(prompt):
            if streams and isinstance(item, TextDelta):
                terminal.answer(item.text)
            elif form == "stream-json" and isinstance(item, SessionEvent):
                terminal.json(encode_event(item).decode("utf-8"))
            elif streams and isinstance(item, SessionEvent) and item.type == "assistant/message":
                terminal.end_answer()
    except (MessageDropped, PromptBlocked) as stopped:
        return stopped
    assert chat.last is not None
    return chat.last


def _report(result: TurnResult | Exception, session_id: str, form: str, terminal: Terminal, front_end: FrontEnd) -> int:
    if isinstance(result, Exception):
        code = INTERRUPTED if isinstance(result, MessageDropped) else 1
        reason: dict[str, Any] = {"kind": "aborted" if code == INTERRUPTED else "rejected", "reason": str(result)}
        text, usage, turn, output = "", None, 0, None
    else:
        code = code_of_turn(result, bool(front_end.unanswered))
        reason, text, turn, output = dict(result.reason), result.text, result.turn, result.output
        usage = attrs.asdict(result.usage)
    if form != "text":
        summary = {
            "type": "result", "session_id": session_id, "turn": turn, "exit_code": code, "reason": reason,
            "text": text, "output": output, "usage": usage, "denied_calls": front_end.unanswered,
        }  # fmt: skip
        terminal.json(json.dumps(summary, ensure_ascii=False, default=str))
    elif text and not terminal.shows_stream:
        terminal.answer(text if text.endswith("\n") else text + "\n")
    terminal.end_answer()
    if reason["kind"] != "completed":
        terminal.error(_why(reason))
        terminal.note(f'the session is kept: dsh run --resume {session_id} "…" goes on with it')
    return code


def _why(reason: dict[str, Any]) -> str:
    kind = reason["kind"]
    detail = reason.get("message") or reason.get("reason")
    code = f" [{reason['code']}]" if reason.get("code") else ""
    return f"the turn ended with {kind}{code}" + (f": {detail}" if detail else "")


def terminal_asker(terminal: Terminal) -> Asker | None:
    """A way to ask the person at the terminal, or None when there is none."""
    if sys.stdin is None or not (sys.stdin.isatty() and terminal.err.isatty()):
        return None

    async def ask(question: str) -> str:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        prompt: PromptSession[str] = PromptSession(output=create_output(stdout=terminal.err))
        try:
            # The toolkit's own handler would replace the one that stops the turn, and not put it back.
            return await prompt.prompt_async(question, handle_sigint=False)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # at a question, too, Ctrl-C stops the turn
            return "n"
        except EOFError:
            return "n"

    return ask
