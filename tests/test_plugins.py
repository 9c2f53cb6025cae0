"""Plugins: found, selected, ordered, loaded, unloaded; what must not be missing, and what is left behind."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from dsh_core import _loading
from dsh_core._discovery import installed
from dsh_core._markers import hookimpl
from dsh_core._ownership import acting_for, current_owner, own, spawn_owned
from dsh_core._plugins import PluginManager
from dsh_core.config import Config
from dsh_core.content import GenerateRequest
from dsh_core.decisions import Deny
from dsh_core.errors import HarnessError, HookError, PluginError
from dsh_core.hooks import Hooks

pytestmark = pytest.mark.anyio

REAL = [each.name for each in installed()]
"""What happens to be installed where the tests run; it is switched off in them."""


@attrs.frozen
class Agent:
    id: str = "a"


class Agents:
    """The part of the agent registry that plugins are concerned with."""

    def __init__(self) -> None:
        self.live: list[Any] = []

    def list(self) -> Sequence[Any]:
        return self.live


class Place:
    """A harness of nothing but plugins."""

    def __init__(self, config: Config, builtins: Sequence[tuple[str, object]] = ()) -> None:
        self.config = config
        self.hooks = Hooks(timeout=config.hooks.timeout)
        self.agents = Agents()
        self.noted: list[str] = []
        self.plugins = PluginManager(self, self.hooks, config, builtins=builtins)  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """Something that a plugin registers."""
        self.noted.append(text)
        own(lambda: self.noted.remove(text))

    def spawn_internal(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        with acting_for(None):
            return asyncio.get_running_loop().create_task(coro, name=name)

    def states(self) -> dict[str, str]:
        return {each.name: each.state for each in self.plugins.list() if each.name not in REAL}

    def info(self, name: str) -> Any:
        return next(each for each in self.plugins.list() if each.name == name)


def config_of(**keys: Any) -> Config:
    plugins = {**keys.pop("plugins", {})}
    plugins["disable"] = [*plugins.get("disable", ()), *REAL]
    return Config.from_mapping({"plugins": plugins, **keys})


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a plugin for real: a module and the metadata of its distribution on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("DSH_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    modules: list[str] = []

    def put(name: str, source: str, *, gate: bool = False, target: str = "Plugin", dist: str | None = None) -> None:
        dist = dist or f"dist-{name}"
        module = f"plug_{dist}_{name}".replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text("import dsh_core._markers as dsh\nimport attrs, sys\n"
                                               + textwrap.dedent(source))  # fmt: skip
        metadata = tmp_path / f"{dist.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2\n")
        line = f"{name} = {module}:{target}" if target else f"{name} = {module}"
        groups = ["dsh", "dsh_gates"] if gate else ["dsh"]
        (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group in groups))

    yield put
    for module in modules:
        sys.modules.pop(module, None)


SIMPLE = """
    class Plugin:
        @dsh.hookimpl
        def register(self, harness):
            harness.note(type(self).__module__.rsplit("_", 1)[1])
"""


# -- discovery, order, switches --------------------------------------------------------------------------


async def test_installed_plugins_are_loaded_by_name_and_described(install: Any) -> None:
    """H-2, H-8: order does not depend on the disk; PluginInfo says where each comes from."""
    for name in ("beta", "alpha"):
        install(name, SIMPLE)
    place = Place(config_of())
    await place.plugins.startup()
    assert place.noted == ["alpha", "beta"]
    info = place.info("beta")
    assert (info.distribution, info.version, info.state, info.hooks) == ("dist-beta", "1.2", "loaded", ("register",))
    assert info.origin == "entry point plug_dist_beta_beta:Plugin of dist-beta 1.2"
    assert info.load_ms > 0


async def test_the_list_of_h2_is_the_order_of_calls(install: Any) -> None:
    """H-2: plugins=, named in the configuration, others by name, run time, agent-scoped, built-ins."""
    source = """
        class Plugin:
            @dsh.hookimpl
            def agent_created(self, agent):
                agent.seen.append(type(self).__module__.rsplit("_", 1)[1])
    """
    for name in ("zeta", "alpha", "named", "tabled"):
        install(name, source)
    seen: list[str] = []

    def noting(label: str) -> Any:
        return type(label, (), {"name": label, "agent_created": hookimpl(lambda self: seen.append(label))})()

    place = Place(config_of(plugins={"require": ["named"], "tabled": {}}), builtins=[("built-in", noting("built-in"))])
    await place.plugins.startup([noting("first"), noting("second")])
    await place.plugins.load(noting("late"))
    subject: Any = type("Subject", (), {"id": "a", "seen": seen})()
    await place.plugins.load_scoped(subject, [noting("scoped")])
    place.hooks.agent_created(agent=subject)
    assert seen == ["first", "second", "named", "tabled", "alpha", "zeta", "late", "scoped", "built-in"]
    listed = [each.name for each in place.plugins.list() if each.state == "loaded"]
    assert listed == ["first", "second", "named", "tabled", "alpha", "zeta", "late", "scoped", "built-in"]


@pytest.mark.parametrize("switch", ["argument", "environment"])
async def test_autoload_off_imports_nothing(install: Any, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-9: but what the configuration requires is loaded all the same."""
    install("other", "raise RuntimeError('imported')")
    install("wanted", SIMPLE)
    if switch == "environment":
        monkeypatch.setenv("DSH_DISABLE_PLUGIN_AUTOLOAD", "1")
    for require in ([], ["wanted"]):
        place = Place(config_of(plugins={"require": require}))
        await place.plugins.startup(autoload=switch != "argument")
        assert place.noted == require
    assert "plug_dist_other_other" not in sys.modules


async def test_disabled_plugins_are_not_imported_and_built_ins_can_be_disabled(install: Any) -> None:
    """H-9: plugins.disable works by name."""
    install("alpha", "raise RuntimeError('imported')")
    built_in = type("B", (), {"start": lambda self, harness: None})()
    place = Place(config_of(plugins={"disable": ["alpha", "retry"]}), builtins=[("retry", built_in)])
    await place.plugins.startup()
    assert place.states() == {"alpha": "disabled", "retry": "disabled"}
    assert place.info("alpha").error == "disabled by plugins.disable"


async def test_only_the_chosen_persistence_is_imported(install: Any) -> None:
    """H-9: configuration names the provider."""
    install("persistence-x", SIMPLE)
    install("persistence-y", "raise RuntimeError('imported')")
    place = Place(config_of(persistence="x"))
    await place.plugins.startup()
    assert place.states() == {"persistence-x": "loaded", "persistence-y": "disabled"}
    assert place.info("persistence-y").error == "not selected: persistence is 'x'"


async def test_a_persistence_that_was_asked_for_must_be_there(install: Any) -> None:
    """H-9: the default may be missing, a chosen one may not."""
    await Place(config_of()).plugins.startup()
    with pytest.raises(PluginError, match="'persistence-sqlight', which is not installed"):
        await Place(config_of(persistence="sqlight")).plugins.startup()


# -- what cannot be loaded -------------------------------------------------------------------------------

BROKEN = {
    "import": "import no_such_module",
    "syntax": "def broken(:",
    "exit": "sys.exit('bye')",
    "attribute": "other = 1",
    "build": "class Plugin:\n    def __init__(self): raise ValueError('no')",
    "hook": "class Plugin:\n    @dsh.hookimpl\n    def agent_creatd(self): ...",
    "register": "class Plugin:\n    @dsh.hookimpl\n    def register(self, harness):\n"
                "        harness.note('half')\n        raise SystemExit(3)",
    "start": "class Plugin:\n    @dsh.hookimpl\n    def register(self, harness): harness.note('half')\n"
             "    async def start(self, harness): raise KeyError('x')",
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_plugin_is_left_out_with_its_cause(
    install: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H-8: it never takes others down, and leaves nothing behind."""
    install("alpha", BROKEN[how])
    install("beta", SIMPLE)
    place = Place(config_of())
    await place.plugins.startup()
    assert place.states() == {"beta": "loaded", "alpha": "failed"}
    assert place.noted == ["beta"]
    assert place.info("alpha").error
    assert "'alpha'" in caplog.text


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("why", ["gate", "require", "table", "strict"])
async def test_a_broken_plugin_that_must_not_be_missing_is_fatal(install: Any, how: str, why: str) -> None:
    """H-8: gates, plugins the configuration names, and with plugins.strict any."""
    install("alpha", BROKEN[how], gate=why == "gate")
    settings: dict[str, Any] = {"require": {"require": ["alpha"]}, "table": {"alpha": {}}, "strict": {"strict": True}}
    place = Place(config_of(plugins=settings.get(why, {})))
    with pytest.raises(PluginError, match="'alpha'") as caught:
        await place.plugins.startup()
    assert caught.value.plugin == "alpha"
    await place.plugins.shutdown()
    assert place.noted == []


async def test_a_required_plugin_that_is_not_installed_is_fatal(install: Any) -> None:
    """H-8: the nearest installed name is suggested."""
    install("permission", SIMPLE)
    with pytest.raises(PluginError, match=r"'permision', which is not installed \(did you mean 'permission'\?\)"):
        await Place(config_of(plugins={"require": ["permision"]})).plugins.startup()


async def test_requiring_and_disabling_one_plugin_is_refused() -> None:
    """H-9: a contradiction is not resolved silently."""
    with pytest.raises(PluginError, match="both name x"):
        await Place(config_of(plugins={"require": ["x"], "disable": ["x"]})).plugins.startup()


async def test_a_plugin_passed_in_that_cannot_be_loaded_is_the_callers_error() -> None:
    """H-8: it is not left out silently."""
    place = Place(config_of())
    with pytest.raises(PluginError, match="is the class Misplaced, not an object"):
        await place.plugins.startup([type("Misplaced", (), {"agent_created": hookimpl(lambda self: None)})])


async def test_ctrl_c_while_a_plugin_is_imported_is_not_contained(install: Any) -> None:
    """H-8: everything but KeyboardInterrupt."""
    install("alpha", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        await Place(config_of()).plugins.startup()


# -- two of one name -------------------------------------------------------------------------------------


async def test_the_second_plugin_of_a_name_is_refused_and_both_origins_are_named(
    install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """H-8: the first one stays."""
    install("alpha", SIMPLE, dist="one")
    install("alpha", SIMPLE, dist="two")
    place = Place(config_of())
    await place.plugins.startup()
    found = [(each.distribution, each.state) for each in place.plugins.list() if each.name == "alpha"]
    assert found == [("one", "loaded"), ("two", "refused")]
    assert "of one 1.2" in caplog.text
    assert "of two 1.2" in caplog.text


@pytest.mark.parametrize("why", ["gate", "require"])
async def test_two_plugins_of_a_required_name_are_fatal(install: Any, why: str) -> None:
    """H-8: for a gate or a required name the start is refused."""
    install("alpha", SIMPLE, dist="one", gate=why == "gate")
    install("alpha", SIMPLE, dist="two")
    require = ["alpha"] if why == "require" else []
    told = r"two plugins named 'alpha': one from .* of one 1\.2, one from .* of two 1\.2"
    with pytest.raises(PluginError, match=told):
        await Place(config_of(plugins={"require": require})).plugins.startup()


async def test_a_plugin_passed_in_takes_the_place_of_an_installed_or_built_in_one(install: Any) -> None:
    """H-8: earlier in the list comes first; the other one is refused, not imported."""
    install("alpha", "raise RuntimeError('imported')")
    mine = [type("P", (), {"name": name, "start": lambda self, harness: None})() for name in ("alpha", "retry")]
    place = Place(config_of(), builtins=[("retry", object())])
    await place.plugins.startup(mine)
    assert [(each.name, each.state) for each in place.plugins.list() if each.name not in REAL] == [
        ("alpha", "loaded"), ("retry", "loaded"), ("alpha", "refused"), ("retry", "refused"),
    ]  # fmt: skip


async def test_one_object_is_loaded_once() -> None:
    """H-1: by identity."""
    plugin = type("P", (), {"start": lambda self, harness: None})()
    place = Place(config_of())
    await place.plugins.startup([plugin])
    with pytest.raises(PluginError, match="loaded already, as 'P'"):
        await place.plugins.load(plugin, name="other")


# -- building --------------------------------------------------------------------------------------------


async def test_a_class_is_built_with_its_structured_configuration(install: Any) -> None:
    """H-8: attribute Config, an attrs class."""
    install("alpha", """
        @attrs.frozen
        class Settings:
            size: int = 3
        class Plugin:
            Config = Settings
            def __init__(self, config): self.config = config
            async def start(self, harness): harness.note(f"size {self.config.size}")
    """)  # fmt: skip
    for table, noted in (({}, "size 3"), ({"alpha": {"size": 5}}, "size 5")):
        place = Place(config_of(plugins=table))
        await place.plugins.startup()
        assert place.noted == [noted]
    with pytest.raises(PluginError, match=r"plugins\.alpha\.size"):
        await Place(config_of(plugins={"alpha": {"size": "big"}})).plugins.startup()


async def test_a_module_or_an_object_may_be_the_target(install: Any) -> None:
    """H-8: all three kinds of target."""
    install("alpha", "@dsh.hookimpl\ndef register(harness): harness.note('module')", target="")
    install("beta", SIMPLE + "\n    instance = Plugin()", target="instance")
    place = Place(config_of())
    await place.plugins.startup()
    assert place.noted == ["module", "beta"]


async def test_a_table_for_a_plugin_without_configuration_is_refused(install: Any) -> None:
    """H-8: a setting without effect would be believed to have one."""
    install("alpha", SIMPLE)
    with pytest.raises(PluginError, match=r"takes no configuration, but \[plugins.alpha\] sets colour"):
        await Place(config_of(plugins={"alpha": {"colour": "red"}})).plugins.startup()


async def test_a_plugin_object_is_named_by_its_name_or_its_class() -> None:
    """Smaller decisions: attribute `name`, else the class; a module by its own name."""

    def hook(self: Any = None) -> None: ...

    module = ModuleType("some_module")
    module.agent_created = hookimpl(lambda agent: None)  # type: ignore[attr-defined]
    named = type("Named", (), {"name": "my-name", "agent_created": hookimpl(hook)})()
    plain = type("Plain", (), {"agent_created": hookimpl(hook)})()
    place = Place(config_of())
    await place.plugins.startup([module, named, plain], autoload=False)
    assert [each.name for each in place.plugins.list()] == ["some_module", "my-name", "Plain"]
    assert (await place.plugins.load(type("X", (), {"agent_created": hookimpl(hook)})(), "given")).name == "given"


async def test_all_plugins_are_registered_before_the_first_is_started() -> None:
    """H-7: no start runs before every gate is there."""
    order: list[str] = []

    def make(label: str) -> Any:
        def register(self: Any, harness: Any) -> None:
            order.append(f"register {label}")

        async def start(self: Any, harness: Any) -> None:
            order.append(f"start {label}")

        async def stop(self: Any) -> None:
            order.append(f"stop {label}")

        return type(label, (), {"register": hookimpl(register), "start": start, "stop": stop})()

    place = Place(config_of())
    await place.plugins.startup([make("a"), make("b")])
    await place.plugins.shutdown()
    assert order == ["register a", "register b", "start a", "start b", "stop b", "stop a"]


async def test_a_plugin_may_implement_the_hooks_of_a_later_one() -> None:
    """H-1: hookspecs of all are known before implementations are looked at."""
    from dsh_core._markers import hookspec

    class Specs:
        @hookspec(mode="observe")
        def mail_sent(self, text: str) -> None:
            """It was sent."""

    seen: list[str] = []
    reader = type("Reader", (), {"mail_sent": hookimpl(lambda self, text: seen.append(text))})()
    sender = type("Sender", (), {"hookspecs": Specs})()
    place = Place(config_of())
    await place.plugins.startup([reader, sender])
    place.hooks.call("mail_sent", text="hi")
    assert seen == ["hi"]


# -- loading and unloading at run time -------------------------------------------------------------------


class Full:
    """Uses everything that unloading has to undo."""

    name = "full"

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.stopped_with: list[str] | None = None
        self.harness: Any = None

    @hookimpl
    def register(self, harness: Any) -> None:
        self.harness = harness
        harness.note("tool")

    async def start(self, harness: Any) -> None:
        harness.note("command")
        self.task = spawn_owned(asyncio.Event().wait(), "full-task", current_owner())  # type: ignore[arg-type]

    async def stop(self) -> None:
        assert self.task is not None
        assert self.task.cancelled()
        self.stopped_with = [*self.harness.noted]

    @hookimpl
    def agent_created(self) -> None:
        self.harness.note("from a hook")


async def test_unloading_undoes_everything_then_stops_the_plugin() -> None:
    """H-7: registrations of register, start and hooks, hook implementations, tasks; then stop()."""
    place = Place(config_of())
    plugin = Full()
    await place.plugins.load(plugin)
    place.hooks.agent_created(agent=Agent())  # type: ignore[arg-type]
    assert place.noted == ["tool", "command", "from a hook"]
    await place.plugins.unload("full")
    assert plugin.stopped_with == []
    assert place.noted == []
    assert not place.hooks.wants("agent_created")
    assert place.plugins.list() == []
    await place.plugins.load(plugin)
    assert place.noted == ["tool", "command"]


async def test_a_failed_load_raises_leaves_nothing_and_is_listed() -> None:
    """Smaller decisions: plugins.load raises PluginError and marks the PluginInfo."""

    class Failing(Full):
        async def start(self, harness: Any) -> None:
            await super().start(harness)
            raise ValueError("no")

    place = Place(config_of())
    plugin = Failing()
    with pytest.raises(PluginError, match="its start failed: ValueError: no") as caught:
        await place.plugins.load(plugin)
    assert isinstance(caught.value.__cause__, ValueError)
    assert place.noted == []
    assert plugin.task is not None
    assert plugin.task.cancelled()
    assert plugin.stopped_with is None
    assert place.states() == {"full": "failed"}
    await place.plugins.load(Full())
    assert place.states() == {"full": "loaded"}


async def test_installed_plugins_can_be_loaded_by_name(install: Any) -> None:
    """H-7: at run time, too."""
    install("alpha", SIMPLE)
    place = Place(config_of())
    info = await place.plugins.load("alpha")
    assert (info.name, info.distribution, place.noted) == ("alpha", "dist-alpha", ["alpha"])
    with pytest.raises(PluginError, match=r"no plugin 'alhpa' is installed \(did you mean 'alpha'\?\)"):
        await place.plugins.load("alhpa")


async def test_unloading_an_unknown_plugin_names_the_nearest() -> None:
    """H-7: a clear error."""
    place = Place(config_of())
    await place.plugins.load(Full())
    with pytest.raises(PluginError, match=r"no plugin 'ful' is loaded \(did you mean 'full'\?\)"):
        await place.plugins.unload("ful")


class Slow:
    """A plugin whose hook waits."""

    name = "slow"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    @hookimpl
    async def agent_pre_step(self) -> None:
        self.begun.set()
        await self.go_on.wait()


def _pre_step(place: Place) -> asyncio.Task[None]:
    return asyncio.ensure_future(
        place.hooks.agent_pre_step(agent=Agent(), turn=1, step=1, system_prompt=None)  # type: ignore[arg-type]
    )


async def test_running_calls_may_end_within_the_grace_and_new_ones_leave_the_plugin_out() -> None:
    """H-7: new calls exclude an unloading plugin."""
    place = Place(config_of())
    plugin = Slow()
    await place.plugins.load(plugin)
    running = _pre_step(place)
    await plugin.begun.wait()
    unloading = asyncio.ensure_future(place.plugins.unload("slow"))
    await asyncio.sleep(0.01)
    assert place.info("slow").state == "unloading"
    await _pre_step(place)
    assert not unloading.done()
    plugin.go_on.set()
    await running
    await unloading


async def test_calls_that_outlive_the_grace_fail_and_the_caller_lives() -> None:
    """H-7: interrupted as a timeout does it, so the task is not cancelled."""
    place = Place(config_of())
    place.plugins.grace = 0.01
    plugin = Slow()
    await place.plugins.load(plugin)
    running = _pre_step(place)
    await plugin.begun.wait()
    await place.plugins.unload("slow")
    with pytest.raises(HookError, match="was unloaded while hook agent_pre_step was running"):
        await running
    assert not running.cancelled()


async def test_a_call_that_cannot_be_ended_is_abandoned_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A-7, H-7: what ignores cancellation is named."""
    monkeypatch.setattr(_loading, "SETTLE_SECONDS", 0.01)
    go_on = asyncio.Event()

    class Stubborn:
        @hookimpl
        async def agent_pre_step(self) -> None:
            while not go_on.is_set():
                try:
                    await go_on.wait()
                except asyncio.CancelledError:
                    continue

    place = Place(config_of())
    place.plugins.grace = 0.01
    await place.plugins.load(Stubborn())
    running = _pre_step(place)
    await asyncio.sleep(0)
    await place.plugins.unload("Stubborn")
    assert "abandoned: hook agent_pre_step" in caplog.text
    go_on.set()
    await running


async def test_unloading_from_inside_the_plugins_own_code_is_refused() -> None:
    """A-5, H-7: it would wait for itself."""
    place = Place(config_of())
    codes: list[str] = []

    async def try_it() -> None:
        try:
            await place.plugins.unload("Suicidal")
        except HarnessError as error:
            codes.append(error.code)

    class Suicidal:
        @hookimpl
        async def agent_pre_step(self) -> None:
            await try_it()
            await asyncio.sleep(0)
            await asyncio.create_task(try_it())

    await place.plugins.load(Suicidal())
    await _pre_step(place)
    assert codes == ["WOULD_DEADLOCK"] * 2
    await place.plugins.unload("Suicidal")


async def test_one_plugin_may_unload_another_and_unloading_goes_on_when_its_caller_is_cancelled() -> None:
    """H-7: unloading is never left half done."""
    place = Place(config_of())
    slow = Slow()
    await place.plugins.load(slow)
    running = _pre_step(place)
    await slow.begun.wait()
    caller = asyncio.ensure_future(place.plugins.unload("slow"))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    slow.go_on.set()
    await running
    while place.plugins.list():
        await asyncio.sleep(0)


@pytest.mark.parametrize("why", ["gate", "require"])
async def test_gates_and_required_plugins_stay_while_an_agent_lives(install: Any, why: str) -> None:
    """H-7: afterwards they may go."""
    install("alpha", SIMPLE, gate=why == "gate")
    place = Place(config_of(plugins={"require": ["alpha"] if why == "require" else []}))
    await place.plugins.startup()
    place.agents.live = [Agent()]
    with pytest.raises(PluginError, match="cannot be unloaded while an agent lives"):
        await place.plugins.unload("alpha")
    assert place.noted == ["alpha"]
    place.agents.live = []
    await place.plugins.unload("alpha")
    assert place.noted == []


async def test_a_stop_that_fails_is_told_after_everything_is_undone(caplog: pytest.LogCaptureFixture) -> None:
    """H-7: unload raises, shutdown logs."""

    class Bad(Full):
        async def stop(self) -> None:
            raise ValueError("no")

    place = Place(config_of())
    await place.plugins.load(Bad())
    with pytest.raises(PluginError, match="is unloaded, but its stop failed: ValueError: no"):
        await place.plugins.unload("full")
    assert place.plugins.list() == []
    await place.plugins.load(Bad())
    with caplog.at_level(logging.ERROR, "dsh"):
        await place.plugins.shutdown()
    assert "its stop failed" in caplog.text
    assert place.noted == []


async def test_one_failing_undo_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """H-7: every registration is undone."""

    class Bad(Full):
        @hookimpl
        def register(self, harness: Any) -> None:
            super().register(harness)
            own(lambda: 1 / 0)

    place = Place(config_of())
    await place.plugins.load(Bad())
    await place.plugins.unload("full")
    assert place.noted == []
    assert "could not be undone" in caplog.text


# -- agents' own plugins ---------------------------------------------------------------------------------


def _gate(label: str) -> Any:
    return type(label, (), {"tools_pre_execute": hookimpl(lambda self: Deny(label))})()


async def test_scoped_plugins_come_and_go_with_their_agent() -> None:
    """H-6: registered for one agent, undone with it."""
    place = Place(config_of())
    place.hooks.open_scope("a")
    plugin = Full()
    await place.plugins.load_scoped(Agent("a"), [plugin, _gate("no")])  # type: ignore[arg-type]
    assert place.noted == ["tool", "command"]
    assert (place.hooks.wants("tools_pre_execute", "a"), place.hooks.wants("tools_pre_execute", "b")) == (True, False)
    assert {each.origin for each in place.plugins.list()} == {"agent a"}
    await place.plugins.unload_scoped("a")
    assert (place.noted, place.plugins.list()) == ([], [])
    assert not place.hooks.wants("tools_pre_execute", "a")


async def test_scoped_plugins_are_loaded_all_or_none() -> None:
    """A-5: a failed creation leaves nothing behind."""
    place = Place(config_of())
    plugin = Full()
    with pytest.raises(PluginError):
        await place.plugins.load_scoped(Agent("a"), [plugin, object()])  # type: ignore[arg-type]
    assert (place.noted, place.plugins.list()) == ([], [])
    assert plugin.stopped_with == []


async def test_agents_may_have_plugins_of_one_name_each() -> None:
    """H-6: names count per scope; one object does not run twice for an agent."""
    place = Place(config_of())
    gates = [_gate("gate"), _gate("gate"), _gate("gate")]
    await place.plugins.startup(gates[:1], autoload=False)
    place.hooks.open_scope("a")
    place.hooks.open_scope("b", "a")
    await place.plugins.load_scoped(Agent("a"), gates[1:2])  # type: ignore[arg-type]
    await place.plugins.load_scoped(Agent("b"), gates[2:])  # type: ignore[arg-type]
    outcome = await place.hooks.tools_pre_execute(agent=Agent("b"), call=None)  # type: ignore[arg-type]
    assert len(outcome.opinions) == 3
    for again in gates[:2]:
        with pytest.raises(PluginError, match="loaded already"):
            await place.plugins.load_scoped(Agent("b"), [again])  # type: ignore[arg-type]


async def test_an_unloaded_stream_wrapper_leaves_later_requests_alone() -> None:
    """H-7: the next request is not wrapped."""
    wrapped: list[int] = []

    async def wrap(self: Any, call_next: Callable[[], Any]) -> Any:
        wrapped.append(1)
        return await call_next()

    async def chunks() -> Any:
        yield "chunk"

    async def opened() -> Any:
        return chunks()

    place = Place(config_of())
    await place.plugins.load(type("W", (), {"llm_stream": hookimpl(wrap)})())
    for _ in range(2):
        stream = await place.hooks.llm_stream(request=GenerateRequest(session_id="a"), open_stream=opened)
        assert [chunk async for chunk in stream] == ["chunk"]
        if place.plugins.list():
            await place.plugins.unload("W")
    assert wrapped == [1]
