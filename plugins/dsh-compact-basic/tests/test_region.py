"""
Where a conversation may be cut.
"""

from __future__ import annotations

import random

import pytest
from dsh_compact_basic.region import balanced_half, choose_region, survey
from dsh_compact_basic.shorten import LIMIT, shorten_results, shortened, too_long

from dsh_core.compaction import HeuristicEstimator
from dsh_core.content import ImageBlock, Message, Tagged, TextBlock, ToolCallBlock, ToolResultBlock
from dsh_core.session import Session, SessionHeader, is_balanced
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    StepEndEvent,
    StepStartEvent,
    ToolResultEvent,
    TurnStartEvent,
    UserMessageEvent,
)

ESTIMATOR = HeuristicEstimator()


def conversation(seed=0, steps=6):
    """A session with batches of calls, notes between their results, and plain answers."""
    rnd = random.Random(seed)
    session = Session(SessionHeader(id="s", created_at=0))
    session.append(TurnStartEvent(1, Tagged("message")))
    session.append(UserMessageEvent("u", "go on " * 5))
    for step in range(1, steps + 1):
        session.append(StepStartEvent(1, step))
        calls = [ToolCallBlock(f"c{step}-{i}", "t", "{}") for i in range(rnd.randrange(4))]
        text = [TextBlock("text " * rnd.randrange(1, 30))] if rnd.random() < 0.7 else []
        session.append(AssistantMessageEvent(1, step, content=(*text, *calls)))
        for call in rnd.sample(calls, len(calls)):
            session.append(ToolResultEvent(1, step, call.id, "result " * rnd.randrange(1, 40)))
            if rnd.random() < 0.3:
                session.append(ContextMessageEvent("note"))
        session.append(StepEndEvent(1, step))
    return session


@pytest.mark.parametrize("seed", range(25))
def test_every_cut_is_balanced_for_every_budget(seed):
    """C-2, cmp-3: the cut moves towards the head until calls and results balance."""
    session = conversation(seed)
    nodes = survey(session, ESTIMATOR)
    assert [node.seq for node in nodes] == list(session.surface.nodes)
    total = sum(node.tokens for node in nodes)
    for retain in range(0, total + 10, 3):
        region = choose_region(nodes, retain)
        if region is None:
            continue
        cut = len(region.seqs)
        assert is_balanced(session, nodes[cut].seq)
        assert region.seqs == tuple(session.surface.nodes)[:cut]
        # The cut never takes more than the budget wanted to keep.
        assert cut == len(nodes) - 1 or region.tokens <= max(total - retain, total - nodes[-1].tokens)


@pytest.mark.parametrize("seed", range(25))
def test_the_messages_before_a_cut_are_a_prefix_of_the_projection(seed):
    """C-3: the summary reads exactly what the provider has read before."""
    session = conversation(seed)
    nodes = survey(session, ESTIMATOR)
    messages = session.derive_messages()
    for node in nodes:
        if node.cuttable and node.messages:
            prefix = list(messages)[: node.messages]
            opened = {b.id for m in prefix for b in m.content if isinstance(b, ToolCallBlock)}
            answered = {b.tool_call_id for m in prefix for b in m.content if isinstance(b, ToolResultBlock)}
            assert opened == answered
    assert all(node.cuttable == is_balanced(session, node.seq) for node in nodes)


def test_nothing_to_cut():
    """C-2: an empty surface and a single group have no region."""
    assert choose_region([], 0) is None
    session = Session(SessionHeader(id="s", created_at=0))
    session.append(TurnStartEvent(1, Tagged("message")))
    session.append(UserMessageEvent("u", "x"))
    assert choose_region(survey(session, ESTIMATOR), 0) is None


def test_messages_are_halved_where_calls_and_results_stay_together():
    """C-3: a conversation that overflows the summary is split at a balanced place."""
    batch = [
        Message("user", "a"),
        Message("assistant", [ToolCallBlock("1", "t", "{}"), ToolCallBlock("2", "t", "{}")]),
        Message("user", ToolResultBlock("1", "r")),
        Message("user", ToolResultBlock("2", "r")),
    ]
    assert balanced_half(batch) == 1
    assert balanced_half([*batch, Message("assistant", "b")]) == 1
    assert balanced_half(batch[:1]) is None
    assert balanced_half([]) is None


@pytest.mark.parametrize("text", ["x" * 50_000, "汉字" * 20_000, "a\n" * 30_000, "😀" * 9_000])
def test_long_results_keep_head_and_tail_and_are_cut_at_characters(text):
    """C-7: head, marker, tail; doing it twice changes nothing more."""
    content = shortened((TextBlock(text), ImageBlock("image/png", "AAAA")), 7)
    assert content[0].text.startswith(text[:500])
    assert content[0].text.endswith(text[-200:])
    assert "event 7 of the log" in content[0].text
    assert "\ufffd" not in content[0].text
    assert len(content[0].text.encode()) <= LIMIT
    assert content[1] == ImageBlock("image/png", "AAAA")


def test_shortening_replaces_one_node_and_keeps_the_original_in_the_log():
    """C-7, S-3: the copy takes the place of its original, with the same call."""
    session = Session(SessionHeader(id="s", created_at=0))
    session.append(TurnStartEvent(1, Tagged("message")))
    session.append(StepStartEvent(1, 1))
    session.append(AssistantMessageEvent(1, 1, content=[ToolCallBlock("c", "t", "{}"), ToolCallBlock("d", "t", "{}")]))
    long = session.append(ToolResultEvent(1, 1, "c", "x" * 50_000, meta={"exit": 0}))
    short = session.append(ToolResultEvent(1, 1, "d", "x" * 100))
    session.append(StepEndEvent(1, 1))
    nodes = session.surface.nodes
    assert list(too_long(session, nodes)) == [long.seq]
    assert shorten_results(session, too_long(session, nodes)) == 1
    assert list(too_long(session, session.surface.nodes)) == []
    assert short.seq in session.surface.nodes
    assert long.seq not in session.surface.nodes
    copy = session.events[-1]
    assert (copy.data.call_id, copy.data.meta, copy.sources) == ("c", {"exit": 0}, (long.seq,))
    assert session.events[long.seq].data.content[0].text == "x" * 50_000
