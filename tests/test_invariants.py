"""The invariants: each rule refuses what breaks it, and what is legal passes."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from logs import Clock, Log, NoteEvent, StrictEvent

import dsh_core as dsh
from dsh_core.content import ErrorInfo, Source, Tagged, ToolCallBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session import Replace, Session, SessionEvent, SessionHeader
from dsh_core.session import events as ev
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, call, calls, fail, invariants, text
from dsh_core.testing.invariants import Invariants

pytestmark = pytest.mark.anyio


class CheckingSink:
    """A sink whose only listener is the invariants."""

    def __init__(self, plugin: Invariants) -> None:
        self.plugin = plugin

    def check(self, session: Session, event: SessionEvent) -> None:
        self.plugin.session_append(session=session, event=event)

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None: ...

    def notify(self, session: Session, event: SessionEvent) -> None: ...

    def created(self, session: Session) -> None: ...

    def disposed(self, session: Session) -> None: ...


def checked(plugin: Invariants = invariants) -> Log:
    """A session that the invariants watch."""
    return Log(sink=CheckingSink(plugin), clock=Clock())


def between() -> Log:
    log = checked()
    log.turn()
    return log


def in_turn() -> Log:
    log = between()
    log.start()
    log.user()
    return log


def in_step() -> Log:
    log = in_turn()
    log.step()
    return log


def with_call() -> Log:
    """Turn 2, step 1, the call `a` of `add` is in the answer."""
    log = in_step()
    log.answer("", ["a"])
    return log


def taken_up() -> Log:
    log = with_call()
    log.call("a")
    return log


def answered() -> Log:
    log = taken_up()
    log.result("a")
    return log


TRIGGER, DONE = Tagged("message"), Tagged("completed")
CALL = ToolCallBlock("a", "add", "{}")

BROKEN: list[tuple[str, Callable[[], Log], Any, str]] = [
    # numbering and nesting
    ("a nested turn", in_turn, ev.TurnStartEvent(3, TRIGGER), "turn 2 is still open"),
    ("a gap between turns", between, ev.TurnStartEvent(3, TRIGGER), "turn 3 follows turn 1"),
    ("a turn twice", between, ev.TurnStartEvent(1, TRIGGER), "turn 1 follows turn 1"),
    ("the first turn is 1", checked, ev.TurnStartEvent(0, TRIGGER), "turn 0 follows turn 0"),
    ("the end of another turn", in_turn, ev.TurnEndEvent(1, DONE), "names turn 1, turn 2 is open"),
    ("an end without a start", between, ev.TurnEndEvent(1, DONE), "outside every turn"),
    ("a step open at the turn's end", in_step, ev.TurnEndEvent(2, DONE), "step 1 is still open"),
    ("a step outside of a turn", between, ev.StepStartEvent(1, 1), "outside every turn"),
    ("a step of another turn", in_turn, ev.StepStartEvent(1, 1), "names turn 1"),
    ("a nested step", in_step, ev.StepStartEvent(2, 2), "step 1 is still open"),
    ("a gap between steps", in_turn, ev.StepStartEvent(2, 2), "step 2 follows step 0"),
    ("the end of another step", in_step, ev.StepEndEvent(2, 2), "names step 2, step 1 is open"),
    ("a step's end without a start", in_turn, ev.StepEndEvent(2, 1), "no step is open"),
    # enclosure
    ("a context between turns", between, ev.ContextMessageEvent("x"), "outside every turn"),
    ("a plugin's event that belongs into a turn", between, StrictEvent(), "outside every turn"),
    ("a prompt between turns", between, ev.UserMessageEvent("m9", "x"), "outside every turn"),
    # requests and answers
    ("a chunk outside of its step", in_turn, ev.AssistantChunkEvent(2, 1), "no step is open"),
    ("a chunk of another step", in_step, ev.AssistantChunkEvent(2, 2), "names step 2"),
    ("a chunk of another attempt", in_step, ev.AssistantChunkEvent(2, 1, 2), "names attempt 2"),
    ("a chunk behind the answer", with_call, ev.AssistantChunkEvent(2, 1), "assistant/message already"),
    ("a header outside of its step", in_turn, ev.RequestHeaderEvent(2, 1), "no step is open"),
    ("a header of another attempt", in_step, ev.RequestHeaderEvent(2, 1, 2), "names attempt 2"),
    ("a retry that skips one", in_step, ev.RequestRetryEvent(2, 1, 3), "attempt 3 follows attempt 1"),
    ("a retry behind the answer", with_call, ev.RequestRetryEvent(2, 1, 2), "assistant/message already"),
    ("an answer outside of its step", in_turn, ev.AssistantMessageEvent(2, 1), "no step is open"),
    ("an answer of another turn", in_step, ev.AssistantMessageEvent(1, 1), "names turn 1"),
    ("a second answer", answered, ev.AssistantMessageEvent(2, 1), "assistant/message already"),
    ("a call id twice", in_step, ev.AssistantMessageEvent(2, 1, content=[CALL, CALL]), "used before"),
    ("a call without an id", in_step, ev.AssistantMessageEvent(2, 1, content=ToolCallBlock("", "add", "")), "no id"),
    ("a continuation inside a step", in_step, ev.TurnContinuationEvent(2, 1, "stop"), "step 1 is still open"),
    # calls and results
    ("a call that no message has", in_step, ev.ToolCallEvent(2, 1, "x", "add"), "in no assistant/message"),
    ("a call taken up twice", taken_up, ev.ToolCallEvent(2, 1, "a", "add"), "taken up before"),
    ("a call of another tool", with_call, ev.ToolCallEvent(2, 1, "a", "rm"), "is one of 'add'"),
    ("a call of another step", with_call, ev.ToolCallEvent(2, 2, "a", "add"), "names step 2"),
    ("a call that was answered", answered, ev.ToolCallEvent(2, 1, "a", "add"), "answered already"),
    ("a result of another step", taken_up, ev.ToolResultEvent(2, 2, "a", "x"), "names step 2"),
    ("a result of another turn", taken_up, ev.ToolResultEvent(1, 1, "a", "x"), "names turn 1"),
    ("a result of a call not taken up", with_call, ev.ToolResultEvent(2, 1, "a", "x"), "not taken up"),
    (
        "an interruption of a call not taken up",
        with_call,
        ev.ToolResultEvent(2, 1, "a", "x", True, ErrorInfo("I", "INTERRUPTED")),
        "not taken up",
    ),
    ("a step that ends before its results", taken_up, ev.StepEndEvent(2, 1), "have no result"),
    ("rewriting a call not taken up", with_call, ev.ToolRewrittenEvent("a", {}, "p"), "not taken up"),
    ("rewriting an unknown call", in_step, ev.ToolRewrittenEvent("x", {}, "p"), "in no assistant/message"),
    ("asking for an unknown call", in_step, ev.ApprovalAskedEvent("q", "x", "add"), "in no assistant/message"),
    ("an answer nobody asked for", taken_up, ev.ApprovalDecidedEvent("q", "a", "approved"), "does not wait"),
    # messages
    ("a prompt that was never queued", in_turn, ev.UserMessageEvent("ghost", "x"), "never queued"),
    ("a prompt used twice", in_turn, ev.UserMessageEvent("m1", "x"), "used or dropped already"),
    ("a blocked prompt that was used", in_turn, ev.PromptBlockedEvent("m1", "x"), "used or dropped already"),
    ("steering that was never queued", in_turn, ev.SteeringMessageEvent("ghost", 2, "x"), "never queued"),
    ("dropping what was used", between, ev.InboxDroppedEvent(["m1"]), "used or dropped already"),
    ("dropping what never was", between, ev.InboxDroppedEvent(["ghost"]), "never queued"),
    ("queueing an id twice", between, ev.InboxQueuedEvent("m1", "queued", "x"), "accepted before"),
]


@pytest.mark.parametrize(("start", "data", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_breaks_a_rule_is_refused(start: Callable[[], Log], data: Any, words: str) -> None:
    """S-12, case 102: with event, session and rule; the event is not in the log, and the log can go on."""
    log = start()
    before = (list(log.session.events), log.session.surface.nodes, log.session.unanswered_calls())
    with pytest.raises(InvariantViolation, match=words) as caught:
        log.session.append(data)
    assert caught.value.code == "INVARIANT"
    assert "session 's'" in str(caught.value)
    assert (list(log.session.events), log.session.surface.nodes, log.session.unanswered_calls()) == before
    log.session.append(NoteEvent())


def test_legal_twins_pass() -> None:
    """S-12: everything a turn may hold, in one log."""
    log = checked()
    log.session.append(NoteEvent())
    dropped, blocked, prompt = log.queue(), log.queue(), log.queue()
    log.session.append(ev.InboxDroppedEvent([dropped]))
    log.start()
    log.session.append(ev.PromptBlockedEvent(blocked, "x", None, "no"))
    log.session.append(ev.UserMessageEvent(prompt, "x"))
    log.context()
    log.session.append(StrictEvent())
    log.step()
    log.session.append(ev.RequestHeaderEvent(1, 1))
    log.session.append(ev.AssistantChunkEvent(1, 1))
    log.session.append(ev.RequestRetryEvent(1, 1, 2))
    log.session.append(ev.RequestHeaderEvent(1, 1, 2))
    log.session.append(ev.AssistantChunkEvent(1, 1, 2))
    log.context("in a step")
    log.answer("", ["a", "b", "c"], attempt=2)
    log.call("a")
    log.session.append(ev.ToolRewrittenEvent("a", {"a": 1}, "p"))
    log.session.append(ev.ApprovalAskedEvent("q", "a", "add"))
    log.call("b")
    log.result("b")
    log.session.append(ev.ApprovalDecidedEvent("q", "a", "approved"))
    log.result("a")
    log.result("c", code="NOT_STARTED")
    log.steering("behind the results")
    log.step_end()
    log.session.append(ev.TurnContinuationEvent(1, 1, "continue"))
    log.step()
    log.answer("done")
    log.step_end()
    log.end()
    log.queue("waits")
    assert len(log.session.events) == log.session.events[-1].seq + 1


def test_an_approval_is_answered_once_and_for_its_own_call() -> None:
    """L-14, perm-11: bound to the call id, used once."""
    log = in_step()
    log.answer("", ["a", "b"])
    log.call("a")
    log.call("b")
    log.session.append(ev.ApprovalAskedEvent("q", "a", "add"))
    with pytest.raises(InvariantViolation, match="for call 'a'"):
        log.session.append(ev.ApprovalDecidedEvent("q", "b", "approved"))
    with pytest.raises(InvariantViolation, match="asked before"):
        log.session.append(ev.ApprovalAskedEvent("q", "b", "add"))
    log.session.append(ev.ApprovalDecidedEvent("q", "a", "approved"))
    with pytest.raises(InvariantViolation, match="does not wait"):
        log.session.append(ev.ApprovalDecidedEvent("q", "a", "approved"))


def test_a_second_rewrite_of_a_call_is_refused() -> None:
    """L-13: one rewrite a call."""
    log = taken_up()
    log.session.append(ev.ToolRewrittenEvent("a", {"a": 1}, "p"))
    with pytest.raises(InvariantViolation, match="rewritten before"):
        log.session.append(ev.ToolRewrittenEvent("a", {"a": 2}, "q"))


@pytest.mark.parametrize("code", ["INTERRUPTED", "NOT_STARTED", "DENIED", None])
def test_a_call_that_was_taken_up_may_end_in_any_way(code: str | None) -> None:
    """L-10: only the number of results is fixed."""
    log = taken_up()
    log.result("a", code=code)
    log.step_end()
    log.end()
    assert log.session.last_turn == 2


def test_call_ids_are_unique_in_the_whole_session() -> None:
    """L-12: also across turns."""
    log = answered()
    log.step_end()
    log.end()
    log.start()
    log.step()
    with pytest.raises(InvariantViolation, match=r"\['a'\] were used before"):
        log.answer("", ["a", "new"])
    log.answer("", ["new"])


# -- the surface -----------------------------------------------------------------------------------------


def direct(log: Log, data: Any, **keywords: Any) -> None:
    """Ask the invariants themselves, past what the session refuses on its own."""
    event = attrs.evolve(SessionEvent(len(log.session.events), 2_000, data), **keywords)
    invariants.session_append(session=log.session, event=event)


def surface() -> tuple[Log, list[int]]:
    """A closed turn, then an open one with a prompt; and the nodes: prompt, answer, prompt."""
    log = in_turn()
    return log, list(log.session.surface.nodes)


@pytest.mark.parametrize(
    ("run", "cited", "words"),
    [
        ((0, 1), (0, 1), "a summary"),
        ((0, 1), (0,), "shadows"),
        ((0, 2), (0, 2), "shadows"),
        ((2, 0), (0, 1, 2), "backwards"),
        ((0, None), (0,), "not on the surface"),
    ],
    ids=["legal", "uncited last", "uncited middle", "backwards", "no node"],
)
def test_a_replacement_cites_what_it_shadows(run: Any, cited: Any, words: str) -> None:
    """S-3, case 102: endpoints on the surface, in order, every shadowed node in sources."""
    log, nodes = surface()
    first, last = (0 if one is None else nodes[one] for one in run)
    keywords = {"surface": Replace(first, last), "sources": tuple(nodes[one] for one in cited)}
    data = ev.UserMessageEvent("summary", "a summary", Source.plugin("p"))
    if words == "a summary":
        direct(log, data, **keywords)
        return
    with pytest.raises(InvariantViolation, match=words):
        direct(log, data, **keywords)


def test_only_messages_replace_messages() -> None:
    """S-3: a surface mark on another type."""
    log, nodes = surface()
    with pytest.raises(InvariantViolation, match="no message"):
        direct(log, StrictEvent(), surface=Replace(nodes[0], nodes[0]), sources=(nodes[0],))


def test_a_replacement_keeps_calls_and_results_together() -> None:
    """S-6: the cut on either side."""
    log = answered()
    nodes = list(log.session.surface.nodes)
    log.step_end()
    summary = ev.UserMessageEvent("summary", "x", Source.plugin("p"))
    for run in (nodes[:-1], nodes[-1:], nodes[-2:-1]):
        with pytest.raises(InvariantViolation, match="separates calls from results"):
            direct(log, summary, surface=Replace(run[0], run[-1]), sources=tuple(run))
    direct(log, summary, surface=Replace(nodes[-2], nodes[-1]), sources=tuple(nodes[-2:]))


def test_results_and_answers_do_not_replace_runs() -> None:
    """S-3: a result takes the place of its own call's result only, with its turn and step."""
    log = answered()
    nodes = list(log.session.surface.nodes)
    log.step_end()
    mark = {"surface": Replace(nodes[-1], nodes[-1]), "sources": (nodes[-1],)}
    direct(log, ev.ToolResultEvent(2, 1, "a", "short"), **mark)
    for other in (ev.ToolResultEvent(2, 1, "b", "short"), ev.ToolResultEvent(2, 2, "a", "short")):
        with pytest.raises(InvariantViolation, match="same call, turn and step"):
            direct(log, other, **mark)
    with pytest.raises(InvariantViolation, match="an answer cannot"):
        direct(log, ev.AssistantMessageEvent(2, 1), surface=Replace(nodes[0], nodes[0]), sources=(nodes[0],))


def test_inside_a_step_the_surface_is_replaced_between_attempts_only() -> None:
    """S-7: overflow repair may, once the answer is there nobody may."""
    log, nodes = surface()
    mark = {"surface": Replace(nodes[0], nodes[1]), "sources": tuple(nodes[:2])}
    summary = ev.UserMessageEvent("summary", "x", Source.plugin("p"))
    direct(log, summary, **mark)
    log.step()
    direct(log, summary, **mark)
    log.answer("done")
    with pytest.raises(InvariantViolation, match="between two attempts"):
        direct(log, summary, **mark)
    log.step_end()
    direct(log, summary, **mark)


def test_a_replacement_belongs_into_a_turn_too() -> None:
    """S-7: messages are never between turns."""
    log = between()
    nodes = log.session.surface.nodes
    with pytest.raises(InvariantViolation, match="outside every turn"):
        direct(
            log,
            ev.UserMessageEvent("summary", "x", Source.plugin("p")),
            surface=Replace(nodes[0], nodes[1]),
            sources=tuple(nodes),
        )


# -- the envelope ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq": 99}, "seq is 99"),
        ({"seq": 0}, "seq is 0"),
        ({"time": 1}, "earlier than"),
        ({"sources": (1, 1)}, "twice"),
        ({"sources": (99,)}, "earlier events"),
        ({"sources": (-1,)}, "earlier events"),
    ],
)
def test_the_envelope_continues_the_log(changes: Any, words: str) -> None:
    """S-1: seq is the length, time does not decrease, sources are earlier events."""
    log = between()
    with pytest.raises(InvariantViolation, match=words):
        direct(log, NoteEvent(), **changes)


def test_checking_changes_nothing() -> None:
    """S-12: a check may be asked any number of times; only what is in the log counts."""
    log = in_turn()
    for _ in range(3):
        direct(log, ev.StepStartEvent(2, 1))
        with pytest.raises(InvariantViolation):
            direct(log, ev.StepStartEvent(2, 2))
    log.step()


# -- sessions that have a past ---------------------------------------------------------------------------


@pytest.mark.parametrize("start", [between, in_turn, in_step, with_call, taken_up, answered], ids=lambda f: f.__name__)
def test_loaded_in_mid_turn_they_raise_no_false_alarm(start: Callable[[], Log]) -> None:
    """Case 102: a fresh plugin folds the log it finds."""
    log = start()
    log.session.attach(CheckingSink(Invariants()))
    if log.session.unanswered_calls():
        log.result("a", code="NOT_STARTED")
    if log.session.open_step is not None:
        log.step_end()
    if log.session.turn_open:
        log.end()
    log.turn()


def test_what_waits_in_a_seed_waits_in_vain() -> None:
    """S-9: a fork does not run its source's inbox."""
    source = checked()
    waiting = source.queue()
    seed = list(source.session.events)
    for seed_length, legal in ((0, True), (len(seed), False)):
        session = Session(SessionHeader("f", seed_length=seed_length), seed=seed, sink=CheckingSink(Invariants()))
        log = Log(session)
        log.start()
        if legal:
            log.session.append(ev.UserMessageEvent(waiting, "x"))
        else:
            with pytest.raises(InvariantViolation, match=waiting):
                log.session.append(ev.UserMessageEvent(waiting, "x"))


def test_calls_an_old_log_left_open_do_not_block_new_turns() -> None:
    """P-3: calls of earlier turns are left alone."""
    log = Log()
    log.start()
    log.step()
    log.answer("", ["old"])
    log.step_end()
    log.end()
    log.session.attach(CheckingSink(Invariants()))
    log.turn()
    assert log.session.last_turn == 2


def test_sessions_are_forgotten() -> None:
    """S-12: one plugin for all harnesses of a process keeps none of their sessions alive."""
    plugin = Invariants()
    log = checked(plugin)
    log.turn()
    gone = weakref.ref(log.session)
    del log
    gc.collect()
    assert gone() is None


# -- statuses --------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class StandIn:
    """What the invariants look at of an agent."""

    id: str
    session: Session


def agent() -> Any:
    return StandIn("s", Session(SessionHeader("s")))


@pytest.mark.parametrize("statuses", [["running", "idle", "running", "disposed"], ["idle", "disposed"], ["disposed"]])
def test_statuses_alternate_until_disposed(statuses: list[str]) -> None:
    """Section 7: the first observation is any."""
    one = agent()
    for status in statuses:
        invariants.agent_status(agent=one, status=status)


@pytest.mark.parametrize("statuses", [["idle", "idle"], ["running", "running"], ["disposed", "idle"], ["disposed"] * 2])
def test_a_repeated_status_or_one_after_disposed_is_a_violation(statuses: list[str]) -> None:
    """Case 102: named with the status before."""
    one = agent()
    for status in statuses[:-1]:
        invariants.agent_status(agent=one, status=status)
    with pytest.raises(InvariantViolation, match=statuses[-1]):
        invariants.agent_status(agent=one, status=statuses[-1])


# -- in a harness ----------------------------------------------------------------------------------------


@dsh.tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def test_the_module_level_object_is_the_plugin() -> None:
    """10-api: `plugins=[invariants]`, and calling it changes nothing."""
    assert invariants.name == "invariants"
    assert invariants() is invariants


async def test_any_number_of_harnesses_share_it() -> None:
    """S-12: two at once, on sessions of the same name."""
    for _ in range(2):
        async with (
            dsh.Harness(plugins=[invariants], autoload=False) as one,
            dsh.Harness(plugins=[invariants], autoload=False) as two,
        ):
            for harness in (one, two):
                Log(harness.sessions.create("s")).turn()
            with pytest.raises(InvariantViolation):
                two.sessions.get("s").append(ev.TurnStartEvent(7, TRIGGER))  # type: ignore[union-attr]


async def test_the_loop_keeps_every_rule(dsh_chat: Any) -> None:
    """S-12: tools, steering, injection, a retry, a cancelled turn, an error, a dispose."""

    class Again:
        @dsh.hookimpl
        def agent_request_error(self, error: dsh.LlmError) -> dsh.Retry | None:
            return dsh.Retry() if error.code == "SERVER" else None

    items = [
        calls(call("add", a=1, b=2), call("add", a="x"), call("nothing")),
        fail("SERVER"),
        text("three"),
        fail("AUTH"),
        text("fine"),
    ]
    async with dsh_chat(*items, tools=[add], plugins=[Again()]) as chat:
        assert str(await chat.ask("go")) == "three"
        chat.agent.inject("between turns")
        assert (await chat.ask("again")).reason.kind == "error"
        receipt = chat.agent.send("dropped")
        chat.agent.cancel()
        with pytest.raises(dsh.MessageDropped):
            await receipt
        assert str(await chat.ask("last")) == "fine"


async def test_a_plugin_that_breaks_a_rule_hears_of_it(dsh_harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    """S-12: the error goes to the appender; the turn ends with it, the log stays legal."""

    class Meddler:
        @dsh.hookimpl
        def agent_pre_step(self, agent: Any) -> None:
            agent.session.append(ev.UserMessageEvent("made-up", "psst"))

    with caplog.at_level(logging.CRITICAL, "dsh"):
        async with dsh.open(
            model="scripted/x",
            autoload=False,
            plugins=[ScriptedPlugin(ScriptedAdapter([])), Meddler(), invariants],
        ) as chat:
            result = await chat.ask("hi")
            assert result.reason.kind == "error"
            assert "made-up" in result.reason.message
            assert not any("made-up" in str(event.data) for event in chat.agent.session.events[:-1])
            assert not chat.agent.session.turn_open
