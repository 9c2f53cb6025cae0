"""
`dsh plugins`, `dsh hooks`, `dsh config`: what is there, in which order, and why.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import attrs

from dsh_cli.exits import COMPLETED
from dsh_cli.settings import Settings, inspection_config, load_config
from dsh_cli.terminal import Terminal, prints_aside
from dsh_core import ENTRY_POINT_GROUP, ConfigError, Harness, PluginError, PluginInfo

__all__ = ["explain_config", "list_plugins", "show_config", "show_hooks", "show_plugin"]


def list_plugins(*, as_json: bool) -> int:
    """
    Print the plugins; where they cannot be loaded together, what is installed, without importing any of it.

    Args:
        as_json: One JSON object a line.

    Raises:
        PluginError: One that must not be missing is broken; raised after the list was printed.
    """

    def show(infos: Iterable[PluginInfo], terminal: Terminal) -> None:
        for info in infos:
            terminal.json(_json(info)) if as_json else terminal.line(_line(info))

    try:
        return _with_harness(lambda harness, terminal: show(harness.plugins.list(), terminal))
    except PluginError as broken:
        show(_installed(broken), Terminal())
        raise


def _installed(broken: PluginError) -> list[PluginInfo]:
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name)
    return [
        PluginInfo(
            name=each.name,
            distribution=each.dist.name if each.dist is not None else None,
            version=each.dist.version if each.dist is not None else None,
            origin=f"entry point {each.value}",
            state="failed" if each.name == broken.plugin else "disabled",
            error=None if each.name == broken.plugin else "not loaded: the start was refused",
        )
        for each in found
    ]


def show_plugin(name: str) -> int:
    """
    Print one plugin.

    Raises:
        ConfigError: There is none of this name; the message says which name is near.
    """

    def show(harness: Harness, terminal: Terminal) -> None:
        infos = {info.name: info for info in harness.plugins.list()}
        if name not in infos:
            raise ConfigError(f"there is no plugin {name!r}{_nearest(name, infos)}")
        for field, value in attrs.asdict(infos[name]).items():
            terminal.line(f"{field:<14}{', '.join(value) if isinstance(value, list | tuple) else value}")

    return _with_harness(show)


def show_hooks(name: str | None) -> int:
    """
    Print who implements a hook, in effective order; all hooks when no name is given.

    Raises:
        ConfigError: There is no such hook; the message says which name is near.
    """

    def show(harness: Harness, terminal: Terminal) -> None:
        specs = {spec.name: spec for spec in harness.hooks.specs()}
        if name is not None and name not in specs:
            raise ConfigError(f"there is no hook {name!r}{_nearest(name, specs)}")
        for hook, spec in specs.items():
            if name not in (None, hook):
                continue
            terminal.line(f"{hook}  [{spec.mode}]  ({', '.join(spec.arguments)})")
            for position, found in enumerate(harness.hooks.implementations(hook), 1):
                marks = [mark for mark in (found.band, "wrapper" if found.wrapper else "") if mark]
                terminal.line(f"  {position}. {found.plugin}{'  ' + ', '.join(marks) if marks else ''}")

    return _with_harness(show)


def show_config() -> int:
    """Print each value that is set and where it comes from."""
    terminal = Terminal()
    config = load_config(Settings(front_end=None), os.getcwd())
    for key in sorted(config.origins):
        explained = config.explain(key)
        terminal.line(f"{key} = {json.dumps(explained.value, default=str, ensure_ascii=False)}  ({explained.origin})")
    for warning in config.warnings:
        terminal.warn(warning)
    return COMPLETED


def explain_config(key: str) -> int:
    """Print the value of a key and where it comes from."""
    terminal = Terminal()
    explained = load_config(Settings(front_end=None), os.getcwd()).explain(key)
    terminal.line(f"{key} = {json.dumps(explained.value, default=str, ensure_ascii=False)}")
    terminal.line(f"from {explained.origin}")
    return COMPLETED


def _with_harness(show: Callable[[Harness, Terminal], None]) -> int:
    async def inspect() -> int:
        terminal, cwd = Terminal(), os.getcwd()
        with prints_aside():
            async with Harness(config=inspection_config(cwd), cwd=cwd) as harness:
                show(harness, terminal)
        return COMPLETED

    return asyncio.run(inspect())


def _json(info: PluginInfo) -> str:
    return json.dumps(attrs.asdict(info), default=str, ensure_ascii=False)


def _line(info: PluginInfo) -> str:
    what = f"{info.distribution} {info.version}" if info.distribution else info.origin
    detail = f": {info.error}" if info.error else ""
    return f"{info.name:<20} {info.state:<9} {what}{detail}"


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
