"""
How raw chunks are gathered into events (S-8).

An entry is `[kind, index, dt_ms, …]`: `start` and the block's kind; `text`, `reasoning` and the delta; `call`
and arguments, id, name as far as there are any; `end`, alone or with the block, `true` for the block that the
deltas make; `usage` and `finish` with their fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dsh_core.content import Finish, Usage
from dsh_core.errors import NotSerializable
from dsh_core.session._classes import block_to_wire, class_rule
from dsh_core.session._json import FrozenDict, FrozenList, Misfit, frozen, scrub
from dsh_core.session.chunks import (
    Assembly,
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.session.events import AssistantChunkEvent

__all__ = ["MAX_AGE_MS", "MAX_BYTES", "MAX_ENTRIES", "ChunkPacker"]

MAX_ENTRIES: Final = 64
MAX_BYTES: Final = 4096
MAX_AGE_MS: Final = 100
_NAMES: Final = (str, type(None))


class ChunkPacker:
    """
    Gathers the chunks of one attempt.

    Args:
        turn: Number of the turn.
        step: Number of the step.
        attempt: Number of the attempt.
    """

    __slots__ = ("_assembly", "_entries", "_held", "_size", "key", "started")

    def __init__(self, turn: int, step: int, attempt: int) -> None:
        self.key = (turn, step, attempt)
        self.started = 0
        self._entries: list[FrozenList] = []
        self._size = 0
        self._assembly = Assembly()
        self._held: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, chunk: StreamChunk, now: int) -> bool:
        """
        Add a chunk.

        Args:
            chunk: The chunk.
            now: When it came, in epoch milliseconds.

        Returns:
            Whether the pack is full.

        Raises:
            NotSerializable: It is no chunk, or has a field of the wrong type; the pack stays as it is.
        """
        entries = self._entries
        if not entries:
            self.started = now
        write = _WRITERS.get(type(chunk)) or _writer_of(chunk)
        try:
            write(self, chunk, now - self.started)
        except Misfit as misfit:
            raise NotSerializable(
                f"the adapter produced {type(chunk).__name__} whose {misfit.path('value')} {misfit.why}"
            ) from None
        return len(entries) >= MAX_ENTRIES or self._size >= MAX_BYTES or now - self.started >= MAX_AGE_MS

    @property
    def unfinished(self) -> bool:
        """Whether a block has begun that has not ended: should more of it come, it belongs to what was."""
        return bool(self._assembly)

    def finish(self, now: int) -> None:
        """No delta follows: half a surrogate pair that still waits for its other half is U+FFFD."""
        if not self._entries:
            self.started = now
        if self._held:
            self._release_held(now - self.started)

    def take(self) -> AssistantChunkEvent | None:
        """The pack as event data, or None if it is empty; a new one begins."""
        if not self._entries:
            return None
        entries, self._entries, self._size = self._entries, [], 0
        return AssistantChunkEvent(*self.key, tuple(entries))

    # -- entries -----------------------------------------------------------------------------------------

    def _push(self, *entry: Any) -> None:
        self._entries.append(FrozenList(entry))

    def _add_text(self, chunk: Any, dt: int) -> None:
        self._add_delta("text", chunk.index, dt, chunk.text)

    def _add_reasoning(self, chunk: Any, dt: int) -> None:
        self._add_delta("reasoning", chunk.index, dt, chunk.text)

    def _add_delta(self, kind: str, index: int, dt: int, text: str) -> None:
        if type(text) is not str or type(index) is not int:
            raise _unfit(f"a {kind} delta", (index, text))
        if self._held or not text.isascii():
            text = self._whole(kind, index, dt, text)
        self._assembly.add(kind, index, text)
        self._size += len(text)
        self._entries.append(FrozenList((kind, index, dt, text)))

    def _add_call(self, chunk: Any, dt: int) -> None:
        index, text, call_id, name = chunk.index, chunk.arguments, chunk.id, chunk.name
        if type(text) is not str or type(index) is not int or type(call_id) not in _NAMES or type(name) not in _NAMES:
            raise _unfit("a tool-call delta", chunk)
        if self._held or not text.isascii():
            text = self._whole("call", index, dt, text)
        self._size += len(text)
        if call_id is None and name is None:
            self._assembly.add("call", index, text)
            self._push("call", index, dt, text)
            return
        call_id, name = call_id and scrub(call_id), name and scrub(name)
        self._assembly.add("call", index, text, call_id, name)
        entry = ("call", index, dt, text, call_id) if name is None else ("call", index, dt, text, call_id, name)
        self._entries.append(FrozenList(entry))

    def _add_start(self, chunk: Any, dt: int) -> None:
        if type(chunk.index) is not int or type(chunk.kind) is not str:
            raise _unfit("a block-start", chunk)
        if self._held:
            self._release_held(dt)
        self._entries.append(FrozenList(("start", chunk.index, dt, chunk.kind)))

    def _add_end(self, chunk: Any, dt: int) -> None:
        if type(chunk.index) is not int:
            raise _unfit("a block-end", chunk)
        index, block = chunk.index, chunk.block
        if self._held:
            self._release_held(dt)
        assembled = self._assembly.take(index)
        if block is None:
            self._entries.append(FrozenList(("end", index, dt)))
        elif assembled == block:
            self._push("end", index, dt, True)
        else:
            wire = frozen(block_to_wire(block, []))
            self._size += sum(len(member) for member in wire.values() if type(member) is str)
            self._push("end", index, dt, wire)

    def _add_usage(self, chunk: Any, dt: int) -> None:
        wire = FrozenDict(_WRITE_USAGE(chunk.usage, []))
        if self._held:
            self._release_held(dt)
        self._entries.append(FrozenList(("usage", 0, dt, wire)))

    def _add_finish(self, chunk: Any, dt: int) -> None:
        wire = FrozenDict(_WRITE_FINISH(chunk.finish, []))
        if self._held:
            self._release_held(dt)
        self._entries.append(FrozenList(("finish", 0, dt, wire)))

    # -- surrogates --------------------------------------------------------------------------------------

    def _whole(self, kind: str, index: int, dt: int, text: str) -> str:
        """Text without broken characters: a trailing high surrogate is held back for the next delta."""
        held_kind, half = self._held.get(index, ("", ""))
        if half and held_kind != kind:
            self._release_held(dt)
        elif half:
            del self._held[index]
            text = half + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[index] = (kind, text[-1])
            text = text[:-1]
        self._size += 2 * len(text)  # outside of ASCII a character has up to three bytes more often than not
        return scrub(text)

    def _release_held(self, dt: int) -> None:
        held, self._held = self._held, {}
        for index, (kind, _) in held.items():
            self._assembly.add(kind, index, "\ufffd")
            self._push(kind, index, dt, "\ufffd")


def _unfit(what: str, chunk: object) -> NotSerializable:
    return NotSerializable(f"the adapter produced {what} with a field of the wrong type: {chunk!r:.200}")


_Write = Callable[[ChunkPacker, Any, int], None]

_WRITE_USAGE: Final = class_rule(Usage).write
_WRITE_FINISH: Final = class_rule(Finish).write


_WRITERS: Final[dict[type, _Write]] = {
    TextDelta: ChunkPacker._add_text,
    ReasoningDelta: ChunkPacker._add_reasoning,
    ToolCallDelta: ChunkPacker._add_call,
    BlockStart: ChunkPacker._add_start,
    BlockEnd: ChunkPacker._add_end,
    UsageChunk: ChunkPacker._add_usage,
    FinishChunk: ChunkPacker._add_finish,
}


def _writer_of(chunk: object) -> _Write:
    for cls, write in _WRITERS.items():
        if isinstance(chunk, cls):
            return write
    raise NotSerializable(f"the adapter produced {type(chunk).__name__}, which is no chunk; see dsh_core.llm")
