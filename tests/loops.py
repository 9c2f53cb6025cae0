"""
Running agents for tests of the loop: a harness with a scripted model, and what must hold of every run.

Leaving `running` checks that no rule of the log was broken, that every request the model received can be
rebuilt from the log alone (L-9), that each accepted message has exactly one end (A-2), that no turn is left
open and that no task is left over.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs

from dsh_core import (
    AgentHandle,
    AgentOptions,
    BlockStart,
    GenerateRequest,
    Harness,
    Session,
    SessionPersistence,
    StreamChunk,
    TextDelta,
    hookimpl,
    rebuild_request,
)
from dsh_core.session.events import (
    InboxDroppedEvent,
    InboxQueuedEvent,
    PromptBlockedEvent,
    SteeringMessageEvent,
    UserMessageEvent,
)
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin
from dsh_core.testing.invariants import Invariants
from dsh_core.testing.memory import MemoryPersistence, MemoryStore

__all__ = [
    "Lab",
    "Moment",
    "StagedAdapter",
    "Store",
    "ends_of",
    "held",
    "kinds",
    "plugin",
    "running",
    "spoken",
    "until",
]


class StagedAdapter(ScriptedAdapter):
    """A scripted model whose items may also be async generator functions from the request to chunks."""

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """Play the next item."""
        if self._next < len(self._items) and inspect.isasyncgenfunction(self._items[self._next]):
            self.requests.append(request)
            async with aclosing(self._take()(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with aclosing(super().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk


class Moment:
    """A place where something waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def here(self) -> None:
        """Say that we are here, and wait."""
        self.reached.set()
        await self.go.wait()


def held(moment: Moment, *before: StreamChunk, after: Sequence[StreamChunk] = ()) -> Callable[..., Any]:
    """An answer that produces some chunks, waits, and produces the others."""

    async def play(request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        for chunk in before:
            yield chunk
        await moment.here()
        for chunk in after:
            yield chunk

    return play


def spoken(value: str) -> tuple[StreamChunk, ...]:
    """The beginning of an answer of text."""
    return BlockStart(0, "text"), TextDelta(0, value)


def plugin(**hooks: Callable[..., Any]) -> object:
    """A plugin made of functions, each under the name of its hook."""
    made = type("Hooks", (), {name: staticmethod(hookimpl(function)) for name, function in hooks.items()})()
    made.name = f"{'+'.join(hooks)}-{next(_NUMBERS)}"
    return made


_NUMBERS = itertools.count(1)


class Store:
    """A plugin that provides sessions in memory; give two harnesses the same `store` to resume."""

    name = "memory"

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.backend = MemoryPersistence(store)
        self.store = self.backend.store

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Provide it."""
        harness.provide(SessionPersistence, self.backend)


class Recorder:
    """Keeps the sessions, statuses and failures that a harness announces."""

    name = "recorder"

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.statuses: dict[str, list[str]] = {}
        self.errors: list[tuple[int, int, BaseException, str]] = []

    @hookimpl
    def session_created(self, session: Session) -> None:
        """Keep it."""
        self.sessions[session.id] = session

    @hookimpl
    def agent_status(self, agent: Any, status: str) -> None:
        """Keep it."""
        self.statuses.setdefault(agent.id, []).append(status)

    @hookimpl
    def agent_error(self, turn: int, step: int, error: BaseException, origin: str) -> None:
        """Keep it."""
        self.errors.append((turn, step, error, origin))


@attrs.define
class Lab:
    """A running agent and everything a test looks at."""

    harness: Harness
    handle: AgentHandle
    adapter: ScriptedAdapter
    recorder: Recorder

    @property
    def agent(self) -> Any:
        """The agent."""
        return self.handle.agent

    @property
    def session(self) -> Session:
        """Its session."""
        return self.handle.agent.session

    @property
    def events(self) -> list[Any]:
        """The data of its events."""
        return [event.data for event in self.session.events]

    @property
    def statuses(self) -> list[str]:
        """What was announced of it."""
        return self.recorder.statuses.get(self.agent.id, [])

    @property
    def errors(self) -> list[tuple[int, int, BaseException, str]]:
        """Reported failures."""
        return self.recorder.errors

    def kinds(self, *without: str) -> list[str]:
        """Types of its events but the given ones, chunks and inbox."""
        return kinds(self.session, "assistant/chunk", "inbox/queued", "inbox/dropped", "request/header", *without)

    def of(self, kind: type) -> list[Any]:
        """The events of one class."""
        return [data for data in self.events if type(data) is kind]

    def ends(self) -> list[str]:
        """How its turns ended."""
        return [data.reason.kind for data in self.events if type(data).__name__ == "TurnEndEvent"]

    def texts(self) -> list[list[str]]:
        """For each request, the texts the model read."""
        return [[_shown(message) for message in request.messages] for request in self.adapter.requests]


def _shown(message: Any) -> str:
    parts = []
    for block in message.content:
        kind = type(block).__name__
        if kind == "TextBlock":
            parts.append(block.text)
        elif kind == "ToolCallBlock":
            parts.append(f"call {block.name}")
        elif kind == "ToolResultBlock":
            parts.append("result " + " ".join(getattr(one, "text", "") for one in block.content))
    return " ".join(parts)


def kinds(session: Session, *without: str) -> list[str]:
    """Types of a session's events but the given ones."""
    return [event.type for event in session.events if event.type not in without]


@asynccontextmanager
async def running(
    *items: Any,
    plugins: Sequence[object] = (),
    tools: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
    complete: bool = True,
    grace: float | None = None,
    session_id: str = "a",
    resume: bool = False,
    **options: Any,
) -> AsyncIterator[Lab]:
    """
    An agent `a` with a scripted model.

    Args:
        items: What the model answers, or one adapter.
        plugins: Further plugins.
        tools: Its tools.
        config: Configuration.
        complete: The model must have played all its items at the end.
        grace: Another grace for cancelled turns.
        session_id: Another id.
        resume: Resume the session instead of creating it.
        options: Of the agent.
    """
    adapter = items[0] if len(items) == 1 and isinstance(items[0], ScriptedAdapter) else StagedAdapter(items)
    broken: list[Any] = []
    recorder = Recorder()
    given = [ScriptedPlugin(adapter), *plugins, recorder, Invariants(report=broken.append)]
    before = asyncio.all_tasks()
    async with Harness(plugins=given, tools=tools, config=config, autoload=False) as harness:
        made = AgentOptions(**{"model": "scripted/m", **options})
        make = harness.agents.resume if resume else harness.agents.create
        handle = await make(session_id, options=made)
        if grace is not None:
            handle.agent.grace = grace
        yield Lab(harness, handle, adapter, recorder)
        await handle.dispose()
    await until(lambda: not _left(before))
    assert not broken, broken[0]
    for session in recorder.sessions.values():
        assert not session.turn_open, kinds(session)
        ends_of(session)
    check_requests(adapter, recorder.sessions)
    if complete:
        adapter.assert_complete()


def _left(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - before - {asyncio.current_task()}  # type: ignore[arg-type]


def check_requests(adapter: ScriptedAdapter, sessions: Mapping[str, Session]) -> None:
    """L-9: every request is rebuilt from the log alone."""
    for request in adapter.requests:
        session = sessions[request.session_id or ""]
        rebuilt = rebuild_request(session.events, request.turn, request.step, request.attempt)
        assert rebuilt == request, (rebuilt, request)


def ends_of(session: Session) -> dict[str, str]:
    """What became of each accepted message; more than one end is a failure (A-2)."""
    ends: dict[str, str] = {}
    found: Counter[str] = Counter()
    for event in session.events[session.header.seed_length :]:
        data = event.data
        if isinstance(data, InboxQueuedEvent):
            assert data.message_id not in ends, "accepted twice"
            ends[data.message_id] = "pending"
        elif isinstance(data, InboxDroppedEvent):
            found.update(data.message_ids)
            ends.update(dict.fromkeys(data.message_ids, "dropped"))
        elif isinstance(data, UserMessageEvent | SteeringMessageEvent | PromptBlockedEvent):
            found[data.message_id] += 1
            ends[data.message_id] = "blocked" if isinstance(data, PromptBlockedEvent) else "ran"
    doubled = {message_id: count for message_id, count in found.items() if count > 1}
    assert not doubled, (doubled, kinds(session))
    return ends


async def until(condition: Callable[[], Any], rounds: int = 20_000) -> None:
    """Let the loop turn until something holds."""
    for _ in range(rounds):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"it never came to hold; tasks: {asyncio.all_tasks()}")
