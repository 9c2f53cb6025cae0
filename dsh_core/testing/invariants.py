"""
The rules of the log, checked while it grows (S-12).

`invariants` is one plugin for any number of harnesses: what it knows of a session it has folded from the log,
so it may be loaded at any time, and it forgets with the session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from dsh_core._markers import hookimpl
from dsh_core.errors import InvariantViolation
from dsh_core.testing._fold import LogState
from dsh_core.testing._rules import Broken, check

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["Invariants", "invariants"]


class Invariants:
    """
    Refuses every event that would break a rule of the log, and reports every status out of order.

    Calling it gives the plugin itself, so `plugins=[invariants]` and `plugins=[invariants()]` are the same.

    Args:
        report: Also told of each violation: an observer's error is contained, so that a broken status order
            would otherwise be seen in logs and `agent_error` only.
    """

    name = "invariants"

    def __init__(self, report: Callable[[InvariantViolation], object] | None = None) -> None:
        self._report = report
        self._logs: WeakKeyDictionary[Session, LogState] = WeakKeyDictionary()
        self._statuses: WeakKeyDictionary[Session, str] = WeakKeyDictionary()

    def __call__(self) -> Invariants:
        return self

    @hookimpl
    def session_append(self, session: Session, event: SessionEvent) -> None:
        """
        Check one event against everything before it; the cost does not depend on the length of the log.

        Raises:
            InvariantViolation: Naming event, session and the rule.
        """
        try:
            check(self._state(session), session, event)
        except Broken as broken:
            raise self._violation(f"event {event.seq} ({event.type}) of session {session.id!r}: {broken}") from None

    @hookimpl
    def agent_status(self, agent: Agent, status: str) -> None:
        """
        Check that a status is announced only when it changes, and none after `disposed`.

        Raises:
            InvariantViolation: Naming both.
        """
        before = self._statuses.get(agent.session)
        if before in (status, "disposed"):
            raise self._violation(f"agent {agent.id!r} announced status {status!r} after {before!r}")
        self._statuses[agent.session] = status

    def _violation(self, message: str) -> InvariantViolation:
        violation = InvariantViolation(message)
        if self._report is not None:
            self._report(violation)
        return violation

    def _state(self, session: Session) -> LogState:
        state = self._logs.get(session)
        if state is None:
            state = self._logs[session] = LogState(session.header.seed_length)
        state.follow(session)
        return state


invariants: Final = Invariants()
"""The plugin."""
