"""
A provider made of bytes: `provider(...)` answers through `httpx2.MockTransport`, so that the SDK and the
whole adapter run, and only the network is missing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import attrs
import httpx2
import pytest
from dsh_llm_openai import OpenAIAdapter

from dsh_core.content import GenerateRequest, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolSchema
from dsh_core.llm.seam import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)


@pytest.fixture
def anyio_backend() -> str:
    """The core runs on asyncio only."""
    return "asyncio"


class Body(httpx2.AsyncByteStream):
    """A response body in given pieces; a callable among them is awaited, an exception is raised."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self.pieces = list(pieces)
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if callable(piece):
                await piece()
            else:
                yield piece

    async def aclose(self) -> None:
        self.closed = True


def sse(*events: Any, done: bool = True, line_end: bytes = b"\n") -> bytes:
    """Events as an event stream; bytes go in as they are."""
    parts = []
    for event in events:
        data = (
            event
            if isinstance(event, bytes)
            else json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass")
        )
        parts.append(b"data: " + data + line_end * 2)
    if done:
        parts.append(b"data: [DONE]" + line_end * 2)
    return b"".join(parts)


def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
    """One chunk with one choice."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": members, "finish_reason": finish}]}


def call(arguments: str | None = None, **members: Any) -> dict[str, Any]:
    """One fragment of a tool call; `name` goes into its function."""
    function = {"name": members.pop("name")} if "name" in members else {}
    if arguments is not None:
        function["arguments"] = arguments
    return {**members, "function": function}


@attrs.define
class Heard:
    """What an adapter produced, put together in the plainest way."""

    chunks: list[StreamChunk]

    def __attrs_post_init__(self) -> None:
        self.check_contract()

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, ReasoningBlock))

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call."""
        return [(block.id, block.name, block.arguments) for block in self.blocks if isinstance(block, ToolCallBlock)]

    @property
    def finish(self) -> str:
        return self.chunks[-1].finish.kind

    @property
    def usage(self) -> Any:
        found = [chunk.usage for chunk in self.chunks if isinstance(chunk, UsageChunk)]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def blocks(self) -> list[Any]:
        grown: dict[int, list[Any]] = {}
        whole: dict[int, Any] = {}
        for chunk in self.chunks:
            if isinstance(chunk, BlockStart):
                grown[chunk.index] = [chunk.kind, "", "", ""]
            elif isinstance(chunk, TextDelta | ReasoningDelta):
                grown[chunk.index][1] += chunk.text
            elif isinstance(chunk, ToolCallDelta):
                block = grown[chunk.index]
                block[1] += chunk.arguments
                block[2] = block[2] or chunk.id or ""
                block[3] = block[3] or chunk.name or ""
            elif isinstance(chunk, BlockEnd) and chunk.block is not None:
                whole[chunk.index] = chunk.block
        return [whole.get(index) or _block(*parts) for index, parts in grown.items()]

    def check_contract(self) -> None:
        """M-1: blocks start, grow and end; usage before finish, nothing after it."""
        open_blocks: dict[int, str] = {}
        seen: list[int] = []
        kinds = {TextDelta: "text", ReasoningDelta: "reasoning", ToolCallDelta: "tool-call"}
        for position, chunk in enumerate(self.chunks):
            if isinstance(chunk, BlockStart):
                assert chunk.index not in seen
                seen.append(chunk.index)
                open_blocks[chunk.index] = chunk.kind
            elif isinstance(chunk, BlockEnd):
                open_blocks.pop(chunk.index)
            elif isinstance(chunk, FinishChunk):
                assert position == len(self.chunks) - 1
                assert not open_blocks
            elif isinstance(chunk, UsageChunk):
                assert isinstance(self.chunks[position + 1], FinishChunk)
            else:
                assert open_blocks[chunk.index] == kinds[type(chunk)]
        assert isinstance(self.chunks[-1], FinishChunk)
        assert seen == sorted(seen)


def _block(kind: str, text: str, call_id: str, name: str) -> Any:
    if kind == "tool-call":
        return ToolCallBlock(call_id, name, text)
    return TextBlock(text) if kind == "text" else ReasoningBlock(text)


@attrs.define
class Provider:
    """A provider that gives one answer to every request, and what it was asked."""

    answer: Callable[[httpx2.Request], httpx2.Response]
    options: dict[str, Any]
    requests: list[dict[str, Any]] = attrs.field(factory=list)
    headers: list[httpx2.Headers] = attrs.field(factory=list)
    urls: list[str] = attrs.field(factory=list)

    def adapter(self) -> OpenAIAdapter:
        def handle(request: httpx2.Request) -> httpx2.Response:
            self.requests.append(json.loads(request.content))
            self.headers.append(request.headers)
            self.urls.append(str(request.url))
            return self.answer(request)

        client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
        options = {"base_url": "http://provider.test/v1", "profile": "generic", **self.options}
        return OpenAIAdapter(client=client, **options)

    async def ask(self, request: GenerateRequest | None = None) -> Heard:
        """Run one request and collect what comes."""
        chunks: list[StreamChunk] = []
        async for chunk in self.adapter().stream(request or asked()):
            chunks.append(chunk)
        return Heard(chunks)


def asked(*tools: str, **members: Any) -> GenerateRequest:
    """A request that offers tools of these names."""
    schemas = tuple(ToolSchema(name, f"does {name}", {"type": "object", "properties": {}}) for name in tools)
    return GenerateRequest(**{"model": "m", "messages": (Message("user", "hi"),), "tools": schemas, **members})


def speak(
    *pieces: Any, status: int = 200, headers: dict[str, str] | None = None, request_headers: Any = None, **options: Any
) -> Provider:
    """A provider whose body consists of these pieces."""
    options["headers"] = request_headers
    sent = {"content-type": "text/event-stream", **(headers or {})}
    return Provider(
        lambda request: httpx2.Response(status, headers=sent, stream=Body(pieces), request=request), options
    )


async def drain(stream: AsyncIterator[StreamChunk], into: list[StreamChunk] | None = None) -> list[StreamChunk]:
    """All chunks of a stream; `into` keeps those that came before a failure."""
    chunks = [] if into is None else into
    async for chunk in stream:
        chunks.append(chunk)
    return chunks


@attrs.frozen
class Kit:
    """The helpers, for tests that take the fixture `wire`."""

    sse = staticmethod(sse)
    delta = staticmethod(delta)
    call = staticmethod(call)
    speak = staticmethod(speak)
    asked = staticmethod(asked)
    drain = staticmethod(drain)

    def say(self, *events: Any, **options: Any) -> Provider:
        """A provider whose event stream consists of these events."""
        return speak(sse(*events), **options)


@pytest.fixture
def wire() -> Kit:
    """Builders for requests, event streams and providers."""
    return Kit()


@pytest.fixture
def unused_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
