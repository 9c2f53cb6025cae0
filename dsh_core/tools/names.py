"""
The name under which a tool goes out to a model (T-4).
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

__all__ = ["wire_name"]

_LEGAL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")


@lru_cache(maxsize=4096)
def wire_name(name: str) -> str:
    """
    The legal form of a tool's name, a pure function of the name (T-4).

    Log, gates and rules use the tool's own name; the wire name exists only in requests.

    Args:
        name: The tool's own name, any text.

    Returns:
        The name itself if it is 1 to 64 characters of `A-Z a-z 0-9 _ -`, else its legal characters and
        eight digits of its SHA-256.
    """
    if _LEGAL.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL_CHARACTER.sub('_', name)[:55]}_{digest}"
