"""
From command-line options to a configured harness.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core import ENTRY_POINT_GROUP, GATE_ENTRY_POINT_GROUP, Config, ConfigError, Harness

if TYPE_CHECKING:
    from dsh_cli.terminal import Terminal

__all__ = ["Settings", "inspection_config", "load_config", "opened_harness"]


@attrs.frozen(kw_only=True)
class Settings:
    """
    What the command line says.

    Args:
        model: `provider/model`, or None for the configuration's.
        plugins: Values of `-p`, such as `no:retry`.
        permission_mode: Mode of the permission gate, or None for the configuration's.
        max_steps: Steps a turn may have, or None for the configuration's.
        front_end: Name of the plugin that may answer questions, or None when nobody is there.
    """

    model: str | None = None
    plugins: tuple[str, ...] = ()
    permission_mode: str | None = None
    max_steps: int | None = None
    front_end: str | None = "cli"


def load_config(settings: Settings, cwd: str) -> Config:
    """
    The configuration with the command line as its last layer.

    Raises:
        ConfigError: A value of `-p` is malformed, or the configuration is wrong.
    """
    overrides: dict[str, Any] = {}
    if settings.model is not None:
        overrides["model"] = settings.model
    if settings.max_steps is not None:
        overrides["max_steps"] = settings.max_steps
    if settings.permission_mode is not None:
        overrides["permissions"] = {"mode": settings.permission_mode}
    disabled = _disabled(settings.plugins)
    base = Config.load(cwd, overrides=overrides)
    if disabled:
        overrides["plugins"] = {"disable": [*base.plugins.disable, *disabled]}
    if settings.front_end is not None and base.approval.by is None:
        overrides["approval"] = {"by": settings.front_end}
    return Config.load(cwd, overrides=overrides)


def inspection_config(cwd: str, *, only_storage: bool = False) -> Config:
    """
    The configuration for a command that only looks: no agent is created, nobody may answer questions.

    Args:
        cwd: The working directory.
        only_storage: Import no plugin but the one that stores sessions.

    Raises:
        ConfigError: The configuration is wrong.
    """
    config = load_config(Settings(front_end=None), cwd)
    overrides: dict[str, Any] = {"agents": []}
    if only_storage:
        wanted = f"persistence-{config.persistence}"
        overrides["plugins"] = {"require": [], "disable": [name for name in _installed() if name != wanted]}
    return Config.load(cwd, overrides=overrides)


def _installed() -> list[str]:
    return sorted({*entry_points(group=ENTRY_POINT_GROUP).names, *_gates()})


def _gates() -> set[str]:
    return set(entry_points(group=GATE_ENTRY_POINT_GROUP).names)


def _require_known(disabled: Sequence[str], known: Sequence[str]) -> None:
    for name in disabled:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"-p no:{name}: there is no plugin {name!r}; {hint}")


def _disabled(values: Sequence[str]) -> list[str]:
    for value in values:
        if not value.startswith("no:") or value == "no:":
            raise ConfigError(f"-p {value!r} is not understood; write -p no:NAME to switch plugin NAME off")
    return [value.removeprefix("no:") for value in values]


@asynccontextmanager
async def opened_harness(
    settings: Settings, terminal: Terminal, plugins: Sequence[object] = (), cwd: str | None = None
) -> AsyncIterator[Harness]:
    """
    A harness for a command that runs agents: with a gate, or by explicit wish without one.

    Raises:
        ConfigError: No gate is loaded and the mode is not `full-trust`.
    """
    where = cwd or os.getcwd()
    config = load_config(settings, where)
    for warning in config.warnings:
        terminal.warn(warning)
    async with Harness(plugins=plugins, config=config, cwd=where) as harness:
        _require_known(_disabled(settings.plugins), [info.name for info in harness.plugins.list()])
        if settings.permission_mode != "full-trust":
            _require_gates(harness, config)
        yield harness


def _require_gates(harness: Harness, config: Config) -> None:
    off = sorted(_gates().intersection(config.plugins.disable))
    if off:
        raise ConfigError(
            f"the permission gate {', '.join(off)} is switched off (plugins.disable or -p no:…); "
            "switch it on, or say --permission-mode full-trust to run every tool call unasked"
        )
    if not harness.hooks.implementations("tools_pre_execute"):
        raise ConfigError(
            "no permission gate is loaded, so every tool call would run unasked; install dsh-permission, "
            "or say --permission-mode full-trust"
        )
