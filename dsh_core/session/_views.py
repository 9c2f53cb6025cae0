"""
Read-only views of the lists that a session keeps: no copy, and equal to any sequence with the same items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

__all__ = ["View"]

T = TypeVar("T")


class View(Sequence[T], Generic[T]):
    """
    The first items of a list that only grows, so that they stay what they are.

    Args:
        items: The list, shared.
        length: How many of its items belong to the view.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T], length: int) -> None:
        self._items = items
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        length = self._length
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step > 0:
                return tuple(self._items[start : min(stop, length) : step])
            return tuple([self._items[position] for position in range(start, stop, step)])
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError(f"index out of range: there are {length} items")
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, View) and other._items is self._items:
            return bool(other._length == self._length)
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(other) == len(self) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self)!r}>"
