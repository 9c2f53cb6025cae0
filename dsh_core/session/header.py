"""
The header of a session: what is known of it before its first event (S-9).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import attrs

from dsh_core.session._json import freeze_json

__all__ = ["FORMAT", "SessionHeader"]

FORMAT: Final = 1
"""The format this version writes."""


def _absolute(_: object, __: object, cwd: str | None) -> None:
    if cwd is not None and not os.path.isabs(cwd):
        raise ValueError(f"the working directory of a session must be absolute, not {cwd!r}")


def _frozen_metadata(value: Mapping[str, Any]) -> Any:
    return freeze_json(value, where="session metadata")


@attrs.frozen
class SessionHeader:
    """
    Written once, outside the log.

    Args:
        id: Id of the session.
        format: Version of the log format.
        created_at: Epoch milliseconds.
        cwd: Absolute working directory, or None.
        parent: The session this one was forked from.
        seed_length: How many of its events come from there; given, not inferred.
        spawned_by: Session of the parent agent.
        agent: Label of the agent.
        metadata: JSON object of the embedder.
    """

    id: str
    format: int = FORMAT
    created_at: int = 0
    cwd: str | None = attrs.field(default=None, validator=_absolute)
    parent: str | None = None
    seed_length: int = 0
    spawned_by: str | None = None
    agent: str | None = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_metadata, hash=False)
