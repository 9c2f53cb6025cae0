"""
The floor: what a bare asyncio loop costs that nobody would call a harness.

The same scripted model and the same tool as `workload`, no plugins, no checks; a log only where the row is about
one. Nothing a harness could leave out is left in.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from timing import Sample, measured, resident_bytes, stopwatch

ARGUMENTS = '{"a":1,"b":2}'
FINAL = "the sum is done"

Log = Callable[[dict[str, Any]], None]
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


async def _add(a: int, b: int) -> int:
    return a + b


def _script(steps: int) -> list[dict[str, Any]]:
    calls = [{"id": f"call_{index}", "function": {"name": "add", "arguments": ARGUMENTS}} for index in range(steps)]
    return [*({"role": "assistant", "tool_calls": [call]} for call in calls), {"role": "assistant", "content": FINAL}]


def _model(steps: int) -> Callable[[list[Any]], Awaitable[dict[str, Any]]]:
    answers = iter(_script(steps))

    async def model(messages: list[Any]) -> dict[str, Any]:
        return next(answers)

    return model


async def _turn(steps: int, log: Log | None = None) -> list[Any]:
    model, tools = _model(steps), {"add": _add}
    messages: list[Any] = [{"role": "user", "content": "add the numbers"}]
    while True:
        answer = await model(messages)
        messages.append(answer)
        if log:
            log(answer)
        calls = answer.get("tool_calls")
        if not calls:
            return messages
        for call in calls:
            function = call["function"]
            value = await tools[function["name"]](**_decode(function["arguments"]))
            result = {"role": "tool", "tool_call_id": call["id"], "content": str(value)}
            messages.append(result)
            if log:
                log(result)


async def loop(steps: int) -> Sample:
    """One turn."""
    with stopwatch() as watch:
        messages = await _turn(steps)
    assert len(messages) == 2 * steps + 2
    return {"cpu": watch.cpu / steps * 1e6}


async def durable(steps: int) -> Sample:
    """One turn, each message a line of JSON that is with the operating system before the next one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        with open(path, "wb", buffering=0) as file:
            seq = 0

            def log(message: dict[str, Any]) -> None:
                nonlocal seq
                seq += 1
                file.write(_encode({"seq": seq, "time": 1764537335123, "type": "message", "data": message}) + b"\n")

            with stopwatch() as watch:
                await _turn(steps, log)
        size = os.path.getsize(path)
        with stopwatch() as reading:
            events = [_decode(line) for line in path.read_bytes().splitlines()]
        assert len(events) == 2 * steps + 1
    return {"cpu": watch.cpu / steps * 1e6, "bytes": size / steps, "load": reading.cpu * 1e3}


async def deltas(count: int) -> Sample:
    """One answer in so many pieces, joined."""

    async def model() -> AsyncIterator[str]:
        for _ in range(count):
            yield "tok "

    parts: list[str] = []
    with stopwatch() as watch:
        async for piece in model():
            parts.append(piece)
        text = "".join(parts)
    assert len(text) == 4 * count
    return {"cpu": watch.cpu / count * 1e6}


async def agents(count: int, steps: int) -> Sample:
    """So many turns at once, their histories kept."""
    await _turn(steps)
    before = resident_bytes()
    with stopwatch() as watch:
        histories = await asyncio.gather(*(_turn(steps) for _ in range(count)))
    memory = resident_bytes() - before
    assert sum(map(len, histories)) == count * (2 * steps + 2)
    return {"cpu": watch.cpu / (count * steps) * 1e6, "memory": memory / count / 1024}


def main() -> None:
    """One case in a process of its own; see `timing.measured`."""
    measured({"agents": lambda: agents(1000, 10)})


if __name__ == "__main__":
    main()
