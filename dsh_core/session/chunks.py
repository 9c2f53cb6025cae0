"""
Raw chunks of a model's stream, and how the log packs them (S-8).

The classes live here because the log gives back exactly what an adapter produced; `dsh_core.llm` is where
adapters find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import attrs

from dsh_core.content import Block, Finish, ReasoningBlock, TextBlock, ToolCallBlock, Usage
from dsh_core.errors import SessionCorrupt
from dsh_core.session._classes import block_from_wire, class_rule
from dsh_core.session._json import Misfit
from dsh_core.session.events import AssistantChunkEvent

__all__ = [
    "Assembly",
    "BlockEnd",
    "BlockStart",
    "FinishChunk",
    "ReasoningDelta",
    "StreamChunk",
    "TextDelta",
    "ToolCallDelta",
    "UsageChunk",
    "unpack_chunks",
]


@attrs.frozen
class BlockStart:
    """
    A block begins.

    Args:
        index: Position of the block in the message, chosen by the adapter.
        kind: `text`, `reasoning` or `tool-call`.
    """

    index: int
    kind: str


@attrs.frozen
class TextDelta:
    """More text of block `index`."""

    index: int
    text: str


@attrs.frozen
class ReasoningDelta:
    """More reasoning of block `index`."""

    index: int
    text: str


@attrs.frozen
class ToolCallDelta:
    """
    More of the tool call in block `index`.

    Args:
        id: The provider's id, or None in later fragments.
        name: The whole name, or None in later fragments.
        arguments: The next piece of raw JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@attrs.frozen
class BlockEnd:
    """
    A block is complete.

    Args:
        block: The whole block where the adapter knows it; it then counts more than the deltas.
    """

    index: int
    block: Block | None = None


@attrs.frozen
class UsageChunk:
    """What the request cost."""

    usage: Usage


@attrs.frozen
class FinishChunk:
    """The end of the stream."""

    finish: Finish


StreamChunk: TypeAlias = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | FinishChunk


class Assembly:
    """
    The blocks of one attempt as their deltas alone make them.

    Writer and reader keep one each, so that a block that says nothing new is stored as such.
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, kind: str, index: int, text: str, call_id: str | None = None, name: str | None = None) -> None:
        """Add a delta; of ids and names the first that is not empty counts."""
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = [kind, [], "", ""]
        block[1].append(text)
        block[2] = block[2] or call_id or ""
        block[3] = block[3] or name or ""

    def take(self, index: int) -> Block | None:
        """The block at an index, which begins anew; None where nothing has come."""
        found = self._blocks.pop(index, None)
        if found is None:
            return None
        kind, pieces, call_id, name = found
        text = "".join(pieces)
        if kind == "call":
            return ToolCallBlock(call_id, name, text)
        return TextBlock(text) if kind == "text" else ReasoningBlock(text)


def unpack_chunks(events: Iterable[Any]) -> list[StreamChunk]:
    """
    The chunks in `events`, one after the other, as the adapter produced them.

    What is not valid Unicode comes back as it could be stored: half a surrogate pair that ended a delta stands
    in front of the next one, any other is U+FFFD. Entries of a later version are passed over.

    Args:
        events: Session events or their data; those that are no packs are passed over.

    Raises:
        SessionCorrupt: An entry is not what its kind says.
    """
    assemblies: dict[tuple[int, int, int], Assembly] = {}
    chunks: list[StreamChunk] = []
    for event in events:
        data = getattr(event, "data", event)
        if isinstance(data, AssistantChunkEvent):
            assembly = assemblies.setdefault((data.turn, data.step, data.attempt), Assembly())
            for entry in data.chunks:
                chunk = _unpacked(entry, assembly)
                if chunk is not None:
                    chunks.append(chunk)
    return chunks


def _unpacked(entry: Any, assembly: Assembly) -> StreamChunk | None:
    try:
        read = _READERS.get(entry[0])
        return read(entry[1], entry[3:], assembly) if read is not None else None
    except (Misfit, IndexError, TypeError, AttributeError) as error:
        raise SessionCorrupt(f"the chunk entry {entry!r:.200} cannot be read: {error}") from error


def _read_text(index: int, rest: Any, assembly: Assembly) -> StreamChunk:
    assembly.add("text", index, rest[0])
    return TextDelta(index, rest[0])


def _read_reasoning(index: int, rest: Any, assembly: Assembly) -> StreamChunk:
    assembly.add("reasoning", index, rest[0])
    return ReasoningDelta(index, rest[0])


def _read_call(index: int, rest: Any, assembly: Assembly) -> StreamChunk:
    arguments, call_id, name = [*rest, None, None][:3]
    assembly.add("call", index, arguments, call_id, name)
    return ToolCallDelta(index, call_id, name, arguments)


def _read_end(index: int, rest: Any, assembly: Assembly) -> StreamChunk:
    assembled = assembly.take(index)
    if not rest:
        return BlockEnd(index)
    return BlockEnd(index, assembled if rest[0] is True else block_from_wire(dict(rest[0]), []))


_READERS: Final[dict[str, Callable[[int, Any, Assembly], StreamChunk]]] = {
    "start": lambda index, rest, _: BlockStart(index, rest[0]),
    "text": _read_text,
    "reasoning": _read_reasoning,
    "call": _read_call,
    "end": _read_end,
    "usage": lambda _, rest, __: UsageChunk(class_rule(Usage).read(dict(rest[0]), [])),
    "finish": lambda _, rest, __: FinishChunk(class_rule(Finish).read(dict(rest[0]), [])),
}
