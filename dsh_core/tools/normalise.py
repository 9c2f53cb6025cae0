"""
Whatever a tool returns becomes content that is never empty (T-3), within the size its definition allows (T-2).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from dsh_core.content import Block, ImageBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock, UnknownBlock
from dsh_core.errors import NotSerializable
from dsh_core.session._json import freeze_json
from dsh_core.tools.definition import ToolDefinition, ToolResult

__all__ = ["NO_OUTPUT", "as_result", "fit", "safe_repr"]

NO_OUTPUT: Final = TextBlock("(no output)")
"""Stands for nothing: providers refuse an empty result."""

_BLOCKS: Final = (TextBlock, ReasoningBlock, ImageBlock, ToolCallBlock, ToolResultBlock, UnknownBlock)
_HEAD_SHARE: Final = 0.7

log = logging.getLogger("dsh")


def as_result(value: Any, tool: str) -> ToolResult:
    """
    What a body returned, as a result.

    Args:
        value: Text, blocks, an attrs instance, any JSON value, None, a `ToolResult`, or any object.
        tool: Name of the tool, for warnings.
    """
    if type(value) is str:
        return ToolResult((TextBlock(value),) if value else (NO_OUTPUT,))
    if type(value) is int:
        return ToolResult((TextBlock(str(value)),))
    if isinstance(value, ToolResult):
        return _checked(value, tool)
    return ToolResult(_blocks(value))


def _checked(result: ToolResult, tool: str) -> ToolResult:
    """A tool's own result with content, and with `meta` only if it can be logged."""
    if result.content and result.meta is None:
        return result
    return attrs.evolve(result, content=result.content or (NO_OUTPUT,), meta=_meta(result.meta, tool))


def _meta(meta: Mapping[str, Any] | None, tool: str) -> Mapping[str, Any] | None:
    if meta is None:
        return None
    try:
        frozen = freeze_json(dict(meta), where="meta")
    except (NotSerializable, TypeError, ValueError, RecursionError) as error:
        # Front ends can do without; the result itself must reach the model.
        log.warning("tool %r returned meta that is not JSON; it was dropped: %s", tool, error)
        return None
    return frozen  # type: ignore[no-any-return]


def _blocks(value: Any) -> tuple[Block, ...]:
    if value is None or (isinstance(value, str) and not value):
        return (NO_OUTPUT,)
    if isinstance(value, _BLOCKS):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(item, _BLOCKS) for item in value):
        return tuple(value)
    return (TextBlock(_text(value) or NO_OUTPUT.text),)


def _text(value: Any) -> str:
    """JSON as text, and what JSON has no word for by `repr`."""
    try:
        plain = _without_nan(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other))
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - cycles, unhashable keys, properties that raise: any object may come here
        return safe_repr(value)


def _encode_other(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else safe_repr(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value


def safe_repr(value: object) -> str:
    """`repr`, also of objects whose `repr` raises."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - somebody else's __repr__
        return f"<{type(value).__name__} object, whose repr raised {type(error).__name__}>"


def fit(result: ToolResult, definition: ToolDefinition) -> ToolResult:
    """
    Cut a result to the tool's `max_output`: head and tail stay, a marker stands for the middle.

    The marker comes on top of the limit; blocks other than text are not counted.

    Args:
        result: The result.
        definition: The tool.
    """
    limit = definition.max_output
    if limit is None or sum(len(block.text) for block in result.content if isinstance(block, TextBlock)) <= limit:
        return result
    return attrs.evolve(result, content=_cut(result.content, limit))


def _cut(content: tuple[Block, ...], limit: int) -> tuple[Block, ...]:
    total = sum(len(block.text) for block in content if isinstance(block, TextBlock))
    start = math.ceil(limit * _HEAD_SHARE)
    end = total - (limit - start)
    marker = f"\n[… {end - start} of {total} characters left out …]\n"
    kept: list[Block] = []
    offset = 0
    for block in content:
        if not isinstance(block, TextBlock):
            kept.append(block)
            continue
        text, length = block.text, len(block.text)
        head = text[: max(0, start - offset)]
        tail = text[max(0, end - offset) :]
        if offset <= start < offset + length:
            head += marker
        offset += length
        if left := text if head == text else head + tail:
            kept.append(TextBlock(left))
    return tuple(kept)
