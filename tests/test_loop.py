"""One turn from the outside: prompts, steps, requests, answers, and how it goes on (L-1 to L-9, L-16, L-17)."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from loops import Moment, StagedAdapter, Store, ends_of, held, plugin, running, spoken, until

import dsh_core
from dsh_core import (
    AgentOptions,
    BlockEnd,
    BlockStart,
    Context,
    Continue,
    Finish,
    FinishChunk,
    HarnessError,
    Message,
    PromptAllow,
    PromptBlock,
    PromptBlocked,
    ReasoningDelta,
    Retry,
    Stop,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
    UsageChunk,
    rebuild_request,
    tool,
)
from dsh_core.session.events import (
    AssistantChunkEvent,
    AssistantMessageEvent,
    PromptBlockedEvent,
    RequestHeaderEvent,
    SteeringMessageEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnContinuationEvent,
    TurnEndEvent,
    UserMessageEvent,
)
from dsh_core.testing import call, fail, text

pytestmark = pytest.mark.anyio

USAGE = UsageChunk(Usage(input=1, output=1))


@tool(read_only=True)
async def look(at: int = 0) -> str:
    """Look."""
    return f"seen {at}"


def chunks_of(*deltas, finish="stop", usage=True):
    """An answer of text deltas with a finish of our own."""
    made = [BlockStart(0, "text"), *(TextDelta(0, delta) for delta in deltas), BlockEnd(0)]
    return [*made, *([USAGE] if usage else []), FinishChunk(Finish(finish))]


def call_chunks(name, arguments, finish="tool-calls", call_id="c1", before=()):
    """An answer of one call with a finish of our own."""
    return [
        *before,
        BlockStart(1, "tool-call"),
        ToolCallDelta(1, call_id, name, arguments),
        BlockEnd(1),
        USAGE,
        FinishChunk(Finish(finish)),
    ]


# -- L-1, L-2: prompts -----------------------------------------------------------------------------------


async def test_a_tool_round_trip_is_two_steps():
    """L-1: the second request has the call and its result; the turn numbers come from the log."""
    async with running(call("look", at=3), text("three"), text("again"), tools=[look]) as lab:
        result = await lab.agent.send("hi")
        assert (str(result), result.turn) == ("three", 1)
        assert lab.texts()[1] == ["hi", "call look", "result seen 3"]
        assert lab.kinds() == [
            "turn/start", "user/message",
            "step/start", "assistant/message", "tool/call", "tool/result", "step/end",
            "step/start", "assistant/message", "step/end", "turn/end",
        ]  # fmt: skip
        assert (await lab.agent.send("more")).turn == 2


async def test_a_prompt_of_a_running_turn_is_the_next_turn():
    """L-1: only what is queued when the turn starts is in it."""
    moment = Moment()
    async with running(held(moment, after=chunks_of("one")), text("two")) as lab:
        first = lab.agent.send("a")
        await moment.reached.wait()
        second = lab.agent.send("b")
        moment.go.set()
        assert [(await first).turn, (await second).turn] == [1, 2]


@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_a_failing_hook_blocks_its_message_and_loses_none(bad):
    """L-1: the turn ends `error{step: 0}`; those behind the message run as the next turn."""
    texts = ["m0", "m1", "m2"]

    def submit(message):
        if message.content[0].text == texts[bad]:
            raise RuntimeError("boom")

    answers = [text("rest")] if bad < 2 else []
    async with running(*answers, plugins=[plugin(agent_prompt_submit=submit)]) as lab:
        receipts = [lab.agent.send(one) for one in texts]
        with pytest.raises(PromptBlocked, match="boom"):
            await receipts[bad]
        for number, receipt in enumerate(receipts):
            if number != bad:
                assert (await receipt).turn == (1 if number < bad else 2)
        end = lab.of(TurnEndEvent)[0]
        assert (end.reason.kind, end.reason.step) == ("error", 0)
        assert sorted(ends_of(lab.session).values()) == ["blocked", "ran", "ran"]
        assert len([origin for _, _, _, origin in lab.errors if "agent_prompt_submit" in origin]) == 1


async def test_a_message_that_cannot_be_logged_is_blocked():
    """L-1: also when the log refuses what a plugin made of it."""

    def refuse(session, event):
        if event.type == "user/message":
            raise ValueError("not this one")

    async with running(plugins=[plugin(session_append=refuse)]) as lab:
        with pytest.raises(PromptBlocked, match="not this one"):
            await lab.agent.send("hi")
        assert lab.kinds() == ["turn/start", "prompt/blocked", "turn/end"]
        assert list(ends_of(lab.session).values()) == ["blocked"]


async def test_blocking_every_prompt_rejects_the_turn():
    """L-2: the last reason, no step, no request."""
    hook = plugin(agent_prompt_submit=lambda message: PromptBlock(f"no {message.content[0].text}"))
    async with running(plugins=[hook]) as lab:
        one, two = lab.agent.send("a"), lab.agent.send("b")
        for receipt in (one, two):
            with pytest.raises(PromptBlocked):
                await receipt
        await lab.agent.when_idle()
        end = lab.of(TurnEndEvent)[0]
        assert (end.reason.kind, end.reason.reason) == ("rejected", "no b")
        assert lab.kinds() == ["turn/start", "prompt/blocked", "prompt/blocked", "turn/end"]


async def test_blocking_one_of_two_prompts_runs_the_other():
    """L-2: `prompt/blocked` stands in the place of the message."""
    hook = plugin(agent_prompt_submit=lambda message: PromptBlock("no") if message.content[0].text == "a" else None)
    async with running(text("ok"), plugins=[hook]) as lab:
        one, two = lab.agent.send("a"), lab.agent.send("b")
        with pytest.raises(PromptBlocked):
            await one
        assert str(await two) == "ok"
        assert lab.texts() == [["b"]]
        assert lab.of(PromptBlockedEvent)[0].content == (TextBlock("a"),)


async def test_a_prompt_may_be_rewritten_and_explained():
    """L-2: log and request have the new text; the context follows as a message with its own source."""
    hook = plugin(agent_prompt_submit=lambda: PromptAllow(content="better", context=Context("because")))
    async with running(text("ok"), plugins=[hook]) as lab:
        await lab.agent.send("worse")
        assert lab.texts()[0][0] == "better"
        assert "because" in lab.texts()[0][1]
        assert lab.of(UserMessageEvent)[0].content == (TextBlock("better"),)


# -- L-3: failures ---------------------------------------------------------------------------------------

BEFORE_THE_STEP = ["system_prompt_assemble", "agent_pre_step"]
IN_THE_STEP = ["agent_request", "agent_step_result", "llm_stream"]
AFTER_THE_STEP = ["agent_turn_continuation"]


@pytest.mark.parametrize("hook", BEFORE_THE_STEP + IN_THE_STEP + AFTER_THE_STEP)
async def test_a_failing_hook_ends_the_turn_and_nothing_else(hook):
    """L-3, plug-3: the turn ends `error` with the number of the step; two agents live on."""

    class Failing:
        name = "failing"
        on = True

    def fails(**_):
        if failing.on:
            raise RuntimeError("boom")

    failing = Failing()
    if hook == "llm_stream":

        def fails_around(call_next):
            if failing.on:
                raise RuntimeError("boom")
            return call_next()

        hooks = plugin(llm_stream=fails_around)
    else:
        hooks = plugin(**{hook: _without_arguments(fails)})
    answers = [text("lost")] if hook in ("agent_step_result", "agent_turn_continuation") else []
    async with running(*answers, text("ok"), text("other"), plugins=[hooks]) as lab:
        other = await lab.harness.agents.create("b", options=AgentOptions(model="scripted/m"))
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.step) == ("error", 1)
        assert "boom" in result.reason.message
        steps = lab.kinds().count("step/start")
        assert steps == lab.kinds().count("step/end") == (0 if hook in BEFORE_THE_STEP else 1)
        assert [origin.split()[0] for _, _, _, origin in lab.errors] == [f"hook:{hook}"]
        failing.on = False
        assert str(await lab.agent.send("again")) == "ok"
        assert str(await other.agent.send("and you")) == "other"


def _without_arguments(function):
    def implementation():
        return function()

    return implementation


async def test_the_number_of_the_step_about_to_open_is_named():
    """L-3: a failure before the second step is an error of step 2."""

    def pre_step(step):
        if step == 2:
            raise RuntimeError("boom")

    async with running(call("look"), tools=[look], plugins=[plugin(agent_pre_step=pre_step)]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.step, lab.kinds().count("step/start")) == ("error", 2, 1)


async def test_a_prompt_template_that_cannot_be_rendered_is_an_error_of_the_turn():
    """L-3: rendering is part of the step about to open."""
    async with running(text("unused"), system_prompt="{{unknown}}", complete=False) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.step) == ("error", 1)


@pytest.mark.parametrize(
    "kind", ["turn/start", "user/message", "step/start", "assistant/message", "step/end", "turn/end"]
)
async def test_failing_observers_change_nothing(kind):
    """L-3, plug-3: contained; the others still hear of the event."""
    heard = []

    def fails(session, event):
        if event.type == kind:
            raise RuntimeError("broken display")

    hooks = [plugin(session_event=fails), plugin(session_event=lambda event: heard.append(event.type))]
    async with running(text("a"), text("b"), plugins=hooks) as lab:
        assert str(await lab.agent.send("one")) == "a"
        assert str(await lab.agent.send("two")) == "b"
        assert heard.count(kind) == 2


@pytest.mark.parametrize("kind", ["turn/start", "step/start", "assistant/message", "step/end"])
async def test_a_refused_event_ends_the_turn_with_an_error(kind):
    """L-3: each event that a check refuses; the agent takes the next prompt."""
    refusing = [True]

    def check(session, event):
        if event.type == kind and refusing:
            refusing.clear()
            raise ValueError("refused")

    answers = [text("lost")] if kind in ("assistant/message", "step/end") else []
    async with running(*answers, text("ok"), plugins=[plugin(session_append=check)]) as lab:
        receipt = lab.agent.send("one")
        if kind == "turn/start":
            await lab.agent.when_idle()
            assert [message.id for message in lab.agent.pending] == [receipt.message_id]
            assert lab.errors
            await lab.agent.send("two")
            assert str(await receipt) == "ok"
        else:
            assert (await receipt).reason.kind == "error"
            assert str(await lab.agent.send("two")) == "ok"


async def test_a_turn_that_cannot_be_closed_settles_its_receipts():
    """L-3: nobody waits for ever for a turn whose end the log refuses."""

    def check(session, event):
        if event.type == "turn/end":
            raise ValueError("refused")

    async with dsh_core.Harness(
        plugins=[
            dsh_core.testing.ScriptedPlugin(StagedAdapter([text("ok")])),
            plugin(session_append=check),
        ],
        autoload=False,
    ) as harness:
        handle = await harness.agents.create("a", options=AgentOptions(model="scripted/m"))
        with pytest.raises(HarnessError):
            await handle.agent.send("hi")


async def test_a_failing_observer_of_failures_changes_nothing():
    """L-3: the turn is still closed."""
    async with running(text("x"), plugins=[plugin(agent_pre_step=boom_once()), plugin(agent_error=_boom)]) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "error"
        assert str(await lab.agent.send("again")) == "x"


def boom_once():
    """Fail the first time."""
    left = [True]

    def implementation():
        if left:
            left.clear()
            raise RuntimeError("boom")

    return implementation


def _boom(error):
    raise RuntimeError("boom")


async def test_a_recorded_stop_wins_over_a_failure():
    """L-3: aborted before error."""

    def fails(agent):
        agent.cancel("first")
        raise RuntimeError("boom")

    async with running(plugins=[plugin(agent_pre_step=fails)]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.reason) == ("aborted", "first")
        assert [end.reason.kind for end in lab.of(TurnEndEvent)] == ["aborted"]


async def test_a_stop_that_is_recorded_behind_a_failure_wins_too():
    """L-3: the order of the two does not matter while the turn is open."""
    hooks = [plugin(agent_pre_step=_boom_plainly), plugin(agent_error=lambda agent: agent.cancel("second"))]
    async with running(plugins=hooks) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.reason) == ("aborted", "second")


def _boom_plainly():
    raise RuntimeError("boom")


async def test_a_hook_that_raises_cancelled_error_is_an_ordinary_failure():
    """A-7: nobody cancelled anything."""

    async def raises():
        raise asyncio.CancelledError("by myself")

    for hook in ("agent_prompt_submit", "agent_pre_step", "agent_request", "agent_step_result"):
        hooks = plugin(**{hook: raises})
        async with running(text("x"), plugins=[hooks], complete=False) as lab:
            receipt = lab.agent.send("hi")
            if hook == "agent_prompt_submit":
                with pytest.raises(PromptBlocked):
                    await receipt
            else:
                assert (await receipt).reason.kind == "error"
            await lab.agent.when_idle()
            assert lab.ends() == ["error"]


# -- L-5, L-6, L-7: how streams end ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (list(spoken("half")), "STREAM_CLOSED"),
        ([], "EMPTY_RESPONSE"),
        ([FinishChunk(Finish("stop"))], "EMPTY_RESPONSE"),
        ([*spoken("half"), FinishChunk(Finish("error", "overloaded", "SERVER"))], "SERVER"),
        ([*spoken("half"), FinishChunk(Finish("aborted"))], "ABORTED"),
        ([*spoken("half"), FinishChunk(Finish("content-filter"))], "CONTENT_FILTER"),
    ],
)
async def test_a_stream_without_a_good_end_is_no_success(stream, code):
    """L-4, L-5: no `assistant/message`; chunks stay in the log; the agent lives on."""
    never = plugin(agent_request_error=lambda: None)
    config = {"plugins": {"disable": ["retry"]}}
    async with running(stream, text("ok"), plugins=[never], config=config) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code, result.reason.step) == ("error", code, 1)
        assert lab.of(AssistantMessageEvent) == []
        assert bool(lab.of(AssistantChunkEvent)) == bool(stream)
        assert str(await lab.agent.send("again")) == "ok"


async def test_an_adapter_that_breaks_is_an_error_of_its_turn():
    """L-4: what is no `LlmError` becomes one, with the provider's name."""

    async def broken(request):
        for chunk in spoken("x"):
            yield chunk
        raise ZeroDivisionError("oops")

    async with running(broken, text("ok")) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "UNKNOWN")
        assert "scripted" in result.reason.message
        assert str(await lab.agent.send("again")) == "ok"


async def test_an_adapter_that_cancels_itself_is_an_error_of_its_turn():
    """A-7: a `CancelledError` that nobody sent is the adapter's failure."""

    async def broken(request):
        for chunk in spoken("x"):
            yield chunk
        raise asyncio.CancelledError

    async with running(broken, text("ok")) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "error"
        assert str(await lab.agent.send("again")) == "ok"


async def test_an_answer_of_nothing_with_usage_is_a_success():
    """L-5: an anchor in the log, left out of the conversation."""
    async with running([USAGE, FinishChunk(Finish("stop"))], text("ok")) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, str(result), result.usage.input) == ("completed", "", 1)
        await lab.agent.send("again")
        assert lab.texts()[1] == ["hi", "again"]


async def test_an_unknown_finish_reason_is_carried():
    """L-5: reasons are open."""
    async with running(chunks_of("ok", finish="something-new")) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "completed"
        assert lab.of(AssistantMessageEvent)[0].finish.kind == "something-new"


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        (spoken("half an ans"), "half an ans"),
        (spoken(" \n"), None),
        ((BlockStart(0, "reasoning"), ReasoningDelta(0, "let me think")), "let me think"),
        ((*spoken("text"), BlockStart(1, "tool-call"), ToolCallDelta(1, "c", "look", '{"a')), "text"),
        ((BlockStart(1, "tool-call"), ToolCallDelta(1, "c", "look", "{}")), None),
    ],
)
async def test_what_was_shown_before_a_cancel_is_kept(shown, kept):
    """L-6: non-blank text and reasoning become an interrupted message; calls are dropped."""
    moment = Moment()
    seen = []
    hook = plugin(agent_step_result=lambda message: seen.append(message))
    async with running(held(moment, *shown), text("ok"), tools=[look], plugins=[hook]) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        lab.agent.cancel("stop")
        result = await receipt
        assert (result.reason.kind, result.reason.reason) == ("aborted", "stop")
        messages = lab.of(AssistantMessageEvent)
        assert [(message.interrupted, message.content[0].text) for message in messages] == (
            [(True, kept)] if kept else []
        )
        assert seen == []
        assert lab.of(ToolCallEvent) == []
        await lab.agent.send("on")
        assert lab.texts()[1] == (["hi", kept, "on"] if kept != "let me think" else ["hi", "", "on"]) if kept else True


async def test_max_tokens_keeps_text_and_drops_calls():
    """L-7: nothing is dispatched; the turn ends `max-tokens`."""
    cut = call_chunks("look", "{}", finish="max-tokens", before=[*spoken("so"), BlockEnd(0)])
    async with running(cut, tools=[look]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, str(result)) == ("max-tokens", "so")
        assert lab.of(AssistantMessageEvent)[0].content == (TextBlock("so"),)
        assert lab.of(ToolCallEvent) == []


async def test_max_tokens_stays_true_when_the_turn_goes_on():
    """L-7: the outcome so far; the next turn has its own."""
    goes_on = plugin(agent_turn_continuation=lambda step, turn: Continue("go on") if (turn, step) == (1, 1) else None)
    answers = [chunks_of("cut", finish="max-tokens"), text("rest"), text("next")]
    async with running(*answers, plugins=[goes_on]) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "max-tokens"
        assert (await lab.agent.send("hi")).reason.kind == "completed"


async def test_results_are_owed_a_request_also_after_max_tokens():
    """L-7: "request owed" is a fact of its own."""
    goes_on = plugin(agent_turn_continuation=lambda step: Continue("go on") if step == 1 else None)
    answers = [chunks_of("cut", finish="max-tokens"), call("look"), text("done")]
    async with running(*answers, tools=[look], plugins=[goes_on]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, str(result)) == ("max-tokens", "done")
        assert lab.texts()[2][-1] == "result seen 0"


async def test_a_hook_cannot_bring_calls_back_after_max_tokens():
    """L-7: they are removed again behind `agent_step_result`."""
    adds = plugin(
        agent_step_result=lambda message: attrs.evolve(
            message, content=(*message.content, ToolCallBlock("x", "look", "{}"))
        )
    )
    async with running(chunks_of("cut", finish="max-tokens"), tools=[look], plugins=[adds]) as lab:
        await lab.agent.send("hi")
        assert lab.of(ToolCallEvent) == []


# -- L-8: what is dispatched -----------------------------------------------------------------------------


async def test_log_history_and_dispatch_agree_on_the_message():
    """L-8: `agent_step_result` may change calls before the append."""

    def change(message, step):
        if step == 1:
            return Message("assistant", (TextBlock("changed"), ToolCallBlock("mine", "look", '{"at": 7}')))
        return None

    async with running(call("look", at=1), text("ok"), tools=[look], plugins=[plugin(agent_step_result=change)]) as lab:
        await lab.agent.send("hi")
        assert lab.of(ToolCallEvent)[0].arguments == '{"at": 7}'
        assert lab.texts()[1] == ["hi", "changed call look", "result seen 7"]


@pytest.mark.parametrize("finish", ["stop", "tool-calls", "something-new"])
async def test_complete_calls_run_whatever_the_finish_says(finish):
    """L-8: llm-3."""
    async with running(call_chunks("look", '{"at": 2}', finish=finish), text("ok"), tools=[look]) as lab:
        await lab.agent.send("hi")
        assert lab.texts()[1][-1] == "result seen 2"


@pytest.mark.parametrize("finish", ["stop", "tool-calls", "max-tokens"])
async def test_incomplete_calls_never_run(finish):
    """L-8: cut arguments are answered or removed, never repaired (llm-4)."""
    ran = []

    @tool
    async def act(path: str = "") -> str:
        """Act."""
        ran.append(path)
        return "done"

    cut = call_chunks("act", '{"path": "/tm', finish=finish)
    async with running(cut, text("ok"), tools=[act], complete=False) as lab:
        await lab.agent.send("hi")
        assert ran == []
        codes = [one.error.code for one in lab.of(ToolResultEvent)]
        assert codes == ([] if finish == "max-tokens" else ["INVALID_ARGUMENTS"])


# -- L-9: requests and the log ---------------------------------------------------------------------------


async def test_the_header_is_logged_when_it_differs():
    """L-9: initial, then only on change; a resume says so."""
    store = Store()

    def cooler(turn, request):
        return attrs.evolve(request, temperature=0.5) if turn == 2 else None

    hooks = plugin(agent_request=cooler)
    async with running(text("a"), text("b"), text("c"), plugins=[hooks, store], temperature=1.0) as lab:
        for prompt in ("1", "2", "3"):
            await lab.agent.send(prompt)
        headers = lab.of(RequestHeaderEvent)
        assert [(one.turn, one.reason, one.params["temperature"]) for one in headers] == [
            (1, "initial", 1.0), (2, "change", 0.5), (3, "change", 1.0),
        ]  # fmt: skip
    async with running(text("d"), text("e"), plugins=[Store(store.store)], resume=True, temperature=1.0) as lab:
        await lab.agent.send("4")
        await lab.agent.send("5")
        assert [one.reason for one in lab.of(RequestHeaderEvent)] == ["initial", "change", "change", "resume"]


async def test_a_header_that_was_refused_is_not_taken_as_logged():
    """L-9: the next request logs it."""
    refusing = [True]

    def check(session, event):
        if event.type == "request/header" and refusing:
            refusing.clear()
            raise ValueError("refused")

    async with running(text("ok"), plugins=[plugin(session_append=check)]) as lab:
        assert (await lab.agent.send("one")).reason.kind == "error"
        await lab.agent.send("two")
        assert len(lab.of(RequestHeaderEvent)) == 1


async def test_everything_of_a_request_can_be_rebuilt():
    """L-9: parameters, system prompt, tools and messages, from what is in the log."""

    def change(request, step):
        if step == 2:
            return attrs.evolve(request, tools=(), system="", stop=("END",), extra={"top_k": 3})
        return attrs.evolve(request, max_tokens=99, reasoning_effort="low", response_format={"type": "object"})

    async with running(
        call("look"), text("ok"), tools=[look], plugins=[plugin(agent_request=change)], system_prompt="Be brief."
    ) as lab:
        await lab.agent.send("hi")
        first, second = lab.adapter.requests
        assert (first.max_tokens, first.reasoning_effort, len(first.tools)) == (99, "low", 1)
        assert (second.stop, second.tools, second.system) == (("END",), (), None)


async def test_a_changed_projection_is_refused():
    """L-9: `request.messages` is read-only, and the error says what to do instead."""
    changes = plugin(agent_request=lambda request: attrs.evolve(request, messages=(Message("user", "sneaky"),)))
    async with running(plugins=[changes]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, "inject" in result.reason.message) == ("error", True)


@pytest.mark.parametrize(
    "extra", [{"api_key": "x"}, {"headers": {"Authorization": "Bearer abcdefgh"}}, {"a": ["sk-aaaaaaaaaaaaaaaa"]}]
)
async def test_secrets_do_not_reach_the_log(extra):
    """L-9: extra values that look like secrets are refused, wherever they are."""
    async with running(extra=extra) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "SECRET_IN_REQUEST")
        assert lab.of(RequestHeaderEvent) == []


@pytest.mark.parametrize("extra", [{"max_completion_tokens": 5}, {"tokenizer": "fast", "logit_bias": {"a": 1}}])
async def test_harmless_extra_values_pass(extra):
    """L-9: a check that refuses everything would be no better."""
    async with running(text("ok"), extra=extra) as lab:
        assert str(await lab.agent.send("hi")) == "ok"
        assert dict(lab.adapter.requests[0].extra) == extra


@pytest.mark.parametrize("kind", ["step/start", "request/header", "user/message", "turn/start", "assistant/message"])
async def test_what_observers_inject_is_where_the_log_says(kind):
    """L-9: behind the anchor it belongs to the next request, whoever injects it; every request can be rebuilt."""
    left = [True]

    def inject(session, event):
        if event.type == kind and left:
            left.clear()
            lab.agent.inject(f"seen {kind}")

    async with running(call("look"), text("ok"), tools=[look], plugins=[plugin(session_event=inject)]) as lab:
        await lab.agent.send("hi")
        in_first = any(kind in line for line in lab.texts()[0])
        assert in_first == (kind in ("user/message", "turn/start"))
        assert any(kind in line for line in lab.texts()[1])


async def test_what_is_injected_while_the_model_answers_belongs_to_the_next_request():
    """L-9: also in the hooks between anchor and request."""
    hooks = plugin(agent_request=lambda agent, turn: agent.inject("late") if turn == 1 else None)
    async with running(text("a"), text("b"), plugins=[hooks]) as lab:
        await lab.agent.send("one")
        await lab.agent.send("two")
        assert lab.texts()[0] == ["one"]
        assert "late" in lab.texts()[1][1]


async def test_what_is_injected_before_the_step_is_in_its_request():
    """L-9: `agent_pre_step` is where to add to the request about to be made."""
    hooks = plugin(agent_pre_step=lambda agent, step: agent.inject("early"))
    async with running(text("a"), plugins=[hooks]) as lab:
        await lab.agent.send("one")
        assert "early" in lab.texts()[0][1]


async def test_requests_grow_at_their_end_only():
    """L-9: the second request's messages begin with those of the first."""
    async with running(call("look"), text("a"), text("b"), tools=[look]) as lab:
        await lab.agent.send("one")
        await lab.agent.send("two")
        one, two, three = (list(request.messages) for request in lab.adapter.requests)
        assert two[: len(one)] == one
        assert three[: len(two)] == two


async def test_a_request_that_was_not_made_cannot_be_rebuilt():
    """L-9: `NO_REQUEST` names what is missing."""
    async with running(text("a")) as lab:
        await lab.agent.send("one")
        with pytest.raises(HarnessError) as caught:
            rebuild_request(lab.session.events, 1, 2)
        assert caught.value.code == "NO_REQUEST"


async def test_no_model_names_the_ways_to_give_one():
    """M-5: an error of the turn; a hook may still choose one."""
    async with running(model=None) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "NO_MODEL")
    chooses = plugin(agent_request=lambda request: attrs.evolve(request, model="scripted/other"))
    async with running(text("ok"), model=None, plugins=[chooses]) as lab:
        assert str(await lab.agent.send("hi")) == "ok"
        assert (lab.adapter.requests[0].provider, lab.adapter.requests[0].model) == ("scripted", "other")
        assert lab.of(RequestHeaderEvent)[0].model == "other"


# -- L-16: barriers --------------------------------------------------------------------------------------


async def test_everything_is_stored_before_a_request():
    """L-16: the backend has the whole log when the model is asked (pair-6)."""
    store = Store()
    stored = []

    async def asked(request):
        stored.append((len(store.store.logs["a"][1]), len(lab.events)))
        for chunk in chunks_of("ok"):
            yield chunk

    async with running(asked, plugins=[store]) as lab:
        await lab.agent.send("hi")
        assert stored[0][0] == stored[0][1]


async def test_a_request_that_could_not_be_stored_is_not_made():
    """L-16: the turn ends `error{code: STORAGE}`; with space again the agent goes on without a gap (log-8)."""
    store = Store()
    async with running(text("ok"), plugins=[store]) as lab:
        store.store.failure = OSError(28, "No space left on device")
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "STORAGE")
        assert lab.adapter.requests == []
        store.store.failure = None
        assert str(await lab.agent.send("again")) == "ok"
    assert len(store.store.logs["a"][1]) == len(lab.events)


async def test_a_body_that_could_not_be_stored_does_not_run():
    """L-16: of tools that change something; open calls get `NOT_STARTED`."""
    store, ran = Store(), []

    @tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    def broke(event):
        if event.type == "tool/call":
            store.store.failure = OSError(28, "No space left on device")

    async with running(
        call("act"), text("ok"), tools=[act], plugins=[store, plugin(session_event=broke)], complete=False
    ) as lab:
        result = await lab.agent.send("hi")
        store.store.failure = None
        assert (result.reason.kind, result.reason.code, ran) == ("error", "STORAGE", [])
        assert [one.error.code for one in lab.of(ToolResultEvent)] == ["NOT_STARTED"]


async def test_a_read_only_body_needs_no_barrier():
    """L-16: only what may change something waits for the store."""
    barriers = []
    hooks = plugin(session_flush=lambda barrier: barriers.append(barrier))
    async with running(call("look"), text("ok"), tools=[look], plugins=[hooks]) as lab:
        await lab.agent.send("hi")
        await lab.agent.when_idle()
        assert barriers == ["request", "request", "turn"]


async def test_a_failed_flush_behind_the_turn_is_only_reported():
    """L-16: no event changes, and the agent goes on."""

    async def fails(barrier):
        if barrier == "turn":
            raise OSError("disk")

    async with running(text("a"), text("b"), plugins=[plugin(session_flush=fails)]) as lab:
        assert (await lab.agent.send("one")).reason.kind == "completed"
        assert str(await lab.agent.send("two")) == "b"
        assert len([1 for _, _, error, _ in lab.errors if "disk" in str(error) or "flush" in str(error)]) == 2
        assert lab.kinds()[-1] == "turn/end"


# -- L-17: going on --------------------------------------------------------------------------------------


async def test_continue_with_a_reason_is_steering_for_the_next_step():
    """L-17: recorded, named after its plugin, and run."""
    hooks = plugin(agent_turn_continuation=lambda step: Continue("check again") if step == 1 else None)
    async with running(text("done"), text("really"), plugins=[hooks]) as lab:
        result = await lab.agent.send("hi")
        assert str(result) == "really"
        assert lab.texts()[1] == ["hi", "done", "check again"]
        steering = lab.of(SteeringMessageEvent)[0]
        assert (steering.source.kind, steering.source.name) == ("plugin", hooks.name)
        decision = lab.of(TurnContinuationEvent)
        assert [(one.action, one.plugin) for one in decision] == [("continue", hooks.name)]


async def test_the_default_continuation_leaves_no_event():
    """L-17, S-5: `turn/continuation` only when a plugin changed it."""
    async with running(
        call("look"), text("ok"), tools=[look], plugins=[plugin(agent_turn_continuation=lambda: None)]
    ) as lab:
        await lab.agent.send("hi")
        assert lab.of(TurnContinuationEvent) == []


async def test_stopping_after_calls_leaves_results_for_the_next_turn():
    """L-17: legal; the next turn replays them."""
    hooks = plugin(agent_turn_continuation=lambda turn: Stop("enough") if turn == 1 else None)
    async with running(call("look"), text("ok"), tools=[look], plugins=[hooks]) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "completed"
        await lab.agent.send("on")
        assert lab.texts()[1] == ["hi", "call look", "result seen 0", "on"]


async def test_a_stop_with_a_code_stands():
    """L-17: it gives `limit{…}`, and the steering opens the next turn."""

    def limit(agent, turn):
        if turn == 1:
            agent.steer("more")
            return Stop("too long", "MINE")
        return None

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_continuation=limit)]) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code, result.reason.message) == ("limit", "MINE", "too long")
        await lab.agent.when_idle()
        assert lab.ends() == ["limit", "completed"]
        assert lab.texts()[1] == ["hi", "a", "more"]


async def test_the_prompt_sent_behind_a_turn_is_the_next_turn():
    """L-17: `agent_turn_end` is the place to send it; `steer` there is the same."""

    async def follow(agent, result):
        if result.turn == 1:
            agent.send("second")
            agent.steer("third")

    async with running(text("a"), text("b"), plugins=[plugin(agent_turn_end=follow)]) as lab:
        await lab.agent.send("first")
        await lab.agent.when_idle()
        assert lab.texts()[1] == ["first", "a", "second", "third"]
        assert lab.statuses == ["running", "idle"]


async def test_a_failing_hook_behind_the_turn_is_contained():
    """L-3: the turn is closed; the flush still comes."""
    barriers = []

    def fails(result):
        raise RuntimeError("boom")

    hooks = plugin(agent_turn_end=fails, session_flush=lambda barrier: barriers.append(barrier))
    async with running(text("a"), plugins=[hooks]) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "completed"
        assert barriers[-1] == "turn"
        assert any("boom" in str(error) for _, _, error, _ in lab.errors)


async def test_a_turn_result_tells_of_its_turn_only():
    """A-2: text, usage, messages and events."""
    async with running(call("look"), text("one"), text("two"), tools=[look]) as lab:
        first, second = await lab.agent.send("a"), await lab.agent.send("b")
        assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant"]
        assert (first.usage.input, second.usage.input, len(second.messages)) == (20, 10, 2)
        assert [event.type for event in second.events][:1] == ["turn/start"]
        assert second.events[-1].type == "turn/end"
        assert second.session_id == "a"


async def test_a_hook_that_blocks_the_loop_does_not_stop_other_agents_that_wait():
    """plug-5: a time limit set for hooks runs plain hooks in threads, and ends them."""
    import time

    hooks = plugin(agent_pre_step=lambda agent: time.sleep(0.3) if agent.id == "a" else None)
    async with running(text("other"), plugins=[hooks], config={"hooks": {"timeout": 0.05}}) as lab:
        other = await lab.harness.agents.create("b", options=AgentOptions(model="scripted/m"))
        blocked = lab.agent.send("hi")
        assert str(await other.agent.send("and you")) == "other"
        assert (await blocked).reason.kind == "error"


async def test_many_retries_do_not_open_steps():
    """L-4: the step stays one."""
    again = plugin(agent_request_error=lambda attempt: Retry(0) if attempt < 4 else None)
    answers = [fail("SERVER")] * 3
    async with running(*answers, text("ok"), plugins=[again], config={"plugins": {"disable": ["retry"]}}) as lab:
        assert str(await lab.agent.send("hi")) == "ok"
        assert len(lab.of(StepStartEvent)) == 1
        await until(lambda: lab.agent.status == "idle")
