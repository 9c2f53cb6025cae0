"""
Search without ripgrep, as a program of its own: a regular expression that never ends can then be ended.

It is run by its path and imports nothing but the standard library. What it prints has ripgrep's form:
`files` gives paths that end with NUL, `grep` gives `path NUL line:text`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

__all__ = ["glob_matcher", "main"]

_IGNORE_FILES: Final = (".gitignore", ".ignore")
_PIECE: Final = 1 << 20
_SHOWN: Final = 500
_CHOICES: Final = 1000


# -- patterns --------------------------------------------------------------------------------------------


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """
    A test for relative paths: `*`, `?`, `[…]`, `{a,b}`, and `**` for any depth.

    A pattern without a slash is compared with the file's name, at any depth.
    """
    pattern = pattern.removeprefix("./")
    paths = [_Segments(each) for each in _braces(pattern)]
    if "/" in pattern:
        return lambda path: any(each.matches(path) for each in paths)
    return lambda path: any(each.matches(path.rpartition("/")[2]) for each in paths)


def _braces(pattern: str) -> list[str]:
    """The pattern without braces, once for each choice, up to a bound."""
    done: list[str] = []
    waiting = [pattern]
    while waiting and len(done) + len(waiting) < _CHOICES:
        each = waiting.pop(0)
        found = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if found:
            waiting += [each[: found.start()] + choice + each[found.end() :] for choice in found[1].split(",")]
        else:
            done.append(each)
    return done + waiting


class _Segments:
    """A pattern as a list of segments, None for any depth; matched without ever going back further than one star."""

    def __init__(self, pattern: str) -> None:
        self._segments: list[re.Pattern[str] | None] = []
        for part in pattern.strip("/").split("/"):
            self._segments.append(None if part == "**" else re.compile(_segment(part), re.DOTALL))
        if self._segments[-1] is None:
            self._segments.append(re.compile("[^/]+", re.DOTALL))  # what is below, not the directory itself

    def matches(self, path: str) -> bool:
        """Whether it matches the whole path."""
        names, segments = path.split("/"), self._segments
        at, star, resume, name = 0, -1, 0, 0
        while name < len(names):
            segment = segments[at] if at < len(segments) else _END
            if segment is None:
                star, resume, at = at, name, at + 1
            elif segment.fullmatch(names[name]):
                at, name = at + 1, name + 1
            elif star >= 0:
                resume += 1
                at, name = star + 1, resume
            else:
                return False
        return at == len(segments)


_END: Final = re.compile(r"(?!)")


def _segment(part: str) -> str:
    """One path segment; atomic groups keep many stars from taking for ever."""
    pieces = [_fixed(piece) for piece in re.split(r"\*+", part)]
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return f"{pieces[0]}{middle}[^/]*{pieces[-1]}"


def _fixed(piece: str) -> str:
    result, index = "", 0
    while index < len(piece):
        character = piece[index]
        end = piece.find("]", index + 2) if character == "[" else -1
        if end > 0:
            inner = piece[index + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            negated = inner[:1] in ("!", "^")
            result += f"(?!/)[{'^' if negated else ''}{inner[1:] if negated else inner}]"
            index = end
        elif character == "\\" and index + 1 < len(piece):
            index += 1
            result += re.escape(piece[index])
        else:
            result += "[^/]" if character == "?" else re.escape(character)
        index += 1
    return result


# -- ignore files ----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One line of an ignore file; `base` is its directory, relative to the top, with a slash at the end."""

    base: str
    pattern: _Segments
    by_name: bool
    directories_only: bool
    negated: bool

    def matches(self, path: str, is_directory: bool) -> bool:
        """Whether it speaks of this path, relative to the top."""
        if self.directories_only and not is_directory:
            return False
        subject = path.rpartition("/")[2] if self.by_name else path[len(self.base) :]
        return self.pattern.matches(subject)


def _rules(directory: str, base: str) -> list[Rule]:
    rules: list[Rule] = []
    for name in _IGNORE_FILES:
        try:
            with open(os.path.join(directory, name), encoding="utf-8-sig", errors="replace") as file:
                lines = file.read(_PIECE).splitlines()
        except OSError:
            continue
        rules += [rule for line in lines if (rule := _rule(line, base)) is not None]
    return rules


def _rule(line: str, base: str) -> Rule | None:
    text = re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    directories_only = text.endswith("/")
    text = text.rstrip("/")
    by_name = "/" not in text
    try:
        pattern = _Segments(text)
    except re.error:
        return None
    return Rule(base, pattern, by_name, directories_only, negated)


def _ignored(rules: list[Rule], path: str, is_directory: bool) -> bool:
    for rule in reversed(rules):
        if rule.matches(path, is_directory):
            return not rule.negated
    return False


# -- walking ---------------------------------------------------------------------------------------------


def _complain(path: str, error: OSError) -> None:
    text = f"{path}: {error.strerror or error}\n"
    sys.stderr.buffer.write(text.encode("utf-8", "surrogateescape"))


def _top(root: str) -> str:
    """The repository's directory, or the root itself."""
    directory = root
    while True:
        if os.path.lexists(os.path.join(directory, ".git")):
            return directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return root
        directory = parent


def walk(root: str) -> Iterator[str]:
    """The files below a directory that no ignore file excludes, sorted, relative to it; links are not followed."""
    root = os.path.realpath(root)
    top = _top(root)
    prefix = "" if top == root else os.path.relpath(root, top) + "/"
    rules = []
    outer, base = top, ""
    for part in [part for part in prefix.split("/") if part]:
        rules += _rules(outer, base)
        outer, base = os.path.join(outer, part), f"{base}{part}/"
    yield from _walk(root, prefix, len(prefix), rules)


def _walk(directory: str, base: str, cut: int, rules: list[Rule]) -> Iterator[str]:
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        _complain(base[cut:] or ".", error)
        return
    rules = rules + _rules(directory, base)
    for entry in entries:
        path = base + entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or _ignored(rules, path, is_directory):
            continue
        if is_directory:
            yield from _walk(entry.path, f"{path}/", cut, rules)
        elif entry.is_file():  # a link to a file counts, a pipe does not
            yield path[cut:]


# -- grep ------------------------------------------------------------------------------------------------


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, in bounded pieces where they are very long."""
    while line := file.readline(_PIECE):
        yield line


def _search(path: str, shown: str, pattern: re.Pattern[str], context: int, out: BinaryIO) -> bool:
    before: list[tuple[int, str]] = []
    after, found, number, last = 0, False, 1, 0
    with open(path, "rb") as file:
        if b"\x00" in file.read(8192):
            return False
        file.seek(0)
        for raw in _lines(file):
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            match = pattern.search(text)
            if match:
                if context and last and number - len(before) > last + 1:
                    out.write(b"--\n")
                for earlier, line in before:
                    _print(out, shown, earlier, "-", line, 0)
                before.clear()
                _print(out, shown, number, ":", text, match.start())
                after, found, last = context, True, number
            elif after > 0:
                _print(out, shown, number, "-", text, 0)
                after, last = after - 1, number
            elif context:
                before = [*before[-(context - 1) :], (number, text)] if context > 1 else [(number, text)]
            number += raw.endswith(b"\n")
    return found


def _print(out: BinaryIO, shown: str, number: int, mark: str, text: str, start: int) -> None:
    if len(text) > _SHOWN:
        begin = max(0, start - _SHOWN // 2)
        piece = text[begin : begin + _SHOWN]
        text = f"{'… ' if begin else ''}{piece} [… long line cut]"
    out.write(f"{shown}\x00{number}{mark}{text}\n".encode("utf-8", "surrogateescape"))


def _grep(argv: list[str], out: BinaryIO) -> int:
    root, expression, include, context, flags = argv
    try:
        pattern = re.compile(expression, re.IGNORECASE if "i" in flags else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    wanted = glob_matcher(include) if include else None
    single = not os.path.isdir(root)
    base = os.path.dirname(root) if single else root
    found = False
    for path in [os.path.basename(root)] if single else walk(root):
        if wanted is None or wanted(path):
            try:
                found = _search(os.path.join(base, path), path, pattern, int(context), out) or found
            except OSError as error:
                _complain(path, error)
    return 0 if found else 1


def main(argv: list[str]) -> int:
    """Run `files ROOT` or `grep ROOT PATTERN INCLUDE CONTEXT FLAGS`."""
    out = sys.stdout.buffer
    if argv[0] == "grep":
        return _grep(argv[1:], out)
    for path in walk(argv[1]):
        out.write(os.fsencode(path) + b"\x00")
    return 0


def _run() -> int:
    try:
        return main(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - Python would exit with 1, which says that nothing was found
        sys.excepthook(*sys.exc_info())
        return 3


if __name__ == "__main__":
    sys.exit(_run())
