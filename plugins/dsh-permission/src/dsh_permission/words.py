"""
Words of a shell command: what is known of each before the command runs.

A word whose value depends on anything but its own text (a variable, a substitution, a brace list) is
*unknown*; nothing here ever guesses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Word", "read_word"]

_BRACES: Final = re.compile(r"\{.*(,|\.\.).*\}", re.DOTALL)
_PATTERN: Final = re.compile(r"[*?\[]")
_ANSI_SIMPLE: Final = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ANSI: Final = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<u4>[0-9A-Fa-f]{1,4})|U(?P<u8>[0-9A-Fa-f]{1,8})"
    r"|(?P<oct>[0-7]{1,3})|c(?P<ctrl>.)|(?P<one>.))",
    re.DOTALL,
)


@attrs.frozen
class Word:
    """
    One word of a command.

    Args:
        raw: As it was typed.
        text: Its value with quoting removed, or None when it is not known before the command runs.
        globs: It holds unquoted pattern characters, so the shell replaces it by file names.
        tilde: It begins with an unquoted `~`.
    """

    raw: str
    text: str | None
    globs: bool = False
    tilde: bool = False


def read_word(node: Node) -> Word:
    """
    Read one argument of the syntax tree.

    Args:
        node: Any node that stands for one shell word.
    """
    raw = _text(node)
    if node.type == "concatenation":
        return _concatenation(node, raw)
    word = _single(node, raw)
    if word.text is not None and node.type == "word" and _BRACES.search(raw):
        return Word(raw, None)
    return word


def _concatenation(node: Node, raw: str) -> Word:
    pieces = [_single(child, _text(child)) for child in node.children]
    bare = "".join(_text(child) if child.type == "word" else "x" for child in node.children)
    if _BRACES.search(bare) or any(piece.text is None for piece in pieces):
        return Word(raw, None)
    text = "".join(piece.text or "" for piece in pieces)
    return Word(raw, text, any(piece.globs for piece in pieces), pieces[0].tilde)


def _single(node: Node, raw: str) -> Word:
    kind = node.type
    if kind in ("word", "number", "variable_name", "file_descriptor") and not node.named_child_count:
        return _bare(raw)
    if kind == "raw_string":
        return Word(raw, raw[1:-1])
    if kind == "ansi_c_string":
        return Word(raw, _ansi_c(raw[2:-1]))
    if kind == "string" and all(child.type == "string_content" for child in node.named_children):
        return Word(raw, re.sub(r'\\(?:\n|([$`"\\]))', lambda hit: hit[1] or "", raw[1:-1]))
    return Word(raw, None)


def _bare(raw: str) -> Word:
    text, globs, i = "", False, 0
    while i < len(raw):
        if raw[i] == "\\" and i + 1 < len(raw):
            text += "" if raw[i + 1] == "\n" else raw[i + 1]
            i += 2
            continue
        globs = globs or bool(_PATTERN.match(raw[i]))
        text += raw[i]
        i += 1
    tilde = raw.startswith("~")
    # `~name` is somebody else's home, `~-` the directory before: neither can be read off the text.
    return Word(raw, None if tilde and raw[1:2] not in ("", "/") else text, globs, tilde)


def _ansi_c(body: str) -> str | None:
    try:
        text = _ANSI.sub(_ansi_escape, body)
    except (ValueError, OverflowError):
        return None
    # A NUL ends the word in bash; whoever writes one hides something.
    return None if "\0" in text else text


def _ansi_escape(hit: re.Match[str]) -> str:
    for name, base in (("hex", 16), ("u4", 16), ("u8", 16), ("oct", 8)):
        if hit[name] is not None:
            return chr(int(hit[name], base))
    if hit["ctrl"] is not None:
        return chr(ord(hit["ctrl"].upper()) ^ 0x40)
    return _ANSI_SIMPLE.get(hit["one"], "\\" + hit["one"])


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
