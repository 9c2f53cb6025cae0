"""The adapter against a real llama.cpp server and a real, if very small, model."""

from __future__ import annotations

import asyncio
import json

import pytest
from dsh_llm_openai import OpenAIAdapter, OpenAIConfig, OpenAIPlugin, ProviderConfig

import dsh_core as dsh
from dsh_core.content import GenerateRequest, Message, TextBlock, ToolCallBlock, ToolResultBlock, ToolSchema
from dsh_core.errors import LlmError
from dsh_core.llm.assembler import BlockAssembler
from dsh_core.llm.seam import TextDelta, ToolCallDelta

pytestmark = [pytest.mark.anyio, pytest.mark.real_model, pytest.mark.timeout(300)]

_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_TOOLS = (
    ToolSchema("read", "Read a file.", _PATH),
    ToolSchema(
        "shell", "Run a command.", {**_PATH, "properties": {"command": {"type": "string"}}, "required": ["command"]}
    ),
)


@pytest.fixture
async def adapter(real_model_server):
    """An adapter for the real server."""
    adapter = OpenAIAdapter(real_model_server, profile="llama.cpp", idle_timeout=120, context_window=8192)
    yield adapter
    await adapter.aclose()


def _request(*messages: Message, **members) -> GenerateRequest:
    fixed = {"model": "smollm2", "temperature": 0.0, "max_tokens": 64, "extra": {"cache_prompt": False}}
    return GenerateRequest(messages=messages, **{**fixed, **members})


async def _run(adapter, request) -> tuple[list, BlockAssembler]:
    assembler, chunks = BlockAssembler(), []
    async for chunk in adapter.stream(request):
        chunks.append(chunk)
        assembler.push(chunk)
    return chunks, assembler


async def test_a_streamed_tool_call_and_the_answer_to_its_result(adapter):
    """§7: a call in several fragments, its arguments parse, and the result comes back in words."""
    prompt = Message("user", "Use read with path README.md")
    chunks, assembler = await _run(adapter, _request(prompt, tools=_TOOLS))
    message = assembler.message()
    (call,) = (block for block in message.content if not isinstance(block, TextBlock))
    assert (call.name, json.loads(call.arguments)) == ("read", {"path": "README.md"})
    assert call.id
    assert assembler.finish.kind == "tool-calls"
    assert sum(isinstance(chunk, ToolCallDelta) for chunk in chunks) > 1
    assert assembler.usage.output > 0
    result = Message("user", (ToolResultBlock(call.id, "42 files, all fine"),))
    chunks, assembler = await _run(adapter, _request(prompt, message, result, tools=_TOOLS))
    assert assembler.finish.kind == "stop"
    assert "42 files" in assembler.message().text
    assert sum(isinstance(chunk, TextDelta) for chunk in chunks) > 1


async def test_a_call_cut_by_the_token_limit_stays_cut(adapter):
    """llm-4: half a call and max-tokens."""
    request = _request(Message("user", "Use shell with command ls -la"), tools=_TOOLS, max_tokens=18)
    _, assembler = await _run(adapter, request)
    assert assembler.finish.kind == "max-tokens"


async def test_a_request_beyond_the_context_is_an_overflow(adapter):
    """cmp-5: llama.cpp's own wording."""
    with pytest.raises(LlmError) as caught:
        await _run(adapter, _request(Message("user", "word " * 12_000)))
    assert (caught.value.code, caught.value.status) == ("CONTEXT_OVERFLOW", 400)


async def test_structured_output(adapter):
    """§7: by response_format without tools."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    _, assembler = await _run(adapter, _request(Message("user", "Give a number."), response_format=schema))
    assert isinstance(json.loads(assembler.message().text)["n"], int)


async def test_a_cancelled_stream_frees_the_server(adapter):
    """M-1: the server's only slot serves the next request."""
    stream = adapter.stream(_request(Message("user", "Count to one thousand."), max_tokens=4000))
    async for chunk in stream:
        if isinstance(chunk, TextDelta):
            break
    await stream.aclose()
    async with asyncio.timeout(60):
        _, assembler = await _run(adapter, _request(Message("user", "Say hello."), max_tokens=8))
    assert assembler.message().text


async def test_broken_arguments_in_the_history_do_not_break_the_request(adapter):
    """llm-4: the server parses the history's arguments."""
    history = [
        Message("user", "Use read with path x"),
        Message("assistant", (ToolCallBlock("c1", "read", '{"path": "/tm'),)),
        Message("user", (ToolResultBlock("c1", "the arguments are no JSON", is_error=True),)),
    ]
    _, assembler = await _run(adapter, _request(*history, tools=_TOOLS, max_tokens=16))
    assert assembler.finish is not None


async def test_a_whole_turn_of_an_agent(real_model_server):
    """L-10: model, call, tool, result, answer, with nothing scripted."""
    read_paths = []

    @dsh.tool
    async def read(path: str) -> str:
        """Read a file."""
        read_paths.append(path)
        return "42 files, all fine"

    @dsh.tool
    async def shell(command: str) -> str:
        """Run a command."""
        return f"ran {command}"

    provider = ProviderConfig(
        base_url=real_model_server,
        profile="llama.cpp",
        extra_body={"cache_prompt": False, "temperature": 0, "max_tokens": 100},
    )
    plugin = OpenAIPlugin(OpenAIConfig(providers={"real": provider}))
    config = {"model": "real/smollm2"}
    async with dsh.open(config=config, tools=[read, shell], plugins=[plugin], autoload=False) as chat:
        result = await chat.ask("Use read with path README.md")
    assert read_paths[0] == "README.md"
    assert result.reason.kind == "completed"
    assert "42 files" in str(result)
