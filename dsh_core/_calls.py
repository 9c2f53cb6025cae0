"""
The tool calls of an answer as they are logged: the tools' own names, ids unique in the session (L-12, T-4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from dsh_core.content import Block, Message, ToolCallBlock, ToolSchema
from dsh_core.session._json import scrub
from dsh_core.tools import wire_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_core.session.log import Session
    from dsh_core.tools.registry import ToolRegistry

__all__ = ["offered_names", "with_logged_calls", "without_calls"]


def offered_names(
    registry: ToolRegistry, allowed: tuple[str, ...] | None, schemas: Iterable[ToolSchema]
) -> frozenset[str]:
    """Names of the tools that were on offer in a request, given its schemas."""
    if schemas is registry.wire_schemas(allowed):  # nobody narrowed the request, and nothing has changed since
        return registry.offered_names(allowed)
    sent = {schema.name for schema in schemas}
    return frozenset(tool.name for tool in registry.offered(allowed) if wire_name(tool.name) in sent)


def without_calls(message: Message) -> Message:
    """The message without its tool calls (L-7)."""
    kept = tuple(block for block in message.content if not isinstance(block, ToolCallBlock))
    return message if len(kept) == len(message.content) else attrs.evolve(message, content=kept)


def with_logged_calls(message: Message, registry: ToolRegistry, session: Session, turn: int, step: int) -> Message:
    """
    The message with each call under the tool's own name and an id that no other call of the session has.

    An id that is missing, empty or already used becomes `<id or call>-t<turn>s<step>i<index>`.
    """
    used = session.used_call_ids
    seen: set[str] = set()
    content: list[Block] = []
    changed = False
    for block in message.content:
        if type(block) is ToolCallBlock:
            # As the log will have them: an id that is told apart only by half a surrogate pair is none of its own.
            clean = ToolCallBlock(scrub(block.id), scrub(block.name), scrub(block.arguments))
            changed = changed or clean != block
            block = clean
            call_id = block.id
            if not call_id or call_id in seen or call_id in used:
                call_id = f"{block.id or 'call'}-t{turn}s{step}i{len(seen)}"
                while call_id in seen or call_id in used:  # the model chose this very id itself
                    call_id += "x"
            seen.add(call_id)
            entry = registry.entry(block.name)
            name = entry.definition.name if entry is not None else block.name
            if call_id != block.id or name != block.name:
                block, changed = ToolCallBlock(call_id, name, block.arguments), True
        content.append(block)
    return attrs.evolve(message, content=tuple(content)) if changed else message
