"""
The live sessions of a harness.

`create` makes one in memory and lists it. An owner that has more to prepare uses the parts: `header`,
`prepare`, `enter`, `detach`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsh_core.errors import HarnessError, SessionExists
from dsh_core.session.header import SessionHeader
from dsh_core.session.ids import check_session_id
from dsh_core.session.log import Session, SessionSink
from dsh_core.session.stream import now_ms

if TYPE_CHECKING:
    from dsh_core.session.event import SessionEvent

__all__ = ["SessionStore"]


class SessionStore:
    """
    Args:
        sink: Who is told of the events of every session, or None.
        clock: Epoch milliseconds.
    """

    def __init__(self, sink: SessionSink | None = None, *, clock: Callable[[], int] = now_ms) -> None:
        self._sink = sink
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def header(
        self,
        session_id: str | None = None,
        *,
        cwd: str | None = None,
        parent: str | None = None,
        seed_length: int = 0,
        spawned_by: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionHeader:
        """A header for a new session; an id is made up when left out, and has to be legal (P-5) when given."""
        return SessionHeader(
            id=check_session_id(session_id) if session_id is not None else uuid.uuid4().hex,
            created_at=self._clock(),
            cwd=cwd,
            parent=parent,
            seed_length=seed_length,
            spawned_by=spawned_by,
            agent=agent,
            metadata=metadata if metadata is not None else {},
        )

    def create(
        self,
        session_id: str | None = None,
        *,
        cwd: str | None = None,
        seed: Iterable[SessionEvent] | None = None,
        seed_length: int = 0,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """
        Make a session in memory and list it.

        Args:
            session_id: Its id; made up when left out.
            cwd: Absolute working directory.
            seed: Events it starts with; balanced, and ending outside a turn.
            seed_length: How many of them come from the session this one was forked from.
            parent: That session.
            metadata: JSON object of the embedder.

        Raises:
            SessionExists: The id is live.
            HarnessError: The seed ends inside a turn (`OPEN_TURN`) or is out of balance (`UNBALANCED`).
        """
        header = self.header(session_id, cwd=cwd, parent=parent, seed_length=seed_length, metadata=metadata)
        self._refuse_taken(header.id)
        session = self.prepare(header, seed or ())
        if session.unanswered_calls():
            raise HarnessError(f"the seed of {header.id!r} has calls without a result", "UNBALANCED")
        self.enter(session)
        return session

    def prepare(self, header: SessionHeader, seed: Iterable[SessionEvent]) -> Session:
        """
        Make a session that is not listed and tells nobody.

        Raises:
            SequenceError: The seed's seqs have a gap.
            HarnessError: The seed ends inside a turn (`OPEN_TURN`).
        """
        session = Session(header, seed=seed, clock=self._clock)
        if session.turn_open:
            raise HarnessError(f"the seed of {header.id!r} ends inside turn {session.open_turn}", "OPEN_TURN")
        return session

    def enter(self, session: Session) -> None:
        """
        List a prepared session and announce it.

        Raises:
            SessionExists: The id has become live meanwhile.
        """
        self._refuse_taken(session.id)
        self._sessions[session.id] = session
        if self._sink is not None:
            session.attach(self._sink)
            try:
                self._sink.created(session)
            except BaseException:
                del self._sessions[session.id]
                session.detach()
                raise

    def detach(self, session: Session) -> None:
        """Strike a session off the list and tell of its events no more."""
        if self._sessions.get(session.id) is not session:
            return
        del self._sessions[session.id]
        session.detach()
        if self._sink is not None:
            self._sink.disposed(session)

    def get(self, session_id: str) -> Session | None:
        """The live session of this id, or None."""
        return self._sessions.get(session_id)

    def list(self) -> list[Session]:
        """The live sessions, in the order in which they came."""
        return [*self._sessions.values()]

    def _refuse_taken(self, session_id: str) -> None:
        if session_id in self._sessions:
            raise SessionExists(f"session {session_id!r} is live already; choose another id")
