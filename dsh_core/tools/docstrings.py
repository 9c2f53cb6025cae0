"""
Descriptions out of docstrings: Google, NumPy and Sphinx style.

Reads what a model should know, the text and the parameters, and leaves out what only a programmer needs
(returns, raises, see also). Never raises: a docstring that follows no style is description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Final

import attrs

__all__ = ["Docstring", "parse_docstring"]

_PARAMETERS: Final = frozenset(
    {
        "args", "arguments", "attributes", "keyword args", "keyword arguments", "other parameters", "parameters",
        "params",
    }
)  # fmt: skip
_LEFT_OUT: Final = frozenset(
    {"raises", "references", "return", "returns", "see also", "todo", "warns", "yield", "yields"}
)
_KEPT: Final = frozenset(
    {"caution", "example", "examples", "hint", "important", "note", "notes", "tip", "warning", "warnings"}
)
_SECTIONS: Final = _PARAMETERS | _LEFT_OUT | _KEPT

# Texts, not compiled patterns: `re` compiles and keeps them at their first use.
_GOOGLE_ENTRY: Final = r"(?s)\*{0,2}(?P<names>\w+)\s*(?:\([^)]*(?:\([^)]*\)[^)]*)*\))?\s*:\s*(?P<text>.*)"
_NUMPY_ENTRY: Final = r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?"
_SPHINX_FIELD: Final = r":(?P<field>\w+)(?:\s+(?P<argument>[^:]*))?:\s*(?P<text>.*)"
_SPHINX_PARAMETERS: Final = frozenset({"arg", "argument", "key", "keyword", "kwarg", "param", "parameter"})
_SPHINX_FIELDS: Final = _SPHINX_PARAMETERS | frozenset(
    {"except", "exception", "raise", "raises", "return", "returns", "rtype", "type", "vartype", "yield", "yields"}
)
_BULLET: Final = r"(?:[-*+]|\d+[.)])\s"


@attrs.frozen
class Docstring:
    """
    What a docstring says to a model.

    Args:
        description: The text before and between the sections.
        parameters: Text per parameter.
    """

    description: str = ""
    parameters: dict[str, str] = attrs.field(factory=dict, hash=False)


def parse_docstring(text: str | None) -> Docstring:
    """
    Read a docstring in any of the three styles, also mixed.

    Args:
        text: The docstring as it stands in the source, or None.
    """
    found = Docstring()
    prose: list[str] = []
    lines = inspect.cleandoc(text or "").splitlines()
    while lines:
        if _is_sphinx_field(lines[0]):
            lines = _take_sphinx_field(lines, found)
        elif (title := _section_title(lines)) is not None:
            lines = _take_section(title, lines, found, prose)
        else:
            prose.append(lines.pop(0))
    return attrs.evolve(found, description=_collapse(prose))


def _section_title(lines: list[str]) -> str | None:
    """The section that begins with these lines: `Args:` or a title that is underlined."""
    line = lines[0].rstrip()
    if line.endswith(":") and line[:-1].lower() in _SECTIONS:
        return line[:-1].lower()
    underlined = len(lines) > 1 and len(lines[1].rstrip()) >= 3 and set(lines[1].rstrip()) <= {"-", "="}
    return line.lower() if underlined and line.lower() in _SECTIONS else None


def _take_section(title: str, lines: list[str], found: Docstring, prose: list[str]) -> list[str]:
    """Take one section off the front of `lines` and return the rest."""
    underlined = not lines[0].rstrip().endswith(":")
    head, rest = lines[0].rstrip(" :") + ":", lines[2 if underlined else 1 :]
    length = _numpy_length(rest) if underlined else _indented_length(rest)
    body, rest = rest[:length], rest[length:]
    if title in _PARAMETERS:
        found.parameters.update(_numpy_entries(body) if underlined else _google_entries(body))
    elif title in _KEPT:
        prose.extend(["", head, *(f"    {line}" if underlined and line.strip() else line for line in body)])
    return rest


def _indented_length(lines: list[str]) -> int:
    for number, line in enumerate(lines):
        if line.strip() and not line[0].isspace():
            return number
    return len(lines)


def _numpy_length(lines: list[str]) -> int:
    for number in range(len(lines)):
        following = lines[number + 1].rstrip() if number + 1 < len(lines) else ""
        if lines[number].strip() and len(following) >= 3 and set(following) <= {"-", "="}:
            return number
        if _is_sphinx_field(lines[number]) or _section_title(lines[number:]) is not None:
            return number
    return len(lines)


def _google_entries(lines: list[str]) -> dict[str, str]:
    """`name (type): text`, continued on lines that are indented further."""
    entries: dict[str, str] = {}
    for entry in _paragraphs_by_indent(inspect.cleandoc("\n".join(["", *lines])).splitlines()):
        match = re.fullmatch(_GOOGLE_ENTRY, "\n".join(entry))
        if match:
            entries[match["names"]] = _entry_text(match["text"].splitlines())
    return entries


def _numpy_entries(lines: list[str]) -> dict[str, str]:
    """`name : type` or `a, b : type`, with the text on indented lines."""
    entries: dict[str, str] = {}
    for entry in _paragraphs_by_indent(lines):
        match = re.fullmatch(_NUMPY_ENTRY, entry[0].strip())
        if match:
            text = _entry_text(entry[1:])
            entries.update((name.strip().lstrip("*"), text) for name in match["names"].split(",") if text)
    return entries


def _paragraphs_by_indent(lines: Iterable[str]) -> list[list[str]]:
    """Group lines: each that is not indented begins a group, what is indented or blank belongs to it."""
    groups: list[list[str]] = []
    for line in lines:
        if line.strip() and not line[0].isspace():
            groups.append([line])
        elif groups:
            groups[-1].append(line)
    return groups


def _is_sphinx_field(line: str) -> bool:
    match = re.match(_SPHINX_FIELD, line)
    return match is not None and match["field"] in _SPHINX_FIELDS


def _take_sphinx_field(lines: list[str], found: Docstring) -> list[str]:
    match = re.match(_SPHINX_FIELD, lines[0])
    length = 1 + _indented_length(lines[1:])
    if match and match["field"] in _SPHINX_PARAMETERS and match["argument"]:
        name = match["argument"].split()[-1].lstrip("*")
        found.parameters[name] = _entry_text([match["text"], *lines[1:length]])
    return lines[length:]


def _entry_text(lines: Iterable[str]) -> str:
    """The text of one parameter; the first line's indent says nothing about that of the others."""
    return _collapse(inspect.cleandoc("\n".join(lines)).splitlines())


def _collapse(lines: Iterable[str]) -> str:
    """
    Prose with wrapped lines joined: a paragraph is one line, a list item begins a new one.

    Code (indented more than the text round it) keeps its line breaks and its indent.
    """
    out: list[str] = []
    for line in lines:
        starts_anew = not out or not out[-1].strip() or not line.strip()
        if starts_anew or line[0].isspace() or out[-1][0].isspace() or re.match(_BULLET, line.strip()):
            out.append(line.rstrip())
        else:
            out[-1] = f"{out[-1]} {line.strip()}"
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()
