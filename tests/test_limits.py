"""The built-in limits of a turn (L-17)."""

from __future__ import annotations

import pytest

import dsh_core
from dsh_core import AgentOptions, tool
from dsh_core.session.events import StepStartEvent
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, text

pytestmark = pytest.mark.anyio


@tool(read_only=True)
async def look(at: int = 0) -> str:
    """Look."""
    return "nothing"


@tool(read_only=True, repeatable=True)
async def poll() -> str:
    """Ask whether it is ready."""
    return "not yet"


async def results(items, *prompts, max_steps=200):
    """What the turns of a scripted run came to, each with its number of steps."""
    adapter, found = ScriptedAdapter(items), []
    plugins = [ScriptedPlugin(adapter)]
    async with dsh_core.Harness(plugins=plugins, tools=[look, poll], autoload=False) as harness:
        handle = await harness.agents.create("a", options=AgentOptions(model="scripted/m", max_steps=max_steps))
        for prompt in prompts:
            result = await handle.agent.send(prompt)
            steps = sum(isinstance(event.data, StepStartEvent) for event in result.events)
            found.append((result.reason.kind, result.reason.code, steps))
        await handle.dispose()
    adapter.assert_complete()
    return found


async def test_a_turn_has_at_most_max_steps_steps():
    """L-17: `max_steps=N` means at most N steps, and the turn ends `limit{MAX_STEPS}`."""
    items = [call("look", at=number) for number in range(3)]
    assert await results(items, "go", max_steps=3) == [("limit", "MAX_STEPS", 3)]


async def test_a_turn_that_is_done_at_its_last_step_is_complete():
    """L-17: the limit is no reason where the turn would stop anyway."""
    assert await results([call("look", at=1), text("done")], "go", max_steps=2) == [("completed", None, 2)]


async def test_each_turn_has_its_own_steps():
    """L-17: the limit counts the steps of one turn."""
    items = [call("look", at=1), text("a"), call("look", at=1), text("b")]
    assert await results(items, "one", "two", max_steps=2) == [("completed", None, 2)] * 2


@pytest.mark.parametrize("name", ["look", "unknown"])
async def test_the_same_call_five_times_in_a_row_ends_the_turn(name):
    """L-17: unknown tools included."""
    assert await results([call(name, at=1)] * 5, "go") == [("limit", "REPEATED_CALL", 5)]


async def test_calls_of_one_message_count_too():
    """L-17: in a row means in the order of the log."""
    items = [calls(*[call("look", at=1)] * 3), calls(*[call("look", at=1)] * 2)]
    assert await results(items, "go") == [("limit", "REPEATED_CALL", 2)]


async def test_a_row_within_a_message_counts_whatever_follows_it():
    """L-17: one more call at the end of the same message does not hide the row."""
    items = [calls(*[call("look", at=1)] * 5, call("look", at=2))]
    assert await results(items, "go") == [("limit", "REPEATED_CALL", 1)]


async def test_a_repeatable_tool_breaks_the_row():
    """L-17: whoever polls in between does not go round in a circle."""
    items = [call("look", at=1), call("look", at=1), call("poll"), *[call("look", at=1)] * 4, text("done")]
    assert await results(items, "go") == [("completed", None, 8)]


async def test_four_times_is_no_circle():
    """L-17: the fifth is the limit."""
    assert await results([*[call("look", at=1)] * 4, text("done")], "go") == [("completed", None, 5)]


async def test_other_arguments_break_the_row():
    """L-17: the call has to be identical."""
    items = [*[call("look", at=1)] * 4, call("look", at=2), *[call("look", at=1)] * 4, text("done")]
    assert await results(items, "go") == [("completed", None, 10)]


async def test_a_new_turn_breaks_the_row():
    """L-17: the user may well ask for the same again."""
    items = [*[call("look", at=1)] * 3, text("a"), *[call("look", at=1)] * 3, text("b")]
    assert await results(items, "one", "two") == [("completed", None, 4)] * 2


async def test_repeatable_tools_are_exempt():
    """L-17: polling is what they are for."""
    assert await results([*[call("poll")] * 8, text("ready")], "go") == [("completed", None, 9)]


async def test_the_agent_goes_on_after_a_limit():
    """L-17: the limit ends a turn, not the agent."""
    items = [*[call("look", at=1)] * 5, text("done")]
    assert await results(items, "go", "on") == [("limit", "REPEATED_CALL", 5), ("completed", None, 1)]
