"""
How a value of one annotation travels: checked and turned into its JSON form, and back (S-1, S-2).

`write` and `read` both take the value and a list for notes: `write` notes when the value could still be
changed from outside, so that the log needs a copy; `read` notes when something was there that the class
does not know, so that the bytes are kept. Both raise `Misfit`.
"""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from dsh_core.content import Block, Tagged
from dsh_core.session._json import MAX_INT, FrozenDict, FrozenList, Misfit, freeze, frozen

__all__ = ["SHARED", "UNKNOWN", "Convert", "Rule", "register_rule", "rule_for"]

Convert: TypeAlias = Callable[[Any, list[str]], Any]

SHARED: Final = "shared"
"""The note that a value may still be changed by whoever handed it over."""

UNKNOWN: Final = "unknown"
"""The note that something was read past."""


@attrs.frozen
class Rule:
    """
    One way to travel.

    Args:
        write: From the value to JSON.
        read: From JSON to the value.
        test: For values that are their own JSON form, an expression over `v` that says so.
    """

    write: Convert
    read: Convert
    test: str | None = None


def mismatch(value: Any, wanted: str) -> Misfit:
    """What is raised for a value of the wrong type."""
    return Misfit(f"must be {wanted}, not {type(value).__name__} {value!r:.80}")


# -- scalars ---------------------------------------------------------------------------------------------


def _scalar(test: Callable[[Any], bool], wanted: str, expression: str) -> Rule:
    def check(value: Any, _: list[str]) -> Any:
        if test(value):
            return value
        raise mismatch(value, wanted)

    return Rule(check, check, expression)


TEXT: Final = _scalar(lambda v: type(v) is str, "text", "type(v) is str")
FLAG: Final = _scalar(lambda v: type(v) is bool, "true or false", "type(v) is bool")
INTEGER: Final = _scalar(
    lambda v: type(v) is int and -MAX_INT <= v <= MAX_INT,
    "an integer within ±(2^53-1)",
    f"type(v) is int and -{MAX_INT} <= v <= {MAX_INT}",
)
NUMBER: Final = _scalar(
    lambda v: (type(v) is float and math.isfinite(v)) or (type(v) is int and -MAX_INT <= v <= MAX_INT),
    "a finite number",
    f"type(v) is float and v - v == 0.0 or type(v) is int and -{MAX_INT} <= v <= {MAX_INT}",
)
NOTHING: Final = _scalar(lambda v: v is None, "null", "v is None")


def _write_free(value: Any, notes: list[str]) -> Any:
    if type(value) is FrozenList or type(value) is FrozenDict:
        return value
    made = freeze(value)
    if made is not value:
        notes.append(SHARED)
    return made


FREE: Final = Rule(_write_free, lambda value, _: frozen(value))


# -- containers ------------------------------------------------------------------------------------------


def _converted(items: Any, convert: Convert, notes: list[str]) -> list[Any]:
    index = 0
    made = []
    try:
        for item in items:
            made.append(convert(item, notes))
            index += 1
    except Misfit as misfit:
        raise misfit.under(f"[{index}]") from None
    return made


def sequence_rule(item: Rule, make: Callable[[list[Any]], Any]) -> Rule:
    """A list of values of one kind; `make` gives the immutable form."""
    write_item, read_item = item.write, item.read

    def write(value: Any, notes: list[str]) -> list[Any]:
        kind = type(value)
        if kind is not tuple and kind is not FrozenList:
            if kind is not list:
                raise mismatch(value, "a list or tuple")
            notes.append(SHARED)
        return _converted(value, write_item, notes)

    def read(value: Any, notes: list[str]) -> Any:
        if type(value) is not list and type(value) is not FrozenList:
            raise mismatch(value, "a list")
        return make(_converted(value, read_item, notes))

    return Rule(write, read)


def _fixed_rule(items: Sequence[Rule]) -> Rule:
    def converted(value: Any, converts: list[Convert], notes: list[str]) -> list[Any]:
        if type(value) not in (tuple, list, FrozenList) or len(value) != len(items):
            raise mismatch(value, f"{len(items)} values")
        return [convert(one, notes) for convert, one in zip(converts, value, strict=True)]

    def write(value: Any, notes: list[str]) -> list[Any]:
        if type(value) is not tuple:
            notes.append(SHARED)
        return converted(value, [item.write for item in items], notes)

    return Rule(write, lambda value, notes: tuple(converted(value, [item.read for item in items], notes)))


def _mapping_rule(member: Rule) -> Rule:
    if member is FREE:
        return Rule(_write_object, _read_object)

    def converted(value: Any, convert: Convert, notes: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise mismatch(value, "an object")
        made = {}
        for key, one in value.items():
            if type(key) is not str:
                raise Misfit(f"has the key {key!r}, which is not a string")
            try:
                made[key] = convert(one, notes)
            except Misfit as misfit:
                raise misfit.under(f".{key}") from None
        return made

    def write(value: Any, notes: list[str]) -> dict[str, Any]:
        if type(value) is not FrozenDict:
            notes.append(SHARED)
        return converted(value, member.write, notes)

    return Rule(write, lambda value, notes: FrozenDict(converted(value, member.read, notes)))


def _write_object(value: Any, notes: list[str]) -> Any:
    if type(value) is FrozenDict:
        return value
    if not isinstance(value, Mapping):
        raise mismatch(value, "an object")
    notes.append(SHARED)
    return freeze(value)


def _read_object(value: Any, _: list[str]) -> Any:
    if not isinstance(value, dict):
        raise mismatch(value, "an object")
    return frozen(value)


# -- unions, enumerations --------------------------------------------------------------------------------


def _optional(rule: Rule) -> Rule:
    return Rule(
        lambda value, notes: None if value is None else rule.write(value, notes),
        lambda value, notes: None if value is None else rule.read(value, notes),
        f"(v is None or {rule.test})" if rule.test else None,
    )


def _any_of(rules: Sequence[Rule]) -> Rule:
    """A union of scalars; anything richer has no tag by which it could be read back."""

    def check(value: Any, notes: list[str]) -> Any:
        for rule in rules:
            try:
                return rule.write(value, notes)
            except Misfit:
                continue
        raise mismatch(value, "one of the types of its annotation")

    return Rule(check, check, "(" + " or ".join(f"({rule.test})" for rule in rules) + ")")


def _literal(values: Sequence[Any]) -> Rule:
    def write(value: Any, _: list[str]) -> Any:
        if not any(value == one and type(value) is type(one) for one in values):
            raise mismatch(value, "one of " + ", ".join(map(repr, values)))
        return value

    # What a newer version wrote is carried: unions are open.
    return Rule(write, FREE.read)


def _enumeration(cls: type[enum.Enum]) -> Rule:
    def write(value: Any, _: list[str]) -> Any:
        if type(value) is not cls:
            raise mismatch(value, f"a {cls.__name__}")
        return freeze(value.value)

    def read(value: Any, _: list[str]) -> Any:
        try:
            return cls(value)
        except ValueError:
            raise mismatch(value, f"a value of {cls.__name__}") from None

    return Rule(write, read)


def _write_tagged(value: Any, notes: list[str]) -> dict[str, Any]:
    if type(value) is not Tagged:
        raise mismatch(value, "a Tagged value with a kind")
    made = {}
    for name, member in value.items():
        if type(member) is not str:
            try:
                free = freeze(member)
            except Misfit as misfit:
                raise misfit.under(f".{name}") from None
            if free is not member:
                notes.append(SHARED)
            member = free
        made[name] = member
    if type(value.kind) is not str:
        raise mismatch(value.kind, "text").under(".kind")
    return made


def _read_tagged(value: Any, _: list[str]) -> Tagged:
    if type(value) is not dict or type(value.get("kind")) is not str:
        raise mismatch(value, "an object with a kind")
    return Tagged.from_json({name: frozen(member) for name, member in value.items()})


# -- annotations -----------------------------------------------------------------------------------------

_RULES: Final[dict[Any, Rule]] = {
    str: TEXT,
    bool: FLAG,
    int: INTEGER,
    float: NUMBER,
    type(None): NOTHING,
    None: NOTHING,
    Any: FREE,
    object: FREE,
    dict: _mapping_rule(FREE),
    list: Rule(sequence_rule(FREE, FrozenList).write, sequence_rule(FREE, FrozenList).read),
    Tagged: Rule(_write_tagged, _read_tagged),
}
_SCALARS: Final = (TEXT, FLAG, INTEGER, NUMBER, NOTHING)
_BLOCKS: Final = frozenset(typing.get_args(Block))


def register_rule(hint: Any, rule: Rule) -> None:
    """Let `hint` travel by `rule`."""
    _RULES[hint] = rule


def rule_for(hint: Any) -> Rule:
    """
    The rule of an annotation.

    Raises:
        TypeError: JSON has no form for it.
    """
    known = _RULES.get(hint) if not isinstance(hint, str) else FREE
    if known is not None:
        return known
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_rule(arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is typing.Annotated:
        return rule_for(arguments[0])
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _fixed_rule([rule_for(argument) for argument in arguments])
    if origin is not None and isinstance(origin, type):
        return _generic_rule(origin, arguments, hint)
    return _class_rule(hint)


def _generic_rule(origin: type, arguments: tuple[Any, ...], hint: Any) -> Rule:
    if issubclass(origin, tuple):
        return sequence_rule(rule_for(arguments[0]), tuple)
    if issubclass(origin, Mapping):
        if arguments[0] is not str:
            raise TypeError(f"{hint} has keys that are not text")
        return _mapping_rule(rule_for(arguments[1]))
    if issubclass(origin, Sequence):
        return sequence_rule(rule_for(arguments[0]), FrozenList)
    raise TypeError(f"JSON has no form for {hint}")


def _union_rule(arguments: tuple[Any, ...]) -> Rule:
    members = [argument for argument in arguments if argument is not type(None)]
    if set(members) == _BLOCKS:
        rule = _RULES[Block]
    elif len(members) == 1:
        rule = rule_for(members[0])
    else:
        rules = [rule_for(member) for member in members]
        if not all(one in _SCALARS for one in rules):
            return FREE
        rule = _any_of(rules)
    return _optional(rule) if len(members) < len(arguments) else rule


def _class_rule(hint: Any) -> Rule:
    if isinstance(hint, typing.NewType):
        return rule_for(hint.__supertype__)
    if isinstance(hint, typing.TypeVar):
        return FREE
    if hasattr(hint, "__value__"):  # `type X = …` of Python 3.12
        return rule_for(hint.__value__)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enumeration(hint)
    if isinstance(hint, type) and attrs.has(hint):
        from dsh_core.session._classes import class_rule

        return class_rule(hint)
    raise TypeError(f"JSON has no form for {getattr(hint, '__name__', hint)}; use text, numbers, lists or objects")
