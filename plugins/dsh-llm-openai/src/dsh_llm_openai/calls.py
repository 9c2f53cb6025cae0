"""
Tool calls out of fragments: which call a fragment belongs to, what the call is called, when it opens.

Providers leave out the index, repeat or empty the id, send the name in every fragment, in pieces, or late,
and open several calls at once. A block opens in the order of the provider's indices; what comes before
its turn is kept and goes out with the head.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from dsh_core.content import ToolCallBlock
from dsh_core.llm.seam import BlockEnd, BlockStart, StreamChunk, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from dsh_llm_openai.chunks import ToolCall

__all__ = ["CallTracker", "whole_name"]

_PLACEHOLDERS: Final = frozenset({"{}", "null", '""'})


class _Call:
    """One tool call while it grows."""

    __slots__ = ("block", "id", "late", "names", "placeholder", "sent", "sent_name", "unsent")

    def __init__(self) -> None:
        self.id: str | None = None
        self.names: list[str] = []
        self.placeholder = False
        self.unsent: list[str] = []
        self.sent: list[str] = []
        self.block: int | None = None
        self.sent_name: str | None = None
        self.late = False  # id or name came after the head, so the end repeats the whole block

    @property
    def arguments(self) -> str:
        return "".join(self.sent) + "".join(self.unsent)

    def is_whole(self) -> bool:
        """Whether nothing more is missing: no arguments yet, or JSON that is complete."""
        text = self.arguments
        if not text.strip():
            return True
        try:
            json.loads(text)
        except ValueError:
            return False
        return True

    def add_name(self, name: str) -> None:
        if len(self.names) < 2 or not self.names[0] == self.names[-1] == name:
            self.names.append(name)

    def add_arguments(self, text: str) -> None:
        if not self.sent and not self.unsent and text.strip() in _PLACEHOLDERS:
            self.placeholder = True  # stands for "none yet"; real arguments may still follow
            return
        self.placeholder = False
        self.unsent.append(text)


def whole_name(names: list[str], offered: Container[str]) -> str:
    """
    The name behind the fragments of it.

    Args:
        names: What came, in order, without empty fragments.
        offered: The names in the request; they tell a repeated name from one sent in pieces.
    """
    if not names:
        return ""
    joined = "".join(names)
    if joined in offered:
        return joined
    for name in (names[-1], names[0]):
        if name in offered:
            return name
    if names[-1].startswith(names[0]):
        return names[-1]  # repeated, or longer each time
    return joined


class CallTracker:
    """
    All tool calls of one answer.

    Args:
        offered: Names of the tools in the request.
        next_index: Gives the next free block index.
        answer_tool: Name of the tool whose arguments are the answer itself; they become text.
    """

    def __init__(self, offered: Iterable[str], next_index: Callable[[], int], answer_tool: str | None = None) -> None:
        self._offered = frozenset(offered)
        self._next_index = next_index
        self._answer_tool = answer_tool
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._opened_upto = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def only_answers(self) -> bool:
        """Whether every call was a call of the answer tool."""
        return all(self._is_answer(call) for call in self._calls)

    def take(self, entries: list[ToolCall]) -> list[StreamChunk]:
        """The chunks that one delta's fragments make."""
        out: list[StreamChunk] = []
        touched: list[_Call] = []
        for position, entry in enumerate(entries):
            call = self._locate(entry, position, len(entries), touched)
            touched.append(call)
            self._grow(call, entry)
            self._emit(call, out)
        return out

    def close(self) -> list[StreamChunk]:
        """The rest of every call, in order, and the ends of their blocks."""
        out: list[StreamChunk] = []
        for call in self._ordered():
            if call.placeholder:
                call.placeholder = False
                call.unsent.append("{}")
            self._open(call, out)
            self._send(call, out, last=True)
            out.append(self._end(call))
        return out

    def _locate(self, entry: ToolCall, position: int, total: int, touched: list[_Call]) -> _Call:
        if entry.index is not None and entry.index >= 0:
            return self._by_number(entry.index, entry)
        if entry.id:
            return self._by_id(entry)
        named = entry.function is not None and bool(entry.function.name)
        if not self._calls:
            return self._new()
        if total > 1 and not named:
            return self._calls[max(0, len(self._calls) - total + position)]
        last = self._calls[-1]
        if last in touched or (named and self._is_another(last, entry)):
            return self._new()
        return last

    def _by_number(self, index: int, entry: ToolCall) -> _Call:
        call = self._by_index.get(index)
        named = entry.function is not None and bool(entry.function.name)
        if call is not None and entry.id and call.id and entry.id != call.id and named and call.is_whole():
            call = self._new()  # a provider that gives every call the same number
        elif call is None:
            call = self._by_index[index] = self._new()
        return call

    def _by_id(self, entry: ToolCall) -> _Call:
        for call in self._calls:
            if call.id == entry.id:
                return call
        named = entry.function is not None and bool(entry.function.name)
        if self._calls and not named:
            last = self._calls[-1]
            if last.id is None or not last.is_whole():
                return last  # a late id, or a new one in every fragment
        return self._new()

    def _is_another(self, last: _Call, entry: ToolCall) -> bool:
        name = (entry.function.name if entry.function else None) or ""
        if last.arguments.strip():
            return last.is_whole()
        return name in self._offered and whole_name(last.names, self._offered) in self._offered - {name}

    def _new(self) -> _Call:
        call = _Call()
        self._calls.append(call)
        return call

    def _grow(self, call: _Call, entry: ToolCall) -> None:
        if entry.id and call.id is None:
            call.id = entry.id
            call.late = call.late or call.block is not None
        if entry.function is not None:
            if entry.function.name:
                call.add_name(entry.function.name)
            if entry.function.arguments:
                call.add_arguments(entry.function.arguments)

    def _emit(self, call: _Call, out: list[StreamChunk]) -> None:
        if call.block is None:
            for waiting in self._due():
                self._open(waiting, out)
                self._send(waiting, out)
        if call.block is not None and (call.unsent or call.sent_name is None):
            self._send(call, out)

    def _due(self) -> list[_Call]:
        """Calls whose turn it is: numbered ones in the order of their numbers, others as they come."""
        due = []
        while (call := self._by_index.get(self._opened_upto)) is not None and self._can_open(call):
            self._opened_upto += 1
            if call.block is None:
                due.append(call)
        numbered = set(map(id, self._by_index.values()))
        return due + [
            call for call in self._calls if call.block is None and id(call) not in numbered and self._can_open(call)
        ]

    def _can_open(self, call: _Call) -> bool:
        """With an answer tool, what kind of block it is depends on the name."""
        return self._answer_tool is None or self._settled_name(call) is not None

    def _ordered(self) -> list[_Call]:
        numbered = [self._by_index[index] for index in sorted(self._by_index)]
        known = set(map(id, numbered))
        return numbered + [call for call in self._calls if id(call) not in known]

    def _is_answer(self, call: _Call) -> bool:
        return self._answer_tool is not None and whole_name(call.names, self._offered) == self._answer_tool

    def _open(self, call: _Call, out: list[StreamChunk]) -> None:
        if call.block is None:
            call.block = self._next_index()
            out.append(BlockStart(call.block, "text" if self._is_answer(call) else "tool-call"))

    def _settled_name(self, call: _Call) -> str | None:
        """The name, once no further fragment of it is to be expected."""
        name = whole_name(call.names, self._offered)
        if not name:
            return None
        if call.unsent or call.sent:
            return name  # names come before arguments
        longer = any(other != name and other.startswith(name) for other in self._offered)
        return name if name in self._offered and not longer else None

    def _send(self, call: _Call, out: list[StreamChunk], *, last: bool = False) -> None:
        assert call.block is not None
        name = None
        if head := not call.sent_name:
            name = whole_name(call.names, self._offered) if last else self._settled_name(call)
            call.late = call.late or bool(name and call.sent)
            call.sent_name = name
        text = "".join(call.unsent)
        call.unsent.clear()
        if text:
            call.sent.append(text)
        if self._is_answer(call):
            if text:
                out.append(TextDelta(call.block, text))
        elif text or name:
            out.append(ToolCallDelta(call.block, call.id if head else None, name or None, text))

    def _end(self, call: _Call) -> BlockEnd:
        assert call.block is not None
        name = whole_name(call.names, self._offered)
        if self._is_answer(call) or not (call.late or call.sent_name != name):
            return BlockEnd(call.block)
        return BlockEnd(call.block, ToolCallBlock(call.id or "", name, "".join(call.sent)))
