"""
The plugins of a harness: which are loaded, from where, in which order; loading and unloading at run time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core._assembly import BUILT_IN, BY_NAME, CONFIGURED, assemble, info_of
from dsh_core._discovery import build, installed, name_of
from dsh_core._failures import blame, describe
from dsh_core._hookcheck import nearest
from dsh_core._loading import GRACE_SECONDS, Loaded, PluginInfo
from dsh_core._ownership import current_owner
from dsh_core.errors import HarnessError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_core.agent.types import Agent
    from dsh_core.config import Config
    from dsh_core.harness import Harness
    from dsh_core.hooks import Hooks

__all__ = ["PluginInfo", "PluginManager"]

_log: Final = logging.getLogger("dsh")

_LISTED, _AT_RUN_TIME, _SCOPED = 0, 3, 4
"""Groups of the list of H-2; the others are `assemble`'s."""


class PluginManager:
    """
    `harness.plugins`.

    Args:
        harness: The harness.
        hooks: Where implementations are registered.
        config: For `[plugins]` and `persistence`.
        builtins: The built-in plugins with their names, in order.
    """

    def __init__(
        self, harness: Harness, hooks: Hooks, config: Config, *, builtins: Sequence[tuple[str, object]] = ()
    ) -> None:
        self._harness = harness
        self._hooks = hooks
        self._config = config
        self._builtins = builtins
        self._loaded: dict[tuple[str | None, str], Loaded] = {}
        self._others: list[PluginInfo] = []
        self._count = 0
        self.grace = GRACE_SECONDS

    # -- the start ---------------------------------------------------------------------------------------

    async def startup(self, plugins: Sequence[object] = (), *, autoload: bool = True) -> None:
        """
        Load the plugins passed in, those installed, and the built-in ones, in this order.

        All are registered before the first is started, so that no `start` runs before every gate is there.

        Args:
            plugins: Plugin objects.
            autoload: Also load installed plugins nobody has named.

        Raises:
            PluginError: A plugin that must not be missing cannot be loaded: one passed in, one the
                configuration names, a gate, with `plugins.strict` any. Call `shutdown` then, too.
        """
        loads: list[Loaded] = []
        for plugin in plugins:
            self._refuse_taken(plugin, name_of(plugin), [*self._loaded.values(), *loads])
            info = PluginInfo(name=name_of(plugin), origin="plugins=")
            required = info.name in self._config.plugins.require
            loads.append(self._make(plugin, info, _LISTED, required=required, fatal=True))
        found = assemble(
            self._config, {each.name: each.info.origin for each in loads}, self._builtins, autoload=autoload
        )
        self._others += found.left_out
        for built in found.built:
            loads.append(self._make(built.plugin, built.info, built.group, required=built.required, fatal=built.fatal))
        self._warn_of_tables(loads)
        self._loaded.update({(None, each.name): each for each in loads})
        loads = self._surviving(loads, lambda load: load.declare(self._hooks))
        loads = self._surviving(loads, lambda load: load.register(self._hooks, self._harness))
        for each in loads:
            try:
                await each.start(self._harness)
            except PluginError as error:
                self._give_up(each, error)

    def _make(
        self,
        plugin: object,
        info: PluginInfo,
        group: int,
        *,
        required: bool = False,
        fatal: bool = False,
        scope: str | None = None,
    ) -> Loaded:
        self._count += 1
        return Loaded.make(
            plugin,
            info,
            (group, self._count),
            trusted=group not in (CONFIGURED, BY_NAME),
            required=required,
            fatal=fatal or required or self._config.plugins.strict,
            scope=scope,
        )

    def _warn_of_tables(self, loads: Sequence[Loaded]) -> None:
        for each in loads:
            if each.place[0] in (_LISTED, BUILT_IN) and self._config.plugins.tables.get(each.name):
                origin = each.info.origin
                _log.warning("[plugins.%s] has no effect: the plugin (%s) was made without it", each.name, origin)

    def _surviving(self, loads: Sequence[Loaded], step: Callable[[Loaded], None]) -> list[Loaded]:
        """Take a step with each; those that fail are left out."""
        survivors: list[Loaded] = []
        for each in loads:
            try:
                step(each)
                survivors.append(each)
            except PluginError as error:
                self._give_up(each, error)
        return survivors

    def _give_up(self, load: Loaded, error: PluginError) -> None:
        """Leave a plugin out that cannot be loaded, if the harness may start without it."""
        self._loaded.pop((load.scope, load.name), None)
        load.undo()
        self._others.append(attrs.evolve(load.info, state="failed", error=str(error)))
        if load.fatal:
            raise error
        _log.warning("%s; it is left out", error, exc_info=error)

    # -- asking ------------------------------------------------------------------------------------------

    def list(self) -> list[PluginInfo]:
        """The plugins in the order in which they run, then those that are not loaded."""
        loaded = sorted(self._loaded.values(), key=lambda each: each.place)
        return [*(each.info for each in loaded), *self._others]

    # -- loading at run time -----------------------------------------------------------------------------

    async def load(self, plugin: object, name: str | None = None) -> PluginInfo:
        """
        Load a plugin now.

        Args:
            plugin: A plugin object or module, or the name of an installed plugin.
            name: Its name; see `name_of` for the default.

        Raises:
            PluginError: It cannot be loaded; nothing of it is left. `list` shows it as failed.
        """
        if isinstance(plugin, str):
            plugin, info = self._installed(plugin, name)
        else:
            info = PluginInfo(name=name or name_of(plugin), origin="load")
        self._refuse_taken(plugin, info.name, list(self._loaded.values()))
        self._others = [each for each in self._others if each.name != info.name]
        load = self._make(plugin, info, _AT_RUN_TIME)
        await self._load(load)
        return load.info

    def _installed(self, name: str, called: str | None) -> tuple[object, PluginInfo]:
        candidates = installed()
        candidate = next((each for each in candidates if each.name == name), None)
        if candidate is None:
            hint = nearest(name, [each.name for each in candidates])
            raise PluginError(f"no plugin {name!r} is installed{hint}", "PLUGIN_NOT_FOUND", plugin=name)
        try:
            plugin = build(candidate, self._config)
        except BaseException as error:
            if blame(error, name).plugin is None:
                raise
            raise PluginError(
                f"plugin {name!r} ({candidate.origin}) cannot be loaded: {describe(error)}", plugin=name
            ) from error
        return plugin, attrs.evolve(info_of(candidate, "loading"), name=called or name)

    async def _load(self, load: Loaded) -> None:
        key = (load.scope, load.name)
        self._loaded[key] = load
        try:
            load.declare(self._hooks)
            load.register(self._hooks, self._harness)
            await load.start(self._harness)
        except BaseException as error:
            load.undo()
            self._loaded.pop(key, None)
            if load.scope is None and isinstance(error, PluginError):
                self._others.append(attrs.evolve(load.info, state="failed", error=str(error)))
            raise

    def _refuse_taken(self, plugin: object, name: str, present: Sequence[Loaded], scope: str | None = None) -> None:
        for each in present:
            if each.plugin is plugin and each.scope in (None, *self._hooks.scopes_of(scope)):
                raise PluginError(f"this plugin is loaded already, as {each.name!r} ({each.info.origin})", plugin=name)
            if each.name == name and each.scope == scope:
                raise PluginError(
                    f"there is a plugin named {name!r} already ({each.info.origin}); give one of them another name "
                    "with its attribute `name`",
                    "PLUGIN_DUPLICATE",
                    plugin=name,
                )

    # -- agents' own plugins -----------------------------------------------------------------------------

    async def load_scoped(self, agent: Agent, plugins: Sequence[object]) -> None:
        """
        Load plugins for one agent and its descendants.

        Raises:
            PluginError: One cannot be loaded; none of them is left.
        """
        try:
            for plugin in plugins:
                info = PluginInfo(name=name_of(plugin), origin=f"agent {agent.id}")
                self._refuse_taken(plugin, info.name, list(self._loaded.values()), agent.id)
                await self._load(self._make(plugin, info, _SCOPED, scope=agent.id))
        except BaseException:
            await self._unload_all(self._of(agent.id))
            raise

    async def unload_scoped(self, agent_id: str) -> None:
        """Unload an agent's own plugins and close its scope; failures are logged."""
        await self._unload_all(self._of(agent_id))
        self._hooks.close_scope(agent_id)

    def _of(self, agent_id: str) -> Sequence[Loaded]:
        return [each for each in self._loaded.values() if each.scope == agent_id]

    # -- unloading ---------------------------------------------------------------------------------------

    async def unload(self, name: str) -> None:
        """
        Unload a plugin: undo all its registrations, let running calls end or end them, stop it.

        It goes on when the caller is cancelled.

        Args:
            name: Its name.

        Raises:
            PluginError: There is no such plugin, it may not go while an agent lives, or its `stop` failed.
            HarnessError: Called from inside one of its own hooks, tools or tasks (`WOULD_DEADLOCK`).
        """
        load = self._find(name)
        _refuse_deadlock(load)
        if (load.required or load.owner.held) and self._harness.agents.list():
            why = "is required" if load.required else "stores the sessions of the agents"
            raise PluginError(
                f"plugin {name!r} {why}, so it cannot be unloaded while an agent lives; dispose of the agents first",
                "PLUGIN_REQUIRED",
                plugin=name,
            )
        if load.info.state == "unloading":
            raise PluginError(f"plugin {name!r} is being unloaded already", plugin=name)
        await asyncio.shield(self._harness.spawn_internal(self._unload(load), name=f"dsh-unload-{name}"))

    def _find(self, name: str) -> Loaded:
        found = self._loaded.get((None, name))
        if found is None:
            scoped = [each for each in self._loaded.values() if each.name == name]
            found = scoped[0] if len(scoped) == 1 else None
        if found is None:
            hint = nearest(name, [each.name for each in self._loaded.values()])
            raise PluginError(f"no plugin {name!r} is loaded{hint}", "PLUGIN_NOT_FOUND", plugin=name)
        return found

    async def _unload(self, load: Loaded) -> None:
        try:
            await load.take_down(self.grace)
        finally:
            self._loaded.pop((load.scope, load.name), None)

    async def _unload_all(self, loads: Sequence[Loaded]) -> None:
        for load in reversed(loads):
            try:
                await self._unload(load)
            except PluginError as error:
                _log.error("%s", error, exc_info=error)

    async def shutdown(self) -> None:
        """Unload everything, the last one loaded first; failures are logged."""
        await self._unload_all(list(self._loaded.values()))


def _refuse_deadlock(load: Loaded) -> None:
    task = asyncio.current_task()
    inside = current_owner() is load.owner or any(call.task is task for call in load.owner.running)
    if inside or task in load.owner.tasks:
        raise HarnessError(
            f"plugin {load.name!r} cannot be unloaded from inside its own hook, tool or task: that would wait for "
            "itself; do it from a task of the harness's user",
            "WOULD_DEADLOCK",
        )
