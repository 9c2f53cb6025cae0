"""
Raw chunks of a model's stream, and how the log packs them (S-8).

The classes live here because the log gives back exactly what an adapter produced; `dsh_core.llm` is where
adapters find them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from dsh_core.content import Block, Finish, ReasoningBlock, TextBlock, ToolCallBlock, Usage
from dsh_core.session._fields import block_from_wire, block_to_wire
from dsh_core.session.events import AssistantChunkEvent

__all__ = [
    "Assembly",
    "BlockEnd",
    "BlockStart",
    "ChunkPacker",
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


StreamChunk: TypeAlias = (
    BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | FinishChunk
)

_USAGE: Final = tuple(attrs.fields_dict(Usage))
_FINISH: Final = tuple(attrs.fields_dict(Finish))

MAX_ENTRIES: Final = 64
MAX_BYTES: Final = 4096
MAX_AGE_MS: Final = 100


class Assembly:
    """The blocks as the deltas alone make them, to tell whether a block-end says anything new."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, list[Any]] = {}

    def add(self, kind: str, index: int, text: str, call_id: str | None = None, name: str | None = None) -> None:
        """Add a delta."""
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = [kind, [], "", ""]
        block[1].append(text)
        block[2] = block[2] or call_id or ""
        block[3] = block[3] or name or ""

    def block(self, index: int, kind: str | None = None) -> Block | None:
        """The block at an index, or None where nothing has come."""
        found = self._blocks.get(index)
        if found is None:
            return None
        text = "".join(found[1])
        if found[0] == "text":
            return TextBlock(text)
        if found[0] == "reasoning":
            return ReasoningBlock(text)
        return ToolCallBlock(found[2], found[3], text)


class ChunkPacker:
    """
    Gathers the chunks of one attempt into packs. An entry is `[kind, index, dt_ms, …]`.

    Args:
        turn: Number of the turn.
        step: Number of the step.
        attempt: Number of the attempt.
    """

    __slots__ = ("_assembly", "_entries", "_held", "_size", "key", "started")

    def __init__(self, turn: int, step: int, attempt: int) -> None:
        self.key = (turn, step, attempt)
        self.started = 0
        self._entries: list[list[Any]] = []
        self._size = 0
        self._assembly = Assembly()
        self._held: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, chunk: StreamChunk, now: int) -> bool:
        """Add a chunk at `now` (epoch milliseconds); returns whether the pack is full."""
        if not self._entries:
            self.started = now
        entry = self._entry(chunk, now - self.started)
        self._entries.append(entry)
        return len(self._entries) >= MAX_ENTRIES or self._size >= MAX_BYTES or now - self.started >= MAX_AGE_MS

    def is_old(self, now: int) -> bool:
        """Whether a chunk that comes now belongs into the next pack."""
        return bool(self._entries) and now - self.started >= MAX_AGE_MS

    def take(self) -> AssistantChunkEvent | None:
        """The pack as event data, and a new pack."""
        if not self._entries:
            return None
        entries, self._entries, self._size = self._entries, [], 0
        turn, step, attempt = self.key
        return AssistantChunkEvent(turn, step, attempt, tuple(entries))

    def _entry(self, chunk: StreamChunk, dt: int) -> list[Any]:
        kind = type(chunk)
        if kind is TextDelta:
            text = self._joined(chunk.index, chunk.text)  # type: ignore[union-attr]
            self._assembly.add("text", chunk.index, text)  # type: ignore[union-attr]
            self._size += len(text)
            return ["text", chunk.index, dt, text]  # type: ignore[union-attr]
        if kind is ReasoningDelta:
            text = self._joined(chunk.index, chunk.text)  # type: ignore[union-attr]
            self._assembly.add("reasoning", chunk.index, text)  # type: ignore[union-attr]
            self._size += len(text)
            return ["reasoning", chunk.index, dt, text]  # type: ignore[union-attr]
        if kind is ToolCallDelta:
            return self._call_entry(chunk, dt)  # type: ignore[arg-type]
        if kind is BlockStart:
            return ["start", chunk.index, dt, chunk.kind]  # type: ignore[union-attr]
        if kind is BlockEnd:
            return self._end_entry(chunk, dt)  # type: ignore[arg-type]
        if isinstance(chunk, UsageChunk):
            return ["usage", 0, dt, {name: count for name in _USAGE if (count := getattr(chunk.usage, name))}]
        if isinstance(chunk, FinishChunk):
            return ["finish", 0, dt, {name: text for name in _FINISH if (text := getattr(chunk.finish, name)) is not None}]
        raise TypeError(f"an adapter produced {type(chunk).__name__}, which is no chunk; see dsh_core.llm")

    def _call_entry(self, chunk: ToolCallDelta, dt: int) -> list[Any]:
        text = self._joined(chunk.index, chunk.arguments)
        self._assembly.add("tool-call", chunk.index, text, chunk.id, chunk.name)
        self._size += len(text)
        entry = ["call", chunk.index, dt, text]
        if chunk.id is not None or chunk.name is not None:
            entry += [chunk.id, chunk.name]
        return entry

    def _end_entry(self, chunk: BlockEnd, dt: int) -> list[Any]:
        if chunk.block is None:
            return ["end", chunk.index, dt]
        same = self._assembly.block(chunk.index) == chunk.block
        return ["end", chunk.index, dt, True if same else block_to_wire(chunk.block, "block")]

    def _joined(self, index: int, text: str) -> str:
        """A trailing high surrogate is held back and joined with the next delta."""
        held = self._held.pop(index, "") if self._held else ""
        if held:
            text = (held + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[index] = text[-1]
            return text[:-1]
        return text


def unpack_chunks(events: Iterable[Any]) -> list[StreamChunk]:
    """
    The chunks in `events`, one after the other, as the adapter produced them.

    Args:
        events: Session events or their data; those that are no packs are passed over.
    """
    return list(_unpacked(events))


def _unpacked(events: Iterable[Any]) -> Iterator[StreamChunk]:
    assemblies: dict[tuple[int, int, int], Assembly] = {}
    for event in events:
        data = getattr(event, "data", event)
        if isinstance(data, AssistantChunkEvent):
            assembly = assemblies.setdefault((data.turn, data.step, data.attempt), Assembly())
            for entry in data.chunks:
                yield _chunk(entry, assembly)


def _chunk(entry: Any, assembly: Assembly) -> StreamChunk:
    kind, index, rest = entry[0], entry[1], entry[3:]
    match kind:
        case "text":
            assembly.add("text", index, rest[0])
            return TextDelta(index, rest[0])
        case "reasoning":
            assembly.add("reasoning", index, rest[0])
            return ReasoningDelta(index, rest[0])
        case "call":
            call_id, name = rest[1:] if len(rest) == 3 else (None, None)
            assembly.add("tool-call", index, rest[0], call_id, name)
            return ToolCallDelta(index, call_id, name, rest[0])
        case "start":
            return BlockStart(index, rest[0])
        case "end":
            if not rest:
                return BlockEnd(index)
            return BlockEnd(index, assembly.block(index) if rest[0] is True else block_from_wire(rest[0]))
        case "usage":
            return UsageChunk(Usage(**rest[0]))
        case _:
            return FinishChunk(Finish(**rest[0]))
