"""
Which implementations a hook call runs, and in which order.

pluggy keeps registration and validation; this module reads its `HookImpl`s, as the only one, and turns them
into plans: immutable tuples of steps in call order, made once per hook and scope and thrown away whenever
something is registered, withdrawn or traced. The order is that of stock pluggy with the plugins registered in
the reverse of the list of H-2, so that earlier in the list runs earlier within its band; a differential
test compares the two.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import pluggy

from dsh_core._hooktrace import HookCall, traced
from dsh_core._invoke import Step, in_thread
from dsh_core._specs import UNTIMED, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsh_core._hookcheck import Found
    from dsh_core._ownership import Owner

__all__ = ["BUILT_IN", "GATE_SECONDS", "Implementation", "Plan", "PlanMaker", "Registered"]

BUILT_IN: Final = 5
"""The group of H-2 of the core's own plugins."""

GATE_SECONDS = 30.0
"""Time limit of a coroutine gate where none is configured (H-4)."""

_AWAITED = ("checkpoint", "transform", "gate", "around", "drain", "first")
Place: TypeAlias = tuple[int, int]


class _Handle:
    """What pluggy knows a plugin by: its functions, compared by identity even if the plugin defines equality."""


@attrs.define(eq=False)
class Registered:
    """
    A plugin whose hook implementations take part in calls.

    Args:
        name: Its name.
        plugin: The plugin.
        owner: The plugin as an owner.
        place: Its position in the list of H-2: group, then position in the group.
        scope: The agent it is registered for, None for all.
        found: Its implementations.
    """

    name: str
    plugin: object
    owner: Owner
    place: Place
    scope: str | None
    found: list[Found]
    handle: _Handle = attrs.field(factory=_Handle, init=False)


@attrs.frozen
class Implementation:
    """
    One implementation as `dsh hooks` lists it, in call order.

    Args:
        plugin: Name of the plugin.
        band: `tryfirst`, `trylast` or empty.
        wrapper: Goes round the others.
        is_async: A coroutine function.
        agent_id: The agent it is registered for, None for all.
    """

    plugin: str
    band: str
    wrapper: bool
    is_async: bool
    agent_id: str | None


@attrs.frozen(eq=False)
class Plan:
    """
    What one call of a hook runs.

    Args:
        spec: The hook.
        steps: The implementations in call order.
        wrappers: The wrappers, the outermost first.
        report: Called with hook, plugin, exception and arguments for a failure that is contained.
    """

    spec: Spec
    steps: tuple[Step, ...]
    wrappers: tuple[Step, ...]
    report: Callable[[str, str, BaseException, Mapping[str, Any]], None]

    def failed(self, plugin: str, error: BaseException, args: Sequence[Any]) -> None:
        """Report a failure that ends here."""
        self.report(self.spec.name, plugin, error, dict(zip(self.spec.arguments, args, strict=False)))


class _Manager(pluggy.PluginManager):
    """pluggy's manager over handles; the options of their functions were read when the plugin was checked."""

    def __init__(self) -> None:
        super().__init__("dsh")
        self.registered: dict[_Handle, Registered] = {}

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        registered = self.registered.get(plugin) if isinstance(plugin, _Handle) else None
        if registered is None:
            return None
        found = next((each for each in registered.found if each.attribute == name), None)
        return dict(found.options) if found is not None else None


class PlanMaker:
    """
    Holds the registered implementations and makes plans of them.

    Args:
        timeout: The configured time limit, or None.
        report: See `Plan`.
    """

    def __init__(self, timeout: float | None, report: Callable[..., None]) -> None:
        self._manager = _Manager()
        self._timeout = timeout
        self._report = report
        self.tracers: list[Callable[[HookCall], None]] = []

    def declare(self, namespace: Any) -> None:
        """Add the hookspecs of a module or class."""
        self._manager.add_hookspecs(namespace)

    def withdraw_spec(self, name: str) -> None:
        """Take a hookspec back; implementations others made of it stay, without effect."""
        relay = vars(self._manager.hook)
        if name in relay:
            relay[name].spec = None
            if not relay[name].get_hookimpls():
                del relay[name]

    def add(self, registered: Registered) -> None:
        """Register implementations that have been checked."""
        for each in registered.found:
            setattr(registered.handle, each.attribute, each.function)
        self._manager.registered[registered.handle] = registered
        try:
            self._manager.register(registered.handle, name=f"{registered.name}@{id(registered.handle):x}")
        except BaseException:
            del self._manager.registered[registered.handle]
            raise

    def remove(self, registered: Registered) -> None:
        """Withdraw a plugin's implementations."""
        self._manager.unregister(registered.handle)
        self._manager.registered.pop(registered.handle, None)

    def make(self, spec: Spec, scopes: Sequence[str]) -> Plan | None:
        """The plan of a hook for an agent whose scopes these are, None when nobody implements it."""
        steps: list[Step] = []
        wrappers: list[Step] = []
        for impl, registered in self._in_order(spec.name, scopes):
            (wrappers if impl.wrapper else steps).append(self._step(spec, impl, registered))
        if not steps and not wrappers:
            return None
        return Plan(spec, tuple(steps), tuple(wrappers), self._report)

    def single(self, spec: Spec, registered: Registered) -> Plan | None:
        """The plan of a hook with one plugin's own implementations only."""
        mine = [each for each in self._in_order(spec.name, [registered.scope or ""]) if each[1] is registered]
        steps = [(impl.wrapper, self._step(spec, impl, registered)) for impl, _ in mine]
        if not steps:
            return None
        plain, wrappers = ([step for is_wrapper, step in steps if is_wrapper is wanted] for wanted in (False, True))
        return Plan(spec, tuple(plain), tuple(wrappers), self._report)

    def implementations(self, name: str, scopes: Sequence[str]) -> list[Implementation]:
        """The implementations of a hook in call order."""
        return [
            Implementation(
                registered.name,
                "tryfirst" if impl.tryfirst else "trylast" if impl.trylast else "",
                bool(impl.wrapper),
                _is_coroutine(impl.function),
                registered.scope,
            )
            for impl, registered in self._in_order(name, scopes)
        ]

    def _in_order(self, name: str, scopes: Sequence[str]) -> list[tuple[pluggy.HookImpl, Registered]]:
        caller = vars(self._manager.hook).get(name)
        if caller is None:
            return []
        chain = [
            (impl, registered)
            for impl in reversed(caller.get_hookimpls())  # pluggy calls from the end
            if (registered := self._manager.registered.get(impl.plugin)) is not None
            and (registered.scope is None or registered.scope in scopes)
        ]
        chain.sort(key=lambda each: _rank(*each))
        return chain

    def _step(self, spec: Spec, impl: pluggy.HookImpl, registered: Registered) -> Step:
        function: Callable[..., Any] = impl.function
        is_async = _is_coroutine(function)
        plain = registered.place[0] == BUILT_IN and not is_async
        limit = self._limit(spec, is_async)
        threaded = self._timeout is not None and spec.mode in _AWAITED and not (is_async or plain or impl.wrapper)
        if threaded:  # also where the limit is not ours: whoever is waited for must not hold up the others
            function, is_async = in_thread(function, f"dsh-{spec.name}-{registered.name}"), True
        function, pick = _by_position(function, impl.argnames, impl.kwargnames, spec.arguments)
        if self.tracers:
            function = traced(function, spec.name, registered.name, self._emit, wrapper=bool(impl.wrapper))
        named = (spec.name, registered.name, registered.owner)
        if pick is None:
            return Step(function, function, None, *named, is_async, limit, plain)
        taken = _picker(pick)
        return Step(lambda *args: function(*taken(args)), function, taken, *named, is_async, limit, plain)

    def _limit(self, spec: Spec, is_async: bool) -> float | None:
        """People take as long as they like; an around hook's clock stands still while what it wraps runs."""
        if spec.mode not in _AWAITED or spec.name in UNTIMED:
            return None
        return self._timeout if self._timeout is not None or spec.mode != "gate" else GATE_SECONDS

    def _emit(self, call: HookCall) -> None:
        for tracer in self.tracers:
            tracer(call)


def _rank(impl: pluggy.HookImpl, registered: Registered) -> tuple[int, int, int]:
    """Band, then place in the list; inside `trylast` pluggy's order runs the other way round."""
    band = 1 + bool(impl.trylast) - bool(impl.tryfirst) + (0 if impl.wrapper else 3)
    group, position = registered.place
    return (band, -group, -position) if impl.trylast else (band, group, position)


def _is_coroutine(function: Callable[..., Any]) -> bool:
    import inspect

    return inspect.iscoroutinefunction(function)


def _by_position(
    function: Callable[..., Any], required: Sequence[str], optional: Sequence[str], arguments: Sequence[str]
) -> tuple[Callable[..., Any], tuple[int, ...] | None]:
    """How to call a function with the hook's arguments in order: the function and the positions it takes."""
    names = [*required, *(name for name in optional if name in arguments)]
    pick = tuple(arguments.index(name) for name in names)
    if names != [*required, *optional][: len(names)]:  # an optional parameter of its own stands in between
        function = _with_keywords(function, len(required), names[len(required) :])
    return function, None if pick == tuple(range(len(arguments))) else pick


def _picker(pick: tuple[int, ...]) -> Callable[[Any], Sequence[Any]]:
    """What takes the values at these positions out of a sequence; built in, because every call of a hook does it."""
    if len(pick) > 1:
        return itemgetter(*pick)
    first = pick[0] if pick else 0
    return itemgetter(slice(first, first + len(pick)))


def _with_keywords(function: Callable[..., Any], positional: int, names: Sequence[str]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return function(*args[:positional], **dict(zip(names, args[positional:], strict=True)))

    return call
