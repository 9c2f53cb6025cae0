"""
A model that says what it is told to: for tests, demonstrations and benchmarks (M-6).

It keeps the contract of an adapter (M-1), so everything around it runs as it does with a real model.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs

from dsh_core._markers import hookimpl
from dsh_core.content import Finish, GenerateRequest, TextBlock, ToolCallBlock, Usage
from dsh_core.errors import LlmError
from dsh_core.llm.seam import LlmAdapter
from dsh_core.session.chunks import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.tools.names import wire_name

if TYPE_CHECKING:
    from dsh_core.harness import Harness

__all__ = ["Item", "ScriptedAdapter", "ScriptedPlugin", "call", "calls", "fail", "pause", "text"]

_PIECES: Final = 3
_LONGEST_PIECE: Final = 40
_INPUT_TOKENS: Final = 10


@attrs.frozen
class Text:
    """An answer of text; see `text`."""

    value: str
    chunks: tuple[StreamChunk, ...] = attrs.field(repr=False, eq=False)


@attrs.frozen
class Call:
    """One tool call; see `call`."""

    name: str
    arguments: str


@attrs.frozen
class Calls:
    """An answer of tool calls; see `calls`."""

    calls: tuple[Call, ...]


@attrs.frozen
class Fail:
    """A failure; see `fail`."""

    code: str
    message: str = ""
    status: int | None = None
    retry_after: float | None = None
    after: tuple[StreamChunk | Pause, ...] = ()


@attrs.frozen
class Pause:
    """A wait; see `pause`."""

    seconds: float


Raw: TypeAlias = Sequence["StreamChunk | Pause | Fail"]
Item: TypeAlias = "Text | Call | Calls | Fail | Pause | Raw | Callable[[GenerateRequest], Any]"


def text(value: str) -> Text:
    """An answer of text, streamed in several deltas."""
    size = max(1, min(_LONGEST_PIECE, -(-len(value) // _PIECES)))
    deltas = [TextDelta(0, value[start : start + size]) for start in range(0, len(value), size)]
    block: list[StreamChunk] = [BlockStart(0, "text"), *deltas, BlockEnd(0, TextBlock(value))] if value else []
    return Text(value, (*block, *_ending("stop", len(value))))


def call(name: str, /, **arguments: Any) -> Call:
    """
    An answer of one tool call.

    Args:
        name: The tool's own name; it goes out as its wire name (T-4).
        **arguments: Its arguments, JSON values. Arguments that are broken on purpose go into a raw list of
            chunks.
    """
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def calls(*call: Call) -> Calls:
    """An answer of several tool calls."""
    return Calls(call)


def fail(
    code: str,
    message: str = "",
    status: int | None = None,
    retry_after: float | None = None,
    after: Iterable[StreamChunk | Pause] = (),
) -> Fail:
    """
    A request that fails with an `LlmError`.

    Args:
        code: A code of M-3.
        message: The provider's words.
        status: HTTP status.
        retry_after: Seconds the provider asks to wait.
        after: Chunks that come before the failure.
    """
    return Fail(code, message, status, retry_after, tuple(after))


def pause(seconds: float) -> Pause:
    """A wait before the next answer; in a raw list of chunks, a wait before the next chunk."""
    return Pause(seconds)


class ScriptedAdapter(LlmAdapter):
    """
    Gives the answers of a script, one to each request.

    Args:
        items: What `text`, `call`, `calls`, `fail` and `pause` make, raw lists of chunks, or functions (plain
            or async) that take the request and return one of these.
        window: What `context_window` says of every model.
    """

    def __init__(self, items: Iterable[Item] = (), *, window: int | None = None) -> None:
        self._items: deque[Item] = deque(items)
        self._length = len(self._items)
        self._calls = 0
        self._window = window
        self.requests: list[GenerateRequest] = []
        """Every request received, in order."""

    def context_window(self, model: str) -> int | None:
        """What the script says, the same for every model."""
        return self._window

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """
        Play the next item.

        Raises:
            LlmError: The script says so, or it is at its end (`INVALID_REQUEST`).
        """
        self.requests.append(request)
        item = await self._next(request)
        for part in self._parts(item):
            if type(part) is Pause:
                await asyncio.sleep(part.seconds)
            elif type(part) is Fail:
                raise LlmError(part.code, part.message, part.status, part.retry_after)
            else:
                yield part  # type: ignore[misc]

    def assert_complete(self) -> None:
        """
        Check that the whole script was played.

        Raises:
            AssertionError: Items are left; the message lists them.
        """
        if self._items:
            left = ", ".join(_described(item) for item in self._items)
            raise AssertionError(
                f"{len(self._items)} of {self._length} scripted items were not used, after {len(self.requests)} "
                f"requests: {left}"
            )

    async def _next(self, request: GenerateRequest) -> Item:
        while self._items:
            item = self._items.popleft()
            if isinstance(item, Pause):
                await asyncio.sleep(item.seconds)
            elif callable(item):
                made = item(request)
                self._items.appendleft(await made if inspect.isawaitable(made) else made)
            else:
                return item
        raise LlmError(
            "INVALID_REQUEST",
            f"the scripted model has nothing more to say: its {self._length} items are used up, and this is request "
            f"{len(self.requests)} (turn {request.turn}, step {request.step}); add an item for it",
        )

    def _parts(self, item: Item) -> Iterable[StreamChunk | Pause | Fail]:
        match item:
            case Text():
                return item.chunks
            case Call():
                return self._call_chunks((item,))
            case Calls():
                return self._call_chunks(item.calls)
            case Fail():
                return (*item.after, item)
            case list() | tuple():
                return item
        raise TypeError(
            f"a scripted item must be text(…), call(…), calls(…), fail(…), pause(…), a list of chunks or a function, "
            f"not {type(item).__name__!r}"
        )

    def _call_chunks(self, made: tuple[Call, ...]) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        for index, one in enumerate(made):
            self._calls += 1
            block = ToolCallBlock(f"call_{self._calls}", wire_name(one.name), one.arguments)
            chunks.append(BlockStart(index, "tool-call"))
            chunks.append(ToolCallDelta(index, block.id, block.name, block.arguments))
            chunks.append(BlockEnd(index, block))
        chunks.extend(_ending("tool-calls" if made else "stop", sum(len(one.arguments) for one in made)))
        return chunks


def _ending(kind: str, length: int) -> tuple[StreamChunk, StreamChunk]:
    return UsageChunk(Usage(_INPUT_TOKENS, length // 4 + 1)), FinishChunk(Finish(kind))


def _described(item: Item) -> str:
    if isinstance(item, list | tuple):
        return f"{len(item)} raw chunks"
    return getattr(item, "__qualname__", None) or repr(item)


@attrs.define(eq=False)
class ScriptedPlugin:
    """
    Registers a scripted or replaying adapter as provider `scripted`.

    Args:
        adapter: The adapter; models are addressed `scripted/anything`.
    """

    name: ClassVar[str] = "scripted"
    adapter: LlmAdapter

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the provider."""
        harness.llm.register("scripted", self.adapter)


