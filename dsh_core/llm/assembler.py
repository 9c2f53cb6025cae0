"""
The one place that turns a stream's chunks into blocks (M-1).

It is lenient about how an adapter cuts its deltas and strict about what they are: a delta that does not fit
its block is a malformed response, because guessing would put words into the model's mouth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dsh_core.content import Block, Finish, Message, ReasoningBlock, TextBlock, ToolCallBlock, Usage
from dsh_core.errors import LlmError
from dsh_core.session.chunks import (
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

_TEXT: Final = "text"
_REASONING: Final = "reasoning"
_CALL: Final = "tool-call"


class BlockAssembler:
    """
    Assembles one response.

    Blocks stand in the order in which their index was first seen. A delta without a start opens its block; a
    second start, and deltas behind the end of a block, are ignored. The first block-end that carries a block
    counts more than the deltas. Of a call, the first id and the first name that are not empty are kept. The
    last usage and the last finish win.
    """

    __slots__ = ("_parts", "finish", "usage")

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self.usage: Usage | None = None
        """What the request cost, once the adapter has said so."""
        self.finish: Finish | None = None
        """Why the model stopped, once the adapter has said so."""

    def push(self, chunk: StreamChunk) -> None:
        """
        Take the next chunk.

        Raises:
            LlmError: A delta of one kind in a block of another (`MALFORMED_RESPONSE`).
            TypeError: It is no chunk.
        """
        take = _TAKES.get(type(chunk))
        if take is None:
            take = next((take for kind, take in _TAKES.items() if isinstance(chunk, kind)), None)
        if take is None:
            raise TypeError(f"an adapter produced {type(chunk).__name__}, which is no chunk; see dsh_core.llm")
        take(self, chunk)

    def _text(self, chunk: TextDelta) -> None:
        self._add(chunk.index, _TEXT, chunk.text)

    def _reasoning(self, chunk: ReasoningDelta) -> None:
        self._add(chunk.index, _REASONING, chunk.text)

    def _call(self, chunk: ToolCallDelta) -> None:
        part = self._add(chunk.index, _CALL, chunk.arguments)
        if not part.ended:
            part.id = part.id or chunk.id or ""
            part.name = part.name or chunk.name or ""

    def _start(self, chunk: BlockStart) -> None:
        if chunk.index not in self._parts:
            self._parts[chunk.index] = _Part(chunk.kind)

    def _used(self, chunk: UsageChunk) -> None:
        self.usage = chunk.usage

    def _finished(self, chunk: FinishChunk) -> None:
        self.finish = chunk.finish

    def _add(self, index: int, kind: str, text: str) -> _Part:
        part = self._parts.get(index)
        if part is None:
            part = self._parts[index] = _Part(kind)
        if part.ended:
            return part
        if part.kind != kind:
            raise LlmError(
                "MALFORMED_RESPONSE",
                f"block {index} of the response began as {part.kind!r} and went on as {kind!r}; an adapter has to "
                "give each block an index of its own",
            )
        part.texts.append(text)
        return part

    def _end(self, chunk: BlockEnd) -> None:
        part = self._parts.get(chunk.index)
        if part is None:
            part = self._parts[chunk.index] = _Part("")
        part.ended = True
        if part.whole is None:
            part.whole = chunk.block

    # -- what has come -----------------------------------------------------------------------------------

    def message(self) -> Message:
        """What the response says so far; blocks of text without any text are left out."""
        return Message("assistant", self._blocks())

    def _blocks(self) -> tuple[Block, ...]:
        blocks = []
        for part in self._parts.values():
            block = part.block()
            if block is not None:
                blocks.append(block)
        return tuple(blocks)

    @property
    def has_output(self) -> bool:
        """Whether any text, reasoning or call has come."""
        return any(part.has_output() for part in self._parts.values())

    def visible_prefix(self) -> tuple[Block, ...]:
        """The text and reasoning shown so far that are more than white space; no calls (L-6)."""
        return tuple(
            block for block in self._blocks() if isinstance(block, TextBlock | ReasoningBlock) and block.text.strip()
        )


_TAKES: Final[dict[type, Callable[[BlockAssembler, Any], None]]] = {
    TextDelta: BlockAssembler._text,
    ReasoningDelta: BlockAssembler._reasoning,
    ToolCallDelta: BlockAssembler._call,
    BlockStart: BlockAssembler._start,
    BlockEnd: BlockAssembler._end,
    UsageChunk: BlockAssembler._used,
    FinishChunk: BlockAssembler._finished,
}


class _Part:
    """One block in the making."""

    __slots__ = ("ended", "id", "kind", "name", "texts", "whole")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.id = ""
        self.name = ""
        self.ended = False
        self.whole: Block | None = None

    def block(self) -> Block | None:
        """The block as it stands, or None where it says nothing."""
        if self.whole is not None:
            return None if self.whole == TextBlock("") else self.whole
        text = _joined(self.texts)
        if self.kind == _CALL:
            return ToolCallBlock(self.id, self.name, text)
        if not text:
            return None
        return TextBlock(text) if self.kind == _TEXT else ReasoningBlock(text)

    def has_output(self) -> bool:
        """Whether the block says anything."""
        if self.whole is not None:
            return not isinstance(self.whole, TextBlock | ReasoningBlock) or bool(self.whole.text)
        return self.kind == _CALL or any(self.texts)


def _joined(texts: list[str]) -> str:
    """The text of the deltas; a character that was cut into its two surrogates is one character again."""
    text = "".join(texts)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text
