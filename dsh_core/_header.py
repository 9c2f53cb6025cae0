"""
The wire form of a session's header (S-9).

Members that have their default value are left out; members of a later version are ignored on reading.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dsh_core.session import SessionHeader

__all__ = ["decode_header", "encode_header"]

_TEXTS: Final = ("cwd", "parent", "spawned_by", "agent")


def encode_header(header: SessionHeader) -> bytes:
    """The header as one compact JSON object."""
    members: dict[str, Any] = {"format": header.format, "id": header.id, "created_at": header.created_at}
    for name in ("cwd", "parent", "seed_length", "spawned_by", "agent", "metadata"):
        value = getattr(header, name)
        if value:
            members[name] = value
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
    values: dict[str, Any] = {
        "id": _member(members, "id", str),
        "format": _member(members, "format", int),
        "created_at": _member(members, "created_at", int),
        "seed_length": _member(members, "seed_length", int, 0),
        "metadata": _member(members, "metadata", dict, {}),
    }
    for name in _TEXTS:
        if members.get(name) is not None:
            values[name] = _member(members, name, str)
    return SessionHeader(**values)


def _member(members: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = members.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"header member {name!r} is {value!r}, not of type {kind.__name__}")
    return value
