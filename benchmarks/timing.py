"""
How everything here is measured: CPU time of the process, the median of several runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

__all__ = ["Sample", "cold_cpu", "in_process", "in_processes", "measured", "resident_bytes", "stopwatch"]

Sample = dict[str, float]
"""The figures of one run by name."""


@attrs.define
class Stopwatch:
    """CPU seconds, once stopped."""

    cpu: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure the CPU time of the body; what lies about from before is collected first."""
    watch = Stopwatch()
    gc.collect()
    began = time.process_time()
    yield watch
    watch.cpu = time.process_time() - began


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def in_process(run: Callable[[], Awaitable[Sample]], times: int) -> Sample:
    """The medians of so many runs in this process, after one that warms up."""
    samples = [asyncio.run(_awaited(run)) for _ in range(times + 1)][1:]
    return _medians(samples)


async def _awaited(run: Callable[[], Awaitable[Sample]]) -> Sample:
    return await run()


def in_processes(script: str, case: str, times: int) -> Sample:
    """The medians of so many runs, each in a process of its own, so that memory is only that run's."""
    here = Path(__file__).parent
    samples: list[Sample] = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, str(here / script), case], capture_output=True, text=True, check=True, env=_environment()
        )
        samples.append(json.loads(done.stdout))
    return _medians(samples)


def measured(cases: Mapping[str, Callable[[], Awaitable[Sample]]]) -> None:
    """What a script does that `in_processes` starts: run the case it was given and print its figures."""
    print(json.dumps(asyncio.run(_awaited(cases[sys.argv[1]]))))


def cold_cpu(code: str, times: int) -> float:
    """Milliseconds of CPU that a fresh interpreter needs for `code`, start and end included; the median."""
    return statistics.median(_cold_cpu(code) for _ in range(times))


def _cold_cpu(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSH_")}
    return {**kept, "PYTHONPATH": str(Path(__file__).parent)}


def _medians(samples: list[Sample]) -> Sample:
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}
