"""The facade, what is checked when implementations are registered, scopes, tracing."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import attrs
import pytest

from dsh_core import hookspecs
from dsh_core._markers import hook_mode, hookimpl, hookspec
from dsh_core._ownership import Owner, acting_for, current_owner
from dsh_core.content import GenerateRequest
from dsh_core.decisions import Allow, Deny
from dsh_core.errors import HookError, PluginError
from dsh_core.hooks import GateOutcome, HookCall, Hooks, Implementation

pytestmark = pytest.mark.anyio

REQUEST = GenerateRequest(model="m", session_id="a")


@attrs.frozen
class Agent:
    id: str


def agent(id: str = "a") -> Any:
    return Agent(id)


def plugin(hook: str, function: Any, **options: Any) -> Any:
    """A plugin with one implementation."""
    return type("Plugin", (), {hook: hookimpl(**options)(function)})()


def refusal(candidate: object) -> str:
    """Why a plugin is refused."""
    hooks = Hooks()
    with pytest.raises(PluginError) as caught:
        hooks.add(candidate, name="p", owner=Owner("p"))
    assert caught.value.plugin == "p"
    assert all(not hooks.wants(spec.name) for spec in hooks.specs()), "something of it stayed registered"
    return str(caught.value)


# -- the facade ------------------------------------------------------------------------------------------

CORE = [name for name in dir(hookspecs) if hook_mode(getattr(hookspecs, name)) is not None]
OWN_PARAMETERS = {  # what the facade asks for differs from what implementations are given
    "register": {"harness", "registered"},
    "agent_prompt_submit": {"agent", "message"},
    "approval_request": {"agent", "approval", "may_grant"},
    "llm_stream": {"request", "open_stream"},
    "tools_execute": {"agent", "call", "body"},
    "tools_post_execute": {"agent", "call", "result"},
}


@pytest.mark.parametrize("name", CORE)
def test_each_hook_has_one_keyword_only_method(name: str) -> None:
    """H-3: the facade has a method per spec, awaited unless its mode is synchronous."""
    method = getattr(Hooks, name)
    declared = getattr(hookspecs, name)
    parameters = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    expected = OWN_PARAMETERS.get(name, set(inspect.signature(declared).parameters))
    assert {each.name for each in parameters} == expected
    mode = hook_mode(declared)
    assert mode is not None
    assert inspect.iscoroutinefunction(method) == (mode.mode not in ("observe", "check", "collect"))


@pytest.mark.parametrize("name", [name for name in CORE if name not in ("register",)])
async def test_every_hook_passes_its_arguments_by_name(name: str) -> None:
    """H-1: an implementation gets the declared arguments under their names, in whatever order it takes them."""
    spec = next(each for each in Hooks().specs() if each.name == name)
    seen: dict[str, Any] = {}
    backwards = list(reversed(spec.arguments))
    namespace: dict[str, Any] = {"seen": seen}
    exec(f"def impl(self, {', '.join(backwards)}): seen.update({', '.join(f'{a}={a}' for a in backwards)})", namespace)
    hooks = Hooks()
    hooks.add(plugin(name, namespace["impl"]), name="p", owner=Owner("p"))
    parameters = inspect.signature(getattr(Hooks, name)).parameters.keys() - {"self", "may_grant"}
    known = {"agent": agent(), "session": agent(), "request": REQUEST}
    given = {each: known.get(each, f"<{each}>") for each in parameters}
    try:
        result = getattr(hooks, name)(**given)
        if inspect.isawaitable(result):
            await result
    except HookError:
        assert spec.mode == "around"  # nothing was returned
    assert seen.keys() == set(spec.arguments)
    for argument in seen.keys() & given.keys():
        assert seen[argument] is given[argument]


async def test_hooks_nobody_implements_answer_with_their_default() -> None:
    """H-5: no plan is made, nothing is called."""
    hooks = Hooks()
    assert all(not hooks.wants(name) for name in CORE)
    assert await hooks.agent_request(agent=agent(), turn=1, step=1, request=REQUEST) is REQUEST
    assert await hooks.tools_pre_execute(agent=agent(), call=None) == GateOutcome(None)  # type: ignore[arg-type]
    assert hooks.agent_created(agent=agent()) is None  # type: ignore[func-returns-value]


# -- what is refused when it is registered ---------------------------------------------------------------


def test_an_unknown_hook_is_refused_with_the_nearest_name() -> None:
    """H-1: a gate with a slip in its name must not be silently without effect."""
    message = refusal(plugin("tools_pre_exceute", lambda self, call: None))
    assert "no hook 'tools_pre_exceute'" in message
    assert "did you mean 'tools_pre_execute'?" in message


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    """H-1: also one with a default, if it looks like a slip."""
    assert "did you mean 'request'?" in refusal(plugin("agent_request", lambda self, reqest: None))
    assert "did you mean 'request'?" in refusal(plugin("agent_request", lambda self, reqest=None: None))
    assert "it has agent, turn, step, request" in refusal(plugin("agent_request", lambda self, x: None))


def test_every_fault_is_listed_at_once() -> None:
    """H-1: one round of mending."""

    class Faulty:
        @hookimpl
        def agent_requests(self) -> None: ...

        @hookimpl
        def agent_created(self, agnet: Any) -> None: ...

    message = refusal(Faulty())
    assert "agent_requests" in message
    assert "'agnet'" in message


def test_a_class_is_refused() -> None:
    """H-1: a class registered instead of an object."""
    assert "is the class Plugin, not an object; pass Plugin(...)" in refusal(
        type(plugin("agent_created", lambda self: None))
    )


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda self, *args: None, r"takes *args, which hooks never fill"),
        (lambda self, **rest: None, r"takes **rest, which hooks never fill"),
        (lambda self, *, agent: None, "by keyword only"),
        (lambda agent: None, "has no `self`"),
    ],
)
def test_parameters_that_hooks_cannot_fill_are_refused(function: Any, told: str) -> None:
    """H-1: they would never get a value."""
    assert told in refusal(plugin("agent_created", function))


def test_coroutines_are_refused_where_hooks_are_synchronous() -> None:
    """H-1: observe, check and collect."""

    async def work(self: Any) -> None: ...

    for hook in ("agent_created", "session_append", "register"):
        assert "use plain def" in refusal(plugin(hook, work))


def test_generators_are_refused_unless_they_are_wrappers() -> None:
    """H-1: a forgotten wrapper=True."""

    def generator(self: Any) -> Any:
        yield

    async def async_generator(self: Any) -> Any:
        yield

    assert "wrapper=True" in refusal(plugin("agent_request", generator))
    assert "async generator" in refusal(plugin("agent_request", async_generator))


def test_wrappers_that_are_no_plain_generators_are_refused() -> None:
    """H-1: plain functions, coroutines and async generators cannot wrap."""

    async def async_generator(self: Any) -> Any:
        yield

    for function in (lambda self: None, async_generator):
        assert "not a plain generator" in refusal(plugin("agent_request", function, wrapper=True))


def test_old_style_hookwrappers_are_refused() -> None:
    """H-1: only wrapper=True goes round an awaited chain."""

    def old(self: Any) -> Any:
        yield

    assert "old-style hookwrapper" in refusal(plugin("agent_request", old, hookwrapper=True))


def test_both_ends_at_once_are_refused() -> None:
    """H-1: tryfirst and trylast contradict each other."""
    assert "both tryfirst and trylast" in refusal(
        plugin("agent_request", lambda self: None, tryfirst=True, trylast=True)
    )


def test_an_object_without_hooks_is_refused() -> None:
    """H-1: a plugin that does nothing is a slip."""
    assert "implements no hook" in refusal(object())


def test_a_function_that_lacks_its_mark_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """H-1: it has a hook's name and would never run."""

    class Half:
        def tools_pre_execute(self) -> None: ...

        @hookimpl
        def agent_created(self) -> None: ...

    Hooks().add(Half(), name="half", owner=Owner("half"))
    assert "plugin half: tools_pre_execute is not marked with @dsh.hookimpl" in caplog.text


# -- what is accepted ------------------------------------------------------------------------------------


async def test_plugins_are_registered_by_identity() -> None:
    """H-1: equal and unhashable plugins are two plugins."""
    seen: list[str] = []

    @attrs.define
    class Equal:
        label: str = attrs.field(eq=False)

        @hookimpl
        def agent_created(self) -> None:
            seen.append(self.label)

    one, two = Equal("one"), Equal("two")
    assert one == two
    hooks = Hooks()
    owners = [Owner("one"), Owner("two")]
    for each, owner in zip([one, two], owners, strict=True):
        with acting_for(owner):
            hooks.add(each, name=owner.name, owner=owner)
    hooks.agent_created(agent=agent())
    assert seen == ["one", "two"]
    owners[0].undo_all()
    hooks.agent_created(agent=agent())
    assert seen == ["one", "two", "two"]


async def test_static_and_class_methods_and_optional_hooks_are_accepted() -> None:
    """H-1: what pluggy takes."""
    seen: list[Any] = []

    class Plugin:
        @staticmethod
        @hookimpl
        def agent_created(agent: Any) -> None:
            seen.append(agent.id)

        @classmethod
        @hookimpl(specname="agent_disposed")
        def gone(cls, agent: Any) -> None:
            seen.append(cls.__name__)

        @hookimpl(optionalhook=True)
        def somebody_elses_hook(self, anything: Any) -> None: ...

    hooks = Hooks()
    hooks.add(Plugin(), name="p", owner=Owner("p"))
    hooks.agent_created(agent=agent())
    hooks.agent_disposed(agent=agent())
    assert seen == ["a", "Plugin"]


async def test_parameters_with_defaults_are_filled_or_left_alone() -> None:
    """H-1: a hook may grow, an implementation may have parameters of its own."""
    seen: list[Any] = []

    def impl(self: Any, request: Any, cache: Any = "own", turn: int = -1) -> None:
        seen.append((request.model, cache, turn))

    hooks = Hooks()
    hooks.add(plugin("agent_request", impl), name="p", owner=Owner("p"))
    await hooks.agent_request(agent=agent(), turn=4, step=1, request=REQUEST)
    assert seen == [("m", "own", 4)]


async def test_hook_calls_run_as_their_plugin() -> None:
    """H-7: the owner is set round each call, across suspensions, and inherited by child tasks."""
    owners: list[Any] = []

    async def child() -> None:
        owners.append(current_owner())

    async def impl(self: Any) -> None:
        owners.append(current_owner())
        await asyncio.sleep(0)
        owners.append(current_owner())
        await asyncio.create_task(child())

    hooks = Hooks()
    owner = Owner("p")
    hooks.add(plugin("agent_pre_step", impl), name="p", owner=owner)
    await hooks.agent_pre_step(agent=agent(), turn=1, step=1, system_prompt=None)
    assert owners == [owner, owner, owner]
    assert current_owner() is None


# -- order and scopes ------------------------------------------------------------------------------------


def test_implementations_are_listed_in_call_order() -> None:
    """H-2: what `dsh hooks` prints."""

    def wrapper(self: Any) -> Any:
        return (yield)

    async def coroutine(self: Any) -> None: ...

    hooks = Hooks()
    for name, function, options in [
        ("normal", lambda self: None, {}),
        ("late", coroutine, {"trylast": True}),
        ("early", lambda self: None, {"tryfirst": True}),
        ("round", wrapper, {"wrapper": True}),
    ]:
        hooks.add(plugin("agent_request", function, **options), name=name, owner=Owner(name))  # type: ignore[arg-type]
    assert hooks.implementations("agent_request") == [
        Implementation("round", "", True, False, None),
        Implementation("early", "tryfirst", False, False, None),
        Implementation("normal", "", False, False, None),
        Implementation("late", "trylast", False, True, None),
    ]
    with pytest.raises(LookupError, match="did you mean 'agent_request'"):
        hooks.implementations("agent_requst")


def _noting(seen: list[str], label: str) -> Any:
    return plugin("agent_created", lambda self: seen.append(label))


async def test_scoped_plugins_run_for_their_agent_and_its_descendants_only() -> None:
    """H-6: together with the harness's, in one order; built-ins come last."""
    seen: list[str] = []
    hooks = Hooks()
    hooks.open_scope("parent")
    hooks.open_scope("child", "parent")
    hooks.open_scope("grandchild", "child")
    hooks.add(_noting(seen, "built-in"), name="b", owner=Owner("b"), place=(5, 0))
    hooks.add(_noting(seen, "scoped"), name="s", owner=Owner("s"), place=(4, 0), scope="parent")
    hooks.add(_noting(seen, "all"), name="h", owner=Owner("h"), place=(0, 0))
    for name in ("parent", "grandchild", "stranger"):
        hooks.agent_created(agent=agent(name))
    assert seen == ["all", "scoped", "built-in"] * 2 + ["all", "built-in"]


async def test_an_agent_that_opens_later_is_in_its_parents_scope() -> None:
    """H-6: the order of opening and loading does not matter."""
    seen: list[str] = []
    hooks = Hooks()
    hooks.open_scope("parent")
    hooks.add(_noting(seen, "scoped"), name="s", owner=Owner("s"), scope="parent")
    hooks.open_scope("child", "parent")
    hooks.agent_created(agent=agent("child"))
    hooks.close_scope("child")
    hooks.agent_created(agent=agent("child"))
    assert seen == ["scoped"]


async def test_hooks_without_an_agent_find_the_scope_by_session() -> None:
    """H-6: session hooks by the session, streams by the request."""
    seen: list[str] = []

    class Scoped:
        @hookimpl
        def session_event(self, event: Any) -> None:
            seen.append("event")

        @hookimpl
        async def llm_stream(self, request: GenerateRequest, call_next: Any) -> Any:
            seen.append("stream")
            return await call_next()

    async def chunks() -> Any:
        yield "chunk"

    async def opened() -> Any:
        return chunks()

    hooks = Hooks()
    hooks.open_scope("a")
    hooks.add(Scoped(), name="s", owner=Owner("s"), scope="a")
    for name in ("a", "b"):
        hooks.session_event(session=agent(name), event=None)  # type: ignore[arg-type]
        await hooks.llm_stream(request=attrs.evolve(REQUEST, session_id=name), open_stream=opened)
    await hooks.llm_stream(request=attrs.evolve(REQUEST, session_id=None), open_stream=opened)
    assert seen == ["event", "stream"]
    assert (hooks.wants("session_event", "a"), hooks.wants("session_event", "b")) == (True, False)


async def test_agents_without_scoped_plugins_share_one_plan() -> None:
    """H-6: a thousand plain agents cost no plans of their own."""
    hooks = Hooks()
    hooks.add(_noting([], "all"), name="h", owner=Owner("h"))
    for index in range(10):
        hooks.open_scope(f"a{index}")
    plans = {id(hooks._plan("agent_created", f"a{index}")) for index in range(10)}
    assert len(plans) == 1


# -- tracing ---------------------------------------------------------------------------------------------


async def test_tracing_reports_each_implementation_and_can_be_ended() -> None:
    """H-5: hook, plugin, duration, outcome, error."""
    calls: list[HookCall] = []

    async def answer(self: Any, request: GenerateRequest) -> GenerateRequest:
        await asyncio.sleep(0)
        return attrs.evolve(request, model="n")

    async def fail(self: Any) -> None:
        raise ValueError("x")

    def wrapper(self: Any) -> Any:
        return (yield)

    hooks = Hooks()
    for name, function, options in [
        ("round", wrapper, {"wrapper": True}),
        ("silent", lambda self: None, {}),
        ("answers", answer, {}),
        ("fails", fail, {}),
    ]:
        hooks.add(plugin("agent_request", function, **options), name=name, owner=Owner(name))  # type: ignore[arg-type]
    registration = hooks.trace(calls.append)
    with pytest.raises(HookError):
        await hooks.agent_request(agent=agent(), turn=1, step=1, request=REQUEST)
    assert [(call.plugin, call.outcome) for call in calls] == [
        ("silent", "nothing"), ("answers", "answered"), ("fails", "raised"), ("round", "raised"),
    ]  # fmt: skip
    assert {call.hook for call in calls} == {"agent_request"}
    assert all(call.duration >= 0 for call in calls)
    assert isinstance(calls[2].error, ValueError)
    registration()
    with pytest.raises(HookError):
        await hooks.agent_request(agent=agent(), turn=1, step=1, request=REQUEST)
    assert len(calls) == 4


async def test_nothing_is_wrapped_while_nobody_traces() -> None:
    """H-5: off, it costs nothing."""
    subject = plugin("agent_created", lambda self, agent: None)
    hooks = Hooks()
    hooks.add(subject, name="p", owner=Owner("p"))
    plan = hooks._plan("agent_created", None)
    assert plan is not None
    assert plan.steps[0].fn == subject.agent_created


async def test_a_tracer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """H-5: it is logged."""
    seen: list[str] = []

    def fail(call: HookCall) -> None:
        raise RuntimeError

    hooks = Hooks()
    hooks.add(_noting(seen, "x"), name="p", owner=Owner("p"))
    hooks.trace(fail)
    hooks.agent_created(agent=agent())
    assert seen == ["x"]
    assert "a tracer of hooks failed" in caplog.text


# -- plugins' own hooks ----------------------------------------------------------------------------------


class Specs:
    """Hooks that a plugin brings."""

    @hookspec(mode="transform", value="text")
    def mail_text(self, agent: Any, text: str, urgent: bool = False) -> str | None:
        """The text of a mail."""

    @hookspec(mode="gate")
    def mail_send(self, text: str) -> Any:
        """May it be sent?"""

    @hookspec(mode="observe")
    def mail_sent(self, text: str) -> None:
        """It was sent."""

    @hookspec(mode="around")
    async def mail_deliver(self, text: str, call_next: Any) -> str:
        """Round the delivery."""


async def test_a_plugin_may_bring_hooks_of_its_own() -> None:
    """H-1: with the same modes; results are checked by their annotations."""
    seen: list[Any] = []

    class Other:
        @hookimpl
        async def mail_text(self, text: str, urgent: bool) -> Any:
            seen.append(urgent)
            return text.upper() if text != "bad" else 7

        @hookimpl
        def mail_send(self, text: str) -> Any:
            return Deny("empty") if not text else Allow()

        @hookimpl
        def mail_sent(self, text: str) -> None:
            seen.append(text)

        @hookimpl
        async def mail_deliver(self, call_next: Any) -> Any:
            return "<" + await call_next() + ">"

    async def body() -> str:
        return "delivered"

    hooks = Hooks()
    hooks.declare(Specs, "mail")
    assert await hooks.call("mail_text", agent=agent(), text="hi") == "hi"
    assert await hooks.call("mail_deliver", text="hi", call_next=body) == "delivered"
    hooks.add(Other(), name="other", owner=Owner("other"))
    assert await hooks.call("mail_text", agent=agent(), text="hi", urgent=True) == "HI"
    with pytest.raises(HookError, match="returned int 7; return str"):
        await hooks.call("mail_text", agent=agent(), text="bad")
    assert (await hooks.call("mail_send", text="")).decision == Deny("empty")
    assert hooks.call("mail_sent", text="hi") is None
    assert await hooks.call("mail_deliver", text="hi", call_next=body) == "<delivered>"
    assert seen == [True, False, "hi"]


async def test_calls_by_name_check_their_arguments() -> None:
    """H-3: missing, unknown, unheard of; core hooks go through the typed method."""
    hooks = Hooks()
    hooks.declare(Specs, "mail")
    with pytest.raises(TypeError, match="lacks text"):
        hooks.call("mail_sent")
    with pytest.raises(TypeError, match=r"no argument 'txt' \(did you mean 'text'\?\)"):
        hooks.call("mail_sent", txt="x")
    with pytest.raises(LookupError, match="did you mean 'mail_sent'"):
        hooks.call("mail_snet", text="x")
    assert await hooks.call("agent_request", agent=agent(), turn=1, step=1, request=REQUEST) is REQUEST


def test_a_hook_is_declared_once() -> None:
    """H-1: the second declaration is refused, naming both."""
    hooks = Hooks()
    hooks.declare(Specs, "mail")
    with pytest.raises(PluginError, match="'mail_deliver' is declared by 'mail' already, so 'post' cannot"):
        hooks.declare(Specs, "post")


async def test_optional_implementations_come_to_life_with_the_hook_and_survive_its_end() -> None:
    """H-1: optionalhook, and unloading of the plugin that declared it."""
    seen: list[str] = []
    hooks = Hooks()
    optional = plugin("mail_sent", lambda self, text: seen.append(text), optionalhook=True)
    hooks.add(optional, name="optional", owner=Owner("optional"))
    for _ in range(2):
        owner = Owner("mail")
        with acting_for(owner):
            hooks.declare(Specs, "mail")
        hooks.call("mail_sent", text="x")
        owner.undo_all()
        with pytest.raises(LookupError):
            hooks.call("mail_sent", text="x")
    assert seen == ["x", "x"]


def test_a_hook_that_does_not_fit_an_optional_implementation_is_refused() -> None:
    """H-1: both plugins are named."""
    hooks = Hooks()
    optional = plugin("mail_sent", lambda self, letter: None, optionalhook=True)
    hooks.add(optional, name="optional", owner=Owner("optional"))
    with pytest.raises(PluginError, match=r"'mail_sent' of plugin 'mail'.*plugin 'optional'"):
        hooks.declare(Specs, "mail")
    assert "mail_sent" not in {spec.name for spec in hooks.specs()}


def test_a_hookspec_without_a_mode_is_refused() -> None:
    """H-1: pluggy's own marker knows no modes."""
    import pluggy

    class Bare:
        @pluggy.HookspecMarker("dsh")
        def mail_sent(self, text: str) -> None: ...

    with pytest.raises(PluginError, match="has no mode"):
        Hooks().declare(Bare, "mail")
    with pytest.raises(PluginError, match="without a function marked"):
        Hooks().declare(object(), "mail")
