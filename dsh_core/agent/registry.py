"""
How agents are made, found and taken down.

Creation publishes last: an agent is listed only when everything it needs is there, and a failure at any
point undoes what came before. Teardown is one ordered chain, so that an agent's closing events and its last
flush are still observed (A-5, A-6).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from dsh_core._ownership import Registration, acting_for, own
from dsh_core.agent.types import Agent, AgentOptions
from dsh_core.errors import AgentDisposed, HarnessError, SessionExists, SessionNotFound
from dsh_core.session.fork import fork_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_core.harness import Harness
    from dsh_core.session.header import SessionHeader
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["AgentFactory", "AgentHandle", "AgentRegistry", "RunnableAgent"]

_log: Final = logging.getLogger("dsh")

starting_agent: Final[ContextVar[Agent | None]] = ContextVar("dsh_starting_agent", default=None)
"""The agent whose `agent_session_start` hooks this code runs in; it takes no turn before they have ended."""


class RunnableAgent(Agent, Protocol):
    """An agent as its registry handles it."""

    @property
    def parent(self) -> Agent | None:
        """The agent that created it as a descendant."""

    def start(self) -> None:
        """Begin to take messages."""

    def request_stop(self) -> None:
        """Stop the running turn, with the cause `disposed`, and take no more messages."""

    async def stopped(self) -> None:
        """Return when the loop has exited."""

    def inside(self) -> bool:
        """Whether the caller runs in a hook or tool of this agent."""


class AgentFactory(Protocol):
    """Makes the loop of an agent; see `AgentRegistry.set_factory`."""

    def __call__(
        self, harness: Harness, session: Session, options: AgentOptions, parent: Agent | None
    ) -> RunnableAgent:
        """Make an agent that has not started."""


class AgentHandle:
    """
    The right to dispose of an agent; only whoever created it has one.

    Also an async context manager that disposes on exit.
    """

    def __init__(self, registry: AgentRegistry, agent: RunnableAgent, teardown: AsyncExitStack) -> None:
        self.agent = agent
        self._registry = registry
        self._teardown = teardown
        self._closing: asyncio.Task[None] | None = None

    async def dispose(self) -> None:
        """
        Stop the agent, wait until its loop has exited and its log is flushed, and free its id (A-5).

        Every caller gets the same completion. From inside a hook or tool of the agent it only requests the
        stop and returns at once; `closed` completes it.
        """
        closing = self._begin()
        if not self.agent.inside():
            await asyncio.shield(closing)

    @property
    def closed(self) -> asyncio.Future[None]:
        """Awaitable that is done when the agent is gone."""
        if self._closing is not None:
            return asyncio.shield(self._closing)
        return asyncio.ensure_future(self._until_closed())

    async def _until_closed(self) -> None:
        await self.agent.stopped()
        await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Task[None]:
        if self._closing is None:
            for child in self._registry.descendants(self.agent):
                child.agent.request_stop()
            self.agent.request_stop()
            self._closing = self._registry.harness.spawn_internal(self._close(), name=f"dsh-dispose-{self.agent.id}")
        return self._closing

    async def _close(self) -> None:
        await self._close_descendants()
        await self.agent.stopped()
        await self._close_descendants()  # what its last hooks and tools have made
        await self._teardown.aclose()

    async def _close_descendants(self) -> None:
        while children := self._registry.descendants(self.agent):
            ends = await asyncio.gather(*(child.dispose() for child in children), return_exceptions=True)
            for child, end in zip(children, ends, strict=True):
                if isinstance(end, Exception):
                    _log.error("disposing of agent %s failed: %s", child.agent.id, end, exc_info=end)

    async def __aenter__(self) -> AgentHandle:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.dispose()


class AgentRegistry:
    """
    The agents of a harness.

    Args:
        harness: The harness.
    """

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._factory: AgentFactory | None = None
        self._agents: dict[str, Agent] = {}
        self._handles: dict[str, AgentHandle] = {}
        self._children: dict[str, dict[str, AgentHandle]] = {}
        self._labels: dict[str, str] = {}
        self._reserved: set[str] = set()

    # -- finding -----------------------------------------------------------------------------------------

    def get(self, agent_id: str) -> Agent | None:
        """The live agent with this id, or None."""
        return self._agents.get(agent_id)

    def named(self, label: str) -> Agent | None:
        """The agent that configuration created under this label (A-10), or None."""
        return self._agents.get(self._labels.get(label, ""))

    def list(self) -> list[Agent]:
        """The live agents, in the order in which they were created."""
        return [*self._agents.values()]

    def descendants(self, agent: Agent) -> Sequence[AgentHandle]:
        """The handles of the agents whose direct parent is `agent`."""
        children = self._children.get(agent.id)
        return [handle for handle in children.values() if handle.agent.parent is agent] if children else []

    # -- making ------------------------------------------------------------------------------------------

    def set_factory(self, factory: AgentFactory) -> Registration:
        """
        Replace the loop for agents created from now on.

        Raises:
            HarnessError: Another plugin has replaced it already.
        """
        if self._factory is not None:
            raise HarnessError(f"the agent loop is already replaced by {self._factory!r}; unload that first", "FACTORY")
        self._factory = factory

        def undo() -> None:
            self._factory = None

        return own(undo)

    def register(self, agent: Agent) -> Registration:
        """
        List an agent and announce it.

        Raises:
            SessionExists: An agent of this id is live.
        """
        if agent.id in self._agents:
            raise SessionExists(f"agent {agent.id!r} exists already; choose another id or use agents.get")
        self._agents[agent.id] = agent
        self.harness.hooks.agent_created(agent=agent)

        def undo() -> None:
            self._agents.pop(agent.id, None)
            self.harness.hooks.agent_disposed(agent=agent)

        return own(undo)

    async def create(
        self,
        session_id: str | None = None,
        *,
        options: AgentOptions | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        plugins: Sequence[object] = (),
        parent: Agent | None = None,
        label: str | None = None,
    ) -> AgentHandle:
        """
        Make an agent on a fresh session.

        Args:
            session_id: Id of the session and the agent; made up when left out.
            options: How it runs.
            cwd: Absolute working directory.
            metadata: JSON object of the embedder, kept in the header.
            plugins: Plugins for this agent and its descendants only (H-6).
            parent: Makes it a descendant: cancel and dispose of the parent reach it (A-8).
            label: Name under which `named` finds it.

        Raises:
            SessionExists: The id is taken, live or stored.
        """
        if parent is not None and parent.status == "disposed":
            raise AgentDisposed(f"agent {parent.id!r} is disposed and can have no descendants; resume it first")
        header = self.harness.sessions.header(
            self._fresh_id(session_id),
            cwd=cwd,
            metadata=metadata,
            spawned_by=parent.id if parent is not None else None,
            agent=label,
        )
        return await self._open(header, (), 0, "startup", options, plugins, parent, label)

    async def resume(
        self,
        session_id: str,
        *,
        options: AgentOptions | None = None,
        plugins: Sequence[object] = (),
        label: str | None = None,
    ) -> AgentHandle:
        """
        Make an agent on a stored session, after repairing what a crash left open (P-3).

        Args:
            session_id: The session.
            options: How the agent runs.
            plugins: Plugins for this agent and its descendants only.
            label: Name under which `named` finds it; the one in the header when left out.

        Raises:
            HarnessError: No persistence backend is loaded (`NO_PERSISTENCE`).
            SessionNotFound: No such session.
            SessionLocked: Another process or agent owns it.
            SessionCorrupt: It is damaged beyond a torn tail.
            UnsupportedFormat: It was written by a newer version or with a plugin that is missing.
        """
        backend = self.harness.persistence
        if backend is None:
            raise HarnessError(
                f"session {session_id!r} cannot be resumed: no persistence backend is loaded; "
                "install dsh-persistence-jsonl or pass a plugin that provides one",
                "NO_PERSISTENCE",
            )
        self._refuse_live(session_id)
        self._reserved.add(session_id)
        try:
            stored = await backend.load(session_id)
        finally:
            self._reserved.discard(session_id)
        if stored.damage is not None:
            _log.warning("session %s: %s; the torn tail was cut off and kept", session_id, stored.damage.reason)
        name = label if label is not None else stored.header.agent
        return await self._open(
            stored.header, stored.events, len(stored.events), "resume", options, plugins, None, name
        )

    async def fork(
        self,
        source_id: str,
        *,
        boundary: int | None = None,
        session_id: str | None = None,
        options: AgentOptions | None = None,
        plugins: Sequence[object] = (),
    ) -> AgentHandle:
        """
        Make an agent on a copy of another session's past; the source is neither blocked nor changed (S-11).

        Args:
            source_id: The session to copy from, live or stored.
            boundary: Seq of a `turn/end`, inclusive; the last one when left out.
            session_id: Id of the new session.
            options: How the new agent runs.
            plugins: Plugins for the new agent only.

        Raises:
            HarnessError: The boundary lies inside a turn (`OPEN_TURN`) or is not one (`INVALID_BOUNDARY`).
            SessionNotFound: No such session.
        """
        source, events = await self._source(source_id)
        seed = fork_prefix(events, boundary)
        header = self.harness.sessions.header(
            self._fresh_id(session_id),
            cwd=source.cwd,
            metadata=source.metadata,
            parent=source_id,
            seed_length=len(seed),
        )
        return await self._open(header, seed, 0, "fork", options, plugins, None, None)

    async def _source(self, source_id: str) -> tuple[SessionHeader, Sequence[SessionEvent]]:
        live = self.harness.sessions.get(source_id)
        if live is not None:
            return live.header, live.events
        backend = self.harness.persistence
        if backend is None:
            raise SessionNotFound(
                f"no live session {source_id!r}, and no persistence backend is loaded that could have stored it"
            )
        stored = await backend.inspect(source_id)
        return stored.header, stored.events

    def _fresh_id(self, session_id: str | None) -> str:
        if session_id is None:
            return uuid.uuid4().hex
        if session_id == "":
            raise ValueError("a session id must not be empty")
        self._refuse_live(session_id)
        return session_id

    def _refuse_live(self, session_id: str) -> None:
        live = session_id in self._agents or session_id in self._handles or session_id in self._reserved
        if live or self.harness.sessions.get(session_id) is not None:
            raise SessionExists(f"session {session_id!r} is live in this harness; use agents.get({session_id!r})")

    async def _open(
        self,
        header: SessionHeader,
        seed: Sequence[SessionEvent],
        stored: int,
        source: str,
        options: AgentOptions | None,
        plugins: Sequence[object],
        parent: Agent | None,
        label: str | None,
    ) -> AgentHandle:
        harness, session_id = self.harness, header.id
        async with AsyncExitStack() as undo:
            self._reserved.add(session_id)
            undo.callback(self._reserved.discard, session_id)
            session = await self._attached(undo, header, seed, stored)
            agent = (self._factory or harness.default_factory)(harness, session, options or AgentOptions(), parent)
            undo.callback(agent.request_stop)
            if plugins or parent is not None:
                harness.hooks.open_scope(session_id, parent.id if parent is not None else None)
                undo.push_async_callback(harness.plugins.unload_scoped, session_id)
                await harness.plugins.load_scoped(agent, plugins)
            handle = self._publish(undo, agent, label)
            await self._announce_start(agent, source)
            agent.start()
            handle._teardown = undo.pop_all()
            return handle

    def _publish(self, undo: AsyncExitStack, agent: RunnableAgent, label: str | None) -> AgentHandle:
        """List session and agent; what takes them off again is put on `undo`."""
        session = agent.session
        self.harness.sessions.enter(session)
        undo.callback(self.harness.sessions.detach, session)
        with acting_for(None):  # it ends with its handle, not with the plugin that asked for it
            undo.callback(self.register(agent))
        if label is not None and self._labels.setdefault(label, session.id) == session.id:
            undo.callback(self._labels.pop, label, None)
        handle = AgentHandle(self, agent, AsyncExitStack())
        self._handles[session.id] = handle
        if agent.parent is not None:
            self._children.setdefault(agent.parent.id, {})[session.id] = handle
        undo.callback(self._forget, handle)
        return handle

    def _forget(self, handle: AgentHandle) -> None:
        agent = handle.agent
        self._handles.pop(agent.id, None)
        if agent.parent is not None and (siblings := self._children.get(agent.parent.id)) is not None:
            siblings.pop(agent.id, None)
            if not siblings:
                del self._children[agent.parent.id]

    async def _attached(
        self, undo: AsyncExitStack, header: SessionHeader, seed: Sequence[SessionEvent], stored: int
    ) -> Session:
        """Make the session and have it written; a stored one that cannot be used is given back."""
        harness = self.harness
        try:
            session = harness.sessions.prepare(header, seed)
            if harness.writer is not None:
                await harness.writer.attach(session, stored=stored)
                undo.push_async_callback(harness.writer.release, header.id)
        except BaseException:
            if stored and harness.persistence is not None:
                await harness.persistence.release(header.id)
            raise
        return session

    async def _announce_start(self, agent: Agent, source: str) -> None:
        token = starting_agent.set(agent)
        try:
            await self.harness.hooks.agent_session_start(agent=agent, source=source)
        except Exception as error:  # noqa: BLE001 - contained: who greets badly must not keep it from starting
            self.harness.report_error(agent, 0, 0, error, "hook:agent_session_start")
        finally:
            starting_agent.reset(token)

    async def dispose_all(self) -> None:
        """Dispose of every agent, parents together with their descendants."""
        while handles := [*self._handles.values()]:
            ends = await asyncio.gather(*(handle.dispose() for handle in handles), return_exceptions=True)
            for handle, end in zip(handles, ends, strict=True):
                self._forget(handle)
                if isinstance(end, BaseException):
                    _log.error("disposing of agent %s failed: %s", handle.agent.id, end, exc_info=end)
