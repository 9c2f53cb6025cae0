"""
`@tool`: a typed function becomes a tool (T-1).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import attrs
import msgspec

from dsh_core.tools.arguments import CallArguments
from dsh_core.tools.definition import ToolContext, ToolDefinition
from dsh_core.tools.docstrings import parse_docstring
from dsh_core.tools.hints import call_name, parameters_of
from dsh_core.tools.schema import arguments_schema, arguments_struct

if TYPE_CHECKING:
    from dsh_core.tools.hints import Parameter

__all__ = ["FunctionBody", "FunctionTool", "is_coroutine", "tool"]

P = ParamSpec("P")
R = TypeVar("R")


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether calling this gives a coroutine, also for objects with an `async def __call__`."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is wanted
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class FunctionBody:
    """
    What runs when a tool made of a function is called: JSON arguments in, the function's own types out.

    Args:
        function: The function.
        struct: The type of its arguments together.
        context_names: Its parameters that receive the `ToolContext`.
    """

    __slots__ = ("_context_names", "function", "is_coroutine", "struct")

    def __init__(
        self, function: Callable[..., Any], struct: type[msgspec.Struct], context_names: tuple[str, ...] = ()
    ) -> None:
        self.function = function
        self.struct = struct
        self._context_names = context_names
        self.is_coroutine = is_coroutine(function)

    def convert(self, arguments: Mapping[str, Any]) -> msgspec.Struct:
        """
        The arguments as the function's types.

        Raises:
            msgspec.ValidationError: They do not fit.
        """
        return msgspec.convert(arguments, self.struct, str_keys=True)

    def __call__(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        typed = arguments.take_typed() if type(arguments) is CallArguments else None
        if not isinstance(typed, self.struct):
            typed = self.convert(arguments)
        values = msgspec.structs.asdict(typed)
        for name in self._context_names:
            values[name] = context
        return self.function(**values)

    def __repr__(self) -> str:
        return f"<body of {call_name(self.function)!r}>"


@attrs.frozen(kw_only=True, repr=False)
class FunctionTool(ToolDefinition, Generic[P, R]):
    """A `ToolDefinition` made of a function; call it to call the function itself."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as it was written, without a harness; for tests and for other code."""
        result: R = self.execute.function(*args, **kwargs)  # type: ignore[attr-defined]
        return result

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    parallel: bool = False,
    repeatable: bool = False,
    timeout: float | None = None,
    max_output: int | None = None,
    thread: bool = True,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **facts: Any,
) -> Any:
    """
    Make a tool of a typed function.

    The schema comes from the type hints, the descriptions from the docstring (Google, NumPy or Sphinx
    style). A parameter annotated `ToolContext` receives the call's context. A plain function runs in a
    thread, or on the loop with `thread=False`; a coroutine function runs on the loop (T-1).

    Args:
        function: The function; left out when facts are given.
        name: Another name than the function's.
        description: Another description than the docstring's.
        facts: What `ToolDefinition` declares: `read_only`, `destructive`, `idempotent`, `open_world`,
            `parallel`, `repeatable`, `timeout`, `max_output`, `thread` (T-2).

    Returns:
        A `ToolDefinition` that can still be called like the function.

    Raises:
        TypeError: A parameter's hint is missing or unsupported, or a fact is unknown; the message names
            function and parameter.
    """
    _check_facts(facts)
    if function is not None:
        return _build(function, name, description, facts, sys._getframe(1).f_locals)

    def decorate(decorated: Callable[..., Any]) -> FunctionTool[Any, Any]:
        return _build(decorated, name, description, facts, sys._getframe(1).f_locals)

    return decorate


def _check_facts(facts: Mapping[str, Any]) -> None:
    known = [field.name for field in attrs.fields(ToolDefinition) if field.name not in _OWN_FIELDS]
    for fact in facts:
        if fact not in known:
            raise TypeError(f"tool() knows no {fact!r}; a tool declares {', '.join(known)}")


_OWN_FIELDS = ("name", "description", "parameters", "execute")


def _build(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    facts: Mapping[str, Any],
    local_names: Mapping[str, Any],
) -> FunctionTool[Any, Any]:
    name = name or call_name(function)
    _refuse_what_cannot_be_called(function, name)
    parameters = parameters_of(function, local_names)
    arguments = [parameter for parameter in parameters if not parameter.is_context]
    struct = arguments_struct(name, arguments)
    docs = parse_docstring(inspect.getdoc(function) if hasattr(function, "__name__") else None)
    return FunctionTool(
        name,
        docs.description if description is None else description,
        arguments_schema(struct, arguments, docs.parameters),
        FunctionBody(function, struct, _context_names(parameters)),
        **facts,
    )


def _context_names(parameters: list[Parameter]) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in parameters if parameter.is_context)


def _refuse_what_cannot_be_called(function: object, name: str) -> None:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"tool() takes a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"tool {name!r} yields; a tool returns one result. Return a list or text, and tell people who watch "
            "with `context.progress(text)`"
        )
