"""
What is known of a hook: its mode, its arguments, and what its implementations may return.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core._markers import Mode, hook_mode
from dsh_core._results import ENDS, MERGES, RESULTS, Merge, Types, types_of
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["UNTIMED", "Spec", "read_spec"]

UNTIMED = frozenset({"approval_request"})
"""Hooks in which a person answers: they have a time limit of their own."""


@attrs.frozen(eq=False)
class Spec:
    """
    A hook as it was declared.

    Args:
        name: Its name.
        mode: How it runs.
        arguments: Names of its arguments, in order.
        defaults: Values of the arguments that may be left out.
        value: Position of the argument that a transform hands on.
        results: Types that may be returned, None where that is not checked.
        merge: Joins a new value of a transform with the current one.
        ends: An answer of this type ends a transform.
        plugin: The plugin that declared it, None for the core.
        doc: Its documentation.
    """

    name: str
    mode: Mode
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    value: int | None
    results: Types | None
    merge: Merge | None
    ends: type | None
    plugin: str | None
    doc: str

    @property
    def around(self) -> int:
        """Position of `call_next`."""
        return self.arguments.index("call_next")


def read_spec(name: str, function: Callable[..., Any], plugin: str | None) -> Spec:
    """
    Read a declaration.

    Args:
        name: Name of the hook.
        function: The function marked with `hookspec`.
        plugin: Who declares it, None for the core.

    Raises:
        PluginError: It has no mode, or lacks the argument its mode works with.
    """
    mode = hook_mode(function)
    if mode is None:
        raise PluginError(f"hookspec {name!r} has no mode; declare it with @dsh.hookspec(mode=...)", plugin=plugin)
    parameters = {each: value for each, value in inspect.signature(function).parameters.items() if each != "self"}
    arguments = tuple(parameters)
    needed = "call_next" if mode.mode == "around" else mode.value
    if needed is not None and needed not in arguments:
        raise PluginError(f"{mode.mode} hookspec {name!r} has no argument {needed!r}; add it", plugin=plugin)
    return Spec(
        name=name,
        mode=mode.mode,
        arguments=arguments,
        defaults={each: value.default for each, value in parameters.items() if value.default is not value.empty},
        value=arguments.index(mode.value) if mode.value is not None else None,
        results=RESULTS.get(name) if plugin is None else types_of(function, mode.mode),
        merge=MERGES.get(name) if plugin is None else None,
        ends=ENDS.get(name) if plugin is None else None,
        plugin=plugin,
        doc=inspect.getdoc(function) or "",
    )
