"""Answers of a given form (`output_type`)."""

from __future__ import annotations

import attrs
import pytest
from loops import plugin, running

from dsh_core import tool
from dsh_core.session.events import SteeringMessageEvent
from dsh_core.testing import call, text

pytestmark = pytest.mark.anyio


@attrs.frozen
class Address:
    """Where somebody lives."""

    city: str
    zip: int | None = None


@attrs.frozen
class Person:
    """Somebody."""

    name: str
    age: int
    addresses: list[Address] = attrs.field(factory=list)


SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
GOOD = '{"name": "Ada", "age": 36, "addresses": [{"city": "London"}]}'


async def test_an_attrs_class_is_asked_for_and_made():
    """10-api: the schema is in the request, an instance in the result."""
    async with running(text(GOOD), output_type=Person) as lab:
        result = await lab.agent.send("who?")
        assert result.output == Person("Ada", 36, [Address("London")])
        wanted = lab.adapter.requests[0].response_format
        assert wanted["type"] == "object"
        assert set(wanted["properties"]) == {"name", "age", "addresses"}
        assert "$ref" not in wanted


async def test_a_schema_gives_the_json_value():
    """10-api: a mapping is a JSON Schema."""
    async with running(text('{"ok": true}'), output_type=SCHEMA) as lab:
        assert (await lab.agent.send("ok?")).output == {"ok": True}


@pytest.mark.parametrize("answer", [f"```json\n{GOOD}\n```", f"```\n{GOOD}\n```", f"  {GOOD}\n"])
async def test_a_fence_round_the_answer_is_taken_off(answer):
    """10-api: what models do."""
    async with running(text(answer), output_type=Person) as lab:
        assert (await lab.agent.send("who?")).output.name == "Ada"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("I think it is Ada.", "not JSON"),
        ('{"name": "Ada"}', "age"),
        ('{"name": "Ada", "age": "old"}', "age"),
        ('["Ada"]', "object"),
    ],
)
async def test_an_answer_that_does_not_match_is_asked_for_once_more(wrong, why):
    """10-api: the model is told what is wrong."""
    async with running(text(wrong), text(GOOD), output_type=Person) as lab:
        result = await lab.agent.send("who?")
        assert result.output == Person("Ada", 36, [Address("London")])
        assert why in lab.of(SteeringMessageEvent)[0].content[0].text


async def test_twice_wrong_ends_the_turn():
    """10-api: `limit{OUTPUT_MISMATCH}`, without output; the next turn has a new try."""
    async with running(text("no"), text("no"), text("no"), text(GOOD), output_type=Person) as lab:
        result = await lab.agent.send("who?")
        assert (result.reason.kind, result.reason.code, result.output) == ("limit", "OUTPUT_MISMATCH", None)
        assert (await lab.agent.send("again")).output.name == "Ada"


async def test_steps_with_calls_are_no_answers():
    """10-api: only the final answer has to match."""

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    async with running(call("look"), call("look"), text(GOOD), tools=[look], output_type=Person) as lab:
        assert (await lab.agent.send("who?")).output.name == "Ada"
        assert lab.of(SteeringMessageEvent) == []


async def test_a_format_that_a_plugin_has_set_stays():
    """10-api: the built-in plugin is a plugin like others."""
    own = plugin(agent_request=lambda request: attrs.evolve(request, response_format={"type": "json"}))
    async with running(text(GOOD), plugins=[own], output_type=Person) as lab:
        await lab.agent.send("who?")
        assert dict(lab.adapter.requests[0].response_format) == {"type": "json"}


async def test_without_the_plugin_an_answer_that_does_not_match_has_no_output():
    """10-api: the turn completes, the receipt settles, the text is there."""
    config = {"plugins": {"disable": ["structured-output"]}}
    async with running(text("no"), text("next"), output_type=Person, config=config) as lab:
        result = await lab.agent.send("who?")
        assert (result.reason.kind, str(result), result.output) == ("completed", "no", None)
        await lab.agent.send("on")


async def test_an_output_type_that_is_none_is_an_error_of_the_turn():
    """10-api: an attrs class or a JSON Schema."""
    async with running(output_type=3) as lab:
        result = await lab.agent.send("who?")
        assert result.reason.kind == "error"
        assert "attrs class" in result.reason.message
