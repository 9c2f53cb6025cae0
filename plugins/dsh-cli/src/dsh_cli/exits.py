"""
Exit codes, and which error gives which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dsh_core import TurnResult

__all__ = [
    "BROKEN_PIPE",
    "COMPLETED",
    "DENIED",
    "FAILED",
    "INTERRUPTED",
    "LIMIT",
    "USAGE",
    "code_of_error",
    "code_of_turn",
]

COMPLETED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
DENIED: Final = 3
LIMIT: Final = 4
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_OURS: Final = frozenset({"STORAGE", "LLM", "HOOK"})


def code_of_turn(result: TurnResult, denied: bool) -> int:
    """
    The exit code of a finished turn.

    Args:
        result: The turn.
        denied: Whether a call was denied because nobody could be asked.
    """
    kind = result.reason.kind
    if kind == "completed":
        return DENIED if denied else COMPLETED
    if kind in ("limit", "max-tokens"):
        return LIMIT
    if kind in ("aborted", "interrupted", "disposed"):
        return INTERRUPTED
    if kind == "error" and result.reason.code in ("NO_MODEL", "NO_ADAPTER"):
        return USAGE
    return FAILED


def code_of_error(error: Exception) -> int:
    """The exit code for an error that kept a turn from happening."""
    from dsh_core import (
        ConfigError,
        HarnessError,
        LlmError,
        PluginError,
        SessionCorrupt,
        SessionExists,
        SessionLocked,
        SessionNotFound,
        StorageError,
        UnsupportedFormat,
    )

    usage = (
        ConfigError,
        PluginError,
        SessionCorrupt,
        SessionExists,
        SessionLocked,
        SessionNotFound,
        StorageError,
        UnsupportedFormat,
        ValueError,
    )
    if isinstance(error, usage):
        return USAGE
    if isinstance(error, LlmError):
        return USAGE if error.code in ("NO_MODEL", "NO_ADAPTER") else FAILED
    return USAGE if isinstance(error, HarnessError) and error.code not in _OURS else FAILED
