"""
The header of a session: what is known of it before its first event (S-9).

In the wire form members that have their default value are left out; members of a later version are ignored
on reading.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from dsh_core.session._json import FrozenDict, freeze_json, scrub

__all__ = ["FORMAT", "SessionHeader", "decode_header", "encode_header"]

FORMAT: Final = 1
"""The format this version writes."""


def _is(kind: type, *, optional: bool = False) -> Any:
    def check(_: object, attribute: Any, value: object) -> None:
        if type(value) is not kind and not (optional and value is None):
            raise ValueError(f"header member {attribute.name!r} is {value!r}, not of type {kind.__name__}")

    return check


def _absolute(_: object, __: object, cwd: str | None) -> None:
    if cwd is not None and not os.path.isabs(cwd):
        raise ValueError(f"the working directory of a session must be absolute, not {cwd!r}")


def _frozen_metadata(value: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"header member 'metadata' is {value!r}, not of type dict")
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
        metadata: JSON object of the embedder; the only member that ever changes, through the store's `update`.

    Raises:
        ValueError: A member has the wrong type, or `cwd` is relative.
        NotSerializable: JSON cannot hold the metadata.
    """

    id: str = attrs.field(validator=_is(str))
    format: int = attrs.field(default=FORMAT, validator=_is(int))
    created_at: int = attrs.field(default=0, validator=_is(int))
    cwd: str | None = attrs.field(default=None, validator=[_is(str, optional=True), _absolute])
    parent: str | None = attrs.field(default=None, validator=_is(str, optional=True))
    seed_length: int = attrs.field(default=0, validator=_is(int))
    spawned_by: str | None = attrs.field(default=None, validator=_is(str, optional=True))
    agent: str | None = attrs.field(default=None, validator=_is(str, optional=True))
    metadata: Mapping[str, Any] = attrs.field(factory=FrozenDict, converter=_frozen_metadata, hash=False)


_NAMES: Final = tuple(attrs.fields_dict(SessionHeader))
_REQUIRED: Final = ("format", "id", "created_at")


def encode_header(header: SessionHeader) -> bytes:
    """The header as one compact JSON object."""
    members: dict[str, Any] = {name: getattr(header, name) for name in _REQUIRED}
    for name in _NAMES:
        value = getattr(header, name)
        if name not in _REQUIRED and value:
            # A directory's name need not be text; what of it is not can only be told as U+FFFD.
            members[name] = scrub(value) if name == "cwd" else value
    return msgspec.json.encode(members)


def decode_header(record: bytes) -> SessionHeader:
    """
    Read a header.

    Raises:
        ValueError: It is not one; the message names the member.
    """
    members = msgspec.json.decode(record)
    if not isinstance(members, dict):
        raise ValueError("a header is a JSON object")
    missing = [name for name in _REQUIRED if name not in members]
    if missing:
        raise ValueError(f"header member {missing[0]!r} is missing")
    return SessionHeader(**{name: members[name] for name in _NAMES if members.get(name) is not None})
