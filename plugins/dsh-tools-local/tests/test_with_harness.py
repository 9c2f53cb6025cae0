"""The plugins in a real harness with a scripted model (30-plugins §6; H-7, L-10, A-7)."""

from __future__ import annotations

import asyncio
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from dsh_tools_local import FilesPlugin, InstructionsPlugin, ShellConfig, ShellPlugin

from dsh_core import Config, ConfigError, Harness, Session
from dsh_core.content import text_of
from dsh_core.session.events import ContextMessageEvent, ToolResultEvent, TurnEndEvent
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, text

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State, configuration and working directory of their own."""
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    work = tmp_path / "work"
    work.mkdir()
    return work


def harness(*script: Any) -> Harness:
    plugins = [ScriptedPlugin(ScriptedAdapter(list(script))), ShellPlugin(ShellConfig(grace=0.3)), FilesPlugin()]
    return Harness(plugins=[*plugins, InstructionsPlugin()], config={"model": "scripted/test"}, autoload=False)


def results(session: Session) -> list[ToolResultEvent]:
    return [event.data for event in session.events if isinstance(event.data, ToolResultEvent)]


def test_the_package_offers_its_plugins_by_entry_points() -> None:
    """H-8: classes in group `dsh`, each built with its structured configuration."""
    offered = distribution("dsh-tools-local").entry_points.select(group="dsh")
    classes = {entry.name: entry.load() for entry in offered}
    assert classes == {"shell": ShellPlugin, "files": FilesPlugin, "instructions": InstructionsPlugin}
    for name, cls in classes.items():
        built = cls(Config().structure({}, cls.Config, f"plugins.{name}"))
        assert built.name == name
    table = {"timeout": 5, "spill_dir": "/x", "keep_env": ["A"]}
    config = Config().structure(table, ShellPlugin.Config, "plugins.shell")
    assert config == ShellConfig(timeout=5.0, spill_dir=Path("/x"), keep_env=("A",))
    with pytest.raises(ConfigError, match=r"plugins\.shell\.grace: .*\nplugins\.shell\.timeout|timeout: .*\n.*grace: "):
        Config().structure({"timeout": 0, "grace": "x"}, ShellPlugin.Config, "plugins.shell")


async def test_a_turn_with_every_tool(places: Path) -> None:
    """§6: what the tools do reaches the log and the disk, in the session's working directory."""
    (places / "f.txt").write_bytes(b"one\r\ntwo\r\n")
    script = [
        call("read", path="f.txt"),
        call("edit", path="f.txt", old="two", new="2\n3"),
        call("write", path="new/g.txt", content="g"),
        call("glob", pattern="*.txt"),
        call("grep", pattern="^3"),
        call("bash", command="cat new/g.txt; exit 3"),
        text("done"),
    ]
    async with harness(*script) as h, await h.agents.create(cwd=str(places)) as handle:
        result = await handle.agent.send("go")
        found = results(handle.agent.session)
    assert (str(result), result.reason.kind) == ("done", "completed")
    assert (places / "f.txt").read_bytes() == b"one\r\n2\r\n3\r\n"
    assert [text_of(each.content) for each in found[3:]] == ["f.txt\nnew/g.txt", "f.txt:3:3", "g\n[exit code 3]"]
    assert [each.is_error for each in found] == [False] * 5 + [True]
    assert found[1].meta is not None
    assert "+3" in found[1].meta["diff"]


async def test_cancel_ends_the_tree_and_keeps_the_text_so_far(places: Path, children: Any) -> None:
    """tool-3, run-3, L-10: one result, with what was printed; the next turn works; nothing is left."""
    stubborn = "trap '' TERM; echo progress; touch started; while :; do sleep 0.1; done"
    async with harness(call("bash", command=stubborn), text("again")) as h:
        async with await h.agents.create(cwd=str(places)) as handle:
            handle.agent.send("go")
            while not (places / "started").exists():
                await asyncio.sleep(0.01)
            handle.agent.cancel()
            await handle.agent.when_idle()
            (only,) = results(handle.agent.session)
            assert text_of(only.content).startswith("progress\n[interrupted")
            assert only.is_error
            ends = [event.data for event in handle.agent.session.events if isinstance(event.data, TurnEndEvent)]
            assert [end.reason.kind for end in ends] == ["aborted"]
            assert not children()
            assert str(await handle.agent.send("go on")) == "again"


async def test_background_tasks_end_with_their_agent(places: Path, children: Any) -> None:
    """§6: owned by the session, ended on dispose."""
    script = [call("bash", command="sleep 60", background=True), call("bash", command="setsid sleep 60 &"), text("ok")]
    async with harness(*script) as h:
        async with await h.agents.create(cwd=str(places)) as handle:
            await handle.agent.send("go")
            assert children()
        for _ in range(200):
            if not children():
                break
            await asyncio.sleep(0.02)
        assert not children()


async def test_the_end_of_a_background_task_is_told_with_the_next_request(places: Path) -> None:
    """§6: a note that wakes nobody."""
    async with harness(call("bash", command="exit 4", background=True), text("ok")) as h:
        async with await h.agents.create(cwd=str(places)) as handle:
            await handle.agent.send("go")
            for _ in range(300):
                told = [event.data for event in handle.agent.session.events]
                notes = [data for data in told if isinstance(data, ContextMessageEvent)]
                if notes:
                    break
                await asyncio.sleep(0.01)
            (note,) = notes
            assert "ended with exit code 4" in text_of(note.content)
            assert handle.agent.status == "idle"


async def test_unloading_takes_the_tools_and_the_processes_along(places: Path, children: Any) -> None:
    """H-7: unloading undoes every registration; a running command is ended and answered."""
    script = [call("bash", command="touch started; sleep 60"), text("went on")]
    async with harness(*script) as h:
        async with await h.agents.create(cwd=str(places)) as handle:
            receipt = handle.agent.send("go")
            while not (places / "started").exists():
                await asyncio.sleep(0.01)
            await h.plugins.unload("shell")
            assert str(await receipt) == "went on"
            assert results(handle.agent.session)[0].is_error
        assert h.tools.get("bash") is None
        assert h.tools.get("read") is not None
        assert not children()


async def test_instructions_reach_the_model_and_changes_follow(places: Path) -> None:
    """§6: at session start, and when they change, before the next request."""
    (places / "AGENTS.md").write_text("speak plainly")
    adapter = ScriptedAdapter([call("bash", command="echo be brief > AGENTS.md"), text("a"), text("b")])
    plugins = [ScriptedPlugin(adapter), ShellPlugin(), InstructionsPlugin()]
    async with Harness(plugins=plugins, config={"model": "scripted/test"}, autoload=False) as h:
        async with await h.agents.create(cwd=str(places)) as handle:
            await handle.agent.send("go")
            await handle.agent.send("more")
    sent = ["\n".join(message.text for message in request.messages) for request in adapter.requests]
    assert ["speak plainly" in each for each in sent] == [True, True, True]
    assert ["be brief" in each and "instructions changed" in each for each in sent] == [False, True, True]
    assert sent[2].count("be brief") == 1
