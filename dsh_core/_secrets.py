"""
What looks like a secret: by its name, or by the shape of its text.

Secrets are references (`api_key_env = "NAME"`), never values, so that configuration files, logs, errors and
exports cannot leak them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsh_core._faults import dotted

__all__ = ["looks_like_secret_name", "looks_like_secret_text", "secret_paths"]

# Texts, not compiled patterns: `re` compiles and keeps them at their first use, and most processes never look.
_NAME = (
    r"(?i)(?:^|[_\-.])(?:(?:api|access|private|secret|signing|encryption)[_-]?keys?|(?:auth|access|bearer|refresh)[_-]?token"
    r"|apikey|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|authorization|client[_-]?secret)$"
)
_TEXT = (
    r"(?:^|[\s\"'=:])(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|glpat-[\w-]{16,})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?i:^Bearer\s+\S{8,})"
)


def looks_like_secret_name(name: str) -> bool:
    """Whether the name says that it is a secret: `api_key` and `token` do; `max_tokens`, `api_key_env` do not."""
    return re.search(_NAME, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def looks_like_secret_text(text: str) -> bool:
    """Whether text has the shape of a well-known kind of key."""
    return re.search(_TEXT, text) is not None


def secret_paths(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The key paths under which a secret is written down."""
    for key, value in values.items():
        yield from _secrets_in(value, dotted(path, str(key)), named=looks_like_secret_name(str(key)))


def _secrets_in(value: Any, path: str, *, named: bool) -> Iterator[str]:
    if isinstance(value, str):
        if value and (named or looks_like_secret_text(value)):
            yield path
    elif isinstance(value, Mapping):
        yield from secret_paths(value, path)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for index, each in enumerate(value):
            yield from _secrets_in(each, f"{path}[{index}]", named=named)
