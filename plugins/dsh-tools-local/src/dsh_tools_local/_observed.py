"""
What each session has seen of which file, so that nothing is overwritten unseen.

A file counts as unchanged when its content is, whatever its times say. Files too large to hash are compared
by size and times.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Final

import attrs

from dsh_core.errors import ToolError
from dsh_tools_local._paths import show

__all__ = ["HASH_LIMIT", "Observed", "Version"]

HASH_LIMIT: Final = 64 << 20


@attrs.frozen
class Version:
    """
    One state of a file.

    Args:
        size: Bytes.
        digest: Of the content, or of the times of a file that is too large.
    """

    size: int
    digest: str

    @classmethod
    def of(cls, content: bytes) -> Version:
        """The version of a content."""
        return cls(len(content), hashlib.blake2b(content, digest_size=20).hexdigest())

    @classmethod
    def of_large(cls, stat: os.stat_result) -> Version:
        """The version of a file that is not hashed."""
        return cls(stat.st_size, f"{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}")


class Observed:
    """Versions by session and real path."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Version]] = {}
        self._lock = threading.Lock()

    def note(self, session_id: str, real_path: str, version: Version) -> None:
        """The session has seen, or written, this version."""
        with self._lock:
            self._seen.setdefault(session_id, {})[real_path] = version

    def forget(self, session_id: str) -> None:
        """The session is gone."""
        with self._lock:
            self._seen.pop(session_id, None)

    def check(self, session_id: str, real_path: str, version: Version) -> None:
        """
        Whether the session may change a file that is in this version now.

        Raises:
            ToolError: It has never seen the file, or another version of it.
        """
        with self._lock:
            seen = self._seen.get(session_id, {}).get(real_path)
        if seen is None:
            raise ToolError(
                f"{show(real_path)} exists and was not read in this session; read it first, then change it",
                "NOT_READ",
            )
        if seen != version:
            raise ToolError(
                f"{show(real_path)} was changed by somebody else since it was read; read it again, then change it",
                "CHANGED_SINCE_READ",
            )
