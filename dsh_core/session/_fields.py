"""
How one field of an event travels: checked and turned into its wire form, and back.

A field's annotation says which; what no rule knows is a free-form JSON value.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from dsh_core.content import (
    Block,
    ErrorInfo,
    Finish,
    ImageBlock,
    ReasoningBlock,
    Source,
    Tagged,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    UnknownBlock,
    Usage,
)
from dsh_core.errors import NotSerializable
from dsh_core.session._json import MAX_INT, freeze_json

__all__ = ["Field", "block_from_wire", "block_to_wire", "fields_of"]

ToWire = Callable[[Any, str], Any]
FromWire = Callable[[Any], Any]


@attrs.frozen
class Field:
    """
    One field of an event class.

    Args:
        name: Attribute and key.
        default: What is not written; `attrs.NOTHING` for a field that always is.
        to_wire: Checks a value and gives its JSON form; the second argument names the field in errors.
        from_wire: The way back.
        free: The value is free-form JSON and has to be copied.
    """

    name: str
    default: Any
    to_wire: ToWire
    from_wire: FromWire
    free: bool = False


def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of an attrs class, by its annotations."""
    hints = typing.get_type_hints(cls)
    fields = []
    for field in attrs.fields(cls):
        to_wire, from_wire, free = _rule(hints.get(field.name, Any))
        default = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory() if not default.takes_self else attrs.NOTHING
        fields.append(Field(field.name, default, to_wire, from_wire, free))
    return tuple(fields)


# -- scalars ---------------------------------------------------------------------------------------------


def _fault(value: Any, path: str, wanted: str) -> NotSerializable:
    return NotSerializable(f"{path} must be {wanted}, not {type(value).__name__} {value!r:.80}")


def _text(value: Any, path: str) -> Any:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise _fault(value, path, "text")


def _integer(value: Any, path: str) -> Any:
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return value
    raise _fault(value, path, "an integer within ±(2^53-1)")


def _flag(value: Any, path: str) -> Any:
    if type(value) is bool:
        return value
    raise _fault(value, path, "true or false")


def _number(value: Any, path: str) -> Any:
    if type(value) in (int, float):
        return freeze_json(value, where=path)
    raise _fault(value, path, "a number")


def _free(value: Any, path: str) -> Any:
    return freeze_json(list(value) if type(value) is tuple else value, where=path)


def _texts(value: Any, path: str) -> Any:
    return [_text(item, f"{path}[{i}]") for i, item in enumerate(value)]


def _frozen_from(value: Any) -> Any:
    return freeze_json(value, where="stored value")


# -- values of dsh ---------------------------------------------------------------------------------------


def _without_defaults(value: Any, path: str, defaults: tuple[tuple[str, Any, ToWire], ...]) -> dict[str, Any]:
    wire = {}
    for name, default, check in defaults:
        member = getattr(value, name)
        if member is not default and (member != default or type(member) is not type(default)):
            wire[name] = check(member, name)
    return wire


def _attrs_rule(cls: type, *members: tuple[str, Any, ToWire]) -> tuple[ToWire, FromWire]:
    def to_wire(value: Any, path: str) -> Any:
        if type(value) is not cls:
            raise _fault(value, path, f"a {cls.__name__}")
        return _without_defaults(value, path, members)

    names = frozenset(name for name, _, _ in members)

    def from_wire(value: Any) -> Any:
        return cls(**{name: member for name, member in value.items() if name in names})

    return to_wire, from_wire


def _optional(to_wire: ToWire) -> ToWire:
    return lambda value, path: None if value is None else to_wire(value, path)


_N: Final = attrs.NOTHING
_RULES: Final[dict[type, tuple[ToWire, FromWire]]] = {
    Source: _attrs_rule(Source, ("kind", _N, _text), ("name", None, _text)),
    Usage: _attrs_rule(Usage, *((name, 0, _integer) for name in attrs.fields_dict(Usage))),
    Finish: _attrs_rule(Finish, ("kind", _N, _text), ("message", None, _text), ("code", None, _text)),
    ErrorInfo: _attrs_rule(ErrorInfo, ("name", _N, _text), ("code", _N, _text)),
    ToolSchema: (
        lambda value, path: {
            "name": _text(value.name, f"{path}.name"),
            "description": _text(value.description, f"{path}.description"),
            "parameters": freeze_json(value.parameters, where=f"{path}.parameters"),
        },
        lambda value: ToolSchema(value["name"], value["description"], _frozen_from(value["parameters"])),
    ),
    Tagged: (lambda value, path: _tagged(value, path), lambda value: Tagged.from_json(_frozen_from(value))),
    str: (_text, lambda value: _text(value, "stored value")),
    int: (_integer, lambda value: _integer(value, "stored value")),
    bool: (_flag, lambda value: _flag(value, "stored value")),
    float: (_number, lambda value: _number(value, "stored value")),
}


def _tagged(value: Any, path: str) -> Any:
    if not isinstance(value, Tagged):
        raise _fault(value, path, "a Tagged value with a kind")
    return {name: _free(member, f"{path}.{name}") for name, member in value.items()}


# -- blocks ----------------------------------------------------------------------------------------------


def block_to_wire(block: Any, path: str) -> dict[str, Any]:
    """The wire form of a content block."""
    kind = type(block)
    if kind is TextBlock:
        text = block.text
        return {"type": "text", "text": text if type(text) is str else _text(text, f"{path}.text")}
    if kind is ToolCallBlock:
        call_id, name, arguments = block.id, block.name, block.arguments
        if not (type(call_id) is str and type(name) is str and type(arguments) is str):
            for part in ("id", "name", "arguments"):
                _text(getattr(block, part), f"{path}.{part}")
        return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}
    if kind is ReasoningBlock:
        return {"type": "reasoning", "text": _text(block.text, f"{path}.text")}
    if kind is ImageBlock:
        return {
            "type": "image",
            "media_type": _text(block.media_type, f"{path}.media_type"),
            "data": _text(block.data, f"{path}.data"),
        }
    if kind is ToolResultBlock:
        wire: dict[str, Any] = {"type": "tool-result", "tool_call_id": _text(block.tool_call_id, path)}
        wire["content"] = _blocks_to_wire(block.content, f"{path}.content")
        if block.is_error:
            wire["is_error"] = True
        return wire
    if kind is UnknownBlock:
        return {**freeze_json(block.raw, where=path), "type": _text(block.type, path)}
    raise _fault(block, path, "a content block")


def _blocks_to_wire(blocks: Any, path: str) -> Any:
    if len(blocks) == 1:
        return [block_to_wire(blocks[0], path)]
    return [block_to_wire(block, f"{path}[{i}]") for i, block in enumerate(blocks)]


def block_from_wire(wire: Mapping[str, Any]) -> Block:
    """The content block of a wire form; an unknown type is carried as `UnknownBlock`."""
    kind = wire["type"]
    if kind == "text":
        return TextBlock(wire["text"])
    if kind == "tool-call":
        return ToolCallBlock(wire["id"], wire["name"], wire["arguments"])
    if kind == "reasoning":
        return ReasoningBlock(wire["text"])
    if kind == "image":
        return ImageBlock(wire["media_type"], wire["data"])
    if kind == "tool-result":
        content = _blocks_from_wire(wire.get("content", ()))
        return ToolResultBlock(wire["tool_call_id"], content, wire.get("is_error", False))
    return UnknownBlock(kind, freeze_json({k: v for k, v in wire.items() if k != "type"}, where="block"))


def _blocks_from_wire(wire: Any) -> tuple[Block, ...]:
    return tuple([block_from_wire(block) for block in wire])


# -- annotations -----------------------------------------------------------------------------------------


def _rule(hint: Any) -> tuple[ToWire, FromWire, bool]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members = [argument for argument in arguments if argument is not type(None)]
        if len(members) == 1 and len(members) < len(arguments):
            to_wire, from_wire, free = _rule(members[0])
            return _optional(to_wire), lambda value: None if value is None else from_wire(value), free
        return _free, _frozen_from, True
    if hint in _RULES:
        to_wire, from_wire = _RULES[hint]
        return to_wire, from_wire, hint in (Tagged, ToolSchema)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_rule(arguments[0])
    return _free, _frozen_from, True


def _tuple_rule(item: Any) -> tuple[ToWire, FromWire, bool]:
    if item is str:
        return _texts, tuple, False
    if item == Block:
        return _blocks_to_wire, _blocks_from_wire, False
    if item in _RULES:
        to_wire, from_wire = _RULES[item]
        return (
            lambda value, path: [to_wire(one, f"{path}[{i}]") for i, one in enumerate(value)],
            lambda value: tuple(from_wire(one) for one in value),
            item in (Tagged, ToolSchema),
        )
    return _free, lambda value: tuple(_frozen_from(value)), True
