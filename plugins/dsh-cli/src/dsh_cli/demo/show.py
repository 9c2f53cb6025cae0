"""
The process that watches: starts the first act, kills it in the middle of a tool call, starts the second.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from dsh_cli.exits import COMPLETED, FAILED
from dsh_cli.terminal import Terminal

__all__ = ["show_demo"]

_NOTES = "Kill it anywhere, open it again, session is valid.\n"


def show_demo(keep: bool) -> int:
    """
    Run the demo.

    Args:
        keep: Leave the workspace and the log where they are.

    Returns:
        0 when both acts went as they should, else 1.
    """
    terminal = Terminal()
    room = Path(tempfile.mkdtemp(prefix="dsh-demo-"))
    try:
        keep = keep or terminal.out.isatty()
        completed = _show(room, terminal, keep)
        return COMPLETED if completed else FAILED
    finally:
        if not keep:
            shutil.rmtree(room, ignore_errors=True)


def _show(room: Path, terminal: Terminal, kept: bool) -> bool:
    workspace = room / "workspace"
    workspace.mkdir()
    (workspace / "notes.txt").write_text(_NOTES, encoding="utf-8")
    environment = _environment(room)
    terminal.line("dsh demo: a scripted model, everything else is real (loop, tools, gate, log, kill).")
    terminal.line(f"workspace {workspace}")
    terminal.line("")
    terminal.line("ACT 1  a turn runs; in the middle of a tool call the process is killed with SIGKILL")
    killed = _act("first", workspace, environment, terminal)
    terminal.line("")
    terminal.line("ACT 2  a new process opens the same session and goes on")
    went_on = _act("second", workspace, environment, terminal)
    logs = sorted((room / "state").rglob("*.jsonl"))
    terminal.line("")
    if not (killed == -signal.SIGKILL and went_on == 0 and logs):
        terminal.error(f"the demo did not go as it should (exit codes {killed} and {went_on}, {len(logs)} logs)")
        return False
    _explain(logs[0], terminal, kept)
    return True


def _environment(room: Path) -> dict[str, str]:
    switches = ("DSH_DISABLE_PLUGIN_AUTOLOAD", "DSH_MODEL")
    kept = {name: value for name, value in os.environ.items() if name not in switches}
    return {**kept, "DSH_STATE_DIR": str(room / "state"), "DSH_CONFIG_DIR": str(room / "config")}


def _act(name: str, workspace: Path, environment: dict[str, str], terminal: Terminal) -> int:
    command = [sys.executable, "-m", "dsh_cli.demo.turn", name]
    with subprocess.Popen(
        command, cwd=workspace, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            kind, _, words = line.rstrip("\n").partition("\t")
            terminal.line(f"  {kind:<8}{words}")
            if kind == "RUNNING":
                process.kill()
                terminal.line("  KILL    kill -9")
    return process.returncode


def _explain(log: Path, terminal: Terminal, kept: bool) -> None:
    events = log.read_text(encoding="utf-8").splitlines()
    terminal.line("What you saw: the accepted prompt, the calls and the results were on disk before the kill.")
    terminal.line("Opening the session closed the interrupted turn: the model was told that its call may have")
    terminal.line("taken effect, nothing was run a second time behind your back, and the next prompt worked.")
    terminal.line("")
    terminal.line(f"The log: {len(events) - 1} events, one JSON object a line, in")
    terminal.line(f"  {log}")
    if kept:
        terminal.line(f"  (read it with: less {log})")
    else:
        terminal.line("  (taken away again; dsh demo --keep, or a run in a terminal, leaves it there)")
