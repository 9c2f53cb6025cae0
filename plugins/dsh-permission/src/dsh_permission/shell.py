"""
A shell command taken apart: every simple command, every redirection, every assignment in it (G-3).

tree-sitter-bash does the parsing. This module never decides anything; whatever it cannot vouch for becomes
an entry in `Script.problems`, and a script with problems is never allowed by a rule.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

import attrs

from dsh_permission.words import Word, read_word

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["Assignment", "Redirect", "Script", "Simple", "parse_script"]

MAX_LENGTH: Final = 64 * 1024

_UNDERSTOOD: Final = frozenset(
    "ansi_c_string arithmetic_expansion array binary_expression brace_expression c_style_for_statement case_item "
    "case_statement command command_name command_substitution comment compound_statement concatenation "
    "declaration_command do_group elif_clause else_clause expansion file_descriptor file_redirect for_statement "
    "extglob_pattern function_definition heredoc_body heredoc_content heredoc_end heredoc_redirect heredoc_start "
    "herestring_redirect if_statement list negated_command number parenthesized_expression pipeline "
    "postfix_expression process_substitution program raw_string redirected_statement regex simple_expansion "
    "special_variable_name string string_content subscript subshell ternary_expression test_command test_operator "
    "translated_string unary_expression unset_command variable_assignment variable_assignments variable_name "
    "while_statement word".split()
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_GAP: Final = re.compile(r"(?:[ \t]|\\\n)+")
_HIDDEN_CODE: Final = re.compile(r"\$\(|`|\$\{")
_LIVE_CODE: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[(\[{])")
_OPAQUE: Final = frozenset(
    {"raw_string", "ansi_c_string", "comment", "heredoc_content", "heredoc_body", "heredoc_start"}
)
_SUBSCRIPT_READERS: Final = frozenset(
    {"test", "[", "unset", "let", "declare", "typeset", "local", "export", "read", "printf"}
)
_ARITHMETIC_TEST: Final = re.compile(r"(?:^|\s)-(?:eq|ne|lt|le|gt|ge|v|R)\s")


@attrs.frozen
class Assignment:
    """`NAME=value`; `exported` when it reaches the environment of a program."""

    name: str
    raw: str
    exported: bool


@attrs.frozen
class Redirect:
    """A redirection to or from a file."""

    target: Word
    writes: bool
    raw: str


@attrs.frozen
class Simple:
    """One simple command: its words, program first."""

    words: tuple[Word, ...]
    raw: str


@attrs.frozen
class Script:
    """
    Everything a command would do, as far as its text tells.

    Args:
        commands: Simple commands wherever they stand, substitutions and functions included.
        redirects: Redirections to or from files.
        assignments: Assignments, alone or before a command.
        problems: What could not be read, in words; empty for a script that is fully understood.
    """

    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    problems: tuple[str, ...] = ()


def parse_script(text: str) -> Script:
    """
    Take a command apart.

    Args:
        text: What bash would be given.
    """
    if len(text) > MAX_LENGTH:
        return Script(problems=(f"the command is longer than {MAX_LENGTH} characters",))
    if _CONTROL.search(text):
        return Script(problems=("the command holds control characters",))
    if not re.search(r"['#]|<<", text):
        # Bash joins continued lines before it splits words; the grammar does not (`r\\⏎m` is rm).
        text = re.sub(r"\\(.)", lambda hit: "" if hit[1] == "\n" else hit[0], text, flags=re.DOTALL)
    if re.search(r"\S\\\n\S", text):
        return Script(problems=("a word is continued on the next line",))
    try:
        source = text.encode()
    except UnicodeEncodeError:
        return Script(problems=("the command is not valid text",))
    return _Reader(source).read()


@cache
def _parser() -> Parser:
    # Loaded on first use: a harness whose tools run no shell never pays for it.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class _Reader:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._commands: list[Simple] = []
        self._redirects: list[Redirect] = []
        self._assignments: list[Assignment] = []
        self._problems: list[str] = []
        # Arithmetic evaluates the text of variables: `x='a[$(rm d)]'; [[ $x -eq 1 ]]` runs rm.
        self._arithmetic = False
        self._loose = False

    def read(self) -> Script:
        root = _parser().parse(self._source).root_node
        for node in _walk(root):
            self._visit(node)
        if self._arithmetic and self._loose:
            self._problems.append("arithmetic would evaluate a value that is not known")
        return Script(
            tuple(self._commands),
            tuple(self._redirects),
            tuple(self._assignments),
            tuple(dict.fromkeys(self._problems)),
        )

    def _visit(self, node: Node) -> None:
        kind = node.type
        if node.is_error or node.is_missing:
            self._problems.append("the command cannot be parsed")
        elif node.is_named and kind not in _UNDERSTOOD:
            self._problems.append(f"{kind.replace('_', ' ')} is not understood")
        elif kind in ("command", "unset_command"):
            self._command(node)
        elif kind == "file_redirect":
            self._redirect(node)
        elif kind == "variable_assignment":
            self._assign(node)
        elif kind == "heredoc_redirect":
            self._heredoc(node)
        else:
            self._other(node)

    def _other(self, node: Node) -> None:
        kind = node.type
        if _evaluates(node):
            self._arithmetic = True
            self._quoted_code(node)
        elif kind == "for_statement":
            self._loose = self._loose or any(_loose(value) for value in node.children_by_field_name("value"))
        elif kind == "expansion" and node.text is not None and node.text.endswith(b"@P}"):
            self._problems.append("a variable would be evaluated as a prompt")
        elif node.is_named and node.child_count == 0 and kind not in _OPAQUE and _LIVE_CODE.search(_text(node)):
            # The grammar takes some backquotes for text (`${x:-`rm y`}`); bash does not.
            self._problems.append("a substitution cannot be read")

    def _heredoc(self, node: Node) -> None:
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None or start is None or re.search(rb"['\"\\]", start.text or b""):
            return
        # What the grammar found in the text is judged by itself; what it overlooked must not pass.
        text = bytearray(self._source[body.start_byte : body.end_byte])
        for child in body.children:
            if child.type != "heredoc_content":
                text[child.start_byte - body.start_byte : child.end_byte - body.start_byte] = b" " * (
                    child.end_byte - child.start_byte
                )
        if _LIVE_CODE.search(text.decode("utf-8", "replace")):
            self._problems.append("a substitution in a here-document cannot be read")

    def _command(self, node: Node) -> None:
        words = [
            child
            for child in node.children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect")
        ]
        if any(not _spaced(self._source, left, right) for left, right in itertools.pairwise(words)):
            self._problems.append("the words of a command cannot be told apart")
        raw = _text(node)
        found = tuple(_command_words([*words, *_trailing_words(node)]))
        if found and found[0].text in _SUBSCRIPT_READERS and any(_subscript(word) for word in found[1:]):
            self._problems.append("an array subscript would be evaluated")
        self._commands.append(Simple(found, raw))

    def _redirect(self, node: Node) -> None:
        targets = node.children_by_field_name("destination")
        operator = next((child.type for child in node.children if not child.is_named), "")
        raw = _text(node)
        if len(targets) > 1 and not _follows_command(node):
            self._problems.append("words behind a redirection cannot be attributed")
        if not targets:
            return
        target = read_word(targets[0])
        if operator in (">&", "<&") and target.text is not None and re.fullmatch(r"\d*-?", target.text):
            return
        self._redirects.append(Redirect(target, operator != "<", raw))

    def _assign(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        raw = _text(node)
        parent = node.parent.type if node.parent is not None else ""
        exported = parent in ("command", "declaration_command")
        self._assignments.append(Assignment((name.text or b"").decode() if name else raw, raw, exported))
        value = node.child_by_field_name("value")
        self._loose = self._loose or (value is not None and _loose(value))

    def _quoted_code(self, node: Node) -> None:
        for inner in _walk(node):
            if inner.type in ("raw_string", "ansi_c_string") and _HIDDEN_CODE.search(read_word(inner).text or "`"):
                self._problems.append("quoted text could be evaluated as a command")


def _walk(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _command_words(nodes: list[Node]) -> Iterator[Word]:
    for node in nodes:
        inner = node.children[0] if node.type == "command_name" and node.child_count == 1 else node
        yield Word("unset", "unset") if inner.type == "unset" else read_word(inner)


def _trailing_words(command: Node) -> list[Node]:
    # The grammar counts `b` of `echo a > out b` as part of the redirection; to bash it is an argument.
    parent = command.parent
    if parent is None or parent.type != "redirected_statement" or parent.child(0) != command:
        return []
    found: list[Node] = []
    for child in parent.children[1:]:
        if child.type == "heredoc_redirect":
            found += child.children_by_field_name("argument")
        for redirect in _redirects_of(child):
            found += redirect.children_by_field_name("destination")[1:]
    return found


def _redirects_of(node: Node) -> list[Node]:
    if node.type == "file_redirect":
        return [node]
    return (
        [child for child in node.children if child.type == "file_redirect"] if node.type == "heredoc_redirect" else []
    )


def _follows_command(redirect: Node) -> bool:
    parent = redirect.parent
    if parent is not None and parent.type == "heredoc_redirect":
        parent = parent.parent
    first = parent.child(0) if parent is not None and parent.type == "redirected_statement" else None
    return first is not None and first.type == "command"


def _spaced(source: bytes, left: Node, right: Node) -> bool:
    gap = source[left.end_byte : right.start_byte]
    # A redirection may stand between two words; it is then whatever it is, but never nothing.
    return bool(_GAP.match(gap.decode("utf-8", "replace")))


def _subscript(word: Word) -> bool:
    return word.text is not None and "[" in word.text and _HIDDEN_CODE.search(word.text) is not None


def _evaluates(node: Node) -> bool:
    """Whether a construct takes text for arithmetic, in which array subscripts may hold commands."""
    if node.type == "compound_statement":
        first: Node | None = node.child(0)
        return first is not None and first.type == "(("
    if node.type == "test_command":
        return _ARITHMETIC_TEST.search(_text(node)) is not None
    return node.type in ("arithmetic_expansion", "c_style_for_statement", "subscript")


def _loose(value: Node) -> bool:
    """Whether a value could be more than a number or a plain word."""
    text = read_word(value).text
    return text is None or re.fullmatch(r"[\w./:@%+=, -]*", text) is None


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
