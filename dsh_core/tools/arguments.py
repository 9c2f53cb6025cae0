"""
A model's argument text, read strictly.

JSON as RFC 8259 and I-JSON have it: no NaN, no member named twice, nothing behind the value, no integer
that other readers would round. What is broken is answered with its position and never mended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgspec

from dsh_core.errors import NotSerializable
from dsh_core.session._json import MAX_INT, FrozenDict, freeze_json

__all__ = ["CallArguments", "InvalidArguments", "parse_arguments"]


class InvalidArguments(Exception):
    """
    Arguments that must not run.

    Args:
        problems: All that is wrong, each with its path or position.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class CallArguments(FrozenDict):
    """
    The arguments of one call: a read-only JSON object.

    It carries the values that validation has already converted to the function's own types, so that a
    call does not convert twice.
    """

    __slots__ = ("_typed",)

    _typed: Any

    @classmethod
    def of(cls, values: FrozenDict, typed: Any = None) -> CallArguments:
        """Wrap frozen JSON, with its converted form where there is one."""
        arguments = cls(values)
        object.__setattr__(arguments, "_typed", typed)
        return arguments

    def take_typed(self) -> Any:
        """The converted form, once: what a body may have changed is not handed to a second run of it."""
        typed = getattr(self, "_typed", None)
        object.__setattr__(self, "_typed", None)
        return typed


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(members)
    if len(values) != len(members):
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                raise InvalidArguments([f"the member {name!r} appears more than once in one object"])
            seen.add(name)
    return values


def _constant(text: str) -> NoReturn:
    raise InvalidArguments([f"{text} is not JSON; give a number, text or null"])


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidArguments([f"the number {text[:40]} is too large"])
    return value


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)


def parse_arguments(text: str) -> Any:
    """
    Read a model's argument text; empty text is `{}` (L-12).

    Args:
        text: The raw text.

    Returns:
        The value, read-only; whether it is an object is for the schema to say.

    Raises:
        InvalidArguments: With the position of what is broken.
    """
    if not text or text.isspace():
        return freeze_arguments({})
    if (flat := _read_flat(text)) is not None:
        return flat
    try:
        return freeze_arguments(_DECODER.decode(text))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno} (character {error.pos} of {len(text)})"
        ends_early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        cut = "; the text seems to be cut off" if ends_early else ""
        raise InvalidArguments([f"broken JSON at {where}: {error.msg}{cut}"]) from None
    except RecursionError:
        raise InvalidArguments(["the JSON is nested too deeply"]) from None
    except ValueError as error:  # an integer with more digits than Python reads
        raise InvalidArguments([f"unreadable JSON: {error}"]) from None


def _read_flat(text: str) -> FrozenDict | None:
    """
    The quick way for what most calls are: one flat object of texts, small numbers and flags.

    As many colons as members, and nothing nested: then no member stands there twice. Everything else,
    whatever is broken included, goes the careful way.
    """
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if type(values) is not dict or len(values) != text.count(":"):
        return None
    for value in values.values():
        kind = type(value)
        if kind is int:
            if not -MAX_INT <= value <= MAX_INT:
                return None
        elif kind not in (str, bool):
            return None
    return None if "\\u" in text else FrozenDict(values)  # half a surrogate pair may hide in an escape


def freeze_arguments(value: Any) -> Any:
    """
    Make a JSON value read-only.

    Raises:
        InvalidArguments: It is not JSON that can be logged without loss.
    """
    try:
        return freeze_json(value, where="arguments")
    except NotSerializable as error:
        raise InvalidArguments([str(error)]) from None
    except RecursionError:
        raise InvalidArguments(["the JSON is nested too deeply"]) from None
