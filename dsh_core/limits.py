"""
The built-in plugins that end a turn which would not end by itself (L-17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import attrs

from dsh_core._markers import hookimpl
from dsh_core.decisions import ContinuationDecision, Continue, Stop
from dsh_core.session.events import ToolCallEvent, TurnStartEvent

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.session.log import Session

__all__ = ["RepeatGuard", "StepLimit"]

REPEATS: Final = 5
"""How often in a row the same call may be made."""


class StepLimit:
    """The plugin `step-limit`: at most `AgentOptions.max_steps` steps a turn."""

    name = "step-limit"

    @hookimpl(trylast=True)
    def agent_turn_continuation(self, agent: Agent, step: int, decision: ContinuationDecision) -> Stop | None:
        """Stop where the next step would be one too many."""
        if isinstance(decision, Continue) and step >= agent.options.max_steps:
            return Stop(f"the turn reached its limit of {agent.options.max_steps} steps", "MAX_STEPS")
        return None


@attrs.define
class _Streak:
    """The same call of a turn, how often in a row, and how far the log has been read."""

    turn: int
    read: int
    call: tuple[str, str] | None = None
    length: int = 0

    def add(self, call: tuple[str, str] | None) -> None:
        """Count a call; None breaks the row."""
        self.length = self.length + 1 if call is not None and call == self.call else 1
        self.call = call


class RepeatGuard:
    """The plugin `repeat-guard`: the same call with the same arguments five times in a row ends the turn."""

    name = "repeat-guard"

    def __init__(self) -> None:
        self._streaks: WeakKeyDictionary[Session, _Streak] = WeakKeyDictionary()

    @hookimpl(trylast=True)
    def agent_turn_continuation(self, agent: Agent, turn: int, decision: ContinuationDecision) -> Stop | None:
        """Stop a turn that goes round in a circle; tools marked `repeatable` are exempt."""
        streak = self._streaks.get(agent.session)
        if streak is None or streak.turn != turn:
            streak = self._streaks[agent.session] = _Streak(turn, _start_of(agent.session, turn))
        repeated = _repeated(agent, streak)
        if repeated is None or not isinstance(decision, Continue):
            return None
        return Stop(
            f"the model made the same call of {repeated!r} {REPEATS} times in a row; a tool that is meant to be "
            "polled has to be declared repeatable",
            "REPEATED_CALL",
        )


def _repeated(agent: Agent, streak: _Streak) -> str | None:
    """Read what is new in the log; returns the tool that was called too often in it."""
    events, repeated = agent.session.events, None
    for index in range(streak.read, len(events)):
        data = events[index].data
        if type(data) is ToolCallEvent:
            streak.add(None if _repeatable(agent, data.name) else (data.name, data.arguments))
            if streak.length >= REPEATS:
                repeated = data.name
    streak.read = len(events)
    return repeated


def _repeatable(agent: Agent, name: str) -> bool:
    definition = agent.harness.tools.get(name)
    return definition is not None and definition.repeatable


def _start_of(session: Session, turn: int) -> int:
    """Where a turn begins; read from the end, because a resumed log may be long."""
    events = session.events
    for index in range(len(events) - 1, -1, -1):
        data = events[index].data
        if type(data) is TurnStartEvent and data.turn == turn:
            return index
    return len(events)
