"""
A unified diff that stays cheap: only what lies between the first and the last changed line is compared.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

__all__ = ["unified_diff"]

_CONTEXT: Final = 3
_COMPARED: Final = 2_000
_MAX_CHARACTERS: Final = 64 * 1024


def unified_diff(before: str, after: str, name: str) -> str:
    """
    The difference of two texts.

    Args:
        before: The old text.
        after: The new text.
        name: The file, for the header.
    """
    old, new = before.split("\n"), after.split("\n")
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    first = max(0, start - _CONTEXT)
    last_old, last_new = len(old) - max(0, end - _CONTEXT), len(new) - max(0, end - _CONTEXT)
    body = _hunks(old[first:last_old], new[first:last_new], first)
    text = "\n".join([f"--- {name}", f"+++ {name}", *body])
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}\n[… diff cut …]"


def _common(left: list[str], right: list[str]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _hunks(old: list[str], new: list[str], shift: int) -> list[str]:
    if max(len(old), len(new)) > _COMPARED:  # comparing is quadratic; this is true, if not minimal
        head = f"@@ -{shift + 1},{len(old)} +{shift + 1},{len(new)} @@"
        return [head, *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    lines = list(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT))[2:]
    return [_shifted(line, shift) if line.startswith("@@") else line for line in lines]


def _shifted(head: str, shift: int) -> str:
    return re.sub(r"([-+])(\d+)", lambda m: f"{m[1]}{int(m[2]) + shift}", head)
