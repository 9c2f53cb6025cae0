"""
The settings of compaction.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

__all__ = ["DEFAULT_WINDOW", "CompactConfig"]

DEFAULT_WINDOW: Final = 32_768
"""Tokens a model is taken to hold when neither its adapter nor the configuration says."""


def _ratio(_: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{attribute.name} must lie between 0 and 1, not {value}")


def _count(_: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must not be negative, not {value}")


def _window(_: Any, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"{attribute.name} must be positive, not {value}")


@attrs.frozen(kw_only=True)
class CompactConfig:
    """
    `[plugins.compact-basic]`.

    Args:
        threshold: Part of the context window from which a conversation is compacted.
        retain: Part of the window that the newest messages keep.
        retries: Further rounds in a turn while the conversation is still above the threshold.
        summary_model: Model that writes summaries, as `provider/model`; the agent's own when left out.
        context_window: Tokens a request may have; the adapter's answer when left out.
    """

    threshold: float = attrs.field(default=0.8, validator=_ratio)
    retain: float = attrs.field(default=0.16, validator=_ratio)
    retries: int = attrs.field(default=1, validator=_count)
    summary_model: str | None = None
    context_window: int | None = attrs.field(default=None, validator=_window)

    def __attrs_post_init__(self) -> None:
        if self.retain >= self.threshold:
            raise ValueError(f"retain ({self.retain}) must be below threshold ({self.threshold})")
