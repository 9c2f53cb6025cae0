"""
Every hook of the core under every kind of misbehaviour, in a live harness: contained as its mode says (H-1, H-4).

One agent takes a turn with a tool call that needs an approval while a plugin misbehaves for it; a second agent
takes the same turn beside it and notices nothing; then the plugin behaves, and the first one's next prompt works.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from dsh_core import (
    AgentHandle,
    AgentOptions,
    ApprovalGranted,
    Ask,
    GenerateRequest,
    Harness,
    LlmAdapter,
    Message,
    PluginError,
    PromptBlocked,
    Retry,
    StorageError,
    StreamChunk,
    ToolResultBlock,
    TurnResult,
    hookimpl,
    hookspecs,
    tool,
)
from dsh_core._markers import hook_mode
from dsh_core.session.events import ApprovalDecidedEvent, ToolResultEvent
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, fail, text
from dsh_core.testing.invariants import Invariants

pytestmark = pytest.mark.anyio

MODES = {name: mode.mode for name, spec in vars(hookspecs).items() if (mode := hook_mode(spec)) is not None}
LIMIT, PATIENCE = 0.2, 5.0


class Escape(BaseException):
    """As some libraries have them, so that `except Exception` does not catch it."""


class Trouble:
    """Ways to misbehave; `on` says whether it does so now, and `count` how often it has."""

    def __init__(self, kind: str) -> None:
        self.kind, self.on, self.count = kind, False, 0
        self.released = threading.Event()

    def happens_for(self, arguments: Mapping[str, Any]) -> bool:
        """Whether this call is one of agent a's while it is on."""
        subject = arguments.get("agent") or arguments.get("session")
        agent_id = getattr(subject, "id", None) or getattr(arguments.get("request"), "session_id", None)
        return self.on and agent_id == "a"

    def plain(self) -> Any:
        """Misbehave without awaiting."""
        self.count += 1
        match self.kind:
            case "raises":
                raise ValueError("trouble made")
            case "exits":
                raise SystemExit(3)
            case "escapes":
                raise Escape
            case "cancels":
                raise asyncio.CancelledError("trouble made")
            case "hangs":
                self.released.wait(PATIENCE)
        return object()

    async def awaited(self) -> Any:
        """Misbehave as a coroutine."""
        if self.kind == "hangs":
            self.count += 1
            await asyncio.sleep(PATIENCE)
        return self.plain()


STYLES = {
    "plain": "def {hook}(self, {args}):\n"
             "    return self.trouble.plain() if self.trouble.happens_for(locals()) else {fine}",
    "coroutine": "async def {hook}(self, {args}):\n    if self.trouble.happens_for(locals()):\n"
                 "        return await self.trouble.awaited()\n    return {await_fine}",
    "suspended": "async def {hook}(self, {args}):\n    if self.trouble.happens_for(locals()):\n"
                 "        await asyncio.sleep(0)\n        return await self.trouble.awaited()\n    return {await_fine}",
    "before": "def {hook}(self, {args}):\n    if self.trouble.happens_for(locals()): self.trouble.plain()\n"
              "    return (yield)",
    "after": "def {hook}(self, {args}):\n    result = yield\n"
             "    return self.trouble.plain() if self.trouble.happens_for(locals()) else result",
}  # fmt: skip
STYLES["threaded"] = STYLES["plain"]
"""Implementations as an author writes them; `threaded` is `plain` where `hooks.timeout` is set (H-4)."""


def mischief(hook: str, style: str, trouble: Trouble) -> object:
    """A plugin with one implementation, which misbehaves or does what changes nothing."""
    import inspect

    names = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    around = MODES[hook] == "around"
    source = STYLES[style].format(
        hook=hook, args=", ".join(names), fine="call_next()" if around else "None",
        await_fine="await call_next()" if around else "None",
    )  # fmt: skip
    space: dict[str, Any] = {"asyncio": asyncio}
    exec(source, space)
    mark = hookimpl(wrapper=True) if style in ("before", "after") else hookimpl
    plugin = type("Mischief", (), {hook: mark(space[hook]), "name": "mischief"})()
    plugin.trouble = trouble
    return plugin


class Helper:
    """What the turn needs besides: a question, its answer, a second attempt, and an ear for failures."""

    name = "helper"

    def __init__(self) -> None:
        self.errors: list[tuple[str, BaseException, str]] = []
        self.fails_once = False

    @hookimpl
    def tools_pre_execute(self) -> Ask:
        """Every call asks."""
        return Ask("may it?")

    @hookimpl
    def approval_request(self) -> ApprovalGranted:
        """Every question is answered."""
        return ApprovalGranted()

    @hookimpl
    def agent_request_error(self) -> Retry:
        """Every failure is repaired."""
        return Retry(0)

    @hookimpl
    def agent_error(self, agent: Any, error: BaseException, origin: str) -> None:
        """Failures are noted."""
        self.errors.append((agent.id, error, origin))

    @hookimpl
    def agent_status(self, agent: Any, status: str) -> None:
        """Fails when it is asked to, so that there is something to report."""
        if self.fails_once and agent.id == "a" and status == "running":
            self.fails_once = False
            raise KeyError("the helper's own")


class Model(ScriptedAdapter):
    """Calls the tool once for each prompt and then says `done`; its first request may fail."""

    def __init__(self, fails_first: bool = False) -> None:
        super().__init__([self._answer] * 40)
        self._fails = {"a": fails_first}

    def _answer(self, request: GenerateRequest) -> Any:
        if self._fails.pop(request.session_id or "", False):
            return fail("INVALID_REQUEST")
        last: Message = request.messages[-1]
        return text("done") if isinstance(last.content[0], ToolResultBlock) else call("act")


@tool
async def act() -> str:
    """Do it."""
    return "acted"


@attrs.define
class Lab:
    """Two agents in one harness, and the trouble that is made for the first."""

    harness: Harness
    helper: Helper
    trouble: Trouble
    log: pytest.LogCaptureFixture
    model: Model
    handles: dict[str, AgentHandle] = attrs.field(factory=dict)

    async def create(self, name: str) -> Any:
        """An agent."""
        self.handles[name] = await self.harness.agents.create(name, options=AgentOptions(model="scripted/m"))
        return self.handles[name].agent

    async def first_turns(self) -> Any:
        """Both take their turn at once while there is trouble; what became of the first one's."""
        self.trouble.on = True
        agents = [self.handles[name].agent if name in self.handles else await self.create(name) for name in "ab"]
        self.sent: Any = None
        refused: BaseException | None = None
        try:
            self.sent = agents[0].send("first")
        except Exception as error:
            refused = error
        other = await asyncio.wait_for(agents[1].send("first"), PATIENCE)
        assert_done(other)
        await asyncio.wait_for(agents[0].when_idle(), PATIENCE)
        self.trouble.on = False
        assert self.trouble.count, "the hook was not called"
        return refused or self.sent

    async def next_turn(self) -> None:
        """The plugin behaves: the next prompt works, for both."""
        for name in "ab":
            assert_done(await asyncio.wait_for(self.handles[name].agent.send("next"), PATIENCE))
            assert not self.handles[name].agent.session.turn_open

    sent: Any = None

    def events(self, kind: type) -> list[Any]:
        """Events of agent a."""
        return [each.data for each in self.handles["a"].agent.session.events if type(each.data) is kind]

    def told(self) -> str:
        """Everything that was reported or logged."""
        return "\n".join([*(f"{origin}: {error}" for _, error, origin in self.helper.errors), self.log.text])


def assert_done(result: TurnResult) -> None:
    assert (result.reason.kind, result.text) == ("completed", "done"), result.reason


@asynccontextmanager
async def lab(
    hook: str, style: str, kind: str, log: pytest.LogCaptureFixture, *, fails_first: bool = False
) -> AsyncIterator[Lab]:
    """A harness with the mischief in it; no rule of the log is broken and no task is left behind."""
    trouble, helper, broken, model = Trouble(kind), Helper(), list[Any](), Model(fails_first)
    given = [mischief(hook, style, trouble), ScriptedPlugin(model), helper, Invariants(report=broken.append)]
    config: dict[str, Any] = {"approval": {"timeout": LIMIT if kind == "hangs" else PATIENCE}}
    if kind == "hangs" or style == "threaded":
        config["hooks"] = {"timeout": LIMIT}
    before = asyncio.all_tasks()
    log.set_level(logging.WARNING, "dsh")
    try:
        async with Harness(plugins=given, tools=[act], config=config, autoload=False) as harness:
            yield Lab(harness, helper, trouble, log, model)
    finally:
        trouble.on = False
        trouble.released.set()
    assert not broken, broken[0]
    assert asyncio.all_tasks() == before


def cases(*modes: str, styles: Sequence[str], without: Collection[str] = ()) -> list[Any]:
    """Hook, style and kind of each combination that makes sense."""
    found = []
    for hook in (name for name, mode in MODES.items() if mode in modes and name not in without):
        for style in styles:
            kinds = ["raises", "exits", "cancels"]
            if style != "before":
                kinds.append("returns")
            if style in ("plain", "coroutine") and MODES[hook] not in ("observe", "check"):
                kinds.append("hangs")
            if style in ("plain", "coroutine"):
                kinds.append("escapes")
            for kind in kinds:
                found.append(pytest.param(hook, style, kind, id=f"{hook}-{style}-{kind}"))
    return found


AWAITED = ("plain", "threaded", "coroutine", "suspended", "before", "after")
CONTAINED = ("agent_session_start", "agent_turn_end")


# -- observe ---------------------------------------------------------------------------------------------

AT_THE_END = ("agent_disposed", "session_disposed")


@pytest.mark.parametrize(
    ("hook", "style", "kind"), cases("observe", styles=["plain", "before", "after"], without=AT_THE_END)
)
async def test_what_an_observer_does_changes_nothing(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 observe: the turn completes, whatever it raises or returns; failures are reported by name."""
    async with lab(hook, style, kind, caplog) as place:
        place.helper.fails_once = hook == "agent_error"
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        if kind != "returns":
            assert f"plugin mischief failed in hook {hook}" in caplog.text
            announced = [origin for name, _, origin in place.helper.errors if "mischief" in origin and name == "a"]
            early = hook in ("session_created", "agent_error")
            assert set(announced) == (set() if early else {f"hook:{hook} plugin:mischief"})
        await place.next_turn()


@pytest.mark.parametrize("hook", AT_THE_END)
@pytest.mark.parametrize("style", ["plain", "before", "after"])
@pytest.mark.parametrize("kind", ["raises", "exits", "cancels"])
async def test_an_agent_is_disposed_of_whatever_an_observer_does(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 observe: at the end, too; the id is free again."""
    async with lab(hook, style, kind, caplog) as place:
        await place.create("b")
        await place.create("a")
        place.trouble.on = True
        await asyncio.wait_for(place.handles["a"].dispose(), PATIENCE)
        place.trouble.on = False
        assert f"plugin mischief failed in hook {hook}" in caplog.text
        await place.create("a")
        await place.next_turn()


# -- checkpoint and transform ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "style", "kind"),
    cases("checkpoint", "transform", styles=AWAITED, without=[*CONTAINED, "tools_post_execute"]),
)
async def test_the_turn_ends_with_an_error_that_names_plugin_and_hook(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 checkpoint, transform: that turn only; a prompt whose plugin failed is blocked."""
    async with lab(hook, style, kind, caplog) as place:
        receipt = await place.first_turns()
        if hook == "agent_prompt_submit":
            with pytest.raises(PromptBlocked, match=f"'mischief' failed in hook '{hook}'"):
                await asyncio.wait_for(receipt, PATIENCE)
        else:
            result = await asyncio.wait_for(receipt, PATIENCE)
            assert (result.reason.kind, result.reason["code"]) == ("error", "HOOK")
            assert f"'mischief' failed in hook '{hook}'" in result.reason["message"]
        assert ("a", f"hook:{hook} plugin:mischief") in [(name, origin) for name, _, origin in place.helper.errors]
        await place.next_turn()


@pytest.mark.parametrize(
    ("hook", "style", "kind"), cases("checkpoint", styles=AWAITED, without=set(MODES).difference(CONTAINED))
)
async def test_a_session_starts_and_a_turn_ends_whatever_a_plugin_does_there(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1: failures of these two are contained and reported."""
    async with lab(hook, style, kind, caplog) as place:
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        assert ("a", f"hook:{hook} plugin:mischief") in [(name, origin) for name, _, origin in place.helper.errors]
        await place.next_turn()


@pytest.mark.parametrize(
    ("hook", "style", "kind"), cases("transform", styles=AWAITED, without=set(MODES) - {"tools_post_execute"})
)
async def test_a_result_that_could_not_be_judged_is_an_error_of_its_call(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1: tools_post_execute fails its call, not the turn; the result is withheld."""
    async with lab(hook, style, kind, caplog) as place:
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        (result,) = place.events(ToolResultEvent)
        assert result.is_error
        assert "mischief" in result.content[0].text
        assert "acted" not in result.content[0].text
        await place.next_turn()


# -- gate, first, around, drain --------------------------------------------------------------------------


@pytest.mark.parametrize(("hook", "style", "kind"), cases("gate", styles=AWAITED))
async def test_a_gate_that_fails_has_denied(hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """H-1 gate: the call does not run, the model is told who could not judge it, the turn goes on."""
    async with lab(hook, style, kind, caplog) as place:
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        (result,) = place.events(ToolResultEvent)
        assert result.error.code == "DENIED"
        assert "plugin 'mischief' could not judge the call" in result.content[0].text
        await place.next_turn()


@pytest.mark.parametrize(
    ("hook", "style", "kind"),
    cases("first", styles=["plain", "threaded", "coroutine", "suspended"], without=["approval_request"]),
)
async def test_the_next_one_is_asked_after_one_that_fails(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 first: the failure is reported and somebody else repairs the request."""
    async with lab(hook, style, kind, caplog, fails_first=True) as place:
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        assert ("a", f"hook:{hook} plugin:mischief") in [(name, origin) for name, _, origin in place.helper.errors]
        await place.next_turn()


@pytest.mark.parametrize(
    ("hook", "style", "kind"), cases("first", styles=["before", "after"], without=["approval_request"])
)
async def test_a_wrapper_of_answers_that_fails_leaves_none(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 first: the request is not repeated, and the turn ends with the model's error, not the plugin's."""
    async with lab(hook, style, kind, caplog, fails_first=True) as place:
        result = await asyncio.wait_for(await place.first_turns(), PATIENCE)
        assert result.reason["code"] == "INVALID_REQUEST"
        assert ("a", f"hook:{hook} plugin:mischief") in [(name, origin) for name, _, origin in place.helper.errors]
        await place.next_turn()


@pytest.mark.parametrize(("hook", "style", "kind"), cases("first", styles=AWAITED, without=["agent_request_error"]))
async def test_an_answerer_that_fails_has_refused(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """L-14: nobody granted, so the call does not run, and the log says why."""
    async with lab(hook, style, kind, caplog) as place:
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        (result,) = place.events(ToolResultEvent)
        assert result.error.code == "DENIED"
        (decided,) = place.events(ApprovalDecidedEvent)
        assert decided.outcome == ("timeout" if kind == "hangs" else "unavailable")
        await place.next_turn()


@pytest.mark.parametrize(("hook", "style", "kind"), cases("around", styles=AWAITED))
async def test_what_goes_round_a_thing_fails_as_the_thing_would(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 around: a tool's call has an error, a stream's turn ends with one; both name the plugin."""
    async with lab(hook, style, kind, caplog) as place:
        result = await asyncio.wait_for(await place.first_turns(), PATIENCE)
        if hook == "tools_execute":
            assert_done(result)
            (answer,) = place.events(ToolResultEvent)
            assert answer.is_error
            assert f"'mischief' failed in hook '{hook}'" in answer.content[0].text
        else:
            assert (result.reason.kind, result.reason["code"]) == ("error", "HOOK")
            assert f"'mischief' failed in hook '{hook}'" in result.reason["message"]
        await place.next_turn()


@pytest.mark.parametrize(("hook", "style", "kind"), cases("drain", styles=AWAITED))
async def test_nothing_goes_out_that_could_not_be_handed_on(
    hook: str, style: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 drain, L-16: no request is made, the turn ends with a storage error; at other barriers it is reported."""
    async with lab(hook, style, kind, caplog) as place:
        result = await asyncio.wait_for(await place.first_turns(), PATIENCE)
        assert (result.reason.kind, result.reason["code"]) == ("error", "STORAGE")
        assert "'mischief' failed in hook 'session_flush'" in result.reason["message"]
        assert "a" not in [each.session_id for each in place.model.requests]
        assert any(name == "a" and "session_flush" in origin for name, _, origin in place.helper.errors)
        await place.next_turn()


# -- check and collect -----------------------------------------------------------------------------------

EVENTS = (
    "inbox/queued", "turn/start", "user/message", "step/start", "request/header", "assistant/chunk",
    "assistant/message", "tool/call", "approval/asked", "approval/decided", "tool/result", "step/end", "turn/end",
)  # fmt: skip


@pytest.mark.parametrize("event_type", EVENTS)
@pytest.mark.parametrize(("hook", "style", "kind"), cases("check", styles=["plain", "before", "after"]))
@pytest.mark.parametrize("often", ["once", "always"])
async def test_a_refused_append_costs_its_turn_or_its_message(
    event_type: str, hook: str, style: str, kind: str, often: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1 check: any event may be refused, once or for as long as the turn lasts; the agent goes on afterwards."""
    async with lab(hook, style, kind, caplog) as place:
        happens = place.trouble.happens_for

        def chosen(arguments: Mapping[str, Any]) -> bool:
            hit = happens(arguments) and arguments["event"].type == event_type
            return hit and (often == "always" or not place.trouble.count)

        place.trouble.happens_for = chosen  # type: ignore[method-assign]
        outcome = await place.first_turns()
        if event_type == "inbox/queued":
            assert "mischief" in "".join(getattr(outcome, "__notes__", ())) + str(outcome)
        else:
            assert "mischief" in place.told()
        await place.next_turn()
        if event_type != "inbox/queued":
            await settled(outcome)
        assert not place.handles["a"].agent.pending


async def settled(receipt: Any) -> None:
    """The message came to some end."""
    try:
        await asyncio.wait_for(receipt, PATIENCE)
    except TimeoutError:
        raise
    except Exception as error:
        assert "plugin" in f"{error} {getattr(error, '__notes__', '')}"  # noqa: PT017


@pytest.mark.parametrize("kind", ["raises", "exits", "cancels", "returns"])
async def test_a_plugin_that_cannot_register_is_not_loaded(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """H-1 collect: at run time the others stay, and once it behaves it can be loaded."""
    trouble = Trouble(kind)

    class Mischief:
        name = "mischief"

        @hookimpl
        def register(self, harness: Harness) -> Any:
            harness.commands.register("half", "Half.", lambda *_: None)
            return trouble.plain() if trouble.on else None

    plugin = Mischief()
    async with lab("agent_created", "plain", "raises", caplog) as place:
        place.trouble.count = 1
        await place.create("a")
        trouble.on = True
        with pytest.raises(PluginError, match="'mischiefs'") as caught:
            await place.harness.plugins.load(plugin, name="mischiefs")
        assert caught.value.plugin == "mischiefs"
        assert not place.harness.commands.list()
        await place.first_turns()
        await place.next_turn()
        trouble.on = False
        await place.harness.plugins.load(plugin, name="mischiefs")
        assert [each.name for each in place.harness.commands.list()] == ["half"]
        await place.next_turn()


def test_every_hook_of_the_core_is_put_to_the_test() -> None:
    """H-1: a new hook or mode is not forgotten here."""
    assert set(MODES.values()) == {
        "observe", "checkpoint", "transform", "gate", "around", "drain", "first", "check", "collect",
    }  # fmt: skip
    assert len(MODES) == 27


# -- plugin code that is no hook -------------------------------------------------------------------------


class Elsewhere:
    """A plugin whose adapter, prompt section, variable, or tool misbehaves while it is asked to."""

    name = "elsewhere"

    def __init__(self, where: str, trouble: Trouble) -> None:
        self.where, self.trouble = where, trouble

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the thing."""
        if self.where == "section":
            harness.system_prompt.section("elsewhere:it", 300, self._value)
        elif self.where == "variable":
            harness.system_prompt.variable("elsewhere", self._value)

    def _value(self, agent: Any) -> Any:
        return self.trouble.plain() if self.trouble.happens_for({"agent": agent}) else "fine"

    @hookimpl
    async def llm_stream(self, request: GenerateRequest, call_next: Callable[[], Any]) -> Any:
        """Wrap the stream by a generator that misbehaves after two chunks."""
        if self.where != "stream":
            return await call_next()
        return self._wrapped(request, await call_next())

    async def _wrapped(self, request: GenerateRequest, stream: Any) -> AsyncIterator[StreamChunk]:
        seen = 0
        async for chunk in stream:
            seen += 1
            if seen == 3 and self.trouble.happens_for({"request": request}):
                yield self.trouble.plain()
            yield chunk


@pytest.mark.parametrize("where", ["section", "variable", "stream", "adapter"])
@pytest.mark.parametrize("kind", ["raises", "exits", "cancels", "returns"])
async def test_what_a_plugin_registers_is_contained_like_its_hooks(
    where: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-1, L-3: sections, variables, adapters and wrapped streams end their turn and nothing else."""
    trouble = Trouble(kind)
    model: LlmAdapter = Model()
    if where == "adapter":
        inner = model.stream

        async def stream(request: GenerateRequest) -> AsyncIterator[StreamChunk]:
            async for chunk in inner(request):
                if trouble.happens_for({"request": request}):
                    yield trouble.plain()
                yield chunk

        model.stream = stream  # type: ignore[method-assign]
    helper = Helper()
    helper.agent_request_error = None  # type: ignore[assignment, method-assign]
    given = [ScriptedPlugin(model), Elsewhere(where, trouble), helper]
    async with Harness(plugins=given, tools=[act], autoload=False) as harness:
        place = Lab(harness, helper, trouble, caplog, model)  # type: ignore[arg-type]
        result = await asyncio.wait_for(await place.first_turns(), PATIENCE)
        assert result.reason.kind == "error", result.reason
        await place.next_turn()


@pytest.mark.parametrize("kind", ["raises", "exits", "cancels"])
@pytest.mark.parametrize("style", ["plain", "suspended"])
async def test_a_plugins_task_that_fails_is_logged_and_nothing_else(
    kind: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Smaller decisions: a failed `spawn` task is logged; an exit does not stop the loop."""
    trouble = Trouble(kind)

    async def background() -> None:
        if style == "suspended":
            await asyncio.sleep(0)
        trouble.plain()

    class Spawning:
        name = "spawning"

        @hookimpl
        def agent_status(self, agent: Any) -> None:
            if trouble.on and not trouble.count and agent.id == "a":
                agent.harness.spawn(background(), name="background")

    model = Model()
    async with Harness(plugins=[ScriptedPlugin(model), Spawning()], tools=[act], autoload=False) as harness:
        place = Lab(harness, Helper(), trouble, caplog, model)
        assert_done(await asyncio.wait_for(await place.first_turns(), PATIENCE))
        await place.next_turn()
    assert ("task 'background' of plugin spawning failed" in caplog.text) == (kind != "cancels")


# -- refused events outside of a prompt's turn -----------------------------------------------------------


@asynccontextmanager
async def refusing(event_type: str, log: pytest.LogCaptureFixture) -> AsyncIterator[Lab]:
    """Two idle agents and a plugin that refuses events of one type."""
    async with lab("session_append", "plain", "raises", log) as place:
        for name in "ab":
            await place.create(name)
        trouble = place.trouble
        trouble.happens_for = lambda given: trouble.on and given["event"].type == event_type  # type: ignore[method-assign]
        trouble.on = True
        yield place
        trouble.on = False
        await place.next_turn()


async def test_an_injection_that_is_refused_leaves_no_turn_open(caplog: pytest.LogCaptureFixture) -> None:
    """A-1, H-1 check: the error goes to whoever injects."""
    async with refusing("context/message", caplog) as place:
        agent = place.handles["a"].agent
        with pytest.raises(ValueError, match="trouble made"):
            agent.inject("note")
        assert not agent.session.turn_open
        place.trouble.on = False
        agent.inject("note")


async def test_the_slot_is_free_again_when_its_turn_cannot_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    """A-9, H-1 check: the error goes to whoever wanted the slot."""
    async with refusing("turn/start", caplog) as place:
        agent = place.handles["a"].agent
        with pytest.raises(ValueError, match="trouble made"):
            await agent.exclusive("compact").__aenter__()
        place.trouble.on = False
        async with agent.exclusive("compact"):
            pass


async def test_the_slot_is_free_again_when_its_turn_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    """A-9, H-1 check: reported; whoever comes next closes it."""
    async with refusing("turn/end", caplog) as place:
        agent = place.handles["a"].agent
        async with agent.exclusive("compact"):
            pass
        assert "mischief" in place.told()
        place.trouble.on = False
        async with agent.exclusive("compact"):
            pass


async def test_a_turn_that_a_plugin_kept_open_is_closed_when_its_agent_goes(caplog: pytest.LogCaptureFixture) -> None:
    """H-1 check, A-5: as soon as the plugin lets it."""
    async with refusing("turn/end", caplog) as place:
        session = place.handles["a"].agent.session
        receipt = place.handles["a"].agent.send("first")
        with pytest.raises(StorageError, match="could not be closed"):
            await receipt
        assert session.turn_open
        place.trouble.on = False
        await place.handles["a"].dispose()
        assert not session.turn_open
        await place.create("a")


# -- the limit of what goes round ------------------------------------------------------------------------


@asynccontextmanager
async def limited(plugin: object, *tools: Any) -> AsyncIterator[Callable[[str], Any]]:
    """One agent in a harness with `hooks.timeout`; give it the name of a tool to call."""
    model = ScriptedAdapter([lambda request: call(request.messages[-1].content[0].text), text("done")])
    config = {"hooks": {"timeout": LIMIT}}
    async with Harness(plugins=[ScriptedPlugin(model), plugin], tools=tools, config=config, autoload=False) as harness:
        handle = await harness.agents.create("a", options=AgentOptions(model="scripted/m"))
        yield handle.agent.send


@tool
async def slow() -> str:
    """Take longer than a plugin may."""
    await asyncio.sleep(2 * LIMIT)
    return "slept"


class RoundPlain:
    """As short as it gets."""

    @hookimpl
    def tools_execute(self, call_next: Callable[[], Any]) -> Any:
        """Go on."""
        return call_next()


class RoundCoroutine:
    """Waits for something else on both sides."""

    @hookimpl
    async def tools_execute(self, call_next: Callable[[], Any]) -> Any:
        """Go on."""
        await asyncio.sleep(0)
        result = await call_next()
        await asyncio.sleep(0)
        return result


@pytest.mark.parametrize("plugin", [RoundPlain, RoundCoroutine])
async def test_the_clock_of_an_around_hook_stands_still_while_the_thing_runs(plugin: type) -> None:
    """H-4: a slow tool is not the fault of the plugins round it."""
    async with limited(plugin(), slow) as ask:
        result = await ask("slow")
        assert_done(result)
        assert "slept" in str(result.messages)


async def test_the_clock_goes_on_after_the_thing_has_run() -> None:
    """H-4: hanging behind `call_next` is hanging."""

    class Lingers:
        name = "lingers"

        @hookimpl
        async def tools_execute(self, call_next: Callable[[], Any]) -> Any:
            result = await call_next()
            await asyncio.sleep(PATIENCE)
            return result

    async with limited(Lingers(), act) as ask:
        result = await ask("act")
        assert_done(result)
        assert "'lingers' failed in hook 'tools_execute': TimeoutError: no answer within 0.2 s" in str(result.messages)
