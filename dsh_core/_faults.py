"""
Faults of a configuration, and the words for them.

A fault says where, what was expected and what sort of thing was found. It never holds the value, which may
be a secret.
"""

from __future__ import annotations

import datetime
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import attrs

__all__ = [
    "WORDS",
    "Fault",
    "Faults",
    "describe",
    "dotted",
    "is_attrs",
    "is_list",
    "is_literal",
    "is_mapping",
    "is_table",
    "is_union",
    "kind_of",
    "nearest",
]


@attrs.frozen
class Fault:
    """
    One thing that is wrong.

    Args:
        path: Where, below the mapping that was structured; keys joined by dots, indices in brackets.
        text: What is expected. Never the value itself.
    """

    path: str
    text: str

    def below(self, key: str) -> Fault:
        """The same fault seen from one level further out."""
        glue = "." if self.path and not self.path.startswith("[") else ""
        return Fault(f"{key}{glue}{self.path}", self.text)


class Faults(ValueError):
    """Everything that is wrong with one value."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{fault.path}: {fault.text}" for fault in faults))
        self.faults = faults


def dotted(path: str, key: str) -> str:
    """Append `key` to a key path, quoted as TOML would where it is not a bare word."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        key = f'"{escaped}"'
    return f"{path}.{key}" if path else key


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint to the valid name that is most like `name`, or to all of them."""
    import difflib

    names = sorted(valid)
    close = difflib.get_close_matches(name.replace("-", "_"), names, n=1) or difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid here: {', '.join(names)}" if names else "nothing is valid here"


WORDS: Final[Mapping[Any, str]] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing",
    Path: "a path as text", datetime.datetime: "a date and time", datetime.date: "a date", datetime.time: "a time",
}  # fmt: skip


def kind_of(value: Any) -> str:
    """What sort of value this is, in the words of a configuration file; never the value itself."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return WORDS.get(type(value), f"a {type(value).__name__}")


def describe(expected: Any) -> str:
    """The form a type asks for, in words."""
    arguments = typing.get_args(expected)
    if hasattr(expected, "__metadata__"):  # Annotated
        return describe(arguments[0])
    if is_literal(expected):
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if is_union(expected):
        return " or ".join(describe(each) for each in arguments if each is not type(None))
    if is_table(expected):
        return "a table"
    if is_list(expected):
        return _list_of(arguments[0]) if arguments and arguments[0] is not Any else "a list"
    return WORDS.get(expected) or str(getattr(expected, "__name__", expected))


def _list_of(inner: Any) -> str:
    return "a list of tables" if is_table(inner) else f"a list of {describe(inner)}"


def is_union(expected: Any) -> bool:
    """A union, `None` in it or not."""
    return typing.get_origin(expected) in (typing.Union, types.UnionType)


def is_literal(expected: Any) -> bool:
    """A `Literal`."""
    origin: Any = typing.get_origin(expected)
    return origin is typing.Literal


def is_list(expected: Any) -> bool:
    """A list, tuple or set."""
    origin = typing.get_origin(expected) or expected
    if not isinstance(origin, type) or issubclass(origin, str | bytes):
        return False
    return issubclass(origin, Sequence | AbstractSet)


def is_table(expected: Any) -> bool:
    """A mapping or an attrs class."""
    return is_mapping(expected) or is_attrs(expected)


def is_mapping(expected: Any) -> bool:
    """A mapping."""
    origin = typing.get_origin(expected) or expected
    return isinstance(origin, type) and issubclass(origin, Mapping)


def is_attrs(expected: Any) -> bool:
    """An attrs class."""
    return isinstance(expected, type) and attrs.has(expected)
