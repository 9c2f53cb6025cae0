"""The main job with a real model behind a real server: the installed command, its tools, its gate and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(400)]

# What makes a model of 135M parameters reliable: few tools, no dice. A plugin as anybody could install it.
FEW_TOOLS = """
import attrs
import dsh_core

@dsh_core.hookimpl
def agent_request(request):
    kept = tuple(tool for tool in request.tools if tool.name in ("read", "glob"))
    return attrs.evolve(request, tools=kept, temperature=0.0, max_tokens=200, extra={"cache_prompt": False})
"""


class Room:
    """A place for the command: configuration, state, a project and the plugin above."""

    def __init__(self, path: Path, server: str) -> None:
        self.work, site = path / "work", path / "site"
        for folder in (self.work, path / "config", site / "few_tools-1.0.dist-info"):
            folder.mkdir(parents=True)
        (self.work / "README.md").write_text("# Plums\nThis project counts plums.\n", encoding="utf-8")
        (site / "few_tools.py").write_text(FEW_TOOLS, encoding="utf-8")
        info = site / "few_tools-1.0.dist-info"
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: few-tools\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[dsh]\nfew-tools = few_tools\n", encoding="utf-8")
        provider = f'[plugins.llm-openai.providers.local]\nbase_url = "{server}"\ncontext_window = 8192\n'
        (path / "config" / "config.toml").write_text(provider, encoding="utf-8")
        self.env = {
            **os.environ,
            "HOME": str(path),
            "PYTHONPATH": str(site),
            "DSH_CONFIG_DIR": str(path / "config"),
            "DSH_STATE_DIR": str(path / "state"),
            "DSH_MODEL": "local/smollm2",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command; its output is read line by line."""
        command = [str(Path(sys.executable).with_name("dsh")), *arguments]
        return subprocess.Popen(
            command, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        """Run the command to a good end and return its lines."""
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        return [json.loads(line) for line in out.splitlines()]

    def log(self, session: str) -> list[dict[str, Any]]:
        """The stored events."""
        return self.run("sessions", "show", session, "--events")


@pytest.fixture
def room(tmp_path: Path, real_model_server: str) -> Room:
    """A room whose model is the real one."""
    return Room(tmp_path, real_model_server)


def of_type(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The data of the events of one type."""
    return [event["data"] for event in events if event["type"] == name]


def test_a_real_model_reads_a_file_and_answers(room):
    """§7, §8: the answer streams, the call goes through the gate, everything is in the log."""
    *events, result = room.run("run", "Use read with path README.md", "--format", "stream-json", "--session", "real")
    (call,) = of_type(events, "tool/call")
    (output,) = of_type(events, "tool/result")
    assert (call["name"], json.loads(call["arguments"])) == ("read", {"path": "README.md"})
    assert "This project counts plums." in output["content"][0]["text"]
    assert result["reason"]["kind"] == "completed"
    assert result["text"].strip()
    assert result["usage"]["output"] > 0
    entries = [entry for data in of_type(events, "assistant/chunk") for entry in data["chunks"]]
    assert len(entries) > 10
    stored = room.log("real")
    assert stored[-len(events) :] == events
    assert of_type(stored, "assistant/message")[-1]["content"][-1]["text"] == result["text"]


def test_a_run_that_is_killed_in_the_middle_of_an_answer_goes_on(room):
    """P-3: kill -9 while a real answer streams; the session opens, its turn is closed, the next prompt works."""
    process = room.start("run", "Tell me a long story about a plum.", "--format", "stream-json", "--session", "cut")
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["type"] == "assistant/chunk":
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait(30) == -signal.SIGKILL
    *events, result = room.run("run", "Say hello.", "--format", "stream-json", "--resume", "cut")
    assert result["text"].strip()
    stored = room.log("cut")
    ends = [data["reason"]["kind"] for data in of_type(stored, "turn/end")]
    assert ends == ["interrupted", "completed"]
    prompts = [data["content"][0]["text"] for data in of_type(stored, "user/message")]
    assert prompts == ["Tell me a long story about a plum.", "Say hello."]
    assert stored[-len(events) :] == events
    assert [event["seq"] for event in stored] == list(range(len(stored)))
