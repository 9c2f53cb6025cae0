"""The surface: what a replacement may do, and where it may be cut."""

from __future__ import annotations

from typing import Any

import pytest
from logs import Log, NoteEvent

from dsh_core.content import Source, TextBlock, ToolCallBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session import Session, SessionHeader, is_balanced
from dsh_core.session.events import AssistantMessageEvent, ToolResultEvent, UserMessageEvent


def conversation(prompts: int = 4) -> Log:
    """A session of prompts alone, in one open turn."""
    log = Log()
    log.start()
    for number in range(prompts):
        log.user(f"p{number}")
    return log


def nodes(log: Log) -> list[int]:
    return list(log.session.surface.nodes)


def unchanged(log: Log) -> Any:
    """What a refused append must leave as it is."""
    return len(log.session.events), nodes(log), log.session.surface.generation, log.roles()


# -- replacing -------------------------------------------------------------------------------------------


def test_only_messages_are_on_the_surface() -> None:
    """S-3: the five types, at the tail, in the order of the log."""
    log = Log()
    log.turn()
    log.session.append(NoteEvent())
    types = [log.session.events[seq].type for seq in nodes(log)]
    assert types == ["user/message", "assistant/message"]


def test_a_replacement_stands_where_the_run_stood() -> None:
    """S-3, case 13: neighbours stay, shadowed nodes are gone, the generation counts."""
    log = conversation()
    a, b, c, d = nodes(log)
    made = log.replace(b, c, "summary")
    assert nodes(log) == [a, made.seq, d]
    assert log.roles() == ["user p0", "user summary", "user p3"]
    assert log.session.surface.generation == 1
    with pytest.raises(InvariantViolation, match=f"{b}"):
        log.replace(b, b, sources=[b])


def test_one_node_can_be_replaced() -> None:
    """S-3: first and last may be the same."""
    log = conversation(1)
    (node,) = nodes(log)
    made = log.replace(node, node)
    assert nodes(log) == [made.seq]


def test_runs_are_compared_by_position_not_by_seq() -> None:
    """S-3, case 14: after a replacement a high seq stands near the head."""
    log = conversation()
    a, b, c, _ = nodes(log)
    first = log.replace(a, b, "one")
    assert first.seq > c
    second = log.replace(first.seq, c, "two")
    assert log.roles() == ["user two", "user p3"]
    assert nodes(log)[0] == second.seq


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("first is no node", "not on the surface"),
        ("last is no node", "not on the surface"),
        ("not in the log yet", "not on the surface"),
        ("reversed", "stands behind"),
        ("a shadowed node not cited", "sources"),
        ("nothing cited", "sources"),
    ],
)
def test_a_replacement_that_does_not_fit_is_refused(case: str, words: str) -> None:
    """S-3, case 15: before the push, with the reason; nothing is changed."""
    log = conversation()
    a, b, c, _ = nodes(log)
    before = unchanged(log)
    first, last, sources = {
        "first is no node": (0, b, [0, a, b]),
        "last is no node": (a, 0, [0, a, b]),
        "not in the log yet": (a, 99, [a]),
        "reversed": (c, a, [a, b, c]),
        "a shadowed node not cited": (a, c, [a, c]),
        "nothing cited": (a, c, []),
    }[case]
    with pytest.raises(InvariantViolation, match=words):
        log.session.append(UserMessageEvent("r", "x"), replace=(first, last), sources=sources)
    assert unchanged(log) == before


def test_sources_may_name_more_than_the_run() -> None:
    """S-3: a summary may cite what it was made from."""
    log = conversation()
    a, b, c, _ = nodes(log)
    assert log.replace(a, b, sources=[0, a, b, c]).sources == (0, a, b, c)


def test_an_event_that_is_no_message_replaces_nothing() -> None:
    """S-3, case 5: a surface mark on any other type is refused."""
    log = conversation()
    a, b, *_ = nodes(log)
    before = unchanged(log)
    with pytest.raises(InvariantViolation, match="no message"):
        log.session.append(NoteEvent(), replace=(a, b), sources=[a, b])
    assert unchanged(log) == before


# -- calls and results -----------------------------------------------------------------------------------


def with_calls() -> tuple[Log, dict[str, int]]:
    """user, answer(a, b), result a, note, result b, answer; and the seq of each."""
    log = Log()
    log.start()
    seqs = {"user": log.user().seq}
    log.step()
    seqs["calls"] = log.answer("", ["a", "b"]).seq
    seqs["result a"] = log.result("a").seq
    seqs["note"] = log.context().seq
    seqs["result b"] = log.result("b").seq
    log.step_end()
    log.step()
    seqs["answer"] = log.answer("done").seq
    log.step_end()
    return log, seqs


def test_a_cut_is_legal_where_no_call_waits() -> None:
    """S-6, cases 17 and 18: between call and result it is not, a note in between or not."""
    log, seqs = with_calls()
    legal = {name for name, seq in seqs.items() if is_balanced(log.session, seq)}
    assert legal == {"user", "calls", "answer"}


def test_behind_the_last_node_is_a_cut_too() -> None:
    """S-6: None, or a seq that is not on the surface."""
    log, seqs = with_calls()
    assert is_balanced(log.session)
    assert is_balanced(log.session, 0)
    log.step()
    log.answer("", ["c"])
    assert not is_balanced(log.session)
    log.result("c")
    assert is_balanced(log.session)
    assert is_balanced(log.session, seqs["user"])


def test_an_empty_surface_is_balanced() -> None:
    """S-6: nothing is cut."""
    assert is_balanced(Session(SessionHeader("s")))


def test_a_replacement_at_the_head_is_neutral() -> None:
    """S-6: the cut behind it is as legal as before."""
    log, seqs = with_calls()
    made = log.replace(seqs["user"], seqs["result b"])
    assert nodes(log) == [made.seq, seqs["answer"]]
    assert is_balanced(log.session, made.seq)
    assert is_balanced(log.session, seqs["answer"])


def test_every_run_that_would_part_a_call_from_its_result_is_refused() -> None:
    """S-3, cmp-3: of all runs exactly those with two legal cuts are taken, whatever is in between."""
    _, names = with_calls()
    order = list(names)
    for i, first in enumerate(order):
        for j in range(i, len(order)):
            log, seqs = with_calls()
            behind = seqs[order[j + 1]] if j + 1 < len(order) else None
            legal = is_balanced(log.session, seqs[first]) and is_balanced(log.session, behind)
            before = unchanged(log)
            if legal:
                log.replace(seqs[first], seqs[order[j]])
                continue
            with pytest.raises(InvariantViolation, match="separates a call from its result"):
                log.replace(seqs[first], seqs[order[j]])
            assert unchanged(log) == before


def test_a_result_may_be_shortened_in_its_place() -> None:
    """S-3: balance is not asked, so that one of several results can be."""
    log, seqs = with_calls()
    made = log.session.append(
        ToolResultEvent(1, 1, "a", "short"), replace=(seqs["result a"], seqs["result a"]), sources=[seqs["result a"]]
    )
    assert nodes(log)[2] == made.seq
    texts = [message.content[0].content for message in log.session.derive_messages()[2:4]]  # type: ignore[union-attr]
    assert texts == [(TextBlock("short"),), (TextBlock("done"),)]


@pytest.mark.parametrize(
    ("call_id", "first", "last"),
    [("b", "result a", "result a"), ("a", "result a", "result b"), ("a", "user", "user"), ("a", "calls", "calls")],
)
def test_a_result_may_replace_only_the_result_of_its_own_call(call_id: str, first: str, last: str) -> None:
    """S-3, case 19: another id, two nodes, or another kind of message is refused."""
    log, seqs = with_calls()
    run = nodes(log)[list(seqs).index(first) : list(seqs).index(last) + 1]
    before = unchanged(log)
    with pytest.raises(InvariantViolation):
        log.session.append(ToolResultEvent(1, 1, call_id, "x"), replace=(seqs[first], seqs[last]), sources=run)
    assert unchanged(log) == before


def test_calls_cannot_take_the_place_of_messages() -> None:
    """S-3, S-6: they would wait for results on the surface."""
    log = conversation()
    a, b, *_ = nodes(log)
    before = unchanged(log)
    with pytest.raises(InvariantViolation):
        log.session.append(
            AssistantMessageEvent(1, 1, content=ToolCallBlock("c", "add", "{}")), replace=(a, b), sources=[a, b]
        )
    assert unchanged(log) == before


def test_a_context_may_replace_a_run() -> None:
    """S-3: any message without calls."""
    from dsh_core.session.events import ContextMessageEvent

    log = conversation(2)
    a, b = nodes(log)
    log.session.append(ContextMessageEvent("sum", Source.plugin("p")), replace=(a, b), sources=[a, b])
    assert log.roles() == ['user <context source="p">\nsum\n</context>']


def test_nodes_that_were_handed_out_do_not_change() -> None:
    """10-api: `nodes` is what the surface was when it was read."""
    log = conversation(2)
    early = log.session.surface.nodes
    kept = list(early)
    log.user("later")
    log.replace(kept[0], kept[1])
    assert list(early) == kept
