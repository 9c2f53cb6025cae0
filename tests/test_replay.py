"""A recorded log is played again, and the first divergence is named (M-6)."""

from __future__ import annotations

import asyncio

import pytest

import dsh_core
from dsh_core import LlmError, Retry, hookimpl, tool
from dsh_core.content import GenerateRequest
from dsh_core.llm import LlmAdapter, TextDelta
from dsh_core.testing import ReplayAdapter, ScriptedAdapter, ScriptedPlugin, call, fail, text

pytestmark = pytest.mark.anyio


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class AtOnce:
    """Repeats what may pass by itself, without waiting."""

    name = "at-once"

    @hookimpl
    async def agent_request_error(self, error, attempt):
        return Retry(0) if error.code in ("RATE_LIMIT", "SERVER") and attempt < 3 else None


def opened(adapter, *, system="You add.", tools=(add,)):
    plugins = [ScriptedPlugin(adapter), AtOnce()]
    return dsh_core.open(
        model="scripted/m", plugins=plugins, tools=tools, system_prompt=system, autoload=False, cwd="/"
    )


async def recorded(items, *prompts):
    """The log of a run, and what its turns came to."""
    async with opened(ScriptedAdapter(items)) as chat:
        texts = [(await chat.ask(prompt)).text for prompt in prompts]
        return list(chat.agent.session.events), texts


SUM = [call("add", a=1, b=2), text("three"), text("bye")]


async def test_a_log_replays_to_the_same_answers():
    """M-6: the same prompts meet the same answers, tools included."""
    events, texts = await recorded(SUM, "what is 1 + 2?", "thanks")
    adapter = ReplayAdapter(events)
    async with opened(adapter) as chat:
        assert [(await chat.ask("what is 1 + 2?")).text, (await chat.ask("thanks")).text] == texts
    adapter.assert_complete()
    assert [(request.turn, request.step) for request in adapter.requests] == [(1, 1), (1, 2), (2, 1)]


async def test_failed_attempts_replay_as_failures():
    """L-4, M-6: a request that was repeated is repeated again."""
    items = [fail("RATE_LIMIT", "slow", 429), fail("SERVER", "half", after=[TextDelta(0, "x")]), text("done")]
    events, _ = await recorded(items, "go")
    adapter = ReplayAdapter(events)
    async with opened(adapter) as chat:
        assert (await chat.ask("go")).text == "done"
    adapter.assert_complete()
    assert [request.attempt for request in adapter.requests] == [1, 2, 3]


async def test_the_failure_that_ended_a_turn_replays():
    """M-6: with the provider's code and words."""
    async with opened(ScriptedAdapter([fail("AUTH", "wrong key", 401)])) as chat:
        assert (await chat.ask("go")).reason.code == "AUTH"
        events = list(chat.agent.session.events)
    async with opened(ReplayAdapter(events)) as chat:
        reason = (await chat.ask("go")).reason
    assert (reason.kind, reason.code, reason.message, reason.status) == ("error", "AUTH", "wrong key", 401)


class Hanging(LlmAdapter):
    """Says something, or nothing, and never ends."""

    def __init__(self, *said):
        self.said, self.waiting = said, asyncio.Event()

    async def stream(self, request):
        for chunk in self.said:
            yield chunk
        self.waiting.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("said", [(TextDelta(0, "half an ans"),), ()])
async def test_a_request_that_was_cancelled_replays_as_cut_off(said):
    """M-6: it ends where it was cut, is not repeated, and is no divergence."""
    hanging = Hanging(*said)
    async with opened(hanging) as chat:
        receipt = chat.agent.send("go")
        await hanging.waiting.wait()
        chat.agent.cancel("enough")
        assert (await receipt).reason.kind == "aborted"
        events = list(chat.agent.session.events)
    adapter = ReplayAdapter(events)
    async with opened(adapter) as chat:
        reason = (await chat.ask("go")).reason
    assert (reason.kind, reason.code) == ("error", "ABORTED")
    assert [request.attempt for request in adapter.requests] == [1]
    adapter.assert_complete()


async def test_a_step_whose_request_never_went_out_is_not_missed():
    """M-6: a hook that fails before the request fails again; the adapter has nothing to play."""

    class Broken:
        name = "broken"

        @hookimpl
        async def agent_request(self):
            raise ValueError("no")

    def broken(adapter):
        return dsh_core.open(model="scripted/m", plugins=[ScriptedPlugin(adapter), Broken()], autoload=False)

    async with broken(ScriptedAdapter([])) as chat:
        assert (await chat.ask("go")).reason.code == "HOOK"
        events = list(chat.agent.session.events)
    adapter = ReplayAdapter(events)
    async with broken(adapter) as chat:
        assert (await chat.ask("go")).reason.code == "HOOK"
    adapter.assert_complete()


async def diverged(events, prompt="what is 1 + 2?", **changed):
    async with opened(ReplayAdapter(events), **changed) as chat:
        reason = (await chat.ask(prompt)).reason
    assert (reason.kind, reason.code) == ("error", "INVALID_REQUEST")
    return reason.message


async def test_a_changed_message_is_the_divergence():
    """M-6: turn, step, place and both texts are named."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    message = await diverged(events, "what is 2 + 2?")
    assert "turn 1, step 1: messages[0]" in message
    assert "1 + 2" in message
    assert "2 + 2" in message


async def test_a_changed_system_prompt_is_the_divergence():
    """M-6: the place of the first difference is named."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    message = await diverged(events, system="You subtract.")
    assert "system differs from character" in message
    assert "subtract" in message


async def test_a_missing_tool_is_the_divergence():
    """M-6: the tools are named."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    assert "tools were add and are none" in await diverged(events, tools=())


async def test_a_tool_that_changed_is_the_divergence():
    """M-6: same name, other schema."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")

    @tool(name="add", read_only=True)
    async def other(a: int, b: int, c: int = 0) -> int:
        """Add numbers."""
        return a + b + c

    assert "'add' changed" in await diverged(events, tools=(other,))


async def test_a_divergence_behind_a_tool_call_names_its_step():
    """M-6: the first request that differs is the one that is reported."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")

    @tool(name="add", read_only=True)
    async def wrong(a: int, b: int) -> int:
        """Add two numbers."""
        return a - b

    assert "turn 1, step 2: messages[2]" in await diverged(events, tools=(wrong,))


async def test_the_first_divergence_is_told_again():
    """M-6: later requests differ because of it, so they do not hide it."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    async with opened(ReplayAdapter(events)) as chat:
        first = (await chat.ask("what is 2 + 2?")).reason.message
        assert (await chat.ask("thanks")).reason.message == first


async def test_a_request_the_log_does_not_hold_is_refused():
    """M-6: what the log does hold is named."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    with pytest.raises(LlmError, match="turn 9, step 1: the log holds no such request; it holds turn 1, step 1"):
        await anext(ReplayAdapter(events).stream(GenerateRequest(turn=9, step=1)))


async def test_requests_that_were_not_repeated_are_reported():
    """M-6: a run that ends early did not do what the log did."""
    events, _ = await recorded(SUM, "what is 1 + 2?", "thanks")
    adapter = ReplayAdapter(events)
    async with opened(adapter) as chat:
        await chat.ask("what is 1 + 2?")
    with pytest.raises(AssertionError, match="turn 2, step 1"):
        adapter.assert_complete()
