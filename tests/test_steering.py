"""Steering: each accepted message is seen by the model exactly once, in this turn or the next (A-1, L-17)."""

from __future__ import annotations

import pytest
from loops import Moment, ends_of, held, plugin, running

from dsh_core import AgentOptions, Continue, Stop, tool
from dsh_core.session.events import InboxQueuedEvent, SteeringMessageEvent
from dsh_core.testing import call, text

pytestmark = pytest.mark.anyio


def seen(lab, wanted):
    """How often the model was shown a text as new: in how many requests it stands, less those that repeat history."""
    first = next((number for number, one in enumerate(lab.texts()) if wanted in one), None)
    return 0 if first is None else lab.texts()[first].count(wanted)


async def test_steering_is_seen_before_the_next_request_of_the_same_turn():
    """A-1: added between two steps."""
    moment = Moment()

    @tool
    async def act() -> str:
        """Act."""
        await moment.here()
        return "done"

    async with running(call("act"), text("ok"), tools=[act]) as lab:
        first = lab.agent.send("go")
        await moment.reached.wait()
        second = lab.agent.steer("left")
        assert lab.of(InboxQueuedEvent)[1].lane == "steering"
        moment.go.set()
        results = [await first, await second]
        assert [result.turn for result in results] == [1, 1]
        assert lab.texts()[1] == ["go", "call act", "result done", "left"]


async def test_several_steers_keep_their_order():
    """A-1: and one prompt among them is the next turn."""
    moment = Moment()

    @tool
    async def act() -> str:
        """Act."""
        await moment.here()
        return "done"

    async with running(call("act"), text("ok"), text("later"), tools=[act]) as lab:
        lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.steer("one")
        prompt = lab.agent.send("prompt")
        lab.agent.steer("two")
        moment.go.set()
        assert (await prompt).turn == 2
        assert lab.texts()[1][-2:] == ["one", "two"]
        assert lab.texts()[2][-1] == "prompt"


MOMENTS = [
    "agent_prompt_submit",
    "system_prompt_assemble",
    "agent_pre_step",
    "agent_request",
    "agent_step_result",
    "agent_turn_continuation",
    "agent_turn_end",
]


@pytest.mark.parametrize("hook", MOMENTS)
async def test_steering_from_any_hook_is_seen_once(hook):
    """run-5: whatever the moment."""
    left = [True]

    def steer():
        if left:
            left.clear()
            lab.agent.steer("left")

    async with running(text("a"), text("b"), plugins=[plugin(**{hook: steer})], complete=False) as lab:
        await lab.agent.send("go")
        await lab.agent.when_idle()
        assert seen(lab, "left") == 1
        assert sorted(ends_of(lab.session).values()) == ["ran", "ran"]


@pytest.mark.parametrize(
    "kind", ["turn/start", "user/message", "step/start", "assistant/message", "tool/result", "step/end", "turn/end"]
)
async def test_steering_from_any_observer_is_seen_once(kind):
    """run-5, S-2: also from inside the notification of an event: after the last result, between stop and `turn/end`."""
    left = [True]

    def steer(event):
        if event.type == kind and left:
            left.clear()
            lab.agent.steer("left")

    @tool
    async def act() -> str:
        """Act."""
        return "done"

    answers = [call("act"), text("a"), text("b")]
    async with running(*answers, tools=[act], plugins=[plugin(session_event=steer)], complete=False) as lab:
        await lab.agent.send("go")
        await lab.agent.when_idle()
        assert seen(lab, "left") == 1
        assert sorted(ends_of(lab.session).values()) == ["ran", "ran"]


async def test_steering_while_the_final_text_streams_goes_on_with_the_turn():
    """L-17: pending steering overrides a plain stop."""
    moment = Moment()
    last = [*held_text("fin"), *held_text("al")]
    async with running(held(moment, *last[:2], after=[*_end()]), text("more")) as lab:
        first = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.steer("wait")
        moment.go.set()
        assert str(await first) == "more"
        assert lab.kinds().count("turn/start") == 1


def held_text(value):
    """A start and a delta."""
    from dsh_core import BlockStart, TextDelta

    return BlockStart(0, "text"), TextDelta(0, value)


def _end():
    from dsh_core import BlockEnd, Finish, FinishChunk, Usage, UsageChunk

    return BlockEnd(0), UsageChunk(Usage(1, 1)), FinishChunk(Finish("stop"))


async def test_steering_overrides_a_plugins_plain_stop():
    """L-17: steering that came in the hook that stops."""

    def stop(agent, step):
        if step == 1:
            agent.steer("not yet")
            return Stop("enough")
        return None

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_continuation=stop)]) as lab:
        assert str(await lab.agent.send("go")) == "b"
        assert lab.kinds().count("turn/start") == 1


async def test_steering_at_the_step_limit_opens_the_next_turn():
    """run-5, L-17: `max_steps` is never exceeded, and the steering is not lost."""

    def steer(agent, turn):
        if turn == 1:
            agent.steer("more")

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_continuation=steer)], max_steps=1) as lab:
        assert (await lab.agent.send("go")).reason.kind == "completed"
        await lab.agent.when_idle()
        assert [one.type for one in lab.session.events].count("step/start") == 2
        assert lab.ends() == ["completed", "completed"]
        assert lab.texts()[1] == ["go", "a", "more"]


async def test_steering_with_calls_at_the_step_limit_opens_the_next_turn():
    """L-17: the limit stands, with `limit{MAX_STEPS}`."""

    @tool
    async def act() -> str:
        """Act."""
        lab.agent.steer("more")
        return "done"

    async with running(call("act"), text("b"), tools=[act], max_steps=1) as lab:
        first = await lab.agent.send("go")
        assert (first.reason.kind, first.reason.code) == ("limit", "MAX_STEPS")
        await lab.agent.when_idle()
        assert lab.ends() == ["limit", "completed"]
        assert seen(lab, "more") == 1


async def test_steering_with_a_limit_of_a_plugin_opens_the_next_turn():
    """L-17, run-7: also when it came before the limit was known; it gets its own answer."""

    @tool
    async def act() -> str:
        """Act."""
        if lab.session.last_turn == 1 and lab.kinds().count("step/start") == 5:
            lab.agent.steer("stop that")
        return "done"

    async with running(*[call("act")] * 5, text("sorry"), tools=[act]) as lab:
        first = await lab.agent.send("go")
        assert first.reason.code == "REPEATED_CALL"
        await lab.agent.when_idle()
        assert lab.ends() == ["limit", "completed"]
        assert seen(lab, "stop that") == 1


@pytest.mark.parametrize("early", [True, False])
async def test_steering_in_a_tool_overrides_a_plain_stop_behind_it(early):
    """L-17: whether it came before or with the decision."""

    @tool
    async def act() -> str:
        """Act."""
        if early:
            lab.agent.steer("one more thing")
        return "done"

    def stop(agent, step):
        if step == 1:
            if not early:
                agent.steer("one more thing")
            return Stop("enough")
        return None

    async with running(call("act"), text("b"), tools=[act], plugins=[plugin(agent_turn_continuation=stop)]) as lab:
        assert str(await lab.agent.send("go")) == "b"
        assert lab.texts()[1][-1] == "one more thing"


async def test_steering_during_a_failed_step_opens_the_next_turn():
    """L-17, A-2: it is not lost with the step."""

    def fails(agent, turn):
        if turn == 1:
            agent.steer("more")
            raise RuntimeError("boom")

    async with running(text("b"), plugins=[plugin(agent_request=fails)]) as lab:
        assert (await lab.agent.send("go")).reason.kind == "error"
        await lab.agent.when_idle()
        assert lab.ends() == ["error", "completed"]
        assert lab.texts()[0] == ["go", "more"]


async def test_an_observer_that_cancels_while_steering_is_taken_up_loses_none():
    """A-2: what was taken up has run, the rest is dropped."""
    moment = Moment()

    @tool
    async def act() -> str:
        """Act."""
        await moment.here()
        return "done"

    def observe(event):
        if event.type == "steering/message":
            lab.agent.cancel("stop")

    async with running(call("act"), tools=[act], plugins=[plugin(session_event=observe)]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.steer("one")
        lab.agent.steer("two")
        moment.go.set()
        await receipt
        assert sorted(ends_of(lab.session).values()) == ["dropped", "ran", "ran"]
        assert len(lab.of(SteeringMessageEvent)) == 1


async def test_a_reason_to_continue_is_steering_in_the_order_of_acceptance():
    """L-17: it stands with what people steer."""

    def go_on(agent, step):
        if step == 1:
            agent.steer("from a person")
            return Continue("from a plugin")
        return None

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_continuation=go_on)]) as lab:
        await lab.agent.send("go")
        assert lab.texts()[1][-2:] == ["from a person", "from a plugin"]


async def test_steering_one_agent_does_not_reach_another():
    """A-1: lanes belong to the agent."""
    async with running(text("a"), text("b")) as lab:
        other = await lab.harness.agents.create("b", options=AgentOptions(model="scripted/m"))
        await lab.agent.steer("mine")
        await other.agent.steer("yours")
        assert lab.texts() == [["mine"], ["yours"]]
