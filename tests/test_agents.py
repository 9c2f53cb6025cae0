"""Agents: verbs, receipts, making and unmaking (A-1 to A-6, A-8)."""

from __future__ import annotations

import asyncio

import pytest
from loops import Lab, Moment, Store, ends_of, held, kinds, plugin, running, spoken, until

import dsh_core
from dsh_core import (
    AgentDisposed,
    AgentOptions,
    Context,
    Harness,
    HarnessError,
    MessageDropped,
    PromptBlock,
    PromptBlocked,
    SessionExists,
    SessionNotFound,
    Source,
    TextBlock,
    tool,
)
from dsh_core.session.events import (
    ContextMessageEvent,
    InboxDroppedEvent,
    InboxQueuedEvent,
    TurnStartEvent,
    UserMessageEvent,
)
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, text

pytestmark = pytest.mark.anyio

# -- verbs ------------------------------------------------------------------------------------------


async def test_a_prompt_to_an_idle_agent_is_one_turn():
    """A-1: statuses running and idle are announced once each."""
    async with running(text("hello")) as lab:
        result = await lab.agent.send("hi")
        await lab.agent.when_idle()
        assert (str(result), result.reason.kind, result.turn) == ("hello", "completed", 1)
        assert lab.statuses == ["running", "idle"]
        assert lab.kinds() == [
            "turn/start", "user/message", "step/start", "assistant/message", "step/end", "turn/end",
        ]  # fmt: skip


async def test_prompts_of_one_moment_are_one_turn():
    """L-1: everything queued when the turn starts forms it, in order."""
    async with running(text("both")) as lab:
        receipts = [lab.agent.send(one) for one in ("one", "two", "three")]
        results = [await receipt for receipt in receipts]
        assert [result.turn for result in results] == [1, 1, 1]
        assert lab.texts() == [["one", "two", "three"]]


async def test_steering_an_idle_agent_is_a_prompt():
    """A-1: `steer` is `send` when idle."""
    async with running(text("ok")) as lab:
        await lab.agent.steer("hi")
        assert lab.of(InboxQueuedEvent)[0].lane == "queued"
        assert len(lab.of(UserMessageEvent)) == 1


async def test_content_blocks_are_taken_as_they_are():
    """A-1: each verb accepts a string or content blocks."""
    async with running(text("ok")) as lab:
        await lab.agent.send([TextBlock("a"), TextBlock("b")])
        assert lab.of(UserMessageEvent)[0].content == (TextBlock("a"), TextBlock("b"))
        lab.agent.inject([TextBlock("c")])
        assert lab.of(ContextMessageEvent)[0].content == (TextBlock("c"),)


async def test_an_injection_into_an_idle_agent_is_a_turn_of_its_own():
    """A-1: it is logged at once and the model is not called."""
    async with running() as lab:
        lab.agent.inject("note")
        assert lab.kinds() == ["turn/start", "context/message", "turn/end"]
        assert lab.of(TurnStartEvent)[0].trigger.kind == "injection"
        assert lab.statuses == []


async def test_an_injection_into_an_open_turn_is_appended_there():
    """A-1: the log says whether a turn is open, not the status."""
    moment = Moment()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        await moment.here()
        return "done"

    async with running(call("wait"), text("ok"), tools=[wait]) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        lab.agent.inject("note")
        moment.go.set()
        await receipt
        assert lab.kinds().count("turn/start") == 1
        assert "note" in lab.texts()[1][-1]
        # S-4: results stand behind their calls, whatever came in between
        assert [line.split()[0] for line in lab.texts()[1][:3]] == ["hi", "call", "result"]


async def test_an_injection_takes_a_turn_number_before_a_turn_that_is_about_to_start():
    """L-1: the turn number is read from the log when the turn opens, whatever took a number meanwhile."""

    def inject(agent, status):
        if status == "running" and agent.session.last_turn == 0:
            agent.inject("from a status observer")

    async with running(text("ok"), plugins=[plugin(agent_status=inject)]) as lab:
        receipt = lab.agent.send("hi")
        result = await receipt
        assert result.turn == 2
        assert [one.trigger.kind for one in lab.of(TurnStartEvent)] == ["injection", "message"]


async def test_an_injection_between_the_driver_and_its_turn_takes_a_number():
    """L-1: also when another task injects after the driver has woken."""
    async with running(text("ok")) as lab:
        receipt = lab.agent.send("hi")
        while lab.agent.status != "running":
            await asyncio.sleep(0)
        assert not lab.session.turn_open
        lab.agent.inject("note")
        assert (await receipt).turn == 2


async def test_pinned_context_says_so_and_names_its_source():
    """A-1: `inject(pinned=True)`, with a source."""
    async with running() as lab:
        lab.agent.inject("note", source=Source.plugin("memory"), pinned=True)
        lab.agent.inject(Context("other", Source.plugin("else")))
        first, second = lab.of(ContextMessageEvent)
        assert (first.pinned, first.source, second.source) == (True, Source.plugin("memory"), Source.plugin("else"))


async def test_what_cannot_be_logged_is_refused_to_the_caller():
    """A-1: an idle injection that is refused leaves no trace, nor does an empty prompt."""
    async with running() as lab:
        with pytest.raises((TypeError, HarnessError)):
            lab.agent.inject(object())
        with pytest.raises(ValueError, match="empty"):
            lab.agent.send([])
        assert lab.events == []


@pytest.mark.parametrize("verb", ["send", "steer", "inject"])
async def test_verbs_of_a_disposed_agent_raise(verb):
    """A-1: after dispose each raises `AgentDisposed` and says how to go on."""
    async with running() as lab:
        await lab.handle.dispose()
        with pytest.raises(AgentDisposed, match="resume"):
            getattr(lab.agent, verb)("hi")


async def test_the_source_of_a_prompt_is_kept():
    """A-2: on the inbox notice, the trigger and the message; the default is the user."""
    queued = []
    hook = plugin(agent_queued=lambda message, lane: queued.append((message.source, lane)))
    async with running(text("a"), text("b"), plugins=[hook]) as lab:
        await lab.agent.send("one")
        await lab.agent.send("two", source=Source.plugin("timer"))
        assert queued == [(Source.user(), "queued"), (Source.plugin("timer"), "queued")]
        assert [one.source for one in lab.of(UserMessageEvent)] == [Source.user(), Source.plugin("timer")]
        assert lab.of(TurnStartEvent)[1].trigger.source == {"kind": "plugin", "name": "timer"}


# -- receipts ---------------------------------------------------------------------------------------


async def test_an_accepted_message_is_logged_before_its_receipt_is_there():
    """A-2: `inbox/queued` is appended before `send` returns."""
    async with running(text("ok")) as lab:
        receipt = lab.agent.send("hi")
        assert [one.message_id for one in lab.of(InboxQueuedEvent)] == [receipt.message_id]
        assert [message.id for message in lab.agent.pending] == [receipt.message_id]
        await receipt
        assert lab.agent.pending == ()


async def test_stored_means_that_the_backend_has_it():
    """A-2: `await receipt.stored` is the promise of acceptance; it can be awaited more than once."""
    store, moment = Store(), Moment()
    async with running(held(moment, after=[]), text("x"), plugins=[store], complete=False) as lab:
        receipt = lab.agent.send("hi")
        await receipt.stored
        await receipt.stored
        assert any(b"inbox/queued" in record for record in store.store.logs["a"][1])
        lab.agent.cancel()


async def test_cancelling_the_wait_stops_only_the_waiting():
    """A-2: the message runs all the same."""
    moment = Moment()
    async with running(held(moment, after=[]), text("ok"), complete=False, max_steps=1) as lab:
        receipt = lab.agent.send("hi")
        waiter = asyncio.ensure_future(_wait(receipt))
        await moment.reached.wait()
        waiter.cancel()
        await asyncio.wait([waiter])
        assert lab.session.turn_open
        lab.agent.cancel()
        assert (await receipt).reason.kind == "aborted"


async def _wait(receipt):
    return await receipt


async def test_a_dropped_message_raises():
    """A-2: `MessageDropped`, with the reason."""
    moment = Moment()
    async with running(held(moment)) as lab:
        first = lab.agent.send("one")
        await moment.reached.wait()
        second = lab.agent.send("two")
        dropped = lab.agent.cancel("enough")
        assert [message.id for message in dropped] == [second.message_id]
        with pytest.raises(MessageDropped, match="enough"):
            await second
        assert (await first).reason.kind == "aborted"
        assert ends_of(lab.session) == {first.message_id: "ran", second.message_id: "dropped"}


async def test_a_blocked_message_raises():
    """A-2: `PromptBlocked`, with the reason."""
    hook = plugin(agent_prompt_submit=lambda: PromptBlock("no swearing"))
    async with running(plugins=[hook]) as lab:
        with pytest.raises(PromptBlocked, match="no swearing"):
            await lab.agent.send("damn")


async def test_a_message_that_a_disposed_agent_did_not_run_is_pending():
    """A-2: `AgentDisposed(pending=True)`, and the log still has it."""
    moment = Moment()
    async with running(held(moment)) as lab:
        first = lab.agent.send("one")
        await moment.reached.wait()
        second = lab.agent.send("two")
        await lab.handle.dispose()
        assert (await first).reason.kind == "disposed"
        with pytest.raises(AgentDisposed) as caught:
            await second
        assert caught.value.pending
        assert ends_of(lab.session)[second.message_id] == "pending"


async def test_pending_messages_survive_and_run_with_the_next_wake():
    """A-2: in the order of acceptance, and not by themselves."""
    store, moment = Store(), Moment()
    async with running(held(moment), plugins=[store]) as lab:
        lab.agent.send("one")
        await moment.reached.wait()
        lab.agent.send("two")
        lab.agent.send("three")
        await lab.handle.dispose()
    async with running(text("ok"), plugins=[Store(store.store)], resume=True) as lab:
        assert [str(message.content[0].text) for message in lab.agent.pending] == ["two", "three"]
        await lab.agent.when_idle()
        assert lab.adapter.requests == []
        result = await lab.agent.send("four")
        assert result.turn == 2
        assert lab.texts()[0][-3:] == ["two", "three", "four"]
        assert lab.agent.pending == ()


async def test_steering_that_was_not_taken_up_merges_in_the_order_of_acceptance():
    """A-2: pending messages of both lanes merge by the seq of their `inbox/queued`."""
    store, moment = Store(), Moment()
    async with running(held(moment), plugins=[store]) as lab:
        lab.agent.send("one")
        await moment.reached.wait()
        lab.agent.send("two")
        lab.agent.steer("three")
        lab.agent.send("four")
        assert [message.content[0].text for message in lab.agent.pending] == ["two", "three", "four"]
        await lab.handle.dispose()
    async with running(text("ok"), plugins=[Store(store.store)], resume=True) as lab:
        await lab.agent.send("five")
        assert lab.texts()[0][-4:] == ["two", "three", "four", "five"]


async def test_a_message_that_a_check_refuses_was_never_accepted():
    """A-2: the sender gets the error, and nothing waits."""

    def refuse(session, event):
        if event.type == "inbox/queued":
            raise ValueError("full")

    async with running(plugins=[plugin(session_append=refuse)]) as lab:
        with pytest.raises(Exception, match="full"):
            lab.agent.send("hi")
        assert lab.agent.pending == ()
        await lab.agent.when_idle()


# -- idle -------------------------------------------------------------------------------------------


async def test_when_idle_waits_for_what_is_queued():
    """A-4: idle at once, or after the turn; any number of waiters."""
    async with running(text("ok")) as lab:
        await lab.agent.when_idle()
        lab.agent.send("hi")
        await asyncio.gather(lab.agent.when_idle(), lab.agent.when_idle())
        assert lab.ends() == ["completed"]


async def test_when_idle_of_a_disposed_agent_waits_for_the_driver():
    """A-4: a waiter of before the dispose returns when the driver has exited."""
    moment = Moment()
    async with running(held(moment)) as lab:
        lab.agent.send("hi")
        await moment.reached.wait()
        waiter = asyncio.ensure_future(lab.agent.when_idle())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(lab.handle.dispose())
        await waiter
        assert lab.agent.status == "disposed"
        await closing
        await lab.agent.when_idle()


async def test_when_idle_of_an_idle_agent_that_is_being_disposed_waits_for_its_driver():
    """A-4: after dispose it means that the driver has exited."""
    async with running() as lab:
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(lab.handle.dispose())
        while True:
            try:
                lab.agent.inject("x")
            except AgentDisposed:
                break
            await asyncio.sleep(0)
        assert lab.agent.status == "idle"
        await lab.agent.when_idle()
        assert lab.agent.status == "disposed"
        await closing


async def test_no_idle_is_announced_between_turns_nor_on_the_way_out():
    """A-4: back-to-back turns are one stretch of running; a dispose goes straight to disposed."""
    moment = Moment()
    async with running(text("a"), held(moment)) as lab:
        hook = plugin(agent_turn_end=lambda agent, result: agent.send("more") and None if result.turn == 1 else None)
        await lab.harness.plugins.load(hook)
        lab.agent.send("hi")
        await moment.reached.wait()
        await lab.handle.dispose()
        assert lab.statuses == ["running", "disposed"]


async def test_a_failing_observer_of_the_status_disturbs_nobody():
    """A-4: waiters are released and the next prompt works."""

    def fail(status):
        raise RuntimeError("broken display")

    async with running(text("a"), text("b"), plugins=[plugin(agent_status=fail)]) as lab:
        await lab.agent.send("one")
        await lab.agent.when_idle()
        assert str(await lab.agent.send("two")) == "b"


# -- handles ----------------------------------------------------------------------------------------


async def test_dispose_is_one_ordered_chain():
    """A-5: closing events, last flush, unregister, detach."""
    order = []
    moment = Moment()

    def event(session, event):
        if event.type == "turn/end":
            order.append("turn/end")

    async def flush(barrier):
        order.append(f"flush {barrier}")

    hooks = plugin(
        session_event=event,
        session_flush=flush,
        agent_disposed=lambda agent: order.append("unregistered"),
        session_disposed=lambda session: order.append("detached"),
    )
    async with running(held(moment), plugins=[hooks]) as lab:
        lab.agent.send("hi")
        await moment.reached.wait()
        order.clear()
        await lab.handle.dispose()
        assert order == ["turn/end", "flush turn", "flush dispose", "unregistered", "detached"]
        assert lab.harness.agents.get("a") is None
        assert lab.harness.sessions.get("a") is None


async def test_dispose_twice_is_one_completion():
    """A-5: memoised; one `agent_disposed`."""
    gone = []
    async with running(plugins=[plugin(agent_disposed=lambda agent: gone.append(agent.id))]) as lab:
        await asyncio.gather(lab.handle.dispose(), lab.handle.dispose(), lab.handle.closed)
        await lab.handle.dispose()
        await lab.handle.closed
        assert gone == ["a"]
        assert lab.statuses == ["disposed"]


async def test_a_failing_observer_of_the_end_does_not_stop_it():
    """A-5: the session is detached all the same."""

    def fail(agent):
        raise RuntimeError("no")

    async with running(plugins=[plugin(agent_disposed=fail)]) as lab:
        await lab.handle.dispose()
        assert lab.harness.sessions.get("a") is None


async def test_disposing_from_a_tool_requests_the_stop_and_returns():
    """A-5: `closed` completes it; waiting for oneself raises `WOULD_DEADLOCK`."""
    seen = []

    @tool
    async def leave() -> str:
        """Leave."""
        for wait in (lab.agent.when_idle(), _wait(receipt)):
            with pytest.raises(HarnessError) as caught:
                await wait
            seen.append(caught.value.code)
        await lab.handle.dispose()
        seen.append("returned")
        return "bye"

    async with running(call("leave"), tools=[leave]) as lab:
        receipt = lab.agent.send("go")
        await lab.handle.closed
        assert seen == ["WOULD_DEADLOCK", "WOULD_DEADLOCK", "returned"]
        assert lab.ends() == ["disposed"]
        assert lab.harness.agents.get("a") is None


@pytest.mark.parametrize(
    "hook", ["agent_prompt_submit", "agent_pre_step", "agent_request", "agent_step_result", "agent_turn_end"]
)
async def test_waiting_for_oneself_in_a_hook_raises(hook):
    """A-5: every awaited hook of the agent's own turn; a task of `spawn` is outside."""
    seen = []

    async def wait(agent):
        with pytest.raises(HarnessError) as caught:
            await agent.when_idle()
        seen.append(caught.value.code)

    async with running(text("ok"), plugins=[plugin(**{hook: wait})]) as lab:
        await lab.agent.send("hi")
        await lab.agent.when_idle()
        assert seen == ["WOULD_DEADLOCK"]


async def test_waiting_in_the_hook_that_greets_an_agent_raises():
    """A-5: before its start an agent takes no turn, so waiting there would never end; spawned tasks may wait."""
    seen, later = [], []

    async def greet(agent):
        receipt = agent.send("hello")
        with pytest.raises(HarnessError) as caught:
            await receipt
        seen.append(caught.value.code)
        agent.harness.spawn(_keep(receipt), name="greeting")

    async def _keep(receipt):
        later.append(str(await receipt))

    async with running(text("hi there"), plugins=[plugin(agent_session_start=greet)]):
        await until(lambda: later)
        assert (seen, later) == (["WOULD_DEADLOCK"], ["hi there"])


async def test_a_task_that_a_hook_spawned_may_wait():
    """A-5: it is not inside the turn."""
    results = []

    async def spawn(agent, result):
        if result.turn == 1:
            agent.harness.spawn(ask(agent), name="ask")

    async def ask(agent):
        results.append(str(await agent.send("second")))

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_end=spawn)]) as lab:
        await lab.agent.send("first")
        await until(lambda: results)
        assert results == ["b"]


async def test_the_first_request_has_what_the_greeting_injected():
    """A-5: `agent_session_start` may inject; a failing one is contained."""

    async def greet(agent, source):
        agent.inject(f"it is {source}")

    def fail(agent):
        raise RuntimeError("bad manners")

    hooks = [plugin(agent_session_start=greet), plugin(agent_session_start=fail)]
    async with running(text("ok"), plugins=hooks) as lab:
        await lab.agent.send("hi")
        assert "it is startup" in lab.texts()[0][0]
        assert any("bad manners" in str(error) for _, _, error, _ in lab.errors)


# -- creation ----------------------------------------------------------------------------------


async def test_a_taken_id_is_refused_before_anything_is_created():
    """A-6: live, being made, or stored; no session is left."""
    store = Store()
    async with running(plugins=[store]) as lab:
        created = []
        await lab.harness.plugins.load(plugin(session_created=lambda session: created.append(session.id)))
        with pytest.raises(SessionExists, match=r"agents\.get"):
            await lab.harness.agents.create("a")
        with pytest.raises(ValueError, match="empty"):
            await lab.harness.agents.create("")
        assert created == []
        lab.agent.inject("so that it is stored")
    async with running(session_id="b", plugins=[Store(store.store)]) as lab:
        with pytest.raises(SessionExists):
            await lab.harness.agents.create("a")
        assert lab.harness.agents.get("a") is None
        assert lab.harness.sessions.get("a") is None


async def test_an_id_is_free_again_only_when_the_agent_is_gone():
    """A-5: whoever wants it during the teardown is refused, and harms nobody."""
    store, moment = Store(), Moment()
    release = store.backend.release

    async def slowly(session_id):
        await moment.here()
        await release(session_id)

    store.backend.release = slowly
    async with running(plugins=[store]) as lab:
        lab.agent.inject("stored")
        closing = asyncio.ensure_future(lab.handle.dispose())
        await moment.reached.wait()
        for make in (lab.harness.agents.create, lab.harness.agents.resume):
            with pytest.raises(SessionExists, match="is live in this harness"):
                await make("a")
        moment.go.set()
        await closing
        handle = await lab.harness.agents.resume("a")
        await handle.dispose()


async def test_a_creation_that_fails_leaves_nothing_behind():
    """A-5: a scoped plugin that cannot be loaded; the id can be used again."""

    class Broken:
        name = "broken"

        @dsh_core.hookimpl
        def register(self, harness):
            raise RuntimeError("cannot")

    store = Store()
    async with running(plugins=[store], session_id="other") as lab:
        with pytest.raises(Exception, match="cannot"):
            await lab.harness.agents.create("a", plugins=[Broken()])
        assert [agent.id for agent in lab.harness.agents.list()] == ["other"]
        assert lab.harness.sessions.get("a") is None
        assert "a" not in store.store.locks
        handle = await lab.harness.agents.create("a")
        await handle.dispose()


async def test_a_resume_that_fails_gives_the_session_back():
    """A-5: what `load` has locked is released, wherever it fails after that."""
    store = Store()
    async with running(plugins=[store]) as lab:
        lab.agent.inject("stored")
    async with running(plugins=[Store(store.store)], session_id="b") as lab:

        def fail(harness, session, options, parent):
            raise RuntimeError("no loop")

        prepare = lab.harness.sessions.prepare
        lab.harness.sessions.prepare = lambda header, seed: prepare(header, [*seed, *seed])  # a damaged seed
        with pytest.raises(HarnessError):
            await lab.harness.agents.resume("a")
        lab.harness.sessions.prepare = prepare
        assert "a" not in store.store.locks
        with lab.harness.agents.set_factory(fail), pytest.raises(RuntimeError, match="no loop"):
            await lab.harness.agents.resume("a")
        assert "a" not in store.store.locks
        handle = await lab.harness.agents.resume("a")
        await handle.dispose()


async def test_a_second_factory_is_refused():
    """A-5: the loop is replaced once at most, until that is undone."""
    async with running() as lab:
        with lab.harness.agents.set_factory(lab.harness.default_factory):
            with pytest.raises(HarnessError, match="already replaced"):
                lab.harness.agents.set_factory(lab.harness.default_factory)
        with lab.harness.agents.set_factory(lab.harness.default_factory):
            handle = await lab.harness.agents.create("b")
            await handle.dispose()


async def test_resume_without_a_backend_says_what_to_install():
    """A-6: `NO_PERSISTENCE`; an unknown session is another error, a live one a third."""
    async with running() as lab:
        with pytest.raises(HarnessError) as caught:
            await lab.harness.agents.resume("x")
        assert caught.value.code == "NO_PERSISTENCE"
    async with running(plugins=[Store()]) as lab:
        with pytest.raises(SessionNotFound):
            await lab.harness.agents.resume("x")
        with pytest.raises(SessionExists):
            await lab.harness.agents.resume("a")


async def test_two_resumes_at_once_make_one_agent():
    """A-6: one wins, the other is refused."""
    store = Store()
    async with running(plugins=[store]) as lab:
        lab.agent.inject("stored")
    async with running(plugins=[Store(store.store)], session_id="b") as lab:
        ends = await asyncio.gather(*(lab.harness.agents.resume("a") for _ in range(2)), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["AgentHandle", "SessionExists"]


async def test_a_resumed_agent_goes_on_where_it_was():
    """A-6: numbers, seqs, cwd and lineage; nothing is stored twice; the source is `resume`."""
    store, sources = Store(), []
    async with running(text("one"), plugins=[store]) as lab:
        await lab.agent.send("first")
        before = len(lab.events)
    hook = plugin(agent_session_start=lambda source: sources.append(source))
    async with running(text("two"), plugins=[Store(store.store), hook], resume=True) as lab:
        assert len(lab.events) == before
        result = await lab.agent.send("second")
        assert (result.turn, sources) == (2, ["resume"])
        assert lab.texts() == [["first", "one", "second"]]
        assert [event.seq for event in lab.session.events] == list(range(len(lab.events)))
    assert len(store.store.logs["a"][1]) == len(lab.events)


async def test_a_fork_is_an_agent_of_its_own():
    """A-5, S-11: it has the past of its source, and the source is not changed."""
    async with running(text("one"), text("two"), text("three")) as lab:
        await lab.agent.send("first")
        handle = await lab.harness.agents.fork("a", session_id="b", options=AgentOptions(model="scripted/m"))
        result = await handle.agent.send("second")
        assert (result.turn, lab.texts()[1]) == (2, ["first", "one", "second"])
        await lab.agent.send("other")
        assert lab.texts()[2] == ["first", "one", "other"]
        assert handle.agent.session.header.parent == "a"


# -- descendants ------------------------------------------------------------------------------------


async def child_of(lab: Lab, name: str, parent):
    """A descendant on a session of its own."""
    return await lab.harness.agents.create(name, options=AgentOptions(model="scripted/m"), parent=parent)


async def test_cancel_reaches_all_descendants_first():
    """A-8: also those of descendants; each may take a prompt afterwards (run-8)."""
    moments = [Moment(), Moment(), Moment()]
    order = []

    def event(session, event):
        if event.type == "turn/end":
            order.append(session.id)

    items = [held(moment, *spoken(f"{number} ")) for number, moment in enumerate(moments)]
    async with running(*items, text("again"), plugins=[plugin(session_event=event)]) as lab:
        child = await child_of(lab, "child", lab.agent)
        grandchild = await child_of(lab, "grandchild", child.agent)
        receipts = []
        for agent, moment in zip((lab.agent, child.agent, grandchild.agent), moments, strict=True):
            receipts.append(agent.send("go"))
            await moment.reached.wait()
        lab.agent.cancel("stop all")
        assert [(await one).reason for one in receipts] == [receipts[0]._outcome.reason] * 3
        assert order == ["grandchild", "child", "a"]
        assert str(await grandchild.agent.send("on")) == "again"


async def test_dispose_takes_all_descendants_along():
    """A-8: descendants are gone before their parent (run-8)."""
    order = []
    moment = Moment()
    hook = plugin(agent_disposed=lambda agent: order.append(agent.id))
    async with running(held(moment), plugins=[hook]) as lab:
        child = await child_of(lab, "child", lab.agent)
        grandchild = await child_of(lab, "grandchild", child.agent)
        receipt = grandchild.agent.send("go")
        await moment.reached.wait()
        await lab.handle.dispose()
        assert order == ["grandchild", "child", "a"]
        assert (await receipt).reason.kind == "disposed"


async def test_forks_are_no_descendants():
    """A-8: cancel and dispose of the source do not reach them."""
    moment = Moment()
    async with running(text("one"), held(moment, after=[*spoken("x")]), complete=False) as lab:
        await lab.agent.send("first")
        fork = await lab.harness.agents.fork("a", session_id="b", options=AgentOptions(model="scripted/m"))
        receipt = fork.agent.send("go")
        await moment.reached.wait()
        lab.agent.cancel()
        await lab.handle.dispose()
        assert fork.agent.status == "running"
        fork.agent.cancel("now")
        assert (await receipt).reason.reason == "now"


async def test_a_child_that_is_made_while_its_parent_goes_goes_too():
    """A-8: nobody is left without a parent."""
    moment, made = Moment(), []

    @tool
    async def delegate() -> str:
        """Delegate."""
        try:
            await moment.here()
        finally:
            for _ in range(5):  # until the disposal has begun to wait for this turn
                await asyncio.sleep(0)
            made.append(await child_of(lab, "late", lab.agent))
        return "made"

    async with running(call("delegate"), tools=[delegate]) as lab:
        lab.agent.send("go")
        await moment.reached.wait()
        await lab.handle.dispose()
        assert lab.harness.agents.list() == []
        with pytest.raises(AgentDisposed):
            await child_of(lab, "later", lab.agent)
        assert made[0].agent.status == "disposed"


async def test_a_child_in_a_tool_ends_with_its_parents_turn():
    """run-8: the parent's call is interrupted, the child's turn aborted; both go on afterwards."""
    moment = Moment()

    @tool
    async def delegate() -> str:
        """Delegate."""
        child = await child_of(lab, "child", lab.agent)
        return str(await child.agent.send("do it"))

    async with running(call("delegate"), held(moment), text("on"), tools=[delegate]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.cancel("enough")
        assert (await receipt).reason.kind == "aborted"
        child = lab.harness.agents.get("child")
        await child.when_idle()
        assert [event.data.reason.reason for event in child.session.events if event.type == "turn/end"] == ["enough"]
        assert str(await lab.agent.send("more")) == "on"


async def test_agents_are_listed_in_the_order_of_creation():
    """A-5: `list` is a fresh list."""
    async with running() as lab:
        other = await child_of(lab, "b", None)
        assert [agent.id for agent in lab.harness.agents.list()] == ["a", "b"]
        lab.harness.agents.list().clear()
        assert lab.harness.agents.get("b") is other.agent


async def test_the_harness_disposes_of_agents_that_are_left():
    """A-5: leaving the harness is the end of every agent, also of one made meanwhile."""
    adapter = ScriptedAdapter([])
    async with Harness(plugins=[ScriptedPlugin(adapter)], autoload=False) as harness:
        one = await harness.agents.create("one")
        made = []

        async def late(session, barrier):
            if barrier == "dispose" and session.id == "one":
                made.append(await harness.agents.create("two"))

        await harness.plugins.load(plugin(session_flush=late))
    assert (one.agent.status, made[0].agent.status, harness.agents.list()) == ("disposed", "disposed", [])


async def test_dropping_is_visible_in_the_log():
    """A-3, run-6: three prompts and a steer are dropped; log, caller and senders know."""
    moment = Moment()
    async with running(held(moment)) as lab:
        lab.agent.send("zero")
        await moment.reached.wait()
        waiting = [lab.agent.send("one"), lab.agent.send("two"), lab.agent.steer("three"), lab.agent.send("four")]
        dropped = lab.agent.cancel("stop")
        assert [message.content[0].text for message in dropped] == ["one", "two", "three", "four"]
        event = lab.of(InboxDroppedEvent)[0]
        assert (list(event.message_ids), event.reason) == ([one.message_id for one in waiting], "stop")
        await lab.agent.when_idle()
        assert kinds(lab.session)[-1] == "turn/end"
