"""
The parameters of a function with their type hints resolved, wherever the function was defined.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from dsh_core.tools.definition import ToolContext

__all__ = ["Parameter", "call_name", "parameters_of"]

NO_DEFAULT: Final = inspect.Parameter.empty
_CONTEXT_TEXT: Final = re.compile(r"(?:\w+\.)*ToolContext(?:\s*\|\s*None)?|(?:\w+\.)*Optional\[(?:\w+\.)*ToolContext\]")


@attrs.frozen
class Parameter:
    """
    One parameter of a tool's function.

    Args:
        name: Its name.
        hint: The resolved type hint, with `Annotated` metadata.
        default: What the function uses by itself, or `inspect.Parameter.empty`.
        is_context: It receives the call's `ToolContext` and is not an argument of the model's.
    """

    name: str
    hint: Any = attrs.field(hash=False)
    default: Any = attrs.field(default=NO_DEFAULT, hash=False)
    is_context: bool = False

    @property
    def required(self) -> bool:
        """The model has to give it."""
        return self.default is NO_DEFAULT

    @property
    def note(self) -> str | None:
        """A plain text in the hint, `Annotated[str, "Name of the city"]`."""
        metadata = getattr(self.hint, "__metadata__", ())
        return next((item for item in metadata if isinstance(item, str)), None)


def call_name(function: Callable[..., Any]) -> str:
    """A function's own name, for messages and as the name of its tool."""
    return getattr(function, "__name__", "") or type(function).__name__


def parameters_of(function: Callable[..., Any], local_names: Mapping[str, Any]) -> list[Parameter]:
    """
    Read a function's parameters.

    Args:
        function: A function, method, partial or object with `__call__`.
        local_names: Names that are visible where the function is made into a tool; they resolve hints
            that name local classes.

    Raises:
        TypeError: A parameter has no hint, one that cannot be resolved, or cannot be passed by name; the
            message names function and parameter.
    """
    tool = call_name(function)
    module_names, enclosed = _names_of(function)
    visible = {**local_names, **enclosed}
    return [
        _read(tool, parameter, module_names, visible) for parameter in inspect.signature(function).parameters.values()
    ]


def _read(tool: str, parameter: inspect.Parameter, module_names: dict[str, Any], visible: dict[str, Any]) -> Parameter:
    where = f"parameter {parameter.name!r} of tool {tool!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError(
            f"{where} is {parameter.kind.description}, which a model cannot give by name; "
            "name each argument as an ordinary parameter"
        )
    if parameter.annotation is parameter.empty:
        raise TypeError(f"{where} has no type hint; {_advice_on_missing_hint(parameter.name)}")
    hint = _resolve(where, parameter.annotation, module_names, visible)
    return Parameter(parameter.name, hint, parameter.default, any(_context_types(hint)))


def _advice_on_missing_hint(name: str) -> str:
    if name in ("self", "cls"):
        return "make the bound method a tool, `tool(thing.method)`, not the function in the class body"
    return f"add one, such as `{name}: str`"


def _resolve(where: str, annotation: Any, module_names: dict[str, Any], visible: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, module_names, visible, include_extras=True)["it"]
    except Exception as error:  # evaluating a hint runs arbitrary expressions
        # ToolContext is often imported for type checkers only; its name alone says what is meant.
        if isinstance(annotation, str) and _CONTEXT_TEXT.fullmatch(annotation.strip()):
            return ToolContext
        raise TypeError(
            f"the type hint {annotation!r} of {where} cannot be resolved ({error}); define or import what it "
            "names where the function is defined, and not for type checkers only"
        ) from error


def _context_types(hint: Any) -> Iterator[bool]:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        yield isinstance(option, type) and issubclass(option, ToolContext)


def _names_of(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of the function's module, and those it closes over."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__code__"):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - the method itself is wanted
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None) or ()
    enclosed = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            enclosed[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return getattr(inner, "__globals__", {}), enclosed
