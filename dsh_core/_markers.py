"""
The markers of the pluggy project `dsh`, and the entry-point groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs
import pluggy

__all__ = [
    "ENTRY_POINT_GROUP",
    "GATE_ENTRY_POINT_GROUP",
    "MODES",
    "HookMode",
    "Mode",
    "hook_mode",
    "hookimpl",
    "hookspec",
]

F = TypeVar("F", bound=Callable[..., Any])

Mode: TypeAlias = Literal["observe", "checkpoint", "transform", "gate", "around", "drain", "first", "check", "collect"]
MODES: Final[tuple[str, ...]] = (
    "observe", "checkpoint", "transform", "gate", "around", "drain", "first", "check", "collect",
)  # fmt: skip

ENTRY_POINT_GROUP: Final = "dsh"
"""Entry points of this group are plugins."""

GATE_ENTRY_POINT_GROUP: Final = "dsh_gates"
"""Plugins that are also listed here must load, or the harness does not start (H-8)."""

hookimpl: Final = pluggy.HookimplMarker("dsh")
"""Marks a method or function as the implementation of the hook of the same name."""

_MARK: Final = "dsh_hook_mode"


@attrs.frozen
class HookMode:
    """
    How a hook runs.

    Args:
        mode: One of `MODES`.
        value: For transforms, the argument that is handed from one implementation to the next.
    """

    mode: Mode
    value: str | None = None


def hookspec(*, mode: Mode, value: str | None = None) -> Callable[[F], F]:
    """
    Declare a hook.

    Args:
        mode: How it runs; see `dsh_core.hookspecs`.
        value: For `transform`, the name of the argument that is transformed.

    Raises:
        ValueError: The mode is unknown, or `value` is missing or does not belong to it.
    """
    if mode not in MODES:
        raise ValueError(f"unknown hook mode {mode!r}; choose one of {', '.join(MODES)}")
    if (mode == "transform") != (value is not None):
        raise ValueError(f"a {mode} hook {'needs' if mode == 'transform' else 'takes no'} value=")
    mark = pluggy.HookspecMarker("dsh")

    def decorate(function: F) -> F:
        setattr(function, _MARK, HookMode(mode, value))
        return mark(function)

    return decorate


def hook_mode(function: Callable[..., Any]) -> HookMode | None:
    """The mode of a function declared with `hookspec`."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, HookMode) else None
