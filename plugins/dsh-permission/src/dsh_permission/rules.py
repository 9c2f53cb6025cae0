"""
Rules: their text, their patterns, and what they match (G-1).

`tool` is every call of a tool, `tool(pattern)` some of them, `*` every call of every tool. A rule has an
effect and a source; which rule wins never depends on the order or the source, only on the effect.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from dsh_core.errors import ConfigError

if TYPE_CHECKING:
    from dsh_permission.words import Word

__all__ = ["Decision", "Rule", "WordPattern", "escape_words", "parse_rules", "quote_word"]

Decision: TypeAlias = Literal["allow", "ask", "deny"]

_RULE: Final = re.compile(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_OPERATOR: Final = re.compile(r"&&|\|\||[;|<>`\n]|\$\(|(?<!\\)&")
_STANDARD_DIRECTORIES: Final = re.compile(r"(?:/usr|/usr/local|/opt/homebrew)?/s?bin/([^/]+)")


@attrs.frozen
class Rule:
    """
    One rule.

    Args:
        effect: `allow`, `ask` or `deny`.
        tool: Name of the tool, or a pattern of names.
        pattern: What the call must look like, or None for every call.
        text: The rule as it was written.
        source: Where it comes from.
    """

    effect: Decision
    tool: str
    pattern: str | None
    text: str
    source: str

    def covers(self, tool: str) -> bool:
        """Whether the rule speaks of this tool at all."""
        return fnmatch.fnmatchcase(tool, self.tool)

    @property
    def everything(self) -> bool:
        """Whether it speaks of every call of its tool."""
        return self.pattern is None or self.pattern.strip() in ("*", "**")

    @property
    def words(self) -> WordPattern:
        """Its pattern as words of a command."""
        return _word_pattern(self.pattern or "*")

    @property
    def complaint(self) -> str | None:
        """Why the rule can never match, or None."""
        if self.pattern is None:
            return None
        if not self.pattern.strip():
            return "its pattern is empty; leave the brackets out to mean every call"
        if self.tool == "bash" and self.words.broken:
            return "its quotes are not closed"
        if self.tool == "bash" and self.words.operator:
            return "commands are judged one by one; write one rule for each command"
        return None


def parse_rules(effect: Decision, texts: Iterable[str], source: str) -> tuple[Rule, ...]:
    """
    Read rules.

    Args:
        effect: What they do.
        texts: One rule each.
        source: Where they come from, for messages.

    Raises:
        ConfigError: Some are malformed; the message lists all of them.
    """
    rules: list[Rule] = []
    faults: list[str] = []
    for text in [texts] if isinstance(texts, str) else texts:
        found = _RULE.fullmatch(text) if isinstance(text, str) else None  # type: ignore[redundant-expr]
        if found is None:
            faults.append(f"{source}: {effect} rule {text!r} is malformed; write `tool`, `tool(pattern)` or `*`")
        else:
            rules.append(Rule(effect, found[1], found[2], text.strip(), source))
    if faults:
        raise ConfigError("\n".join(faults))
    return tuple(rules)


class WordPattern:
    """
    The pattern of a `bash` rule: words, of which an unquoted `*` alone stands for any number.

    Args:
        text: Words separated by blanks; quotes and backslashes take away the meaning of `*`, `?` and `[`.
    """

    def __init__(self, text: str) -> None:
        tokens, self.broken = _tokens(text)
        self._items = [None if token == "*" else re.compile(fnmatch.translate(token), re.DOTALL) for token in tokens]
        plain = all(not re.search(r"[*?\[]", token) for token in tokens)
        self._names = tokens if plain else None
        self.operator = any(_OPERATOR.search(token) for token in tokens)
        flags, positional = _split_flags(tokens)
        self._flags = flags
        self._positional = [
            None if token == "*" else re.compile(fnmatch.translate(token), re.DOTALL) for token in positional
        ]

    def allows(self, words: Sequence[Word]) -> bool:
        """Whether an allow rule covers a command: only known words match, in their place."""
        program = words[0].text
        if program is None or words[0].globs or words[0].tilde:
            return False
        texts = [_plain_program(program), *(word.text for word in words[1:])]
        return _match(self._items, texts) or _match(self._items, [program, *texts[1:]])

    def _may_expand(self, words: Sequence[Word]) -> bool:
        """Whether file names the shell puts in place of its patterns could make a command match."""
        if self._names is None or len(self._names) != len(words):
            return False
        return all(
            word.text is not None and (fnmatch.fnmatchcase(name, word.text) if word.globs else name == word.text)
            for name, word in zip(self._names, words, strict=True)
        )

    def catches(self, words: Sequence[Word]) -> bool:
        """Whether a deny or ask rule covers a command, in any spelling of it."""
        if any(word.globs for word in words) and self._may_expand(words):
            return True
        for form in _spellings(words):
            if _match(self._items, form):
                return True
            flags, positional = _split_flags([text if text is not None else "…" for text in form])
            if self._flags <= flags and _match(self._positional, positional):
                return True
        return False


@lru_cache(maxsize=4096)
def _word_pattern(text: str) -> WordPattern:
    return WordPattern(text)


def _spellings(words: Sequence[Word]) -> list[list[str | None]]:
    texts = [word.text for word in words]
    if texts[0] is None:
        return []
    bare = [texts[0].rpartition("/")[2] or texts[0], *texts[1:]]
    forms: list[list[str | None]] = [texts, bare]
    if bare[0] == "git":
        forms.append(["git", *_without_git_options(bare[1:])])
    return forms


def _without_git_options(arguments: list[str | None]) -> list[str | None]:
    i = 0
    while i < len(arguments) and (arguments[i] or "").startswith("-"):
        i += 2 if arguments[i] in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
    return arguments[i:]


def _plain_program(program: str) -> str:
    """A program without its directory where that is one of the system's own."""
    found = _STANDARD_DIRECTORIES.fullmatch(program)
    return found[1] if found else program


def _split_flags(tokens: Sequence[str]) -> tuple[frozenset[str], list[str]]:
    """Options, bundles taken apart, and everything else in order."""
    flags: set[str] = set()
    rest: list[str] = []
    for token in tokens:
        if re.fullmatch(r"-[A-Za-z]{2,}", token):
            flags.update(f"-{letter}" for letter in token[1:])
        elif len(token) > 1 and token.startswith("-") and token != "--":
            flags.add(token)
        elif token != "--":
            rest.append(token)
    return frozenset(flags), rest


def _match(items: Sequence[re.Pattern[str] | None], texts: Sequence[str | None]) -> bool:
    """Match words against a pattern; None in `items` is any rest, None in `texts` an unknown word."""
    reachable = {0}
    for item in items:
        if item is None:
            first = min(reachable)
            reachable = set(range(first, len(texts) + 1))
            continue
        reachable = {at + 1 for at in reachable if at < len(texts) and _word_matches(item, texts[at])}
        if not reachable:
            return False
    return len(texts) in reachable


def _word_matches(item: re.Pattern[str], text: str | None) -> bool:
    return text is not None and item.fullmatch(text) is not None


def _tokens(text: str) -> tuple[list[str], bool]:
    """Split a pattern into words; characters that lost their meaning by quoting come as `[x]`."""
    tokens: list[str] = []
    current: str | None = None
    quote = ""
    i = 0
    while i < len(text):
        char = text[i]
        if quote == char:
            quote = ""
        elif char == "\\" and quote != "'" and i + 1 < len(text):
            i += 1
            current = (current or "") + _literal(text[i])
        elif quote:
            current = (current or "") + _literal(char)
        elif char in "'\"":
            quote, current = char, current or ""
        elif char.isspace():
            tokens += [] if current is None else [current]
            current = None
        else:
            current = (current or "") + char
        i += 1
    return tokens + ([] if current is None else [current]), bool(quote)


def _literal(char: str) -> str:
    return f"[{char}]" if char in "*?[" else char


def quote_word(text: str) -> str:
    """A word as a rule writes it, so that it means exactly itself."""
    if text and re.fullmatch(r"[A-Za-z0-9_@%+=:,./~^-]+", text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def escape_words(texts: Iterable[str]) -> str:
    """A command as a rule writes it."""
    return " ".join(quote_word(text) for text in texts)
