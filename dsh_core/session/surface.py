"""
The surface: which events are messages now, and in which order (S-3, S-6).

An append-only list of seqs while nothing is replaced; a replacement makes a new list and raises the
generation. Positions, not seqs, say what stands before what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsh_core.content import ToolCallBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session.codec import Replace
from dsh_core.session.events import AssistantMessageEvent, ToolResultEvent

__all__ = ["Surface", "depth_before", "is_shortening"]


class Surface:
    """The nodes of a session's surface."""

    __slots__ = ("_generation", "_nodes")

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._generation = 0

    @property
    def nodes(self) -> Sequence[int]:
        """Seqs of the nodes, by position."""
        return tuple(self._nodes)

    @property
    def generation(self) -> int:
        """How often something was replaced."""
        return self._generation

    def __len__(self) -> int:
        return len(self._nodes)

    def append(self, seq: int) -> None:
        """Add a node at the tail."""
        self._nodes.append(seq)

    def replace(self, seq: int, mark: Replace) -> None:
        """Put a node in the place of a run that has been checked."""
        first, last = self.run(mark)
        self._nodes = [*self._nodes[:first], seq, *self._nodes[last + 1 :]]
        self._generation += 1

    def run(self, mark: Replace) -> tuple[int, int]:
        """
        The positions of a run of nodes.

        Raises:
            InvariantViolation: An end is not on the surface, or they stand in the wrong order.
        """
        positions = []
        for name, seq in (("first", mark.first), ("last", mark.last)):
            try:
                positions.append(self._nodes.index(seq))
            except ValueError:
                raise InvariantViolation(
                    f"replace: {name}={seq} is not on the surface (it never was a message, or is shadowed already)"
                ) from None
        first, last = positions
        if first > last:
            raise InvariantViolation(f"replace: node {mark.first} stands behind node {mark.last} on the surface")
        return first, last

    def check(self, data: Any, mark: Replace, sources: Sequence[int], data_of: Callable[[int], Any]) -> None:
        """
        Check a replacement before it is pushed.

        Args:
            data: The event data that take the place.
            mark: The run.
            sources: What the event names as its sources.
            data_of: Event data by seq.

        Raises:
            InvariantViolation: Missing nodes, wrong order, a shadowed node that is not in `sources`, or calls
                and results out of balance on either side.
        """
        first, last = self.run(mark)
        missing = [seq for seq in self._nodes[first : last + 1] if seq not in set(sources)]
        if missing:
            raise InvariantViolation(f"replace: sources must list every shadowed node; missing: {missing}")
        if is_shortening(data, [data_of(seq) for seq in self._nodes[first : last + 1]]):
            return
        if type(data) in (ToolResultEvent, AssistantMessageEvent):
            raise InvariantViolation(
                "replace: only a user, context or steering message may take the place of other messages; "
                "a tool result may replace exactly the result of the same call"
            )
        for cut, side in ((first, "before"), (last + 1, "behind")):
            if depth_before([data_of(seq) for seq in self._nodes[:cut]]) != 0:
                raise InvariantViolation(
                    f"replace: the cut {side} the run {mark.first}…{mark.last} separates a call from its result; "
                    "move it until is_balanced says so"
                )


def is_shortening(data: Any, shadowed: Sequence[Any]) -> bool:
    """Whether a replacement is a tool result in the place of the result of the same call."""
    return (
        type(data) is ToolResultEvent
        and len(shadowed) == 1
        and type(shadowed[0]) is ToolResultEvent
        and shadowed[0].call_id == data.call_id
    )


def depth_before(nodes: Sequence[Any]) -> int:
    """How many calls in `nodes` have no result there; further results and results without a call count 0."""
    open_calls: set[str] = set()
    for data in nodes:
        if type(data) is AssistantMessageEvent:
            open_calls.update(block.id for block in data.content if type(block) is ToolCallBlock)
        elif type(data) is ToolResultEvent:
            open_calls.discard(data.call_id)
    return len(open_calls)
