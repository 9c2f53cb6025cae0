"""
How instances of attrs classes travel: a writer and a reader made for each class.

They are generated, because appending is the hottest path of the core and a loop over a table of fields costs
three times as much. What has its default is not written (S-1).
"""

from __future__ import annotations

import inspect
import typing
from functools import cache
from typing import Any, Final

import attrs

from dsh_core.content import (
    Block,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)
from dsh_core.session._annotations import register_rule, rule_for
from dsh_core.session._json import FrozenDict, FrozenList, Misfit, freeze, frozen
from dsh_core.session._rules import SHARED, UNKNOWN, Convert, Rule, mismatch, sequence_rule

__all__ = ["block_from_wire", "block_to_wire", "class_rule", "is_frozen"]

_MISSING: Final = object()


@attrs.frozen
class _Field:
    name: str
    argument: str
    kw_only: bool
    rule: Rule
    default: Any = attrs.field(eq=False)
    make_default: Any = attrs.field(default=None, eq=False)

    @property
    def required(self) -> bool:
        return self.default is attrs.NOTHING and self.make_default is None


def is_frozen(cls: type) -> bool:
    """Whether instances of an attrs class refuse assignment."""
    return getattr(cls.__setattr__, "__name__", "") == "_frozen_setattrs"


@cache
def class_rule(cls: type, tag: str | None = None) -> Rule:
    """
    The rule of an attrs class.

    Args:
        cls: The class.
        tag: Written as the member `type`.

    Raises:
        TypeError: JSON has no form for the annotation of a field; the message names it.
    """
    fields = _fields(cls)
    write, read = _writer(cls, fields, tag), _reader(cls, fields, tag)
    if is_frozen(cls):
        return Rule(write, read)

    def write_shared(value: Any, notes: list[str]) -> Any:
        notes.append(SHARED)
        return write(value, notes)

    return Rule(write_shared, read)


def _fields(cls: type) -> list[_Field]:
    hints = _hints(cls)
    fields = []
    for field in attrs.fields(cls):
        if not field.init:
            continue
        try:
            rule = rule_for(hints.get(field.name, Any))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
        default, make = field.default, None
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default, make = _made_default(default)
        fields.append(_Field(field.name, field.alias or field.name, field.kw_only, rule, default, make))
    return fields


def _made_default(factory: Any) -> tuple[Any, Any]:
    if factory.takes_self:
        return attrs.NOTHING, None
    made = factory.factory()
    if type(made) in (dict, FrozenDict) and not made:
        return FrozenDict(), None
    if type(made) is list and not made:
        return FrozenList(), None
    return made, factory.factory


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:  # imported for type checkers only: such a field is free-form JSON
        return {name: hint for name, hint in _raw_hints(cls).items() if not isinstance(hint, str)}


def _raw_hints(cls: type) -> dict[str, Any]:
    import sys

    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, hint in inspect.get_annotations(base).items():
            try:
                found[name] = eval(hint, dict(scope)) if isinstance(hint, str) else hint
            except NameError:
                found[name] = hint
    return found


# -- generated functions ---------------------------------------------------------------------------------


def _compiled(lines: list[str], names: dict[str, Any]) -> Convert:
    exec("\n".join(lines), names)  # the source is made of the names of a class's own fields
    made: Convert = names["convert"]
    return made


def _writer(cls: type, fields: list[_Field], tag: str | None) -> Convert:
    names: dict[str, Any] = {"cls": cls, "Misfit": Misfit, "mismatch": mismatch}
    lines = [
        "def convert(o, notes):",
        "    if type(o) is not cls: raise mismatch(o, 'a ' + cls.__name__)",
        f"    w = {{'type': {tag!r}}}" if tag is not None else "    w = {}",
    ]
    for number, field in enumerate(fields):
        names[f"d{number}"], names[f"c{number}"] = field.default, field.rule.write
        lines.append(f"    v = o.{field.name}")
        lines += [f"    {line}" for line in _guarded(field, number, _checked(field, number, "w[{name!r}] = {value}"))]
    return _compiled([*lines, "    return w"], names)


def _guarded(field: _Field, number: int, lines: list[str]) -> list[str]:
    if field.default is attrs.NOTHING:
        return lines
    if field.default is None:
        test = "if v is not None:"
    elif isinstance(field.default, dict | list):
        test = f"if v != d{number}:"
    else:
        # False == 0 == 0.0, but they are different values in JSON.
        test = f"if v is not d{number} and (v != d{number} or type(v) is not type(d{number})):"
    return [test, *(f"    {line}" for line in lines)]


def _checked(field: _Field, number: int, then: str) -> list[str]:
    path = f".{field.name}"
    if field.rule.test is not None:
        return [
            f"if not ({field.rule.test}):",
            f"    try: c{number}(v, notes)",
            f"    except Misfit as misfit: raise misfit.under({path!r}) from None",
            then.format(name=field.name, value="v"),
        ]
    return [
        f"try: v = c{number}(v, notes)",
        f"except Misfit as misfit: raise misfit.under({path!r}) from None",
        then.format(name=field.name, value="v"),
    ]


def _reader(cls: type, fields: list[_Field], tag: str | None) -> Convert:
    names: dict[str, Any] = {
        "cls": cls,
        "Misfit": Misfit,
        "mismatch": mismatch,
        "missing": _MISSING,
        "UNKNOWN": UNKNOWN,
    }
    lines = [
        "def convert(o, notes):",
        "    if type(o) is not dict: raise mismatch(o, 'an object')",
        f"    left = len(o) - {int(tag is not None)}",
    ]
    for number, field in enumerate(fields):
        names |= {f"d{number}": field.default, f"m{number}": field.make_default, f"c{number}": field.rule.read}
        lines.append(f"    v = o.get({field.name!r}, missing)")
        lines.append("    if v is missing:")
        lines.append(f"        {_absent(field, number)}")
        lines.append("    else:")
        lines.append("        left -= 1")
        lines += [f"        {line}" for line in _checked(field, number, f"v{number} = {{value}}")]
    lines.append("    if left: notes.append(UNKNOWN)")
    arguments = (f"{f.argument}=v{n}" if f.kw_only else f"v{n}" for n, f in enumerate(fields))
    return _compiled([*lines, f"    return cls({', '.join(arguments)})"], names)


def _absent(field: _Field, number: int) -> str:
    if field.required:
        return f"raise Misfit('is missing').under({'.' + field.name!r})"
    return f"v{number} = m{number}()" if field.make_default is not None else f"v{number} = d{number}"


# -- blocks ----------------------------------------------------------------------------------------------


def block_to_wire(block: Any, notes: list[str]) -> dict[str, Any]:
    """
    The JSON form of a content block.

    Raises:
        Misfit: It is none, or does not survive JSON.
    """
    write = _WRITERS.get(type(block))
    if write is None:
        raise mismatch(block, "a content block")
    return write(block, notes)  # type: ignore[no-any-return]


def block_from_wire(wire: Any, notes: list[str]) -> Block:
    """
    The content block of a JSON form; one of an unknown type is carried as `UnknownBlock`.

    Raises:
        Misfit: It is no block, or does not fit its type.
    """
    kind = wire.get("type") if isinstance(wire, dict) else None
    if type(kind) is not str:
        raise mismatch(wire, "a content block with a type")
    read = _READERS.get(kind)
    if read is None:
        return UnknownBlock(kind, frozen({name: member for name, member in wire.items() if name != "type"}))
    return read(wire, notes)  # type: ignore[no-any-return]


def _write_unknown(block: UnknownBlock, notes: list[str]) -> dict[str, Any]:
    if type(block.raw) is not FrozenDict:
        notes.append(SHARED)
    if type(block.type) is not str:
        raise mismatch(block.type, "text").under(".type")
    return {"type": block.type, **{name: member for name, member in freeze(block.raw).items() if name != "type"}}


_BLOCK: Final = Rule(block_to_wire, block_from_wire)
_BLOCKS: Final = sequence_rule(_BLOCK, tuple)
register_rule(Block, _BLOCK)
register_rule(tuple[Block, ...], _BLOCKS)

_TAGS: Final[dict[str, type]] = {
    "text": TextBlock,
    "reasoning": ReasoningBlock,
    "image": ImageBlock,
    "tool-call": ToolCallBlock,
    "tool-result": ToolResultBlock,
}
_WRITERS: Final[dict[type, Convert]] = {cls: class_rule(cls, tag).write for tag, cls in _TAGS.items()}
_WRITERS[UnknownBlock] = _write_unknown
_READERS: Final[dict[str, Convert]] = {tag: class_rule(cls, tag).read for tag, cls in _TAGS.items()}
