"""
How fast dsh is: a bare loop (the floor) and dsh in one run, as figures and ratios.

    python benchmarks/run.py [--json] [--reps N]

dsh runs with its log, its hooks, five loaded plugins and the invariants off. CPU time, median of at least
five repetitions. The tool is a coroutine: plain functions run in threads, which costs some 50 to 85 µs more.
Nothing is asserted; machines differ, so look at the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
from fakes import OPTIONS, FakeModel, JsonlStore, floor_stream, floor_turn, harness


@attrs.frozen
class Row:
    """One line of the table; `floor` is the bare loop's figure for the same work, where there is one."""

    name: str
    value: float
    unit: str
    must: float
    aim: float
    floor: float | None = None


class Timer:
    """CPU time of a block, in microseconds."""

    microseconds = 0.0

    def __enter__(self) -> Timer:
        gc.collect()
        self._began = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.microseconds = (time.process_time() - self._began) * 1e6


def median(measure: Callable[[], Awaitable[float]], reps: int) -> float:
    """The median of several runs after one that warms up."""
    asyncio.run(measure())  # type: ignore[arg-type]
    return statistics.median(asyncio.run(measure()) for _ in range(reps))  # type: ignore[arg-type]


# -- what is measured ------------------------------------------------------------------------------------


async def one_turn(steps: int, root: str | None = None) -> float:
    """Microseconds a step of one turn, in memory or with the durable log in `root`."""
    extra = [JsonlStore(root)] if root is not None else []
    async with harness(FakeModel(steps), extra) as running:
        async with await running.agents.create(options=OPTIONS) as handle:
            with Timer() as timer:
                result = await handle.agent.send("add the numbers")
            assert result.reason.kind == "completed", result.reason
    return timer.microseconds / steps


async def floor_steps(steps: int) -> float:
    """The same of the bare loop."""
    with Timer() as timer:
        await floor_turn(steps)
    return timer.microseconds / steps


async def durable(steps: int) -> float:
    """Microseconds a step with every event with the operating system at its barrier."""
    with tempfile.TemporaryDirectory() as root:
        return await one_turn(steps, root)


async def bytes_a_step(steps: int) -> float:
    """Bytes on disk a step, checksums included."""
    with tempfile.TemporaryDirectory() as root:
        await one_turn(steps, root)
        return sum(path.stat().st_size for path in Path(root).rglob("*.jsonl")) / steps


async def one_stream(deltas: int) -> float:
    """Microseconds a delta of one answer, losslessly logged."""
    async with harness(FakeModel(0, deltas)) as running:
        async with await running.agents.create(options=OPTIONS) as handle:
            with Timer() as timer:
                await handle.agent.send("say much")
    return timer.microseconds / deltas


async def floor_deltas(deltas: int) -> float:
    """The same of the bare loop."""
    with Timer() as timer:
        await floor_stream(deltas)
    return timer.microseconds / deltas


async def many_agents(count: int, steps: int = 10) -> float:
    """Microseconds a step of many agents at once."""
    async with harness(FakeModel(steps)) as running:
        handles = [await running.agents.create(options=OPTIONS) for _ in range(count)]
        with Timer() as timer:
            await asyncio.gather(*(handle.agent.send("add the numbers") for handle in handles))
    return timer.microseconds / (count * steps)


async def memory_an_agent(count: int, steps: int = 10) -> float:
    """KiB of resident memory an agent that has run a turn and waits."""
    async with harness(FakeModel(steps)) as running:
        gc.collect()
        before = resident_kib()
        handles = [await running.agents.create(options=OPTIONS) for _ in range(count)]
        await asyncio.gather(*(handle.agent.send("add the numbers") for handle in handles))
        gc.collect()
        return (resident_kib() - before) / count


def fresh_memory() -> float:
    """The same in a fresh process, where no memory of earlier cases can be used again."""
    program = "import asyncio, run; print(asyncio.run(run.memory_an_agent(1000)))"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    ran = subprocess.run([sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True)
    return float(ran.stdout)


def resident_kib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


async def resume(steps: int) -> float:
    """Milliseconds to open a stored session of one turn."""
    with tempfile.TemporaryDirectory() as root:
        async with harness(FakeModel(steps), [JsonlStore(root)]) as running:
            async with await running.agents.create("kept", options=OPTIONS) as handle:
                await handle.agent.send("add the numbers")
        async with harness(FakeModel(steps), [JsonlStore(root)]) as running:
            with Timer() as timer:
                handle = await running.agents.resume("kept", options=OPTIONS)
            assert handle.agent.session.last_turn == 1
            await handle.dispose()
    return timer.microseconds / 1000


def cold(program: str, reps: int) -> float:
    """Milliseconds of CPU of a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    figures = []
    for _ in range(reps + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000)
    return statistics.median(figures[1:])


FIRST_TURN = """
import asyncio
from fakes import FakeModel, OPTIONS, harness
async def main():
    async with harness(FakeModel(1)) as running:
        async with await running.agents.create(options=OPTIONS) as handle:
            await handle.agent.send("go")
asyncio.run(main())
"""


def measure(reps: int) -> list[Row]:
    """Measure every row."""
    few = max(3, reps // 2)
    floor_100 = median(lambda: floor_steps(100), reps)
    floor_1000 = median(lambda: floor_steps(1000), reps)
    loop_100 = median(lambda: one_turn(100), reps)
    loop_1000 = median(lambda: one_turn(1000), reps)
    resume_1000 = median(lambda: resume(1000), few)
    resume_16000 = median(lambda: resume(16_000), 1)
    return [
        Row("loop, 100 steps", loop_100, "µs/step", 120, 50, floor_100),
        Row("loop, 1,000 steps against 100", loop_1000 / loop_100, "×", 1.15, 1.05, floor_1000 / floor_100),
        Row("durable log, 200 steps", median(lambda: durable(200), reps), "µs/step", 180, 60, floor_1000),
        Row("durable log, 1,000 steps", median(lambda: durable(1000), reps), "µs/step", 180, 60, floor_1000),
        Row("bytes on disk", median(lambda: bytes_a_step(1000), 1), "B/step", 1250, 1000),
        Row("10,000 deltas", median(lambda: one_stream(10_000), reps), "µs/delta", 5, 2.5,
            median(lambda: floor_deltas(10_000), reps)),
        Row("1,000 agents, 10 steps each", median(lambda: many_agents(1000), few), "µs/step", 200, 90, floor_100),
        Row("memory, 1,000 agents", fresh_memory(), "KiB/agent", 64, 32),
        Row("resume, 1,000 steps", resume_1000, "ms", 60, 20),
        Row("resume, 16,000 steps, a 1,000", resume_16000 / 16, "ms", 60 * 1.3, 20 * 1.3),
        Row("import dsh_core", cold("import dsh_core", reps), "ms", 130, 100, cold("import asyncio", reps)),
        Row("first scripted turn", cold(FIRST_TURN, reps), "ms", 350, 200, cold("import asyncio", reps)),
    ]  # fmt: skip


def machine() -> str:
    """What this was measured on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, dsh-core {version()}"


def version() -> str:
    """The version that is measured."""
    from importlib.metadata import version as version_of

    return version_of("dsh-core")


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(machine())
    print("CPU time, medians; dsh with log, hooks and five plugins; coroutine tool; invariants off")
    print(f"{'case':<32}{'dsh':>10} {'unit':<10}{'floor':>8}{'ratio':>8}{'must':>8}{'aim':>7}  reached")
    for row in rows:
        floor = f"{row.floor:8.2f}" if row.floor is not None else " " * 8
        ratio = f"{row.value / row.floor:7.1f}×" if row.floor else " " * 8
        reached = "aim" if row.value <= row.aim else "must" if row.value <= row.must else "no"
        print(f"{row.name:<32}{row.value:>10.2f} {row.unit:<10}{floor}{ratio}{row.must:>8g}{row.aim:>7g}  {reached}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--reps", type=int, default=5, help="repetitions of each case (default 5)")
    options = parser.parse_args()
    logging.getLogger("dsh").setLevel(logging.ERROR)
    rows = measure(options.reps)
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [attrs.asdict(row) for row in rows]}, ensure_ascii=False))
    else:
        show(rows)


if __name__ == "__main__":
    main()
