"""
Which attrs class stands for which wire name.

Filled by decorators when a module with event classes is imported, which is definition, not state.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

__all__ = ["EventType", "event_type_named", "event_type_of", "register_event_type"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)+")
_BY_NAME: Final[dict[str, EventType]] = {}
_BY_CLASS: Final[dict[type, EventType]] = {}


@attrs.frozen
class EventType:
    """The facts of one event type; see `session_event`."""

    name: str
    cls: type
    ignorable: bool = attrs.field(kw_only=True)
    between_turns: bool = attrs.field(kw_only=True)
    surface: bool = attrs.field(kw_only=True)
    version: int = attrs.field(kw_only=True)


def register_event_type(cls: type, event_type: EventType, *, core: bool) -> None:
    """Enter `event_type`; see `session_event` for what is refused."""
    name = event_type.name
    if not attrs.has(cls):
        raise TypeError(f"{cls.__name__} is not an attrs class; decorate it with @attrs.frozen below @session_event")
    if not _NAME.fullmatch(name):
        raise ValueError(f"event type {name!r} is malformed; write it as 'area/what' in lower case")
    if not core and event_type.surface:
        raise ValueError(f"event type {name!r}: surface types are the core's own; replace nodes with user/message")
    known = _BY_NAME.get(name)
    if known is not None and not _is_reimport(known.cls, cls):
        raise ValueError(
            f"event type {name!r} is already registered by {known.cls.__module__}.{known.cls.__qualname__}; "
            "choose another name"
        )
    _BY_NAME[name] = event_type
    _BY_CLASS[cls] = event_type


def _is_reimport(known: type, cls: type) -> bool:
    # A plugin module that is reloaded defines its classes again under the same names.
    return (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)


def event_type_of(cls: type) -> EventType | None:
    """The type for which `cls` is registered."""
    return _BY_CLASS.get(cls)


def event_type_named(name: str) -> EventType | None:
    """The type with this wire name."""
    return _BY_NAME.get(name)
