"""The pytest plugin, as a plugin author meets it: in a project of their own, without configuration."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ANYIO = """
import pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

# Test functions that pass under every runner of coroutines.
GOOD = '''
import dsh_core as dsh
from dsh_core.testing import call, text


@dsh.tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def test_chat(dsh_chat):
    async with dsh_chat(call("add", a=1, b=2), text("three"), tools=[add]) as chat:
        assert str(await chat.ask("1 + 2?")) == "three"
        assert chat.harness.tools.get("add") is not None


async def test_scripted(dsh_chat, dsh_scripted):
    adapter = dsh_scripted(text("hello"))
    async with dsh_chat(adapter) as chat:
        await chat.ask("hi")
    assert len(adapter.requests) == 1


async def test_harness(dsh_harness):
    class Greeter:
        @dsh.hookimpl
        def register(self, harness):
            harness.tools.register(add)

    async with dsh_harness(plugins=[Greeter()]) as harness:
        assert harness.tools.get("add") is not None
        assert "invariants" in [plugin.name for plugin in harness.plugins.list()]
        async with await harness.agents.create(options=dsh.AgentOptions(model="x/y")):
            assert len(harness.agents.list()) == 1
    assert harness.agents.list() == []
'''

UNPLAYED = """
from dsh_core.testing import text

async def test_unplayed(dsh_chat):
    async with dsh_chat(text("one"), text("two")) as chat:
        await chat.ask("hi")

async def test_failing_anyway(dsh_chat):
    async with dsh_chat(text("one"), text("two")) as chat:
        assert await chat.ask("hi") is None, "this is what is wrong"
"""

BROKEN_RULE = '''
import dsh_core as dsh
from dsh_core.session.events import UserMessageEvent
from dsh_core.testing import invariants, text


class Meddler:
    """Breaks a rule of the log and says nothing of it."""

    @dsh.hookimpl
    def agent_pre_step(self, agent):
        try:
            agent.session.append(UserMessageEvent("made-up", "psst"))
        except dsh.InvariantViolation:
            pass


async def test_meddling(dsh_chat):
    async with dsh_chat(text("one"), plugins=[Meddler()]) as chat:
        assert str(await chat.ask("hi")) == "one"

async def test_own_invariants(dsh_chat):
    async with dsh_chat(text("one"), plugins=[invariants]) as chat:
        await chat.ask("hi")
'''

CONTRACT = """
import pytest
from dsh_core.testing import PersistenceContract


class TestBroken(PersistenceContract):
    @pytest.fixture
    def make_store(self):
        return lambda: None
"""


class Project:
    """A directory with tests, and a pytest of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, code: str, *options: str, head: str = ANYIO, mode: str | None = None) -> tuple[int, str]:
        """Exit code and output of pytest on one test module; `mode` is that of pytest-asyncio, if it takes part."""
        runner = ["-p", "no:asyncio", "-W", "error"] if mode is None else [f"--asyncio-mode={mode}"]
        (self.path / "test_it.py").write_text(head + code)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *runner, *options, str(self.path)],
            capture_output=True,
            text=True,
            cwd=self.path,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""},
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_the_fixtures_work_under_anyio(project: Project) -> None:
    """10-api, 40-quality: without configuration."""
    code, output = project.run(GOOD)
    assert code == 0, output
    assert "3 passed" in output


@pytest.mark.skipif(not installed("pytest_asyncio"), reason="pytest-asyncio is not installed")
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_fixtures_work_under_pytest_asyncio(project: Project, mode: str) -> None:
    """40-quality: under any mode, and whether the tests are marked for it or for anyio."""
    mark = "import pytest\npytestmark = pytest.mark.asyncio\n" if mode == "strict" else ""
    for head in (mark, ANYIO):
        code, output = project.run(GOOD, head=head, mode=mode)
        assert code == 0, output
        assert "3 passed" in output


def test_the_fixtures_are_listed_with_what_they_do(project: Project) -> None:
    """10-api: `pytest --fixtures` is where authors look."""
    code, output = project.run(GOOD, "--fixtures")
    assert code == 0, output
    for name in ("dsh_harness", "dsh_scripted", "dsh_chat"):
        assert f"\n{name}" in output
    assert "no docstring available" not in output.partition("\ndsh_harness")[2][:300]


def test_items_that_were_not_played_fail_a_test_that_passed(project: Project) -> None:
    """M-6: named at teardown; a test that failed is left with its own failure."""
    code, output = project.run(UNPLAYED)
    assert code == 1, output
    assert "1 of 2 scripted items were not played" in output
    assert "this is what is wrong" in output
    assert "1 failed, 1 passed, 1 error" in output


def test_a_broken_rule_fails_the_test_although_it_was_swallowed(project: Project) -> None:
    """S-12: a test that brings its own invariants is left alone."""
    code, output = project.run(BROKEN_RULE)
    assert code == 1, output
    assert "InvariantViolation" in output
    assert "made-up" in output
    assert "1 failed, 1 passed" in output


def test_contract_failures_are_explained(project: Project) -> None:
    """40-quality: asserts of the contract suites are rewritten; collecting them warns of nothing."""
    code, output = project.run(CONTRACT, "-x", "-q")
    assert code == 1, output
    assert "PytestAssertRewriteWarning" not in output


def test_a_suite_that_uses_no_fixture_is_left_alone(project: Project) -> None:
    """40-quality: the plugin is loaded in every pytest of the environment."""
    code, output = project.run("def test_nothing():\n    pass\n", head="")
    assert code == 0, output
