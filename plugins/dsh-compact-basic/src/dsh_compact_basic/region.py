"""
Which part of a conversation is replaced: pure functions over the surface (C-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from dsh_core.content import Message, ToolCallBlock, ToolResultBlock
from dsh_core.session.events import AssistantMessageEvent, ToolResultEvent

if TYPE_CHECKING:
    from dsh_core.compaction import TokenEstimator
    from dsh_core.session import Session

__all__ = ["Node", "Region", "balanced_half", "choose_region", "survey"]


@attrs.frozen
class Node:
    """
    One node of the surface.

    Args:
        seq: Its event.
        tokens: Its estimate.
        cuttable: Calls and results balance directly before it (S-6).
        messages: How many messages the nodes before it give.
    """

    seq: int
    tokens: int
    cuttable: bool
    messages: int


@attrs.frozen
class Region:
    """
    The head of a surface that is to be replaced.

    Args:
        seqs: Its nodes.
        tokens: Their estimate.
        messages: How many messages they give.
    """

    seqs: tuple[int, ...]
    tokens: int
    messages: int


def survey(session: Session, estimator: TokenEstimator) -> list[Node]:
    """
    Walk the surface once.

    Args:
        session: The session.
        estimator: Estimates each node.

    Returns:
        Every node in surface order.
    """
    nodes: list[Node] = []
    open_calls: set[str] = set()
    known_calls: set[str] = set()
    messages = 0
    for seq in session.surface.nodes:
        data = session.events[seq].data
        nodes.append(Node(seq, estimator.message(data.content), not open_calls, messages))
        if isinstance(data, AssistantMessageEvent):
            calls = {block.id for block in data.content if isinstance(block, ToolCallBlock)}
            open_calls |= calls
            known_calls |= calls
            messages += bool(data.content)
        elif isinstance(data, ToolResultEvent):
            # The first result of a call counts; others, and results without a call, are not projected.
            messages += data.call_id in known_calls
            known_calls.discard(data.call_id)
            open_calls.discard(data.call_id)
        else:
            messages += 1
    return nodes


def choose_region(nodes: Sequence[Node], retain: int) -> Region | None:
    """
    Choose the head to replace.

    Args:
        nodes: The surface.
        retain: Tokens the newest nodes keep; the newest node always stays.

    Returns:
        The region from the head to the last balanced cut that leaves `retain` tokens, or None.
    """
    cut = len(nodes) - 1
    kept = nodes[cut].tokens if nodes else 0
    while cut > 0 and kept + nodes[cut - 1].tokens <= retain:
        cut -= 1
        kept += nodes[cut].tokens
    while cut > 0 and not nodes[cut].cuttable:
        cut -= 1
    if cut <= 0:
        return None
    head = nodes[:cut]
    return Region(tuple(node.seq for node in head), sum(node.tokens for node in head), nodes[cut].messages)


def balanced_half(messages: Sequence[Message]) -> int | None:
    """
    Where a list of messages can be split so that calls and results stay together.

    Returns:
        The legal cut nearest to the middle, or None where there is none.
    """
    legal: list[int] = []
    open_calls: set[str] = set()
    for position, message in enumerate(messages):
        if position and not open_calls:
            legal.append(position)
        for block in message.content:
            if isinstance(block, ToolCallBlock):
                open_calls.add(block.id)
            elif isinstance(block, ToolResultBlock):
                open_calls.discard(block.tool_call_id)
    return min(legal, key=lambda cut: abs(cut - len(messages) // 2), default=None)
