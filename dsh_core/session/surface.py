"""
The surface: which events are messages now, and in which order (S-3, S-6).

An append-only list of seqs while nothing is replaced; a replacement makes a new list and raises the
generation. Positions, not seqs, say what stands before what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dsh_core.content import ToolCallBlock
from dsh_core.errors import InvariantViolation
from dsh_core.session._views import View
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    SteeringMessageEvent,
    ToolResultEvent,
    UserMessageEvent,
)

if TYPE_CHECKING:
    from dsh_core.session.event import Replace, SessionEvent

__all__ = ["MESSAGES", "Surface", "SurfaceFold", "calls_of", "depth_of", "is_message"]

MESSAGES = frozenset(
    {UserMessageEvent, AssistantMessageEvent, ToolResultEvent, ContextMessageEvent, SteeringMessageEvent}
)
"""The classes of event data that put a message on the surface."""


def is_message(data: object) -> bool:
    """Whether an event with these data puts a message on the surface."""
    return type(data) in MESSAGES


def calls_of(data: object) -> list[ToolCallBlock]:
    """The tool calls of an assistant message, in order; none of anything else."""
    if type(data) is not AssistantMessageEvent:
        return []
    return [block for block in data.content if type(block) is ToolCallBlock]


def depth_of(nodes: Iterable[Any]) -> int:
    """
    How many calls in a run of message data wait for a result there (S-6).

    Further results and results without a call count 0.
    """
    waiting: set[str] = set()
    for data in nodes:
        waiting.update(block.id for block in calls_of(data))
        if type(data) is ToolResultEvent:
            waiting.discard(data.call_id)
    return len(waiting)


class SurfaceFold:
    """
    The surface as the log makes it, event by event.

    Args:
        events: The log, which grows; the fold looks up nodes in it.
    """

    __slots__ = ("_events", "call_ids", "generation", "ignored", "nodes", "open_calls")

    def __init__(self, events: Sequence[SessionEvent]) -> None:
        self._events = events
        self.nodes: list[int] = []
        self.generation = 0
        self.open_calls: dict[str, ToolCallBlock] = {}
        self.call_ids: set[str] = set()
        self.ignored: list[str] = []

    def push(self, event: SessionEvent) -> None:
        """
        Take in the next message of the log.

        Raises:
            InvariantViolation: It replaces nodes that are not there.
        """
        data = event.data
        if event.surface is not None:
            first, last = self._run(event.surface)
            self.nodes = [*self.nodes[:first], event.seq, *self.nodes[last + 1 :]]
            self.generation += 1
            return
        self.nodes.append(event.seq)
        kind = type(data)
        if kind is ToolResultEvent:
            if self.open_calls.pop(data.call_id, None) is None:
                self.ignored.append(data.call_id)
        elif kind is AssistantMessageEvent:
            for block in data.content:
                if type(block) is ToolCallBlock:
                    self.open_calls[block.id] = block
                    self.call_ids.add(block.id)

    # -- before the push ---------------------------------------------------------------------------------

    def check(self, data: Any, mark: Replace | None, sources: Sequence[int]) -> None:
        """
        Check a message before it is pushed.

        Args:
            data: The event data.
            mark: The run of nodes they take the place of, or None for the tail.
            sources: What the event names as its sources.

        Raises:
            InvariantViolation: The message is a result that no call waits for, or a replacement that names
                nodes that are not there or in the wrong order, leaves one out of `sources`, or puts calls and
                results out of balance; the message says which.
        """
        if mark is not None:
            self._check_replacement(data, mark, sources)
        elif type(data) is ToolResultEvent and data.call_id not in self.open_calls:
            known = data.call_id in self.call_ids
            what = "has its result already; one counts, the first" if known else "was never made"
            raise InvariantViolation(f"tool/result: call {data.call_id!r} {what}")

    def _check_replacement(self, data: Any, mark: Replace, sources: Sequence[int]) -> None:
        first, last = self._run(mark)
        shadowed = self.nodes[first : last + 1]
        cited = set(sources)
        missing = [seq for seq in shadowed if seq not in cited]
        if missing:
            raise InvariantViolation(
                f"replace {mark.first}…{mark.last}: sources must list every node that is shadowed; missing: {missing}"
            )
        if self._is_shortening(data, shadowed):
            return
        if type(data) is ToolResultEvent:
            raise InvariantViolation(
                f"replace {mark.first}…{mark.last}: a tool/result may take the place of exactly the result of the "
                f"same call ({data.call_id!r}), and of nothing else"
            )
        if calls_of(data):
            raise InvariantViolation(
                f"replace {mark.first}…{mark.last}: a message with tool calls cannot take the place of others, "
                "its calls would wait for results"
            )
        for cut, side in ((first, "before"), (last + 1, "behind")):
            if depth_of(self._events[seq].data for seq in self.nodes[:cut]):
                raise InvariantViolation(
                    f"replace {mark.first}…{mark.last}: the cut {side} the run separates a call from its result; "
                    "move it to where is_balanced says yes"
                )

    def _is_shortening(self, data: Any, shadowed: Sequence[int]) -> bool:
        if type(data) is not ToolResultEvent or len(shadowed) != 1:
            return False
        old = self._events[shadowed[0]].data
        return type(old) is ToolResultEvent and old.call_id == data.call_id

    def _run(self, mark: Replace) -> tuple[int, int]:
        first, last = self._position(mark, mark.first), self._position(mark, mark.last)
        if first > last:
            raise InvariantViolation(
                f"replace {mark.first}…{mark.last}: node {mark.first} stands behind node {mark.last} on the surface"
            )
        return first, last

    def _position(self, mark: Replace, seq: int) -> int:
        try:
            return self.nodes.index(seq)
        except ValueError:
            raise InvariantViolation(
                f"replace {mark.first}…{mark.last}: {seq} is not on the surface; it is no message, or shadowed already"
            ) from None


class Surface:
    """
    The nodes of a session's surface, read-only.

    Args:
        fold: Where they are kept.
    """

    __slots__ = ("_fold",)

    def __init__(self, fold: SurfaceFold) -> None:
        self._fold = fold

    @property
    def nodes(self) -> Sequence[int]:
        """Seqs of the messages, in the order in which a model reads them."""
        nodes = self._fold.nodes
        return View(nodes, len(nodes))

    @property
    def generation(self) -> int:
        """How often something was replaced; while it stays the same, `nodes` only grows."""
        return self._fold.generation

    def __len__(self) -> int:
        return len(self._fold.nodes)

    def __repr__(self) -> str:
        return f"<surface: {self._fold.nodes!r}>"
