"""
`make bench`: what dsh costs, beside a bare loop measured in the same run.

Usage: run.py [--runs N] [--json] [ROW...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import version

import attrs
import floor
import workload
from timing import Sample, cold_cpu, in_process, in_processes

NOTE = (
    "CPU time, medians. dsh runs with its log, five plugins that implement hooks, and invariants off; the tool is a\n"
    "coroutine function. floor: a bare asyncio loop with the same model and tool, without log and hooks.\n"
    "`import dsh_core` loads each public name when it is first used; the first scripted turn pays for all it needs."
)
_TURN = "import asyncio, workload; asyncio.run(workload.first_turn())"


@attrs.frozen
class Row:
    """
    One line of the table.

    Args:
        name: What was measured.
        unit: Of figure and floor.
        figure: dsh.
        floor: The bare loop, where it can do such a thing.
        must: What dsh has to reach, at most.
        aim: What it would like to.
    """

    name: str
    unit: str
    figure: float
    floor: float | None
    must: float
    aim: float

    @property
    def reached(self) -> str:
        """Which of the two the figure keeps."""
        return "aim" if self.figure <= self.aim else "must" if self.figure <= self.must else "no"


@attrs.frozen
class Bench:
    """
    Measures rows.

    Args:
        runs: How often each.
    """

    runs: int

    def _loop(self, steps: int) -> tuple[Sample, Sample]:
        return in_process(lambda: workload.loop(steps), self.runs), in_process(lambda: floor.loop(steps), self.runs)

    def loop(self) -> Iterable[Row]:
        """One turn in memory, and how it grows."""
        short, short_floor = self._loop(100)
        long, long_floor = self._loop(1000)
        yield Row("loop, 100 steps", "µs/step", short["cpu"], short_floor["cpu"], 120, 50)
        yield Row("loop, 1,000 steps", "µs/step", long["cpu"], long_floor["cpu"], 120, 50)
        grown, floor_grown = long["cpu"] / short["cpu"], long_floor["cpu"] / short_floor["cpu"]
        yield Row("loop, 1,000 steps against 100", "times", grown, floor_grown, 1.15, 1.05)

    def durable(self) -> Iterable[Row]:
        """One turn with its log on disk."""
        for steps in (200, 1000):
            ours = in_process(lambda steps=steps: workload.durable(steps), self.runs)  # type: ignore[misc]
            bare = in_process(lambda steps=steps: floor.durable(steps), self.runs)  # type: ignore[misc]
            yield Row(f"durable log, {steps:,} steps", "µs/step", ours["cpu"], bare["cpu"], 180, 60)
        yield Row("bytes on disk, 1,000 steps", "B/step", ours["bytes"], bare["bytes"], 1250, 1000)

    def deltas(self) -> Iterable[Row]:
        """One long answer."""
        ours = in_process(lambda: workload.deltas(10_000), self.runs)
        bare = in_process(lambda: floor.deltas(10_000), self.runs)
        yield Row("10,000 deltas, all logged", "µs/delta", ours["cpu"], bare["cpu"], 5, 2.5)

    def agents(self) -> Iterable[Row]:
        """Many agents."""
        ours = in_processes("workload.py", "agents", self.runs)
        bare = in_processes("floor.py", "agents", self.runs)
        yield Row("1,000 agents x 10 steps", "µs/step", ours["cpu"], bare["cpu"], 200, 90)
        yield Row("memory of 1,000 agents", "KiB/agent", ours["memory"], bare["memory"], 64, 32)

    def resume(self) -> Iterable[Row]:
        """Reading a log back."""
        ours = in_process(lambda: workload.resume(1000), self.runs)
        bare = in_process(lambda: floor.durable(1000), self.runs)
        large = in_process(lambda: workload.resume(16_666), 2)
        yield Row("resume 1,000 steps", "ms", ours["load"], bare["load"], 60, 20)
        yield Row("an event of 100,000 against 6,000", "times", large["event"] / ours["event"], None, 1.3, 1.1)

    def start(self) -> Iterable[Row]:
        """Fresh interpreters."""
        bare, bare_loop = cold_cpu("pass", self.runs), cold_cpu("import asyncio", self.runs)
        yield Row("import dsh_core", "ms", cold_cpu("import dsh_core", self.runs), bare, 130, 100)
        yield Row("first scripted turn", "ms", cold_cpu(_TURN, self.runs), bare_loop, 350, 200)


GROUPS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "loop": Bench.loop,
    "durable": Bench.durable,
    "deltas": Bench.deltas,
    "agents": Bench.agents,
    "resume": Bench.resume,
    "start": Bench.start,
}


def machine() -> dict[str, str]:
    """What the figures belong to."""
    packages = ("dsh-core", "attrs", "msgspec", "pluggy")
    return {
        "cpu": f"{_processor()} x {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def show(row: Row) -> None:
    """Print one line."""
    bare = "" if row.floor is None else f"{row.floor:,.4g}"
    ratio = "" if not row.floor else f"{row.figure / row.floor:,.1f}x"
    print(
        f"{row.name:<35}{f'{row.figure:,.4g}':>9} {row.unit:<10}{bare:>9}{ratio:>9}{row.must:>9,.4g}{row.aim:>8,.4g}"
        f"   {row.reached}",
        flush=True,
    )


def main() -> None:
    """Measure and print; there is nothing to pass or to fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument("--runs", type=int, default=5, help="how often each row is measured; the median counts")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.rows if name not in GROUPS]
    if unknown:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    bench, facts, rows = Bench(arguments.runs), machine(), []
    if not arguments.json:
        print("  ".join(f"{name} {value}" for name, value in facts.items()))
        print(NOTE)
        print(f"{'':35}{'dsh':>9} {'':<10}{'floor':>9}{'ratio':>9}{'must':>9}{'aim':>8}   reached")
    for name in arguments.rows or GROUPS:
        for row in GROUPS[name](bench):
            rows.append(row)
            if not arguments.json:
                show(row)
    if arguments.json:
        figures = [{**attrs.asdict(row), "reached": row.reached} for row in rows]
        print(json.dumps({"machine": facts, "rows": figures}, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
