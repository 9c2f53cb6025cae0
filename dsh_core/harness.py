"""
Composition: services, plugins and agents put together, and the two shortest ways to use them.

Nothing is decided here. This is the only module that knows the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsh_core._builtins import builtin_plugins
from dsh_core._chat import Chat
from dsh_core._failures import told
from dsh_core._loop import LoopAgent
from dsh_core._ownership import Registration, acting_for, current_owner, spawn_owned
from dsh_core._plugins import PluginManager
from dsh_core._services import CommandRegistry, ServiceRegistry
from dsh_core._sink import HarnessSink
from dsh_core.agent.registry import AgentRegistry, starting_agent
from dsh_core.agent.types import Agent, AgentOptions, TurnResult
from dsh_core.config import Config
from dsh_core.errors import HarnessError
from dsh_core.hooks import Hooks
from dsh_core.llm.registry import LlmRegistry
from dsh_core.persistence import PersistenceCoordinator, SessionPersistence
from dsh_core.prompt import SystemPrompt
from dsh_core.session.store import SessionStore
from dsh_core.tools.pipeline import ToolSettings
from dsh_core.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from dsh_core.content import Content
    from dsh_core.session.log import Session
    from dsh_core.tools.definition import ToolDefinition

__all__ = ["Chat", "Harness", "run"]

T = TypeVar("T")
_log: Final = logging.getLogger("dsh")


class Harness:
    """
    Everything an agent runs in. Enter it to load the plugins; leave it to dispose of agents and plugins.

    Args:
        plugins: Plugin objects, in the order in which they run.
        tools: Tool definitions or typed functions.
        config: A `Config`, a mapping in its form, or None: with `autoload` the files and the environment of
            the person who runs this process, else plain defaults.
        autoload: Load the plugins that are installed (entry-point group `dsh`).
        cwd: Where project configuration is looked for.
    """

    def __init__(
        self,
        *,
        plugins: Sequence[object] = (),
        tools: Sequence[ToolDefinition | Callable[..., Any]] = (),
        config: Config | Mapping[str, Any] | None = None,
        autoload: bool = True,
        cwd: str | None = None,
    ) -> None:
        self.config = _config(config, autoload, cwd)
        self.hooks = Hooks(timeout=self.config.hooks.timeout)
        self.hooks.set_reporter(self._report_contained)
        self.watchers: dict[str, list[Callable[[object], None]]] = {}
        self._sink = HarnessSink(self)
        self.sessions = SessionStore(self._sink)
        self.llm = LlmRegistry(self.hooks)
        self.tools = ToolRegistry(self.hooks, order=self.config.tools.order)
        self.tool_settings = ToolSettings(
            approver=self.config.approval.by,
            approval_timeout=self.config.approval.timeout,
            max_parallel=self.config.tools.max_parallel,
        )
        self.tools.settings = self.tool_settings
        self.system_prompt = SystemPrompt(self.hooks, self.tools)
        self.commands = CommandRegistry()
        self.agents = AgentRegistry(self)
        self.plugins = PluginManager(self, self.hooks, self.config, builtins=builtin_plugins(self))
        self.writer: PersistenceCoordinator | None = None
        self._services = ServiceRegistry()
        self._given = (tuple(plugins), tuple(tools))
        self._autoload = autoload
        self._tasks: set[asyncio.Task[Any]] = set()
        self._entered = False

    # -- services ----------------------------------------------------------------------------------------

    def provide(self, kind: type[T], service: T) -> Registration:
        """
        Offer the one service of a kind, such as `SessionPersistence`.

        Raises:
            PluginError: Another plugin provides this kind already; the message names both.
        """
        if kind is not SessionPersistence or not isinstance(service, SessionPersistence):
            return self._services.provide(kind, service)
        registration = self._services.provide(kind, service, self._stop_writing)
        self.writer = PersistenceCoordinator(service, report=self._report_write)
        self._sink.record = self.writer.record
        owner = current_owner()
        if owner is not None:
            owner.held = True
        return registration

    def _stop_writing(self) -> None:
        """The backend is gone: what is created from now on stays in memory."""
        writer, self.writer, self._sink.record = self.writer, None, None
        if writer is not None:
            self.spawn_internal(writer.aclose(), name="dsh-stop-writing")

    def service(self, kind: type[T]) -> T:
        """
        The service of a kind.

        Raises:
            LookupError: Nobody provides it; the message says so and how to mend it.
        """
        found = self._services.get(kind)
        if found is None:
            raise LookupError(
                f"no plugin provides {kind.__name__}; install or pass one that calls "
                f"harness.provide({kind.__name__}, …) in its register hook"
            )
        return found

    @property
    def persistence(self) -> SessionPersistence | None:
        """The persistence backend, or None."""
        return self._services.get(SessionPersistence)  # type: ignore[type-abstract]

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """
        Start a task that belongs to the calling plugin and ends with it.

        Args:
            coro: What to run; its failure is logged with plugin and name.
            name: For logs.
        """
        from dsh_core._turnrun import running_turn

        owner = current_owner()
        # The task is not part of the turn that started it, nor of the making of an agent.
        turn, starting = running_turn.set(None), starting_agent.set(None)
        try:
            task = spawn_owned(coro, name, owner)
        finally:
            starting_agent.reset(starting)
            running_turn.reset(turn)
        task.add_done_callback(lambda done: _log_failed_task(done, owner.name if owner else "the embedder", name))
        self._keep(task)
        return task

    def spawn_internal(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of the harness itself, which no plugin owns."""
        with acting_for(None):
            task = asyncio.get_running_loop().create_task(coro, name=name)
        self._keep(task)
        return task

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def default_factory(
        self, harness: Harness, session: Session, options: AgentOptions, parent: Agent | None
    ) -> LoopAgent:
        """The built-in loop."""
        return LoopAgent(harness, session, options, parent)

    # -- failures that are contained ---------------------------------------------------------------------

    def report_error(self, agent: Agent, turn: int, step: int, error: BaseException, origin: str) -> None:
        """Log a failure and tell the observers of `agent_error`."""
        _log.warning("session %s, turn %d, step %d, %s: %s", agent.id, turn, step, origin, told(error))
        self.hooks.agent_error(agent=agent, turn=turn, step=step, error=error, origin=origin)

    def _report_contained(self, hook: str, plugin: str, error: BaseException, arguments: Mapping[str, Any]) -> None:
        _log.warning("plugin %s failed in hook %s: %s: %s", plugin, hook, type(error).__name__, error, exc_info=error)
        if hook == "agent_error":
            return
        agent = arguments.get("agent") or self._agent_of(arguments.get("session"))
        if agent is not None:
            self.hooks.agent_error(
                agent=agent,
                turn=arguments.get("turn", 0),
                step=arguments.get("step", 0),
                error=error,
                origin=f"hook:{hook} plugin:{plugin}",
            )

    def _agent_of(self, session: Session | None) -> Agent | None:
        return self.agents.get(session.id) if session is not None else None

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Harness:
        if self._entered:
            raise HarnessError("a Harness can be entered once; make a new one")
        self._entered = True
        plugins, tools = self._given
        try:
            for tool in tools:
                self.tools.register(tool)
            await self.plugins.startup(plugins, autoload=self._autoload)
            await self._create_configured_agents()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.agents.dispose_all()
        writer, self.writer, self._sink.record = self.writer, None, None
        if writer is not None:
            await writer.aclose()
        await self.plugins.shutdown()
        await self.llm.aclose()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        current = asyncio.current_task()
        left = [task for task in self._tasks if task is not current]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5)

    def _report_write(self, session_id: str, error: BaseException) -> None:
        agent = self.agents.get(session_id)
        if agent is not None:
            self.report_error(agent, 0, 0, error, "persistence")
        else:
            _log.warning("session %s could not be stored: %s", session_id, error)

    async def _create_configured_agents(self) -> None:
        for wanted in self.config.agents:
            try:
                await self._create_configured(wanted)
            except Exception as error:  # noqa: BLE001 - a configured agent that fails is a warning, not a crash (A-10)
                _log.warning("configured agent %r was not created: %s", wanted.id, error)

    async def _create_configured(self, wanted: Any) -> None:
        import uuid

        options = AgentOptions(model=wanted.model, system_prompt=wanted.system_prompt)
        session_id = wanted.session or f"{wanted.id}-session-{uuid.uuid4().hex}"
        if wanted.session and self.persistence is not None and await self.persistence.has(wanted.session):
            await self.agents.resume(session_id, options=options, label=wanted.id)
        else:
            await self.agents.create(session_id, options=options, label=wanted.id)


def _config(config: Config | Mapping[str, Any] | None, autoload: bool, cwd: str | None) -> Config:
    if isinstance(config, Config):
        return config
    if config is not None:
        return Config.from_mapping(config, source="config=")
    return Config.load(cwd) if autoload else Config()


def _log_failed_task(task: asyncio.Task[Any], plugin: str, name: str) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("task %r of plugin %s failed", name, plugin, exc_info=task.exception())


def open(
    session: str | None = None,
    *,
    model: str | None = None,
    tools: Sequence[ToolDefinition | Callable[..., Any]] = (),
    plugins: Sequence[object] = (),
    config: Config | Mapping[str, Any] | None = None,
    autoload: bool = True,
    cwd: str | None = None,
    system_prompt: str | None = None,
    output_type: Any = None,
) -> AbstractAsyncContextManager[Chat]:
    """
    Open a conversation: `async with dsh.open() as chat: await chat.ask("hi")`.

    Args:
        session: Id of a session to create or resume; a fresh one when left out.
        model: `provider/model`; else the configuration's.
        tools: Tool definitions or typed functions.
        plugins: Plugin objects.
        config: As in `Harness`.
        autoload: Load installed plugins.
        cwd: Working directory of the session; the process's own when left out.
        system_prompt: The persona.
        output_type: An attrs class or JSON Schema the final answer must match.

    Raises:
        HarnessError: A named session without a persistence backend (`NO_PERSISTENCE`).
        SessionLocked, SessionCorrupt, UnsupportedFormat: The named session cannot be opened.
    """
    options = AgentOptions(model=model, system_prompt=system_prompt, output_type=output_type)
    where = os.path.abspath(cwd) if cwd is not None else os.getcwd()
    return _opened(session, options, where, Harness(
        plugins=plugins, tools=tools, config=config, autoload=autoload, cwd=where
    ))  # fmt: skip


@asynccontextmanager
async def _opened(session: str | None, options: AgentOptions, cwd: str, harness: Harness) -> Any:
    async with harness:
        async with await _agent_for(harness, session, options, cwd) as handle:
            yield Chat(harness, handle.agent)


async def _agent_for(harness: Harness, session: str | None, options: AgentOptions, cwd: str) -> Any:
    if session is None:
        return await harness.agents.create(options=options, cwd=cwd)
    if harness.persistence is None:
        raise HarnessError(
            f"session {session!r} cannot be opened by name: no persistence backend is loaded; install "
            "dsh-persistence-jsonl, pass a plugin that provides one, or leave the name out",
            "NO_PERSISTENCE",
        )
    if await harness.persistence.has(session):
        return await harness.agents.resume(session, options=options)
    return await harness.agents.create(session, options=options, cwd=cwd)


def run(content: Content, **keywords: Any) -> TurnResult:
    """
    Ask once and wait: the blocking form of `open` and `ask`.

    Inside a running event loop (a notebook) it runs in a thread of its own.

    Args:
        content: Text or content blocks.
        **keywords: Those of `open`.
    """

    async def ask() -> TurnResult:
        async with open(**keywords) as chat:
            return await chat.ask(content)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(ask())
    return _in_thread(lambda: asyncio.run(ask()))


def _in_thread(work: Callable[[], T]) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body, name="dsh-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
