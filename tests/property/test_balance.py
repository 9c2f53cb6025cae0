"""Where the surface may be cut: checked against every pairing of calls and results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import Log

from dsh_core.content import ToolCallBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session import is_balanced
from dsh_core.session.events import AssistantMessageEvent, ToolResultEvent

batches = st.lists(
    st.tuples(st.integers(0, 4), st.permutations(range(4)), st.lists(st.integers(0, 6), max_size=3), st.booleans()),
    max_size=5,
)


def build(program: list[Any]) -> Log:
    """Steps with up to four calls, answered in any order, with notes in between; the last may be cut off."""
    log = Log()
    log.start()
    log.user()
    for number, (count, order, notes, cut) in enumerate(program):
        log.step()
        ids = [f"{number}-{one}" for one in range(count)]
        log.answer("" if ids else "text", ids)
        answered = [ids[one] for one in order if one < count]
        if cut and number == len(program) - 1:
            answered = answered[: count // 2]
        for position, call_id in enumerate(answered):
            for _ in range(notes.count(position)):
                log.context()
            log.result(call_id)
        log.step_end()
    return log


def parted(log: Log, cut: int) -> set[str]:
    """The calls in front of a cut whose result is behind it, or nowhere."""
    nodes = list(log.session.surface.nodes)
    data = [log.session.events[seq].data for seq in nodes]
    calls = {
        block.id
        for one in data[:cut]
        if isinstance(one, AssistantMessageEvent)
        for block in one.content
        if isinstance(block, ToolCallBlock)
    }
    return calls - {one.call_id for one in data[:cut] if isinstance(one, ToolResultEvent)}


@settings(max_examples=150, deadline=None)
@given(batches)
def test_a_cut_is_balanced_exactly_where_it_parts_no_call_from_its_result(program: list[Any]) -> None:
    """S-6: at every node, and behind the last."""
    log = build(program)
    nodes = list(log.session.surface.nodes)
    for position, seq in enumerate([*nodes, None]):
        assert is_balanced(log.session, seq) == (not parted(log, position))


@settings(max_examples=60, deadline=None)
@given(batches, st.data())
def test_a_run_can_be_replaced_exactly_where_both_cuts_are_balanced(program: list[Any], data: Any) -> None:
    """S-3, cmp-3: for every N from 0 to all; what is left is balanced as before."""
    log = build(program)
    nodes = list(log.session.surface.nodes)
    first = data.draw(st.integers(0, len(nodes) - 1))
    last = data.draw(st.integers(first, len(nodes) - 1))
    behind = nodes[last + 1] if last + 1 < len(nodes) else None
    legal = is_balanced(log.session, nodes[first]) and is_balanced(log.session, behind)
    if not legal:
        with pytest.raises(InvariantViolation):
            log.replace(nodes[first], nodes[last])
        assert list(log.session.surface.nodes) == nodes
        return
    was_balanced = is_balanced(log.session)
    log.replace(nodes[first], nodes[last])
    assert is_balanced(log.session) == was_balanced
    for position, seq in enumerate(log.session.surface.nodes):
        assert is_balanced(log.session, seq) == (not parted(log, position))


@settings(max_examples=60, deadline=None)
@given(batches)
def test_what_a_model_reads_is_balanced_wherever_the_surface_is(program: list[Any]) -> None:
    """S-4, S-6: directly behind each message with calls stand their results, in order, and nothing else."""
    log = build(program)
    messages = list(log.session.derive_messages())
    open_calls = {block.id for block in log.session.unanswered_calls()}
    for position, message in enumerate(messages):
        wanted = [block.id for block in message.content if isinstance(block, ToolCallBlock)]
        wanted = [call_id for call_id in wanted if call_id not in open_calls]
        follow = messages[position + 1 : position + 1 + len(wanted)]
        assert [one.content[0].tool_call_id for one in follow] == wanted  # type: ignore[union-attr]
