"""Requests that are repeated inside their step (L-4, L-5)."""

from __future__ import annotations

import attrs
import pytest
from loops import Moment, plugin, running, spoken

from dsh_core import BlockEnd, BlockStart, Finish, FinishChunk, LlmError, Retry, ToolCallDelta, Usage, UsageChunk, tool
from dsh_core.session.events import (
    AssistantChunkEvent,
    AssistantMessageEvent,
    RequestRetryEvent,
    ToolCallEvent,
)
from dsh_core.testing import ScriptedAdapter, call, fail, text

pytestmark = pytest.mark.anyio

OFF = {"plugins": {"disable": ["retry"]}}


def always(**facts):
    """Retry at once, whatever it is."""
    return plugin(agent_request_error=lambda: Retry(0))


async def test_a_failed_attempt_is_repeated_in_the_same_step():
    """L-4, llm-7: both attempts' chunks stay; the message is that of the accepted one; nothing of the first runs."""
    ran = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    half = (*spoken("half"), BlockStart(1, "tool-call"), ToolCallDelta(1, "c", "act", "{}"))
    async with running(
        fail("TRANSPORT", "reset", after=half), text("whole"), tools=[act], plugins=[always()], config=OFF
    ) as lab:
        result = await lab.agent.send("hi")
        assert (str(result), ran, lab.of(ToolCallEvent)) == ("whole", [], [])
        assert [message.attempt for message in lab.of(AssistantMessageEvent)] == [2]
        assert sorted({pack.attempt for pack in lab.of(AssistantChunkEvent)}) == [1, 2]
        assert lab.kinds().count("step/start") == 1
        retry = lab.of(RequestRetryEvent)[0]
        assert (retry.attempt, retry.error["code"], retry.error["message"]) == (2, "TRANSPORT", "reset")
        assert lab.texts() == [["hi"], ["hi"]]


async def test_agent_request_runs_again_for_each_attempt():
    """L-4: it may choose another model, which is logged; every attempt can be rebuilt."""
    attempts = []

    def choose(request):
        attempts.append(request.attempt)
        return attrs.evolve(request, model="fallback") if request.attempt == 2 else None

    hooks = [always(), plugin(agent_request=choose)]
    async with running(fail("SERVER"), fail("SERVER"), text("ok"), plugins=hooks, config=OFF) as lab:
        await lab.agent.send("hi")
        assert attempts == [1, 2, 3]
        assert [request.model for request in lab.adapter.requests] == ["m", "fallback", "m"]
        assert [request.attempt for request in lab.adapter.requests] == [1, 2, 3]


async def test_what_comes_between_two_attempts_is_in_the_second_request():
    """L-4, L-9: the anchor of an attempt is its `request/retry`."""

    def between(agent):
        agent.inject("try this")
        return Retry(0)

    hooks = plugin(agent_request_error=between)
    async with running(fail("CONTEXT_OVERFLOW"), text("ok"), plugins=[hooks], config=OFF) as lab:
        await lab.agent.send("hi")
        assert len(lab.texts()[0]) == 1
        assert "try this" in lab.texts()[1][1]


async def test_what_an_observer_of_the_retry_injects_is_behind_it():
    """L-9: it belongs to the next request."""

    def observe(event):
        if event.type == "request/retry":
            lab.agent.inject("late")

    hooks = [always(), plugin(session_event=observe)]
    async with running(fail("SERVER"), text("ok"), text("next"), plugins=hooks, config=OFF) as lab:
        await lab.agent.send("hi")
        assert lab.texts()[1] == ["hi"]
        await lab.agent.send("on")
        assert "late" in lab.texts()[2][1]


async def test_what_an_observer_of_the_last_chunks_injects_is_before_the_retry():
    """L-9: the chunks of a failed attempt are logged before its `request/retry`, and so is what they cause."""

    def observe(event):
        if event.type == "assistant/chunk" and event.data.attempt == 1:
            lab.agent.inject("seen half of it")

    hooks = [always(), plugin(session_event=observe)]
    async with running(fail("SERVER", after=spoken("half")), text("ok"), plugins=hooks, config=OFF) as lab:
        await lab.agent.send("hi")
        assert "seen half of it" in lab.texts()[1][1]


async def test_cancel_beats_retry():
    """L-4: no second attempt, whoever cancels and whatever the hook says."""

    def cancels(agent):
        agent.cancel("stop")
        return Retry(0)

    async with running(fail("SERVER"), plugins=[plugin(agent_request_error=cancels)], config=OFF) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.reason) == ("aborted", "stop")
        assert lab.of(RequestRetryEvent) == []


async def test_a_failure_behind_a_cancel_is_not_offered():
    """L-4: the turn is over; nobody is asked about its request."""
    asked = []

    def cancels(chunk):
        lab.agent.cancel("stop")

    hooks = [plugin(agent_stream_chunk=cancels), plugin(agent_request_error=lambda error: asked.append(error))]
    async with running(fail("SERVER", after=spoken("x")[:1]), plugins=hooks, config=OFF) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "aborted"
        assert asked == []


async def test_a_cancel_ends_the_wait_for_the_next_attempt():
    """L-4, llm-15: at once."""
    moment = Moment()

    def observe(event):
        if event.type == "request/retry":
            moment.reached.set()

    hooks = [plugin(agent_request_error=lambda: Retry(3600)), plugin(session_event=observe)]
    async with running(fail("SERVER"), plugins=hooks, config=OFF) as lab:
        receipt = lab.agent.send("hi")
        await moment.reached.wait()
        lab.agent.cancel()
        assert (await receipt).reason.kind == "aborted"
        assert len(lab.adapter.requests) == 1


async def test_a_hook_that_fails_has_no_answer():
    """L-4: reported, and the next one is asked; without an answer the failure surfaces."""

    def fails():
        raise RuntimeError("boom")

    hooks = [plugin(agent_request_error=fails), plugin(agent_request_error=lambda attempt: Retry(0))]
    async with running(fail("SERVER"), text("ok"), plugins=hooks, config=OFF) as lab:
        assert str(await lab.agent.send("hi")) == "ok"
        assert any("boom" in str(error) for _, _, error, _ in lab.errors)
    async with running(fail("SERVER"), plugins=[plugin(agent_request_error=fails)], config=OFF) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "SERVER")


@pytest.mark.parametrize("hook", ["agent_request", "llm_stream", "agent_step_result"])
async def test_failures_of_plugins_are_not_repeated(hook):
    """L-4: repeating a broken plugin is pointless."""
    asked = []

    def fails():
        raise RuntimeError("broken plugin")

    hooks = [
        plugin(**{hook: fails}),
        plugin(agent_request_error=lambda error: asked.append(error)),
    ]
    answers = [text("x")] if hook == "agent_step_result" else []
    async with running(*answers, plugins=hooks) as lab:
        assert (await lab.agent.send("hi")).reason.kind == "error"
        assert asked == []


async def test_the_error_says_whether_anything_came_before_it():
    """M-3: `after_output` is set by the loop."""
    seen = []

    def ask(error, attempt, request):
        seen.append((error.after_output, attempt, request.attempt))
        return Retry(0)

    answers = [fail("SERVER"), fail("SERVER", after=spoken("x")), text("ok")]
    async with running(*answers, plugins=[plugin(agent_request_error=ask)], config=OFF) as lab:
        await lab.agent.send("hi")
        assert seen == [(False, 1, 1), (True, 2, 2)]


@pytest.mark.parametrize("code", ["AUTH", "INVALID_REQUEST", "QUOTA", "CONTENT_FILTER"])
async def test_failures_that_stay_surface_at_once(code):
    """M-4, llm-16: the provider's text, code and status are in the turn's end."""
    async with running(fail(code, "the provider says no", status=401), text("ok")) as lab:
        result = await lab.agent.send("hi")
        reason = result.reason
        assert (reason.kind, reason.code, reason.message, reason.status) == ("error", code, "the provider says no", 401)
        assert str(await lab.agent.send("again")) == "ok"


async def test_the_built_in_retry_is_bounded(monkeypatch):
    """M-4: five attempts, then the failure surfaces."""
    import asyncio

    real = asyncio.sleep
    waits = []

    async def sleep(seconds, *rest):
        if seconds > 0:
            waits.append(seconds)
        await real(0, *rest)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with running(*[fail("SERVER")] * 5) as lab:
        result = await lab.agent.send("hi")
        assert (result.reason.kind, result.reason.code) == ("error", "SERVER")
        assert [event.attempt for event in lab.of(RequestRetryEvent)] == [2, 3, 4, 5]
        assert [round(wait * 1000) for wait in waits] == [event.delay_ms for event in lab.of(RequestRetryEvent)]


async def test_a_stream_that_cannot_be_closed_does_not_hide_its_answer():
    """L-4: what closing raises is logged only."""

    class Stream:
        def __init__(self, chunks):
            self._chunks = iter(chunks)

        def __aiter__(self):
            return self

        async def __anext__(self):
            try:
                return next(self._chunks)
            except StopIteration:
                raise StopAsyncIteration from None

        async def aclose(self):
            raise OSError("socket")

    class Adapter(ScriptedAdapter):
        def stream(self, request):
            self.requests.append(request)
            end = [BlockEnd(0), UsageChunk(Usage(1, 1)), FinishChunk(Finish("stop"))]
            return Stream([*spoken("ok"), *end])

    async with running(Adapter([])) as lab:
        assert str(await lab.agent.send("hi")) == "ok"


async def test_an_error_of_the_adapter_keeps_its_facts():
    """M-3: an `LlmError` reaches the hook as it was raised."""
    seen = []
    hooks = plugin(agent_request_error=lambda error: seen.append(error))
    async with running(fail("RATE_LIMIT", "slow down", 429, 7200.0), plugins=[hooks]) as lab:
        await lab.agent.send("hi")
        assert [(type(error), error.code, error.status, error.retry_after) for error in seen] == [
            (LlmError, "RATE_LIMIT", 429, 7200.0)
        ]


async def test_retries_and_calls_go_together():
    """L-4: the call of the accepted attempt runs once; the next step begins at attempt 1."""
    ran = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    async with running(
        fail("SERVER"), call("act"), fail("SERVER"), text("ok"), tools=[act], plugins=[always()], config=OFF
    ) as lab:
        assert str(await lab.agent.send("hi")) == "ok"
        assert ran == [1]
        assert [(request.step, request.attempt) for request in lab.adapter.requests] == [(1, 1), (1, 2), (2, 1), (2, 2)]
