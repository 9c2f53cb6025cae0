"""
Who is told of a session's events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dsh_core.session.event import SessionEvent
    from dsh_core.session.log import Session

__all__ = ["SessionSink"]


class SessionSink(Protocol):
    """Whoever has to know of a session's events."""

    def check(self, session: Session, event: SessionEvent) -> None:
        """Before the push; raising refuses the append."""

    def record(self, session: Session, event: SessionEvent, encoded: bytes) -> None:
        """Right after the push, with the event's bytes; never raises."""

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell observers; contains their failures."""

    def created(self, session: Session) -> None:
        """The session became live."""

    def disposed(self, session: Session) -> None:
        """The session is no longer live."""
