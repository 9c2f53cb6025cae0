"""
The one rule for session ids (P-5).

Every entry point that takes an id asks here before it touches anything: stores, agents, front ends.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["MAX_SESSION_ID", "check_session_id"]

MAX_SESSION_ID: Final = 200

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_DRIVE: Final = re.compile(r"[A-Za-z]:")


def check_session_id(session_id: str) -> str:
    """
    Return `session_id` if it is legal: 1 to 200 characters that cannot be taken for a path.

    Raises:
        ValueError: Empty, too long, `.`, `..`, a path separator, a drive prefix, a control character, or
            text that is not valid Unicode; the message says which.
    """
    if type(session_id) is str and _PLAIN.fullmatch(session_id):
        return session_id
    fault = _fault(session_id)
    if fault is not None:
        shown = repr(session_id)
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        raise ValueError(f"session id {shown} {fault}; choose 1 to {MAX_SESSION_ID} characters that form no path")
    return session_id


def _fault(session_id: object) -> str | None:
    if not isinstance(session_id, str):
        return f"is {type(session_id).__name__}, not text"
    if not session_id:
        return "is empty"
    if len(session_id) > MAX_SESSION_ID:
        return f"has {len(session_id)} characters"
    if session_id in (".", ".."):
        return "is the name of a directory"
    if "/" in session_id or "\\" in session_id:
        return "contains a path separator"
    if _DRIVE.match(session_id):
        return "begins with a drive letter"
    for character in session_id:
        category = unicodedata.category(character)
        if category == "Cc":
            return f"contains the control character U+{ord(character):04X}"
        if category == "Cs":
            return f"contains the lone surrogate U+{ord(character):04X}"
    return None
