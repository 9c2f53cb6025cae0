"""
Names of files and folders: a part a person can read, and a hash that makes the name unique.

Names differ also where a disk ignores case, and stay far below 255 bytes (P-5).
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import Final

__all__ = ["SUFFIX", "file_stem", "folder_name", "id_from_stem"]

SUFFIX: Final = ".jsonl"

_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_WIDTH: Final = 80
_HASH: Final = 32


def file_stem(session_id: str) -> str:
    """The name of a session's log without suffix."""
    return f"{_readable(session_id)}-{_hash(session_id)}"


def folder_name(cwd: str | None) -> str:
    """The folder of the sessions of one working directory; different real paths never share one."""
    if cwd is None:
        return "no-directory"
    path = os.path.realpath(cwd)
    return f"{_readable(os.path.basename(path) or 'root')}-{_hash(path)}"


def id_from_stem(stem: str) -> str:
    """The session id a log's name tells, as far as it tells one."""
    readable, _, digest = stem.rpartition("-")
    return readable if readable and _hash(readable) == digest else stem


def _readable(text: str) -> str:
    return _UNREADABLE.sub("_", text)[:_WIDTH].lstrip(".-") or "_"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]
