"""
The session fixture `real_model_server`.

`conftest.py` at the root of the repository loads this module as a plugin, so the fixture is there in `tests/` and
in `plugins/*/tests`. `DSH_REAL_MODEL_URL` names a server that runs already. Tests that use it carry the marker
`real_model` and are skipped, with the reason, where the packages are missing.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from realmodel.serve import missing

_HERE: Final = Path(__file__).parent
_START: Final = 60.0


def _start(context: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, str(_HERE / "serve.py"), "--with-parent", "--context", str(context)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        line = process.stdout.readline().strip() if ready else ""
        if line.startswith("http"):
            _await_health(line, deadline)
            return process, line
    process.kill()
    process.wait()
    raise RuntimeError(f"the llama.cpp server did not start within {_START:g} s; run: {' '.join(command)}")


def _await_health(base_url: str, deadline: float) -> None:
    health = base_url.removesuffix("/v1") + "/health"
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"the llama.cpp server at {base_url} never became healthy")


@pytest.fixture(scope="session")
def real_model_server() -> Iterator[str]:
    """The base_url of a llama.cpp server with a small model, started once per test session; context 8192 tokens."""
    if given := os.environ.get("DSH_REAL_MODEL_URL"):
        yield given
        return
    if reason := missing():
        pytest.skip(reason)
    process, base_url = _start(8192)
    try:
        yield base_url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
