"""
How a value of one annotation travels: checked and turned into its JSON form, and back (S-1, S-2).

`write` and `read` both take the value and a list for notes: `write` notes when the value could still be
changed from outside, so that the log needs a copy; `read` notes when something was there that the class
does not know, so that the bytes are kept. Both raise `Misfit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from dsh_core.session._json import MAX_INT, FrozenDict, FrozenList, Misfit, freeze, frozen

__all__ = [
    "FLAG",
    "FREE",
    "INTEGER",
    "NOTHING",
    "NUMBER",
    "SHARED",
    "TEXT",
    "UNKNOWN",
    "Convert",
    "Rule",
    "fixed_rule",
    "mapping_rule",
    "mismatch",
    "sequence_rule",
]

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


_FROZEN: Final = frozenset({FrozenDict, FrozenList})


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
    write_item, read_item, free = item.write, item.read, item is FREE

    def write(value: Any, notes: list[str]) -> list[Any]:
        kind = type(value)
        if kind is not tuple and kind is not FrozenList:
            if kind is not list:
                raise mismatch(value, "a list or tuple")
            notes.append(SHARED)
        if free and _FROZEN.issuperset(map(type, value)):
            return list(value)
        return _converted(value, write_item, notes)

    def read(value: Any, notes: list[str]) -> Any:
        if type(value) is not list and type(value) is not FrozenList:
            raise mismatch(value, "a list")
        if free:
            return make([frozen(one) for one in value])
        return make(_converted(value, read_item, notes))

    return Rule(write, read)


def fixed_rule(items: Sequence[Rule]) -> Rule:
    """So many values, each of its own kind."""

    def converted(value: Any, converts: list[Convert], notes: list[str]) -> list[Any]:
        if type(value) not in (tuple, list, FrozenList) or len(value) != len(items):
            raise mismatch(value, f"{len(items)} values")
        return [convert(one, notes) for convert, one in zip(converts, value, strict=True)]

    def write(value: Any, notes: list[str]) -> list[Any]:
        if type(value) is not tuple:
            notes.append(SHARED)
        return converted(value, [item.write for item in items], notes)

    return Rule(write, lambda value, notes: tuple(converted(value, [item.read for item in items], notes)))


def mapping_rule(member: Rule) -> Rule:
    """An object whose members are of one kind."""
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
