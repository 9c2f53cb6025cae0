"""
What a plugin's hook implementations must look like, checked when it loads (H-1).

A slip that would otherwise show up as a gate that never fires, or as a hook called with the wrong values,
is an error here that names the plugin, the function and the nearest right name.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

import attrs
import pluggy

from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dsh_core._specs import Spec

__all__ = ["Found", "find_hooks", "nearest"]

_log: Final = logging.getLogger("dsh")
_finder: Final = pluggy.PluginManager("dsh")
_SYNCHRONOUS: Final = ("observe", "check", "collect")
_COMMON_NAMES: Final = frozenset({"register"})
"""Hook names that a plugin may well use for a method of its own."""


@attrs.frozen(eq=False)
class Found:
    """
    One implementation in a plugin.

    Args:
        attribute: Name of the function in the plugin.
        hook: Name of the hook.
        function: The function, bound.
        options: pluggy's options.
    """

    attribute: str
    hook: str
    function: Callable[..., Any]
    options: Mapping[str, Any]


def nearest(name: str, names: Iterable[str]) -> str:
    """A clause that suggests the most similar of `names`, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def find_hooks(plugin: object, name: str, specs: Mapping[str, Spec]) -> list[Found]:
    """
    The hook implementations of a plugin, checked.

    Args:
        plugin: The plugin: an object or a module.
        name: Its name, for messages.
        specs: The hooks there are.

    Raises:
        PluginError: Something in it cannot work; every fault is listed.
    """
    if inspect.isclass(plugin):
        raise PluginError(
            f"plugin {name!r} is the class {plugin.__name__}, not an object; pass {plugin.__name__}(...)", plugin=name
        )
    found = list(_implementations(plugin))
    faults = [fault for each in found for fault in _faults(each, specs)]
    if faults:
        raise PluginError(f"plugin {name!r} cannot be loaded: " + "; ".join(faults), plugin=name)
    if not found and not any(hasattr(plugin, each) for each in ("start", "stop", "hookspecs")):
        raise PluginError(
            f"plugin {name!r} ({_short(plugin)}) implements no hook; mark its methods with @dsh.hookimpl", plugin=name
        )
    _warn_unmarked(plugin, name, found, specs)
    return found


def _short(plugin: object) -> str:
    return f"an object of type {type(plugin).__name__}"


def _implementations(plugin: object) -> Iterator[Found]:
    for attribute in dir(plugin):
        options = _finder.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            hook = options.get("specname") or attribute
            yield Found(attribute, hook, getattr(plugin, attribute), dict(options))


def _warn_unmarked(plugin: object, name: str, found: list[Found], specs: Mapping[str, Spec]) -> None:
    marked = {each.attribute for each in found}
    for hook in specs.keys() - marked - _COMMON_NAMES:
        if inspect.isroutine(inspect.getattr_static(plugin, hook, None)):
            _log.warning("plugin %s: %s is not marked with @dsh.hookimpl, so it never runs", name, hook)


def _faults(found: Found, specs: Mapping[str, Spec]) -> Iterator[str]:
    options = found.options
    if options.get("hookwrapper"):
        yield f"{found.attribute} is an old-style hookwrapper; use wrapper=True, `result = yield` and return the result"
        return
    if options.get("tryfirst") and options.get("trylast"):
        yield f"{found.attribute} asks for both tryfirst and trylast; keep one of them"
    spec = specs.get(found.hook)
    if spec is None:
        if not options.get("optionalhook"):
            yield f"there is no hook {found.hook!r}{nearest(found.hook, specs)}"
        return
    yield from _shape_faults(found, spec)
    yield from argument_faults(found, spec)


def _shape_faults(found: Found, spec: Spec) -> Iterator[str]:
    function = found.function
    if found.options.get("wrapper"):
        if not inspect.isgeneratorfunction(function):
            yield f"wrapper {found.attribute} is not a plain generator function; write `result = yield; return result`"
        return
    if inspect.isgeneratorfunction(function):
        yield f"{found.attribute} is a generator; mark it with wrapper=True, or return instead of yielding"
    if inspect.isasyncgenfunction(function) and spec.mode != "around":
        yield f"{found.attribute} is an async generator; return the result instead of yielding"
    if inspect.iscoroutinefunction(function) and spec.mode in _SYNCHRONOUS:
        yield f"{found.attribute} is a coroutine, but {spec.mode} hooks are called synchronously; use plain def"


def argument_faults(found: Found, spec: Spec) -> Iterator[str]:
    """What is wrong with the parameters of an implementation."""
    try:
        parameters = list(inspect.signature(found.function).parameters.values())
    except (TypeError, ValueError):
        yield f"{found.attribute} has no readable signature; wrap it in a plain function"
        return
    swallowed = _swallowed(found.function, spec)
    if swallowed:
        yield f"{found.attribute} has no `self`, so its first parameter {swallowed!r} would be the plugin; add self"
    for parameter in parameters:
        fault = _parameter_fault(parameter, spec)
        if fault:
            yield f"{found.attribute} {fault}"


def _swallowed(function: Callable[..., Any], spec: Spec) -> str | None:
    """The hook argument that stands where `self` belongs."""
    plain = getattr(function, "__func__", None)
    code = getattr(inspect.unwrap(plain), "__code__", None) if plain is not None else None
    first = code.co_varnames[0] if code is not None and code.co_argcount else None
    return first if first in spec.arguments else None


def _parameter_fault(parameter: inspect.Parameter, spec: Spec) -> str | None:
    name, known = parameter.name, parameter.name in spec.arguments
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        return f"takes {star}{name}, which hooks never fill; name the arguments it needs: {', '.join(spec.arguments)}"
    if parameter.kind is parameter.KEYWORD_ONLY:
        return f"takes {name!r} by keyword only, but hooks pass arguments by position; remove the *"
    if known:
        return None
    hint = nearest(name, spec.arguments)
    # A parameter with a default may belong to a later version of the hook; a misspelt one may not.
    if parameter.default is not parameter.empty and not hint:
        return None
    return f"takes an argument {name!r} that the hook does not have{hint}; it has {', '.join(spec.arguments)}"
