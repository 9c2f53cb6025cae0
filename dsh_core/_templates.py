"""
The template language of the system prompt: text with `{{variable}}` in it, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import attrs

__all__ = ["Template", "TemplateError", "compile_template"]

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_SHOWN: Final = 40


class TemplateError(ValueError):
    """A template is malformed, or a variable of it has no value."""


@attrs.frozen
class Template:
    """
    A template ready to render.

    Args:
        parts: Literal text and names of variables in turn, starting with text.
    """

    parts: tuple[str, ...]

    def render(self, variables: Mapping[str, str | None]) -> str:
        """
        Put the values in; they are not scanned again.

        Args:
            variables: Values by name; None stands for "known, but without a value here".

        Raises:
            TemplateError: A variable is unknown or has no value.
        """
        parts = self.parts
        if len(parts) == 1:
            return parts[0]
        return "".join(_value(part, variables) if at % 2 else part for at, part in enumerate(parts))


def _value(name: str, variables: Mapping[str, str | None]) -> str:
    if name not in variables:
        raise TemplateError(f"unknown variable {name!r}; known: {', '.join(sorted(variables)) or '(none)'}")
    value = variables[name]
    if value is None:
        raise TemplateError(f"variable {name!r} has no value here")
    return value


@lru_cache(maxsize=512)
def compile_template(text: str) -> Template:
    """
    Read a template.

    `{{{{` stands for two braces; `{{` without a `}}` somewhere behind it is plain text.

    Raises:
        TemplateError: A group is not `{{name}}`.
    """
    parts, literal, at = [], [], 0
    last = text.rfind("}}")
    while (start := text.find("{{", at)) >= 0:
        literal.append(text[at:start])
        if text.startswith("{{{{", start):
            literal.append("{{")
            at = start + 4
        elif start + 2 > last:
            literal.append("{{")
            at = start + 2
        else:
            end = text.index("}}", start + 2)
            parts += ["".join(literal), _name(text[start + 2 : end], text[start:])]
            literal, at = [], end + 2
    literal.append(text[at:])
    return Template((*parts, "".join(literal)))


def _name(inside: str, rest: str) -> str:
    if not _NAME.fullmatch(inside):
        shown = rest if len(rest) <= _SHOWN else rest[:_SHOWN] + "…"
        raise TemplateError(
            f"malformed group at {shown!r}; write {{{{name}}}} without spaces, or {{{{{{{{ for two literal braces"
        )
    return inside
