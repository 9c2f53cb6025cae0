"""
The built-in plugins that end a turn which would not end by itself (L-17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
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
    """The same call, how often in a row, and how far the log has been read."""

    read: int = 0
    call: tuple[str, str] | None = None
    length: int = 0


class RepeatGuard:
    """The plugin `repeat-guard`: the same call with the same arguments five times in a row ends the turn."""

    name = "repeat-guard"

    def __init__(self) -> None:
        self._streaks: WeakKeyDictionary[Session, _Streak] = WeakKeyDictionary()

    @hookimpl(trylast=True)
    def agent_turn_continuation(self, agent: Agent, decision: ContinuationDecision) -> Stop | None:
        """Stop a turn that goes round in a circle; tools marked `repeatable` are exempt."""
        streak = self._streaks.setdefault(agent.session, _Streak())
        self._read(agent, streak)
        if isinstance(decision, Continue) and streak.call is not None and streak.length >= REPEATS:
            name = streak.call[0]
            return Stop(f"the model made the same call of {name!r} {streak.length} times in a row", "REPEATED_CALL")
        return None

    def _read(self, agent: Agent, streak: _Streak) -> None:
        events = agent.session.events
        for index in range(streak.read, len(events)):
            data = events[index].data
            if type(data) is TurnStartEvent:
                streak.call, streak.length = None, 0
            elif type(data) is ToolCallEvent:
                self._count(agent, streak, data)
        streak.read = len(events)

    def _count(self, agent: Agent, streak: _Streak, data: ToolCallEvent) -> None:
        definition = agent.harness.tools.get(data.name)
        if definition is not None and definition.repeatable:
            streak.call, streak.length = None, 0
        elif streak.call == (data.name, data.arguments):
            streak.length += 1
        else:
            streak.call, streak.length = (data.name, data.arguments), 1
