"""
The templates of the system prompt: `{{name}}` and nothing else, strictly (section 6 of the semantics).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dsh_core.errors import HarnessError

__all__ = ["VARIABLE", "render_template"]

VARIABLE: Final = re.compile(r"[a-z][a-z0-9_]*")


@lru_cache(maxsize=256)
def _parts(text: str) -> tuple[tuple[str, str], ...]:
    """The pieces of a template: ("text", …), ("variable", name) or ("malformed", group)."""
    pieces: list[tuple[str, str]] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        pieces.append(("text", text[position:start]))
        if text.startswith("{{{{", start):
            pieces.append(("text", "{{"))
            position = start + 4
            continue
        end = text.find("}}", start + 2)
        if end < 0:
            pieces.append(("text", text[start:]))
            return tuple(pieces)
        inner = text[start + 2 : end]
        legal = VARIABLE.fullmatch(inner) is not None and not text.startswith("}", end + 2)
        pieces.append(("variable", inner) if legal else ("malformed", text[start : end + 2]))
        position = end + 2
    pieces.append(("text", text[position:]))
    return tuple(pieces)


def render_template(text: str, variables: Mapping[str, str | None], section: str) -> str:
    """
    Put values in the place of variables; values are not scanned again.

    Args:
        text: The template. `{{{{` is a literal `{{`; a `{{` without a later `}}` is literal.
        variables: Values by name; None means registered but without a value.
        section: Name of the section, for errors.

    Raises:
        HarnessError: A malformed group, an unknown variable or one without a value (`PROMPT`).
    """
    if "{{" not in text:
        return text
    rendered = []
    for kind, piece in _parts(text):
        if kind == "text":
            rendered.append(piece)
        elif kind == "malformed":
            raise _fault(section, f"{piece!r} is malformed; write {{{{name}}}}, or {{{{{{{{ for two braces")
        else:
            rendered.append(_value(piece, variables, section))
    return "".join(rendered)


def _value(name: str, variables: Mapping[str, str | None], section: str) -> str:
    if name not in variables:
        known = ", ".join(sorted(variables)) or "(none)"
        raise _fault(section, f"unknown variable {name!r}; known: {known}")
    value = variables[name]
    if value is None:
        raise _fault(section, f"variable {name!r} has no value here")
    return value


def _fault(section: str, what: str) -> HarnessError:
    return HarnessError(f"system prompt section {section!r}: {what}", "PROMPT")
