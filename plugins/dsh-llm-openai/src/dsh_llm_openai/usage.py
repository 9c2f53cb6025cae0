"""
Token counts of all providers as the disjoint counts of M-2.
"""

from __future__ import annotations

from typing import Any

from dsh_core.content import Usage

__all__ = ["usage_of"]


def usage_of(raw: Any) -> Usage | None:
    """
    Turn a provider's usage object into disjoint counts.

    Args:
        raw: The object; anything else gives None.

    Returns:
        None when the object counts nothing at all.
    """
    if not isinstance(raw, dict):
        return None
    prompt, written = _count(raw, "prompt_tokens", "input_tokens"), _count(raw, "completion_tokens", "output_tokens")
    details = _object(raw, "prompt_tokens_details", "input_tokens_details")
    cache_read = (
        _count(details, "cached_tokens", "cache_read_tokens")
        or _count(raw, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    )  # fmt: skip
    cache_write = (
        _count(details, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
        or _count(raw, "cache_creation_input_tokens")
    )  # fmt: skip
    reasoning = (
        _count(_object(raw, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
        or _count(raw, "reasoning_tokens")
    )  # fmt: skip
    if not (prompt or written or cache_read or cache_write or reasoning):
        return None
    return Usage(
        input=max(0, prompt - cache_read - cache_write),
        output=_without_reasoning(prompt, written, reasoning, _count(raw, "total_tokens")),
        cache_read=cache_read,
        cache_write=cache_write,
        reasoning=reasoning,
    )


def _without_reasoning(prompt: int, written: int, reasoning: int, total: int) -> int:
    """Most providers count reasoning among the tokens written; some count it beside them, as the total shows."""
    beside = reasoning > written or (reasoning > 0 and total == prompt + written + reasoning)
    return written if beside else written - reasoning


def _object(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        if isinstance(raw.get(key), dict):
            found: dict[str, Any] = raw[key]
            return found
    return {}


def _count(raw: dict[str, Any], *keys: str) -> int:
    for key in keys:
        value = raw.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return int(value)
    return 0
