"""
Random schedules of everything that can be done to an agent, at every await of its loop (A-2, L-1, L-10, S-12).

Each schedule is a seed. Several actors send, steer, inject, cancel and finally perhaps dispose, with random
pauses of the loop between; model, tools, gates, approvals, hooks and the store answer after random pauses, and
fail at random. Whatever happens: every message has exactly one end, and its receipt tells that end; what ran is
read by the model once; the log passes the invariants; every request can be rebuilt; no task is left.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from loops import StagedAdapter, Store, ends_of, plugin, running

from dsh_core import (
    AgentDisposed,
    Allow,
    ApprovalGranted,
    ApprovalRefused,
    Ask,
    BlockEnd,
    BlockStart,
    Busy,
    Continue,
    Deny,
    Finish,
    FinishChunk,
    HarnessError,
    LlmError,
    MessageDropped,
    PromptBlock,
    PromptBlocked,
    Retry,
    Stop,
    TextDelta,
    ToolCallDelta,
    ToolDefinition,
    Usage,
    UsageChunk,
)

pytestmark = pytest.mark.anyio


class Chance:
    """A source of pauses, failures and choices."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.quiet = False

    def one_in(self, number):
        """Whether something rare happens."""
        return not self.quiet and self.random.randrange(number) == 0

    async def pause(self, most=3):
        """Let the loop turn a few times, or not at all."""
        for _ in range(self.random.randint(0, most)):
            await asyncio.sleep(0)


class Model(StagedAdapter):
    """Answers at random, in pieces; now and then it fails."""

    def __init__(self, chance):
        super().__init__([])
        self.chance = chance
        self.calls = 0

    async def stream(self, request):
        """Answer."""
        self.requests.append(request)
        chance = self.chance
        await chance.pause()
        if chance.one_in(12):
            raise LlmError("SERVER", "overloaded")
        yield BlockStart(0, "text")
        for _ in range(chance.random.randint(1, 3)):
            yield TextDelta(0, "word ")
            await chance.pause(1)
        if chance.one_in(15):
            raise LlmError("TRANSPORT", "reset")
        yield BlockEnd(0)
        finish = "stop"
        if chance.one_in(3):
            finish = "tool-calls"
            for index in range(1, chance.random.randint(2, 4)):
                self.calls += 1
                # ids that are missing or used before happen too
                call_id = chance.random.choice([f"c{self.calls}", f"c{self.calls}", "", "c1"])
                name = chance.random.choice(["safe", "safe", "plain", "asked", "unknown"])
                yield BlockStart(index, "tool-call")
                yield ToolCallDelta(index, call_id, name, f'{{"n": {self.calls}}}')
                yield BlockEnd(index)
                await chance.pause(1)
        if chance.one_in(20):
            finish = "max-tokens"
        yield UsageChunk(Usage(1, 1))
        yield FinishChunk(Finish(finish))


def tools_of(chance):
    """Three tools that take their time."""

    async def body(arguments, context):
        await chance.pause()
        if chance.one_in(8):
            raise RuntimeError("broken")
        if chance.one_in(10):
            context.agent.inject("from a tool")
        if chance.one_in(20):
            context.agent.cancel("by a tool")
        await chance.pause()
        return "done"

    schema = {"type": "object"}
    return [
        ToolDefinition("safe", "safe", schema, body, parallel=True, read_only=True),
        ToolDefinition("plain", "plain", schema, body),
        ToolDefinition("asked", "asked", schema, body, parallel=True),
    ]


def hooks_of(chance):
    """Every decision, with pauses and failures."""

    async def fallible():
        await chance.pause(2)
        if chance.one_in(40):
            raise RuntimeError("a plugin failed")

    async def submit():
        await fallible()
        return PromptBlock("not today") if chance.one_in(12) else None

    async def request_error(attempt):
        await fallible()
        return Retry(0) if attempt < 3 else None

    async def gate(call):
        await fallible()
        if call.name == "asked":
            return Ask("sure?")
        return chance.random.choice([None, None, Allow(), Deny("no")])

    async def approve():
        await chance.pause(6)
        return chance.random.choice([ApprovalGranted(), ApprovalRefused(), None])

    async def continuation(step):
        await fallible()
        if chance.one_in(12):
            return Stop("enough")
        if chance.one_in(12):
            return Stop("too much", "LIMIT")
        return Continue("go on") if chance.one_in(12) else None

    async def flush(barrier):
        await chance.pause(2)
        if chance.one_in(60):
            raise OSError("disk")

    return plugin(
        agent_prompt_submit=submit,
        agent_pre_step=_plain(fallible),
        agent_request=_plain(fallible),
        agent_step_result=_plain(fallible),
        agent_request_error=request_error,
        tools_pre_execute=gate,
        tools_post_execute=_plain(fallible),
        approval_request=approve,
        agent_turn_continuation=continuation,
        agent_turn_end=_plain(fallible),
        session_flush=flush,
    )


def _plain(function):
    async def implementation():
        await function()

    return implementation


def meddler(chance, acts):
    """An observer that acts from inside the notification of events."""

    def observe(session, event):
        if chance.one_in(60) and event.type not in ("context/message",):
            acts(chance.random.choice(["send", "steer", "inject", "cancel"]))

    return plugin(session_event=observe)


class Actors:
    """Who acts on the agent, and what they were told."""

    def __init__(self, chance):
        self.chance = chance
        self.agent = None
        self.receipts = {}
        self.injected = []
        self.number = 0

    def act(self, verb):
        """Do one thing."""
        if self.agent is None:
            return
        self.number += 1
        number = self.number  # an observer may act before the verb returns
        try:
            if verb in ("send", "steer"):
                text = f"<{verb} {number}>"
                self.receipts[text] = getattr(self.agent, verb)(text)
            elif verb == "inject":
                self.agent.inject(f"<note {number}>")
                self.injected.append(f"<note {number}>")
            elif verb == "cancel":
                self.agent.cancel(f"cancel {number}")
        except AgentDisposed:
            pass

    async def play(self, length):
        """Act again and again, with pauses."""
        for _ in range(length):
            await self.chance.pause(12)
            verb = self.chance.random.choice(["send", "send", "steer", "steer", "inject", "cancel", "maintain"])
            if verb == "maintain":
                await self.maintain()
            else:
                self.act(verb)

    async def maintain(self):
        """Hold the exclusive slot for a while."""
        try:
            async with self.agent.exclusive("tidy"):
                await self.chance.pause(4)
        except (Busy, AgentDisposed, HarnessError):
            pass


async def outcome(receipt):
    """The end that a receipt tells, as `ends_of` names it."""
    try:
        await receipt
    except MessageDropped:
        return "dropped"
    except PromptBlocked:
        return "blocked"
    except AgentDisposed:
        return "pending"
    return "ran"


async def play(seed):
    """One schedule."""
    chance = Chance(seed)
    actors = Actors(chance)
    plugins = [hooks_of(chance), meddler(chance, actors.act), *([Store()] if seed % 2 else [])]
    config = {"plugins": {"disable": ["retry"]}}
    async with running(
        Model(chance), plugins=plugins, tools=tools_of(chance), config=config, complete=False, max_steps=6
    ) as lab:
        actors.agent = lab.agent
        await asyncio.gather(*(actors.play(chance.random.randint(1, 6)) for _ in range(3)))
        disposing = seed % 3 == 0
        if disposing:
            await chance.pause(20)
            await asyncio.gather(lab.handle.dispose(), lab.handle.dispose())
        else:
            await lab.agent.when_idle()
            chance.quiet = True
            if lab.agent.pending:  # a turn that could not be opened leaves its messages for the next wake
                await lab.agent.send("<wake>")
            last = await lab.agent.send("<last>")
            assert last.reason.kind in ("completed", "limit")
        for receipt in actors.receipts.values():
            assert receipt.done or not disposing
        told = {text: await outcome(receipt) for text, receipt in actors.receipts.items()}
        check(lab, actors, told)


def check(lab, actors, told):
    """What holds of every schedule."""
    ends = ends_of(lab.session)
    logged = {text: ends[receipt.message_id] for text, receipt in actors.receipts.items() if receipt.message_id in ends}
    assert logged == told
    turns = [data.turn for data in lab.events if type(data).__name__ == "TurnStartEvent"]
    assert turns == list(range(1, len(turns) + 1))
    read = "\n".join(
        getattr(block, "text", "") for message in lab.session.derive_messages() for block in message.content
    )
    for text, end in told.items():
        assert read.count(text) == (1 if end == "ran" else 0), (text, end)
    for note in actors.injected:
        assert read.count(note) == 1, note


@pytest.mark.parametrize("block", range(12))
async def test_random_schedules(block):
    """A-2: no message lost or doubled, whatever happens when; the failing seed is named."""
    for seed in range(block * 30, block * 30 + 30):
        try:
            async with asyncio.timeout(20):
                await play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
