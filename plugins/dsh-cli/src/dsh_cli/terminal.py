"""
What reaches a terminal: text made harmless, two streams that never break the run.

Raw bytes stay in the log; the render border is here. Answers go to stdout, everything else to stderr. A stream
that was closed before the process began (`>&-`) swallows what is written to it.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Final, TextIO

__all__ = ["Terminal", "plain_json", "prints_aside", "safe", "visible"]

_KEPT: Final = frozenset("\n\t")
_BIDI: Final = frozenset("\u200b\u200c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")


def visible(text: str) -> str:
    """
    `text` on one line with every hidden character made visible, for questions a person decides on.

    Control characters, line breaks, bidirectional overrides and zero-width characters become escapes.
    """
    return "".join(char if _plain(char) else _escaped(char) for char in text)


def safe(text: str) -> str:
    """`text` for a terminal: line breaks and tabs stay, other control characters become escapes."""
    text = text.replace("\r\n", "\n")
    return "".join(char if char in _KEPT or _plain(char) else _escaped(char) for char in text)


def plain_json(text: str, encoding: str = "utf-8") -> str:
    """
    JSON text with the same meaning that survives `encoding` and drives no terminal.

    Outside of ASCII, JSON has characters only within strings, where each may be written as an escape.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if _is_harmless(char, encoding) else _json_escape(char) for char in text)


def _is_harmless(char: str, encoding: str) -> bool:
    if char.isascii():
        return char != "\x7f"
    if unicodedata.category(char) in ("Cc", "Cs"):
        return False
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _json_escape(char: str) -> str:
    if char == "\x7f":
        return "\\u007f"
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _plain(char: str) -> bool:
    return (
        char == " "
        or (unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp", "Cs") and char not in _BIDI)
        or (
            char == "\u200d"  # joins emoji
        )
    )


def _escaped(char: str) -> str:
    code = ord(char)
    if char in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@contextmanager
def prints_aside() -> Iterator[None]:
    """Send what plugins and tools print to stderr: once the terminal is made, stdout carries answers only."""
    with redirect_stdout(sys.stderr or _nowhere()):
        yield


class Terminal:
    """
    Stdout and stderr of one command.

    Args:
        out: Where answers go.
        err: Where progress, questions and warnings go.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout or _nowhere()
        self.err = err or sys.stderr or _nowhere()
        for stream in (self.out, self.err):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        self.color = self.err.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._line_open = False
        self._held = ""

    @property
    def shows_stream(self) -> bool:
        """Whether a person reads stdout as it comes."""
        return self.out.isatty()

    def answer(self, text: str) -> None:
        """Part of the answer, as it comes."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""  # a line break may be cut in two
        text = text.removesuffix(self._held)
        if text:
            self._write(self.out, safe(text))
            self._line_open = not text.endswith("\n")

    def end_answer(self) -> None:
        """Finish the answer's last line."""
        self._held = ""
        if self._line_open:
            self._write(self.out, "\n")
            self._line_open = False

    def line(self, text: str) -> None:
        """A line of output that is what was asked for, such as a list."""
        self._write(self.out, safe(text) + "\n")

    def json(self, text: str) -> None:
        """A line of JSON; whatever the encoding of stdout, it stays JSON."""
        self._write(self.out, plain_json(text, self.out.encoding or "utf-8") + "\n")

    def note(self, text: str, *, style: str = "2") -> None:
        """A line for the person, on stderr."""
        if self._line_open and self.shows_stream:
            self._write(self.err, "\n")
            self._line_open = False
        body = safe(text)
        self._write(self.err, (f"\x1b[{style}m{body}\x1b[0m" if self.color else body) + "\n")

    def warn(self, text: str) -> None:
        """A warning, on stderr."""
        self.note(f"warning: {text}", style="33")

    def error(self, text: str) -> None:
        """An error, on stderr."""
        self.note(f"error: {text}", style="31")

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
