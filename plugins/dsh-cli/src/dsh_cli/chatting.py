"""
`dsh chat` and `dsh resume`: a conversation, line by line.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import TYPE_CHECKING

from dsh_cli.agents import agent_for, chat_with, require_model
from dsh_cli.exits import COMPLETED, USAGE
from dsh_cli.frontend import FrontEnd
from dsh_cli.interrupts import on_interrupt
from dsh_cli.running import terminal_asker
from dsh_cli.settings import Settings, opened_harness
from dsh_cli.terminal import Terminal
from dsh_core import Chat, HarnessError, MessageDropped, PromptBlocked, SessionEvent, TextDelta

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from dsh_core import Harness

__all__ = ["chat_in_terminal"]


def chat_in_terminal(session: str | None, resume: str | None, settings: Settings) -> int:
    """
    Talk until the person leaves with Ctrl-D or /exit.

    Args:
        session: Create or resume the session of this name.
        resume: Only resume this session; the empty string for the last one.
        settings: The other options.
    """
    terminal = Terminal()
    if sys.stdin is None or not sys.stdin.isatty():
        terminal.error("a chat needs a terminal; use dsh run for scripts")
        return USAGE
    return asyncio.run(_chat(session, resume, settings, terminal))


async def _chat(session: str | None, resume: str | None, settings: Settings, terminal: Terminal) -> int:
    from prompt_toolkit import PromptSession

    front_end = FrontEnd(terminal, terminal_asker(terminal))
    async with opened_harness(settings, terminal, [front_end]) as harness:
        async with await agent_for(harness, session, resume) as handle:
            require_model(harness)
            chat, prompts = chat_with(harness, handle), PromptSession[str]()
            _greet(terminal, handle.agent.id, len(handle.agent.pending))
            while (line := await _next_line(prompts)) is not None:
                if line.startswith("/"):
                    await _command(harness, chat, line, terminal)
                elif line.strip():
                    await _say(chat, line, terminal)
            terminal.note(f"session {handle.agent.id} is kept; dsh resume {handle.agent.id} goes on with it")
    return COMPLETED


def _greet(terminal: Terminal, session_id: str, pending: int) -> None:
    terminal.note(f"session {session_id} · /help shows the commands · Ctrl-C stops a turn · Ctrl-D leaves")
    if pending:
        terminal.note(f"{pending} message(s) were accepted before and have not run; they run with your next prompt")


async def _next_line(prompts: PromptSession[str]) -> str | None:
    while True:
        try:
            line = await prompts.prompt_async("> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return None
        return None if line.strip() in ("/exit", "/quit") else line


async def _command(harness: Harness, chat: Chat, line: str, terminal: Terminal) -> None:
    name, _, rest = line[1:].partition(" ")
    command = harness.commands.get(name)
    if command is None:
        for known in harness.commands.list():
            terminal.note(f"/{known.name}  {known.help}")
        terminal.note("/exit  leave")
        return
    try:
        shown = command.handler(chat.agent, rest.strip())
        shown = await shown if inspect.isawaitable(shown) else shown
    except Exception as error:  # noqa: BLE001 - a command that fails must not end the conversation
        terminal.error(f"/{name}: {error}")
        return
    if shown:
        terminal.note(str(shown))


async def _say(chat: Chat, line: str, terminal: Terminal) -> None:
    with on_interrupt(lambda: chat.agent.cancel("interrupted")):
        try:
            async for item in chat.stream(line):
                if isinstance(item, TextDelta):
                    terminal.answer(item.text)
                elif isinstance(item, SessionEvent) and item.type == "assistant/message":
                    terminal.end_answer()
        except (MessageDropped, PromptBlocked) as stopped:
            terminal.note(str(stopped))
            return
        except HarnessError as error:
            terminal.error(str(error))
            return
    terminal.end_answer()
    result = chat.last
    if result is not None and result.reason.kind != "completed":
        detail = result.reason.message or result.reason.reason or ""
        terminal.error(f"the turn ended with {result.reason.kind}: {detail}")
