"""
The built-in limits of a turn: a number of steps, and a guard against going round in circles (L-17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from weakref import WeakKeyDictionary

import attrs

from dsh_core._markers import hookimpl
from dsh_core.decisions import Continue, ContinuationDecision, Stop
from dsh_core.session.events import ToolCallEvent, TurnStartEvent

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.session.log import Session

__all__ = ["RepeatGuard", "StepLimit"]

REPEATS: Final = 5


@attrs.define(eq=False)
class StepLimit:
    """A turn has at most `AgentOptions.max_steps` steps."""

    name: ClassVar[str] = "step-limit"

    @hookimpl(trylast=True)
    async def agent_turn_continuation(
        self, agent: Agent, step: int, decision: ContinuationDecision
    ) -> ContinuationDecision | None:
        """Stop a turn that would go on."""
        limit = agent.options.max_steps
        if not isinstance(decision, Continue) or step < limit:
            return None
        return Stop(f"the turn reached its limit of {limit} steps; send a message to go on", "MAX_STEPS")


@attrs.define
class _Row:
    """How often the last call was made in a row, as far as the log was read."""

    turn: int
    read: int
    call: tuple[str, str] | None = None
    times: int = 0

    def add(self, call: tuple[str, str] | None) -> None:
        """Count a call; None breaks the row."""
        self.times = self.times + 1 if call is not None and call == self.call else 1
        self.call = call


@attrs.define(eq=False)
class RepeatGuard:
    """A turn ends when the same call with the same arguments was made five times in a row."""

    name: ClassVar[str] = "repeat-guard"
    _rows: WeakKeyDictionary[Session, _Row] = attrs.field(factory=WeakKeyDictionary, init=False, repr=False)

    @hookimpl(trylast=True)
    async def agent_turn_continuation(
        self, agent: Agent, turn: int, decision: ContinuationDecision
    ) -> ContinuationDecision | None:
        """Stop a turn that would go on."""
        repeated = self._read(agent, turn)
        if repeated is None or not isinstance(decision, Continue):
            return None
        return Stop(
            f"the model called {repeated!r} {REPEATS} times in a row with the same arguments; "
            "tools that are meant to be polled are declared repeatable",
            "REPEATED_CALL",
        )

    def _read(self, agent: Agent, turn: int) -> str | None:
        """Read what is new in the log; returns the name of a call that was made too often in it."""
        session, events = agent.session, agent.session.events
        row = self._rows.get(session)
        if row is None or row.turn != turn:
            row = self._rows[session] = _Row(turn, _turn_start(session, turn))
        repeated = None
        for index in range(row.read, len(events)):
            data = events[index].data
            if type(data) is ToolCallEvent:
                row.add(None if _repeatable(agent, data.name) else (data.name, data.arguments))
                if row.times >= REPEATS:
                    repeated = data.name
        row.read = len(events)
        return repeated


def _turn_start(session: Session, turn: int) -> int:
    events = session.events
    for index in range(len(events) - 1, -1, -1):
        data = events[index].data
        if type(data) is TurnStartEvent and data.turn == turn:
            return index
    return len(events)


def _repeatable(agent: Agent, name: str) -> bool:
    definition = agent.harness.tools.get(name)
    return definition is not None and definition.repeatable
