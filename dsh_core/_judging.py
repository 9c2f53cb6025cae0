"""
What the base class of stores refuses, and in which words; what closes an interrupted turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsh_core.errors import SequenceError, SessionCorrupt, SessionNotFound, StorageError, UnsupportedFormat
from dsh_core.session import SessionEvent, SessionHeader, encode_event, interrupted_turn_closers
from dsh_core.session._json import freeze_json
from dsh_core.session.events import UnknownEvent
from dsh_core.session.header import FORMAT

if TYPE_CHECKING:
    from dsh_core._stored import Damage

__all__ = [
    "checked_metadata", "closing_events", "corrupt", "failing", "not_found", "out_of_sequence", "refuse_newer",
    "refuse_unknown", "same_event", "storage_error",
]  # fmt: skip


def same_event(one: SessionEvent, other: SessionEvent) -> bool:
    return encode_event(one) == encode_event(other)


def checked_metadata(session_id: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    frozen: Mapping[str, Any] = freeze_json(dict(metadata), where=f"metadata of session {session_id!r}")
    return frozen


def refuse_newer(header: SessionHeader) -> None:
    if header.format > FORMAT:
        raise UnsupportedFormat(
            f"session {header.id!r} was written by a newer version (format {header.format}, this one knows {FORMAT}); "
            "upgrade dsh-core to resume it; `dsh sessions show` and `export` work"
        )


def _is_foreign(event: SessionEvent) -> bool:
    """Whether this version must not go on from a log with this event, because it cannot know what it means."""
    return isinstance(event.data, UnknownEvent) and not event.ignorable


def refuse_unknown(session_id: str, events: Sequence[SessionEvent]) -> None:
    names = sorted({event.type for event in events if _is_foreign(event)})
    if names:
        raise UnsupportedFormat(
            f"session {session_id!r} was written by a newer version or with a plugin that is missing here: unknown "
            f"event type(s) {', '.join(names)}; upgrade dsh-core or install the plugin to resume it"
        )


def closing_events(events: Sequence[SessionEvent]) -> Sequence[SessionEvent]:
    """What closes the turn that a crash left open, as events (P-3)."""
    closers = interrupted_turn_closers(events)
    if not closers:
        return ()
    now = max(events[-1].time, time.time_ns() // 1_000_000)
    return [SessionEvent(len(events) + index, now, data) for index, data in enumerate(closers)]


@contextmanager
def failing(doing: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(doing, error) from error


def storage_error(doing: str, error: OSError) -> StorageError:
    return StorageError(f"cannot {doing}: {error}; nothing was changed, mend the cause and try again")


def not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"no session {session_id!r} in the store; `dsh sessions list` shows what there is")


def corrupt(session_id: str, damage: Damage) -> SessionCorrupt:
    return SessionCorrupt(
        f"session {session_id!r} is corrupt at {damage.position}: {damage.reason}; {damage.records_after} readable "
        f"record(s) follow. `dsh sessions repair {session_id}` keeps a backup and saves every readable record"
    )


def out_of_sequence(
    session_id: str, stored: int | None, events: Sequence[SessionEvent], seq: int, expected: int
) -> SequenceError:
    if expected == stored:
        return SequenceError(
            f"session {session_id!r}: the batch begins with seq {seq}, but the stored log goes on at {stored}; "
            "append every event once, in order"
        )
    return SequenceError(f"session {session_id!r}: seq {seq} follows {expected - 1} in a batch of {len(events)}")
