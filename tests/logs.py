"""Sessions for tests of the log: short ways to say what is in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from dsh_core.content import Block, ErrorInfo, Source, Tagged, TextBlock, ToolCallBlock
from dsh_core.session import Session, SessionEvent, SessionHeader
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    InboxQueuedEvent,
    SteeringMessageEvent,
    StepEndEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEndEvent,
    TurnStartEvent,
    UserMessageEvent,
    session_event,
)


@session_event("test/note")
@attrs.define
class NoteEvent:
    """A plugin's event: free-form, changeable, may stand between turns."""

    value: Any = None
    tags: list[str] = attrs.field(factory=list)


@session_event("test/strict", ignorable=False, between_turns=False, version=2)
@attrs.frozen
class StrictEvent:
    """A plugin's event that belongs into a turn and that no reader may leave out."""

    value: Any = None


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Log:
    """A session and the events one usually appends to it."""

    def __init__(self, session: Session | None = None, **keywords: Any) -> None:
        self.session = session or Session(SessionHeader("s"), **keywords)
        self._messages = len(self.session.events)

    def start(self, kind: str = "message") -> SessionEvent:
        return self.session.append(TurnStartEvent(self.session.last_turn + 1, Tagged(kind)))

    def end(self, kind: str = "completed", **fields: Any) -> SessionEvent:
        return self.session.append(TurnEndEvent(self.session.last_turn, Tagged(kind, **fields)))

    def step(self) -> SessionEvent:
        done = [event.data for event in self.session.events if isinstance(event.data, StepStartEvent)]
        number = sum(data.turn == self.session.last_turn for data in done) + 1
        return self.session.append(StepStartEvent(self.session.last_turn, number))

    def step_end(self) -> SessionEvent:
        return self.session.append(StepEndEvent(self.session.last_turn, self._step))

    def queue(self, text: str = "hi", lane: str = "queued") -> str:
        self._messages += 1
        message_id = f"m{self._messages}"
        self.session.append(InboxQueuedEvent(message_id, lane, text))
        return message_id

    def user(self, text: str = "hi") -> SessionEvent:
        message_id = self.queue(text)
        return self.session.append(UserMessageEvent(message_id, text, Source.user()))

    def steering(self, text: str = "also") -> SessionEvent:
        message_id = self.queue(text, "steering")
        return self.session.append(SteeringMessageEvent(message_id, self.session.last_turn, text))

    def context(self, text: str = "note", name: str = "notes") -> SessionEvent:
        return self.session.append(ContextMessageEvent(text, Source.plugin(name)))

    def answer(self, text: str = "", calls: Iterable[str] = (), **fields: Any) -> SessionEvent:
        blocks: list[Block] = [TextBlock(text)] if text else []
        blocks += [ToolCallBlock(call_id, "add", "{}") for call_id in calls]
        return self.session.append(AssistantMessageEvent(self.session.last_turn, self._step, content=blocks, **fields))

    def call(self, call_id: str) -> SessionEvent:
        return self.session.append(ToolCallEvent(self.session.last_turn, self._step, call_id, "add", "{}"))

    def result(self, call_id: str, text: str = "done", code: str | None = None) -> SessionEvent:
        error = ErrorInfo(code, code) if code is not None else None
        return self.session.append(
            ToolResultEvent(self.session.last_turn, self._step, call_id, text, error is not None, error)
        )

    def replace(
        self, first: int, last: int, text: str = "summary", sources: Iterable[int] | None = None
    ) -> SessionEvent:
        nodes = list(self.session.surface.nodes)
        shadowed = nodes[nodes.index(first) : nodes.index(last) + 1] if sources is None else sources
        data = UserMessageEvent(f"r{len(self.session.events)}", text, Source.plugin("compact"))
        return self.session.append(data, replace=(first, last), sources=shadowed)

    def round_trip(self, *calls: str) -> None:
        """A whole step: an answer with calls, and their results."""
        self.step()
        self.answer("", calls)
        for call_id in calls:
            self.call(call_id)
            self.result(call_id)
        self.step_end()

    def turn(self, prompt: str = "hi", answer: str = "hello") -> None:
        """A whole turn without tools."""
        self.start()
        self.user(prompt)
        self.step()
        self.answer(answer)
        self.step_end()
        self.end()

    @property
    def _step(self) -> int:
        open_step = self.session.open_step
        return open_step if open_step is not None else 1

    def roles(self) -> list[str]:
        """What a model reads, as one word a message: role, or `call`, `result` and the call's id."""
        return [_word(message) for message in self.session.derive_messages()]

    def types(self) -> list[str]:
        return [event.type for event in self.session.events]


def _word(message: Any) -> str:
    block = message.content[0]
    if message.role == "assistant":
        return "assistant"
    return f"result {block.tool_call_id}" if hasattr(block, "tool_call_id") else f"user {block.text}"
