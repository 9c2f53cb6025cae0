"""One call from the model's block to its result."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

import dsh_core.tools.threads
from dsh_core._markers import hookimpl
from dsh_core._ownership import Owner, acting_for, current_owner
from dsh_core.content import Context, ImageBlock, TextBlock, ToolCallBlock, text_of
from dsh_core.decisions import (
    Allow,
    ApprovalGranted,
    ApprovalRefused,
    Ask,
    Deny,
    ResultAccept,
    ResultReject,
)
from dsh_core.errors import PluginError, ToolError
from dsh_core.hooks import Hooks
from dsh_core.session.events import ApprovalAskedEvent, ApprovalDecidedEvent, ToolRewrittenEvent
from dsh_core.session.header import SessionHeader
from dsh_core.tools import PendingCall, ToolContext, ToolDefinition, ToolRegistry, ToolResult, pipeline, tool
from dsh_core.tools.pipeline import ToolSettings

pytestmark = pytest.mark.anyio


@attrs.frozen
class SomeAgent:
    """As much of an agent as a call needs that goes through no session."""

    id: str = "s1"


class Bench:
    """Hooks, tools and a log, with the stages of a call in one place."""

    def __init__(self, *tools: Any, settings: ToolSettings | None = None) -> None:
        self.hooks = Hooks()
        self.registry = ToolRegistry(self.hooks)
        self.agent: Any = SomeAgent()
        self.settings = settings or ToolSettings()
        self.log: list[Any] = []
        for one in tools:
            self.registry.register(one)

    def plugin(self, *, trusted: bool = True, name: str | None = None, **implementations: Callable[..., Any]) -> Owner:
        """Add a plugin with these hook implementations."""
        name = name or f"plugin{len(self.hooks.implementations('tools_pre_execute'))}"
        plugin: Any = type(name, (), {hook: staticmethod(hookimpl(body)) for hook, body in implementations.items()})()
        owner = Owner(name, trusted=trusted)
        with acting_for(owner):
            self.hooks.add(plugin, name=name, owner=owner)
        return owner

    def call(self, name: str, arguments: str = "") -> PendingCall:
        resolved = pipeline.resolve_call(self.registry, "s1", ToolCallBlock("c1", name, arguments), None)
        assert isinstance(resolved, PendingCall), resolved
        return resolved

    async def judge(self, call: PendingCall) -> pipeline.Verdict:
        return await pipeline.judge(
            self.hooks, self.registry, self.agent, call, log=self.log.append, settings=self.settings
        )

    async def ask(self, call: PendingCall, *, rule: str | None = None) -> pipeline.Verdict:
        verdict = pipeline.Verdict("ask", call, "is this right?", rule)
        return await pipeline.ask(self.hooks, self.agent, call, verdict, log=self.log.append, settings=self.settings)

    async def run(self, name: str, arguments: str = "") -> ToolResult:
        return await self.body(self.call(name, arguments))

    async def body(self, call: PendingCall, cancelled: asyncio.Event | None = None) -> ToolResult:
        context = ToolContext(
            self.agent,
            Any,
            call.call_id,
            call.idempotency_key,
            None,
            cancelled or asyncio.Event(),  # type: ignore[arg-type]
        )
        return await pipeline.run_body(self.hooks, self.agent, call, context=context)


def text(result: ToolResult) -> str:
    return text_of(result.content)


def code(result: Any) -> str | None:
    return result.error.code if result.error else None


def plain(returned: Any) -> ToolDefinition:
    """A tool that returns this, on the loop."""
    return ToolDefinition("plain", "", {"type": "object"}, lambda arguments, context: returned, thread=False)


@tool
async def echo(value: str) -> str:
    return value


# -- resolving -------------------------------------------------------------------------------------------


def resolve(bench: Bench, name: str, arguments: str = "", offered: Any = None) -> Any:
    return pipeline.resolve_call(bench.registry, "s1", ToolCallBlock("c1", name, arguments), offered)


def test_a_call_is_resolved_with_its_key_and_arguments() -> None:
    """L-12: a call that may be judged carries everything a gate needs."""
    call = resolve(Bench(echo), "echo", '{"value": "x"}', {"echo"})
    assert (call.call_id, call.name, call.arguments) == ("c1", "echo", {"value": "x"})
    assert (call.raw_arguments, call.definition, call.idempotency_key) == ('{"value": "x"}', echo, "s1:c1")


def test_a_wire_name_leads_to_the_tools_own_name() -> None:
    """T-4: log, gates and rules use the original name."""
    bench = Bench(tool(name="server/echo")(echo.execute.function))  # type: ignore[attr-defined]
    [schema] = bench.registry.schemas()
    assert resolve(bench, schema.name, '{"value": "x"}', {"server/echo"}).name == "server/echo"


def test_unknown_tools_and_tools_not_on_offer_are_answered() -> None:
    """L-12: with the nearest names that are on offer."""
    bench = Bench(echo, plain(1))
    unknown = resolve(bench, "ehco")
    assert (unknown.is_error, code(unknown)) == (True, "UNKNOWN_TOOL")
    assert "'ehco'" in text(unknown)
    assert "echo" in text(unknown)
    assert "nothing was run" in text(unknown)
    withheld = resolve(bench, "echo", '{"value": "x"}', {"plain"})
    assert code(withheld) == "UNKNOWN_TOOL"
    assert "plain" in text(withheld)


def test_a_call_without_a_name_is_answered() -> None:
    """L-12: never dispatched."""
    assert code(resolve(Bench(echo), "")) == "UNKNOWN_TOOL"


def test_invalid_arguments_are_answered_with_all_that_is_wrong() -> None:
    """L-12: and the text says that nothing ran."""
    result = resolve(Bench(echo), "echo", '{"valu": 1}')
    assert code(result) == "INVALID_ARGUMENTS"
    assert "'value' is missing" in text(result)
    assert "'valu'" in text(result)
    assert "nothing was run" in text(result)


def test_a_broken_schema_is_the_tools_failure() -> None:
    """T-3: the model is told to do without."""
    definition = ToolDefinition("odd", "", {"type": "object", "properties": {"a": {"type": "?"}}}, print)
    result = resolve(Bench(definition), "odd", '{"a": 1}')
    assert code(result) == "TOOL_ERROR"
    assert "nothing was run" in text(result)


# -- gates -----------------------------------------------------------------------------------------------


async def test_without_an_opinion_a_tool_that_came_by_code_runs() -> None:
    """L-15: what was handed in is wanted."""
    bench = Bench(echo)
    assert (await bench.judge(bench.call("echo", '{"value": "x"}'))).kind == "run"
    bench.plugin(tools_pre_execute=lambda call: None)
    assert (await bench.judge(bench.call("echo", '{"value": "x"}'))).kind == "run"


@pytest.mark.parametrize(("read_only", "kind"), [(False, "ask"), (True, "run")])
async def test_without_an_opinion_an_autoloaded_tool_asks_unless_it_only_reads(read_only: bool, kind: str) -> None:
    """L-15: the question names the plugin."""
    bench = Bench()
    with acting_for(Owner("found", trusted=False)):
        bench.registry.register(attrs.evolve(plain(1), read_only=read_only))
    verdict = await bench.judge(bench.call("plain"))
    assert verdict.kind == kind
    assert kind == "run" or "'found'" in (verdict.reason or "")


async def test_an_explicit_allow_lets_an_autoloaded_tool_run() -> None:
    """L-15: the default is for want of an opinion."""
    bench = Bench()
    bench.plugin(tools_pre_execute=lambda call: Allow())
    with acting_for(Owner("found", trusted=False)):
        bench.registry.register(plain(1))
    assert (await bench.judge(bench.call("plain"))).kind == "run"


async def test_deny_beats_ask_beats_allow_in_any_order() -> None:
    """L-13: the strictest wins, and says why."""
    for order in ([Allow(), Ask("sure?", "r"), Deny("never")], [Deny("never"), Ask("sure?", "r"), Allow()]):
        bench = Bench(echo)
        for number, decision in enumerate(order):
            bench.plugin(name=f"p{number}", tools_pre_execute=lambda call, decision=decision: decision)
        verdict = await bench.judge(bench.call("echo", '{"value": "x"}'))
        assert (verdict.kind, "never" in (verdict.reason or "")) == ("deny", True)
        assert "did not run" in (verdict.reason or "")
        asking = Bench(echo)
        for number, decision in enumerate(order):
            if not isinstance(decision, Deny):
                asking.plugin(name=f"p{number}", tools_pre_execute=lambda call, decision=decision: decision)
        verdict = await asking.judge(asking.call("echo", '{"value": "x"}'))
        assert (verdict.kind, verdict.reason, verdict.rule) == ("ask", "sure?", "r")


async def test_a_gate_that_fails_denies() -> None:
    """L-13: raising counts as deny."""
    bench = Bench(echo)

    def gate(call: PendingCall) -> Any:
        raise ValueError("broken gate")

    bench.plugin(name="gatekeeper", tools_pre_execute=gate)
    verdict = await bench.judge(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert verdict.plugin == "gatekeeper"


async def test_a_rewrite_is_logged_and_judged_again_by_all() -> None:
    """L-13: gates see the original and the final form."""
    bench = Bench(echo)
    seen: list[tuple[str, Any]] = []

    def shorten(call: PendingCall) -> Any:
        seen.append(("shorten", call.arguments["value"]))
        return Allow(arguments={"value": "short"})

    bench.plugin(name="first", tools_pre_execute=lambda call: seen.append(("first", call.arguments["value"])))
    bench.plugin(name="shorten", tools_pre_execute=shorten)
    verdict = await bench.judge(bench.call("echo", '{"value": "long"}'))
    assert (verdict.kind, verdict.call.arguments) == ("run", {"value": "short"})
    assert seen == [("first", "long"), ("shorten", "long"), ("first", "short"), ("shorten", "short")]
    assert bench.log == [ToolRewrittenEvent("c1", {"value": "short"}, "shorten")]
    assert text(await bench.body(verdict.call)) == "short"
    assert verdict.call.raw_arguments == '{"value": "long"}'


async def test_the_final_form_can_be_denied_or_asked_about() -> None:
    """L-13: the approval is asked on the final form, with a rule made for it."""
    for opinion in (Deny("not that"), Ask("that?", "rule-for-final")):
        bench = Bench(echo)
        bench.plugin(name="rewriter", tools_pre_execute=lambda call: Allow(arguments={"value": "new"}))
        bench.plugin(
            name="judge",
            tools_pre_execute=lambda call, opinion=opinion: opinion if call.arguments["value"] == "new" else None,
        )
        verdict = await bench.judge(bench.call("echo", '{"value": "old"}'))
        assert verdict.kind == ("deny" if isinstance(opinion, Deny) else "ask")
        assert verdict.call.arguments == {"value": "new"}
        assert verdict.rule == getattr(opinion, "rule", None)


async def test_a_question_about_the_original_form_is_not_forgotten() -> None:
    """L-13: rewriting does not get round a gate that asks; its rule was for another form."""
    bench = Bench(echo)
    bench.plugin(name="rewriter", tools_pre_execute=lambda call: Allow(arguments={"value": "new"}))
    bench.plugin(
        name="judge", tools_pre_execute=lambda call: Ask("old?", "r") if call.arguments["value"] == "old" else None
    )
    verdict = await bench.judge(bench.call("echo", '{"value": "old"}'))
    assert (verdict.kind, verdict.reason, verdict.rule) == ("ask", "old?", None)


async def test_a_denied_original_is_not_rewritten() -> None:
    """L-13: nothing is logged that did not happen."""
    bench = Bench(echo)
    bench.plugin(name="rewriter", tools_pre_execute=lambda call: Allow(arguments={"value": "new"}))
    bench.plugin(name="judge", tools_pre_execute=lambda call: Deny("no"))
    assert (await bench.judge(bench.call("echo", '{"value": "old"}'))).kind == "deny"
    assert bench.log == []


async def test_a_second_rewrite_is_a_conflict() -> None:
    """L-13: in one round or in the next, also when 1 becomes True."""

    @tool
    def probe(value: Any) -> None: ...

    for one, other in (({"value": "a"}, {"value": "b"}), ({"value": 1}, {"value": True})):
        bench = Bench(probe)
        bench.plugin(name="one", tools_pre_execute=lambda call, one=one: Allow(arguments=one))
        bench.plugin(name="other", tools_pre_execute=lambda call, other=other: Allow(arguments=other))
        verdict = await bench.judge(bench.call("probe", '{"value": null}'))
        assert (verdict.kind, "conflict" in (verdict.reason or "")) == ("deny", True)
        assert "'one'" in (verdict.reason or "")
    bench = Bench(probe)
    bench.plugin(name="grow", tools_pre_execute=lambda call: Allow(arguments={"value": [call.arguments["value"]]}))
    verdict = await bench.judge(bench.call("probe", '{"value": null}'))
    assert (verdict.kind, "conflict" in (verdict.reason or "")) == ("deny", True)


async def test_rewritten_arguments_are_validated() -> None:
    """L-13: a gate cannot bring in what a model may not."""
    bench = Bench(echo)
    bench.plugin(name="rewriter", tools_pre_execute=lambda call: Allow(arguments={"value": 5}))
    verdict = await bench.judge(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "'rewriter'" in (verdict.reason or "")
    assert "expected string" in (verdict.reason or "")
    assert bench.log == []


# -- approvals -------------------------------------------------------------------------------------------


def outcomes(bench: Bench) -> list[str]:
    return [event.outcome for event in bench.log if isinstance(event, ApprovalDecidedEvent)]


async def test_question_and_answer_are_logged_bound_to_the_call() -> None:
    """L-14: with the exact arguments, who answered, and what is remembered."""
    bench = Bench(echo)
    settled: list[str] = []
    bench.plugin(
        name="front",
        approval_request=lambda approval: ApprovalGranted("session"),
        approval_decided=lambda approval, outcome: settled.append(outcome),
    )
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'), rule="echo(x)")
    assert verdict.kind == "run"
    asked, decided = bench.log
    assert asked == ApprovalAskedEvent(asked.approval_id, "c1", "echo", {"value": "x"}, "is this right?", "echo(x)")
    assert decided == ApprovalDecidedEvent(asked.approval_id, "c1", "approved", "session", "front")
    assert settled == ["approved"]


async def test_what_has_no_rule_is_not_remembered() -> None:
    """L-14: protected items cannot be remembered, whatever an answerer says."""
    bench = Bench(echo)
    bench.plugin(approval_request=lambda approval: ApprovalGranted("project"))
    assert (await bench.ask(bench.call("echo", '{"value": "x"}'))).kind == "run"
    assert bench.log[-1].remember is None


async def test_a_refusal_by_a_person_gives_the_note_to_the_model() -> None:
    """L-14: the text tells a person's no from nobody's yes."""
    bench = Bench(echo)
    bench.plugin(name="front", approval_request=lambda approval: ApprovalRefused("use the other file"))
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "user refused" in (verdict.reason or "")
    assert "use the other file" in (verdict.reason or "")
    assert "did not run" in (verdict.reason or "")
    assert outcomes(bench) == ["rejected"]


async def test_with_nobody_to_ask_the_call_is_refused() -> None:
    """L-14: at once, and the model is told why."""
    bench = Bench(echo)
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "nobody who could be asked" in (verdict.reason or "")
    assert outcomes(bench) == ["unavailable"]


async def test_an_answerer_that_raises_has_not_said_no_in_the_users_name() -> None:
    """L-14: raising means refused; the text does not blame the user."""
    bench = Bench(echo)

    def answer(approval: Any) -> Any:
        raise ValueError("no terminal")

    bench.plugin(name="front", approval_request=answer)
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "'front'" in (verdict.reason or "")
    assert "no terminal" in (verdict.reason or "")
    assert "user refused" not in (verdict.reason or "")
    assert outcomes(bench) == ["unavailable"]


async def test_only_the_configured_answerer_may_grant_and_is_still_asked() -> None:
    """L-14: grants of others are passed over, refusals count."""
    bench = Bench(echo, settings=ToolSettings(approver="front"))
    bench.plugin(name="eager", approval_request=lambda approval: ApprovalGranted())
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "'front', which alone may grant" in (verdict.reason or "")
    bench.plugin(name="front", approval_request=lambda approval: ApprovalGranted())
    assert (await bench.ask(bench.call("echo", '{"value": "x"}'))).kind == "run"
    other = Bench(echo, settings=ToolSettings(approver="front"))
    other.plugin(name="strict", approval_request=lambda approval: ApprovalRefused("policy"))
    refused = await other.ask(other.call("echo", '{"value": "x"}'))
    assert "plugin 'strict' refused it, with this note: policy" in (refused.reason or "")
    assert outcomes(bench) + outcomes(other) == ["unavailable", "approved", "rejected"]


async def test_without_a_configured_answerer_only_plugins_handed_in_by_code_may_grant() -> None:
    """L-14: an autoloaded plugin cannot say yes in the user's name."""
    bench = Bench(echo)
    bench.plugin(name="found", trusted=False, approval_request=lambda approval: ApprovalGranted())
    assert (await bench.ask(bench.call("echo", '{"value": "x"}'))).kind == "deny"
    bench.plugin(name="given", approval_request=lambda approval: ApprovalGranted())
    assert (await bench.ask(bench.call("echo", '{"value": "x"}'))).kind == "run"


async def test_a_question_times_out_and_a_late_yes_has_no_effect() -> None:
    """L-14: also if the answerer swallows that its time is up."""
    bench = Bench(echo, settings=ToolSettings(approval_timeout=0.02))

    async def slow(approval: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return ApprovalGranted()

    bench.plugin(name="front", approval_request=slow)
    verdict = await bench.ask(bench.call("echo", '{"value": "x"}'))
    assert verdict.kind == "deny"
    assert "nobody answered within 0.02 s" in (verdict.reason or "")
    assert outcomes(bench) == ["timeout"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_cancelling_withdraws_the_question(swallows: bool) -> None:
    """L-14: logged as cancelled before the cancellation goes on; a late yes has no effect."""
    bench = Bench(echo)
    asked, settled = asyncio.Event(), list[str]()

    async def slow(approval: Any) -> Any:
        asked.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if not swallows:
                raise
        return ApprovalGranted()

    bench.plugin(
        name="front",
        approval_request=slow,
        approval_decided=lambda approval, outcome: settled.append(outcome),
    )
    task = asyncio.ensure_future(bench.ask(bench.call("echo", '{"value": "x"}')))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcomes(bench) == settled == ["cancelled"]


async def test_two_questions_at_once_keep_their_answers() -> None:
    """L-14: an answer belongs to one call, whichever comes first."""
    bench = Bench(echo)
    waiting: dict[str, asyncio.Future[Any]] = {}

    async def answer(approval: Any) -> Any:
        waiting[approval.call.arguments["value"]] = asyncio.get_running_loop().create_future()
        return await waiting[approval.call.arguments["value"]]

    bench.plugin(name="front", approval_request=answer)
    tasks = [asyncio.ensure_future(bench.ask(bench.call("echo", f'{{"value": "{name}"}}'))) for name in "ab"]
    while len(waiting) < 2:
        await asyncio.sleep(0)
    waiting["b"].set_result(ApprovalGranted())
    assert (await tasks[1]).kind == "run"
    assert not tasks[0].done()
    waiting["a"].set_result(ApprovalRefused())
    assert (await tasks[0]).kind == "deny"


# -- results ---------------------------------------------------------------------------------------------


@attrs.frozen
class Weather:
    city: str
    degrees: float


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


IMAGE = ImageBlock("image/png", "aGk=")


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("text", "text"),
        ("", "(no output)"),
        (None, "(no output)"),
        (0, "0"),
        (True, "true"),
        (float("nan"), "NaN"),
        ({"a": [float("inf"), "ü", 2**70]}, '{"a": ["Infinity", "ü", 1180591620717411303424]}'),
        ([], "[]"),
        ({}, "{}"),
        ((1, 2), "[1, 2]"),
        (Weather("Ulm", 3.5), '{"city": "Ulm", "degrees": 3.5}'),
        ([Weather("Ulm", 3.5)], '[{"city": "Ulm", "degrees": 3.5}]'),
        (Odd(), "<odd>"),
        ({"x": Odd()}, '{"x": "<odd>"}'),
    ],
)
async def test_whatever_a_body_returns_becomes_content(returned: Any, content: str) -> None:
    """T-3: text, JSON values, attrs instances, nothing, anything else by `repr`."""
    assert await Bench(plain(returned)).run("plain") == ToolResult(content)


async def test_blocks_and_results_are_taken_as_they_are() -> None:
    """T-3: non-empty, with facts and meta."""
    assert (await Bench(plain(IMAGE)).run("plain")).content == (IMAGE,)
    assert (await Bench(plain([TextBlock("a"), IMAGE])).run("plain")).content == (TextBlock("a"), IMAGE)
    given = ToolResult("a", is_error=True, meta={"n": [1]})
    assert await Bench(plain(given)).run("plain") == given
    assert text(await Bench(plain(ToolResult(""))).run("plain")) == "(no output)"


async def test_cyclic_and_hostile_values_do_no_harm() -> None:
    """T-3: rendering never crashes."""
    cycle: list[Any] = []
    cycle.append(cycle)
    assert text(await Bench(plain(cycle)).run("plain")) == "[[...]]"

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Hostile" in text(await Bench(plain(Hostile())).run("plain"))


async def test_meta_that_is_not_json_is_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """T-3: front ends can do without it, the model needs the result."""
    with caplog.at_level(logging.WARNING, "dsh"):
        result = await Bench(plain(ToolResult("done", meta={"x": {1, 2}}))).run("plain")
    assert (text(result), result.meta) == ("done", None)
    assert "'plain'" in caplog.text


async def test_long_output_is_cut_in_the_middle_with_a_marker() -> None:
    """T-2: `max_output` counts characters; blocks other than text stay."""
    blocks = [TextBlock("ä" * 60), IMAGE, TextBlock("b" * 40)]
    cut = await Bench(attrs.evolve(plain(blocks), max_output=50)).run("plain")
    first, image, last = cut.content
    assert image == IMAGE
    assert first == TextBlock("ä" * 35 + "\n[… 50 of 100 characters left out …]\n")
    assert last == TextBlock("b" * 15)
    fits = await Bench(attrs.evolve(plain("x" * 50), max_output=50)).run("plain")
    assert text(fits) == "x" * 50


# -- bodies ----------------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_its_own_thread_with_the_callers_context() -> None:
    """T-1: the loop stays free; context variables are inherited."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("inherited")

    @tool
    def where() -> list[Any]:
        thread = threading.current_thread()
        return [thread is threading.main_thread(), thread.daemon, variable.get()]

    @tool(thread=False)
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    bench = Bench(where, here)
    assert text(await bench.run("where")) == '[false, true, "inherited"]'
    assert text(await bench.run("here")) == "true"


async def test_a_plain_function_may_return_an_awaitable() -> None:
    """T-1: it is awaited on the loop."""
    definition = ToolDefinition("lazy", "", {"type": "object"}, lambda arguments, context: asyncio.sleep(0, "late"))
    assert text(await Bench(definition).run("lazy")) == "late"


async def test_a_foreign_tool_gets_arguments_of_its_own() -> None:
    """L-13: what it changes is not what was logged."""

    def pop(arguments: Any, context: ToolContext) -> Any:
        arguments["list"].append(arguments.pop("a"))
        return arguments["list"]

    bench = Bench(ToolDefinition("pop", "", {"type": "object"}, pop))
    call = bench.call("pop", '{"a": 1, "list": [0]}')
    assert text(await bench.body(call)) == "[0, 1]"
    assert call.arguments == {"a": 1, "list": [0]}


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize(
    ("error", "said", "kind", "number"),
    [
        (ValueError("bad value"), "ValueError: bad value", "ValueError", "TOOL_ERROR"),
        (KeyError(), "KeyError (without a message)", "KeyError", "TOOL_ERROR"),
        (ToolError("no such city", "NO_CITY"), "no such city", "ToolError", "NO_CITY"),
        (ToolError(), "ToolError (without a message)", "ToolError", "TOOL_ERROR"),
        (TimeoutError("socket"), "TimeoutError: socket", "TimeoutError", "TOOL_ERROR"),
        (SystemExit(3), "SystemExit: 3", "SystemExit", "TOOL_ERROR"),
        (asyncio.CancelledError(), "CancelledError", "CancelledError", "TOOL_ERROR"),
        (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "- ValueError: a\n- OSError: b", "ExceptionGroup", ""),
    ],
)
async def test_a_body_that_raises_gives_an_error_result(
    error: BaseException, said: str, kind: str, number: str, in_thread: bool
) -> None:
    """L-10, T-3: type and message reach the model; a `ToolError` keeps its code; nothing gets out."""

    def fail(arguments: Any, context: ToolContext) -> Any:
        raise error

    result = await Bench(ToolDefinition("fail", "", {"type": "object"}, fail, thread=in_thread)).run("fail")
    assert said in text(result)
    assert result.is_error
    assert result.error is not None
    assert result.error.name == kind
    assert result.error.code == (number or "TOOL_ERROR")


async def test_a_keyboard_interrupt_in_a_thread_ends_only_its_call() -> None:
    """L-10: in a thread it is no Ctrl-C."""

    @tool
    def fail() -> None:
        raise KeyboardInterrupt

    assert "KeyboardInterrupt" in text(await Bench(fail).run("fail"))


async def test_a_coroutine_that_takes_too_long_is_stopped() -> None:
    """L-10: TIMEOUT says that it may have taken effect."""
    seen: list[bool] = []

    @tool(timeout=0.02)
    async def slow(context: ToolContext) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            seen.append(True)

    result = await Bench(slow).run("slow")
    assert code(result) == "TIMEOUT"
    assert "0.02 s" in text(result)
    assert "may have taken effect" in text(result)
    assert seen == [True]


async def test_a_thread_that_takes_too_long_is_told_and_waited_for() -> None:
    """L-10: its context says so; its late result is dropped."""
    told: list[bool] = []

    @tool(timeout=0.02)
    def slow(context: ToolContext) -> str:
        while not context.cancelled.is_set():
            time.sleep(0.001)
        told.append(True)
        return "late"

    result = await Bench(slow).run("slow")
    assert (code(result), told) == ("TIMEOUT", [True])
    assert "stopped" in text(result)


async def test_a_thread_that_ignores_its_time_limit_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A-7: after the grace the turn goes on, and the text says that it may still be running."""
    monkeypatch.setattr(dsh_core.tools.threads, "ABANDON_AFTER", 0.02)
    release = threading.Event()

    @tool(timeout=0.02)
    def stuck() -> None:
        release.wait(30)

    with caplog.at_level(logging.WARNING, "dsh"):
        result = await Bench(stuck).run("stuck")
    release.set()
    assert code(result) == "TIMEOUT"
    assert "may still be running" in text(result)
    assert "dsh-tool-stuck" in caplog.text


async def test_a_swallowed_time_limit_gives_the_bodys_own_result() -> None:
    """A-7: what comes back has a result."""

    @tool(timeout=0.02)
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return "cleaned up"

    assert text(await Bench(stubborn).run("stubborn")) == "cleaned up"


# -- cancelling ------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(bench: Bench, name: str, started: asyncio.Event) -> AsyncIterator[asyncio.Task[ToolResult]]:
    task = asyncio.ensure_future(bench.run(name))
    await started.wait()
    yield task


async def test_cancelling_a_coroutine_cancels_its_call() -> None:
    """L-10: the cancellation goes on, the context says so."""
    started, contexts = asyncio.Event(), list[ToolContext]()

    @tool
    async def wait(context: ToolContext) -> None:
        contexts.append(context)
        started.set()
        await asyncio.sleep(30)

    async with running(Bench(wait), "wait", started) as task:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert contexts[0].cancelled.is_set()


async def test_a_body_that_swallows_cancellation_gives_its_result() -> None:
    """A-7: what it did before it came back is known."""
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return "half done"

    async with running(Bench(wait), "wait", started) as task:
        task.cancel()
        assert text(await task) == "half done"


async def test_cancelling_tells_a_thread_and_waits_for_its_result() -> None:
    """A-7: nobody says a call is over while it still works."""
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    @tool
    def wait(context: ToolContext) -> str:
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled.is_set():
            time.sleep(0.001)
        time.sleep(0.02)
        return "stopped cleanly"

    async with running(Bench(wait), "wait", started) as task:
        task.cancel()
        assert text(await task) == "stopped cleanly"


async def test_a_second_cancellation_abandons_a_thread() -> None:
    """A-7: a thread that does not listen cannot hold anybody up for ever."""
    started, loop, release = asyncio.Event(), asyncio.get_running_loop(), threading.Event()

    @tool
    def stuck() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(30)

    async with running(Bench(stuck), "stuck", started) as task:
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    release.set()


# -- unloading -------------------------------------------------------------------------------------------


async def test_unloading_a_plugin_ends_its_running_bodies() -> None:
    """H-7, L-10: INTERRUPTED names the plugin; the turn's task is not cancelled."""
    started, bench, owner = asyncio.Event(), Bench(), Owner("extra")
    names: list[str | None] = []

    @tool
    async def wait() -> None:
        acting = current_owner()
        names.append(acting.name if acting else None)
        started.set()
        await asyncio.sleep(30)

    with acting_for(owner):
        bench.registry.register(wait)
    async with running(bench, "wait", started) as task:
        [flight] = owner.running
        assert flight.what == "tool wait"
        flight.interrupt(PluginError("unloaded"))
        result = await task
    assert names == ["extra"]
    assert code(result) == "INTERRUPTED"
    assert "'extra'" in text(result)
    assert "may have taken effect" in text(result)
    assert not task.cancelling()
    assert owner.running == []


async def test_unloading_a_plugin_tells_its_threads() -> None:
    """H-7: a thread is asked to stop, too, and its result is known if it does."""
    started, loop = asyncio.Event(), asyncio.get_running_loop()
    bench, owner = Bench(), Owner("extra")

    @tool
    def wait(context: ToolContext) -> str:
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled.is_set():
            time.sleep(0.001)
        return "stopped"

    with acting_for(owner):
        bench.registry.register(wait)
    async with running(bench, "wait", started) as task:
        owner.running[0].interrupt(PluginError("unloaded"))
        assert text(await task) == "stopped"


async def test_a_call_judged_before_its_plugin_was_unloaded_does_not_start() -> None:
    """H-7, L-10: NOT_STARTED, since nothing ran."""
    bench, owner = Bench(), Owner("extra")
    with acting_for(owner):
        bench.registry.register(echo)
    call = bench.call("echo", '{"value": "x"}')
    assert owner.undo_all() == []
    result = await bench.body(call)
    assert code(result) == "NOT_STARTED"
    assert "did not run" in text(result)


# -- hooks round the body and after it -------------------------------------------------------------------


async def test_a_plugin_goes_round_the_body() -> None:
    """L-10: what it returns is the result."""
    bench = Bench(echo)

    async def shout(call: PendingCall, call_next: Any) -> ToolResult:
        result = await call_next()
        return attrs.evolve(result, content=text(result).upper())

    bench.plugin(tools_execute=shout)
    assert text(await bench.run("echo", '{"value": "x"}')) == "X"


@pytest.mark.parametrize("before", [True, False])
async def test_a_plugin_that_fails_round_the_body_fails_the_call(before: bool) -> None:
    """L-10: the result names plugin and hook."""
    bench = Bench(echo)

    async def broken(call: PendingCall, call_next: Any) -> ToolResult:
        if not before:
            await call_next()
        raise ValueError("broken")

    bench.plugin(name="onion", tools_execute=broken)
    result = await bench.run("echo", '{"value": "x"}')
    assert result.is_error
    assert "onion" in text(result)
    assert "tools_execute" in text(result)


async def test_a_failing_body_is_a_result_for_the_plugins_round_it() -> None:
    """L-10: a plugin that goes round need not catch anything."""
    bench = Bench(plain(None))
    bench.registry.register(ToolDefinition("fail", "", {"type": "object"}, lambda arguments, context: 1 / 0))
    seen: list[str | None] = []

    async def watch(call: PendingCall, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next()
        seen.append(result.error.name if result.error else None)
        return result

    bench.plugin(tools_execute=watch)
    await bench.run("fail")
    assert seen == ["ZeroDivisionError"]


async def finish(bench: Bench, result: ToolResult) -> tuple[ToolResult, tuple[Context, ...]]:
    return await pipeline.finish(bench.hooks, bench.agent, bench.call("echo", '{"value": "x"}'), result)


async def test_without_hooks_a_result_stays_what_it_is() -> None:
    """L-10: the same object."""
    result = ToolResult("x")
    assert await finish(Bench(echo), result) == (result, ())


async def test_an_accepted_result_keeps_its_facts() -> None:
    """L-10: content and context change, `is_error` and `meta` do not."""
    bench = Bench(echo)
    bench.plugin(name="noter", tools_post_execute=lambda result: ResultAccept(content="seen", context="a note"))
    final, contexts = await finish(bench, ToolResult("x", is_error=True, meta={"a": 1}))
    assert final == ToolResult("seen", is_error=True, meta={"a": 1})
    assert [text_of(context.content) for context in contexts] == ["a note"]
    assert contexts[0].source is not None
    assert contexts[0].source.name == "noter"


async def test_a_rejected_result_is_withheld() -> None:
    """L-10: the model gets the feedback as an error, `meta` is dropped."""
    bench = Bench(echo)
    bench.plugin(tools_post_execute=lambda result: ResultReject("secret, sorry", context="why"))
    final, contexts = await finish(bench, ToolResult("password", meta={"a": 1}))
    assert (text(final), final.is_error, final.meta) == ("secret, sorry", True, None)
    assert len(contexts) == 1


async def test_a_hook_that_fails_after_the_call_withholds_the_result() -> None:
    """L-10: an error that says the call is over; the content may have had to be hidden."""
    bench = Bench(echo)

    def broken(result: ToolResult) -> Any:
        raise ValueError("scanner down")

    bench.plugin(name="scanner", tools_post_execute=broken)
    final, contexts = await finish(bench, ToolResult("password"))
    assert final.is_error
    assert "password" not in text(final)
    assert "scanner" in text(final)
    assert "may have taken effect" in text(final)
    assert contexts == ()


# -- all stages in a row ---------------------------------------------------------------------------------


class SomeSession:
    """As much of a session as a call outside the loop needs."""

    id = "s1"

    def __init__(self, turn_open: bool) -> None:
        self.turn_open = turn_open
        self.header = SessionHeader(id="s1", created_at=0, cwd="/work")
        self.appended: list[Any] = []

    def append(self, data: Any) -> None:
        self.appended.append(data)


@attrs.frozen
class WithSession:
    session: SomeSession
    id: str = "s1"


async def test_a_call_outside_the_loop_goes_through_all_stages() -> None:
    """L-13, L-14: `ToolRegistry.execute` gives the result, whatever happens."""
    bench = Bench(echo)
    bench.plugin(
        name="gate",
        tools_pre_execute=lambda call: Ask("sure?") if call.arguments["value"] == "ask" else None,
        approval_request=lambda approval: ApprovalRefused("not now"),
        tools_post_execute=lambda result: ResultAccept(content=text(result) + "!"),
    )
    for turn_open, events in ((True, 2), (False, 0)):
        agent: Any = WithSession(SomeSession(turn_open))
        run = bench.registry.execute
        assert text(await run(agent, ToolCallBlock("c1", "echo", '{"value": "x"}'))) == "x!"
        assert code(await run(agent, ToolCallBlock("c2", "echo", "{}"))) == "INVALID_ARGUMENTS"
        denied = await run(agent, bench.call("echo", '{"value": "ask"}'))
        assert code(denied) == "DENIED"
        assert "not now" in text(denied)
        assert len(agent.session.appended) == events


async def test_a_body_is_told_its_call() -> None:
    """T-1: the context has session, ids and directory."""

    @tool
    async def facts(context: ToolContext) -> list[Any]:
        context.progress("nobody watches")
        return [context.call_id, context.idempotency_key, context.cwd, context.cancelled.is_set()]

    agent: Any = WithSession(SomeSession(False))
    result = await Bench(facts).registry.execute(agent, ToolCallBlock("c1", "facts", ""))
    assert text(result) == '["c1", "s1:c1", "/work", false]'
