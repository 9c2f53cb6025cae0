"""
Where a session's events go: checks before the push, the writer after it, then observers and watchers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dsh_core._observe import check, observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_core.harness import Harness
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["HarnessSink"]

_log: Final = logging.getLogger("dsh")


class HarnessSink:
    """
    The sink of every session of a harness.

    The two hooks of every event are called as `Hooks` does it, but without its frames.

    Args:
        harness: The harness.
    """

    __slots__ = ("_hooks", "_scoped", "_shared", "_watchers", "record")

    def __init__(self, harness: Harness) -> None:
        self._hooks = harness.hooks
        self._scoped, self._shared = harness.hooks.plans
        self._watchers = harness.watchers
        self.record: Callable[[Session, SessionEvent, bytes], None] | None = None
        """Hands the encoded event to write-behind; None without a backend."""

    def check(self, session: Session, event: SessionEvent) -> None:
        """Ask the invariants; what they raise goes to the appender."""
        plan = self._scoped.get(session.id, self._shared)["session_append"]
        if plan is not None:
            check(plan, (session, event))

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell the observers, then whoever watches this agent."""
        plan = self._scoped.get(session.id, self._shared)["session_event"]
        if plan is not None:
            observe(plan, (session, event))
        if self._watchers:
            for watch in self._watchers.get(session.id, ()):
                try:
                    watch(event)
                except Exception:  # noqa: BLE001 - a watcher is a display: it must not reach the appender
                    _log.exception("a watcher of session %s failed", session.id)

    def created(self, session: Session) -> None:
        """Announce a live session."""
        self._hooks.session_created(session=session)

    def disposed(self, session: Session) -> None:
        """Announce that a session is no longer live."""
        self._hooks.session_disposed(session=session)
