"""Cancel and dispose at every moment of a turn (A-3, A-5, A-7)."""

from __future__ import annotations

import asyncio

import pytest
from loops import Moment, StagedAdapter, ends_of, held, plugin, running, spoken, until

from dsh_core import AgentDisposed, AgentOptions, Harness, MessageDropped, tool
from dsh_core.session.events import InboxDroppedEvent, StepStartEvent, ToolResultEvent, TurnEndEvent
from dsh_core.testing import ScriptedPlugin, call, text
from dsh_core.testing.invariants import Invariants

pytestmark = pytest.mark.anyio


async def stop(lab, how):
    """Cancel or dispose; returns what the turn must end with."""
    if how == "cancel":
        lab.agent.cancel("stop")
        return "aborted"
    await lab.handle.dispose()
    return "disposed"


def stop_now(lab, how):
    """The same without waiting, for observers."""
    if how == "cancel":
        lab.agent.cancel("stop")
    else:
        lab.agent.request_stop()


BOTH = pytest.mark.parametrize("how", ["cancel", "dispose"])


@tool
async def act() -> str:
    """Act."""
    return "done"


# -- the table: moments without a turn -------------------------------------------------------------------


async def test_cancelling_an_idle_agent_has_no_effect():
    """A-3: nothing is logged, nothing dropped, and the next prompt runs."""
    async with running(text("ok")) as lab:
        assert lab.agent.cancel() == []
        assert lab.events == []
        assert str(await lab.agent.send("hi")) == "ok"


async def test_cancelling_a_turn_about_to_start_prevents_it():
    """A-3: no turn, no status, no request; the waiter is released."""
    async with running() as lab:
        receipt = lab.agent.send("hi")
        assert [message.id for message in lab.agent.cancel("stop")] == [receipt.message_id]
        await lab.agent.when_idle()
        with pytest.raises(MessageDropped):
            await receipt
        assert lab.statuses == []
        assert [type(data).__name__ for data in lab.events] == ["InboxQueuedEvent", "InboxDroppedEvent"]


async def test_a_prompt_behind_a_cancel_runs():
    """A-3: a cancel leaks into no later prompt; the waiter returns only after it."""
    async with running(text("second")) as lab:
        first = lab.agent.send("one")
        lab.agent.cancel()
        second = lab.agent.send("two")
        await lab.agent.when_idle()
        assert lab.texts() == [["two"]]
        with pytest.raises(MessageDropped):
            await first
        assert str(await second) == "second"


@BOTH
async def test_stopping_in_the_status_observer_starts_no_turn(how):
    """A-3: the statuses are running and idle (or disposed); there is no turn."""

    def observe(status):
        if status == "running":
            stop_now(lab, how)

    async with running(plugins=[plugin(agent_status=observe)]) as lab:
        receipt = lab.agent.send("hi")
        with pytest.raises((MessageDropped, AgentDisposed)):
            await receipt
        await lab.agent.when_idle()
        assert lab.kinds() == []
        assert lab.statuses == (["running", "idle"] if how == "cancel" else ["running", "disposed"])


async def test_cancelling_before_the_turns_task_runs_prevents_the_turn():
    """A-3: the driver has woken, the turn has not begun."""
    async with running(text("ok")) as lab:
        receipt = lab.agent.send("hi")
        while lab.agent.status != "running":
            await asyncio.sleep(0)
        lab.agent.cancel()
        with pytest.raises(MessageDropped):
            await receipt
        await lab.agent.when_idle()
        assert lab.kinds() == []
        assert str(await lab.agent.send("again")) == "ok"


async def test_disposing_with_a_queued_prompt_leaves_it_pending():
    """A-2, A-5: no turn; the message is in the log."""
    async with running() as lab:
        receipt = lab.agent.send("hi")
        await lab.handle.dispose()
        with pytest.raises(AgentDisposed):
            await receipt
        assert lab.kinds() == []
        assert list(ends_of(lab.session).values()) == ["pending"]


# -- the table: moments of a turn ------------------------------------------------------------------------

HOOKS = [
    ("agent_prompt_submit", 0, False),
    ("system_prompt_assemble", 0, True),
    ("agent_pre_step", 0, True),
    ("agent_request", 1, True),
    ("agent_step_result", 1, True),
    ("agent_turn_continuation", 1, True),
]


@BOTH
@pytest.mark.parametrize(("hook", "steps", "admitted"), HOOKS)
async def test_stopping_while_a_hook_waits(how, hook, steps, admitted):
    """A-3, A-7: the hook is interrupted; the turn is closed with the recorded cause and the right steps."""
    moment = Moment()

    async def wait():
        if not moment.reached.is_set():
            await moment.here()

    answers = [text("lost")] if hook in ("agent_step_result", "agent_turn_continuation") else []
    ahead = [*answers, text("ok")] if how == "cancel" else answers
    async with running(*ahead, plugins=[plugin(**{hook: wait})]) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        kind = await stop(lab, how)
        if admitted:
            result = await receipt
            assert result.reason.kind == kind
            assert result.reason.reason == ("stop" if how == "cancel" else None)
        else:
            with pytest.raises((MessageDropped, AgentDisposed)):
                await receipt
            await lab.agent.when_idle()
        assert [end.reason.kind for end in lab.of(TurnEndEvent)] == [kind]
        assert len(lab.of(StepStartEvent)) == steps
        assert len(lab.adapter.requests) == (1 if answers else 0)
        if how == "cancel":
            assert str(await lab.agent.send("again")) == "ok"


@BOTH
@pytest.mark.parametrize(("hook", "steps", "admitted"), HOOKS)
async def test_stopping_from_inside_a_hook(how, hook, steps, admitted):
    """A-3, A-7: the hook itself asks for it and returns; no cancellation reaches what follows the turn."""
    behind = []

    def inside():
        if lab.session.last_turn == 1:
            stop_now(lab, how)

    async def wait_behind(result):
        await asyncio.sleep(0)
        behind.append(result.reason.kind)

    async def flush(barrier):
        await asyncio.sleep(0)
        behind.append(barrier)

    answers = [text("lost")] if hook in ("agent_step_result", "agent_turn_continuation") else []
    ahead = [*answers, text("ok")] if how == "cancel" else answers
    async with running(*ahead, plugins=[plugin(**{hook: inside}), plugin(agent_turn_end=wait_behind)]) as lab:
        await lab.harness.plugins.load(plugin(session_flush=flush))
        receipt = lab.agent.send("hi")
        kind = "aborted" if how == "cancel" else "disposed"
        if admitted:
            assert (await receipt).reason.kind == kind
        else:
            with pytest.raises((MessageDropped, AgentDisposed)):
                await receipt
        await lab.agent.when_idle()
        assert [end.reason.kind for end in lab.of(TurnEndEvent)] == [kind]
        assert len(lab.of(StepStartEvent)) == steps
        assert behind[-2:] == [kind, "turn"] or behind[-3:] == [kind, "turn", "dispose"]
        if how == "cancel":
            assert str(await lab.agent.send("again")) == "ok"


EVENTS = [
    ("turn/start", 0, 0),
    ("user/message", 0, 0),
    ("step/start", 1, 0),
    ("request/header", 1, 0),
    ("assistant/message", 1, 1),
    ("tool/call", 1, 1),
    ("tool/result", 1, 1),
    ("step/end", 1, 1),
]


@BOTH
@pytest.mark.parametrize(("kind", "steps", "requests"), EVENTS)
async def test_stopping_in_an_observer_of_an_event(how, kind, steps, requests):
    """A-3, S-2: it takes effect at once: no further request, calls answered, closed once."""

    def observe(event):
        if event.type == kind and lab.session.last_turn == 1:
            stop_now(lab, how)

    answers = [call("act")] if requests else []
    ahead = [*answers, text("ok")] if how == "cancel" else answers
    async with running(*ahead, tools=[act], plugins=[plugin(session_event=observe)]) as lab:
        lab.agent.send("hi")
        await lab.agent.when_idle()
        ends = [(end.reason.kind, end.reason.reason) for end in lab.of(TurnEndEvent)]
        assert ends == [("aborted", "stop") if how == "cancel" else ("disposed", None)]
        assert len(lab.of(StepStartEvent)) == steps
        assert len(lab.adapter.requests) == requests
        assert len(lab.of(ToolResultEvent)) == requests
        if how == "cancel":
            assert str(await lab.agent.send("again")) == "ok"


@BOTH
async def test_stopping_in_mid_stream(how):
    """A-3, L-6: chunks and what was shown stay; the adapter's stream is closed."""
    moment, closed = Moment(), []

    async def stream(request):
        try:
            for chunk in spoken("half"):
                yield chunk
            await moment.here()
        finally:
            closed.append(True)

    async with running(stream) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        kind = await stop(lab, how)
        result = await receipt
        assert (result.reason.kind, str(result), closed) == (kind, "half", [True])


@BOTH
async def test_stopping_at_the_last_chunk_is_no_answer(how):
    """A-3: an answer that is complete when the stop comes is still interrupted, never a normal message."""
    moment = Moment()

    def observe(chunk):
        if type(chunk).__name__ == "FinishChunk":
            stop_now(lab, how)

    async with running(text("all of it"), plugins=[plugin(agent_stream_chunk=observe)]) as lab:
        receipt = lab.agent.send("hi")
        result = await receipt
        assert result.reason.kind == ("aborted" if how == "cancel" else "disposed")
        messages = [data for data in lab.events if type(data).__name__ == "AssistantMessageEvent"]
        assert [message.interrupted for message in messages] == [True]
        assert not moment.reached.is_set()


@BOTH
async def test_stopping_in_a_tool_that_asked_for_it(how):
    """A-3: the tool's own call of `cancel` keeps its result when it returns."""

    @tool
    async def leave() -> str:
        """Leave."""
        stop_now(lab, how)
        return "left"

    async with running(call("leave"), tools=[leave]) as lab:
        result = await lab.agent.send("hi")
        assert result.reason.kind == ("aborted" if how == "cancel" else "disposed")
        assert [one.content[0].text for one in lab.of(ToolResultEvent)] == ["left"]


@BOTH
async def test_stopping_while_a_barrier_waits(how):
    """A-7, L-16: the flush before a request is interrupted; the model is not asked."""
    moment = Moment()

    async def flush(barrier):
        if barrier == "request":
            await moment.here()

    async with running(plugins=[plugin(session_flush=flush)]) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        kind = await stop(lab, how)
        assert (await receipt).reason.kind == kind
        assert lab.adapter.requests == []


@BOTH
async def test_stopping_behind_the_turn_changes_nothing(how):
    """A-3: the turn is over; the flush goes on, and so does the agent after a cancel."""
    moment = Moment()

    async def flush(barrier):
        if barrier == "turn" and not moment.reached.is_set():
            await moment.here()

    async with running(text("a"), text("b"), plugins=[plugin(session_flush=flush)], complete=how == "cancel") as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        if how == "cancel":
            lab.agent.cancel()
            again = lab.agent.send("again")
            moment.go.set()
            assert (await receipt).reason.kind == "completed"
            assert str(await again) == "b"
        else:
            closing = asyncio.ensure_future(lab.handle.dispose())
            await asyncio.sleep(0)
            moment.go.set()
            await closing
            assert (await receipt).reason.kind == "completed"
        assert lab.ends()[0] == "completed"


async def test_a_hook_behind_the_turn_does_not_hold_up_a_dispose():
    """A-7: after the grace what follows the turn is cut off; the receipt has its result."""
    moment = Moment()

    async def wait(result):
        await moment.here()

    async with running(text("a"), plugins=[plugin(agent_turn_end=wait)], grace=0.02) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        await lab.handle.dispose()
        assert (await receipt).reason.kind == "completed"


# -- causes ----------------------------------------------------------------------------------------------


async def test_the_first_cause_names_the_reason():
    """A-3: against a later cancel and a later dispose."""
    moment = Moment()
    async with running(held(moment)) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        lab.agent.cancel("first")
        lab.agent.cancel("second")
        await lab.handle.dispose()
        reason = (await receipt).reason
        assert (reason.kind, reason.reason) == ("aborted", "first")


async def test_a_reason_may_be_any_text():
    """A-3: `host` is a reason like any other when a caller gives it: hooks and flush still follow."""
    moment, behind = Moment(), []
    hooks = plugin(agent_turn_end=lambda result: behind.append(result.reason.reason))
    async with running(held(moment), text("ok"), plugins=[hooks]) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        lab.agent.cancel("host")
        assert (await receipt).reason.reason == "host"
        assert str(await lab.agent.send("again")) == "ok"
        assert behind == ["host", None]


async def test_cancel_governs_one_turn():
    """A-3: what is sent between the cancel and the end of the turn is the next turn, steering too."""
    moment = Moment()
    async with running(held(moment), text("next")) as lab:
        first = lab.agent.send("one")
        await moment.reached.wait()
        lab.agent.cancel()
        second, third = lab.agent.steer("two"), lab.agent.send("three")
        assert (await first).reason.kind == "aborted"
        assert [(await one).turn for one in (second, third)] == [2, 2]
        assert lab.texts()[1][-2:] == ["two", "three"]


async def test_cancelling_one_message_spares_the_others():
    """A-7: a message that waits is dropped by itself."""
    moment = Moment()
    async with running(held(moment, after=[*spoken("x")]), text("ok"), complete=False) as lab:
        lab.agent.send("one")
        await moment.reached.wait()
        second, third = lab.agent.send("two"), lab.agent.send("three")
        lab.agent.cancel_message(second.message_id, "not this")
        with pytest.raises(MessageDropped, match="not this"):
            await second
        assert [message.id for message in lab.agent.pending] == [third.message_id]
        assert lab.session.turn_open
        lab.agent.cancel()


async def test_cancelling_the_message_that_is_being_admitted_stops_its_turn():
    """A-7, A-2: it is dropped and nothing else; those behind it run."""
    moment = Moment()

    async def submit(message):
        if message.content[0].text == "one":
            await moment.here()

    async with running(text("ok"), plugins=[plugin(agent_prompt_submit=submit)]) as lab:
        first, second = lab.agent.send("one"), lab.agent.send("two")
        await moment.reached.wait()
        lab.agent.cancel_message(first.message_id, "not this")
        with pytest.raises(MessageDropped):
            await first
        assert str(await second) == "ok"
        assert lab.ends() == ["aborted", "completed"]
        assert lab.texts() == [["two"]]


async def test_cancelling_the_only_message_before_its_turn_opens_none():
    """A-3: the driver is on its way, and finds nothing to do."""
    async with running() as lab:
        receipt = lab.agent.send("one")
        while lab.agent.status != "running":
            await asyncio.sleep(0)
        lab.agent.cancel_message(receipt.message_id, "not this")
        await lab.agent.when_idle()
        assert lab.kinds() == []


async def test_dropping_from_an_observer_is_logged_behind_what_it_saw():
    """S-2: in call order, directly after the round of notification."""

    def observe(event):
        if event.type == "inbox/queued":
            lab.agent.cancel("no")

    async with running(plugins=[plugin(session_event=observe)]) as lab:
        receipt = lab.agent.send("one")
        with pytest.raises(MessageDropped):
            await receipt
        assert list(lab.of(InboxDroppedEvent)[0].message_ids) == [receipt.message_id]


# -- the host --------------------------------------------------------------------------------------------


async def test_a_cancelled_host_closes_the_turn():
    """A-7: `aborted{host}`, then the cancellation goes on; log whole."""
    moment = Moment()
    broken, sessions = [], []

    async def host():
        plugins = [ScriptedPlugin(StagedAdapter([held(moment, *spoken("half"))])), Invariants(report=broken.append)]
        async with Harness(plugins=plugins, autoload=False) as harness:
            handle = await harness.agents.create("a", options=AgentOptions(model="scripted/m"))
            sessions.append(handle.agent.session)
            await handle.agent.send("hi")

    task = asyncio.ensure_future(host())
    await moment.reached.wait()
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        if one.get_name().startswith("dsh-") or one is task:
            one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ends = [event.data.reason for event in sessions[0].events if event.type == "turn/end"]
    assert [(reason.kind, reason.reason) for reason in ends] == [("aborted", "host")]
    assert broken == []


async def test_cancelling_only_the_turns_task_is_host_cancellation():
    """A-7: it came from outside; the agent takes the next prompt."""
    moment = Moment()
    async with running(held(moment), text("ok")) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        for one in asyncio.all_tasks():
            if one.get_name().startswith("dsh-turn-a"):
                one.cancel()
        reason = (await receipt).reason
        assert (reason.kind, reason.reason) == ("aborted", "host")
        assert str(await lab.agent.send("again")) == "ok"


# -- again and again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", range(40))
async def test_cancel_then_send_at_every_turn_of_the_loop(rounds):
    """run-2: after any number of rounds of the loop a cancel affects one turn only."""
    async with running(*[text("x")] * 3, tools=[act], complete=False) as lab:
        first = lab.agent.send("one")
        for _ in range(rounds):
            await asyncio.sleep(0)
        lab.agent.cancel("stop")
        second = lab.agent.send("two")
        assert (await second).reason.kind == "completed"
        try:
            assert (await first).reason.kind in ("aborted", "completed")
        except MessageDropped:
            assert rounds < 10
        await lab.agent.when_idle()


@pytest.mark.parametrize("rounds", range(40))
async def test_dispose_at_every_turn_of_the_loop(rounds):
    """A-5: whatever is going on, the agent is gone and its log is whole (checked by `running`)."""
    async with running(call("act"), text("x"), tools=[act], complete=False) as lab:
        receipt = lab.agent.send("one")
        for _ in range(rounds):
            await asyncio.sleep(0)
        await lab.handle.dispose()
        try:
            assert (await receipt).reason.kind in ("disposed", "completed")
        except AgentDisposed:
            assert lab.kinds() == [] or "user/message" not in lab.kinds()
        await until(lambda: lab.statuses[-1:] == ["disposed"])


async def test_a_cancel_from_an_observer_of_chunks_finds_only_what_the_log_has():
    """A-2, S-8: chunks that wait are written before a message is accepted, so that it cannot be dropped unlogged."""
    moment = Moment()

    def observe(event):
        if event.type == "assistant/chunk":
            lab.agent.cancel("seen enough")

    async with running(held(moment, *spoken("half")), text("ok"), plugins=[plugin(session_event=observe)]) as lab:
        first = lab.agent.send("one")
        await moment.reached.wait()
        second = lab.agent.send("two")
        assert (await first).reason.kind == "aborted"
        await lab.agent.when_idle()
        assert ends_of(lab.session)[second.message_id] == "ran"
