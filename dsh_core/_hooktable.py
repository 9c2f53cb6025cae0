"""
What there is to call: declared hooks, registered implementations, scopes, tracers; and a plan for each call.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from dsh_core import hookspecs
from dsh_core._failures import describe
from dsh_core._hookcheck import argument_faults, find_hooks, nearest
from dsh_core._ownership import Owner, Registration, own
from dsh_core._plans import Implementation, Place, Plan, PlanMaker, Registered
from dsh_core._specs import Spec, read_spec
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from dsh_core._hooktrace import HookCall

__all__ = ["HookTable", "Reporter"]

_log: Final = logging.getLogger("dsh")
LATE: Final = 3
"""The group of H-2 of plugins that are loaded at run time."""

Reporter = Callable[[str, str, BaseException, Mapping[str, Any]], None]
"""`(hook, plugin, exception, arguments)`: told of failures that are contained."""


@cache
def core_specs() -> Mapping[str, Spec]:
    """The hooks of the core by name."""
    return {name: read_spec(name, each, None) for name, each in _declared(hookspecs)}


def _declared(namespace: object) -> list[tuple[str, Callable[..., Any]]]:
    """The functions of a module or class that are marked with `hookspec`."""
    functions = [(name, getattr(namespace, name, None)) for name in dir(namespace)]
    return [(name, each) for name, each in functions if callable(each) and hasattr(each, "dsh_spec")]


class _Plans(dict[str, "Plan | None"]):
    """Plans by hook, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], Plan | None]) -> None:
        self._make = make

    def __missing__(self, name: str) -> Plan | None:
        plan = self[name] = self._make(name)
        return plan


class HookTable:
    """
    The registry behind `Hooks`.

    Args:
        timeout: The configured time limit of awaited implementations (H-4), or None.
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        self._reporter: Reporter = self._log_failure
        self._maker = PlanMaker(timeout, self._contained)
        self._specs: dict[str, Spec] = dict(core_specs())
        self._maker.declare(hookspecs)
        self._registered: list[Registered] = []
        self._added = itertools.count()
        self._parents: dict[str, str | None] = {}
        self._shared = _Plans(self._make)
        self._scoped: dict[str, _Plans] = {}

    # -- registering -------------------------------------------------------------------------------------

    def add(
        self, plugin: object, *, name: str, owner: Owner, place: Place | None = None, scope: str | None = None
    ) -> Registered:
        """
        Register the implementations of a plugin; undone with its owner.

        Args:
            plugin: An object or a module.
            name: Its name.
            owner: It as an owner; current while its functions run.
            place: Its position in the list of H-2; behind those added before when left out.
            scope: The agent it is for, None for all.

        Raises:
            PluginError: One of its implementations cannot work; the message lists every fault.
        """
        place = place or (LATE, next(self._added))
        registered = Registered(name, plugin, owner, place, scope, find_hooks(plugin, name, self._specs))
        try:
            self._maker.add(registered)
        except Exception as error:  # whatever pluggy finds beyond our own checks
            raise PluginError(f"plugin {name!r} cannot be loaded: {error}", plugin=name) from error
        self._registered.append(registered)
        self._changed(scope)

        def undo() -> None:
            self._registered.remove(registered)
            self._maker.remove(registered)
            self._changed(scope)

        own(undo)
        return registered

    def declare(self, namespace: object, plugin: str) -> Registration:
        """
        Add the hookspecs a plugin brings.

        Args:
            namespace: A module or class with functions marked with `hookspec`.
            plugin: Who brings them.

        Raises:
            PluginError: There are none, one of them is taken, or another plugin's implementation of one
                does not fit.
        """
        specs = {name: read_spec(name, each, plugin) for name, each in _declared(namespace)}
        if not specs:
            raise PluginError(f"plugin {plugin!r} has `hookspecs` without a function marked with @dsh.hookspec",
                              plugin=plugin)  # fmt: skip
        for spec in specs.values():
            self._refuse_misfits(spec)
        self._maker.declare(namespace)
        self._specs.update(specs)
        self._changed()

        def undo() -> None:
            for name in specs:
                self._specs.pop(name, None)
                self._maker.withdraw_spec(name)
            self._changed()

        return own(undo)

    def _refuse_misfits(self, spec: Spec) -> None:
        taken = self._specs.get(spec.name)
        if taken is not None:
            raise PluginError(
                f"hook {spec.name!r} is declared by {taken.plugin or 'the core'!r} already, so {spec.plugin!r} "
                "cannot declare it too; rename one of the two",
                plugin=spec.plugin,
            )
        for registered in self._registered:
            faults = [
                fault for each in registered.found if each.hook == spec.name for fault in argument_faults(each, spec)
            ]
            if faults:
                raise PluginError(
                    f"hook {spec.name!r} of plugin {spec.plugin!r} cannot be declared, because plugin "
                    f"{registered.name!r} implements another form of it: {'; '.join(faults)}",
                    plugin=spec.plugin,
                )

    # -- scopes ------------------------------------------------------------------------------------------

    def open_scope(self, agent_id: str, parent_id: str | None = None) -> None:
        """An agent begins to exist; as a descendant it shares the plugins of its parent's scope (H-6)."""
        self._parents[agent_id] = parent_id
        self._scope(agent_id, {each.scope for each in self._registered if each.scope is not None})

    def close_scope(self, agent_id: str) -> None:
        """An agent is gone."""
        self._parents.pop(agent_id, None)
        self._scoped.pop(agent_id, None)

    def scopes_of(self, agent_id: str | None) -> tuple[str, ...]:
        """The agent and its ancestors, as far as they are open."""
        found: list[str] = []
        while agent_id is not None and agent_id not in found:
            found.append(agent_id)
            agent_id = self._parents.get(agent_id)
        return tuple(found)

    def _scope(self, agent_id: str, with_plugins: set[str]) -> None:
        """Give an agent plans of its own, or none: those no scoped plugin applies to share the harness's."""
        scopes = self.scopes_of(agent_id)
        if with_plugins.isdisjoint(scopes):
            self._scoped.pop(agent_id, None)
        else:
            self._scoped[agent_id] = _Plans(partial(self._make, scopes=scopes))

    def _changed(self, scope: str | None = None) -> None:
        """Throw away the plans that a change may touch: all, or those of one agent and its descendants."""
        with_plugins = {each.scope for each in self._registered if each.scope is not None}
        if scope is None:
            self._shared.clear()
        for agent_id in [*self._parents, *(with_plugins - self._parents.keys())]:
            if scope is None or scope in self.scopes_of(agent_id):
                self._scope(agent_id, with_plugins)

    def _make(self, name: str, scopes: tuple[str, ...] = ()) -> Plan | None:
        return self._maker.make(self._spec(name), scopes)

    def _plan(self, name: str, scope_id: str | None) -> Plan | None:
        plans: _Plans = self._scoped.get(scope_id, self._shared) if scope_id is not None else self._shared
        return plans[name]

    @property
    def plans(self) -> tuple[Mapping[str, Mapping[str, Plan | None]], Mapping[str, Plan | None]]:
        """The plans of agents that have some of their own, and everybody else's; both stay current."""
        return self._scoped, self._shared

    # -- asking ------------------------------------------------------------------------------------------

    def wants(self, name: str, scope_id: str | None = None) -> bool:
        """Whether anybody implements a hook, for the agent or session of this id."""
        plans = self._scoped.get(scope_id, self._shared) if scope_id is not None else self._shared
        return plans[name] is not None

    def implementations(self, name: str, agent_id: str | None = None) -> list[Implementation]:
        """
        Who implements a hook, in call order.

        Raises:
            LookupError: There is no such hook.
        """
        self._spec(name)
        return self._maker.implementations(name, self.scopes_of(agent_id))

    def trusts(self, plugin: str) -> bool:
        """Whether a plugin of this name was handed in by code, and none that was found by itself has it (L-14)."""
        owners = [registered.owner for registered in self._registered if registered.name == plugin]
        return bool(owners) and all(owner.trusted for owner in owners)

    def specs(self) -> list[Spec]:
        """All hooks by name."""
        return [self._specs[name] for name in sorted(self._specs)]

    def _spec(self, name: str) -> Spec:
        spec = self._specs.get(name)
        if spec is None:
            raise LookupError(f"there is no hook {name!r}{nearest(name, self._specs)}")
        return spec

    def trace(self, callback: Callable[[HookCall], None]) -> Registration:
        """
        Have every call of an implementation reported; when nobody traces, it costs nothing (H-5).

        Args:
            callback: Called with a `HookCall` after each implementation.
        """
        self._maker.tracers.append(callback)
        self._changed()

        def undo() -> None:
            self._maker.tracers.remove(callback)
            self._changed()

        return own(undo)

    # -- failures ----------------------------------------------------------------------------------------

    def set_reporter(self, reporter: Reporter) -> None:
        """Say who is told of failures that are contained; they are logged otherwise."""
        self._reporter = reporter

    def _contained(self, hook: str, plugin: str, error: BaseException, arguments: Mapping[str, Any]) -> None:
        try:
            self._reporter(hook, plugin, error, arguments)
        except Exception:  # noqa: BLE001 - reporting must not turn a contained failure into another one
            _log.exception("the failure of plugin %s in hook %s could not be reported: %s", plugin, hook, error)

    def _log_failure(self, hook: str, plugin: str, error: BaseException, arguments: Mapping[str, Any]) -> None:
        _log.warning("plugin %s failed in hook %s: %s", plugin, hook, describe(error), exc_info=error)
