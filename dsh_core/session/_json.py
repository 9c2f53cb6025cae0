"""
Values that survive JSON without loss (S-2): checked, copied and frozen in one walk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from dsh_core.errors import NotSerializable

__all__ = ["MAX_INT", "FrozenDict", "FrozenList", "Misfit", "freeze", "freeze_json", "frozen", "scrub", "scrubbed"]

MAX_INT: Final = 2**53 - 1
"""The largest integer that every reader of JSON keeps exact."""

MAX_DEPTH: Final = 200
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("values in the session log are immutable; make a changed copy with dict(...) or list(...)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be changed; equal to a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses to be changed; equal to a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


class Misfit(Exception):
    """
    A value that does not fit where it stands; what contains it adds the way to it.

    Args:
        why: What is wrong, to be read behind the path.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self._steps: list[str] = []

    def under(self, step: str) -> Misfit:
        """The same, one level further out; `step` is such as `.name` or `[0]`."""
        self._steps.append(step)
        return self

    def path(self, root: str = "$") -> str:
        """The way to the value."""
        return root + "".join(reversed(self._steps))


def scrub(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD; pairs become the character they mean."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _SURROGATE.sub("\ufffd", joined)


def scrubbed(value: Any) -> Any:
    """A plain copy of a JSON value with `scrub` applied to every text and key in it."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {scrub(key): scrubbed(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(member) for member in value]
    return value


def freeze_json(value: Any, *, where: str, path: str = "$") -> Any:
    """
    A frozen copy of a JSON value.

    Args:
        value: What to copy.
        where: What it belongs to, for errors, such as an event type.
        path: Where in it, for errors.

    Raises:
        NotSerializable: NaN, infinities, bytes, tuples, sets, keys that are no strings, other objects, cycles
            and integers beyond ±(2**53 - 1); the message names `where` and the path.
    """
    try:
        return freeze(value)
    except Misfit as misfit:
        raise NotSerializable(f"{where}: {misfit.path(path)} {misfit.why}") from None


def freeze(value: Any) -> Any:
    """
    A frozen copy of a JSON value; what is frozen already is returned as it is.

    Raises:
        Misfit: It does not survive JSON.
    """
    return _freeze(value, set())


def _freeze(value: Any, around: set[int]) -> Any:
    kind = type(value)
    if kind is str:
        return scrub(value)
    if value is None or kind is bool or kind is FrozenDict or kind is FrozenList:
        return value
    if kind is int:
        if -MAX_INT <= value <= MAX_INT:
            return value
        raise Misfit("is an integer beyond ±(2^53-1); pass it as text")
    if kind is float:
        if math.isfinite(value):
            return value
        raise Misfit(f"is {value!r}, which JSON has no form for")
    if kind is list or isinstance(value, Mapping):
        return _freeze_container(value, around)
    raise Misfit(f"is a {kind.__name__}, which does not survive JSON; convert it first")


def _freeze_container(value: Any, around: set[int]) -> Any:
    if id(value) in around:
        raise Misfit("contains itself")
    if len(around) >= MAX_DEPTH:
        raise Misfit(f"is nested deeper than {MAX_DEPTH} levels")
    around.add(id(value))
    made = _freeze_list(value, around) if type(value) is list else _freeze_members(value, around)
    around.discard(id(value))
    return made


def _freeze_list(value: list[Any], around: set[int]) -> FrozenList:
    items = []
    for index, item in enumerate(value):
        try:
            items.append(_freeze(item, around))
        except Misfit as misfit:
            raise misfit.under(f"[{index}]") from None
    return FrozenList(items)


def _freeze_members(value: Mapping[Any, Any], around: set[int]) -> FrozenDict:
    members: dict[str, Any] = {}
    for key, member in value.items():
        if type(key) is not str:
            raise Misfit(f"has the key {key!r}, which is not a string")
        try:
            members[scrub(key)] = _freeze(member, around)
        except Misfit as misfit:
            raise misfit.under(f".{key}") from None
    if len(members) != len(value):
        raise Misfit("has keys that differ only in broken characters")
    return FrozenDict(members)


def frozen(value: Any) -> Any:
    """`freeze` for what a JSON decoder made, which needs no check."""
    kind = type(value)
    if kind is list:
        return FrozenList([item if type(item) in _SCALARS else frozen(item) for item in value])
    if kind is dict:
        return FrozenDict({key: frozen(member) for key, member in value.items()})
    return value
