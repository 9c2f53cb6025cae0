"""The slot for maintenance of an idle agent (A-9)."""

from __future__ import annotations

import asyncio

import pytest
from loops import Moment, Store, ends_of, held, plugin, running

from dsh_core import Busy, HarnessError
from dsh_core.session.events import TurnEndEvent, TurnStartEvent
from dsh_core.testing import text

pytestmark = pytest.mark.anyio


async def test_maintenance_lies_in_a_turn_of_its_own():
    """A-9: with the trigger `maintenance` and its name; what is injected lies in it; status and waiters know."""
    async with running(text("ok")) as lab:
        async with lab.agent.exclusive("compact"):
            assert lab.statuses == ["running"]
            lab.agent.inject("tidied up")
        await lab.agent.when_idle()
        assert lab.kinds() == ["turn/start", "context/message", "turn/end"]
        trigger = lab.of(TurnStartEvent)[0].trigger
        assert (trigger.kind, trigger.name) == ("maintenance", "compact")
        assert lab.statuses == ["running", "idle"]
        assert (await lab.agent.send("hi")).turn == 2


async def test_wakes_wait_behind_it():
    """A-9, run-1: two prompts and a steer are delivered once, in order, when it is done."""
    async with running(text("ok")) as lab:
        async with lab.agent.exclusive("compact"):
            receipts = [lab.agent.send("one"), lab.agent.send("two"), lab.agent.steer("three")]
            waiter = asyncio.ensure_future(lab.agent.when_idle())
            for _ in range(10):
                await asyncio.sleep(0)
            assert lab.adapter.requests == []
            assert not waiter.done()
        assert [(await receipt).turn for receipt in receipts] == [2, 2, 2]
        await waiter
        assert lab.texts() == [["one", "two", "three"]]
        assert lab.statuses == ["running", "idle"]


async def test_a_busy_agent_gives_no_slot():
    """A-9: not while a turn runs or is about to, nor twice; the message says what it is busy with."""
    moment = Moment()
    async with running(held(moment)) as lab:
        async with lab.agent.exclusive("first"):
            with pytest.raises(Busy, match="first"):
                async with lab.agent.exclusive("second"):
                    raise AssertionError("entered")
        lab.agent.send("hi")
        with pytest.raises(Busy):
            async with lab.agent.exclusive("early"):
                raise AssertionError("entered")
        await moment.reached.wait()
        with pytest.raises(Busy, match="when_idle"):
            async with lab.agent.exclusive("late"):
                raise AssertionError("entered")
        lab.agent.cancel()
        await lab.agent.when_idle()
        async with lab.agent.exclusive("now"):
            pass


async def test_parked_messages_do_not_keep_it_busy():
    """A-9, A-4: they are not going to run by themselves."""
    store, moment = Store(), Moment()
    async with running(held(moment), plugins=[store]) as lab:
        lab.agent.send("one")
        await moment.reached.wait()
        lab.agent.send("parked")
        await lab.handle.dispose()
    async with running(plugins=[Store(store.store)], resume=True) as lab:
        async with lab.agent.exclusive("compact"):
            pass
        await lab.agent.when_idle()
        assert lab.adapter.requests == []
        assert len(lab.agent.pending) == 1


async def test_cancel_ends_it():
    """A-9: its turn is aborted with the reason, whoever holds it is told, and the agent goes on."""
    moment = Moment()

    async def tidy(lab):
        async with lab.agent.exclusive("compact"):
            await moment.here()

    async with running(text("ok")) as lab:
        task = asyncio.ensure_future(tidy(lab))
        await moment.reached.wait()
        lab.agent.cancel("enough")
        with pytest.raises(HarnessError, match="enough") as caught:
            await task
        assert caught.value.code == "CANCELLED"
        reason = lab.of(TurnEndEvent)[0].reason
        assert (reason.kind, reason.reason) == ("aborted", "enough")
        assert str(await lab.agent.send("hi")) == "ok"


async def _tidy_and_cancel(lab, then):
    async with lab.agent.exclusive("compact"):
        lab.agent.cancel("mine")
        if then == "awaits":
            await asyncio.sleep(10)
        if then == "raises":
            raise HarnessError("something else", "OTHER")


@pytest.mark.parametrize("then", ["nothing", "awaits", "raises"])
async def test_a_cancel_from_inside_reaches_nothing_else(then):
    """A-9, A-3: the holder cancels the agent itself: the cause is kept, and no cancellation follows the block."""
    async with running(text("ok")) as lab:
        with pytest.raises(HarnessError) as caught:
            await _tidy_and_cancel(lab, then)
        assert caught.value.code == ("OTHER" if then == "raises" else "CANCELLED")
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        reason = lab.of(TurnEndEvent)[0].reason
        assert (reason.kind, reason.reason) == ("aborted", "mine")
        assert str(await lab.agent.send("hi")) == "ok"


async def test_cancel_during_it_drops_what_waits():
    """A-3, A-9: the lanes are emptied; a later prompt runs."""
    moment = Moment()

    async def tidy(lab):
        async with lab.agent.exclusive("compact"):
            await moment.here()

    async with running(text("ok")) as lab:
        task = asyncio.ensure_future(tidy(lab))
        await moment.reached.wait()
        lab.agent.send("one")
        assert len(lab.agent.cancel("enough")) == 1
        later = lab.agent.send("two")
        with pytest.raises(HarnessError):
            await task
        assert str(await later) == "ok"
        assert lab.texts() == [["two"]]
        assert sorted(ends_of(lab.session).values()) == ["dropped", "ran"]


async def test_dispose_ends_it():
    """A-5, A-9: the turn ends `disposed`, and dispose waits for its end."""
    moment = Moment()

    async def tidy(lab):
        async with lab.agent.exclusive("compact"):
            await moment.here()

    async with running() as lab:
        task = asyncio.ensure_future(tidy(lab))
        await moment.reached.wait()
        await lab.handle.dispose()
        assert lab.ends() == ["disposed"]
        with pytest.raises(HarnessError):
            await task
        assert lab.statuses == ["running", "disposed"]


async def test_a_failure_inside_is_the_end_of_its_turn_and_goes_on():
    """A-9: `error`, and the exception reaches the holder."""
    async with running(text("ok")) as lab:
        with pytest.raises(ZeroDivisionError):
            async with lab.agent.exclusive("compact"):
                raise ZeroDivisionError("oops")
        reason = lab.of(TurnEndEvent)[0].reason
        assert (reason.kind, reason.message) == ("error", "oops")
        assert str(await lab.agent.send("hi")) == "ok"


async def test_a_cancelled_holder_is_host_cancellation():
    """A-7, A-9: it came from outside: `aborted{host}`, then it goes on."""
    moment = Moment()

    async def tidy(lab):
        async with lab.agent.exclusive("compact"):
            await moment.here()

    async with running(text("ok")) as lab:
        task = asyncio.ensure_future(tidy(lab))
        await moment.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reason = lab.of(TurnEndEvent)[0].reason
        assert (reason.kind, reason.reason) == ("aborted", "host")
        assert str(await lab.agent.send("hi")) == "ok"


async def test_a_refused_start_holds_nothing():
    """A-9: whoever refuses its `turn/start`, the agent stays usable."""
    refusing = [True]

    def check(event):
        if event.type == "turn/start" and refusing:
            refusing.clear()
            raise ValueError("refused")

    async with running(text("ok"), plugins=[plugin(session_append=check)]) as lab:
        with pytest.raises(Exception, match="refused"):
            async with lab.agent.exclusive("compact"):
                raise AssertionError("entered")
        assert str(await lab.agent.send("hi")) == "ok"
