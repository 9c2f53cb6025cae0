"""
Writes the parts of the documentation that are read off the code; `--check` only compares.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from dsh_core import hookspecs
from dsh_core._markers import hook_mode

HERE = Path(__file__).resolve().parent
MODES = {
    "observe": "synchronous, all are called; returns nothing; a failure is contained and reported",
    "checkpoint": "awaited one after the other; returns nothing; a failure ends the turn",
    "transform": "awaited, each gets the current value; returns a new value or None; a failure ends the turn",
    "gate": "awaited, all are asked, the strictest wins; returns a decision or None; a failure counts as deny",
    "around": "nested round the real thing; returns what `call_next()` gave or a replacement; fails like what it wraps",
    "drain": "awaited, all run even after a failure; returns nothing; failures are collected and reported",
    "first": "awaited until one answers; returns an answer or None; a failure is reported and the next one is asked",
    "check": "synchronous, before an append; returns nothing; a failure refuses the append",
    "collect": "synchronous, at load time; returns nothing; a failure keeps the plugin from loading",
}


def hooks() -> Iterator[tuple[str, object]]:
    """Every hook, in the order of the source."""
    for name, function in vars(hookspecs).items():
        if inspect.isfunction(function) and hook_mode(function) is not None:
            yield name, function


def hook_reference() -> str:
    """The hook reference as Markdown."""
    lines = [
        "# Hook reference",
        "",
        "Generated from `dsh_core/hookspecs.py`. An implementation takes any subset of the arguments, by name, and",
        "may be a plain function or a coroutine, except where the mode says synchronous.",
        "",
        "| mode | how it runs |",
        "|---|---|",
        *(f"| {mode} | {meaning} |" for mode, meaning in MODES.items()),
        "",
    ]
    for name, function in hooks():
        mode = hook_mode(function)
        assert mode is not None
        lines += [f"## `{name}`", "", f"**{mode.mode}** · `{name}{_signature(function)}`", "", *_body(function), ""]
    return "\n".join(lines).rstrip() + "\n"


def _signature(function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    names = ", ".join(f"{parameter.name}: {parameter.annotation}" for parameter in signature.parameters.values())
    return f"({names}) -> {signature.return_annotation}"


def _body(function: object) -> Iterator[str]:
    documentation = inspect.getdoc(function) or ""
    in_arguments = False
    for line in documentation.splitlines():
        if line in ("Args:", "Returns:", "Raises:"):
            in_arguments = line == "Args:"
            yield f"*{line.rstrip(':')}*"
            yield ""
        elif in_arguments and line.startswith("    ") and not line.startswith("     ") and ":" in line:
            argument, _, meaning = line.strip().partition(":")
            yield f"- `{argument}`:{meaning}"
        elif line.strip():
            yield f"  {line.strip()}" if in_arguments and line.startswith("     ") else line.strip()
        else:
            in_arguments = False
            yield ""


PAGES = {"reference/hooks.md": hook_reference}


def main(check: bool) -> int:
    """Write or compare every generated page; returns the exit code."""
    stale = []
    for name, make in PAGES.items():
        path = HERE / name
        text = make()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/{name} is out of date; run python docs/generate.py")  # noqa: T201 - this is a command
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
