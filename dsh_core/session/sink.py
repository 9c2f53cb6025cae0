"""
Who is told of a session's events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_core.session.event import SessionEvent
    from dsh_core.session.log import Session

__all__ = ["SessionSink"]


class SessionSink(Protocol):
    """Whoever has to know of a session's events."""

    def check(self, session: Session, event: SessionEvent) -> None:
        """Before the push; raising refuses the append."""

    @property
    def record(self) -> Callable[[Session, SessionEvent, bytes], None] | None:
        """Called right after the push, with the event's bytes; never raises. None while nobody writes."""

    def notify(self, session: Session, event: SessionEvent) -> None:
        """Tell observers; contains their failures."""

    def created(self, session: Session) -> None:
        """The session became live."""

    def disposed(self, session: Session) -> None:
        """The session is no longer live."""
