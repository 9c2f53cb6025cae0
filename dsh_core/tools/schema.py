"""
JSON Schema of a function's arguments, and the type that checks them (T-1).

msgspec reads the hints. What it writes is brought into the form that models and providers take best: an
object at the root without `$ref`, no titles, a `type` beside each `enum`, descriptions at the properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsh_core.tools.docstrings import parse_docstring

if TYPE_CHECKING:
    from dsh_core.tools.hints import Parameter

__all__ = ["arguments_schema", "arguments_struct", "schema_of"]

_UNSUPPORTED: Final = (
    "use str, int, float, bool, None, list, dict, tuple, set, Literal, enums, attrs classes, dataclasses, "
    "TypedDict, datetime types, or optional and nested forms of these"
)


def arguments_struct(tool: str, parameters: Sequence[Parameter]) -> type[msgspec.Struct]:
    """
    One type for all arguments of a function, strict about unknown names.

    Args:
        tool: Name of the tool, for messages.
        parameters: The arguments; the context is not among them.

    Raises:
        TypeError: A hint has no JSON form; the message names tool and parameter.
    """
    fields: list[Any] = [
        (one.name, one.hint) if one.required else (one.name, one.hint, _default_of(one.default)) for one in parameters
    ]
    try:
        struct = msgspec.defstruct("arguments", fields, kw_only=True, forbid_unknown_fields=True)
        _require_support(struct)
    except Exception as error:  # msgspec raises TypeError, hints of nested classes whatever they like
        raise TypeError(_complaint(tool, parameters, error)) from error
    return struct


def _default_of(value: Any) -> Any:
    # A factory, so that the function gets the very object it has as its default, also a mutable one.
    return msgspec.field(default_factory=lambda: value)


def _require_support(hint: Any) -> None:
    """Make msgspec prove that it can describe and read this."""
    msgspec.json.schema(hint)
    msgspec.json.Decoder(hint)


def _complaint(tool: str, parameters: Sequence[Parameter], error: Exception) -> str:
    for parameter in parameters:
        try:
            _require_support(parameter.hint)
        except Exception as cause:  # noqa: BLE001 - as above: this one is the culprit
            return (
                f"the type hint {parameter.hint!r} of parameter {parameter.name!r} of tool {tool!r} has no JSON form "
                f"({str(cause).splitlines()[0]}); {_UNSUPPORTED}"
            )
    return f"the parameters of tool {tool!r} have no JSON form ({error})"


def arguments_schema(
    struct: type[msgspec.Struct], parameters: Sequence[Parameter], texts: Mapping[str, str]
) -> dict[str, Any]:
    """
    JSON Schema of a function's arguments.

    Args:
        struct: Their type, made by `arguments_struct`.
        parameters: The arguments.
        texts: Descriptions out of the docstring; what a hint says itself counts more.
    """
    whole = msgspec.json.schema(struct)
    definitions: dict[str, Any] = whole.get("$defs", {})
    root: dict[str, Any] = definitions.pop(whole["$ref"].rpartition("/")[2])
    for schema in _all_schemas({**root, "$defs": definitions}):
        _simplify(schema)
    root.pop("title", None)
    for parameter in parameters:
        _describe(root["properties"][parameter.name], parameter, texts.get(parameter.name))
    return {**root, "$defs": definitions} if definitions else root


def schema_of(hint: Any) -> dict[str, Any]:
    """
    JSON Schema of one type in the same form, such as an answer's.

    Args:
        hint: An attrs class or another type with a JSON form.

    Raises:
        TypeError: It has no JSON form.
    """
    whole = msgspec.json.schema(hint)
    definitions: dict[str, Any] = dict(whole.pop("$defs", {}))
    name = whole.get("$ref", "").rpartition("/")[2]
    root = dict(definitions[name]) if name else whole
    if f'"#/$defs/{name}"' not in msgspec.json.encode([root, definitions]).decode():
        definitions.pop(name, None)
    for schema in _all_schemas({**root, "$defs": definitions}):
        _simplify(schema)
    return {**root, "$defs": definitions} if definitions else root


def _describe(schema: dict[str, Any], parameter: Parameter, text: str | None) -> None:
    description = schema.pop("description", None) or parameter.note or text
    if description:
        schema["description"] = description
    if not parameter.required:
        _write_default(schema, parameter)


def _write_default(schema: dict[str, Any], parameter: Parameter) -> None:
    """Tell the model the default, unless it has no JSON form or does not fit the hint (`x: str = None`)."""
    try:
        default = msgspec.to_builtins(parameter.default, str_keys=True)
        msgspec.json.encode(default).decode()
        msgspec.convert(default, parameter.hint, str_keys=True)
    except Exception:  # noqa: BLE001 - any object may be a default; the function gets it all the same
        return
    if default == default:  # NaN has no JSON form either
        schema["default"] = default


def _simplify(schema: dict[str, Any]) -> None:
    """Drop the title, give enums a type, and split a class's docstring over its properties."""
    schema.pop("title", None)
    kinds = {type(value) for value in schema.get("enum", ())}
    if len(kinds) == 1 and "type" not in schema:
        schema.update({name: value for name, value in [("type", _JSON_TYPES.get(kinds.pop()))] if value})
    if "properties" in schema and "description" in schema:
        docs = parse_docstring(schema.pop("description"))
        if docs.description:
            schema["description"] = docs.description
        for name, text in docs.parameters.items():
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", text)


_JSON_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}
_INNER: Final[Mapping[str, Callable[[Any], Iterator[Any]]]] = {
    "$defs": lambda value: iter(value.values()),
    "additionalProperties": lambda value: iter([value]),
    "anyOf": iter,
    "items": lambda value: iter([value]),
    "prefixItems": iter,
    "properties": lambda value: iter(value.values()),
}


def _all_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside it, as far as msgspec writes such."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, inner in _INNER.items():
        if keyword in schema:
            for child in inner(schema[keyword]):
                yield from _all_schemas(child)
