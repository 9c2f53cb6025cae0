"""
The gate in a running agent: its decisions, its sources, and what it remembers.
"""

from __future__ import annotations

import json
import stat
from contextlib import asynccontextmanager

import pytest
from dsh_permission import PermissionConfig, PermissionPlugin

import dsh_core as dsh
from dsh_core.errors import ConfigError, PluginError
from dsh_core.llm.scripted import ScriptedPlugin
from dsh_core.testing import ScriptedAdapter, call, text
from dsh_core.tools import ToolDefinition

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path


class Tools:
    """Tools that only record what ran."""

    name = "tools"

    def __init__(self):
        self.ran = []

    @dsh.hookimpl
    def register(self, harness):
        for name, keys in (("bash", ["command"]), ("write", ["path"]), ("read", ["path"]), ("fetch", ["url"])):
            schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}}
            harness.tools.register(ToolDefinition(name, name, schema, self.body(name), thread=False))

    def body(self, name):
        async def run(arguments, context):
            self.ran.append((name, dict(arguments)))
            return "done"

        return run


class Answerer:
    """Answers every question alike and keeps it."""

    name = "answerer"

    def __init__(self, answer=None):
        self.answer = answer
        self.asked = []

    @dsh.hookimpl
    def approval_request(self, agent, approval):
        self.asked.append(approval)
        return self.answer


GRANT = {
    None: dsh.ApprovalGranted(),
    "session": dsh.ApprovalGranted("session"),
    "project": dsh.ApprovalGranted("project"),
}


@asynccontextmanager
async def chat_of(*items, cwd, permission=None, answer=None, plugins=(), config=None, session=None):
    script = ScriptedAdapter([*items, text("end")])
    tools, answerer = Tools(), Answerer(answer)
    gate = permission or PermissionPlugin()
    settings = {"approval": {"by": "answerer"}, **(config or {})}
    async with dsh.open(
        session,
        model="scripted/x",
        plugins=[ScriptedPlugin(script), tools, answerer, gate, *plugins],
        autoload=False,
        cwd=str(cwd),
        config=settings,
    ) as chat:
        chat.ran, chat.asked, chat.gate = tools.ran, answerer.asked, gate
        yield chat


def outcomes(chat):
    """Error code of every result, None for those that ran."""
    events = [event.data for event in chat.agent.session.events if event.type == "tool/result"]
    return [event.error.code if event.error else None for event in events]


def rules(**lists):
    return PermissionPlugin(PermissionConfig(**lists))


async def test_allowed_runs_denied_does_not_and_the_reason_reaches_the_model(places):
    """G-1, L-10: the deciding rule is named."""
    gate = rules(allow=["bash(git *)"], deny=["bash(rm *)"])
    async with chat_of(
        call("bash", command="git log"), call("bash", command="rm x"), cwd=places / "a", permission=gate
    ) as chat:
        await chat.ask("go")
        assert [arguments["command"] for _, arguments in chat.ran] == ["git log"]
        assert outcomes(chat) == [None, "DENIED"]
        result = [event.data for event in chat.agent.session.events if event.type == "tool/result"][1]
        assert "bash(rm *)" in result.content[0].text


async def test_tools_brought_in_by_code_run_unless_a_rule_speaks_of_the_call(places):
    """L-15: no opinion in mode ask; rules and protected places still hold."""
    gate = rules(ask=["fetch(*evil*)"])
    items = [
        call("fetch", url="https://x"),
        call("fetch", url="https://evil"),
        call("write", path=".git/config"),
        call("bash", command="make"),
    ]
    async with chat_of(*items, cwd=places / "a", permission=gate) as chat:
        await chat.ask("go")
        assert outcomes(chat) == [None, "DENIED", "DENIED", None]


async def test_mode_plan_stops_tools_brought_in_by_code(places):
    """G-2: nothing writes or executes."""
    async with chat_of(
        call("write", path="x"), call("read", path="x"), cwd=places / "a", permission=rules(mode="plan")
    ) as chat:
        await chat.ask("go")
        assert outcomes(chat) == ["DENIED", None]


@pytest.mark.parametrize("first", [True, False])
async def test_a_denial_wins_over_another_plugin_that_allows(places, first):
    """G-1, perm-9: whatever the order of registration."""

    class Yes:
        name = "yes"

        @dsh.hookimpl(tryfirst=first, trylast=not first)
        def tools_pre_execute(self, call):
            return dsh.Allow()

    async with chat_of(
        call("bash", command="rm x"), cwd=places / "a", permission=rules(deny=["bash(rm *)"]), plugins=[Yes()]
    ) as chat:
        await chat.ask("go")
        assert (chat.ran, outcomes(chat)) == ([], ["DENIED"])


@pytest.mark.parametrize("broken", ["raises", "nonsense", "exits"])
async def test_a_gate_that_fails_stops_the_tool(places, monkeypatch, broken):
    """perm-4: deny, with the reason logged; the agent lives on."""

    def judge(self, *args, **kwargs):
        if broken == "raises":
            raise RuntimeError("boom")
        if broken == "exits":
            raise SystemExit(1)
        return object()

    monkeypatch.setattr("dsh_permission.policy.PermissionPolicy.judge", judge)
    async with chat_of(call("bash", command="ls"), cwd=places / "a") as chat:
        result = await chat.ask("go")
        assert (chat.ran, outcomes(chat)) == ([], ["DENIED"])
        assert result.reason.kind == "completed"


@pytest.mark.parametrize("remember", [None, "session", "project"])
async def test_exactly_the_displayed_rule_is_remembered(places, remember):
    """G-5, perm-10: for this project, and nothing wider."""
    items = [call("bash", command=c) for c in ("git commit", "git commit", "git push")]
    gate = rules(ask=["write"], mode="accept-edits")
    async with chat_of(*items, cwd=places / "a", permission=gate, answer=GRANT[remember]) as chat:
        await chat.ask("go")
        assert outcomes(chat) == [None, None, None]
        asked = [approval.rule for approval in chat.asked]
        assert asked == ["bash(git commit)"] * (2 if remember is None else 1) + ["bash(git push)"]
    stored = places / "state" / "grants.json"
    assert stored.exists() is (remember == "project")
    if remember == "project":
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
        kept = json.loads(stored.read_text())["projects"]
        assert kept == {str((places / "a").resolve()): ["bash(git commit)", "bash(git push)"]}
        assert list((places / "a").iterdir()) == []


async def test_a_remembered_project_rule_holds_in_that_project_only(places):
    """G-5, perm-10: also for the next start."""
    gate = {"mode": "accept-edits"}
    async with chat_of(
        call("bash", command="git commit"), cwd=places / "a", permission=rules(**gate), answer=GRANT["project"]
    ) as chat:
        await chat.ask("go")
    for where, expected in (("a", [None, "DENIED"]), ("b", ["DENIED", "DENIED"])):
        items = [call("bash", command="git commit"), call("bash", command="git push")]
        async with chat_of(*items, cwd=places / where, permission=rules(**gate)) as chat:
            await chat.ask("go")
            assert outcomes(chat) == expected


async def test_protected_items_cannot_be_remembered(places):
    """G-6: the question offers no rule, and a remembered answer stores nothing."""
    items = [call("write", path=".git/config"), call("write", path=".git/config"), call("bash", command="cat .env")]
    async with chat_of(*items, cwd=places / "a", answer=GRANT["project"]) as chat:
        await chat.ask("go")
        assert [approval.rule for approval in chat.asked] == [None, None, None]
    assert not (places / "state" / "grants.json").exists()


async def test_a_rule_another_gate_displays_is_not_stored(places):
    """G-5: only what this gate proposes for this call can be remembered."""

    class Other:
        name = "other"

        @dsh.hookimpl
        def tools_pre_execute(self, call):
            return dsh.Ask("hm", rule="bash")

    items = [call("bash", command="ls"), call("bash", command="ls")]
    async with chat_of(*items, cwd=places / "a", answer=GRANT["project"], plugins=[Other()]) as chat:
        await chat.ask("go")
        assert len(chat.asked) == 2
    assert not (places / "state" / "grants.json").exists()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"format": 2, "projects": {}}', '{"format": 1, "projects": {"/a": ["b c("]}}', "\xff"]
)
async def test_damaged_grants_stop_the_start(places, damage):
    """G-6: the message names the file and the way out."""
    (places / "state").mkdir()
    (places / "state" / "grants.json").write_bytes(damage.encode("latin-1"))
    with pytest.raises((ConfigError, PluginError), match=r"grants\.json"):
        async with chat_of(cwd=places / "a"):
            pass


async def test_the_permissions_table_of_the_harness_is_a_source(places):
    """G-1: front ends and files use it; rules add up, its mode wins."""
    config = {"permissions": {"mode": "plan", "deny": ["bash(rm *)"]}}
    async with chat_of(
        call("bash", command="rm x"),
        call("write", path="x"),
        cwd=places / "a",
        permission=rules(allow=["*"]),
        config=config,
    ) as chat:
        await chat.ask("go")
        assert outcomes(chat) == ["DENIED", "DENIED"]


@pytest.mark.parametrize("table", [{"mode": "yolo"}, {"allow": ["a b("]}, {"alow": []}])
async def test_a_wrong_permissions_table_stops_the_start(places, table):
    """G-6: every fault is named."""
    with pytest.raises((ConfigError, PluginError)):
        async with chat_of(cwd=places / "a", config={"permissions": table}):
            pass


async def test_a_parents_denials_bind_its_descendants(places):
    """G-7: with the parent's workspace for relative patterns; the child's own rules count too."""
    gate = rules(deny=["write(secret/**)"])
    (places / "a" / "secret").mkdir()
    path = str(places / "a" / "secret" / "x")
    async with chat_of(call("write", path=path), cwd=places / "a", permission=gate) as chat:
        child = await chat.harness.agents.create(cwd=str(places / "b"), parent=chat.agent, options=chat.agent.options)
        async with child:
            await child.agent.send("go")
            events = [e.data for e in child.agent.session.events if e.type == "tool/result"]
            assert events[0].error.code == "DENIED"
            assert "descendants" in events[0].content[0].text
        assert chat.ran == []


async def test_the_question_shows_what_would_otherwise_be_hidden(places):
    """G-5: the exact final form, hidden characters made visible."""
    command = "make \u202e\u200b x\x07"
    async with chat_of(
        call("bash", command=command), cwd=places / "a", permission=rules(ask=["bash"]), answer=GRANT[None]
    ) as chat:
        await chat.ask("go")
        reason = chat.asked[0].reason
        assert "\u202e" not in reason
        assert "\\u202e" in reason
        assert chat.ran == [("bash", {"command": command})]


async def test_session_grants_are_folded_from_the_log(places):
    """S-9: what was remembered for a session is known again from its log."""
    gate = rules(mode="accept-edits")
    async with chat_of(
        call("bash", command="git commit"), cwd=places / "a", permission=gate, answer=GRANT["session"]
    ) as chat:
        await chat.ask("go")
        fresh = PermissionPlugin(PermissionConfig(mode="accept-edits"))
        fresh.register(chat.harness)
        assert fresh.policy_for(chat.agent).judge("bash", {"command": "git commit"}).decision == "allow"
        assert fresh.policy_for(chat.agent).judge("bash", {"command": "git push"}).decision == "ask"


async def test_it_loads_through_its_entry_points_and_a_broken_one_stops_the_start(places):
    """H-8: an installed gate must not be missing."""
    async with dsh.Harness(config={"plugins": {"permission": {"deny": ["bash"]}}}) as harness:
        assert {info.name: info.state for info in harness.plugins.list()}["permission"] == "loaded"
    with pytest.raises((ConfigError, PluginError)):
        async with dsh.Harness(config={"plugins": {"permission": {"deny": ["a b("]}}}):
            pass
