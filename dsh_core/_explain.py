"""
Where a value of the configuration comes from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import attrs

from dsh_core._faults import nearest
from dsh_core._sections import PluginsConfig
from dsh_core.errors import ConfigError

__all__ = ["Explanation", "member_of", "origin_of", "parts_of", "source_of"]


@attrs.frozen
class Explanation:
    """A value, and where it comes from: a file, an environment variable, `overrides`, or `default`."""

    key: str
    value: Any = attrs.field(hash=False)
    origin: str


def origin_of(origins: Mapping[str, str], path: str) -> str:
    """The source of a key, or all sources of what is in a table."""
    if path in origins:
        return origins[path]
    inner = [source for key, source in origins.items() if key.startswith(f"{path}.")]
    return " and ".join(dict.fromkeys(inner)) or "default"


def source_of(origins: Mapping[str, str], path: str) -> str:
    """The source to blame for a fault: that of the key, else of what is round it."""
    while path:
        origin = origin_of(origins, path)
        if origin != "default":
            return f"{origin}: "
        path = path.rpartition("[")[0] if path.endswith("]") else path.rpartition(".")[0]
    return ""


def parts_of(key: str) -> list[str]:
    """The parts of a key path as TOML reads it."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"{key!r} is not a key path; write it like plugins.compact.threshold") from None
    parts: list[str] = []
    while isinstance(table, dict) and len(table) == 1:
        part, table = next(iter(table.items()))
        parts.append(part)
    return parts


def member_of(value: Any, part: str, path: str) -> Any:
    """One part of a configuration value; the error names the nearest."""
    if isinstance(value, PluginsConfig):
        members: Mapping[str, Any] = {key: getattr(value, key) for key in PluginsConfig.own_keys} | dict(value.tables)
    elif attrs.has(type(value)):
        members = {f.name: getattr(value, f.name) for f in attrs.fields(type(value)) if not f.name.startswith("_")}
    elif isinstance(value, Mapping):
        members = value
    else:
        members = {str(index): each for index, each in enumerate(value)} if isinstance(value, tuple | list) else {}
    if part not in members:
        raise ConfigError(f"{path} is not set and has no default here; {nearest(part, members)}")
    return members[part]
