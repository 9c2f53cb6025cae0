"""
What a model reads of a session: the surface, as messages (S-4).

Incremental: settled messages are only ever appended, so the views handed out share one list. The results of
a batch of calls are held back until it is complete, because they have to stand directly behind their calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import attrs

from dsh_core.content import Message, Source, TextBlock, ToolCallBlock, ToolResultBlock
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    SteeringMessageEvent,
    ToolResultEvent,
    UserMessageEvent,
)

__all__ = ["MessageView", "Projection", "frame_context"]

_log: Final = logging.getLogger("dsh")


class MessageView(Sequence[Message]):
    """An immutable view of the first messages of a list that only grows."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message], length: int) -> None:
        self._messages = messages
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return tuple(self._messages[i] for i in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._messages[index if index >= 0 else index + self._length]

    def __iter__(self) -> Iterator[Message]:
        messages = self._messages
        for index in range(self._length):
            yield messages[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MessageView) and other._messages is self._messages:
            return other._length == self._length
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(other) == self._length and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._length)

    def __repr__(self) -> str:
        return f"MessageView({list(self)!r})"


@attrs.define
class _Batch:
    """The calls of one assistant message whose results are not all there."""

    calls: list[str]
    results: dict[str, Message] = attrs.field(factory=dict)
    notes: list[Message] = attrs.field(factory=list)

    def messages(self) -> list[Message]:
        return [self.results[call] for call in self.calls if call in self.results] + self.notes


class Projection:
    """
    The messages of a surface.

    Args:
        events: Data of the surface's nodes, by position.
    """

    __slots__ = ("_answered", "_batch", "_messages", "_warned")

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self._warned: set[str] = set()
        self.rebuild(events)

    def rebuild(self, events: Iterable[Any]) -> None:
        """Start again from the nodes of a surface."""
        self._messages: list[Message] = []
        self._batch: _Batch | None = None
        self._answered: set[str] = set()
        nodes = list(events)
        late = {data.call_id: data for data in reversed(nodes) if isinstance(data, ToolResultEvent)}
        for data in nodes:
            self._add(data, late)

    def add(self, data: Any) -> None:
        """Add a node at the tail."""
        self._add(data, {})

    def view(self) -> MessageView:
        """The messages as they are now."""
        if self._batch is None:
            return MessageView(self._messages, len(self._messages))
        whole = self._messages + self._batch.messages()
        return MessageView(whole, len(whole))

    def _add(self, data: Any, results: dict[str, ToolResultEvent]) -> None:
        kind = type(data)
        if kind is ToolResultEvent:
            if results.get(data.call_id) is not data or data.call_id not in self._answered:
                self._add_result(data)
        elif kind is AssistantMessageEvent:
            self._add_assistant(data, results)
        else:
            message = frame_context(data) if kind is ContextMessageEvent else _said(data)
            (self._messages if self._batch is None else self._batch.notes).append(message)

    def _add_assistant(self, data: AssistantMessageEvent, results: dict[str, ToolResultEvent]) -> None:
        self._close_batch()
        if not data.content:
            return
        self._messages.append(Message("assistant", data.content))
        calls = [block.id for block in data.content if type(block) is ToolCallBlock]
        if calls:
            self._batch = _Batch(calls)
            # After a rebuild every result is known; one that stands far behind its call still follows it.
            for call in calls:
                if call in results:
                    self._add_result(results[call])

    def _add_result(self, data: ToolResultEvent) -> None:
        batch, call = self._batch, data.call_id
        if call in self._answered:
            self._answered_twice(call)
            return
        if batch is None or call not in batch.calls:
            self._warn(call, "has no call before it")
            return
        self._answered.add(call)
        batch.results[call] = Message("user", (ToolResultBlock(call, data.content, data.is_error),))
        if len(batch.results) == len(batch.calls):
            self._close_batch()

    def _answered_twice(self, call: str) -> None:
        self._warn(call, "is a second answer")

    def _close_batch(self) -> None:
        if self._batch is not None:
            self._messages += self._batch.messages()
            self._batch = None

    def _warn(self, call: str, what: str) -> None:
        if call not in self._warned:
            self._warned.add(call)
            _log.warning("the result of call %s %s; it is left out of what the model reads", call, what)


def _said(data: UserMessageEvent | SteeringMessageEvent) -> Message:
    return Message("user", data.content, data.source, data.message_id)


def frame_context(data: ContextMessageEvent) -> Message:
    """A context as the model reads it: one user-role message inside `<context source="NAME">`."""
    name = _escaped(_name(data.source))
    blocks = (TextBlock(f'<context source="{name}">\n'), *data.content, TextBlock("\n</context>"))
    if all(type(block) is TextBlock for block in data.content):
        blocks = (TextBlock("".join(block.text for block in blocks if isinstance(block, TextBlock))),)
    return Message("user", blocks, data.source)


def _name(source: Source | None) -> str:
    return "unknown" if source is None else source.name or source.kind


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
