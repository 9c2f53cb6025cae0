"""
The process that is watched: one turn of a scripted model in the demo's workspace.

Run as `python -m dsh_cli.demo.turn first|second`, with the workspace as its working directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from dsh_cli.frontend import describe_call
from dsh_core import ApprovalGranted, Config, Harness, TextBlock, hookimpl
from dsh_core.session import events as ev
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, text

__all__ = ["SESSION", "run_turn"]

SESSION = "demo"
_PROMPTS = {
    "first": "Read notes.txt, then count the words slowly.",
    "second": "What happened? Count them again, please.",
}
_SCRIPTS: dict[str, list[Any]] = {
    "first": [
        call("read", path="notes.txt"),
        call("bash", command="sleep 60; wc -w < notes.txt > count.txt", description="Count the words, slowly"),
        text("(never said: the process is killed before)"),
    ],
    "second": [
        call("bash", command="wc -w < notes.txt | tee count.txt", description="Count the words"),
        text("The first count was interrupted when the process was killed, so I counted again: 9 words."),
    ],
}


class Spectator:
    """The plugin that shows the demo's events, and says yes when the gate asks."""

    name = "spectator"

    @hookimpl
    def approval_request(self, approval: Any) -> ApprovalGranted:
        """Answer the gate's question for the person who watches."""
        say(
            "ask",
            f"the gate asks: {describe_call(approval.call.name, approval.call.arguments)} — the demo says yes, once",
        )
        return ApprovalGranted()

    @hookimpl
    def session_event(self, event: Any) -> None:
        """Show what enters the log."""
        match event.data:
            case ev.UserMessageEvent(content=content):
                say("user", _words(content))
            case ev.ToolCallEvent(name=name, arguments=arguments):
                say("call", f"{name} {arguments}")
            case ev.ToolResultEvent(content=content, is_error=failed):
                say("fail" if failed else "result", shortened(" / ".join(_words(content).strip().splitlines())))
            case ev.TurnEndEvent(turn=turn, reason=reason):
                say("turn", f"turn {turn} ended: {reason.kind}")

    @hookimpl
    async def tools_execute(self, call: Any, call_next: Any) -> Any:
        """Tell the watching process when the body of the slow call begins."""
        if call.name == "bash" and "sleep" in call.arguments["command"]:
            say("RUNNING", call.arguments["command"])
        return await call_next()


def _words(content: Sequence[object]) -> str:
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def shortened(words: str, limit: int = 110) -> str:
    """At most `limit` characters, cut between words."""
    return words if len(words) <= limit else words[:limit].rsplit(" ", 1)[0] + " …"


def say(kind: str, words: str) -> None:
    """One line for the watching process."""
    print(f"{kind}\t{words}", flush=True)  # noqa: T201 - this process speaks through its stdout


async def run_turn(act: str) -> None:
    """
    Run one turn of the demo.

    Args:
        act: `first` creates the session, `second` resumes it.
    """
    adapter = ScriptedAdapter(_SCRIPTS[act])
    config = Config.from_mapping({"model": "scripted/demo", "approval": {"by": "spectator"}}, source="demo")
    async with Harness(plugins=[Spectator(), ScriptedPlugin(adapter)], config=config) as harness:
        if act == "first":
            handle = await harness.agents.create(SESSION, cwd=os.getcwd())
        else:
            handle = await harness.agents.resume(SESSION)
            for event in handle.agent.session.events[-3:]:
                Spectator().session_event(event)
            say("note", "resumed: the open call was answered, its turn closed, nothing ran twice")
        async with handle:
            receipt = handle.agent.send(_PROMPTS[act])
            await receipt.stored
            say("answer", str(await receipt))


if __name__ == "__main__":
    logging.getLogger("dsh").setLevel(logging.ERROR)
    asyncio.run(run_turn(sys.argv[1]))
