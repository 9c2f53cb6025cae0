"""
Replacing text in a file: pure, on text that stands for the file's bytes one to one.

Bytes that are not UTF-8 travel as surrogates, so that whatever is outside of the edit comes back unchanged.
A text is looked for as it is, then with any line end, then with the differences models make: blanks at line
ends, typographic quotes, dashes and spaces. Only the matched span is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from dsh_core.errors import ToolError

__all__ = ["Edit", "Edited", "apply_edits", "decode", "encode"]

_LOOKALIKES: Final = (
    '"\u201c\u201d\u201e\u201f\u00ab\u00bb',
    "'\u2018\u2019\u201a\u201b",
    "-\u2010\u2011\u2012\u2013\u2014\u2212",
    " \u00a0\u2002\u2003\u2009\u202f\u3000",
)
_SHOWN_LINES: Final = 20


def decode(data: bytes) -> str:
    """Bytes as text, without loss."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The bytes that `decode` made this text of."""
    return text.encode("utf-8", "surrogateescape")


@attrs.frozen
class Edit:
    """
    One replacement.

    Args:
        old: The text to find.
        new: What to put in its place.
        replace_all: Replace every occurrence; else there must be exactly one.
    """

    old: str
    new: str
    replace_all: bool = False


@attrs.frozen
class Edited:
    """
    What the edits came to.

    Args:
        text: The whole new text.
        count: Occurrences replaced.
        notes: Where the text that was found differs from the text that was looked for.
    """

    text: str
    count: int
    notes: tuple[str, ...]


@attrs.frozen
class _Form:
    """One way of looking for a text; `note` tells what was overlooked."""

    pattern: str
    note: str | None = None


def apply_edits(text: str, edits: Sequence[Edit], name: str) -> Edited:
    """
    Apply all edits, one after the other, or none.

    Args:
        text: The file's text.
        edits: The edits.
        name: The file, for messages.

    Raises:
        ToolError: An edit is empty, changes nothing, or its text is not there exactly once.
    """
    before, count, notes = text, 0, []
    for number, edit in enumerate(edits, 1):
        which = f"edit {number} of {len(edits)}: " if len(edits) > 1 else ""
        try:
            text, replaced, note = _apply(text, edit, name)
        except ToolError as error:
            rest = "; nothing was changed" if len(edits) > 1 else ""
            raise ToolError(f"{which}{error.message}{rest}", error.code) from None
        count += replaced
        if note:
            notes.append(f"{which}{note}")
    if text == before:
        raise ToolError(f"this changes nothing in {name}: it already reads like that", "NO_CHANGE")
    return Edited(text, count, tuple(notes))


def _apply(text: str, edit: Edit, name: str) -> tuple[str, int, str | None]:
    if not edit.old:
        raise ToolError("the old text is empty; give the text to replace, or write the whole file", "EMPTY_OLD_TEXT")
    if edit.old == edit.new:
        raise ToolError("old and new text are the same; nothing to do", "NO_CHANGE")
    for form in _forms(edit.old):
        matches = list(re.finditer(form.pattern, text))
        if matches:
            break
    else:
        raise ToolError(f"the old text is not in {name}{_nearest(text, edit.old)}", "NOT_FOUND")
    if not edit.replace_all:
        _only_one(text, form, name)
    note = form.note and f"found with other {form.note}, at line {_line(text, matches[0].start())}"
    return _replaced(text, matches, edit), len(matches), note


def _forms(old: str) -> Iterator[_Form]:
    if "\r" in old:  # the edit is about line ends
        yield _Form(re.escape(old))
        return
    lines = old.split("\n")
    yield _Form(r"\r?\n".join(map(re.escape, lines)))
    yield _Form(_any_blanks(lines, re.escape), "blanks at line ends")
    yield _Form(_any_blanks(lines, _lookalikes), "quotes, dashes or spaces")


def _any_blanks(lines: list[str], pattern_of: Callable[[str], str]) -> str:
    parts = [pattern_of(line.rstrip(" \t")) for line in lines[:-1]]
    return r"[ \t]*\r?\n".join([*parts, pattern_of(lines[-1])])


def _lookalikes(line: str) -> str:
    return "".join(_class_of(character) for character in line)


def _class_of(character: str) -> str:
    for alike in _LOOKALIKES:
        if character in alike:
            return f"[{re.escape(alike)}]"
    return re.escape(character)


def _only_one(text: str, form: _Form, name: str) -> None:
    starts = [match.start() for match in re.finditer(f"(?={form.pattern})", text)]
    if len(starts) > 1:
        lines = [str(_line(text, start)) for start in starts]
        shown = ", ".join(lines[:_SHOWN_LINES]) + (", …" if len(lines) > _SHOWN_LINES else "")
        raise ToolError(
            f"the old text is {len(starts)} times in {name}, at lines {shown}; give more of the lines round it so that "
            "it is there once, or set replace_all",
            "AMBIGUOUS",
        )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _replaced(text: str, matches: list[re.Match[str]], edit: Edit) -> str:
    parts, end = [], 0
    for match in matches:
        parts += [text[end : match.start()], _with_line_ends(edit, text, match)]
        end = match.end()
    return "".join([*parts, text[end:]])


def _with_line_ends(edit: Edit, text: str, match: re.Match[str]) -> str:
    """The new text with the line ends of the place it goes to, unless the edit is about line ends."""
    if "\r" in edit.old or "\n" not in edit.new:
        return edit.new
    return re.sub(r"\r?\n", lambda _: _line_end(text, match), edit.new)


def _line_end(text: str, match: re.Match[str]) -> str:
    inside = re.search(r"\r?\n", match.group())
    after = inside or re.compile(r"\r?\n").search(text, match.end())
    if after:
        return after.group()
    last = text.rfind("\n", 0, match.start())
    return "\r\n" if last > 0 and text[last - 1] == "\r" else "\n"


def _nearest(text: str, old: str) -> str:
    """A hint to the line that is most like the first line of the old text."""
    import difflib

    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = text[: 1 << 20].split("\n")
    close = difflib.get_close_matches(wanted[:200], [line.strip()[:200] for line in lines[:20_000]], n=1, cutoff=0.7)
    if not close:
        return "; read the file again, it must match exactly, without the line numbers"
    number = next(index for index, line in enumerate(lines, 1) if line.strip()[:200] == close[0])
    return f"; line {number} is the most like it: {close[0]!r}"
