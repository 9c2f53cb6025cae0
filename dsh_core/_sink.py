"""
Where a session's events go: checks before the push, the writer after it, then observers and watchers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dsh_core.session.codec import release_bytes

if TYPE_CHECKING:
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

    __slots__ = ("_harness", "_hooks")

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._hooks = harness.hooks

    def check(self, session: Session, event: SessionEvent) -> None:
        """Ask the invariants; what they raise goes to the appender."""
        self._hooks.session_append(session=session, event=event)

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        """Hand the encoded event to write-behind."""
        writer = self._harness.writer
        if writer is not None:
            writer.record(session, event, encoded)
        else:
            release_bytes(event)

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell the observers, then whoever watches this agent."""
        self._hooks.session_event(session=session, event=event)
        watchers = self._harness.watchers.get(session.id)
        if watchers:
            for watch in watchers:
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
