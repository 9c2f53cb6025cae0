"""
From chunks to blocks: the one place that knows how a stream becomes a message (M-1).
"""

from __future__ import annotations

from typing import Final

from dsh_core.content import Block, Finish, Message, ReasoningBlock, TextBlock, ToolCallBlock, UnknownBlock, Usage
from dsh_core.llm.seam import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)

__all__ = ["BlockAssembler"]

_KINDS: Final = frozenset({"text", "reasoning", "tool-call"})


class _Building:
    """One block while it is being written."""

    __slots__ = ("block", "call_id", "closed", "kind", "name", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.call_id = ""
        self.name = ""
        self.closed = False
        self.block: Block | None = None

    def finished(self) -> Block:
        if self.block is not None:
            return self.block
        text = "".join(self.pieces)
        if self.kind == "text":
            return TextBlock(text)
        if self.kind == "reasoning":
            return ReasoningBlock(text)
        if self.kind == "tool-call":
            return ToolCallBlock(self.call_id, self.name, text)
        return UnknownBlock(self.kind, {"text": text} if text else {})


class BlockAssembler:
    """
    Takes the chunks of one stream and gives the message.

    Blocks stand in the order in which they were first seen. A delta without a start opens its own kind;
    deltas after the end of a block are ignored; the first end that carries a block counts more than the
    deltas; the last usage and the last finish count.
    """

    __slots__ = ("_blocks", "_finish", "_usage")

    def __init__(self) -> None:
        self._blocks: dict[int, _Building] = {}
        self._usage: Usage | None = None
        self._finish: Finish | None = None

    def push(self, chunk: StreamChunk) -> None:
        """
        Take the next chunk.

        Raises:
            TypeError: It is no chunk.
        """
        kind = type(chunk)
        if kind is TextDelta or kind is ReasoningDelta:
            building = self._blocks.get(chunk.index)  # type: ignore[union-attr]
            if building is None:
                building = self._open(chunk.index, "text" if kind is TextDelta else "reasoning")  # type: ignore[union-attr]
            if not building.closed:
                building.pieces.append(chunk.text)  # type: ignore[union-attr]
        elif isinstance(chunk, ToolCallDelta):
            self._push_call(chunk)
        elif isinstance(chunk, BlockStart):
            if chunk.index not in self._blocks:
                self._open(chunk.index, chunk.kind)
        elif isinstance(chunk, BlockEnd):
            self._end(chunk)
        elif isinstance(chunk, UsageChunk):
            self._usage = chunk.usage
        elif isinstance(chunk, FinishChunk):
            self._finish = chunk.finish
        else:
            raise TypeError(f"{kind.__name__} is not a chunk; an adapter yields the classes of dsh_core.llm")

    def _open(self, index: int, kind: str) -> _Building:
        building = self._blocks[index] = _Building(kind)
        return building

    def _push_call(self, chunk: ToolCallDelta) -> None:
        building = self._blocks.get(chunk.index) or self._open(chunk.index, "tool-call")
        if building.closed:
            return
        building.call_id = building.call_id or chunk.id or ""
        building.name = building.name or chunk.name or ""
        building.pieces.append(chunk.arguments)

    def _end(self, chunk: BlockEnd) -> None:
        building = self._blocks.get(chunk.index)
        if building is None:
            if chunk.block is None:
                return
            building = self._open(chunk.index, "text")
        if building.block is None and not building.closed:
            building.block = chunk.block
        building.closed = True

    @property
    def usage(self) -> Usage | None:
        """What the request cost, as far as it was told."""
        return self._usage

    @property
    def finish(self) -> Finish | None:
        """Why the model stopped, or None before the end."""
        return self._finish

    @property
    def has_output(self) -> bool:
        """Whether any text, reasoning or tool call has come."""
        return any(
            building.block is not None or building.kind not in ("text", "reasoning") or any(building.pieces)
            for building in self._blocks.values()
        )

    def message(self) -> Message:
        """The message as it is now; empty text and reasoning blocks are left out."""
        blocks = [building.finished() for building in self._blocks.values()]
        kept = [block for block in blocks if not isinstance(block, TextBlock | ReasoningBlock) or block.text]
        return Message("assistant", tuple(kept))

    def visible_prefix(self) -> tuple[Block, ...]:
        """The text and reasoning that came so far, without blank blocks and tool calls (L-6)."""
        blocks = (building.finished() for building in self._blocks.values())
        return tuple(
            block for block in blocks if isinstance(block, TextBlock | ReasoningBlock) and block.text.strip()
        )
