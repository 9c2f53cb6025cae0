"""What a model reads: messages, in the order it needs them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from logs import Log, NoteEvent

from dsh_core.content import Context, Message, Source, TextBlock, ToolCallBlock, ToolResultBlock, Usage
from dsh_core.session import Session, SessionEvent, SessionHeader
from dsh_core.session.events import AssistantChunkEvent, ContextMessageEvent, ToolResultEvent


def test_roles_and_order_of_a_round_trip() -> None:
    """S-4, case 8: user, assistant, the result as a user message, assistant."""
    log = Log()
    log.start()
    log.user("hi")
    log.step()
    log.answer("let me see", ["a"])
    log.result("a", "42")
    log.step_end()
    log.step()
    log.answer("it is 42")
    assert list(log.session.derive_messages()) == [
        Message("user", "hi", Source.user(), "m1"),
        Message("assistant", [TextBlock("let me see"), ToolCallBlock("a", "add", "{}")]),
        Message("user", ToolResultBlock("a", "42")),
        Message("assistant", "it is 42"),
    ]


def test_nothing_else_contributes() -> None:
    """S-4, case 9: chunks, boundaries, requests and plugin events change nothing."""
    bare, full = Log(), Log()
    for log, extra in ((bare, False), (full, True)):
        log.start()
        log.user("hi")
        log.step()
        if extra:
            log.session.append(NoteEvent({"a": 1}))
            log.session.append(AssistantChunkEvent(1, 1, chunks=[["text", 0, 0, "hel"]]))
        log.answer("hello")
    assert full.session.derive_messages() == bare.session.derive_messages()


def test_an_answer_without_content_is_no_message() -> None:
    """S-4, case 10: it carries usage only."""
    log = Log()
    log.start()
    log.user()
    log.step()
    log.answer("", usage=Usage(1, 2))
    assert log.roles() == ["user hi"]


def test_steering_reads_like_a_prompt() -> None:
    """S-4: verbatim."""
    log = Log()
    log.start()
    log.user("hi")
    log.steering("also this")
    assert log.roles() == ["user hi", "user also this"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Source.plugin("notes"), "notes"),
        (Source("plugin"), "plugin"),
        (None, "unknown"),
        (Source.plugin('a"><b>&'), "a&quot;&gt;&lt;b&gt;&amp;"),
    ],
    ids=str,
)
def test_a_context_is_framed(source: Source | None, name: str) -> None:
    """S-4: one user-role message that says where it comes from; a name cannot break out of the frame."""
    log = Log()
    log.start()
    log.session.append(ContextMessageEvent("it rains", source))
    (message,) = log.session.derive_messages()
    assert message.role == "user"
    text = "".join(block.text for block in message.content)  # type: ignore[union-attr]
    assert text == f'<context source="{name}">\nit rains\n</context>'


def test_results_stand_behind_their_calls_in_the_order_of_the_calls() -> None:
    """S-4: whatever was logged in between; notes follow the last result."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b", "c"])
    log.context("one")
    log.result("c")
    log.context("two")
    log.result("a")
    log.result("b")
    log.context("three")
    words = [word.split("\n")[1] if "context" in word else word for word in log.roles()]
    assert words == ["assistant", "result a", "result b", "result c", "one", "two", "three"]


def test_a_batch_that_is_not_complete_reads_as_far_as_it_goes() -> None:
    """S-4: results that are there, then notes; the view taken before does not change."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b"])
    log.result("b")
    log.steering("hurry")
    early = log.session.derive_messages()
    words = log.roles()
    log.result("a")
    assert words == ["assistant", "result b", "user hurry"]
    assert len(early) == 3
    assert log.roles() == ["assistant", "result a", "result b", "user hurry"]


def double_answer(where: str) -> Session:
    """A loaded log with two results for call `a`: next to each other, or the second much later."""
    log = Log()
    log.start()
    log.user()
    log.step()
    log.answer("", ["a", "b"])
    log.result("a", "first")
    log.result("b")
    log.step_end()
    log.end()
    log.turn("next", "answer")
    events = [*log.session.events]
    second = ToolResultEvent(1, 1, "a", "second")
    at = len(events) if where == "late" else next(e.seq for e in events if isinstance(e.data, ToolResultEvent)) + 1
    data = [(event.data, event.time) for event in events]
    data.insert(at, (second, events[-1].time))
    return Session(SessionHeader("t"), seed=[SessionEvent(seq, 5_000, one) for seq, (one, _) in enumerate(data)])


@pytest.mark.parametrize("where", ["next", "late"])
def test_of_two_answers_to_a_call_the_first_counts(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """S-4, S-6, pair-3: a log that holds both loads, one answer an id is read, with one warning."""
    with caplog.at_level(logging.WARNING, "dsh"):
        session = double_answer(where)
        for _ in range(3):
            messages = session.derive_messages()
    results = [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]
    assert [(block.tool_call_id, block.content) for block in results] == [
        ("a", (TextBlock("first"),)),
        ("b", (TextBlock("done"),)),
    ]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "a" in warnings[0].getMessage()


def test_a_result_without_a_call_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """S-6, case 17: tolerated on read, with a warning."""
    log = Log()
    log.turn()
    orphan = SessionEvent(len(log.session.events), 5_000, ToolResultEvent(1, 1, "ghost", "boo"))
    with caplog.at_level(logging.WARNING, "dsh"):
        session = Session(SessionHeader("t"), seed=[*log.session.events, orphan])
        messages = session.derive_messages()
    assert [message.role for message in messages] == ["user", "assistant"]
    assert "ghost" in caplog.text


def test_a_result_that_comes_after_the_conversation_went_on_stands_behind_its_call() -> None:
    """S-4: an old log may hold a call that a later turn answered."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["a", "b"])
    log.result("b")
    log.step_end()
    log.step()
    log.answer("moving on")
    assert log.roles() == ["assistant", "result b", "assistant"]
    log.result("a")
    assert log.roles() == ["assistant", "result a", "result b", "assistant"]
    again = Session(SessionHeader("t"), seed=log.session.events)
    assert again.derive_messages() == log.session.derive_messages()


def test_views_are_shared_and_do_not_change() -> None:
    """S-4: each is what the conversation was; both compare with any sequence."""
    log = Log()
    log.turn("one", "1")
    early = log.session.derive_messages()
    copy = list(early)
    log.turn("two", "2")
    late = log.session.derive_messages()
    assert early == copy
    assert copy == early
    assert late[:2] == tuple(copy)
    assert early != late
    assert late[-1] == Message("assistant", "2")
    with pytest.raises(IndexError):
        early[2]
    with pytest.raises((TypeError, AttributeError)):
        early.append(copy[0])  # type: ignore[attr-defined]


def test_a_message_that_was_read_cannot_be_edited() -> None:
    """S-4, case 11: the log cannot be reached through what was derived."""
    log = Log()
    log.turn()
    message = log.session.derive_messages()[0]
    with pytest.raises(AttributeError):
        message.content = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        message.content[0].text = "other"  # type: ignore[union-attr, misc]


def test_a_replacement_is_read_in_its_place() -> None:
    """S-4: where the run stood, not at its seq; a view taken before stays as it was."""
    log = Log()
    log.turn("one", "1")
    log.start()
    log.user("two")
    first, last = list(log.session.surface.nodes)[:2]
    early = log.session.derive_messages()
    log.replace(first, last, "summary")
    assert log.roles() == ["user summary", "user two"]
    assert [message.content for message in early] == [(TextBlock("one"),), (TextBlock("1"),), (TextBlock("two"),)]


def test_contexts_from_decisions_and_from_the_log_read_the_same() -> None:
    """S-4: a context object keeps its source."""
    context: Any = Context("note", Source.plugin("p"))
    log = Log()
    log.start()
    log.session.append(ContextMessageEvent(context.content, context.source))
    assert 'source="p"' in log.session.derive_messages()[0].content[0].text  # type: ignore[union-attr]
