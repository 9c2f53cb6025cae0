"""
Values that survive JSON without loss (S-2): checked, copied and frozen in one walk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from dsh_core.errors import NotSerializable

__all__ = ["MAX_INT", "FrozenDict", "FrozenList", "freeze_json", "scrub"]

MAX_INT: Final = 2**53 - 1
_MAX_DEPTH: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("values in the session log are immutable; make a changed copy with dict(...) or list(...)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be changed; equal to a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses to be changed; equal to a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore[assignment]
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(type(item) for item in self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


def scrub(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD; pairs become the character they mean."""
    if not _SURROGATE.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _SURROGATE.sub("\ufffd", joined)


def freeze_json(value: Any, *, where: str, path: str = "$") -> Any:
    """
    A frozen copy of a JSON value.

    Args:
        value: What to copy.
        where: What it belongs to, for errors, such as an event type.
        path: Where in it, for errors.

    Raises:
        NotSerializable: NaN, infinities, bytes, tuples, sets, keys that are no strings, other objects, cycles
            and integers beyond ±(2⁵³−1); the message names `where` and the path.
    """
    return _freeze(value, where, path, 0)


def _freeze(value: Any, where: str, path: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return scrub(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INT <= value <= MAX_INT:
            return value
        raise NotSerializable(f"{where}: {path} is an integer beyond ±(2^53-1); pass it as text")
    if kind is float:
        if math.isfinite(value):
            return value
        raise NotSerializable(f"{where}: {path} is {value!r}, which JSON has no form for")
    if depth > _MAX_DEPTH:
        raise NotSerializable(f"{where}: {path} is nested deeper than {_MAX_DEPTH} levels, or contains itself")
    if kind in (FrozenDict, FrozenList):
        return value
    if isinstance(value, Mapping):
        return FrozenDict(_members(value, where, path, depth))
    if kind is list:
        return FrozenList([_freeze(item, where, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)])
    raise NotSerializable(f"{where}: {path} is a {kind.__name__}, which does not survive JSON; convert it first")


def _members(value: Mapping[Any, Any], where: str, path: str, depth: int) -> list[tuple[str, Any]]:
    members = []
    for key, member in value.items():
        if type(key) is not str:
            raise NotSerializable(f"{where}: {path} has the key {key!r}, which is not a string")
        members.append((scrub(key), _freeze(member, where, f"{path}.{key}", depth + 1)))
    return members
