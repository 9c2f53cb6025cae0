"""
The process that test_kill.py kills: one agent that is given work without end.

    python kill_worker.py ROOM SESSION SEED

What it has seen done it writes into two files beside the log, each line with one `write`, which a kill cannot
cut: `accepted` (messages whose `receipt.stored` returned) and `ran` (idempotency keys of tool bodies that began).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from dsh_persistence_jsonl import JsonlPersistence

import dsh_core as dsh
from dsh_core.persistence import SessionPersistence
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, invariants, text

__all__ = ["Store", "note", "tools"]


class Store:
    """The plugin that stores sessions in the room."""

    name = "store"

    def __init__(self, room: Path) -> None:
        self._backend = JsonlPersistence(str(room / "sessions"))

    @dsh.hookimpl
    def register(self, harness: Any) -> None:
        """Offer the store."""
        harness.provide(SessionPersistence, self._backend)

    async def stop(self) -> None:
        """Give the sessions back."""
        await self._backend.aclose()


class Judge:
    """A gate that asks about careful calls, and the person who answers, slowly and not always with yes."""

    name = "judge"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    @dsh.hookimpl
    async def tools_pre_execute(self, call: Any) -> Any:
        """Ask about what is careful."""
        return dsh.Ask("it is careful") if call.name == "careful" else dsh.Allow()

    @dsh.hookimpl
    async def approval_request(self) -> Any:
        """Answer."""
        await asyncio.sleep(self._chance.random() * 0.05)
        return dsh.ApprovalGranted() if self._chance.random() < 0.7 else dsh.ApprovalRefused("not now")


def note(path: Path, line: str) -> None:
    """One line, with one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def tools(room: Path) -> list[Any]:
    """Tools whose bodies say that they began: alone, in parallel, in a thread, after a question."""

    async def begin(context: dsh.ToolContext, seconds: float) -> str:
        note(room / "ran", context.idempotency_key)
        await asyncio.sleep(seconds)
        return "done"

    @dsh.tool
    async def alone(seconds: float, context: dsh.ToolContext) -> str:
        """Work."""
        return await begin(context, seconds)

    @dsh.tool(parallel=True)
    async def beside(seconds: float, context: dsh.ToolContext) -> str:
        """Work beside others."""
        return await begin(context, seconds)

    @dsh.tool
    async def careful(seconds: float, context: dsh.ToolContext) -> str:
        """Work after a question."""
        return await begin(context, seconds)

    @dsh.tool
    def threaded(seconds: float, context: dsh.ToolContext) -> str:
        """Work in a thread."""
        note(room / "ran", context.idempotency_key)
        time.sleep(seconds)
        return "done"

    return [alone, beside, careful, threaded]


def answer(chance: random.Random) -> Any:
    """What the model does next."""
    if chance.random() < 0.35:
        return text("words " * chance.randrange(1, 400))
    names = chance.choices(["alone", "beside", "beside", "careful", "threaded"], k=chance.choice([1, 1, 2, 4]))
    return calls(*(call(name, seconds=chance.random() * 0.04) for name in names))


async def work(room: Path, session: str, chance: random.Random) -> None:
    """Send, steer and inject until killed."""
    script = ScriptedAdapter([answer(chance) for _ in range(5000)])
    plugins = [Store(room), Judge(chance), ScriptedPlugin(script), invariants]
    config = {"model": "scripted/endless", "approval": {"by": "judge"}, "plugins": {"disable": ["repeat-guard"]}}
    async with dsh.open(session, plugins=plugins, tools=tools(room), config=config, autoload=False) as chat:
        os.write(1, b"READY\n")
        while True:
            verb = chance.choices([chat.agent.send, chat.agent.steer], [3, 2])[0]
            receipt = verb(f"message {chance.randrange(10**9)}")
            if chance.random() < 0.8:
                await receipt.stored
                note(room / "accepted", receipt.message_id)
            if chance.random() < 0.1:
                chat.agent.inject("a fact", source=dsh.Source.plugin("worker"))
            await asyncio.sleep(chance.random() * 0.03)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], random.Random(sys.argv[3])))
