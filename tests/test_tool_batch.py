"""The tool calls of one answer (L-10 to L-16)."""

from __future__ import annotations

import asyncio
import logging
import threading

import attrs
import pytest
from loops import Moment, Store, plugin, running, until

from dsh_core import (
    Allow,
    ApprovalGranted,
    ApprovalRefused,
    Ask,
    BlockEnd,
    BlockStart,
    Deny,
    Finish,
    FinishChunk,
    ResultAccept,
    ResultReject,
    ToolCallDelta,
    ToolContext,
    ToolDefinition,
    ToolResult,
    Usage,
    UsageChunk,
    hookimpl,
    tool,
    unpack_chunks,
)
from dsh_core.session.events import (
    ApprovalAskedEvent,
    ApprovalDecidedEvent,
    AssistantMessageEvent,
    ContextMessageEvent,
    ToolCallEvent,
    ToolResultEvent,
    ToolRewrittenEvent,
)
from dsh_core.testing import call, calls, text

pytestmark = pytest.mark.anyio


def answer(*blocks):
    """An answer of calls given as `(id, name, arguments)`."""
    chunks = []
    for index, (call_id, name, arguments) in enumerate(blocks):
        chunks += [BlockStart(index, "tool-call"), ToolCallDelta(index, call_id, name, arguments), BlockEnd(index)]
    return [*chunks, UsageChunk(Usage(1, 1)), FinishChunk(Finish("tool-calls"))]


def codes(lab):
    """Codes of the results in the order of the log; None for a good one."""
    return [one.error.code if one.error else None for one in lab.of(ToolResultEvent)]


def texts_of(lab):
    """Texts of the results in the order of the log."""
    return [" ".join(block.text for block in one.content) for one in lab.of(ToolResultEvent)]


class Bodies:
    """Tools that say when they run, and wait to be let go."""

    def __init__(self):
        self.running = []
        self.log = []
        self.most = 0
        self.gates = {}

    def tool(self, name, **facts):
        """A tool that waits for `self.let(name)` where that was asked for."""

        async def body(arguments, context):
            self.log.append(f"+{name}")
            self.running.append(name)
            self.most = max(self.most, len(self.running))
            try:
                gate = self.gates.get(name)
                if gate is not None:
                    await gate.wait()
                else:
                    await asyncio.sleep(0)
            finally:
                self.running.remove(name)
                self.log.append(f"-{name}")
            return f"{name} done"

        return ToolDefinition(name, name, {"type": "object"}, body, **facts)

    def hold(self, *names):
        """Have these wait."""
        self.gates.update({name: asyncio.Event() for name in names})

    def let(self, name):
        """Let one go on."""
        self.gates[name].set()


# -- L-10: one result each -------------------------------------------------------------------------------


async def test_each_call_gets_one_result_whatever_becomes_of_it():
    """L-10: good, denied, unknown, broken, raised, timed out; the texts tell what did not run from what may have."""

    @tool
    async def good() -> str:
        """Work."""
        return "fine"

    @tool
    async def raises() -> str:
        """Raise."""
        raise ValueError("broken inside")

    @tool(timeout=0.01)
    async def slow() -> str:
        """Sleep."""
        await asyncio.sleep(30)
        return "late"

    @tool
    async def forbidden() -> str:
        """Never."""
        raise AssertionError("it ran")

    @tool
    async def typed(count: int) -> str:
        """Count."""
        return str(count)

    gate = plugin(tools_pre_execute=lambda call: Deny("not you") if call.name == "forbidden" else None)
    several = calls(
        call("good"), call("raises"), call("slow"), call("forbidden"), call("nothing"), call("typed", count="x")
    )
    async with running(several, text("ok"), tools=[good, raises, slow, forbidden, typed], plugins=[gate]) as lab:
        await lab.agent.send("go")
        by_name = {one.call_id: one for one in lab.of(ToolResultEvent)}
        found = {
            one.name: (by_name[one.call_id].error.code if by_name[one.call_id].error else None)
            for one in lab.of(ToolCallEvent)
        }
        assert found == {
            "good": None, "raises": "TOOL_ERROR", "slow": "TIMEOUT", "forbidden": "DENIED",
            "nothing": "UNKNOWN_TOOL", "typed": "INVALID_ARGUMENTS",
        }  # fmt: skip
        shown = {one.name: by_name[one.call_id].content[0].text for one in lab.of(ToolCallEvent)}
        assert "may have taken effect" in shown["slow"]
        for name in ("forbidden", "nothing", "typed"):
            assert "may have taken effect" not in shown[name]
            assert "not run" in shown[name] or "nothing was run" in shown[name]


async def test_cancel_tells_interrupted_calls_from_calls_that_did_not_start():
    """L-10, pair-1, pair-5: the rest of the batch is answered before `turn/end`, and the next request is balanced."""
    bodies = Bodies()
    bodies.hold("one")
    tools = [bodies.tool("one"), bodies.tool("two"), bodies.tool("three")]
    batch = calls(call("one"), call("two"), call("three"))
    async with running(batch, text("on"), tools=tools) as lab:
        receipt = lab.agent.send("go")
        await until(lambda: bodies.running)
        lab.agent.cancel("stop")
        assert (await receipt).reason.kind == "aborted"
        assert codes(lab) == ["INTERRUPTED", "NOT_STARTED", "NOT_STARTED"]
        first, second, _ = texts_of(lab)
        assert "may have taken effect" in first
        assert "did not run" in second
        assert bodies.log == ["+one", "-one"]
        await lab.agent.send("go on")
        shown = [line.split()[0] for line in lab.texts()[1]]
        assert shown == ["go", "call", "result", "result", "result", "go"]


async def test_a_body_that_swallows_the_cancellation_keeps_its_result():
    """§8: what it returns within the grace is logged."""
    moment = Moment()

    @tool
    async def stubborn() -> str:
        """Ignore it."""
        try:
            await moment.here()
        except asyncio.CancelledError:
            return "half of it is done"
        return "all of it"

    async with running(call("stubborn"), tools=[stubborn]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.cancel()
        assert (await receipt).reason.kind == "aborted"
        assert (codes(lab), texts_of(lab)) == ([None], ["half of it is done"])


async def test_a_result_of_a_cancelled_turn_is_judged_too():
    """§8, L-10: a cancel is no way round a plugin that withholds results."""
    moment = Moment()

    @tool
    async def stubborn() -> str:
        """Ignore it."""
        try:
            await moment.here()
        except asyncio.CancelledError:
            return "the password"
        return "all of it"

    async def withhold():
        await asyncio.sleep(0)
        return ResultReject("withheld")

    async with running(call("stubborn"), tools=[stubborn], plugins=[plugin(tools_post_execute=withhold)]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.cancel()
        assert (await receipt).reason.kind == "aborted"
        assert texts_of(lab) == ["withheld"]


async def test_a_result_that_comes_late_is_dropped(caplog):
    """L-10, A-7: a body that ignores everything is given up, named, and its result thrown away."""
    moment = Moment()

    @tool
    async def deaf() -> str:
        """Ignore it."""
        while not moment.go.is_set():
            try:
                await moment.here()
            except asyncio.CancelledError:
                continue
        return "late"

    ended = []
    hooks = plugin(agent_turn_end=lambda result: ended.append(result.reason.kind))
    async with running(call("deaf"), text("on"), tools=[deaf], grace=0.02, plugins=[hooks]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        with caplog.at_level(logging.WARNING, "dsh"):
            lab.agent.cancel("stop")
            assert (await receipt).reason.reason == "stop"
        assert "call_1" in caplog.text
        assert ended == ["aborted"]
        assert codes(lab) == ["INTERRUPTED"]
        assert str(await lab.agent.send("go on")) == "on"
        moment.go.set()
        await asyncio.sleep(0.01)
        assert codes(lab) == ["INTERRUPTED"]
        assert ended == ["aborted", "completed"]


async def test_a_given_up_turn_does_not_hurry_the_next():
    """A-7: the end of a task that was given up says nothing of the turn that runs then."""
    deaf, other = Moment(), Moment()

    @tool
    async def ignore() -> str:
        """Ignore it."""
        while not deaf.go.is_set():
            try:
                await deaf.here()
            except asyncio.CancelledError:
                continue
        return "late"

    @tool
    async def wait() -> str:
        """Wait."""
        await other.here()
        return "done"

    async with running(call("ignore"), call("wait"), text("ok"), tools=[ignore, wait], grace=0.02) as lab:
        receipt = lab.agent.send("go")
        await deaf.reached.wait()
        lab.agent.cancel()
        await receipt
        second = lab.agent.send("again")
        await other.reached.wait()
        deaf.go.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert lab.agent.status == "running"
        other.go.set()
        assert str(await second) == "ok"


async def test_a_thread_is_told_to_stop():
    """A-7: plain tools look at `context.cancelled`; their result within the grace counts."""
    started, seen = threading.Event(), []

    @tool
    def plain(context: ToolContext) -> str:
        """Wait in a thread."""
        import time

        started.set()
        while not context.cancelled.is_set():
            time.sleep(0.002)
        seen.append("told")
        return "stopped in time"

    async with running(call("plain"), tools=[plain]) as lab:
        receipt = lab.agent.send("go")
        while not started.is_set():
            await asyncio.sleep(0.002)
        lab.agent.cancel()
        assert (await receipt).reason.kind == "aborted"
        assert (seen, texts_of(lab)) == (["told"], ["stopped in time"])


@pytest.mark.parametrize("how", ["returns", "ignores"])
async def test_a_plugin_that_is_unloaded_under_its_call_answers_it(how):
    """L-10, pair-7: the call ends with an error and the next prompt is normal."""
    moment = Moment()

    class Owner:
        name = "owner"

        @hookimpl
        def register(self, harness):
            @tool
            async def theirs() -> str:
                """Work."""
                await moment.here()
                return "done"

            harness.tools.register(theirs)

    async with running(call("theirs"), text("ok"), text("next"), plugins=[Owner()]) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        unloading = asyncio.ensure_future(lab.harness.plugins.unload("owner"))
        if how == "returns":
            moment.go.set()
        else:
            lab.harness.plugins.grace = 0.01
        await unloading
        assert (await receipt).reason.kind == "completed"
        assert codes(lab) == ([None] if how == "returns" else ["INTERRUPTED"])
        assert str(await lab.agent.send("next")) == "next"


async def test_an_around_hook_that_calls_twice_gives_one_result():
    """L-10, pair-3: whatever a plugin does round the body, the call is answered once."""

    class Twice:
        name = "twice"

        @hookimpl
        async def tools_execute(self, call_next):
            await call_next()
            try:
                return await call_next()
            except Exception:
                return ToolResult("second try failed", is_error=True)

    bodies = Bodies()
    async with running(call("one"), text("ok"), tools=[bodies.tool("one")], plugins=[Twice()]) as lab:
        await lab.agent.send("go")
        assert len(lab.of(ToolResultEvent)) == 1


# -- L-11: order -----------------------------------------------------------------------------------------


async def test_tools_run_one_after_the_other():
    """L-11: unless they say that they are safe side by side."""
    bodies = Bodies()
    tools = [bodies.tool(name) for name in ("one", "two", "three")]
    async with running(calls(*(call(one.name) for one in tools)), text("ok"), tools=tools) as lab:
        await lab.agent.send("go")
        assert bodies.log == ["+one", "-one", "+two", "-two", "+three", "-three"]


async def test_safe_neighbours_share_a_pool_and_others_are_barriers():
    """L-11: two safe ones overlap, the third runs alone, the fourth after it; the model sees its own order."""
    bodies = Bodies()
    bodies.hold("one", "two", "three")
    tools = [
        bodies.tool("one", parallel=True),
        bodies.tool("two", parallel=True),
        bodies.tool("three"),
        bodies.tool("four", parallel=True),
    ]
    async with running(calls(*(call(one.name) for one in tools)), text("ok"), tools=tools) as lab:
        receipt = lab.agent.send("go")
        await until(lambda: len(bodies.running) == 2)
        bodies.let("two")
        await until(lambda: "-two" in bodies.log)
        assert "+three" not in bodies.log
        await until(lambda: len(lab.of(ToolResultEvent)) == 1)
        bodies.let("one")
        await until(lambda: "+three" in bodies.log)
        assert "+four" not in bodies.log
        bodies.let("three")
        await receipt
        assert texts_of(lab) == ["two done", "one done", "three done", "four done"]
        assert lab.texts()[1][2:] == [f"result {name} done" for name in ("one", "two", "three", "four")]


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_the_pool_has_a_size(size):
    """L-11: never more bodies at once than it allows."""
    bodies = Bodies()
    tools = [bodies.tool(f"t{number}", parallel=True) for number in range(6)]
    several = calls(*(call(one.name) for one in tools))
    async with running(several, text("ok"), tools=tools, config={"tools": {"max_parallel": size}}) as lab:
        await lab.agent.send("go")
        assert bodies.most == size
        assert len(lab.of(ToolResultEvent)) == 6


async def test_one_failing_call_does_not_disturb_its_siblings():
    """L-11, pair-4: every sibling runs to its own result."""
    bodies = Bodies()

    async def fails(arguments, context):
        raise RuntimeError("no hit")

    tools = [bodies.tool(f"t{number}", parallel=True) for number in range(4)]
    tools.insert(1, ToolDefinition("bad", "bad", {"type": "object"}, fails, parallel=True))
    async with running(calls(*(call(one.name) for one in tools)), text("ok"), tools=tools) as lab:
        await lab.agent.send("go")
        assert sorted(codes(lab), key=str) == [None, None, None, None, "TOOL_ERROR"]


async def test_cancel_ends_all_bodies_of_the_pool():
    """L-10, L-11: those that run are interrupted, those that wait for a place are not started."""
    bodies = Bodies()
    names = [f"t{number}" for number in range(4)]
    bodies.hold(*names)
    tools = [bodies.tool(name, parallel=True) for name in names]
    several = calls(*(call(name) for name in names))
    async with running(several, tools=tools, config={"tools": {"max_parallel": 2}}) as lab:
        receipt = lab.agent.send("go")
        await until(lambda: len(bodies.running) == 2)
        lab.agent.cancel()
        await receipt
        assert codes(lab) == ["INTERRUPTED", "INTERRUPTED", "NOT_STARTED", "NOT_STARTED"]
        assert bodies.running == []


async def test_gates_are_asked_in_the_models_order_and_do_not_wait_for_approvals():
    """L-11: the second gate is asked while the first call waits for its answer."""
    asked, moment = [], Moment()

    def gate(call):
        asked.append(call.name)
        return Ask("sure?") if call.name == "one" else Allow()

    async def approve():
        await moment.here()
        return ApprovalGranted()

    bodies = Bodies()
    tools = [bodies.tool("one", parallel=True), bodies.tool("two", parallel=True)]
    hooks = [plugin(tools_pre_execute=gate), plugin(approval_request=approve)]
    async with running(calls(call("one"), call("two")), text("ok"), tools=tools, plugins=hooks) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        await until(lambda: texts_of(lab) == ["two done"])
        assert asked == ["one", "two"]
        moment.go.set()
        await receipt
        assert texts_of(lab) == ["two done", "one done"]


async def test_contexts_follow_after_the_last_result():
    """L-11: in the order of the calls, never between results."""
    bodies = Bodies()
    bodies.hold("one")
    tools = [bodies.tool("one", parallel=True), bodies.tool("two", parallel=True)]
    hooks = plugin(tools_post_execute=lambda call: ResultAccept(context=f"note on {call.name}"))
    async with running(calls(call("one"), call("two")), text("ok"), tools=tools, plugins=[hooks]) as lab:
        receipt = lab.agent.send("go")
        await until(lambda: len(lab.of(ToolResultEvent)) == 1)
        bodies.let("one")
        await receipt
        notes = [one.content[0].text for one in lab.of(ContextMessageEvent)]
        assert notes == ["note on one", "note on two"]
        types = lab.kinds()
        assert types.index("context/message") > max(i for i, kind in enumerate(types) if kind == "tool/result")


# -- L-12: before any gate -------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "{}", " "])
async def test_no_arguments_are_an_empty_object(arguments):
    """L-12, llm-2: the log keeps the model's text."""
    seen = []

    @tool
    async def act(path: str = "here") -> str:
        """Act."""
        seen.append(path)
        return path

    async with running(answer(("c1", "act", arguments)), text("ok"), tools=[act]) as lab:
        await lab.agent.send("go")
        assert (seen, lab.of(ToolCallEvent)[0].arguments) == (["here"], arguments)


async def test_all_violations_are_told_at_once_and_no_gate_is_asked():
    """L-12: with their paths; broken arguments never run."""
    asked = []

    @tool
    async def act(path: str, depth: int, tags: list[str]) -> str:
        """Act."""
        raise AssertionError("it ran")

    gate = plugin(tools_pre_execute=lambda call: asked.append(call.name))
    bad = answer(("c1", "act", '{"depth": "x", "tags": ["a", 1]}'), ("c2", "act", '{"path": '), ("c3", "act", "[]"))
    async with running(bad, text("ok"), tools=[act], plugins=[gate]) as lab:
        await lab.agent.send("go")
        assert codes(lab) == ["INVALID_ARGUMENTS"] * 3
        assert asked == []
        first = texts_of(lab)[0]
        assert "path" in first
        assert "depth" in first
        assert "tags[1]" in first


async def test_a_tool_that_was_not_offered_in_this_request_is_unknown():
    """L-12: by options or by a plugin that took it out; the names on offer are told."""
    bodies = Bodies()
    tools = [bodies.tool("visible"), bodies.tool("hidden"), bodies.tool("removed")]
    removes = plugin(
        agent_request=lambda request: attrs.evolve(
            request, tools=tuple(one for one in request.tools if one.name != "removed")
        )
    )
    several = answer(("c1", "hidden", "{}"), ("c2", "removed", "{}"), ("c3", "visible", "{}"))
    async with running(several, text("ok"), tools=tools, plugins=[removes]) as lab:
        lab.agent.options = attrs.evolve(lab.agent.options, tools=("visible", "removed"))
        await lab.agent.send("go")
        assert codes(lab) == ["UNKNOWN_TOOL", "UNKNOWN_TOOL", None]
        assert "visible" in texts_of(lab)[0]


async def test_call_ids_are_unique_in_the_session():
    """L-12, pair-8: missing, empty and used ids are replaced before `assistant/message`; chunks keep the raw ones."""
    bodies = Bodies()
    first = answer(("c1", "one", "{}"), ("c1", "one", '{"a": 1}'), ("", "one", '{"b": 1}'))
    second = answer(("c1", "one", '{"c": 1}'))
    async with running(first, second, text("ok"), tools=[bodies.tool("one")]) as lab:
        await lab.agent.send("go")
        ids = [one.call_id for one in lab.of(ToolCallEvent)]
        assert ids == ["c1", "c1-t1s1i1", "call-t1s1i2", "c1-t1s2i0"]
        assert [one.call_id for one in lab.of(ToolResultEvent)] == ids
        raw = [chunk.id for chunk in unpack_chunks(lab.session.events) if isinstance(chunk, ToolCallDelta)]
        assert raw == ["c1", "c1", "", "c1"]


async def test_a_made_up_id_that_the_model_also_uses_stays_unique():
    """L-12: whatever ids the model chooses."""
    bodies = Bodies()
    tricky = answer(("c", "one", "{}"), ("c-t1s1i2", "one", '{"a": 1}'), ("c", "one", '{"b": 1}'))
    async with running(tricky, text("ok"), tools=[bodies.tool("one")]) as lab:
        await lab.agent.send("go")
        ids = [one.call_id for one in lab.of(ToolCallEvent)]
        assert len(set(ids)) == 3
        assert len(lab.of(ToolResultEvent)) == 3


async def test_a_call_without_a_name_is_answered_and_never_dispatched():
    """L-12, pair-8: the turn goes on."""
    bodies = Bodies()
    async with running(answer(("", "", "{}")), text("ok"), tools=[bodies.tool("one")]) as lab:
        assert str(await lab.agent.send("go")) == "ok"
        assert (codes(lab), bodies.log) == (["UNKNOWN_TOOL"], [])


# -- L-13, L-14, L-15: gates and approvals ---------------------------------------------------------------


async def test_a_gate_may_rewrite_arguments_and_all_judge_the_final_form():
    """L-13: logged as `tool/rewritten`; the body gets the final form."""
    seen, ran = [], []

    @tool
    async def act(path: str) -> str:
        """Act."""
        ran.append(path)
        return path

    class Rewriting:
        name = "rewriting"

        @hookimpl
        def tools_pre_execute(self, call):
            return Allow(arguments={"path": "/safe"}) if call.arguments["path"] != "/safe" else Allow()

    judge = plugin(tools_pre_execute=lambda call: seen.append(call.arguments["path"]))
    async with running(call("act", path="/x"), text("ok"), tools=[act], plugins=[Rewriting(), judge]) as lab:
        await lab.agent.send("go")
        assert (ran, seen) == (["/safe"], ["/x", "/safe"])
        rewritten = lab.of(ToolRewrittenEvent)[0]
        assert (dict(rewritten.arguments), rewritten.plugin) == ({"path": "/safe"}, "rewriting")
        assert lab.of(ToolCallEvent)[0].arguments == '{"path": "/x"}'


async def test_two_rewrites_of_one_call_are_a_conflict():
    """L-13: denied, and both plugins are named."""
    bodies = Bodies()
    one = plugin(tools_pre_execute=lambda: Allow(arguments={"a": 1}))
    two = plugin(tools_pre_execute=lambda: Allow(arguments={"a": 2}))
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=[one, two]) as lab:
        await lab.agent.send("go")
        assert (codes(lab), bodies.log) == (["DENIED"], [])
        assert "conflict" in texts_of(lab)[0]


async def test_a_denied_final_form_does_not_run():
    """L-13: all gates judge it, the one that rewrote included."""
    bodies = Bodies()
    rewrites = plugin(tools_pre_execute=lambda call: None if call.arguments else Allow(arguments={"path": "/etc"}))
    denies = plugin(tools_pre_execute=lambda call: Deny("protected") if call.arguments.get("path") == "/etc" else None)
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=[rewrites, denies]) as lab:
        await lab.agent.send("go")
        assert (codes(lab), bodies.log) == (["DENIED"], [])


def _says(decision):
    return lambda: decision


@pytest.mark.parametrize("order", [1, -1])
async def test_deny_wins_over_ask_over_allow(order):
    """L-14, perm-9: whatever the order."""
    bodies = Bodies()
    hooks = [
        plugin(tools_pre_execute=lambda decision=decision: decision) for decision in (Allow(), Ask("?"), Deny("no"))
    ]
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=hooks[::order]) as lab:
        await lab.agent.send("go")
        assert (codes(lab), bodies.log, lab.of(ApprovalAskedEvent)) == (["DENIED"], [], [])


async def test_a_gate_that_fails_denies():
    """L-14, perm-4: the others are still asked."""
    bodies, asked = Bodies(), []

    def fails():
        raise RuntimeError("gate broken")

    hooks = [plugin(tools_pre_execute=fails), plugin(tools_pre_execute=lambda call: asked.append(1))]
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=hooks) as lab:
        await lab.agent.send("go")
        assert (codes(lab), bodies.log, asked) == (["DENIED"], [], [1])


@pytest.mark.parametrize(
    ("answerer", "outcome", "runs"),
    [
        (lambda: ApprovalGranted(), "approved", True),
        (lambda: ApprovalRefused("rather not"), "rejected", False),
        (lambda: None, "unavailable", False),
        (None, "unavailable", False),
    ],
)
async def test_what_an_answer_is_worth(answerer, outcome, runs):
    """L-14: nobody, and nobody who answers, is no; question and answer are logged."""
    bodies = Bodies()
    hooks = [plugin(tools_pre_execute=lambda: Ask("sure?", rule="act *"))]
    if answerer is not None:
        hooks.append(plugin(approval_request=answerer))
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=hooks) as lab:
        await lab.agent.send("go")
        asked, decided = lab.of(ApprovalAskedEvent)[0], lab.of(ApprovalDecidedEvent)[0]
        assert (asked.approval_id, asked.call_id) == (decided.approval_id, decided.call_id)
        assert (decided.outcome, bool(bodies.log)) == (outcome, runs)
        assert codes(lab) == [None if runs else "DENIED"]


async def test_an_answerer_that_raises_or_takes_too_long_has_refused():
    """L-14: and the text says which it was."""

    async def raises():
        raise RuntimeError("no terminal")

    async def hangs():
        await asyncio.sleep(60)

    for answerer, config, outcome in (
        (raises, {}, "unavailable"),
        (hangs, {"approval": {"timeout": 0.01}}, "timeout"),
    ):
        bodies = Bodies()
        hooks = [plugin(tools_pre_execute=lambda: Ask("sure?")), plugin(approval_request=answerer)]
        async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=hooks, config=config) as lab:
            await lab.agent.send("go")
            assert [one.outcome for one in lab.of(ApprovalDecidedEvent)] == [outcome]
            assert bodies.log == []


async def test_cancel_withdraws_an_open_question():
    """L-14, run-4: a late yes has no effect, and the calls behind it are answered as not run."""
    moment, decided = Moment(), []

    async def approve():
        try:
            await moment.here()
        except asyncio.CancelledError:
            return ApprovalGranted()  # somebody clicks all the same
        return ApprovalGranted()

    bodies = Bodies()
    gate = plugin(tools_pre_execute=lambda call: Ask("sure?") if call.name == "one" else None)
    hooks = [
        gate,
        plugin(approval_request=approve),
        plugin(approval_decided=lambda outcome: decided.append(outcome)),
    ]
    tools = [bodies.tool("one"), bodies.tool("two")]
    async with running(calls(call("one"), call("two")), text("on"), tools=tools, plugins=hooks) as lab:
        receipt = lab.agent.send("go")
        await moment.reached.wait()
        lab.agent.cancel("stop")
        assert (await receipt).reason.kind == "aborted"
        assert codes(lab) == ["NOT_STARTED", "NOT_STARTED"]
        assert ([one.outcome for one in lab.of(ApprovalDecidedEvent)], decided) == (["cancelled"], ["cancelled"])
        assert bodies.log == []
        await lab.agent.send("on")


async def test_an_approval_is_asked_on_the_final_form():
    """L-13: the person sees what would run."""
    shown = []

    def gate(call):
        return Ask("sure?") if call.arguments.get("a") == 2 else Allow(arguments={"a": 2})

    hooks = [plugin(tools_pre_execute=gate), plugin(approval_request=lambda approval: shown.append(approval))]
    bodies = Bodies()
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")], plugins=hooks) as lab:
        await lab.agent.send("go")
        assert [dict(approval.call.arguments) for approval in shown] == [{"a": 2}]
        assert dict(lab.of(ApprovalAskedEvent)[0].arguments) == {"a": 2}


async def test_a_tool_that_came_in_by_code_runs_without_an_opinion():
    """L-15: the embedder has decided."""
    bodies = Bodies()
    async with running(call("act"), text("ok"), tools=[bodies.tool("act")]) as lab:
        await lab.agent.send("go")
        assert (codes(lab), bodies.log) == ([None], ["+act", "-act"])


# -- behind the body -------------------------------------------------------------------------------------


async def test_a_result_may_be_rejected():
    """L-10: the model gets the feedback as an error, without `meta`; denied calls are shown to the hook too."""
    seen = []

    def judge(call, result):
        seen.append((call.name, result.is_error))
        return ResultReject("not good enough") if call.name == "one" else None

    async def with_meta(arguments, context):
        return ToolResult("secret", meta={"a": 1})

    one = ToolDefinition("one", "one", {"type": "object"}, with_meta)
    bodies = Bodies()
    hooks = [
        plugin(tools_post_execute=judge),
        plugin(tools_pre_execute=lambda call: Deny("no") if call.name == "two" else None),
    ]
    tools = [one, bodies.tool("two")]
    async with running(calls(call("one"), call("two")), text("ok"), tools=tools, plugins=hooks) as lab:
        await lab.agent.send("go")
        first, second = sorted(lab.of(ToolResultEvent), key=lambda result: result.call_id)
        assert (first.is_error, first.content[0].text, first.meta) == (True, "not good enough", None)
        assert second.error.code == "DENIED"
        assert sorted(seen) == [("one", False), ("two", True)]


async def test_accepting_a_failed_call_keeps_it_a_failure():
    """L-10: `is_error` and the error stay."""

    async def fails(arguments, context):
        raise RuntimeError("bad")

    hooks = plugin(tools_post_execute=lambda: ResultAccept(content="prettier"))
    bad = ToolDefinition("bad", "bad", {"type": "object"}, fails)
    async with running(call("bad"), text("ok"), tools=[bad], plugins=[hooks]) as lab:
        await lab.agent.send("go")
        assert (lab.of(ToolResultEvent)[0].is_error, texts_of(lab), codes(lab)) == (True, ["prettier"], ["TOOL_ERROR"])


async def test_a_failing_judge_makes_the_result_an_error_and_the_turn_goes_on():
    """L-10: for this call only."""

    def fails(call):
        if call.name == "one":
            raise RuntimeError("judge broken")

    bodies = Bodies()
    tools = [bodies.tool("one"), bodies.tool("two")]
    hooks = plugin(tools_post_execute=fails)
    async with running(calls(call("one"), call("two")), text("ok"), tools=tools, plugins=[hooks]) as lab:
        assert (await lab.agent.send("go")).reason.kind == "completed"
        assert [one.is_error for one in lab.of(ToolResultEvent)] == [True, False]


async def test_a_barrier_that_fails_in_a_pool_leaves_nothing_running():
    """L-16: siblings are ended, every call is answered, and nothing is left over."""
    store, bodies = Store(), Bodies()
    bodies.hold("reads")
    tools = [bodies.tool("reads", parallel=True, read_only=True), bodies.tool("writes", parallel=True)]

    def broke(event):
        if event.type == "tool/call" and event.data.name == "writes":
            store.store.failure = OSError(28, "No space left on device")

    hooks = [store, plugin(session_event=broke)]
    async with running(calls(call("reads"), call("writes")), tools=tools, plugins=hooks) as lab:
        result = await lab.agent.send("go")
        store.store.failure = None
        assert (result.reason.kind, result.reason.code) == ("error", "STORAGE")
        assert (
            dict(zip((one.call_id for one in lab.of(ToolResultEvent)), codes(lab), strict=True))["call_2"]
            == "NOT_STARTED"
        )
        assert bodies.running == []


async def test_a_call_that_a_refused_log_leaves_open_is_answered():
    """L-10: also when an event of the batch is refused: the turn fails, and every call has its result."""
    refusing = [True]

    def check(session, event):
        if event.type == "tool/call" and event.data.name == "two" and refusing:
            refusing.clear()
            raise ValueError("refused")

    bodies = Bodies()
    tools = [bodies.tool("one"), bodies.tool("two")]
    async with running(
        calls(call("one"), call("two")), text("on"), tools=tools, plugins=[plugin(session_append=check)]
    ) as lab:
        assert (await lab.agent.send("go")).reason.kind == "error"
        assert codes(lab) == ["NOT_STARTED", "NOT_STARTED"]
        assert lab.of(AssistantMessageEvent)[0].step == 1
        assert str(await lab.agent.send("on")) == "on"
