"""
What must hold of the built wheels in a fresh virtual environment: nothing here knows the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dsh_core as dsh
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, text

DSH = str(Path(sys.executable).with_name("dsh"))
OURS = {"llm-openai", "persistence-jsonl", "compact-basic", "permission", "shell", "files", "instructions"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def run_dsh(*arguments, **environment):
    return subprocess.run(
        [DSH, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


def test_the_packages_come_from_the_wheels():
    assert "site-packages" in dsh.__file__


def test_every_plugin_is_found_through_its_entry_point():
    listed = run_dsh("plugins", "list")
    loaded = {line.split()[0] for line in listed.stdout.splitlines() if "loaded" in line.split()}
    assert listed.returncode == 0, listed.stderr
    assert loaded >= OURS | {"foreign"}


def test_the_demo_runs():
    shown = run_dsh("demo")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "KILL" in shown.stdout


@pytest.mark.anyio
async def test_a_foreign_plugin_changes_a_request_denies_a_call_and_adds_a_tool(tmp_path):
    script = ScriptedAdapter([calls(call("shout", words="hi"), call("whisper", words="hi")), text("done")])
    async with dsh.open(model="scripted/test", plugins=[ScriptedPlugin(script)], cwd=str(tmp_path)) as chat:
        result = await chat.ask("go")
    results = {
        m.content[0].tool_call_id: m.content[0]
        for m in result.messages
        if m.content[0:1] and hasattr(m.content[0], "tool_call_id")
    }
    script.assert_complete()
    assert str(result) == "done"
    assert script.requests[0].temperature == 0.25
    assert results["call_1"].content[0].text == "HI"
    assert results["call_2"].is_error
    assert "polite" in results["call_2"].content[0].text


@pytest.mark.anyio
async def test_a_session_is_stored_and_resumed(tmp_path):
    for number in (1, 2):
        script = ScriptedAdapter([text(f"answer {number}")])
        async with dsh.open("kept", model="scripted/test", plugins=[ScriptedPlugin(script)], cwd=str(tmp_path)) as chat:
            assert str(await chat.ask(f"question {number}")) == f"answer {number}"
    assert len(script.requests[0].messages) == 3


def test_configuration_reaches_a_foreign_plugin(tmp_path):
    (tmp_path / "config.toml").write_text("[plugins.foreign]\ntemperature = 'hot'\n", encoding="utf-8")
    refused = run_dsh("plugins", "list", DSH_CONFIG_DIR=str(tmp_path))
    assert refused.returncode == 2
    assert "plugins.foreign.temperature" in refused.stderr
    assert "Traceback" not in refused.stderr
