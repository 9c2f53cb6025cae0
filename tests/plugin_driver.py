"""
A harness in a process of its own: loads what is installed on its path, takes turns, and writes down what it saw.

Usage: `python plugin_driver.py ORDER.json RESULT.json`; tests write the first and read the second, so that plugins
may print what they like.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import dsh_core as dsh
from dsh_core import _discovery
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, text


class Lines(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(record.getMessage())


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """Start, make the calls, and say what there was."""
    script = [item for name in order["calls"] for item in (call(name), text("ok"))]
    plugins = [ScriptedPlugin(ScriptedAdapter([*script, text("ok")]))]
    async with dsh.Harness(plugins=plugins, config=order["config"], autoload=order["autoload"]) as harness:
        async with await harness.agents.create("a", options=dsh.AgentOptions(model="scripted/m")) as handle:
            results = [await handle.agent.send("go") for _ in [*order["calls"], ""]]
            answers = [
                event.data.content[0].text for event in handle.agent.session.events if event.type == "tool/result"
            ]
        return {
            "plugins": {each.name: [each.state, each.error, each.origin] for each in harness.plugins.list()},
            "order": [each.name for each in harness.plugins.list() if each.state == "loaded"],
            "tools": sorted(each.name for each in harness.tools.list()),
            "answers": answers,
            "text": str(results[-1]),
            "seen": getattr(sys.modules.get("seen"), "calls", []),
        }


def main() -> None:
    """Run."""
    order = json.loads(Path(sys.argv[1]).read_text())
    _discovery.IMPORT_SECONDS = order["import_seconds"]
    lines = Lines()
    logging.getLogger("dsh").addHandler(lines)
    try:
        result = asyncio.run(run(order))
    except dsh.HarnessError as error:
        result = {"refused": str(error)}
    Path(sys.argv[2]).write_text(json.dumps({**result, "log": lines.lines}))


if __name__ == "__main__":
    main()
