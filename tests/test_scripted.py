"""The scripted model keeps the contract of an adapter and says exactly what it was told (M-6)."""

from __future__ import annotations

import json

import pytest

import dsh_core
from dsh_core.content import Finish, GenerateRequest, TextBlock, ToolCallBlock
from dsh_core.errors import LlmError
from dsh_core.llm import BlockAssembler, FinishChunk, TextDelta, UsageChunk
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, fail, pause, text
from dsh_core.tools.names import wire_name

pytestmark = pytest.mark.anyio


async def play(adapter: ScriptedAdapter, request: GenerateRequest | None = None) -> list[object]:
    return [chunk async for chunk in adapter.stream(request or GenerateRequest(model="x", provider="scripted"))]


def message(chunks: list[object]) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)  # type: ignore[arg-type]
    return assembler


async def test_text_is_streamed_in_several_deltas():
    """M-6: what watches a stream sees one."""
    chunks = await play(ScriptedAdapter([text("hello, world")]))
    assert sum(type(chunk) is TextDelta for chunk in chunks) > 1
    assert message(chunks).message().content == (TextBlock("hello, world"),)


@pytest.mark.parametrize("item", [text("x"), text(""), call("add", a=1), calls(call("a"), call("b"))])
async def test_usage_comes_before_finish_and_nothing_after(item):
    """M-1: the contract of an adapter."""
    *_, usage, finish = await play(ScriptedAdapter([item]))
    assert (type(usage), type(finish)) == (UsageChunk, FinishChunk)


async def test_text_without_any_is_an_empty_message():
    """M-6: a model may say nothing."""
    assembler = message(await play(ScriptedAdapter([text("")])))
    assert (assembler.message().content, assembler.finish) == ((), Finish("stop"))


async def test_a_call_goes_out_with_its_arguments():
    """M-6: arguments are JSON text; any name is free for an argument."""
    assembler = message(await play(ScriptedAdapter([call("add", name="n", b=2)])))
    (block,) = assembler.message().content
    assert (block.id, block.name, json.loads(block.arguments)) == ("call_1", "add", {"name": "n", "b": 2})
    assert assembler.finish == Finish("tool-calls")


async def test_ids_of_calls_are_unique_in_an_adapter():
    """L-12: so that nothing has to be renamed."""
    adapter = ScriptedAdapter([calls(call("a"), call("b")), call("c")])
    blocks = [*message(await play(adapter)).message().content, *message(await play(adapter)).message().content]
    assert [(block.id, block.name) for block in blocks] == [("call_1", "a"), ("call_2", "b"), ("call_3", "c")]


async def test_a_call_goes_out_under_the_wire_name():
    """T-4: a script names tools as their authors do; a model knows them by another name."""
    (block,) = message(await play(ScriptedAdapter([call("fs.read")]))).message().content
    assert isinstance(block, ToolCallBlock)
    assert block.name == wire_name("fs.read") != "fs.read"


async def test_a_failure_is_raised_after_its_chunks():
    """M-6: a failure may come in the middle of an answer."""
    adapter = ScriptedAdapter([fail("RATE_LIMIT", "slow down", 429, 2.5, after=[TextDelta(0, "so")])])
    stream = adapter.stream(GenerateRequest())
    assert await anext(stream) == TextDelta(0, "so")
    with pytest.raises(LlmError) as caught:
        await anext(stream)
    error = caught.value
    assert (error.code, error.message, error.status, error.retry_after) == ("RATE_LIMIT", "slow down", 429, 2.5)


async def test_a_pause_answers_no_request():
    """M-6: it stands between items."""
    adapter = ScriptedAdapter([pause(0), pause(0), text("x")])
    assert message(await play(adapter)).message().text == "x"
    adapter.assert_complete()


async def test_raw_chunks_are_played_as_they_are():
    """M-6: a test may break the contract on purpose."""
    raw = [TextDelta(3, "x"), FinishChunk(Finish("odd"))]
    assert await play(ScriptedAdapter([raw])) == raw


async def test_a_function_answers_from_the_request():
    """M-6: what a function returns is played as an item."""
    adapter = ScriptedAdapter([lambda request: text(f"I am {request.model}")])
    assert message(await play(adapter, GenerateRequest(model="m"))).message().text == "I am m"


async def test_a_function_may_answer_with_a_pause():
    """M-6: what a function returns is played as an item of any kind."""
    adapter = ScriptedAdapter([lambda request: pause(0), text("x")])
    assert message(await play(adapter)).message().text == "x"
    adapter.assert_complete()


async def test_requests_are_kept():
    """M-6: a test asserts on what the model would have read."""
    adapter = ScriptedAdapter([text("a"), text("b")])
    first, second = GenerateRequest(model="1"), GenerateRequest(model="2")
    await play(adapter, first)
    await play(adapter, second)
    assert adapter.requests == [first, second]


async def test_a_script_at_its_end_says_so():
    """M-6: one request too many is an error that tells what to do."""
    adapter = ScriptedAdapter([text("a")])
    await play(adapter)
    with pytest.raises(LlmError, match="all 1 items") as caught:
        await play(adapter)
    assert caught.value.code == "INVALID_REQUEST"


async def test_items_that_were_not_played_are_reported():
    """M-6: a script that is longer than the run hides a mistake."""
    adapter = ScriptedAdapter([text("a"), call("never_called")])
    await play(adapter)
    with pytest.raises(AssertionError, match="never_called"):
        adapter.assert_complete()
    await play(adapter)
    adapter.assert_complete()


async def test_what_cannot_be_scripted_is_named():
    """M-6: a mistake in a script is told as such."""
    with pytest.raises(TypeError, match="42"):
        await play(ScriptedAdapter([42]))


async def test_the_plugin_registers_the_provider_scripted():
    """M-6: a model is addressed `scripted/anything`."""
    adapter = ScriptedAdapter([text("hello")])
    async with dsh_core.open(model="scripted/any", plugins=[ScriptedPlugin(adapter)], autoload=False) as chat:
        assert (await chat.ask("hi")).text == "hello"
    assert (adapter.requests[0].provider, adapter.requests[0].model) == ("scripted", "any")
