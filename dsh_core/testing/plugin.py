"""
The pytest plugin: fixtures for whoever tests an agent or a plugin of dsh.

All fixtures are plain functions that make async context managers, so they work under anyio and under every
mode of pytest-asyncio without configuration::

    async def test_it_greets(dsh_chat):
        async with dsh_chat(text("hello")) as chat:
            assert str(await chat.ask("hi")) == "hello"

What needs dsh is imported when a fixture is used: a suite that uses none pays for none.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

import dsh_core.testing

if TYPE_CHECKING:
    from dsh_core.config import Config
    from dsh_core.errors import InvariantViolation
    from dsh_core.harness import Chat, Harness
    from dsh_core.llm.scripted import ScriptedAdapter
    from dsh_core.tools.definition import ToolDefinition

__all__ = ["dsh_chat", "dsh_harness", "dsh_scripted"]

_PASSED: Final = pytest.StashKey[bool]()


def _rewrite_contracts() -> None:
    # Contract suites are no test_*.py files, so that a bare `assert` in them would explain nothing.
    found = pkgutil.iter_modules(dsh_core.testing.__path__, "dsh_core.testing.")
    pytest.register_assert_rewrite(*(module.name for module in found if module.name not in sys.modules))


_rewrite_contracts()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test passed: a fixture has nothing to add to a failure."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def dsh_scripted(request: pytest.FixtureRequest) -> Generator[Callable[..., ScriptedAdapter], None, None]:
    """
    Make a `ScriptedAdapter` from items: `dsh_scripted(call("add", a=1), text("done"))`.

    When the test has passed, every item must have been played.
    """
    from dsh_core.llm.scripted import ScriptedAdapter

    made: list[ScriptedAdapter] = []

    def scripted(*items: Any, window: int | None = None) -> ScriptedAdapter:
        made.append(ScriptedAdapter(items, window=window))
        return made[-1]

    yield scripted
    if request.node.stash.get(_PASSED, False):
        for adapter in made:
            adapter.assert_complete()


@pytest.fixture
def dsh_harness() -> Callable[..., AbstractAsyncContextManager[Harness]]:
    """
    Make a harness to enter: `async with dsh_harness(tools=[add], plugins=[MyPlugin()]) as harness: …`.

    Nothing that happens to be installed is loaded. The rules of the log are checked (S-12), and one that was
    broken fails the test when the block is left, even if a plugin swallowed the error.
    """

    def harness(
        *,
        plugins: Sequence[object] = (),
        tools: Sequence[ToolDefinition | Callable[..., Any]] = (),
        config: Config | Mapping[str, Any] | None = None,
        autoload: bool = False,
    ) -> AbstractAsyncContextManager[Harness]:
        from dsh_core.harness import Harness

        broken: list[InvariantViolation] = []
        made = Harness(plugins=_checked(plugins, broken), tools=tools, config=config, autoload=autoload)
        return _watched(made, broken)

    return harness


@pytest.fixture
def dsh_chat(
    dsh_scripted: Callable[..., ScriptedAdapter],
) -> Callable[..., AbstractAsyncContextManager[Chat]]:
    """
    Open a conversation with a scripted model: `async with dsh_chat(text("hello"), tools=[add]) as chat: …`.

    Items are those of `dsh_scripted`, or one adapter. Keywords are those of `dsh_core.open`. Invariants are
    checked as in `dsh_harness`.
    """

    def chat(*items: Any, plugins: Sequence[object] = (), **keywords: Any) -> AbstractAsyncContextManager[Chat]:
        import dsh_core
        from dsh_core.llm.scripted import ScriptedPlugin
        from dsh_core.llm.seam import LlmAdapter

        given = len(items) == 1 and isinstance(items[0], LlmAdapter)
        adapter = items[0] if given else dsh_scripted(*items)
        broken: list[InvariantViolation] = []
        plugins = _checked([ScriptedPlugin(adapter), *plugins], broken)
        opened = dsh_core.open(plugins=plugins, **{"model": "scripted/test", "autoload": False, **keywords})
        return _watched(opened, broken)

    return chat


def _checked(plugins: Sequence[object], broken: list[InvariantViolation]) -> list[object]:
    """`plugins` with invariants that also tell us what they refused, unless the test brings its own."""
    from dsh_core.testing.invariants import Invariants

    if any(isinstance(plugin, Invariants) for plugin in plugins):
        return [*plugins]
    return [*plugins, Invariants(report=broken.append)]


@asynccontextmanager
async def _watched(opened: AbstractAsyncContextManager[Any], broken: list[InvariantViolation]) -> AsyncIterator[Any]:
    async with opened as inner:
        yield inner
    if broken:
        raise broken[0]
