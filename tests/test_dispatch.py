"""How each mode runs: what is called, what may be returned, what a failure means."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from dsh_core import _invoke
from dsh_core._markers import hookimpl
from dsh_core._ownership import Owner, current_owner
from dsh_core.content import Context, GenerateRequest, Message, Source, TextBlock
from dsh_core.decisions import (
    Allow,
    Approval,
    ApprovalGranted,
    ApprovalRefused,
    Ask,
    Continue,
    Deny,
    PromptAllow,
    PromptBlock,
    ResultAccept,
    ResultReject,
    Retry,
    Stop,
)
from dsh_core.errors import HookError, InvariantViolation, LlmError, ToolError
from dsh_core.hooks import GateOutcome, Hooks
from dsh_core.tools.definition import PendingCall, ToolDefinition, ToolResult

pytestmark = pytest.mark.anyio


@attrs.frozen
class Agent:
    id: str = "s1"


AGENT: Any = Agent()
TOOL = ToolDefinition("echo", "Echo.", {"type": "object"}, lambda arguments, context: "")
CALL = PendingCall("c1", "echo", {}, "{}", TOOL, "s1:c1")
REQUEST = GenerateRequest(model="m", session_id="s1")
Reports = list[tuple[str, str, BaseException]]


def hooks_of(*plugins: object, timeout: float | None = None) -> tuple[Hooks, Reports]:
    """Hooks with plugins named p0, p1, … and what they report."""
    hooks = Hooks(timeout=timeout)
    reports: Reports = []
    hooks.set_reporter(lambda hook, plugin, error, arguments: reports.append((hook, plugin, error)))
    for index, plugin in enumerate(plugins):
        hooks.add(plugin, name=f"p{index}", owner=Owner(f"p{index}"))
    return hooks, reports


def plugin(hook: str, function: Any, **options: Any) -> object:
    """A plugin with one implementation."""
    return type("Plugin", (), {hook: hookimpl(**options)(function)})()


# -- observe ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
async def test_observers_are_contained_and_the_others_still_run(error: BaseException) -> None:
    """H-1 observe: whatever one raises is reported with plugin and hook; the others are called."""
    seen: list[str] = []

    def raising(self: Any, status: str) -> None:
        raise error

    hooks, reports = hooks_of(
        plugin("agent_status", raising), plugin("agent_status", lambda self, status: seen.append(status))
    )
    hooks.agent_status(agent=AGENT, status="idle")
    assert seen == ["idle"]
    assert reports == [("agent_status", "p0", error)]


async def test_an_observer_cannot_stop_ctrl_c() -> None:
    """H-1 observe: KeyboardInterrupt passes."""

    def interrupt(self: Any, agent: Any) -> None:
        raise KeyboardInterrupt

    hooks, reports = hooks_of(plugin("agent_created", interrupt))
    with pytest.raises(KeyboardInterrupt):
        hooks.agent_created(agent=AGENT)
    assert reports == []
    assert current_owner() is None


async def test_an_observer_that_returns_a_coroutine_is_reported_and_nothing_is_left_unawaited() -> None:
    """H-1 observe: plain only, also where that shows at the call only."""

    async def work() -> None: ...

    hooks, reports = hooks_of(plugin("agent_created", lambda self, agent: work()))
    hooks.agent_created(agent=AGENT)
    assert [(hook, type(error)) for hook, _, error in reports] == [("agent_created", TypeError)]


async def test_wrappers_of_observers_are_contained_too() -> None:
    """H-1 observe: a wrapper that fails on either side of its yield keeps nobody from being called."""
    seen: list[str] = []

    def before(self: Any) -> Any:
        raise ValueError("before")
        yield

    def after(self: Any) -> Any:
        yield
        raise ValueError("after")

    hooks, reports = hooks_of(
        plugin("agent_status", before, wrapper=True),
        plugin("agent_status", after, wrapper=True),
        plugin("agent_status", lambda self, status: seen.append(status)),
    )
    hooks.agent_status(agent=AGENT, status="idle")
    assert seen == ["idle"]
    assert [str(error) for _, _, error in reports] == ["before", "after"]


async def test_a_reporter_that_raises_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """H-1 observe: contained means contained."""

    def fail(*args: Any) -> None:
        raise RuntimeError("no reporter")

    hooks, _ = hooks_of(plugin("agent_created", lambda self, agent: 1 / 0))
    hooks.set_reporter(fail)
    hooks.agent_created(agent=AGENT)
    assert "could not be reported" in caplog.text


# -- check -----------------------------------------------------------------------------------------------


async def test_a_check_raises_its_own_error_with_a_note() -> None:
    """H-1 check: the append is refused and the error goes to the appender."""
    called: list[int] = []

    def refuse(self: Any, event: Any) -> None:
        raise InvariantViolation("step 2 before step 1")

    hooks, _ = hooks_of(
        plugin("session_append", refuse), plugin("session_append", lambda self, event: called.append(1))
    )
    with pytest.raises(InvariantViolation) as caught:
        hooks.session_append(session=AGENT, event=None)  # type: ignore[arg-type]
    assert caught.value.__notes__ == ["raised by plugin 'p0' in hook 'session_append'"]
    assert called == []


async def test_a_check_that_returns_something_has_misunderstood() -> None:
    """H-1 check: a check refuses by raising, so `return False` must not pass for consent."""
    hooks, _ = hooks_of(plugin("session_append", lambda self, event: False))
    with pytest.raises(TypeError, match="refuses by raising"):
        hooks.session_append(session=AGENT, event=None)  # type: ignore[arg-type]


async def test_a_check_cannot_exit_or_cancel() -> None:
    """H-1 check: what is no Exception comes out as HookError."""

    def leave(self: Any, event: Any) -> None:
        raise SystemExit(1)

    hooks, _ = hooks_of(plugin("session_append", leave))
    with pytest.raises(HookError) as caught:
        hooks.session_append(session=AGENT, event=None)  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, SystemExit)


# -- checkpoint ------------------------------------------------------------------------------------------


async def test_a_checkpoint_stops_at_the_first_failure_and_names_plugin_and_hook() -> None:
    """H-3: the original exception is the cause, plugin and hook are attributes."""
    called: list[str] = []
    boom = ValueError("boom")

    async def fail(self: Any, turn: int) -> None:
        await asyncio.sleep(0)
        raise boom

    hooks, reports = hooks_of(
        plugin("agent_pre_step", lambda self: called.append("first")),
        plugin("agent_pre_step", fail),
        plugin("agent_pre_step", lambda self: called.append("third")),
    )
    with pytest.raises(HookError, match=r"plugin 'p1' failed in hook 'agent_pre_step': ValueError: boom") as caught:
        await hooks.agent_pre_step(agent=AGENT, turn=1, step=1, system_prompt=None)
    assert (caught.value.hook, caught.value.plugin, caught.value.__cause__) == ("agent_pre_step", "p1", boom)
    assert (called, reports) == (["first"], [])


async def test_a_checkpoint_that_returns_something_counts_as_raising() -> None:
    """H-1 checkpoint: nothing is returned."""
    hooks, _ = hooks_of(plugin("agent_pre_step", lambda self, turn: turn))
    with pytest.raises(HookError, match="returned int 7; return nothing"):
        await hooks.agent_pre_step(agent=AGENT, turn=7, step=1, system_prompt=None)


@pytest.mark.parametrize("hook", ["agent_session_start", "agent_turn_end"])
async def test_contained_checkpoints_report_and_go_on(hook: str) -> None:
    """H-1: a session starts and a turn ends whatever a plugin raises there; the next plugin still runs."""
    called: list[int] = []
    argument = {"agent_session_start": {"source": "startup"}, "agent_turn_end": {"result": None}}[hook]

    def fail(self: Any) -> None:
        raise SystemExit

    hooks, reports = hooks_of(plugin(hook, fail), plugin(hook, lambda self: called.append(1)))
    await getattr(hooks, hook)(agent=AGENT, **argument)
    assert called == [1]
    assert [(name, who) for name, who, _ in reports] == [(hook, "p0")]


# -- transform -------------------------------------------------------------------------------------------


async def test_a_transform_hands_the_value_on_and_none_means_unchanged() -> None:
    """H-1 transform: each gets the current value; plain functions and coroutines alike."""

    async def lengthen(self: Any, request: GenerateRequest) -> GenerateRequest:
        await asyncio.sleep(0)
        return attrs.evolve(request, model=request.model + "+")

    hooks, _ = hooks_of(
        plugin("agent_request", lengthen),
        plugin("agent_request", lambda self: None),
        plugin("agent_request", lambda self, request, turn: attrs.evolve(request, model=f"{request.model}{turn}")),
    )
    request = await hooks.agent_request(agent=AGENT, turn=3, step=1, request=REQUEST)
    assert request.model == "m+3"
    assert REQUEST.model == "m"


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), asyncio.CancelledError()])
async def test_a_transform_that_fails_ends_the_chain_with_hook_error(error: BaseException) -> None:
    """H-3: a CancelledError that an implementation raised by itself is a failure like any other."""

    async def fail(self: Any) -> None:
        raise error

    hooks, _ = hooks_of(plugin("agent_request", fail))
    with pytest.raises(HookError) as caught:
        await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
    assert caught.value.__cause__ is error


async def test_a_real_cancellation_passes_through_every_mode_untouched() -> None:
    """A-7: cancelling the task from outside is nobody's failure."""

    async def hang(self: Any) -> None:
        await asyncio.Event().wait()

    names = ["agent_request", "agent_pre_step", "tools_pre_execute", "agent_request_error", "tools_execute",
             "session_flush", "agent_turn_end"]  # fmt: skip
    hooks, reports = hooks_of(*(plugin(name, hang) for name in names))
    calls: list[Any] = [
        hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST),
        hooks.agent_pre_step(agent=AGENT, turn=1, step=1, system_prompt=None),
        hooks.tools_pre_execute(agent=AGENT, call=CALL),
        hooks.agent_request_error(agent=AGENT, turn=1, step=1, request=REQUEST, error=LlmError(), attempt=1),
        hooks.tools_execute(agent=AGENT, call=CALL, body=_result),
        hooks.session_flush(session=AGENT, barrier="turn"),
        hooks.agent_turn_end(agent=AGENT, result=None),  # type: ignore[arg-type]
    ]
    for call in calls:
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert reports == []


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (PromptBlock("no"), "returned PromptBlock PromptBlock(reason='no'); return GenerateRequest"),
        ({"model": "x"}, "returned dict {'model': 'x'}; return GenerateRequest"),
        (False, "returned bool False; return GenerateRequest"),
    ],
)
async def test_a_wrong_type_counts_as_raising_and_names_the_right_one(returned: Any, told: str) -> None:
    """H-3: a value of the wrong type."""
    hooks, _ = hooks_of(plugin("agent_request", lambda self: returned))
    with pytest.raises(HookError) as caught:
        await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
    assert told in str(caught.value)


async def test_a_decision_of_another_family_names_the_right_ones() -> None:
    """H-3: the wrong decision family."""
    hooks, _ = hooks_of(plugin("agent_prompt_submit", lambda self: Allow()))
    with pytest.raises(HookError, match=r"returned Allow .*; return PromptAllow or PromptBlock"):
        await hooks.agent_prompt_submit(agent=AGENT, message=Message("user", "hi"))


async def test_messages_of_a_request_cannot_be_changed() -> None:
    """L-9: request.messages is the log's projection."""
    hooks, _ = hooks_of(
        plugin("agent_request", lambda self, request: attrs.evolve(request, messages=[Message("user", "other")]))
    )
    with pytest.raises(HookError, match=r"request\.messages.*agent\.inject"):
        await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)


# -- decisions that are handed on ------------------------------------------------------------------------


def _texts(contexts: tuple[Context, ...]) -> list[tuple[str, str | None]]:
    return [(context.content[0].text, context.source.name if context.source else None) for context in contexts]  # type: ignore[union-attr]


async def test_contexts_accumulate_in_call_order_and_name_their_plugin() -> None:
    """H, decisions: context accumulates, omitted content keeps the earlier value, source is the plugin."""
    own = Context("mine", Source("user"))
    hooks, _ = hooks_of(
        plugin("agent_prompt_submit", lambda self: PromptAllow(content="changed", context="one")),
        plugin("agent_prompt_submit", lambda self: PromptAllow(context=["two", own])),
        plugin("agent_prompt_submit", lambda self: None),
    )
    decision = await hooks.agent_prompt_submit(agent=AGENT, message=Message("user", "hi"))
    assert isinstance(decision, PromptAllow)
    assert decision.content == (TextBlock("changed"),)
    assert _texts(decision.context) == [("one", "p0"), ("two", "p1"), ("mine", None)]


async def test_context_that_is_handed_back_is_not_doubled() -> None:
    """H, decisions: returning the earlier contexts along with one's own adds one's own only."""

    def add(self: Any, decision: PromptAllow) -> PromptAllow:
        return attrs.evolve(decision, context=[*decision.context, Context("more")])

    hooks, _ = hooks_of(
        plugin("agent_prompt_submit", lambda self: PromptAllow(context="one")), plugin("agent_prompt_submit", add)
    )
    decision = await hooks.agent_prompt_submit(agent=AGENT, message=Message("user", "hi"))
    assert isinstance(decision, PromptAllow)
    assert _texts(decision.context) == [("one", "p0"), ("more", "p1")]


async def test_a_block_ends_the_chain() -> None:
    """H, decisions: after PromptBlock nobody is asked."""
    called: list[int] = []
    hooks, _ = hooks_of(
        plugin("agent_prompt_submit", lambda self: PromptBlock("no")),
        plugin("agent_prompt_submit", lambda self: called.append(1)),
    )
    assert await hooks.agent_prompt_submit(agent=AGENT, message=Message("user", "hi")) == PromptBlock("no")
    assert called == []


async def test_a_rejection_keeps_the_earlier_context_and_ends_the_chain() -> None:
    """H, decisions: ResultReject."""
    called: list[int] = []
    hooks, _ = hooks_of(
        plugin("tools_post_execute", lambda self: ResultAccept(context="seen")),
        plugin("tools_post_execute", lambda self: ResultReject("bad", context="why")),
        plugin("tools_post_execute", lambda self: called.append(1)),
    )
    decision = await hooks.tools_post_execute(agent=AGENT, call=CALL, result=ToolResult("x"))
    assert isinstance(decision, ResultReject)
    assert _texts(decision.context) == [("seen", "p0"), ("why", "p1")]
    assert called == []


async def test_a_continuation_tells_who_changed_it_last() -> None:
    """H, decisions: omitted fields stay; an equal answer is no change."""
    hooks, _ = hooks_of(
        plugin("agent_turn_continuation", lambda self: Stop(code="LIMIT")),
        plugin("agent_turn_continuation", lambda self: Stop(reason="enough")),
        plugin("agent_turn_continuation", lambda self, decision: attrs.evolve(decision)),
    )
    decision, who = await hooks.agent_turn_continuation(agent=AGENT, turn=1, step=1, decision=Continue())
    assert (decision, who) == (Stop(reason="enough", code="LIMIT"), "p1")


async def test_a_continuation_nobody_changes_belongs_to_nobody() -> None:
    """H, decisions: the default stays the default."""
    hooks, _ = hooks_of(plugin("agent_turn_continuation", lambda self: Stop()))
    assert await hooks.agent_turn_continuation(agent=AGENT, turn=1, step=1, decision=Stop()) == (Stop(), None)


# -- gate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "decision"),
    [
        ([None, None], None),
        ([Allow(), None], Allow()),
        ([Allow(), Ask("sure?"), Allow()], Ask("sure?")),
        ([Ask("a", rule="r"), Ask("b")], Ask("a", rule="r")),
        ([Deny("no"), Allow()], Deny("no")),
        ([Allow(), Ask("?"), Deny("no"), Deny("never")], Deny("no")),
        ([Allow(), Allow(arguments={"a": 1})], Allow(arguments={"a": 1})),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
async def test_the_strictest_gate_wins_and_all_are_asked(answers: list[Any], decision: Any, turned: bool) -> None:
    """H-1 gate: deny over ask over allow, whatever the order."""
    asked: list[int] = []

    def gate(index: int, answer: Any) -> object:
        async def judge(self: Any, call: PendingCall) -> Any:
            asked.append(index)
            return answer

        return plugin("tools_pre_execute", judge)

    gates = [gate(index, answer) for index, answer in enumerate(answers)]
    hooks, _ = hooks_of(*(gates[::-1] if turned else gates))
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert type(outcome.decision) is type(decision)
    assert turned or outcome.decision == decision
    assert len(asked) == len(answers)
    assert len(outcome.opinions) == len([answer for answer in answers if answer is not None])


@pytest.mark.parametrize("value", [True, "allow", PromptAllow(), object(), Allow(arguments=3), Deny(None), Ask(b"?")])  # type: ignore[arg-type]
async def test_a_gate_that_answers_nonsense_denies(value: Any) -> None:
    """H-1 gate: garbage counts as deny and names the plugin; the others still answer."""
    hooks, reports = hooks_of(
        plugin("tools_pre_execute", lambda self: value), plugin("tools_pre_execute", lambda self: Allow())
    )
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert isinstance(outcome.decision, Deny)
    assert "'p0'" in outcome.decision.reason
    assert [who for who, _ in outcome.opinions] == ["p0", "p1"]
    assert [who for _, who, _ in reports] == ["p0"]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError()])
async def test_a_gate_that_raises_denies(error: BaseException) -> None:
    """H-1 gate: raising counts as deny."""

    async def fail(self: Any) -> None:
        raise error

    hooks, reports = hooks_of(plugin("tools_pre_execute", fail))
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert isinstance(outcome.decision, Deny)
    assert reports == [("tools_pre_execute", "p0", error)]


async def test_a_gate_given_as_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    """H-1: a coroutine is awaited wherever it comes from; it never counts as an answer."""

    async def work() -> Deny:
        await asyncio.sleep(0)
        return Deny("no")

    hooks, _ = hooks_of(plugin("tools_pre_execute", lambda self: work()))
    assert (await hooks.tools_pre_execute(agent=AGENT, call=CALL)).decision == Deny("no")


async def test_a_wrapper_of_gates_can_only_tighten() -> None:
    """H-1 gate: the wrapper's outcome is joined with the chain's."""

    def loosen(self: Any) -> Any:
        yield
        return Allow()

    def tighten(self: Any) -> Any:
        decision = yield
        return Deny("later") if isinstance(decision, Allow) else decision

    hooks, _ = hooks_of(
        plugin("tools_pre_execute", loosen, wrapper=True), plugin("tools_pre_execute", lambda self: Deny("no"))
    )
    assert (await hooks.tools_pre_execute(agent=AGENT, call=CALL)).decision == Deny("no")
    hooks, _ = hooks_of(
        plugin("tools_pre_execute", tighten, wrapper=True), plugin("tools_pre_execute", lambda self: Allow())
    )
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert outcome == GateOutcome(Deny("later"), (("p1", Allow()), ("p0", Deny("later"))))


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_wrapper_of_gates_that_fails_denies_and_the_gates_are_asked(where: str) -> None:
    """H-1 gate: all are asked, wrappers that fail count as deny."""
    asked: list[int] = []

    def fail(self: Any) -> Any:
        if where == "before":
            raise ValueError
        yield
        raise ValueError

    hooks, _ = hooks_of(
        plugin("tools_pre_execute", fail, wrapper=True), plugin("tools_pre_execute", lambda self: asked.append(1))
    )
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert isinstance(outcome.decision, Deny)
    assert asked == [1]


# -- around ----------------------------------------------------------------------------------------------


async def _result() -> ToolResult:
    return ToolResult("body")


def _around(before: str, log: list[str]) -> object:
    async def wrap(self: Any, call_next: Any) -> ToolResult:
        log.append(f"{before} in")
        result = await call_next()
        log.append(f"{before} out")
        return result  # type: ignore[no-any-return]

    return plugin("tools_execute", wrap)


async def test_around_hooks_nest_in_list_order() -> None:
    """H-1 around: nested, the first outermost."""
    log: list[str] = []
    hooks, _ = hooks_of(_around("a", log), _around("b", log))
    result = await hooks.tools_execute(agent=AGENT, call=CALL, body=_result)
    assert result == ToolResult("body")
    assert log == ["a in", "b in", "b out", "a out"]


async def test_around_may_answer_in_place_of_the_body() -> None:
    """H-1 around: a replacement."""
    hooks, _ = hooks_of(plugin("tools_execute", lambda self: ToolResult("cached")))
    assert await hooks.tools_execute(agent=AGENT, call=CALL, body=_result) == ToolResult("cached")


@pytest.mark.parametrize("returned", [None, "text", ResultAccept()])
async def test_around_has_to_return_a_result(returned: Any) -> None:
    """H-3: the result's type is checked."""

    async def forget(self: Any, call_next: Any) -> Any:
        await call_next()
        return returned

    hooks, _ = hooks_of(plugin("tools_execute", forget))
    with pytest.raises(HookError, match="'p0' failed in hook 'tools_execute'"):
        await hooks.tools_execute(agent=AGENT, call=CALL, body=_result)


async def test_call_next_runs_once() -> None:
    """H-1 around: a tool is not run twice for one call of the model."""
    ran: list[int] = []

    async def body() -> ToolResult:
        ran.append(1)
        return ToolResult("body")

    async def twice(self: Any, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    hooks, _ = hooks_of(plugin("tools_execute", twice))
    with pytest.raises(HookError, match="a second time"):
        await hooks.tools_execute(agent=AGENT, call=CALL, body=body)
    assert ran == [1]


async def test_call_next_cannot_be_kept_for_later() -> None:
    """H-1 around: after the implementation has returned, the body does not run any more."""
    kept: list[Any] = []

    def keep(self: Any, call_next: Any) -> ToolResult:
        kept.append(call_next)
        return ToolResult("early")

    hooks, _ = hooks_of(plugin("tools_execute", keep))
    await hooks.tools_execute(agent=AGENT, call=CALL, body=_result)
    with pytest.raises(Exception, match="after it had returned"):
        await kept[0]()


async def test_call_next_takes_no_arguments() -> None:
    """H-1 around: what runs is what was judged and logged."""
    hooks, _ = hooks_of(plugin("tools_execute", lambda self, call_next: call_next({"other": 1})))
    with pytest.raises(HookError):
        await hooks.tools_execute(agent=AGENT, call=CALL, body=_result)


@pytest.mark.parametrize("error", [ToolError("no", "X"), ValueError("x"), asyncio.CancelledError()])
async def test_failures_of_the_body_come_out_unchanged(error: BaseException) -> None:
    """H-1 around: like the thing it wraps; plugins that let a failure pass are not blamed for it."""
    log: list[str] = []

    async def body() -> ToolResult:
        raise error

    def wrapper(self: Any) -> Any:
        return (yield)

    hooks, _ = hooks_of(_around("a", log), _around("b", log), plugin("tools_execute", wrapper, wrapper=True))
    with pytest.raises(type(error)) as caught:
        await hooks.tools_execute(agent=AGENT, call=CALL, body=body)
    assert caught.value is error
    assert error.__context__ is None


async def test_an_around_hook_that_fails_itself_is_named() -> None:
    """H-3: the plugin that raised, not those it passes."""
    log: list[str] = []

    async def fail(self: Any, call_next: Any) -> Any:
        await call_next()
        raise KeyError("mine")

    hooks, _ = hooks_of(_around("a", log), plugin("tools_execute", fail))
    with pytest.raises(HookError) as caught:
        await hooks.tools_execute(agent=AGENT, call=CALL, body=_result)
    assert caught.value.plugin == "p1"
    assert isinstance(caught.value.__cause__, KeyError)


async def test_an_llm_error_of_a_stream_wrapper_counts_as_the_streams_own() -> None:
    """H-1 around: a plugin that limits the rate speaks for the model."""

    async def limit(self: Any, call_next: Any) -> Any:
        raise LlmError("RATE_LIMIT")

    hooks, _ = hooks_of(plugin("llm_stream", limit))
    with pytest.raises(LlmError, match="RATE_LIMIT"):
        await hooks.llm_stream(request=REQUEST, open_stream=_stream)


async def _chunks() -> AsyncIterator[Any]:
    for chunk in ("a", "b"):
        yield chunk


async def _stream() -> AsyncIterator[Any]:
    return _chunks()


async def test_a_stream_may_be_wrapped_by_an_async_generator() -> None:
    """H-1 around: call_next may run when the first chunk is wanted."""

    async def upper(self: Any, call_next: Any) -> AsyncIterator[Any]:
        async for chunk in await call_next():
            yield chunk.upper()

    hooks, _ = hooks_of(plugin("llm_stream", upper), plugin("llm_stream", lambda self, call_next: call_next()))
    stream = await hooks.llm_stream(request=REQUEST, open_stream=_stream)
    assert [chunk async for chunk in stream] == ["A", "B"]


async def test_the_body_runs_as_whoever_called_the_hook() -> None:
    """H-7: what the body registers does not belong to a plugin that is only wrapped round it."""
    owners: list[Any] = []

    async def body() -> ToolResult:
        owners.append(current_owner())
        return ToolResult("x")

    async def wrap(self: Any, call_next: Any) -> Any:
        owners.append(current_owner())
        result = await call_next()
        owners.append(current_owner())
        return result

    hooks, _ = hooks_of(plugin("tools_execute", wrap))
    await hooks.tools_execute(agent=AGENT, call=CALL, body=body)
    assert [owner.name if owner else None for owner in owners] == ["p0", None, "p0"]


# -- drain, first ----------------------------------------------------------------------------------------


async def test_a_drain_runs_all_and_collects_what_failed() -> None:
    """H-1 drain: one ExceptionGroup of HookErrors."""
    ran: list[int] = []

    async def fail(self: Any) -> None:
        raise OSError("disk full")

    hooks, _ = hooks_of(
        plugin("session_flush", fail),
        plugin("session_flush", lambda self: ran.append(1)),
        plugin("session_flush", fail),
    )
    with pytest.raises(ExceptionGroup) as caught:
        await hooks.session_flush(session=AGENT, barrier="turn")
    assert ran == [1]
    assert [error.plugin for error in caught.value.exceptions if isinstance(error, HookError)] == ["p0", "p2"]


async def test_first_asks_until_one_answers_and_reports_failures() -> None:
    """H-1 first: None passes, a failure is reported and the next one is asked."""
    asked: list[int] = []

    def fail(self: Any) -> None:
        raise ValueError("x")

    hooks, reports = hooks_of(
        plugin("agent_request_error", fail),
        plugin("agent_request_error", lambda self: "retry"),
        plugin("agent_request_error", lambda self, attempt: Retry(attempt)),
        plugin("agent_request_error", lambda self: asked.append(1)),
    )
    retry = await hooks.agent_request_error(agent=AGENT, turn=1, step=1, request=REQUEST, error=LlmError(), attempt=2)
    assert retry == Retry(2)
    assert [who for _, who, _ in reports] == ["p0", "p1"]
    assert asked == []


APPROVAL = Approval("a1", CALL, "why", None, "s1")


async def test_an_answerer_that_raises_has_refused() -> None:
    """L-14: raising is no answer that somebody else may overrule."""

    async def fail(self: Any) -> None:
        raise ValueError("x")

    hooks, _ = hooks_of(plugin("approval_request", fail), plugin("approval_request", lambda self: ApprovalGranted()))
    answer, who = await hooks.approval_request(agent=AGENT, approval=APPROVAL)
    assert isinstance(answer, ApprovalRefused)
    assert who == "p0"


async def test_a_grant_by_somebody_who_may_not_grant_is_passed_over() -> None:
    """L-14: only the configured answerer may grant; others may only refuse."""
    hooks, _ = hooks_of(
        plugin("approval_request", lambda self: ApprovalGranted("project")),
        plugin("approval_request", lambda self: ApprovalGranted()),
    )
    answered = await hooks.approval_request(agent=AGENT, approval=APPROVAL, may_grant=lambda name: name == "p1")
    assert answered == (ApprovalGranted(), "p1")
    assert await hooks.approval_request(agent=AGENT, approval=APPROVAL, may_grant=lambda name: False) == (None, None)


# -- wrappers --------------------------------------------------------------------------------------------


async def test_wrappers_see_the_original_exception_and_may_mend_it() -> None:
    """H, wrappers: the facade wraps, not what a wrapper sees."""
    seen: list[BaseException] = []

    async def fail(self: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError("inner")

    def mend(self: Any) -> Any:
        try:
            return (yield)
        except KeyError as error:
            seen.append(error)
            return attrs.evolve(REQUEST, model="mended")

    hooks, _ = hooks_of(plugin("agent_request", mend, wrapper=True), plugin("agent_request", fail))
    request = await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
    assert request.model == "mended"
    assert [type(error) for error in seen] == [KeyError]


async def test_a_wrapper_that_forgets_to_return_changes_nothing_in_a_transform() -> None:
    """H-1 transform: None means unchanged, for wrappers too."""

    def forget(self: Any) -> Any:
        yield

    hooks, _ = hooks_of(
        plugin("agent_request", forget, wrapper=True),
        plugin("agent_request", lambda self, request: attrs.evolve(request, model="n")),
    )
    assert (await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)).model == "n"


@pytest.mark.parametrize("yields", [0, 2])
async def test_a_wrapper_has_to_yield_once(yields: int) -> None:
    """H, wrappers: not yielding or yielding twice is the wrapper's failure."""

    def wrap(self: Any) -> Any:
        for _ in range(yields):
            yield

    hooks, _ = hooks_of(plugin("agent_request", wrap, wrapper=True))
    with pytest.raises(HookError, match="yield") as caught:
        await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
    assert caught.value.plugin == "p0"


async def test_a_cancellation_reaches_the_wrappers_and_still_is_one() -> None:
    """H, wrappers: they may clean up; the task stays cancelled."""
    seen: list[str] = []

    async def hang(self: Any) -> None:
        await asyncio.Event().wait()

    def clean_up(self: Any) -> Any:
        try:
            return (yield)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    hooks, _ = hooks_of(plugin("agent_request", clean_up, wrapper=True), plugin("agent_request", hang))
    task = asyncio.ensure_future(hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_context_variable_set_by_a_wrapper_is_seen_inside() -> None:
    """H, wrappers: they run in the caller's context."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def setting(self: Any) -> Any:
        token = variable.set("set")
        try:
            return (yield)
        finally:
            variable.reset(token)

    async def look(self: Any) -> None:
        await asyncio.sleep(0)
        seen.append(variable.get())

    hooks, _ = hooks_of(plugin("agent_pre_step", setting, wrapper=True), plugin("agent_pre_step", look))
    await hooks.agent_pre_step(agent=AGENT, turn=1, step=1, system_prompt=None)
    assert (seen, variable.get()) == (["set"], "unset")


# -- time ------------------------------------------------------------------------------------------------


async def test_a_coroutine_gate_that_hangs_denies_after_its_limit() -> None:
    """H-4: expiry counts as raising."""

    async def hang(self: Any) -> None:
        await asyncio.Event().wait()

    hooks, reports = hooks_of(plugin("tools_pre_execute", hang), timeout=0.02)
    outcome = await hooks.tools_pre_execute(agent=AGENT, call=CALL)
    assert isinstance(outcome.decision, Deny)
    assert "no answer within 0.02 s" in outcome.decision.reason
    assert isinstance(reports[0][2], TimeoutError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_coroutine_gates_have_thirty_seconds_without_configuration() -> None:
    """H-4: unset, except 30 s for coroutine gates."""
    gate = plugin("tools_pre_execute", lambda self: None)
    hooks, _ = hooks_of(gate, plugin("agent_request", lambda self: None))
    judging = hooks._plan("tools_pre_execute", None)
    requesting = hooks._plan("agent_request", None)
    assert judging is not None
    assert requesting is not None
    assert [judging.steps[0].limit, requesting.steps[0].limit] == [30.0, None]


async def test_with_a_limit_plain_functions_run_in_a_thread_and_the_loop_goes_on() -> None:
    """H-4: others go on, the limit fires; the thread has the caller's context."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    seen: list[str] = []
    ticks: list[int] = []

    def block(self: Any) -> None:
        seen.append(variable.get())
        time.sleep(0.3)

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.005)

    hooks, _ = hooks_of(plugin("agent_request", block), timeout=0.1)
    ticking = asyncio.ensure_future(tick())
    with pytest.raises(HookError, match="no answer within") as caught:
        await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
    ticking.cancel()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert seen == ["set"]
    assert len(ticks) > 2


async def test_with_a_limit_plain_functions_still_answer_and_raise() -> None:
    """H-4: the thread changes nothing else."""

    def fail(self: Any) -> None:
        raise KeyError("x")

    hooks, _ = hooks_of(
        plugin("agent_request", lambda self, request: attrs.evolve(request, model="n")),
        plugin("agent_pre_step", fail),
        timeout=5,
    )
    assert (await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)).model == "n"
    with pytest.raises(HookError) as caught:
        await hooks.agent_pre_step(agent=AGENT, turn=1, step=1, system_prompt=None)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_an_expired_call_that_swallows_its_cancellation_keeps_its_answer() -> None:
    """H-4: as with tools, what ends within the grace counts."""

    async def stubborn(self: Any, request: GenerateRequest) -> GenerateRequest:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return attrs.evolve(request, model="late")
        return request

    hooks, _ = hooks_of(plugin("agent_request", stubborn), timeout=0.01)
    assert (await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)).model == "late"
    await asyncio.sleep(0)


@pytest.mark.parametrize("hook", ["agent_request", "agent_created"])
async def test_a_plugin_that_blocks_the_loop_is_named(
    hook: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H-4: the watchdog names plugin and hook."""
    monkeypatch.setattr(_invoke, "BLOCKED_SECONDS", 0.005)
    monkeypatch.setattr("dsh_core._observe.BLOCKED_SECONDS", 0.005)

    def block(self: Any) -> None:
        time.sleep(0.02)

    hooks, _ = hooks_of(plugin(hook, block))
    with caplog.at_level(logging.WARNING, "dsh"):
        if hook == "agent_request":
            await hooks.agent_request(agent=AGENT, turn=1, step=1, request=REQUEST)
        else:
            hooks.agent_created(agent=AGENT)
    assert f"plugin p0 blocked the event loop for 0.0 s in hook {hook}" in caplog.text


async def test_an_implementation_may_use_timeouts_of_its_own() -> None:
    """H-1: running a coroutine by hand up to its first wait does not disturb asyncio."""

    async def careful(self: Any) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        await asyncio.wait_for(asyncio.sleep(0), 1)

    hooks, _ = hooks_of(plugin("agent_pre_step", careful))
    await hooks.agent_pre_step(agent=AGENT, turn=1, step=1, system_prompt=None)
