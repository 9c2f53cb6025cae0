"""
A model that says what it is told to say: for tests and the demo (M-6).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from dsh_core._markers import hookimpl
from dsh_core.content import Finish, GenerateRequest, Usage
from dsh_core.errors import LlmError
from dsh_core.llm.seam import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    LlmAdapter,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.tools.names import wire_name

if TYPE_CHECKING:
    from dsh_core.harness import Harness

__all__ = ["Item", "ScriptedAdapter", "ScriptedPlugin", "call", "calls", "fail", "pause", "text"]

_USAGE = UsageChunk(Usage(input=10, output=5))


@attrs.frozen
class _Text:
    value: str


@attrs.frozen
class _Call:
    name: str
    arguments: str


@attrs.frozen
class _Calls:
    calls: tuple[_Call, ...]


@attrs.frozen
class _Fail:
    error: Callable[[], LlmError]
    after: tuple[StreamChunk, ...]


@attrs.frozen
class _Pause:
    seconds: float


Item: TypeAlias = "_Text | _Call | _Calls | _Fail | _Pause | Sequence[StreamChunk] | Callable[[GenerateRequest], Item]"


def text(value: str) -> Item:
    """An answer of text, streamed in several pieces."""
    return _Text(value)


def call(name: str, /, **arguments: Any) -> _Call:
    """An answer of one tool call, by the tool's own name."""
    return _Call(name, json.dumps(arguments, ensure_ascii=False))


def calls(*several: _Call) -> Item:
    """An answer of several tool calls."""
    return _Calls(several)


def fail(
    code: str,
    message: str = "",
    status: int | None = None,
    retry_after: float | None = None,
    after: Iterable[StreamChunk] = (),
) -> Item:
    """A failure with a code of M-3, after the given chunks."""
    return _Fail(lambda: LlmError(code, message or f"scripted {code}", status, retry_after), tuple(after))


def pause(seconds: float) -> Item:
    """A wait before the next item; stands between items and answers no request of its own."""
    return _Pause(seconds)


class ScriptedAdapter(LlmAdapter):
    """
    Plays items in order, one for each request.

    Args:
        items: What `text`, `call`, `calls`, `fail` and `pause` make, lists of chunks, or functions from the
            request to one of these.
        window: Context window of its models, in tokens.
    """

    def __init__(self, items: Iterable[Any], *, window: int | None = None) -> None:
        self._items: list[Any] = list(items)
        self._next = 0
        self._ids = 0
        self._window = window
        self.requests: list[GenerateRequest] = []

    def context_window(self, model: str) -> int | None:
        """The window it was given."""
        return self._window

    def assert_complete(self) -> None:
        """Raise AssertionError if items were left over."""
        left = [item for item in self._items[self._next :] if not isinstance(item, _Pause)]
        assert not left, (
            f"{len(left)} of {len(self._items)} scripted items were not played, the next is {left[0]!r}; "
            "the agent made fewer requests than the script expects"
        )

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """Play the next item."""
        self.requests.append(request)
        item = await self._item(request)
        if isinstance(item, _Fail):
            for chunk in item.after:
                yield chunk
            raise item.error()
        for chunk in self._chunks(item):
            yield chunk

    async def _item(self, request: GenerateRequest) -> Any:
        """The next item that answers a request, after the pauses and functions on the way to it."""
        item = self._take()
        while isinstance(item, _Pause) or callable(item):
            if isinstance(item, _Pause):
                await asyncio.sleep(item.seconds)
                item = self._take()
            else:
                item = item(request)
        return item

    def _take(self) -> Any:
        if self._next >= len(self._items):
            raise LlmError(
                "INVALID_REQUEST",
                f"the script has ended: all {len(self._items)} items were played and request "
                f"{len(self.requests)} came; add an item or find out why the agent went on",
            )
        item = self._items[self._next]
        self._next += 1
        return item

    def _chunks(self, item: Any) -> Iterable[StreamChunk]:
        if isinstance(item, str):
            return _text_chunks(item)
        if isinstance(item, _Text):
            return _text_chunks(item.value)
        if isinstance(item, _Call):
            return self._call_chunks((item,))
        if isinstance(item, _Calls):
            return self._call_chunks(item.calls)
        if isinstance(item, Sequence):
            return item
        raise TypeError(f"{item!r} cannot be scripted; use text, call, calls, fail, pause or a list of chunks")

    def _call_chunks(self, several: Sequence[_Call]) -> Iterable[StreamChunk]:
        for index, one in enumerate(several):
            self._ids += 1
            yield BlockStart(index, "tool-call")
            yield ToolCallDelta(index, f"call_{self._ids}", wire_name(one.name), one.arguments)
            yield BlockEnd(index)
        yield _USAGE
        yield FinishChunk(Finish("tool-calls"))


def _text_chunks(value: str) -> Iterable[StreamChunk]:
    size = max(1, -(-len(value) // 4))
    yield BlockStart(0, "text")
    for start in range(0, len(value), size):
        yield TextDelta(0, value[start : start + size])
    yield BlockEnd(0)
    yield _USAGE
    yield FinishChunk(Finish("stop"))


class ScriptedPlugin:
    """
    Registers an adapter under the provider `scripted`, so that a model is addressed `scripted/anything`.

    Args:
        adapter: The adapter.
    """

    name = "scripted"

    def __init__(self, adapter: LlmAdapter) -> None:
        self.adapter = adapter

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the adapter."""
        harness.llm.register("scripted", self.adapter)
