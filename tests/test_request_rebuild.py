"""Requests rebuilt from the log are what the adapter received (L-9)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from logs import Log

import dsh_core as dsh
from dsh_core.content import GenerateRequest, Source, ToolSchema
from dsh_core.errors import HarnessError
from dsh_core.session import Session, SessionHeader, decode_event, encode_event, rebuild_request
from dsh_core.session.events import RequestHeaderEvent, RequestRetryEvent
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, fail, text

pytestmark = pytest.mark.anyio

SCHEMA = ToolSchema("add", "Adds.", {"type": "object"})


def header(log: Log, model: str = "m", attempt: int = 1, **params: Any) -> None:
    turn, step = log.session.last_turn, log.session.open_step
    assert step is not None
    log.session.append(RequestHeaderEvent(turn, step, attempt, "p", model, params, "be kind", (SCHEMA,), "initial"))


def asked(log: Log) -> None:
    log.start()
    log.user("first")
    log.step()


def test_a_request_is_header_and_history_before_its_step() -> None:
    """L-9: everything of a request is in the log."""
    log = Log()
    asked(log)
    before = log.session.derive_messages()
    header(log, temperature=0.5, max_tokens=10, stop=["x"], reasoning_effort="low", extra={"k": [1]})
    log.context("after the anchor")
    assert rebuild_request(log.session.events, 1, 1) == GenerateRequest(
        model="m", provider="p", messages=before, system="be kind", tools=(SCHEMA,), temperature=0.5, max_tokens=10,
        stop=("x",), reasoning_effort="low", extra={"k": [1]}, turn=1, step=1, attempt=1,
    )  # fmt: skip
    assert rebuild_request(log.session.events, 1, 1).session_id == "s"


def test_a_header_holds_until_the_next_one() -> None:
    """L-9: it is logged when something changes, so a later request finds an earlier header."""
    log = Log()
    asked(log)
    header(log, "one")
    log.answer("", ["c1"])
    log.result("c1")
    log.step_end()
    log.step()
    log.answer("done")
    log.step_end()
    log.end()
    asked(log)
    header(log, "two")
    events = log.session.events
    assert [rebuild_request(events, *which).model for which in ((1, 1), (1, 2), (2, 1))] == ["one", "one", "two"]
    assert [len(rebuild_request(events, *which).messages) for which in ((1, 1), (1, 2), (2, 1))] == [1, 3, 5]


def test_each_attempt_has_an_anchor_and_a_header_of_its_own() -> None:
    """L-9, L-4: what was injected or replaced between two attempts belongs to the second."""
    log = Log()
    log.turn()
    nodes = list(log.session.surface.nodes)
    asked(log)
    header(log, "big")
    log.replace(nodes[0], nodes[1])
    log.session.append(RequestRetryEvent(2, 1, 2))
    header(log, "small", 2)
    log.context("late")
    log.session.append(RequestRetryEvent(2, 1, 3))
    events = log.session.events
    first, second, third = (rebuild_request(events, 2, 1, attempt) for attempt in (1, 2, 3))
    assert [message.text for message in first.messages] == ["hi", "hello", "first"]
    assert [message.text for message in second.messages] == ["summary", "first"]
    assert [len(third.messages), third.model, third.attempt] == [3, "small", 3]
    assert (first.model, second.model) == ("big", "small")


def test_a_request_can_be_rebuilt_from_stored_bytes_alone() -> None:
    """L-9: the log on disk is enough, and the prefix up to the request."""
    log = Log()
    asked(log)
    header(log, extra={"k": 1})
    stored = [decode_event(encode_event(event)) for event in log.session.events]
    log.answer("later")
    assert rebuild_request(stored, 1, 1) == rebuild_request(log.session.events, 1, 1)


@pytest.mark.parametrize("which", [(1, 2, 1), (2, 1, 1), (1, 1, 2), (0, 0, 1)])
def test_a_request_that_was_never_made_is_refused(which: tuple[int, int, int]) -> None:
    """L-9: naming what was asked for."""
    log = Log()
    asked(log)
    header(log)
    with pytest.raises(HarnessError, match=f"attempt {which[2]} of step {which[1]} in turn {which[0]}") as caught:
        rebuild_request(log.session.events, *which)
    assert caught.value.code == "NO_REQUEST"


def test_a_step_without_any_header_has_no_request() -> None:
    """L-9: a step that failed before its request went out."""
    log = Log()
    asked(log)
    with pytest.raises(HarnessError, match="holds no request"):
        rebuild_request(log.session.events, 1, 1)


# -- against what an adapter really received -------------------------------------------------------------


async def test_every_request_of_a_conversation_is_rebuilt_exactly() -> None:
    """L-9: tools, steering, injected notes, a failed attempt, a changed model: all requests, in order."""

    @dsh.tool
    async def add(a: int, b: int) -> str:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return str(a + b)

    class Meddler:
        @dsh.hookimpl
        def agent_request(self, request: GenerateRequest) -> GenerateRequest | None:
            return attrs.evolve(request, temperature=0.25 * request.step) if request.turn == 2 else None

        @dsh.hookimpl
        def agent_pre_step(self, agent: Any, step: int) -> None:
            if step == 2:
                agent.inject("a note between two steps")

    adapter = ScriptedAdapter(
        [
            calls(call("add", a=1, b=2), call("add", a=3, b=4)),
            text("3 and 7"),
            fail("TRANSPORT"),
            call("add", a=5, b=6),
            text("11"),
        ]
    )
    plugins = [ScriptedPlugin(adapter), Meddler()]
    async with dsh.open(model="scripted/test", tools=[add], plugins=plugins, autoload=False) as chat:
        await chat.ask("first")
        await chat.ask("second")
        session: Session = chat.agent.session
    assert len(adapter.requests) == 5
    rebuilt = [rebuild_request(session.events, one.turn, one.step, one.attempt) for one in adapter.requests]
    assert rebuilt == adapter.requests
    again = Session(SessionHeader("copy", created_at=1), seed=[decode_event(encode_event(e)) for e in session.events])
    assert [rebuild_request(again.events, one.turn, one.step, one.attempt) for one in adapter.requests] == rebuilt


def test_the_request_does_not_depend_on_what_came_later() -> None:
    """L-9: a summary that replaces the history afterwards changes no earlier request."""
    log = Log()
    asked(log)
    header(log)
    log.answer("done")
    log.step_end()
    earlier = rebuild_request(log.session.events, 1, 1)
    nodes = list(log.session.surface.nodes)
    log.replace(nodes[0], nodes[-1])
    assert rebuild_request(log.session.events, 1, 1) == earlier
    assert earlier.messages[0].source == Source.user()
