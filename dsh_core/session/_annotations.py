"""
Which rule an annotation stands for.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from dsh_core.content import Block, Tagged
from dsh_core.session._json import FrozenList, Misfit, freeze, frozen
from dsh_core.session._rules import (
    FLAG,
    FREE,
    INTEGER,
    NOTHING,
    NUMBER,
    SHARED,
    TEXT,
    Rule,
    fixed_rule,
    mapping_rule,
    mismatch,
    sequence_rule,
)

__all__ = ["register_rule", "rule_for"]

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
    dict: mapping_rule(FREE),
    list: sequence_rule(FREE, FrozenList),
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
        return fixed_rule([rule_for(argument) for argument in arguments])
    if origin is not None and isinstance(origin, type):
        return _generic_rule(origin, arguments, hint)
    return _class_rule(hint)


def _generic_rule(origin: type, arguments: tuple[Any, ...], hint: Any) -> Rule:
    if issubclass(origin, tuple):
        return sequence_rule(rule_for(arguments[0]), tuple)
    if issubclass(origin, Mapping):
        if arguments[0] is not str:
            raise TypeError(f"{hint} has keys that are not text")
        return mapping_rule(rule_for(arguments[1]))
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
