"""
Where a session's events go: checks before the push, the writer after it, then observers and watchers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_core.harness import Harness
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["HarnessSink"]

_log: Final = logging.getLogger("dsh")


class HarnessSink:
    """
    The sink of every session of a harness.

    Args:
        harness: The harness.
    """

    __slots__ = ("_hooks", "_observe", "_watchers", "check", "record")

    def __init__(self, harness: Harness) -> None:
        self._hooks = harness.hooks
        self._watchers = harness.watchers
        self._observe = harness.hooks.tell_event
        self.check = harness.hooks.check_event
        """Asks the invariants; what they raise goes to the appender."""
        self.record: Callable[[Session, SessionEvent, bytes], None] | None = None
        """Hands the encoded event to write-behind; None without a backend."""

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell the observers, then whoever watches this agent."""
        self._observe(session, event)
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
