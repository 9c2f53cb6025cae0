"""
Which plugins are installed, and what a plugin's entry point turns into. Nothing is imported to find out.
"""

from __future__ import annotations

import contextvars
import inspect
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._markers import ENTRY_POINT_GROUP, GATE_ENTRY_POINT_GROUP
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_core.config import Config

__all__ = ["NO_AUTOLOAD", "PERSISTENCE_PREFIX", "Candidate", "autoload_switched_off", "build", "installed", "name_of"]

NO_AUTOLOAD: Final = "DSH_DISABLE_PLUGIN_AUTOLOAD"
PERSISTENCE_PREFIX: Final = "persistence-"

IMPORT_SECONDS = 30.0
"""How long the import of one plugin may take before it is left out."""


@attrs.frozen
class Candidate:
    """
    An installed plugin that has not been imported.

    Args:
        name: Name of its entry point.
        target: What the entry point names, `module` or `module:attribute`.
        distribution: The distribution that brings it.
        version: That distribution's version.
        gate: Also listed in the group of gates.
        entry_point: For importing it.
    """

    name: str
    target: str
    distribution: str | None
    version: str | None
    gate: bool
    entry_point: Any = attrs.field(repr=False, eq=False)

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        where = f" of {self.distribution} {self.version}" if self.distribution else ""
        return f"entry point {self.target}{where}"


def autoload_switched_off() -> bool:
    """Whether the environment says that installed plugins are not loaded by themselves."""
    return os.environ.get(NO_AUTOLOAD, "") not in ("", "0")


def installed() -> list[Candidate]:
    """The installed plugins by name, then distribution: an order that does not depend on the disk (H-2)."""
    from importlib_metadata import entry_points  # ~50 ms, needed only when plugins are looked for

    gates = {each.name: each for each in entry_points(group=GATE_ENTRY_POINT_GROUP)}
    found = [_candidate(each, each.name in gates) for each in entry_points(group=ENTRY_POINT_GROUP)]
    names = {each.name for each in found}
    found += [_candidate(each, True) for name, each in gates.items() if name not in names]
    return sorted(found, key=lambda each: (each.name, each.distribution or "", each.target))


def _candidate(entry_point: Any, gate: bool) -> Candidate:
    distribution = entry_point.dist
    return Candidate(
        entry_point.name,
        entry_point.value,
        distribution.name if distribution is not None else None,
        distribution.version if distribution is not None else None,
        gate,
        entry_point,
    )


def name_of(plugin: object) -> str:
    """A plugin object is named by its attribute `name`, else by its class; a module by its own name."""
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name and not inspect.isclass(plugin):
        return name
    if isinstance(plugin, ModuleType) or inspect.isclass(plugin):
        return plugin.__name__
    return type(plugin).__name__


def build(candidate: Candidate, config: Config) -> object:
    """
    Import a plugin and make the object of it.

    Args:
        candidate: The plugin.
        config: For its table, `[plugins.NAME]`.

    Raises:
        PluginError: Its import does not end, or it has a table but takes no configuration.
        BaseException: Whatever its code raises, `SystemExit` included.
    """
    target = _imported(candidate)
    table = config.plugins.tables.get(candidate.name)
    if not isinstance(target, type):
        _refuse_table(candidate.name, table)
        return target
    config_class = getattr(target, "Config", None)
    if inspect.isclass(config_class) and attrs.has(config_class):
        return target(config.structure(table or {}, config_class, f"plugins.{candidate.name}"))
    _refuse_table(candidate.name, table)
    return target()


def _imported(candidate: Candidate) -> Any:
    """Import in a thread, so that a module which hangs can be left out like any other broken one."""
    if candidate.target.partition(":")[0] in sys.modules:
        return candidate.entry_point.load()
    outcome: list[Any] = []
    failure: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome.append(context.run(candidate.entry_point.load))
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits
            failure.append(error)

    thread = threading.Thread(target=work, name=f"dsh-import-{candidate.name}", daemon=True)
    thread.start()
    thread.join(IMPORT_SECONDS)
    if failure:
        raise failure[0]
    if not outcome:
        raise PluginError(
            f"its import has not ended after {IMPORT_SECONDS:g} s and is abandoned", plugin=candidate.name
        )
    return outcome[0]


def _refuse_table(name: str, table: Mapping[str, Any] | None) -> None:
    if table:
        raise PluginError(
            f"plugin {name!r} takes no configuration, but [plugins.{name}] sets {', '.join(sorted(table))}; "
            "remove the table, or give the plugin's class an attrs class `Config`",
            "CONFIG",
            plugin=name,
        )
