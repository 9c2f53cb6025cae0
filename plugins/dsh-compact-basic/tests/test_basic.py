"""
Compaction in a running agent, with a model that counts what it reads.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from dsh_compact_basic import BasicCompaction, CompactConfig, CompactPlugin
from dsh_compact_basic.events import CompactStartEvent

import dsh_core as dsh
from dsh_core.compaction import Compaction, HeuristicEstimator
from dsh_core.content import Finish, TextBlock, ToolCallBlock, Usage
from dsh_core.errors import Busy, HarnessError, LlmError
from dsh_core.llm import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    LlmAdapter,
    LlmRegistry,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.persistence import SessionPersistence
from dsh_core.session import rebuild_request
from dsh_core.session.events import UserMessageEvent
from dsh_core.testing.memory import MemoryPersistence, MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


SUMMARY_MARK = "about to be replaced by a summary"
ESTIMATOR = HeuristicEstimator()


def is_summary(request):
    """Whether a request asks for a summary."""
    return SUMMARY_MARK in request.messages[-1].text


def size_of(request):
    """Tokens of a request, as the model of these tests counts them."""
    system = ESTIMATOR.text(request.system or "")
    return system + ESTIMATOR.tools(request.tools) + sum(ESTIMATOR.message(m.content) for m in request.messages)


class Model(LlmAdapter):
    """
    Args:
        answer: Called with the request; gives text, a tool call block, a list of chunks, or raises.
        summary: The same for requests that ask for a summary.
        window: Tokens that fit; longer requests overflow when `strict`.
    """

    def __init__(self, answer="fine", summary="SUMMARY", window=4000, strict=False):
        self.answer, self.summary, self.window, self.strict = answer, summary, window, strict
        self.requests = []

    @property
    def summaries(self):
        return [request for request in self.requests if is_summary(request)]

    def context_window(self, model):
        return self.window

    async def stream(self, request):
        self.requests.append(request)
        if self.strict and size_of(request) > self.window:
            raise LlmError("CONTEXT_OVERFLOW", "prompt is too long", status=400)
        given = self.summary if is_summary(request) else self.answer
        reply = given(request) if callable(given) else given
        if isinstance(reply, Exception):
            raise reply
        if hasattr(reply, "__await__"):
            reply = await reply
        for chunk in reply if isinstance(reply, list) else chunks_of(reply, size_of(request)):
            yield chunk


def chunks_of(reply, tokens=0, finish=None):
    block = TextBlock(reply) if isinstance(reply, str) else reply
    if isinstance(block, ToolCallBlock):
        body = [BlockStart(0, "tool-call"), ToolCallDelta(0, block.id, block.name, block.arguments), BlockEnd(0)]
    else:
        body = [BlockStart(0, "text"), TextDelta(0, block.text), BlockEnd(0)] if block.text else []
    kind = finish or ("tool-calls" if isinstance(block, ToolCallBlock) else "stop")
    return [*body, UsageChunk(Usage(input=tokens, output=10)), FinishChunk(Finish(kind))]


class Provider:
    name = "provider"

    def __init__(self, model):
        self.model = model

    @dsh.hookimpl
    def register(self, harness):
        harness.llm.register("m", self.model)


@asynccontextmanager
async def chat_with(model, *, plugins=(), tools=(), system_prompt=None, session=None, **settings):
    """An open chat whose model is `model`, with compaction."""
    compact = CompactPlugin(CompactConfig(**settings))
    async with dsh.open(
        session,
        model="m/x",
        plugins=[Provider(model), compact, *plugins],
        tools=tools,
        autoload=False,
        system_prompt=system_prompt,
    ) as chat:
        chat.compaction = compact.compaction
        yield chat


def types(chat, prefix="compact/"):
    return [event.type for event in chat.agent.session.events if event.type.startswith(prefix)]


LONG = "lorem ipsum dolor sit amet " * 70  # about 470 tokens


async def fill(chat, count, text=LONG):
    for index in range(count):
        await chat.ask(f"{index}: {text}")


def surface_texts(chat):
    return [message.text for message in chat.agent.session.derive_messages()]


async def test_a_conversation_above_the_threshold_is_compacted_before_the_step():
    """C-1, C-6: from 0.8 of the window on, in the documented order of events."""
    model = Model()
    async with chat_with(model) as chat:
        await fill(chat, 6)
        assert types(chat) == []
        await fill(chat, 2)
        assert types(chat) == ["compact/start", "compact/summary", "compact/end"]
        events = list(chat.agent.session.events)
        start, summary, end = (event for event in events if event.type.startswith("compact/"))
        landed = events[summary.seq + 1]
        assert (landed.type, landed.data.source) == ("user/message", dsh.Source.plugin("compact-basic"))
        assert landed.surface is not None
        assert set(landed.sources) >= {start.seq, summary.seq, summary.data.first, summary.data.last}
        assert end.seq == landed.seq + 1
        assert end.data.error is None
        assert summary.data.after < summary.data.before
        assert chat.last.reason.kind == "completed"
        assert "SUMMARY" in surface_texts(chat)[0]
        assert all(size_of(request) < model.window for request in model.requests)


async def test_the_summary_is_asked_as_one_more_message_after_the_verbatim_prefix():
    """C-3: same adapter, system prompt and tools, so that the provider's cache is used again."""
    model = Model()
    async with chat_with(model, system_prompt="You are here.") as chat:
        await fill(chat, 8)
    asked = model.summaries[0]
    before = model.requests[model.requests.index(asked) - 1]
    assert list(asked.messages[:-1]) == list(before.messages)[: len(asked.messages) - 1]
    assert (asked.system, asked.tools, asked.provider, asked.model) == (
        before.system, before.tools, before.provider, before.model,
    )  # fmt: skip


async def test_the_newest_messages_are_kept_word_for_word():
    """C-2: the newest part of the window stays."""
    model = Model()
    async with chat_with(model) as chat:
        await fill(chat, 8)
        texts = surface_texts(chat)
        assert texts[-2].startswith("7: lorem")
        assert not any(text.startswith("0: lorem") for text in texts)


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        ("", "empty"),
        (lambda request: chunks_of("half a summ", 10, "max-tokens"), "max-tokens"),
        (lambda request: chunks_of("I cannot", 10, "content-filter"), "content-filter"),
        (ToolCallBlock("x", "t", "{}"), "tool"),
        (lambda request: chunks_of("cut", 10)[:-1], "broke off"),
        (lambda request: LlmError("SERVER", "overloaded"), "overloaded"),
        (lambda request: RuntimeError("a bug"), "a bug"),
        (lambda request: chunks_of("gone", 10, "aborted"), "aborted"),
    ],
)
async def test_a_summary_that_fails_commits_nothing(summary, kind):
    """C-5, cmp-2: history stays, the failure is logged, the step goes on, three in a row back off."""
    model = Model(summary=summary, window=4000)
    async with chat_with(model) as chat:
        await fill(chat, 7)
        assert chat.last.reason.kind == "completed"
        assert set(types(chat)) == {"compact/start", "compact/end"}
        end = next(event for event in chat.agent.session.events if event.type == "compact/end")
        assert kind in end.data.error or kind in ("empty", "tool")
        assert end.data.error
        assert surface_texts(chat)[0].startswith("0: lorem")
        for _ in range(8):
            await chat.ask("x")
        assert len(model.summaries) == 3


async def test_a_summary_that_saves_too_little_is_refused_without_a_loop():
    """C-4, cmp-7: equal, longer, or one percent less is not worth it; no immediate new attempt."""
    model = Model(summary=lambda request: LONG * 20)
    async with chat_with(model) as chat:
        await fill(chat, 7)
        for _ in range(5):
            await chat.ask("x")
        assert len(model.summaries) == 1
        assert surface_texts(chat)[0].startswith("0: lorem")
        assert "replace" in next(e for e in chat.agent.session.events if e.type == "compact/end").data.error


async def test_fixed_overhead_that_fills_the_window_leads_to_no_loop():
    """C-2, C-9, cmp-1: few requests, and an error that names what cannot be reduced."""
    model = Model(window=8000, strict=True)
    async with chat_with(model, system_prompt="s" * 4 * 7600) as chat:
        first = await chat.ask("hello " * 300)
        assert first.reason.kind in ("completed", "error")
        second = await chat.ask("hello " * 300)
        assert (second.reason.kind, second.reason.code) == ("error", "CONTEXT_OVERFLOW")
        assert "system prompt and tools" in second.reason.message
        assert "8000" in second.reason.message
        assert len(model.requests) <= 8
        assert (await chat.ask("x")).reason.code == "CONTEXT_OVERFLOW"


async def test_a_single_runaway_turn_is_rescued_between_its_steps():
    """C-1, cmp-6: checked before each request, after a complete batch; the turn goes on by itself."""

    @dsh.tool
    async def look(n: int) -> str:
        """Look."""
        return "found " * 100

    def answer(request):
        done = sum(1 for m in request.messages for b in m.content if type(b).__name__ == "ToolResultBlock")
        answer.count += 1
        assert done <= 40
        return "done" if answer.count > 40 else ToolCallBlock(f"c{answer.count}", "look", f'{{"n": {answer.count}}}')

    answer.count = 0
    model = Model(answer=answer)
    async with chat_with(model, tools=[look]) as chat:
        result = await chat.ask("go")
        assert (result.reason.kind, result.text) == ("completed", "done")
        assert len(types(chat, "turn/end")) == 1
        assert len(types(chat, "tool/result")) == 40
        assert types(chat).count("compact/summary") >= 1
        assert all(size_of(request) < model.window for request in model.requests)


async def test_old_long_results_are_shortened_first():
    """C-7: often that is enough, and it costs no request."""

    @dsh.tool
    async def dump() -> str:
        """Dump."""
        return "y" * 9000

    script = iter([ToolCallBlock("a", "dump", "{}"), "seen"])
    model = Model(answer=lambda request: next(script, "fine"), window=6000)
    async with chat_with(model, tools=[dump]) as chat:
        await chat.ask("go")
        await fill(chat, 7)
        assert types(chat) == ["compact/start", "compact/end"]
        assert model.summaries == []
        results = [e for e in chat.agent.session.events if e.type == "tool/result"]
        assert len(results) == 2
        assert results[0].data.content == (TextBlock("y" * 9000),)
        assert len(results[1].data.content[0].text) < 6000


@pytest.mark.parametrize("cut", [0.5, 0.9])
async def test_an_overflow_is_repaired_and_the_request_repeated_in_the_same_step(cut):
    """cmp-5, L-4: one compaction and one retry."""
    model = Model(window=4000, strict=True)
    async with chat_with(model, context_window=100_000) as chat:
        await fill(chat, 7)
        model.window = int(size_of(model.requests[-1]) * cut)
        result = await chat.ask("and now?")
        assert result.reason.kind == "completed"
        assert len(types(chat, "request/retry")) == 1
        assert types(chat).count("compact/summary") == 1


async def test_another_refusal_is_not_taken_for_an_overflow():
    """cmp-5: a 400 of another kind is left alone."""
    model = Model(answer=lambda request: LlmError("INVALID_REQUEST", "bad", status=400))
    async with chat_with(model) as chat:
        assert (await chat.ask("x")).reason.code == "INVALID_REQUEST"
        assert types(chat) == []


async def test_a_summary_that_overflows_is_made_in_pieces():
    """C-3: the oldest part is summarised first and merged."""
    model = Model(window=100_000, strict=True)
    async with chat_with(model, context_window=4000) as chat:
        await fill(chat, 6)
        model.window = 2000
        model.summary = lambda request: f"S{len(model.summaries)}"
        result = await chat.compaction.compact(chat.agent)
        assert result is not None
        assert len(model.summaries) >= 3
        assert all(size_of(r) <= 2000 for r in model.summaries[1:][-1:])
        assert "conversation-summary" in model.summaries[-1].messages[0].text


async def test_manual_automatic_and_repeated_compaction_carry_what_was_pinned():
    """C-2, C-3, cmp-9: one code path; pinned text stays verbatim, summaries are merged, originals stay readable."""
    model = Model(summary=lambda request: f"SUMMARY {len(model.summaries)}")
    async with chat_with(model) as chat:
        await chat.ask("first")
        chat.agent.inject("never touch prod", pinned=True)
        await chat.agent.when_idle()
        await fill(chat, 3)
        assert await chat.compaction.compact(chat.agent, "keep the numbers") is not None
        assert "keep the numbers" in model.summaries[0].messages[-1].text
        await fill(chat, 8)
        assert await chat.compaction.compact(chat.agent) is not None
        texts = surface_texts(chat)
        assert sum("never touch prod" in text for text in texts) == 1
        assert sum("conversation-summary" in text for text in texts) == 1
        assert f"SUMMARY {len(model.summaries)}" in texts[0]
        assert len(model.summaries) >= 3
        assert any("first" in m.text for m in model.summaries[0].messages)
        logged = [e for e in chat.agent.session.events if e.type == "user/message"]
        assert sum(1 for e in logged if e.data.content[0].text.startswith(("0: lorem", "1: lorem"))) >= 4


async def test_manual_compaction_needs_an_idle_agent_and_says_when_there_is_nothing():
    """C-8, A-9: the exclusive slot; nothing to gain is an answer, not an error."""
    gate = asyncio.Event()

    async def slow():
        await gate.wait()
        return "late"

    model = Model(answer=lambda request: slow())
    async with chat_with(model) as chat:
        assert await chat.compaction.compact(chat.agent) is None
        receipt = chat.agent.send("x")
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await chat.compaction.compact(chat.agent)
        gate.set()
        await receipt


async def test_a_failed_manual_compaction_raises_and_changes_nothing():
    """C-5: whoever asked is told."""
    model = Model(summary="")
    async with chat_with(model) as chat:
        await fill(chat, 3)
        with pytest.raises(HarnessError, match="empty"):
            await chat.compaction.compact(chat.agent)
        assert surface_texts(chat)[0].startswith("0: lorem")
        assert (await chat.ask("x")).reason.kind == "completed"


@pytest.mark.parametrize("manual", [True, False])
async def test_messages_sent_while_it_runs_are_delivered_once_and_in_order(manual):
    """C-8, run-1: neither lost nor an abort."""
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow():
        started.set()
        await gate.wait()
        return "SUMMARY"

    model = Model(summary=lambda request: slow())
    async with chat_with(model) as chat:
        await fill(chat, 6)
        work = asyncio.ensure_future(chat.compaction.compact(chat.agent) if manual else chat.ask("6: " + LONG * 2))
        await started.wait()
        receipts = [chat.agent.send("one"), chat.agent.steer("two"), chat.agent.send("three")]
        gate.set()
        await work
        await asyncio.gather(*receipts)
        await chat.agent.when_idle()
        texts = [text for text in surface_texts(chat) if text in ("one", "two", "three")]
        assert sorted(texts) == ["one", "three", "two"]
        assert types(chat).count("compact/summary") == 1


async def test_cancel_while_the_summary_is_written_keeps_the_old_conversation():
    """C-8, cmp-4: cancel ends it; the attempt is closed in the log, and the next prompt works."""
    started = asyncio.Event()

    async def slow():
        started.set()
        await asyncio.Event().wait()

    model = Model(summary=lambda request: slow())
    async with chat_with(model) as chat:
        await fill(chat, 6)
        before = surface_texts(chat)
        receipt = chat.agent.send("6: " + LONG * 2)
        await started.wait()
        chat.agent.cancel("enough")
        result = await receipt
        assert result.reason.kind == "aborted"
        assert types(chat) == ["compact/start", "compact/end"]
        assert surface_texts(chat)[: len(before)] == before
        model.summary = "SUMMARY"
        assert (await chat.ask("x")).reason.kind == "completed"


async def test_a_surface_that_changed_meanwhile_commits_nothing():
    """C-5: a replacement made by somebody else while the summary was written wins."""

    class Meddler:
        name = "meddler"
        agent = None

        @dsh.hookimpl
        async def llm_stream(self, request, call_next):
            if is_summary(request):
                session = self.agent.session
                first, second = session.surface.nodes[:2]
                session.append(UserMessageEvent("other", "other"), replace=(first, second), sources=[first, second])
            return await call_next()

        @dsh.hookimpl
        def agent_created(self, agent):
            self.agent = agent

    model = Model()
    async with chat_with(model, plugins=[Meddler()]) as chat:
        await fill(chat, 3)
        with pytest.raises(HarnessError, match="changed"):
            await chat.compaction.compact(chat.agent)
        assert "compact/summary" not in types(chat)
        assert surface_texts(chat)[0] == "other"


async def test_an_attempt_cut_off_by_a_crash_is_marked_on_resume():
    """C-6, cmp-4: failed if nothing landed, complete if it did; marking twice adds nothing."""
    async with chat_with(Model()) as chat:
        await fill(chat, 1)
        session = chat.agent.session
        assert not BasicCompaction.close_abandoned(session)
        session.append(CompactStartEvent("pressure", 5))
        assert BasicCompaction.close_abandoned(session)
        assert "abandoned" in session.events[-1].data.error
        assert not BasicCompaction.close_abandoned(session)


async def test_an_unknown_window_is_assumed_small_with_one_warning(caplog):
    """C-1: a conservative default, said once."""
    async with chat_with(Model(window=None)) as chat:
        await fill(chat, 3, "x")
        assert chat.compaction.pressure(chat.agent).window == 32_768
        assert sum("window" in record.message for record in caplog.records) == 1


async def test_the_service_and_the_command_are_there():
    """The seam is provided to front ends and other plugins."""
    model = Model()
    async with chat_with(model) as chat:
        assert chat.harness.service(Compaction) is chat.compaction
        await fill(chat, 3)
        command = chat.harness.commands.get("compact")
        assert "tokens" in await command.handler(chat.agent, "")
        assert isinstance(chat.harness.llm, LlmRegistry)


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0}, {"threshold": 1.5}, {"retain": 0.9}, {"retries": -1}, {"context_window": 0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    """Configuration errors name the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CompactConfig(**wrong)


class Store:
    """A store in memory that outlives the harness."""

    name = "persistence-memory"

    def __init__(self, store):
        self.store = store

    @dsh.hookimpl
    def register(self, harness):
        harness.provide(SessionPersistence, MemoryPersistence(self.store))


def stored_chat(store, model, **settings):
    return chat_with(model, plugins=[Store(store)], session="s", **settings)


async def test_a_resumed_session_goes_on_from_its_summary():
    """C-6, cmp-9: the surface is in the log, so a resume needs nothing of its own."""
    store, model = MemoryStore(), Model()
    async with stored_chat(store, model) as chat:
        await fill(chat, 8)
        before = surface_texts(chat)
        assert "SUMMARY" in before[0]
    async with stored_chat(store, model) as chat:
        assert surface_texts(chat) == before
        assert types(chat) == ["compact/start", "compact/summary", "compact/end"]
        assert (await chat.ask("x")).reason.kind == "completed"


@pytest.mark.parametrize("keep", range(5))
async def test_a_crash_between_any_two_events_leaves_a_valid_session(keep):
    """C-6, cmp-4: the old conversation or the new one, never neither; the attempt is closed on resume, once."""
    store, model = MemoryStore(), Model()
    async with stored_chat(store, model) as chat:
        await fill(chat, 8)
        events = list(chat.agent.session.events)
        start = next(event.seq for event in events if event.type == "compact/start")
    header, records = store.logs["s"]
    # What the process had written when it died: up to `keep` events of the attempt.
    store.logs["s"] = (header, records[: start + keep])
    for _ in range(2):
        async with stored_chat(store, model, context_window=100_000) as chat:
            landed = keep >= 3
            assert ("SUMMARY" in surface_texts(chat)[0]) is landed
            ends = [event.data.error for event in chat.agent.session.events if event.type == "compact/end"]
            assert len(ends) == (1 if keep else 0)
            assert [error is None for error in ends] == ([landed] if keep else [])
            assert (await chat.ask("x")).reason.kind == "completed"


async def test_a_fork_from_before_the_attempt_has_the_whole_conversation_again():
    """C-6: shadowed events stay in the log."""
    store, model = MemoryStore(), Model()
    async with stored_chat(store, model, context_window=100_000) as chat:
        await fill(chat, 3)
        before = surface_texts(chat)
        boundary = max(event.seq for event in chat.agent.session.events if event.type == "turn/end")
        assert await chat.compaction.compact(chat.agent) is not None
        assert surface_texts(chat) != before
        async with await chat.harness.agents.fork("s", boundary=boundary) as handle:
            texts = [message.text for message in handle.agent.session.derive_messages()]
            assert texts == before


async def test_every_request_can_be_rebuilt_from_the_log_across_compactions():
    """L-9: what a summary replaced is rebuilt for the requests before it."""
    model = Model()
    async with chat_with(model) as chat:
        await fill(chat, 9)
        events = chat.agent.session.events
        for request in model.requests:
            if not is_summary(request):
                rebuilt = rebuild_request(events, request.turn, request.step, request.attempt)
                assert list(rebuilt.messages) == list(request.messages)


async def test_a_single_huge_result_that_overflows_is_shortened():
    """C-7, C-9: the newest result is not spared when it alone is too long."""

    @dsh.tool
    async def dump() -> str:
        """Dump."""
        return "y" * 40_000

    script = iter([ToolCallBlock("a", "dump", "{}"), "seen"])
    model = Model(answer=lambda request: next(script), window=6000, strict=True)
    async with chat_with(model, tools=[dump]) as chat:
        result = await chat.ask("go")
        assert (result.reason.kind, result.text) == ("completed", "seen")
        assert model.summaries == []


async def test_it_loads_through_its_entry_point():
    """H-8: an installed plugin needs no code."""
    async with dsh.Harness(config={"plugins": {"compact-basic": {"threshold": 0.5}}}) as harness:
        service = harness.service(Compaction)
        assert isinstance(service, BasicCompaction)
        assert service.config.threshold == 0.5
