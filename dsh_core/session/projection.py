"""
What a model reads of a session: the surface, as messages (S-4).

Incremental: settled messages are only ever appended, so the views handed out share one list. The results of
a batch of calls are held back until it is complete, because they have to stand directly behind their calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsh_core.content import Message, Source, TextBlock, ToolResultBlock
from dsh_core.session._views import View
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    SteeringMessageEvent,
    ToolResultEvent,
    UserMessageEvent,
)
from dsh_core.session.surface import SurfaceFold, calls_of

if TYPE_CHECKING:
    from dsh_core.session.event import SessionEvent

__all__ = ["MessageView", "Projection", "frame_context"]


class MessageView(View[Message]):
    """The conversation at one moment: immutable, shared with later moments, equal to any such sequence."""

    __slots__ = ()


class _Batch:
    """The calls of one assistant message, some of which wait for their results."""

    __slots__ = ("calls", "notes", "results", "seq")

    def __init__(self, seq: int, calls: list[str], results: dict[str, Message]) -> None:
        self.seq = seq
        self.calls = calls
        self.results = results
        self.notes: list[Message] = []

    def messages(self) -> list[Message]:
        return [self.results[call] for call in self.calls if call in self.results] + self.notes


class Projection:
    """
    The messages of a surface, brought up to date when they are asked for.

    Args:
        surface: The surface.
        events: The log it belongs to.
    """

    __slots__ = ("_batch", "_done", "_events", "_generation", "_late", "_messages", "_surface", "_unanswered")

    def __init__(self, surface: SurfaceFold, events: Sequence[SessionEvent]) -> None:
        self._surface = surface
        self._events = events
        self._generation = surface.generation
        self._late: dict[tuple[int, str], Message] = {}
        self._restart()

    def view(self) -> MessageView:
        """The messages as they are now, at a cost proportional to what is new."""
        if self._generation != self._surface.generation:
            self._generation = self._surface.generation
            self._late.clear()
            self._restart()
        nodes, events = self._surface.nodes, self._events
        while self._done < len(nodes):
            self._done += 1
            self._add(events[nodes[self._done - 1]])
        if self._batch is None:
            return MessageView(self._messages, len(self._messages))
        whole = [*self._messages, *self._batch.messages()]
        return MessageView(whole, len(whole))

    def _restart(self) -> None:
        self._messages: list[Message] = []  # a new list: views of the old one stay what they are
        self._done = 0
        self._batch: _Batch | None = None
        self._unanswered: dict[str, int] = {}

    def _add(self, event: SessionEvent) -> None:
        data = event.data
        kind = type(data)
        if kind is ToolResultEvent:
            self._add_result(data)
        elif kind is AssistantMessageEvent:
            self._add_answer(event.seq, data)
        else:
            message = frame_context(data) if kind is ContextMessageEvent else _said(data)
            (self._messages if self._batch is None else self._batch.notes).append(message)

    def _add_answer(self, seq: int, data: AssistantMessageEvent) -> None:
        if self._batch is not None:
            self._give_up(self._batch)
        if not data.content:
            return
        self._messages.append(Message("assistant", data.content))
        blocks = calls_of(data)
        if blocks:
            calls = [blocks[0].id] if len(blocks) == 1 else list(dict.fromkeys(block.id for block in blocks))
            late: dict[str, Message] = {}
            if self._late:
                late = {call: self._late[seq, call] for call in calls if (seq, call) in self._late}
            self._batch = _Batch(seq, calls, late)
            if late:
                self._settle()

    def _add_result(self, data: ToolResultEvent) -> None:
        call, batch = data.call_id, self._batch
        if batch is not None and call in batch.calls and call not in batch.results:
            if len(batch.calls) == 1:  # it is complete with this
                self._messages += [_answer(data), *batch.notes]
                self._batch = None
            else:
                batch.results[call] = _answer(data)
                self._settle()
        elif call in self._unanswered:
            # The conversation had gone on without it, and it belongs behind its call all the same.
            self._late[self._unanswered[call], call] = _answer(data)
            self._restart()

    def _settle(self) -> None:
        batch = self._batch
        if batch is not None and len(batch.results) >= len(batch.calls):
            self._messages += batch.messages()
            self._batch = None

    def _give_up(self, batch: _Batch) -> None:
        self._messages += batch.messages()
        self._unanswered.update((call, batch.seq) for call in batch.calls if call not in batch.results)
        self._batch = None


def _answer(data: ToolResultEvent) -> Message:
    return Message("user", (ToolResultBlock(data.call_id, data.content, data.is_error),))


def _said(data: Any) -> Message:
    assert type(data) in (UserMessageEvent, SteeringMessageEvent)
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
