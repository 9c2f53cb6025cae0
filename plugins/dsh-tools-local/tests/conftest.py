"""A desk to call the tools at: a session with a working directory, and what a harness would hand to a tool."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from dsh_tools_local import FilesPlugin, ShellConfig, ShellPlugin

from dsh_core.content import text_of
from dsh_core.tools import ToolContext, ToolDefinition, ToolResult


@pytest.fixture
def anyio_backend() -> str:
    """The plugins run on asyncio only."""
    return "asyncio"


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """The processes that a test has started; a server that serves the whole run is none of them."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [each for each in psutil.Process().children(recursive=True) if each not in before]


class Desk:
    """Stands where an agent would: tools see its id, may inject and spawn."""

    def __init__(self, cwd: Path, name: str = "s") -> None:
        self.cwd = cwd
        self.id = name
        self.session = self
        self.harness = self
        self.notes: list[str] = []
        self.spawned: list[asyncio.Task[Any]] = []
        self.cancelled = asyncio.Event()
        self._tools: dict[str, ToolDefinition] = {}

    def add(self, plugin: ShellPlugin | FilesPlugin) -> None:
        self._tools.update({tool.name: tool for tool in plugin.tools()})

    def inject(self, content: str, **_: Any) -> None:
        self.notes.append(content)

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        self.spawned.append(asyncio.create_task(coro, name=name))
        return self.spawned[-1]

    def context(self) -> ToolContext:
        return ToolContext(self, self, "c1", f"{self.id}:c1", str(self.cwd), self.cancelled)  # type: ignore[arg-type]

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        value = self._tools[name].execute(arguments, self.context())
        result = await value if inspect.isawaitable(value) else value
        assert isinstance(result, ToolResult)
        return result

    async def text(self, name: str, **arguments: Any) -> str:
        return text_of((await self.call(name, **arguments)).content)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[ShellPlugin]:
    plugin = ShellPlugin(ShellConfig(grace=0.3, max_output=2_000, spill_dir=tmp_path / "spill"))
    yield plugin
    await plugin.stop()


@pytest.fixture
async def desk(tmp_path: Path, shell: ShellPlugin) -> AsyncIterator[Desk]:
    work = tmp_path / "work"
    work.mkdir()
    desk = Desk(work)
    desk.add(shell)
    desk.add(FilesPlugin())
    yield desk
    await shell.stop()
    await asyncio.gather(*desk.spawned)
