"""
The installed and the built-in plugins, made ready to be loaded.

What cannot be imported or built is left out with its cause, unless the harness must not start without it (H-8).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core._discovery import Candidate, autoload_switched_off, build, installed
from dsh_core._failures import blame, describe
from dsh_core._loading import PluginInfo, PluginState
from dsh_core._plans import BUILT_IN
from dsh_core._selection import Selected, select
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from dsh_core.config import Config

__all__ = ["BUILT_IN", "BY_NAME", "CONFIGURED", "Assembly", "Built", "assemble", "info_of"]

_log: Final = logging.getLogger("dsh")

CONFIGURED: Final = 1
BY_NAME: Final = 2


@attrs.frozen(eq=False)
class Built:
    """
    A plugin that is ready to be loaded.

    Args:
        plugin: The object or module.
        info: What is known of it.
        group: Its group in the list of H-2.
        required: It cannot be unloaded while an agent lives.
        fatal: The harness does not start without it.
    """

    plugin: object
    info: PluginInfo
    group: int
    required: bool
    fatal: bool


@attrs.frozen(eq=False)
class Assembly:
    """
    What there is besides the plugins passed in.

    Args:
        built: The plugins, in order.
        left_out: Those that are not loaded, with the reason.
    """

    built: list[Built] = attrs.field(factory=list)
    left_out: list[PluginInfo] = attrs.field(factory=list)


def assemble(
    config: Config, taken: Mapping[str, str], builtins: Sequence[tuple[str, object]], *, autoload: bool
) -> Assembly:
    """
    Find, import and build.

    Args:
        config: The configuration.
        taken: Names of the plugins passed in by code, with their origins.
        builtins: The built-in plugins with their names.
        autoload: Whether plugins nobody named are loaded too; the environment may switch it off.

    Raises:
        PluginError: A plugin that must not be missing is missing, broken, or there twice.
    """
    result = Assembly()
    names = [name for name, _ in builtins]
    for each in _selected(config, taken, names, result.left_out, autoload=autoload and not autoload_switched_off()):
        _build(each, config, result)
    origins = {**taken, **{each.info.name: each.info.origin for each in result.built}}
    for name, plugin in builtins:
        info = PluginInfo(name=name, origin="built-in")
        if name in config.plugins.disable:
            result.left_out.append(attrs.evolve(info, state="disabled", error="disabled by plugins.disable"))
        elif name in origins:
            replaced = f"replaced by the one from {origins[name]}"
            result.left_out.append(attrs.evolve(info, state="refused", error=replaced))
        else:
            result.built.append(Built(plugin, info, BUILT_IN, required=False, fatal=True))
    return result


def _selected(
    config: Config, taken: Mapping[str, str], builtins: Collection[str], left_out: list[PluginInfo], *, autoload: bool
) -> list[Selected]:
    if not autoload and not config.plugins.require:
        return []  # nothing can be wanted, so what is installed is not even looked at
    selection = select(config, installed(), taken, builtins=builtins, autoload=autoload)
    left_out += [info_of(candidate, "disabled", reason) for candidate, reason in selection.left_out]
    for candidate, before in selection.duplicates:
        reason = f"its name is taken: there is one from {before}"
        _log.warning("plugin %s from %s is refused: %s", candidate.name, candidate.origin, reason)
        left_out.append(info_of(candidate, "refused", reason))
    return selection.chosen


def _build(selected: Selected, config: Config, result: Assembly) -> None:
    candidate, began = selected.candidate, perf_counter()
    try:
        plugin = build(candidate, config)
    except BaseException as error:  # a plugin may even call sys.exit when it is imported
        if blame(error, candidate.name).plugin is None:
            raise
        _refuse_if_needed(selected, config, error)
        result.left_out.append(info_of(candidate, "failed", describe(error)))
        return
    info = attrs.evolve(info_of(candidate, "loading"), load_ms=(perf_counter() - began) * 1000)
    result.built.append(Built(plugin, info, selected.group, required=selected.required, fatal=selected.required))


def _refuse_if_needed(selected: Selected, config: Config, error: BaseException) -> None:
    candidate = selected.candidate
    message = f"plugin {candidate.name!r} ({candidate.origin}) cannot be loaded: {describe(error)}"
    if selected.required or config.plugins.strict:
        raise PluginError(
            f"{message}; mend it, uninstall it, or disable it with plugins.disable", plugin=candidate.name
        ) from error
    _log.warning("%s", message)


def info_of(candidate: Candidate, state: PluginState, error: str | None = None) -> PluginInfo:
    """What is known of an installed plugin."""
    return PluginInfo(
        name=candidate.name,
        distribution=candidate.distribution,
        version=candidate.version,
        origin=candidate.origin,
        state=state,
        error=error,
    )
