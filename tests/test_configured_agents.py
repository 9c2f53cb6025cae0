"""Agents that configuration creates (A-10)."""

from __future__ import annotations

import logging

import pytest
from loops import StagedAdapter, Store, plugin

from dsh_core import Harness
from dsh_core.testing import ScriptedPlugin, text
from dsh_core.testing.invariants import Invariants

pytestmark = pytest.mark.anyio


def harness(agents, *items, plugins=()):
    """A harness with these `[[agents]]`."""
    given = [ScriptedPlugin(StagedAdapter(items)), *plugins, Invariants()]
    return Harness(plugins=given, config={"agents": agents}, autoload=False)


async def test_a_configured_agent_is_found_by_its_id():
    """A-10: on a fresh session, with its model and persona."""
    made = {"id": "helper", "model": "scripted/m", "system_prompt": "Be kind."}
    async with harness([made], text("hello")) as running:
        agent = running.agents.named("helper")
        assert agent.id.startswith("helper-session-")
        assert str(await agent.send("hi")) == "hello"
        assert (agent.options.model, agent.options.system_prompt) == ("scripted/m", "Be kind.")
        assert running.agents.named("nobody") is None
    assert agent.status == "disposed"


async def test_each_start_has_a_fresh_session():
    """A-10: unless one is named."""
    ids = []
    for _ in range(2):
        async with harness([{"id": "helper"}]) as running:
            ids.append(running.agents.named("helper").id)
    assert ids[0] != ids[1]


async def test_a_named_session_is_created_and_then_resumed():
    """A-10: under the same name."""
    store = Store()
    made = {"id": "helper", "model": "scripted/m", "session": "diary"}
    async with harness([made], text("one"), plugins=[store]) as running:
        agent = running.agents.named("helper")
        assert agent.id == "diary"
        await agent.send("first")
    async with harness([made], text("two"), plugins=[Store(store.store)]) as running:
        agent = running.agents.named("helper")
        assert agent.id == "diary"
        assert (await agent.send("second")).turn == 2


async def test_a_failure_is_a_named_warning(caplog):
    """A-10: the others are created, and the harness starts."""
    store = Store()
    wrong = {"id": "wrong", "session": "../outside"}
    with caplog.at_level(logging.WARNING, "dsh"):
        async with harness([wrong, {"id": "right"}], plugins=[store]) as running:
            assert running.agents.named("wrong") is None
            assert running.agents.named("right") is not None
    assert "'wrong'" in caplog.text


async def test_they_are_created_when_the_plugins_are_there():
    """A-10: plugins see them as any other."""
    created = []
    async with harness([{"id": "helper"}], plugins=[plugin(agent_created=lambda agent: created.append(agent.id))]):
        assert len(created) == 1


async def test_a_label_belongs_to_the_first_that_has_it():
    """A-10: a second agent of that label does not take it away, nor when it goes."""
    async with harness([{"id": "helper"}]) as running:
        first = running.agents.named("helper")
        second = await running.agents.create("other", label="helper")
        assert running.agents.named("helper") is first
        await second.dispose()
        assert running.agents.named("helper") is first
