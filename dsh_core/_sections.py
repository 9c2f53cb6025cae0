"""
The sections of the configuration: one attrs class for each table that the core itself reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

__all__ = ["AgentConfig", "ApprovalConfig", "HooksConfig", "PluginsConfig", "ToolsConfig", "at_least", "some_text"]


def at_least(bound: float, *, above: bool = False) -> Callable[[Any, Any, Any], None]:
    """A validator: a number from `bound` on, or above it; None passes."""

    def check(_: Any, field: Any, value: Any) -> None:
        if value is not None and not (value > bound if above else value >= bound):
            raise ValueError(f"expected a number {'above' if above else 'of at least'} {bound}")

    return check


def some_text(_: Any, field: Any, value: Any) -> None:
    """A validator: text that is more than blanks; None passes."""
    if value is not None and not value.strip():
        raise ValueError("expected text that is not empty")


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """
    `[plugins]`: which plugins, and their own tables.

    Args:
        require: Names that must load, or the harness does not start.
        disable: Names that are not even imported.
        strict: Every plugin that fails is fatal.
        tables: The table `[plugins.NAME]` of each plugin that has one, not yet structured.
    """

    require: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    strict: bool = False
    tables: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, hash=False)

    own_keys: ClassVar[tuple[str, ...]] = ("require", "disable", "strict")


@attrs.frozen(kw_only=True)
class HooksConfig:
    """`[hooks]`: `timeout` in seconds for each awaited implementation; unset, the defaults of H-4."""

    timeout: float | None = attrs.field(default=None, validator=at_least(0, above=True))


@attrs.frozen(kw_only=True)
class ApprovalConfig:
    """
    `[approval]`: who answers, and how long they may take.

    Args:
        by: Name of the only plugin that may grant; None is the front end.
        timeout: Seconds until a question counts as refused; None waits.
    """

    by: str | None = attrs.field(default=None, validator=some_text)
    timeout: float | None = attrs.field(default=None, validator=at_least(0, above=True))


@attrs.frozen(kw_only=True)
class AgentConfig:
    """
    One `[[agents]]` table: an agent that is made at start (A-10).

    Args:
        id: The label under which `agents.named` finds it.
        model: Its model, else the harness's.
        system_prompt: Its persona.
        session: The session it is created on or resumes; a fresh one when left out.
    """

    id: str = attrs.field(validator=some_text)
    model: str | None = attrs.field(default=None, validator=some_text)
    system_prompt: str | None = None
    session: str | None = attrs.field(default=None, validator=some_text)


@attrs.frozen(kw_only=True)
class ToolsConfig:
    """
    `[tools]`.

    Args:
        order: Names that come first in a request, in this order; the others follow by name (T-5).
        max_parallel: How many parallel-safe calls of one message run at once (L-11).
    """

    order: tuple[str, ...] = ()
    max_parallel: int = attrs.field(default=8, validator=at_least(1))
