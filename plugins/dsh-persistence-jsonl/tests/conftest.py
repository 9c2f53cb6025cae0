"""Fixtures of the JSONL store's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dsh_persistence_jsonl import JsonlPersistence


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> JsonlPersistence:
    return JsonlPersistence(root)


@pytest.fixture
def process():
    """Starts Python programs that can import what this one can; what is left of them is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()
