"""
Every plugin of this repository, found through its entry point: loaded, used for real, unloaded, loaded again.

What a plugin leaves behind is measured, not believed: registrations of every kind, tasks, threads, child
processes and open file descriptors are compared with a harness that never had the plugin (H-7).
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

import dsh_core as dsh
from dsh_core import AgentOptions, ApprovalGranted, Harness, PluginError, TurnResult, hookimpl, hookspecs
from dsh_core._markers import hook_mode

pytest.importorskip("dsh_llm_openai", reason="the plugins of this repository are not installed")

pytestmark = [pytest.mark.anyio, pytest.mark.plain_harness]

PLUGINS = (
    "compact-basic", "files", "instructions", "llm-openai", "permission", "persistence-jsonl", "shell",
)  # fmt: skip
HELD = ("permission", "persistence-jsonl")
"""A gate, and what stores the sessions: they stay as long as an agent lives."""

HOOKS = [name for name, spec in vars(hookspecs).items() if hook_mode(spec) is not None]


class Endpoint:
    """A model behind a real endpoint; every answer is decided by what it is asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append(request)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in _answer(request):
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="endpoint")
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Call the tool that the prompt names, once; else say `done`."""
    last = request["messages"][-1]
    said = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    if last["role"] == "user" and said.startswith("CALL "):
        _, name, arguments = said.split(" ", 2)
        function = {"name": name, "arguments": arguments}
        delta: dict[str, Any] = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
        finish = "tool_calls"
    else:
        delta, finish = {"content": "done"}, "stop"
    yield {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    yield {"object": "chat.completion.chunk", "choices": [],
           "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}  # fmt: skip


class Yes:
    """Whoever is asked says yes."""

    name = "yes"

    def __init__(self) -> None:
        self.asked: list[str] = []

    @hookimpl
    def approval_request(self, approval: Any) -> ApprovalGranted:
        """Grant it."""
        self.asked.append(approval.call.name)
        return ApprovalGranted()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """The model."""
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture
def room(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and directories of its own for state and configuration."""
    for name in ("work", "config", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / ".git").mkdir()
    (tmp_path / "work" / "AGENTS.md").write_text("Mind the gap.\n")
    (tmp_path / "config" / "config.toml").write_text(
        'model = "local/scripted"\n[permissions]\ndeny = ["bash(rm *)"]\n', encoding="utf-8"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("DSH_LOCAL_BASE_URL", endpoint.url)
    for variable in ("DSH_DISABLE_PLUGIN_AUTOLOAD", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@asynccontextmanager
async def everything(room: Path, *, without: str | None = None) -> AsyncIterator[tuple[Harness, Yes]]:
    """A harness as the command line makes it: whatever is installed."""
    if without is not None:
        with (room / "config" / "config.toml").open("a") as file:
            file.write(f'[plugins]\ndisable = ["{without}"]\n')
    yes = Yes()
    async with Harness(plugins=[yes], cwd=str(room / "work")) as harness:
        states = {each.name: each.state for each in harness.plugins.list() if each.name in PLUGINS}
        assert states == {name: "disabled" if name == without else "loaded" for name in PLUGINS}
        yield harness, yes


@asynccontextmanager
async def agent_of(harness: Harness, room: Path, session_id: str) -> AsyncIterator[dsh.Agent]:
    """An agent in the project."""
    async with await harness.agents.create(session_id, options=AgentOptions(), cwd=str(room / "work")) as handle:
        yield handle.agent


async def asked(agent: dsh.Agent, tool: str, **arguments: Any) -> tuple[TurnResult, Any]:
    """A turn in which the model makes one call; its result."""
    result = await agent.send(f"CALL {tool} {json.dumps(arguments)}")
    assert (result.reason.kind, result.text) == ("completed", "done"), result.reason
    (answer,) = [event.data for event in result.events if event.type == "tool/result"]
    return result, answer


# -- using each ------------------------------------------------------------------------------------------


async def use_files(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """Writes and reads."""
    async with agent_of(harness, room, session_id) as agent:
        _, wrote = await asked(agent, "write", path=f"{session_id}.txt", content="one\n")
        assert not wrote.is_error, wrote
        assert (room / "work" / f"{session_id}.txt").read_text() == "one\n"
        _, read = await asked(agent, "read", path=f"{session_id}.txt")
        assert "one" in read.content[0].text
        _, found = await asked(agent, "grep", pattern="one")
        assert f"{session_id}.txt" in found.content[0].text


async def use_shell(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """Runs a command, and leaves one running in the background."""
    async with agent_of(harness, room, session_id) as agent:
        _, echoed = await asked(agent, "bash", command="echo $((6 * 7))", description="count")
        assert "42" in echoed.content[0].text
        _, left = await asked(agent, "bash", command="sleep 600", description="wait", background=True)
        assert not left.is_error, left
        assert any(child.name() == "sleep" for child in psutil.Process().children(recursive=True))


async def use_instructions(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """The model reads what the project says."""
    async with agent_of(harness, room, session_id) as agent:
        await agent.send("hello")
        assert "Mind the gap." in json.dumps(endpoint.requests[-1]["messages"])


async def use_llm_openai(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """A request through the SDK."""
    async with agent_of(harness, room, session_id) as agent:
        before = len(endpoint.requests)
        assert str(await agent.send("hello")) == "done"
        assert len(endpoint.requests) == before + 1


async def use_permission(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """Denies what the configuration denies."""
    async with agent_of(harness, room, session_id) as agent:
        _, denied = await asked(agent, "bash", command="echo x && rm -r .git", description="clean")
        assert denied.error.code == "DENIED"
        assert (room / "work" / ".git").is_dir()


async def use_persistence(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """A session that is stored and resumed."""
    async with agent_of(harness, room, session_id) as agent:
        await agent.send("remember this")
    assert harness.persistence is not None
    stored = await harness.persistence.inspect(session_id)
    types = [event.type for event in stored.events]
    assert (types.count("user/message"), types[-1]) == (1, "turn/end")
    async with await harness.agents.resume(session_id) as handle:
        assert str(await handle.agent.send("and now?")) == "done"
    assert "remember this" in json.dumps(endpoint.requests[-1]["messages"])


async def use_compact(harness: Harness, room: Path, endpoint: Endpoint, session_id: str) -> None:
    """The command for people shortens a long conversation."""
    async with agent_of(harness, room, session_id) as agent:
        for number in range(3):
            await agent.send(f"part {number}: " + "so much to say " * 2_000)
        command = harness.commands.get("compact")
        assert command is not None
        assert (await command.handler(agent, "")).startswith("Compacted: about ")
        assert str(await agent.send("go on")) == "done"
        assert "part 0" not in json.dumps(endpoint.requests[-1]["messages"])


USES: dict[str, Callable[[Harness, Path, Endpoint, str], Any]] = {
    "compact-basic": use_compact,
    "files": use_files,
    "instructions": use_instructions,
    "llm-openai": use_llm_openai,
    "permission": use_permission,
    "persistence-jsonl": use_persistence,
    "shell": use_shell,
}


# -- what is left ----------------------------------------------------------------------------------------


def registered(harness: Harness) -> dict[str, Any]:
    """Everything that anybody has registered, by name."""
    tasks = [task.get_name() for task in asyncio.all_tasks()]
    return {
        "tools": sorted(definition.name for definition in harness.tools.list()),
        "providers": harness.llm.providers(),
        "models": harness.llm.models(),
        "sections": sorted(harness.system_prompt._sections),
        "variables": sorted(harness.system_prompt._variables),
        "commands": [command.name for command in harness.commands.list()],
        "services": sorted(kind.__name__ for kind in harness._services._services),
        "hooks": {name: [each.plugin for each in harness.hooks.implementations(name)] for name in HOOKS},
        "plugins": sorted(each.name for each in harness.plugins.list() if each.state == "loaded"),
        "writes": harness.writer is not None,
        # The writer begins with the first session that is stored, and ends with the store.
        "tasks": sorted(name for name in tasks if name != "dsh-persistence-writer" or harness.writer is None),
        # Threads of the loop's own pool stay for the next one who needs them.
        "threads": sorted(each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")),
        "children": sorted(child.pid for child in psutil.Process().children(recursive=True)),
    }


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the directory's own, closed by now
            continue
    return sorted(name.partition(":")[0] if name.startswith(("socket:", "pipe:")) else name for name in found)


async def left(before: Mapping[str, Any], harness: Harness) -> dict[str, Any]:
    """What differs from before, once what is ending has ended."""
    for _ in range(100):
        now = {**registered(harness), "descriptors": descriptors()}
        differs = {what: (before[what], now[what]) for what in before if before[what] != now[what]}
        if not differs:
            return {}
        await asyncio.sleep(0.02)
    return differs


@pytest.fixture
async def warm(room: Path, endpoint: Endpoint) -> None:
    """What is imported and opened once in a process is not a plugin's fault."""
    async with everything(room) as (harness, _):
        for name, use in USES.items():
            await use(harness, room, endpoint, f"warm-{name}")


# -- the rules -------------------------------------------------------------------------------------------


async def test_all_plugins_of_the_repository_work_together(room: Path, endpoint: Endpoint) -> None:
    """H-8: found through their entry points, in one harness; autoloaded tools ask, the gate judges."""
    async with everything(room) as (harness, yes):
        info = {each.name: each for each in harness.plugins.list()}
        assert {info[name].distribution for name in PLUGINS} == {
            "dsh-compact-basic", "dsh-llm-openai", "dsh-permission", "dsh-persistence-jsonl", "dsh-tools-local",
        }  # fmt: skip
        for name, use in USES.items():
            await use(harness, room, endpoint, f"s-{name}")
        assert yes.asked == ["write"]  # nobody has to be asked for what only reads or waits


@pytest.mark.parametrize("name", PLUGINS)
async def test_an_unloaded_plugin_leaves_nothing_and_can_be_loaded_again(
    name: str, room: Path, endpoint: Endpoint, warm: None
) -> None:
    """H-7: registrations, tasks, threads, processes, descriptors are those of a harness that never had it."""
    async with everything(room, without=name) as (harness, _):
        before = {**registered(harness), "descriptors": descriptors()}
        for round_ in range(3):
            info = await harness.plugins.load(name)
            assert (info.state, info.name) == ("loaded", name)
            await USES[name](harness, room, endpoint, f"s{round_}")
            await harness.plugins.unload(name)
            assert await left(before, harness) == {}


@pytest.mark.parametrize("name", PLUGINS)
async def test_what_is_loaded_by_itself_can_be_unloaded_and_the_rest_goes_on(
    name: str, room: Path, endpoint: Endpoint, warm: None
) -> None:
    """H-7: of plugins that were there from the start; the others still work."""
    async with everything(room) as (harness, _):
        await USES[name](harness, room, endpoint, "used")
        await harness.plugins.unload(name)
        now = registered(harness)
        assert name not in now["plugins"]
        assert not [hook for hook, plugins in now["hooks"].items() if name in plugins]
        for other, use in USES.items():
            if other != name and not {other, name} & {"llm-openai"} and (other, name) != ("permission", "shell"):
                await use(harness, room, endpoint, f"after-{other}")
        await harness.plugins.load(name)
        await USES[name](harness, room, endpoint, "again")


@pytest.mark.parametrize("name", PLUGINS)
async def test_what_agents_depend_on_stays_while_one_lives(name: str, room: Path, endpoint: Endpoint) -> None:
    """H-7: gates and the store refuse; the others go, and the agent takes its next prompt."""
    async with everything(room) as (harness, _):
        async with agent_of(harness, room, "lives") as agent:
            await agent.send("hello")
            if name in HELD:
                with pytest.raises(PluginError, match=f"'{name}' .* cannot be unloaded while an agent lives"):
                    await harness.plugins.unload(name)
                assert str(await agent.send("go on")) == "done"
            else:
                await harness.plugins.unload(name)
                result = await agent.send("go on")
                assert result.reason.kind == ("error" if name == "llm-openai" else "completed")
                await harness.plugins.load(name)
                assert str(await agent.send("go on")) == "done"
        if name in HELD:
            await harness.plugins.unload(name)


async def test_a_store_handed_in_by_code_stays_while_an_agent_lives(room: Path, endpoint: Endpoint) -> None:
    """H-7, L-16: sessions do not silently stop being stored, whoever loaded the store."""
    from dsh_persistence_jsonl import JsonlPlugin

    async with Harness(plugins=[JsonlPlugin(), Yes()], autoload=False, config={}) as harness:
        handle = await harness.agents.create("a")
        with pytest.raises(PluginError, match="stores the sessions of the agents"):
            await harness.plugins.unload("persistence-jsonl")
        await handle.dispose()
        await harness.plugins.unload("persistence-jsonl")
        assert harness.writer is None
        async with await harness.agents.create("b") as other:
            other.agent.inject("kept in memory")
        await harness.plugins.load(JsonlPlugin())
        async with await harness.agents.create("c") as third:
            third.agent.inject("stored")
        assert harness.persistence is not None
        assert (await harness.persistence.has("b"), await harness.persistence.has("c")) == (False, True)


async def test_a_command_that_runs_is_ended_when_the_shell_is_unloaded(room: Path, endpoint: Endpoint) -> None:
    """pair-7, H-7: the call ends with an error, its processes are gone, the agent goes on."""
    async with everything(room) as (harness, _):
        harness.plugins.grace = 0.1
        async with agent_of(harness, room, "lives") as agent:
            receipt = agent.send('CALL bash {"command": "sleep 600", "description": "wait"}')
            while not any(child.name() == "sleep" for child in psutil.Process().children(recursive=True)):
                await asyncio.sleep(0.02)
            await harness.plugins.unload("shell")
            result = await receipt
            (answer,) = [event.data for event in result.events if event.type == "tool/result"]
            assert (answer.is_error, answer.error.code) == (True, "INTERRUPTED")
            assert not any(child.name() == "sleep" for child in psutil.Process().children(recursive=True))
            assert str(await agent.send("go on")) == "done"


async def test_leaving_the_harness_leaves_nothing(room: Path, endpoint: Endpoint, warm: None) -> None:
    """H-7: also of plugins that nobody unloaded."""
    threads, files, children = set(threading.enumerate()), descriptors(), psutil.Process().children(recursive=True)
    tasks = asyncio.all_tasks()
    async with everything(room) as (harness, _):
        for name, use in USES.items():
            await use(harness, room, endpoint, f"s-{name}")
    await asyncio.sleep(0)
    assert psutil.Process().children(recursive=True) == children
    assert {each for each in threading.enumerate() if not each.name.startswith("asyncio_")} <= threads
    assert descriptors() == files
    assert asyncio.all_tasks() == tasks
