"""Connections, silence and cancellation, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import attrs
import pytest
from dsh_llm_openai import OpenAIAdapter

from dsh_core.errors import LlmError
from dsh_core.llm.seam import FinishChunk, TextDelta

pytestmark = pytest.mark.anyio

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@attrs.define(eq=False)
class Server:
    """A server that plays a script of bytes and pauses to each request, and counts what happens."""

    script: list[bytes | float]
    connections: int = 0
    requests: int = 0
    gone: asyncio.Event = attrs.field(factory=asyncio.Event)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (length := await self._request(reader)) is not None:
                await reader.readexactly(length)
                self.requests += 1
                for step in self.script:
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                        continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(step):
                            await reader.read(1)  # returns only when the client goes away
                            return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone.set()
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> int | None:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return int(line.split(b":")[1])
        return None


@pytest.fixture
async def serve():
    """Start servers that end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*script: bytes | float) -> Server:
            server = Server(list(script))
            running = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            await stack.enter_async_context(running)
            server.port = running.sockets[0].getsockname()[1]
            return server

        yield start


@pytest.fixture(params=["httpx", "aiohttp"])
def connect(request):
    """Adapters for a server, over either transport of the SDK."""
    if request.param == "aiohttp":
        pytest.importorskip("aiohttp", reason='aiohttp is missing: pip install "dsh-llm-openai[aiohttp]"')

    @contextlib.asynccontextmanager
    async def connected(server, **options):
        url = f"http://127.0.0.1:{server.port}/v1"
        adapter = OpenAIAdapter(url, profile="generic", http=request.param, **options)
        try:
            yield adapter
        finally:
            await adapter.aclose()

    return connected


async def _text(adapter, request) -> str:
    return "".join([chunk.text async for chunk in adapter.stream(request) if isinstance(chunk, TextDelta)])


def _tasks() -> set[asyncio.Task]:
    return {task for task in asyncio.all_tasks() if "Server.serve" not in repr(task)}


async def test_one_connection_serves_many_requests(connect, serve, wire):
    """M-1: the body is read past the end mark, so that the connection can be used again."""
    body = wire.sse(wire.delta(content="x"), wire.delta("stop"))
    server = await serve(_HEAD, *(_piece(body[at : at + 40]) for at in range(0, len(body), 40)), b"0\r\n\r\n")
    async with connect(server) as adapter:
        for _ in range(5):
            assert await _text(adapter, wire.asked()) == "x"
    assert (server.requests, server.connections) == (5, 1)


async def test_a_body_that_does_not_end_after_its_end_mark(connect, serve, wire):
    """M-1: the answer is whole; the rest of the connection is not waited for."""
    server = await serve(_HEAD, _piece(wire.sse(wire.delta("stop", content="x"))), 60.0)
    async with connect(server) as adapter, asyncio.timeout(10):
        assert await _text(adapter, wire.asked()) == "x"
        await server.gone.wait()


async def test_total_silence_is_a_timeout(connect, serve, wire):
    """llm-6: before the head of the answer."""
    server = await serve(60.0)
    async with connect(server, idle_timeout=0.2) as adapter:
        with pytest.raises(LlmError, match="gave no answer") as caught:
            await _text(adapter, wire.asked())
        assert caught.value.code == "TIMEOUT"
        await asyncio.wait_for(server.gone.wait(), 10)


async def test_the_head_is_waited_for_no_longer_than_timeout(connect, serve, wire):
    """M-3: `timeout` bounds the wait for the beginning of the answer."""
    server = await serve(60.0)
    async with connect(server, timeout=0.2) as adapter:
        with pytest.raises(LlmError, match="gave no answer") as caught:
            await _text(adapter, wire.asked())
        assert caught.value.code == "TIMEOUT"


@pytest.mark.parametrize(
    "heartbeat", [b": ping\n\n", b"event: ping\ndata: {}\n\n", b'data: {"choices": []}\n\n', b"\n"]
)
async def test_heartbeats_do_not_count(connect, serve, wire, heartbeat):
    """llm-6: one delta, then only comments, pings or empty chunks."""
    beats = [step for _ in range(100) for step in (_piece(heartbeat), 0.05)]
    server = await serve(_HEAD, _piece(wire.sse(wire.delta(content="x"), done=False)), *beats)
    async with connect(server, idle_timeout=0.4) as adapter:
        heard = []
        with pytest.raises(LlmError, match="stopped sending") as caught:
            await wire.drain(adapter.stream(wire.asked()), heard)
        assert caught.value.code == "TIMEOUT"
        assert heard[-1] == TextDelta(0, "x")
        await asyncio.wait_for(server.gone.wait(), 10)


async def test_slow_events_are_no_silence(connect, serve, wire):
    """llm-6: each real event starts the limit anew."""
    words = [step for _ in range(10) for step in (_piece(wire.sse(wire.delta(content="x"), done=False)), 0.1)]
    server = await serve(_HEAD, *words, _piece(wire.sse(wire.delta("stop"))), b"0\r\n\r\n")
    async with connect(server, idle_timeout=0.6) as adapter:
        assert await _text(adapter, wire.asked()) == "x" * 10


async def test_a_slow_consumer_is_not_the_providers_silence(connect, serve, wire):
    """llm-6: only time spent waiting for the provider counts."""
    first, rest = wire.sse(wire.delta(content="a"), done=False), wire.sse(wire.delta("stop", content="b"))
    server = await serve(_HEAD, _piece(first), 0.05, _piece(rest), b"0\r\n\r\n")
    async with connect(server, idle_timeout=0.2) as adapter:
        text = ""
        async for chunk in adapter.stream(wire.asked()):
            if isinstance(chunk, TextDelta):
                text += chunk.text
                await asyncio.sleep(0.5)
        assert text == "ab"


@pytest.mark.parametrize("script", ["before the head", "in mid-stream"])
async def test_cancelling_closes_the_connection_at_once(connect, serve, wire, script):
    """M-1: the server sees the connection go, and nothing is left running."""
    head = [] if script == "before the head" else [_HEAD, _piece(wire.sse(wire.delta(content="x"), done=False))]
    server = await serve(*head, 60.0)
    before = _tasks()
    async with connect(server) as adapter:
        task = asyncio.create_task(_text(adapter, wire.asked()))
        while not server.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)
        gc.collect()
        await asyncio.sleep(0)
    assert _tasks() <= before


async def test_closing_the_iterator_closes_the_connection_at_once(connect, serve, wire):
    """M-1: leaving in the middle of a burst of chunks is enough."""
    server = await serve(_HEAD, _piece(wire.sse(*[wire.delta(content="x")] * 5, done=False)), 60.0)
    before = _tasks()
    async with connect(server) as adapter:
        stream = adapter.stream(wire.asked())
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(server.gone.wait(), 5)
        gc.collect()
        await asyncio.sleep(0)
    assert _tasks() <= before


async def test_a_timeout_of_the_caller_stays_the_callers(connect, serve, wire):
    """A-7: an outer time limit is not taken for silence of the provider."""
    server = await serve(_HEAD, 60.0)
    async with connect(server, idle_timeout=30.0) as adapter:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await _text(adapter, wire.asked())


async def test_a_server_that_hangs_up_without_an_answer(connect, serve, wire):
    """llm-7: TRANSPORT, with the place and a hint."""
    server = await serve()
    server.script = [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"]

    async def hang_up(reader, writer):
        await reader.read(100)
        writer.close()

    running = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with running:
        server.port = running.sockets[0].getsockname()[1]
        async with connect(server) as adapter:
            with pytest.raises(LlmError, match="cannot reach") as caught:
                await _text(adapter, wire.asked())
            assert caught.value.code == "TRANSPORT"


async def test_many_streams_at_once_share_one_client(connect, serve, wire):
    """M-1: one adapter serves every session of a harness at the same time."""
    server = await serve(_HEAD, _piece(wire.sse(wire.delta("stop", content="x"))), b"0\r\n\r\n")
    async with connect(server) as adapter:
        texts = await asyncio.gather(*(_text(adapter, wire.asked()) for _ in range(30)))
    assert texts == ["x"] * 30


async def test_a_closed_adapter_can_be_closed_again(connect, serve, wire):
    """H-7: closing twice is harmless."""
    server = await serve(_HEAD, _piece(wire.sse(wire.delta("stop", content="x"))), b"0\r\n\r\n")
    async with connect(server) as adapter:
        chunks = [chunk async for chunk in adapter.stream(wire.asked())]
        assert isinstance(chunks[-1], FinishChunk)
        await adapter.aclose()
