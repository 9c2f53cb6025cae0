"""
What the benchmarks run: a fake model, one trivial coroutine tool, five plugins, and a floor to compare with.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import dsh_core as dsh
from dsh_core.testing import ScriptedPlugin

MANY = 10**9
CALL_USAGE = dsh.UsageChunk(dsh.Usage(input=10, output=5))


@dsh.tool
async def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: first number
        b: second number
    """
    return a + b


class FakeModel(dsh.LlmAdapter):
    """
    Calls `add` some times, then says that it is done; one instance may serve many agents.

    Args:
        steps: Tool calls before the answer.
        deltas: Pieces of the answer.
    """

    def __init__(self, steps: int, deltas: int = 1) -> None:
        self.steps = steps
        self.deltas = deltas

    async def stream(self, request: dsh.GenerateRequest) -> AsyncIterator[dsh.StreamChunk]:
        if request.step <= self.steps:
            yield dsh.BlockStart(0, "tool-call")
            yield dsh.ToolCallDelta(0, f"call_{request.step}", "add", '{"a":1,"b":2}')
            yield dsh.BlockEnd(0)
            yield CALL_USAGE
            yield dsh.FinishChunk(dsh.Finish("tool-calls"))
            return
        yield dsh.BlockStart(0, "text")
        for _ in range(self.deltas):
            yield dsh.TextDelta(0, "tok ")
        yield dsh.BlockEnd(0)
        yield CALL_USAGE
        yield dsh.FinishChunk(dsh.Finish("stop"))


class Counter:
    """Observes every event."""

    seen = 0

    @dsh.hookimpl
    def session_event(self, event: dsh.SessionEvent) -> None:
        self.seen += 1


class Gate:
    """Allows every call."""

    @dsh.hookimpl
    async def tools_pre_execute(self, call: dsh.PendingCall) -> dsh.Allow:
        return dsh.Allow()


class Router:
    """Looks at every request and every step."""

    @dsh.hookimpl
    async def agent_request(self, request: dsh.GenerateRequest) -> None:
        return None

    @dsh.hookimpl
    async def agent_pre_step(self, step: int) -> None:
        return None


class Reviewer:
    """Looks at every answer and every result."""

    @dsh.hookimpl
    def agent_step_result(self, message: dsh.Message) -> None:
        return None

    @dsh.hookimpl
    async def tools_post_execute(self, result: dsh.ToolResult) -> None:
        return None


class Budget:
    """Looks at every continuation."""

    @dsh.hookimpl
    def agent_turn_continuation(self, decision: Any) -> None:
        return None


def five_plugins() -> list[object]:
    """Five plugins that implement the hooks of every step."""
    return [Counter(), Gate(), Router(), Reviewer(), Budget()]


def harness(model: FakeModel, extra: Sequence[object] = ()) -> dsh.Harness:
    """A harness with the fake model, the tool and five plugins; the repeat guard is off, as the model repeats."""
    return dsh.Harness(
        plugins=[*five_plugins(), ScriptedPlugin(model), *extra],
        tools=[add],
        autoload=False,
        config={"plugins": {"disable": ["repeat-guard"]}},
    )


OPTIONS = dsh.AgentOptions(model="scripted/fake", system_prompt="You are a calculator.", max_steps=MANY)


class JsonlStore:
    """Provides the JSONL backend in a directory."""

    def __init__(self, root: str) -> None:
        self.root = root

    @dsh.hookimpl
    def register(self, harness: dsh.Harness) -> None:
        from dsh_persistence_jsonl import JsonlPersistence

        harness.provide(dsh.SessionPersistence, JsonlPersistence(self.root))


# -- the floor: a bare loop, no log, no hooks ------------------------------------------------------------


def floor_script(steps: int) -> list[dict[str, Any]]:
    """What the floor's model answers."""
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    calls = [{"role": "assistant", "tool_calls": [{"id": f"call_{i}", **call}]} for i in range(steps)]
    return [*calls, {"role": "assistant", "content": "done"}]


async def floor_turn(steps: int) -> str:
    """One turn of the bare loop."""
    answers = iter(floor_script(steps))

    async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return next(answers)

    messages: list[dict[str, Any]] = [{"role": "user", "content": "add the numbers"}]
    while True:
        message = await model(messages)
        messages.append(message)
        if "tool_calls" not in message:
            return str(message["content"])
        for call in message["tool_calls"]:
            result = floor_add(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})


def floor_add(a: int, b: int) -> int:
    """The tool of the floor."""
    return a + b


async def floor_stream(deltas: int) -> str:
    """One answer of the bare loop."""

    async def model() -> AsyncIterator[str]:
        for _ in range(deltas):
            yield "tok "

    return "".join([piece async for piece in model()])
