"""However a log came about, folding it step by step and folding it at once give the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import Log

from dsh_core.content import Message, Source, ToolCallBlock, ToolResultBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session import Session, SessionEvent, SessionHeader, decode_event, encode_event
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    SteeringMessageEvent,
    ToolResultEvent,
    UserMessageEvent,
)
from dsh_core.session.projection import frame_context


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of odd logs are loaded here, each with its warning."""
    logger = logging.getLogger("dsh")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


MESSAGES = (UserMessageEvent, AssistantMessageEvent, ToolResultEvent, ContextMessageEvent, SteeringMessageEvent)

small = st.integers(0, 12)
actions = st.one_of(
    st.tuples(st.just("user"), small),
    st.tuples(st.just("context"), small),
    st.tuples(st.just("steering"), small),
    st.tuples(st.just("answer"), st.integers(0, 3)),
    st.tuples(st.just("result"), small),
    st.tuples(st.just("replace"), small, small, st.booleans()),
    st.tuples(st.just("shorten"), small),
    st.tuples(st.just("look")),
)


class World:
    """A session driven by random actions; those that are refused leave no trace, which is checked."""

    def __init__(self) -> None:
        self.log = Log()
        self.calls = 0
        self.log.start()
        self.log.step()

    def do(self, action: tuple[Any, ...]) -> None:
        session = self.log.session
        before = (len(session.events), list(session.surface.nodes), session.surface.generation)
        try:
            getattr(self, action[0])(*action[1:])
        except InvariantViolation:
            assert (len(session.events), list(session.surface.nodes), session.surface.generation) == before

    def user(self, number: int) -> None:
        self.log.user(f"u{number}")

    def context(self, number: int) -> None:
        self.log.context(f"c{number}")

    def steering(self, number: int) -> None:
        self.log.steering(f"s{number}")

    def answer(self, count: int) -> None:
        ids = [f"call{self.calls + one}" for one in range(count)]
        self.calls += count
        self.log.answer("" if count else "text", ids)

    def result(self, number: int) -> None:
        # Any call of the session: also one that was answered, or whose conversation has gone on.
        self.log.result(f"call{number}", f"r{number}")

    def replace(self, first: int, last: int, whole: bool) -> None:
        nodes = list(self.log.session.surface.nodes)
        if nodes:
            a, b = nodes[first % len(nodes)], nodes[last % len(nodes)]
            i, j = nodes.index(a), nodes.index(b)
            self.log.replace(a, b, "summary", nodes[i : j + 1] if whole else nodes[i:j])

    def shorten(self, number: int) -> None:
        session = self.log.session
        nodes = [seq for seq in session.surface.nodes if isinstance(session.events[seq].data, ToolResultEvent)]
        if nodes:
            old = session.events[nodes[number % len(nodes)]]
            short = ToolResultEvent(old.data.turn, old.data.step, old.data.call_id, "short")
            session.append(short, replace=(old.seq, old.seq), sources=[old.seq])

    def look(self) -> None:
        self.log.session.derive_messages()


def surface_of(events: list[SessionEvent]) -> list[int]:
    """The surface, folded the plainest way there is."""
    nodes: list[int] = []
    for event in events:
        if not isinstance(event.data, MESSAGES):
            continue
        if event.surface is None:
            nodes.append(event.seq)
        else:
            nodes[nodes.index(event.surface.first) : nodes.index(event.surface.last) + 1] = [event.seq]
    return nodes


def messages_of(data: list[Any]) -> list[Message]:
    """The conversation by the words of S-4: results of a message behind it in the order of its calls, then notes."""
    answers: dict[str, Message] = {}
    for one in data:
        if isinstance(one, ToolResultEvent):
            block = ToolResultBlock(one.call_id, one.content, one.is_error)
            answers.setdefault(one.call_id, Message("user", block))
    said: list[Message] = []
    for one in data:
        if isinstance(one, AssistantMessageEvent) and one.content:
            said.append(Message("assistant", one.content))
            calls = [block.id for block in one.content if isinstance(block, ToolCallBlock)]
            said += [answers[call_id] for call_id in calls if call_id in answers]
        elif isinstance(one, ContextMessageEvent):
            said.append(frame_context(one))
        elif isinstance(one, UserMessageEvent | SteeringMessageEvent):
            said.append(Message("user", one.content, one.source, one.message_id))
    return said


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=40))
def test_the_incremental_fold_equals_a_full_one(program: list[tuple[Any, ...]]) -> None:
    """S-3, S-4, case 16: surface and messages, at every moment, also from the stored bytes."""
    world = World()
    session = world.log.session
    for action in program:
        world.do(action)
    events = list(session.events)
    nodes = surface_of(events)
    assert list(session.surface.nodes) == nodes
    assert list(session.derive_messages()) == messages_of([events[seq].data for seq in nodes])
    again = Session(SessionHeader("t"), seed=[decode_event(encode_event(event)) for event in events])
    assert list(again.surface.nodes) == nodes
    assert again.derive_messages() == session.derive_messages()
    assert again.surface.generation == session.surface.generation
    assert again.unanswered_calls() == session.unanswered_calls()


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=30), st.lists(actions, max_size=15))
def test_a_view_stays_what_it_was(program: list[tuple[Any, ...]], later: list[tuple[Any, ...]]) -> None:
    """S-4: the result is immutable, whatever is appended or replaced afterwards."""
    world = World()
    for action in program:
        world.do(action)
    view = world.log.session.derive_messages()
    nodes = world.log.session.surface.nodes
    kept, kept_nodes = list(view), list(nodes)
    for action in later:
        world.do(action)
        world.log.session.derive_messages()
    assert list(view) == kept
    assert list(nodes) == kept_nodes


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=25), st.lists(actions, max_size=15))
def test_a_session_goes_on_from_its_seed_as_it_would_have_itself(
    program: list[tuple[Any, ...]], later: list[tuple[Any, ...]]
) -> None:
    """S-4, case 12: nothing a session knows is outside of its log."""
    world, twin = World(), World()
    for action in program:
        world.do(action)
    twin.log = Log(Session(SessionHeader("t"), seed=world.log.session.events))
    twin.log._messages, twin.calls = world.log._messages, world.calls
    for action in later:
        world.do(action)
        twin.do(action)
    assert [event.data for event in twin.log.session.events] == [event.data for event in world.log.session.events]
    assert twin.log.session.derive_messages() == world.log.session.derive_messages()


def test_the_model_of_this_test_reads_a_plain_conversation() -> None:
    """S-4: the comparison above would notice an empty one."""
    log = Log()
    log.start()
    log.user("hi")
    log.step()
    log.answer("", ["a"])
    log.result("a")
    data = [log.session.events[seq].data for seq in log.session.surface.nodes]
    assert len(messages_of(data)) == 3
    assert messages_of(data)[0] == Message("user", "hi", Source.user(), "m1")
