"""
Faults that users of plugin systems really meet, each as its kind (cases plug-1 to plug-8).

What one implementation may do is proved in test_dispatch, test_hooks and test_every_hook, loading in test_plugins,
the command line in the tests of dsh-cli; here are the cases from outside: plugins installed for real, in a process
of their own, and running agents.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from loops import plugin, running

import dsh_core as dsh
from dsh_core import (
    AgentOptions,
    ApprovalGranted,
    Ask,
    Deny,
    Harness,
    Message,
    PluginError,
    PromptAllow,
    ResultReject,
    Retry,
    Stop,
    TextBlock,
    ToolResult,
    hookimpl,
    tool,
)
from dsh_core._discovery import installed
from dsh_core.prompt import PromptSection
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, fail, text

pytestmark = pytest.mark.anyio

DRIVER = Path(__file__).with_name("plugin_driver.py")
REAL = [each.name for each in installed()]
"""What happens to be installed where the tests run; it is switched off in them."""

PATIENCE = 10


# -- plugins installed for real --------------------------------------------------------------------------


class Site:
    """Directories with installed plugins, and a process that has them on its path."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.paths: list[Path] = []

    def install(self, name: str, source: str, *, dist: str = "", gate: bool = False, target: str = "Plugin") -> str:
        """Put a module and a `dist-info` into a directory of their own; the module's name."""
        dist = dist or f"dist-{name}"
        module = f"plug_{dist}_{name}".replace("-", "_").lower()
        site = self.room / f"site-{dist}-{name}"
        info = site / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text("import dsh_core as dsh, sys\n" + textwrap.dedent(source))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        line = f"{name} = {module}:{target}" if target else f"{name} = {module}"
        groups = ["dsh", "dsh_gates"] if gate else ["dsh"]
        (info / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group in groups))
        self.paths.append(site)
        return module

    def environment(self, paths: Sequence[Path] = ()) -> dict[str, str]:
        """Variables of a process that sees them, in this order."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DSH_")}
        for name in ("state", "config"):
            (self.room / name).mkdir(exist_ok=True)
            environment[f"DSH_{name.upper()}_DIR"] = str(self.room / name)
        environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in [*(paths or self.paths), self.room])
        return environment

    def run(
        self,
        *tools: str,
        paths: Sequence[Path] = (),
        autoload: bool = True,
        import_seconds: float = 30,
        config: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> Any:
        """What a harness with all of them saw, after calls of these tools."""
        order, result = self.room / "order.json", self.room / "result.json"
        disable = [*settings.pop("disable", ()), *REAL]
        config = {"approval": {"by": "scripted"}, **(config or {}), "plugins": {"disable": disable, **settings}}
        result.unlink(missing_ok=True)
        order.write_text(
            json.dumps({"calls": tools, "config": config, "autoload": autoload, "import_seconds": import_seconds})
        )
        command = [sys.executable, "-W", "error", str(DRIVER), str(order), str(result)]
        done = subprocess.run(
            command, env={**self.environment(paths), **(env or {})}, capture_output=True, text=True, timeout=60,
            check=False, cwd=self.room,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(result.read_text())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty one."""
    return Site(tmp_path)


MARK = "open({!r}, 'w').close()\n"
"""Source that leaves a mark where it is imported."""

TOOL = """
    @dsh.tool(read_only=True)
    def {name}() -> str:
        "Say whose it is."
        return "{answer}"

    class Plugin:
        @dsh.hookimpl
        def register(self, harness):
            harness.tools.register({name})
"""


def with_tool(name: str, answer: str = "fine") -> str:
    """A plugin that brings one tool."""
    return TOOL.format(name=name, answer=answer)


BROKEN = {
    "import": ("import no_such_module_anywhere", "no_such_module_anywhere"),
    "nested": ("import json\nfrom json import no_such_name", "no_such_name"),
    "syntax": ("def broken(:", "SyntaxError"),
    "exit": ("sys.exit('I leave')", "I leave"),
    "exit-0": ("raise SystemExit", "SystemExit"),
    "escape": ("class Escape(BaseException): pass\nraise Escape('past every except')", "past every except"),
    "recursion": ("def deep(): deep()\ndeep()", "RecursionError"),
    "bytes": ("x = '\\udc80'.encode()", "UnicodeEncodeError"),
    "hang": ("import time\ntime.sleep(600)", "its import has not ended after 0.5 s"),
    "deadlock": ("import threading\nthreading.Event().wait()", "its import has not ended after 0.5 s"),
    "chatty": ("print('hello')\nsys.stderr.write('hello')\nraise RuntimeError('no luck')", "no luck"),
    "attribute": ("other = 1", "has no attribute 'Plugin'"),
    "build": ("class Plugin:\n    def __init__(self): sys.exit(3)", "SystemExit: 3"),
    "start": ("class Plugin:\n    async def start(self, harness): raise SystemExit(4)", "SystemExit: 4"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("position", ["aaa", "zzz"])
def test_a_plugin_that_cannot_be_loaded_is_named_and_the_rest_works(how: str, position: str, site: Site) -> None:
    """plug-1: before or behind the others; a warning names plugin and cause, and the agent runs."""
    source, cause = BROKEN[how]
    site.install(position, source)
    site.install("middle", with_tool("work"))
    saw = site.run("work", import_seconds=0.5 if "0.5" in cause else 30)
    assert (saw["text"], saw["answers"]) == ("ok", ["fine"])
    state, error, _ = saw["plugins"][position]
    assert state == "failed"
    assert cause in error
    (line,) = [line for line in saw["log"] if f"'{position}'" in line]
    assert cause in line


@pytest.mark.parametrize("how", ["import", "exit", "hang", "start"])
@pytest.mark.parametrize("why", ["gate", "require", "table", "strict"])
def test_a_plugin_that_must_not_be_missing_stops_the_start(how: str, why: str, site: Site) -> None:
    """plug-1: gates, named ones, and with the developer's switch any; in one line with the way out."""
    source, cause = BROKEN[how]
    site.install("broken", source, gate=why == "gate")
    settings: dict[str, Any] = {"require": {"require": ["broken"]}, "strict": {"strict": True}, "table": {"broken": {}}}
    saw = site.run(import_seconds=0.5 if "0.5" in cause else 30, **settings.get(why, {}))
    assert "'broken'" in saw["refused"]
    assert cause in saw["refused"]
    assert "\n" not in saw["refused"]


def test_a_plugin_that_prints_when_it_is_imported_works(site: Site) -> None:
    """plug-1: what it prints is no reason to leave it out."""
    site.install("chatty", "print('hello')\nsys.stderr.write('hello')\n" + textwrap.dedent(with_tool("work")))
    assert site.run("work")["answers"] == ["fine"]


@pytest.mark.parametrize("how", ["import", "syntax", "exit", "escape", "hang"])
@pytest.mark.parametrize("switch", ["disable", "autoload", "environment"])
def test_a_broken_plugin_that_is_switched_off_is_not_imported(how: str, switch: str, site: Site) -> None:
    """plug-1: the switches work on names alone."""
    site.install("broken", MARK.format(str(site.room / "imported")) + BROKEN[how][0])
    saw = site.run(
        autoload=switch != "autoload",
        disable=["broken"] if switch == "disable" else (),
        env={"DSH_DISABLE_PLUGIN_AUTOLOAD": "1"} if switch == "environment" else None,
    )
    assert saw["text"] == "ok"
    assert not saw["log"]
    assert not (site.room / "imported").exists()


# -- two of one name -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["one first", "two first"])
def test_the_same_plugin_found_twice_is_loaded_once_whatever_the_path(order: str, site: Site) -> None:
    """plug-2: which one does not depend on where it lies; the warning names both."""
    site.install("same", with_tool("work", "one"), dist="one")
    site.install("same", with_tool("work", "two"), dist="two")
    paths = site.paths if order == "one first" else site.paths[::-1]
    saw = site.run("work", paths=paths)
    assert saw["answers"] == ["one"]
    (line,) = saw["log"]
    assert "of one 1.0" in line
    assert "of two 1.0" in line


def test_one_distribution_that_is_on_the_path_twice_is_one(site: Site) -> None:
    """plug-2: also through a link; nothing is said about it."""
    site.install("same", with_tool("work"))
    link = site.room / "link"
    link.symlink_to(site.paths[0])
    saw = site.run("work", paths=[*site.paths, link, *site.paths])
    assert (saw["answers"], saw["log"]) == (["fine"], [])


@pytest.mark.parametrize("second", ["same object", "same class"])
def test_one_thing_under_two_names(second: str, site: Site) -> None:
    """plug-2: an object runs once; a class makes two plugins, of which the second cannot bring the tool again."""
    source = with_tool("work") + "\n    instance = Plugin()\n"
    target = "instance" if second == "same object" else "Plugin"
    module = site.install("alpha", source, target=target)
    info = next(site.paths[0].glob("*.dist-info"))
    (info / "entry_points.txt").write_text(f"[dsh]\nbeta = {module}:{target}\nalpha = {module}:{target}\n")
    saw = site.run("work")
    assert saw["answers"] == ["fine"]
    assert (saw["plugins"]["alpha"][0], saw["plugins"]["beta"][0]) == ("loaded", "failed")
    (line,) = [line for line in saw["log"] if "beta" in line]
    assert "alpha" in line


@pytest.mark.parametrize("names", [("alpha", "beta"), ("beta", "alpha")])
def test_a_tool_name_keeps_its_owner(names: tuple[str, str], site: Site) -> None:
    """plug-2: the second plugin that registers it is left out; the warning names both; the start goes on."""
    for name in names:
        site.install(name, with_tool("work", name))
    saw = site.run("work")
    assert saw["answers"] == ["alpha"]
    assert saw["tools"] == ["work"]
    (line,) = saw["log"]
    assert "'alpha'" in line
    assert "'beta'" in line
    assert "work" in line


THINGS: dict[str, Callable[[Harness], Any]] = {
    "tool": lambda harness: harness.tools.register(dsh.tool(name="same")(_nothing)),
    "command": lambda harness: harness.commands.register("same", "Help.", lambda *_: "x"),
    "section": lambda harness: harness.system_prompt.section("same", 10, "x"),
    "variable": lambda harness: harness.system_prompt.variable("same", "x"),
    "provider": lambda harness: harness.llm.register("same", ScriptedAdapter([])),
    "service": lambda harness: harness.provide(Site, Site(Path())),
}


async def _nothing() -> str:
    """Nothing."""
    return ""


class Brings:
    """A plugin that brings one thing, at once or when an agent is made."""

    def __init__(self, name: str, thing: str, *, late: bool) -> None:
        self.name, self._thing, self._late = name, thing, late

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Bring it."""
        harness.commands.register(f"of-{self.name}", "Help.", lambda *_: "x")
        if not self._late:
            THINGS[self._thing](harness)

    @hookimpl
    def agent_created(self, agent: Any) -> None:
        """Bring it late."""
        if self._late:
            THINGS[self._thing](agent.harness)


@pytest.mark.parametrize("thing", THINGS)
async def test_a_name_that_is_taken_refuses_the_second_plugin_whole(thing: str) -> None:
    """plug-2: nothing of it stays, the first one's is untouched, both are named; freed, the name is free."""
    async with Harness(plugins=[Brings("first", thing, late=False)], autoload=False) as harness:
        with pytest.raises(PluginError, match="first") as caught:
            await harness.plugins.load(Brings("second", thing, late=False))
        assert "second" in str(caught.value)
        assert "of-second" not in [each.name for each in harness.commands.list()]
        await harness.plugins.unload("first")
        await harness.plugins.load(Brings("second", thing, late=False))


@pytest.mark.parametrize("thing", THINGS)
async def test_a_name_that_is_taken_late_is_refused_locally(thing: str, caplog: pytest.LogCaptureFixture) -> None:
    """plug-2: registered from a hook, too: that hook has failed, and nothing else."""
    brings = [Brings("first", thing, late=True), Brings("second", thing, late=True)]
    async with Harness(plugins=brings, autoload=False) as harness, await harness.agents.create("a"):
        (line,) = [record.getMessage() for record in caplog.records if "failed in hook" in record.getMessage()]
        assert "plugin second failed in hook agent_created" in line
        assert "first" in line


# -- observers and request hooks -------------------------------------------------------------------------


async def test_an_observer_of_everything_that_always_raises_disturbs_nobody() -> None:
    """plug-3: two agents at once; the observers behind it see every event, in order."""
    observed = [name for name, mode in MODES.items() if mode == "observe"]

    def bad() -> None:
        raise RuntimeError("always")

    seen: dict[str, list[int]] = {"a": [], "b": []}
    broken = plugin(**dict.fromkeys(observed, bad))
    keeps = plugin(session_event=lambda session, event: seen[session.id].append(event.seq))
    model = ScriptedAdapter([lambda request: _answer(request)] * 8)
    async with Harness(plugins=[ScriptedPlugin(model), broken, keeps], tools=[act], autoload=False) as harness:
        handles = [await harness.agents.create(name, options=AgentOptions(model="scripted/m")) for name in "ab"]
        for result in await asyncio.gather(*(handle.agent.send("go") for handle in handles)):
            assert (result.reason.kind, result.text) == ("completed", "done")
        for handle in handles:
            await handle.dispose()
            assert seen[handle.agent.id] == [event.seq for event in handle.agent.session.events]


@pytest.mark.parametrize("hook", ["agent_request", "agent_pre_step", "agent_prompt_submit", "system_prompt_assemble"])
@pytest.mark.parametrize("position", ["first", "last"])
async def test_a_hook_that_fails_for_one_agent_fails_each_of_its_turns_and_no_other(hook: str, position: str) -> None:
    """plug-3: again and again, beside another agent that works; the loop lives on and works once it is unloaded."""

    async def bad(agent: Any) -> None:
        await asyncio.sleep(0)
        if agent.id == "a":
            raise RuntimeError("for a")

    broken, quiet = plugin(**{hook: bad}), plugin(agent_pre_step=lambda: None)
    model = ScriptedAdapter([lambda request: _answer(request)] * 12)
    given = [broken, quiet] if position == "first" else [quiet, broken]
    async with Harness(plugins=[ScriptedPlugin(model), *given], tools=[act], autoload=False) as harness:
        a, b = [(await harness.agents.create(name, options=AgentOptions(model="scripted/m"))).agent for name in "ab"]
        for _ in range(3):
            failed, fine = await asyncio.gather(a.send("go"), b.send("go"), return_exceptions=True)
            told = str(failed) if isinstance(failed, Exception) else failed.reason["message"]
            assert f"failed in hook '{hook}': RuntimeError: for a" in told
            assert fine.reason.kind == "completed"
        await harness.plugins.unload(broken.name)  # type: ignore[attr-defined]
        assert (await a.send("go")).reason.kind == "completed"


# -- configuration behind an upgrade ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["disable", "table without autoload", "approval.by", "tools.order"])
def test_a_plugin_that_is_gone_may_still_be_spoken_of_where_it_is_optional(where: str, site: Site) -> None:
    """plug-4: what asks for nothing does not stop the start."""
    site.install("renamed", with_tool("work"))
    settings: dict[str, Any] = {"disable": {"disable": ["old"]}, "table without autoload": {"old": {"size": 3}}}
    configs: dict[str, Any] = {"approval.by": {"approval": {"by": "old"}}, "tools.order": {"tools": {"order": ["old"]}}}
    saw = site.run(autoload="table" not in where, config=configs.get(where), **settings.get(where, {}))
    assert saw["text"] == "ok"


@pytest.mark.parametrize("where", ["require", "table", "persistence"])
def test_a_plugin_that_is_gone_and_asked_for_stops_the_start_in_one_line(where: str, site: Site) -> None:
    """plug-4: it names the missing plugin, the nearest one there is, and what to do; a safe mode starts."""
    site.install("persistence-formatter" if where == "persistence" else "formatter", with_tool("work"))
    gone = "formater"
    settings: dict[str, Any] = {"require": {"require": [gone]}, "table": {gone: {"size": 3}}}
    config = {"persistence": gone} if where == "persistence" else None
    saw = site.run(config=config, **settings.get(where, {}))
    name = f"persistence-{gone}" if where == "persistence" else gone
    assert f"names plugin '{name}', which is not installed (did you mean '{name[:-2]}ter'?)" in saw["refused"]
    assert "install it, or remove the name from the configuration" in saw["refused"]
    assert "\n" not in saw["refused"]
    assert site.run(autoload=False)["text"] == "ok"


@pytest.mark.parametrize("switch", ["autoload", "environment"])
def test_the_safe_mode_ignores_what_only_a_table_asks_for(switch: str, site: Site) -> None:
    """plug-4: but not what is required by name."""
    site.install("broken", "raise SystemExit")
    options: dict[str, Any] = (
        {"autoload": False} if switch == "autoload" else {"env": {"DSH_DISABLE_PLUGIN_AUTOLOAD": "1"}}
    )
    assert site.run(broken={"size": 3}, gone={"size": 3}, **options)["text"] == "ok"
    assert "'gone'" in site.run(require=["gone"], **options)["refused"]


# -- hooks that block ------------------------------------------------------------------------------------

BLOCKING = (
    "agent_prompt_submit", "agent_pre_step", "system_prompt_assemble", "agent_request", "session_flush",
    "tools_pre_execute", "approval_request", "tools_execute", "tools_post_execute", "agent_step_result",
    "agent_turn_continuation", "agent_turn_end", "llm_stream",
)  # fmt: skip


@pytest.mark.parametrize("hook", BLOCKING)
async def test_a_plain_hook_that_blocks_holds_up_its_own_turn_only(hook: str) -> None:
    """plug-5: with a limit, streams, timers and the other agent go on while it blocks, and the limit fires."""
    began, released = threading.Event(), threading.Event()

    def blocks(**given: Any) -> None:
        agent_id = getattr(given.get("agent") or given.get("session"), "id", None) or given["request"].session_id
        if agent_id == "a":
            began.set()
            released.wait(PATIENCE)

    argument = {"session_flush": "session", "llm_stream": "request"}.get(hook, "agent")
    space: dict[str, Any] = {"blocks": blocks}
    exec(f"def implementation({argument}): return blocks({argument}={argument})", space)
    quiet = {"llm_stream": "request, call_next", "tools_execute": "call, call_next"}.get(hook)
    if quiet is not None:
        exec(f"def implementation({quiet}{', agent' * (hook == 'tools_execute')}):\n"
             f"    blocks({argument}={argument})\n    return call_next()", space)  # fmt: skip
    asks = plugin(tools_pre_execute=lambda: Ask("?"), approval_request=lambda: ApprovalGranted())
    given = [plugin(**{hook: space["implementation"]}), asks]
    config = {"hooks": {"timeout": 0.1}, "approval": {"timeout": 0.1}}
    model = ScriptedAdapter([lambda request: _answer(request)] * 12)
    async with Harness(plugins=[ScriptedPlugin(model), *given], tools=[act], config=config, autoload=False) as harness:
        a, b = [(await harness.agents.create(name, options=AgentOptions(model="scripted/m"))).agent for name in "ab"]
        receipt = a.send("go")
        while not began.is_set():
            await asyncio.sleep(0.001)
        ticked = asyncio.Event()
        asyncio.get_running_loop().call_later(0.001, ticked.set)
        assert (await asyncio.wait_for(b.send("go"), PATIENCE)).reason.kind == "completed"
        await asyncio.wait_for(ticked.wait(), PATIENCE)
        try:
            result = await asyncio.wait_for(receipt, PATIENCE)
            told = json.dumps([str(result.reason), str(result.events)])
        except dsh.PromptBlocked as error:
            told = str(error)
        assert not released.is_set(), "the limit fired while it was still blocking"
        if hook != "agent_turn_end":
            assert "no answer within 0.1 s" in told or "nobody answered within 0.1 s" in told
        released.set()


# -- coroutines ------------------------------------------------------------------------------------------

MODES = {
    name: dsh._markers.hook_mode(spec).mode  # type: ignore[union-attr]
    for name, spec in vars(dsh.hookspecs).items()
    if dsh._markers.hook_mode(spec) is not None
}


@tool
async def act() -> str:
    """Do it."""
    return "acted"


def _answer(request: Any) -> Any:
    """Call the tool once for each prompt, then be done."""
    return text("done") if isinstance(request.messages[-1].content[0], dsh.ToolResultBlock) else call("act")


def _said(lab: Any) -> str:
    return str([event.data for event in lab.session.events])


async def _replaced(call_next: Any) -> ToolResult:
    await call_next()
    return ToolResult("from a plugin")


async def _stream(call_next: Any) -> Any:
    async def doubled() -> AsyncIterator[Any]:
        async for chunk in await call_next():
            yield attrs.evolve(chunk, text=chunk.text.upper()) if isinstance(chunk, dsh.TextDelta) else chunk

    return doubled()


EFFECTS: dict[str, tuple[Callable[..., Any], str]] = {
    "agent_prompt_submit": (lambda message: PromptAllow(content="another prompt"), "another prompt"),
    "agent_request": (lambda request: attrs.evolve(request, temperature=0.125), "0.125"),
    "agent_step_result": (
        lambda message: Message("assistant", [TextBlock("changed")]), "changed"),
    "agent_turn_continuation": (lambda step: Stop("enough", "ENOUGH"), "ENOUGH"),
    "tools_pre_execute": (lambda call: Deny("never ever"), "never ever"),
    "tools_post_execute": (lambda result: ResultReject("do better"), "do better"),
    "system_prompt_assemble": (
        lambda assembly: attrs.evolve(assembly, sections=[PromptSection("x", 1, "the prompt")]), "the prompt"),
}  # fmt: skip


def _spelled(spelling: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same implementation as a plain function, a coroutine, and what looks like the one and is the other."""

    @functools.wraps(function)
    async def coroutine(*args: Any, **keywords: Any) -> Any:
        if spelling.endswith("suspended"):
            await asyncio.sleep(0)
        return function(*args, **keywords)

    @functools.wraps(function)
    def disguised(*args: Any, **keywords: Any) -> Any:
        return coroutine(*args, **keywords)

    return {"plain": function, "disguised": disguised, "disguised, suspended": disguised}.get(spelling, coroutine)


SPELLINGS = ("plain", "coroutine", "coroutine, suspended", "disguised", "disguised, suspended")


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("hook", EFFECTS)
@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_coroutine_is_awaited_wherever_an_answer_is_wanted(
    hook: str, spelling: str, timeout: float | None
) -> None:
    """plug-6: its answer counts, never the coroutine itself; with and without a limit."""
    function, effect = EFFECTS[hook]
    config = {"hooks": {"timeout": timeout}} if timeout else None
    given = [plugin(**{hook: _spelled(spelling, function)})]
    async with running(call("act"), text("done"), plugins=given, tools=[act], config=config, complete=False) as lab:
        await lab.agent.send("go")
        assert effect in _said(lab)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_coroutine_answers_the_first_result_hooks(spelling: str) -> None:
    """plug-6: a coroutine that answers None has not answered; the one behind it is asked."""
    asks = plugin(tools_pre_execute=_spelled(spelling, lambda call: Ask("may it?")))
    silent = plugin(
        approval_request=_spelled(spelling, lambda approval: None),
        agent_request_error=_spelled(spelling, lambda error: None),
    )
    answers = plugin(
        approval_request=_spelled(spelling, lambda approval: ApprovalGranted()),
        agent_request_error=_spelled(spelling, lambda error: Retry(0)),
    )
    never = plugin(approval_request=lambda: pytest.fail("asked"), agent_request_error=lambda: pytest.fail("asked"))
    given = [asks, silent, answers, never]
    async with running(fail("INVALID_REQUEST"), call("act"), text("done"), plugins=given, tools=[act]) as lab:
        result = await lab.agent.send("go")
        assert result.text == "done"
        assert "acted" in _said(lab)


async def test_coroutines_go_round_the_tool_and_the_stream() -> None:
    """plug-6: around, as `async def`; plain functions that hand on what they are given are in test_every_hook."""
    given = [plugin(tools_execute=_replaced, llm_stream=_stream)]
    async with running(call("act"), text("done"), plugins=given, tools=[act]) as lab:
        assert (await lab.agent.send("go")).text == "DONE"
        assert "from a plugin" in _said(lab)


@pytest.mark.parametrize("hook", [name for name, mode in MODES.items() if mode in ("observe", "check", "collect")])
@pytest.mark.parametrize("spelling", ["method", "static", "class", "generator", "renamed"])
async def test_a_coroutine_is_refused_where_nothing_is_awaited(hook: str, spelling: str) -> None:
    """plug-6: at registration, with the mode and the way out."""

    async def method(self: Any) -> None:
        return None

    spelled: dict[str, Any] = {
        "method": {hook: hookimpl(method)},
        "static": {hook: staticmethod(hookimpl(functools.wraps(_coroutine)(_coroutine)))},
        "class": {hook: classmethod(hookimpl(method))},
        "generator": {hook: staticmethod(hookimpl(_async_generator))},
        "renamed": {"other": hookimpl(specname=hook)(method)},
    }
    made = type("Made", (), spelled[spelling])()
    async with Harness(autoload=False) as harness:
        with pytest.raises(PluginError, match=r"async generator|is a coroutine, but .* hooks are called synchronously"):
            await harness.plugins.load(made)
        assert "Made" not in [each.plugin for each in harness.hooks.implementations(hook)]


async def _coroutine() -> None:
    return None


async def _async_generator() -> AsyncIterator[None]:
    yield None


@pytest.mark.parametrize("hook", [name for name, mode in MODES.items() if mode == "observe"])
async def test_a_disguised_coroutine_is_reported_and_never_left_unawaited(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    """plug-6: where only the call shows it."""
    errors = {"agent_error": plugin(agent_status=lambda: 1 / 0), "approval_decided": plugin(
        tools_pre_execute=lambda: Ask("?"), approval_request=lambda: ApprovalGranted())}  # fmt: skip
    given = [plugin(**{hook: lambda: _coroutine()}), *([errors[hook]] if hook in errors else [])]
    async with running(call("act"), text("done"), plugins=given, tools=[act]) as lab:
        assert (await lab.agent.send("go")).text == "done"
    assert f"failed in hook {hook}: TypeError: it returned something to await" in caplog.text


# -- nothing is imported without need --------------------------------------------------------------------


@pytest.mark.parametrize("command", ["--version", "--help", "sessions list", "sessions --help", "run --help"])
@pytest.mark.parametrize("gate", [False, True])
def test_what_only_looks_does_not_wait_for_a_slow_plugin(command: str, gate: bool, site: Site) -> None:
    """plug-7: a plugin whose import takes 3 s is not imported, gate or not."""
    pytest.importorskip("dsh_cli", reason="the command line is not installed")
    mark = site.room / "imported"
    source = MARK.format(str(mark)) + "import time\ntime.sleep(3)\n" + textwrap.dedent(with_tool("work"))
    site.install("slow", source, gate=gate)
    done = subprocess.run(
        [sys.executable, "-c", "import dsh_cli; dsh_cli.entry()", *command.split()],
        env=site.environment(), capture_output=True, text=True, timeout=60, check=False, cwd=site.room,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "slow" not in done.stderr
    assert not mark.exists()


def test_a_slow_plugin_is_waited_for_where_it_is_used(site: Site) -> None:
    """plug-7: the harmless twin; slow is not broken."""
    site.install("slow", "import time\ntime.sleep(1)\n" + textwrap.dedent(with_tool("work")), gate=True)
    assert site.run("work")["answers"] == ["fine"]


# -- order, wrappers, slips ------------------------------------------------------------------------------

NOTES = """
    import seen

    class Plugin:
        @dsh.hookimpl({options})
        def agent_request(self, request):
            seen.calls.append(__name__.rsplit("_", 1)[1])
"""


@pytest.mark.parametrize("order", list(itertools.permutations(["alpha", "beta", "gamma"])), ids="-".join)
def test_order_does_not_depend_on_installation(order: Sequence[str], site: Site) -> None:
    """plug-8: by name, whatever was installed first and wherever it lies."""
    (site.room / "seen.py").write_text("calls = []\n")
    for name in order:
        site.install(name, NOTES.format(options=""))
    assert site.run()["seen"] == ["alpha", "beta", "gamma"]


def test_order_can_be_chosen(site: Site) -> None:
    """plug-8: bands first, then the configuration, then names."""
    (site.room / "seen.py").write_text("calls = []\n")
    site.install("alpha", NOTES.format(options="trylast=True"))
    site.install("beta", NOTES.format(options=""))
    site.install("gamma", NOTES.format(options=""))
    site.install("omega", NOTES.format(options="tryfirst=True"))
    assert site.run(require=["gamma"])["seen"] == ["omega", "gamma", "beta", "alpha"]


@asynccontextmanager
async def _asked(*plugins: Any) -> AsyncIterator[Any]:
    """A turn whose first request fails, with these to repair it."""
    async with running(fail("INVALID_REQUEST"), text("done"), plugins=plugins, complete=False) as lab:
        yield await lab.agent.send("go")


def _wrapping(name: str, log: list[str], change: Callable[[Any], Any]) -> Any:
    class Wraps:
        @hookimpl(wrapper=True)
        def agent_request_error(self) -> Any:
            log.append(f"{name} in")
            answer = yield
            log.append(f"{name} out")
            return change(answer)

    Wraps.name = name  # type: ignore[attr-defined]
    return Wraps()


@pytest.mark.parametrize("outer_first", [True, False])
async def test_wrappers_of_a_first_result_hook_go_round_the_whole_question(outer_first: bool) -> None:
    """plug-8: in the order of the list, round all who are asked, also those registered before them."""
    log: list[str] = []
    asked = [
        plugin(agent_request_error=lambda: log.append("silent")),
        plugin(agent_request_error=lambda: log.append("answers") or Retry(0)),
        plugin(agent_request_error=lambda: log.append("too late")),
    ]
    wrappers = [_wrapping("one", log, lambda answer: answer), _wrapping("two", log, lambda answer: answer)]
    given = [*wrappers, *asked] if outer_first else [*asked, *wrappers]
    async with _asked(*given) as result:
        assert result.text == "done"
    assert log == ["one in", "two in", "silent", "answers", "two out", "one out"]


@pytest.mark.parametrize(
    ("change", "kind"), [(lambda answer: None, "error"), (lambda answer: answer or Retry(0), "completed")]
)
@pytest.mark.parametrize("answered", [True, False])
async def test_a_wrapper_may_take_an_answer_back_or_give_one(change: Any, kind: str, answered: bool) -> None:
    """plug-8: what it returns is the answer."""
    asked = plugin(agent_request_error=lambda: Retry(0) if answered else None)
    async with _asked(_wrapping("w", [], change), asked) as result:
        assert result.reason.kind == kind


SLIPS = {
    "unknown hook": ("def agent_requst(self, request): ...", "there is no hook 'agent_requst' (did you mean"),
    "unknown argument": ("def agent_request(self, requst): ...", "(did you mean 'request'?)"),
    "unlike any": ("def agent_request(self, zzz): ...", "it has agent, turn, step, request"),
    "star": ("def agent_request(self, *args): ...", "takes *args"),
    "keywords": ("def agent_request(self, **given): ...", "takes **given"),
    "keyword only": ("def agent_request(self, *, request): ...", "by keyword only"),
    "no self": ("def agent_request(request): ...", "has no `self`"),
    "generator": ("def agent_request(self, request): yield", "is a generator"),
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("gate", [False, True])
def test_a_slip_in_an_implementation_is_reported_at_load(slip: str, gate: bool, site: Site) -> None:
    """plug-8: by name, with the nearest right one; a gate with a slip stops the start."""
    source, told = SLIPS[slip]
    site.install("slips", f"class Plugin:\n    @dsh.hookimpl\n    {source}\n", gate=gate)
    site.install("fine", with_tool("work"))
    saw = site.run("work") if not gate else site.run()
    line = saw["refused"] if gate else next(line for line in saw["log"] if "'slips'" in line)
    assert "'slips'" in line
    assert told in line
    assert gate or saw["answers"] == ["fine"]


async def test_a_hook_of_a_later_version_may_be_implemented_ahead() -> None:
    """plug-8: the harmless twin: `optionalhook`, and an argument with a default that nobody fills."""

    class Ahead:
        @hookimpl(optionalhook=True)
        def agent_not_yet(self, agent: Any) -> None: ...

        @hookimpl
        def agent_request(self, request: Any, budget: int = 7) -> Any:
            assert budget == 7

    async with running(text("done"), plugins=[Ahead()]) as lab:
        assert (await lab.agent.send("go")).text == "done"
