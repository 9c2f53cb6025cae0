"""
The same work on dsh: with its log, five plugins that implement hooks, and invariants off.

The tool is a coroutine function. A plain function runs in a thread, which alone costs more than a whole step.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from floor import ARGUMENTS, FINAL
from timing import Sample, measured, resident_bytes, stopwatch

import dsh_core as dsh
from dsh_core.content import Finish, GenerateRequest, Usage
from dsh_core.decisions import Allow, ContinuationDecision, ResultDecision
from dsh_core.llm import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    LlmAdapter,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.testing import ScriptedPlugin

if TYPE_CHECKING:
    from dsh_core.session import SessionEvent
    from dsh_core.tools import PendingCall, ToolResult

OPTIONS = dsh.AgentOptions(model="scripted/model", max_steps=1_000_000)


@dsh.tool(repeatable=True)
async def add(a: int, b: int) -> int:
    """
    Add two integers.

    Args:
        a: First number.
        b: Second number.
    """
    return a + b


class Model(LlmAdapter):
    """
    A model that calls the tool so many times, then answers in so many pieces; again for each turn.

    Args:
        steps: Calls a turn.
        pieces: Deltas of the answer.
    """

    def __init__(self, steps: int, pieces: int = 1) -> None:
        self._steps = steps
        self._pieces = pieces

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """One answer, told from the number of the step."""
        if request.step <= self._steps:
            yield BlockStart(0, "tool-call")
            yield ToolCallDelta(0, f"call_{request.step}", "add", ARGUMENTS)
            yield BlockEnd(0)
            yield UsageChunk(Usage(10, 5))
            yield FinishChunk(Finish("tool-calls"))
            return
        yield BlockStart(0, "text")
        for _ in range(self._pieces):
            yield TextDelta(0, "tok " if self._pieces > 1 else FINAL)
        yield BlockEnd(0)
        yield UsageChunk(Usage(10, 5))
        yield FinishChunk(Finish("stop"))


class Counter:
    """Counts events."""

    seen = 0

    @dsh.hookimpl
    def session_event(self, event: SessionEvent) -> None:
        """Count."""
        self.seen += 1


class Gate:
    """Allows every call."""

    @dsh.hookimpl
    async def tools_pre_execute(self, call: PendingCall) -> Allow:
        """Allow."""
        return Allow()


class Requests:
    """Looks at every request."""

    @dsh.hookimpl
    async def agent_request(self, request: GenerateRequest) -> GenerateRequest | None:
        """Leave it."""
        return None


class Decisions:
    """Looks at the end of every step."""

    @dsh.hookimpl
    def agent_turn_continuation(self, decision: ContinuationDecision) -> ContinuationDecision | None:
        """Leave it."""
        return None


class Results:
    """Looks at every result."""

    @dsh.hookimpl
    async def tools_post_execute(self, result: ToolResult) -> ResultDecision | None:
        """Leave it."""
        return None


class Jsonl:
    """Stores sessions in a folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    @dsh.hookimpl
    def register(self, harness: dsh.Harness) -> None:
        """Provide the backend."""
        from dsh_persistence_jsonl import JsonlPersistence

        harness.provide(dsh.SessionPersistence, JsonlPersistence(self._root))


def _harness(model: Model, *more: object) -> dsh.Harness:
    five: Sequence[object] = (Counter(), Gate(), Requests(), Decisions(), Results())
    return dsh.Harness(plugins=[ScriptedPlugin(model), *five, *more], tools=[add], autoload=False)


async def _turn(harness: dsh.Harness, steps: int) -> float:
    """CPU seconds of one turn of a fresh agent."""
    async with await harness.agents.create(options=OPTIONS) as handle:
        with stopwatch() as watch:
            result = await handle.agent.send("add the numbers")
        assert result.reason.kind == "completed"
        assert len(handle.agent.session.derive_messages()) == 2 * steps + 2
    return watch.cpu


async def loop(steps: int) -> Sample:
    """One turn."""
    async with _harness(Model(steps)) as harness:
        return {"cpu": await _turn(harness, steps) / steps * 1e6}


async def durable(steps: int) -> Sample:
    """One turn, its events with the operating system at every step; then read back."""
    with tempfile.TemporaryDirectory() as folder:
        async with _harness(Model(steps), Jsonl(folder)) as harness:
            cpu = await _turn(harness, steps)
        logs = [path for path in Path(folder).rglob("*.jsonl") if path.is_file()]
        size = sum(os.path.getsize(path) for path in logs)
    return {"cpu": cpu / steps * 1e6, "bytes": size / steps}


async def resume(steps: int) -> Sample:
    """An agent on a stored session of so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        async with _harness(Model(steps), Jsonl(folder)) as harness:
            async with await harness.agents.create("stored", options=OPTIONS) as handle:
                await handle.agent.send("add the numbers")
        async with _harness(Model(steps), Jsonl(folder)) as harness:
            with stopwatch() as watch:
                handle = await harness.agents.resume("stored", options=OPTIONS)
            events = len(handle.agent.session.events)
            await handle.dispose()
    return {"load": watch.cpu * 1e3, "event": watch.cpu / events * 1e6}


async def deltas(count: int) -> Sample:
    """One answer in so many pieces, every one of them in the log."""
    async with _harness(Model(0, count)) as harness:
        async with await harness.agents.create(options=OPTIONS) as handle:
            with stopwatch() as watch:
                result = await handle.agent.send("write")
            assert len(result.text) == 4 * count
    return {"cpu": watch.cpu / count * 1e6}


async def agents(count: int, steps: int) -> Sample:
    """So many agents at once; what is counted is making them, their turns, and the memory they hold afterwards."""
    async with _harness(Model(steps)) as harness:
        await _turn(harness, steps)
        before = resident_bytes()
        with stopwatch() as watch:
            handles = [await harness.agents.create(options=OPTIONS) for _ in range(count)]
            results = await asyncio.gather(*(handle.agent.send("add the numbers") for handle in handles))
        memory = resident_bytes() - before
        assert all(result.reason.kind == "completed" for result in results)
    return {"cpu": watch.cpu / (count * steps) * 1e6, "memory": memory / count / 1024}


async def first_turn() -> None:
    """What a fresh interpreter is asked for: one scripted turn with a call of the tool."""
    async with _harness(Model(1)) as harness:
        await _turn(harness, 1)


def main() -> None:
    """One case in a process of its own; see `timing.measured`."""
    measured({"agents": lambda: agents(1000, 10)})


if __name__ == "__main__":
    main()
