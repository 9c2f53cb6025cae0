"""
Which of the installed plugins are to be loaded, in which order, and which of them must not fail (H-2, H-8, H-9).

Decided from configuration and names alone; nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from dsh_core._discovery import PERSISTENCE_PREFIX, Candidate
from dsh_core._hookcheck import nearest
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dsh_core.config import Config

__all__ = ["Selected", "Selection", "select"]

DEFAULT_BACKEND = "jsonl"
"""Nobody has asked for this one, so it may be missing: sessions then stay in memory."""


@attrs.frozen
class Selected:
    """
    An installed plugin to load.

    Args:
        candidate: The plugin.
        group: Its group in the list of H-2: 1 if the configuration names it, else 2.
        required: Its failure is fatal.
    """

    candidate: Candidate
    group: int
    required: bool


@attrs.frozen
class Selection:
    """
    What becomes of the installed plugins.

    Args:
        chosen: To load, in order.
        left_out: Not to load, with the reason.
        duplicates: Second ones of a name, with where the first comes from.
    """

    chosen: list[Selected]
    left_out: list[tuple[Candidate, str]]
    duplicates: list[tuple[Candidate, str]]


def select(
    config: Config,
    candidates: Sequence[Candidate],
    taken: Mapping[str, str],
    *,
    builtins: Collection[str] = (),
    autoload: bool = True,
) -> Selection:
    """
    Decide.

    Args:
        config: The configuration.
        candidates: The installed plugins in order.
        taken: Names of plugins passed in by code, with their origins.
        builtins: Names of the built-in plugins.
        autoload: Whether plugins nobody named are loaded too.

    Raises:
        PluginError: A plugin the configuration requires is missing or switched off, or there are two of it.
    """
    settings = config.plugins
    named = _named(config, autoload=autoload)
    _refuse_contradictions(settings.require, settings.disable)
    _refuse_missing(named, {each.name for each in candidates}.union(taken, builtins), settings.disable)
    selection = Selection([], [], [])
    first: dict[str, Candidate] = {}
    for each in candidates:
        why_not = _why_not(each, config, named, autoload=autoload)
        required = each.gate or each.name in named
        backend = each.name == f"{PERSISTENCE_PREFIX}{config.persistence}"
        before = taken.get(each.name) or (first[each.name].origin if each.name in first else None)
        if why_not is not None:
            selection.left_out.append((each, why_not))
        elif before is not None:
            if required:
                raise _two_of_one_name(each, before)
            selection.duplicates.append((each, before))
        else:
            first[each.name] = each
            selection.chosen.append(Selected(each, 1 if each.name in named else 2, required or backend))
    places = {name: place for place, name in enumerate(named)}
    selection.chosen.sort(key=lambda each: (each.group, places.get(each.candidate.name, 0)))
    return selection


def _named(config: Config, *, autoload: bool) -> list[str]:
    """The plugins the configuration names, in its order; without autoload a table alone asks for nothing."""
    names = [*config.plugins.require]
    if autoload:
        names += config.plugins.tables
        backend = config.persistence
        if backend is not None and backend != DEFAULT_BACKEND:
            names.append(PERSISTENCE_PREFIX + backend)
    return list(dict.fromkeys(names))


def _why_not(candidate: Candidate, config: Config, named: Collection[str], *, autoload: bool) -> str | None:
    name = candidate.name
    if name in config.plugins.disable:
        return "disabled by plugins.disable"
    if name.startswith(PERSISTENCE_PREFIX) and name != PERSISTENCE_PREFIX + (config.persistence or ""):
        return f"not selected: persistence is {config.persistence or 'none'!r}"
    if not autoload and name not in named:
        return "autoload is off"
    return None


def _refuse_contradictions(require: Iterable[str], disable: Collection[str]) -> None:
    both = [name for name in require if name in disable]
    if both:
        raise PluginError(
            f"plugins.require and plugins.disable both name {', '.join(both)}; remove it from one of them", "CONFIG"
        )


def _refuse_missing(named: Iterable[str], there: Collection[str], disable: Collection[str]) -> None:
    for name in named:
        if name not in there and name not in disable:
            raise PluginError(
                f"the configuration names plugin {name!r}, which is not installed{nearest(name, there)}; "
                "install it, or remove the name from the configuration",
                "PLUGIN_NOT_FOUND",
                plugin=name,
            )


def _two_of_one_name(candidate: Candidate, before: str) -> PluginError:
    return PluginError(
        f"there are two plugins named {candidate.name!r}: one from {before}, one from {candidate.origin}; "
        "it is required, so one of them has to go",
        "PLUGIN_DUPLICATE",
        plugin=candidate.name,
    )
