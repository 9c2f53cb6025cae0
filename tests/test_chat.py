"""The simplest forms: open, ask, stream, run (A-7, 10-api)."""

from __future__ import annotations

import asyncio
import os

import pytest
from loops import Moment, StagedAdapter, Store, held, plugin, spoken, until

import dsh_core
from dsh_core import (
    FinishChunk,
    HarnessError,
    MessageDropped,
    PromptBlock,
    PromptBlocked,
    SessionEvent,
    StorageError,
    TextDelta,
    tool,
)
from dsh_core.testing import ScriptedPlugin, call, text
from dsh_core.testing.invariants import Invariants

pytestmark = pytest.mark.anyio


def opened(*items, plugins=(), session=None, **keywords):
    """A conversation with a scripted model."""
    adapter = StagedAdapter(items)
    given = [ScriptedPlugin(adapter), *plugins, Invariants()]
    return dsh_core.open(session, plugins=given, **{"model": "scripted/m", "autoload": False, **keywords})


async def test_ask_gives_the_result_of_its_turn():
    """10-api: `str()` is the text; `last` is kept."""
    async with opened(text("hello"), text("again")) as chat:
        assert chat.last is None
        result = await chat.ask("hi")
        assert (str(result), chat.last) == ("hello", result)
        assert str(await chat.ask("hi")) == "again"
        assert chat.agent.session.header.cwd == os.getcwd()


async def test_ask_waits_until_the_prompt_is_stored():
    """A-2: accepted means with the operating system."""
    store = Store()
    async with opened(text("a"), plugins=[store], session="trip") as chat:
        store.store.failure = OSError(28, "No space left on device")
        with pytest.raises(StorageError):
            await chat.ask("hi")
        store.store.failure = None
        await chat.agent.when_idle()


async def test_a_blocked_prompt_and_a_dropped_one_raise():
    """A-2: as the receipt does."""
    async with opened(plugins=[plugin(agent_prompt_submit=lambda: PromptBlock("no"))]) as chat:
        with pytest.raises(PromptBlocked):
            await chat.ask("hi")
    moment = Moment()
    async with opened(held(moment)) as chat:
        first = asyncio.ensure_future(chat.ask("one"))
        await moment.reached.wait()
        second = asyncio.ensure_future(chat.ask("two"))
        await until(lambda: chat.agent.pending)
        chat.agent.cancel("enough")
        with pytest.raises(MessageDropped):
            await second
        assert (await first).reason.kind == "aborted"


async def test_a_timeout_round_ask_cancels_its_turn_and_waits_for_its_close():
    """A-7: `asyncio.timeout` raises `TimeoutError`, and the next question works."""
    moment = Moment()
    async with opened(held(moment, *spoken("half")), text("ok")) as chat:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await chat.ask("hi")
        assert not chat.agent.session.turn_open
        ends = [event.data.reason.kind for event in chat.agent.session.events if event.type == "turn/end"]
        assert ends == ["aborted"]
        assert str(await chat.ask("again")) == "ok"


async def test_cancelling_an_ask_that_waits_spares_the_turn_that_runs():
    """A-7: only that message is dropped."""
    moment = Moment()
    end = [*_end()]
    async with opened(held(moment, *spoken("one"), after=end)) as chat:
        first = asyncio.ensure_future(chat.ask("1"))
        await moment.reached.wait()
        second = asyncio.ensure_future(chat.ask("2"))
        await until(lambda: chat.agent.pending)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert chat.agent.pending == ()
        moment.go.set()
        assert str(await first) == "one"


def _end():
    from dsh_core import BlockEnd, Finish, Usage, UsageChunk

    return BlockEnd(0), UsageChunk(Usage(1, 1)), FinishChunk(Finish("stop"))


async def test_cancelling_an_ask_whose_prompt_is_being_admitted_ends_the_turn():
    """A-7: the hook is interrupted; the message is dropped, not run."""
    moment = Moment()
    async with opened(text("ok"), plugins=[plugin(agent_prompt_submit=_once(moment))]) as chat:
        task = asyncio.ensure_future(chat.ask("1"))
        await moment.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await chat.agent.when_idle()
        assert not chat.agent.session.turn_open
        assert str(await chat.ask("2")) == "ok"


def _once(moment):
    async def submit():
        if not moment.reached.is_set():
            await moment.here()

    return submit


async def test_stream_yields_chunks_and_events_as_they_come():
    """10-api: in the order of the log; `last` is the result."""
    async with opened(call("look"), text("done"), tools=[_look()]) as chat:
        items = [item async for item in chat.stream("hi")]
        kinds = [item.type if isinstance(item, SessionEvent) else type(item).__name__ for item in items]
        assert (
            kinds.index("tool/call") < kinds.index("tool/result") < kinds.index("TextDelta") < kinds.index("turn/end")
        )
        assert "".join(item.text for item in items if isinstance(item, TextDelta)) == "done"
        assert [item.seq for item in items if isinstance(item, SessionEvent)] == list(
            range(len(chat.agent.session.events))
        )
        assert str(chat.last) == "done"


def _look():
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    return look


async def test_leaving_a_stream_cancels_its_turn():
    """A-7: with `aclosing`, the close has been waited for; nothing is watched any more."""
    from contextlib import aclosing

    moment = Moment()
    async with opened(held(moment, *spoken("half")), text("ok")) as chat:
        async with aclosing(chat.stream("hi")) as items:
            async for item in items:
                if isinstance(item, TextDelta):
                    break
        assert not chat.agent.session.turn_open
        assert chat.harness.watchers == {}
        ends = [event.data.reason.kind for event in chat.agent.session.events if event.type == "turn/end"]
        assert ends == ["aborted"]
        assert str(await chat.ask("again")) == "ok"


async def test_a_stream_that_is_simply_left_cancels_its_turn_too():
    """A-7: a bare `break`."""
    moment = Moment()
    async with opened(held(moment, *spoken("half")), text("ok")) as chat:
        async for item in chat.stream("hi"):
            if isinstance(item, TextDelta):
                break
        assert str(await chat.ask("again")) == "ok"
        ends = [event.data.reason.kind for event in chat.agent.session.events if event.type == "turn/end"]
        assert ends == ["aborted", "completed"]


async def test_a_cancelled_stream_waits_for_the_close():
    """A-7: as `ask` does."""
    moment = Moment()

    async def consume(chat):
        async for _ in chat.stream("hi"):
            pass

    async with opened(held(moment, *spoken("half"))) as chat:
        task = asyncio.ensure_future(consume(chat))
        await moment.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not chat.agent.session.turn_open


async def test_a_stream_of_a_blocked_prompt_raises_after_its_items():
    """10-api: the events are seen, then the error."""
    seen = []
    async with opened(plugins=[plugin(agent_prompt_submit=lambda: PromptBlock("no"))]) as chat:
        with pytest.raises(PromptBlocked):
            await _collect(chat, seen)
        assert any(isinstance(item, SessionEvent) and item.type == "prompt/blocked" for item in seen)


async def _collect(chat, seen):
    async for item in chat.stream("hi"):
        seen.append(item)


async def test_asking_oneself_from_a_tool_raises_instead_of_hanging():
    """A-5: `WOULD_DEADLOCK`, as the result of the call."""

    @tool
    async def recurse() -> str:
        """Ask oneself."""
        return str(await chat.ask("inner"))

    async with opened(call("recurse"), text("ok"), text("inner answer"), tools=[recurse]) as chat:
        assert str(await chat.ask("outer")) == "ok"
        await chat.agent.when_idle()
        results = [event.data for event in chat.agent.session.events if event.type == "tool/result"]
        assert "waiting for agent" in results[0].content[0].text


async def test_a_name_creates_and_then_resumes():
    """10-api, A-6: `open("trip")`; without a backend the error says what to install."""
    store = Store()
    async with opened(text("one"), plugins=[store], session="trip") as chat:
        await chat.ask("first")
    async with opened(text("two"), plugins=[Store(store.store)], session="trip") as chat:
        assert (await chat.ask("second")).turn == 2
    with pytest.raises(HarnessError, match="dsh-persistence-jsonl") as caught:
        async with opened(session="trip"):
            raise AssertionError("opened")
    assert caught.value.code == "NO_PERSISTENCE"


async def test_leaving_the_block_disposes_of_everything():
    """A-5: also in the middle of a turn, and no task is left."""
    moment = Moment()
    before = asyncio.all_tasks()
    async with opened(held(moment)) as chat:
        receipt = chat.agent.send("hi")
        await moment.reached.wait()
    assert chat.agent.status == "disposed"
    assert (await receipt).reason.kind == "disposed"
    await until(lambda: asyncio.all_tasks() <= before)


async def test_an_exception_in_the_block_comes_out_unchanged():
    """A-5: after everything has been taken down."""
    with pytest.raises(ZeroDivisionError):
        async with opened() as chat:
            raise ZeroDivisionError
    assert chat.agent.status == "disposed"


async def test_run_works_inside_a_running_loop():
    """10-api: in a thread of its own."""
    plugins = [ScriptedPlugin(StagedAdapter([text("hello")]))]
    result = dsh_core.run("hi", model="scripted/m", plugins=plugins, autoload=False)
    assert str(result) == "hello"


def test_run_works_without_a_loop():
    """10-api: blocking; errors come out as they are."""
    plugins = [ScriptedPlugin(StagedAdapter([text("hello")]))]
    assert str(dsh_core.run("hi", model="scripted/m", plugins=plugins, autoload=False)) == "hello"
    blocks = plugin(agent_prompt_submit=lambda: PromptBlock("no"))
    with pytest.raises(PromptBlocked):
        dsh_core.run("hi", model="scripted/m", plugins=[blocks], autoload=False)


async def test_errors_of_run_inside_a_loop_come_out_as_they_are():
    """10-api: across the thread."""
    blocks = plugin(agent_prompt_submit=lambda: PromptBlock("no"))
    with pytest.raises(PromptBlocked):
        dsh_core.run("hi", model="scripted/m", plugins=[blocks], autoload=False)
