"""
Judging shell commands: every simple command, redirection and assignment by itself, the strictest wins (G-3).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dsh_permission.policy import command_rule, rule_part
from dsh_permission.programs import INERT, installs, is_harmless, path_arguments, reads_trees
from dsh_permission.shell import Assignment, Redirect, Script, parse_script
from dsh_permission.verdict import Part, Verdict, strictest, strictest_part
from dsh_permission.words import Word
from dsh_permission.wrappers import inner_of

if TYPE_CHECKING:
    from dsh_permission.places import Target
    from dsh_permission.policy import PermissionPolicy
    from dsh_permission.rules import Rule

__all__ = ["CommandJudge"]

_DEPTH: Final = 8
_MATCHES: Final = 500
_HARMLESS_NAMES: Final = re.compile(
    r"CI|TZ|LANG|LANGUAGE|LC_[A-Z]+|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|TERM|COLUMNS|LINES|DEBUG|VERBOSE|NODE_ENV"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED|RUST_BACKTRACE|RUST_LOG|DEBIAN_FRONTEND|[A-Z]"
)
_LOCAL_NAMES: Final = re.compile(r"(?!.*proxy)[a-z][a-z0-9_]*")
_DEVICES: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/zero"})
_TREES: Final = frozenset("rm mv rmdir shred chmod chown chgrp ln rsync find trash gio".split())
_NOWHERE: Final = "/\0"


class CommandJudge:
    """
    Judges one call of `bash` under a policy.

    Args:
        policy: Rules, mode and places.
    """

    def __init__(self, policy: PermissionPolicy) -> None:
        self._policy = policy
        self._places = policy.places
        self._rules = [rule for rule in policy.rules if rule.covers("bash")]
        self._trusting = policy.mode == "full-trust"

    def judge(self, arguments: Mapping[str, Any], base: str | None) -> Verdict:
        """Judge the command in `arguments`, run in its `workdir`."""
        command = arguments.get("command")
        if not isinstance(command, str):
            return strictest([self._unreadable("bash", "the call names no command")])
        workdir = arguments.get("workdir")
        start = (
            self._places.target(workdir, base).resolved if isinstance(workdir, str) else base or self._places.workspace
        )
        parts = list(self._script(command, [start], 0)) or [Part("bash", "allow", None, "an empty command")]
        return strictest(parts)

    # -- scripts -------------------------------------------------------------------------------------------

    def _script(self, text: str, bases: list[str], depth: int) -> Iterator[Part]:
        if depth > _DEPTH:
            yield self._unreadable(text, "commands are nested too deep")
            return
        script = parse_script(text)
        bases = list(self._directories(script, bases))
        for problem in script.problems:
            yield self._unreadable(text, problem)
        for assignment in script.assignments:
            yield from self._assignment(assignment)
        for redirect in script.redirects:
            yield from self._redirect(redirect, bases)
        for command in script.commands:
            if command.words:
                yield from self._command(command.words, bases, depth)

    def _directories(self, script: Script, bases: list[str]) -> Iterable[str]:
        """Where relative paths of a script may start: `cd` moves what follows, so every stop counts."""
        found = dict.fromkeys(bases)
        for command in script.commands:
            words = command.words
            if words and words[0].text in ("cd", "pushd", "popd"):
                target = words[1].text if len(words) == 2 and words[0].text != "popd" else None
                if target is None or target.startswith("-") or len(found) > 16:
                    found[_NOWHERE] = None
                else:
                    found.update(dict.fromkeys(self._places.target(target, base).resolved for base in list(found)
                                               if base != _NOWHERE))  # fmt: skip
        return found

    def _unreadable(self, subject: str, reason: str) -> Part:
        if self._trusting and not any(rule.effect != "allow" for rule in self._rules):
            return Part(subject, "allow", None, "mode full-trust")
        if self._policy.mode == "plan":
            return Part(subject, "deny", None, f"mode plan: {reason}")
        return Part(subject, "ask", None, f"{reason}; nothing that cannot be read is allowed by a rule", "unreadable")

    # -- pieces --------------------------------------------------------------------------------------------

    def _assignment(self, assignment: Assignment) -> Iterator[Part]:
        harmless = _HARMLESS_NAMES.fullmatch(assignment.name) or (
            not assignment.exported and _LOCAL_NAMES.fullmatch(assignment.name)
        )
        if not harmless:
            yield self._needs_everything(assignment.raw, f"setting {assignment.name} may change what programs do")

    def _needs_everything(self, subject: str, reason: str) -> Part:
        """What only a rule for every command, or full trust, covers."""
        rules = [rule for rule in self._rules if rule.everything]
        if self._policy.mode == "plan":
            return Part(subject, "deny", None, f"mode plan: {reason}")
        if rules:
            return strictest_part(subject, [rule_part(rule, subject) for rule in rules])
        return Part(subject, "allow" if self._trusting else "ask", None, reason)

    def _redirect(self, redirect: Redirect, bases: Sequence[str]) -> Iterator[Part]:
        text = redirect.target.text
        if text in _DEVICES:
            return
        if text is None or redirect.target.globs:
            yield self._unreadable(redirect.raw, "the file of a redirection is not known")
            return
        if text.startswith("/dev/"):
            yield self._needs_everything(redirect.raw, f"{text} is a device or a connection")
            return
        for target in self._targets(text, bases):
            yield self._file(redirect.raw, target, writes=redirect.writes)

    def _targets(self, text: str, bases: Sequence[str]) -> list[Target]:
        if os.path.isabs(text) or text.startswith("~/"):
            bases = bases[:1]
        return [self._places.target(text, base) for base in bases]

    def _file(self, subject: str, target: Target, *, writes: bool) -> Part:
        part = self._policy.judge_path("write" if writes else "read", target)
        covered = part.decision == "ask" and part.origin == "mode"
        if covered and any(rule.effect == "allow" and rule.everything for rule in self._rules):
            return next(rule_part(rule, subject) for rule in self._rules if rule.effect == "allow" and rule.everything)
        return Part(subject, part.decision, part.rule, part.reason, part.origin)

    def _command(self, words: Sequence[Word], bases: Sequence[str], depth: int) -> Iterator[Part]:
        subject = self._subject(words)
        plain = (self._plain(words[0]), *words[1:])
        if plain[0].text is None or words[0].globs or words[0].tilde:
            yield self._unreadable(subject, "the program is not known before the command runs")
            return
        inner = inner_of(plain)
        findings = list(self._caught(words, subject))
        if inner is None or not (inner.transparent and (inner.commands or inner.scripts)):
            findings += self._own(plain, words, subject, bases)
        if inner is not None and inner.problem is not None:
            findings.append(self._unreadable(subject, inner.problem))
        if findings:
            yield strictest_part(subject, findings)
        if inner is not None:
            for name in inner.environment:
                yield from self._assignment(Assignment(name, f"{name}=…", exported=True))
            for command in inner.commands:
                yield from self._nested(command, bases, depth, opaque=inner.problem is not None)
            for script in inner.scripts:
                yield from self._script(script, list(bases), depth + 1)

    def _nested(self, words: Sequence[Word], bases: Sequence[str], depth: int, *, opaque: bool) -> Iterator[Part]:
        if opaque:
            # Only a guess at what might run: it can forbid, and allows nothing.
            yield from self._caught(words, self._subject(words))
        elif depth >= _DEPTH:
            yield self._unreadable(self._subject(words), "commands are nested too deep")
        else:
            yield from self._command(words, bases, depth + 1)

    def _caught(self, words: Sequence[Word], subject: str) -> Iterator[Part]:
        for rule in self._rules:
            if rule.effect != "allow" and (rule.everything or rule.words.catches(words)):
                yield rule_part(rule, subject)

    def _own(self, plain: Sequence[Word], words: Sequence[Word], subject: str, bases: Sequence[str]) -> Iterator[Part]:
        """Findings on a command itself: what it touches, and whether anything lets it run."""
        known = [word.text for word in plain if word.text is not None]
        harmless = len(known) == len(plain) and is_harmless(known)
        yield from self._touched(plain, subject, bases, reads=harmless)
        yield from self._searched(plain, subject, bases)
        if self._policy.mode == "plan" and not harmless:
            yield Part(subject, "deny", None, "mode plan: the command may change something")
        if known[0] not in INERT and len(known) < len(plain):
            yield self._unreadable(subject, "an argument is not known before the command runs")
        elif installs(known) and not self._trusting:
            yield Part(subject, "ask", None, "installing packages runs their code", "protected")
        else:
            yield self._allowed(words, subject, bases, harmless=harmless or (known[0] in INERT and is_harmless(known)))

    def _allowed(self, words: Sequence[Word], subject: str, bases: Sequence[str], *, harmless: bool) -> Part:
        for rule in self._rules:
            if rule.effect == "allow" and (rule.everything or rule.words.allows(words)):
                return rule_part(rule, subject)
        if self._trusting:
            return Part(subject, "allow", None, "mode full-trust")
        if harmless and self._stays_inside(words, bases):
            return Part(subject, "allow", None, "it only reads, inside the workspace")
        return Part(
            subject, "ask", None, "no rule speaks of this command" if not harmless else "it reads outside the workspace"
        )

    def _stays_inside(self, words: Sequence[Word], bases: Sequence[str]) -> bool:
        if not _by_name(words[0].text or ""):
            return False
        if words[0].text in INERT:
            return True
        places = [self._places.target(".", base) for base in bases if base != _NOWHERE]
        if len(places) < len(bases):
            return False
        places += [target for text in self._paths(words, bases) if text not in _DEVICES
                   for target in self._targets(text, bases)]  # fmt: skip
        return all(self._places.inside(place) for place in places)

    def _touched(self, words: Sequence[Word], subject: str, bases: Sequence[str], *, reads: bool) -> Iterator[Part]:
        """Rules of the file tools, secrets and protected places, for every argument that may be a path."""
        trees = words[0].text in _TREES
        for text in self._paths(words, bases):
            for target in self._targets(text, bases):
                yield from self._path_rules(target, subject, reads=reads)
                if self._trusting:
                    continue
                reason = self._places.secret(target, certain=os.sep in text)
                reason = reason or (None if reads else self._places.protected(target, whole_trees=trees))
                if reason is not None:
                    yield Part(subject, "ask", None, reason, "protected")

    def _searched(self, words: Sequence[Word], subject: str, bases: Sequence[str]) -> Iterator[Part]:
        """Secrets below the directories that a recursive search reads."""
        argv = [word.text or "" for word in words]
        if self._trusting or not reads_trees(argv):
            return
        named = {target.resolved for text in self._paths(words, bases) for target in self._targets(text, bases)}
        existing = {path for path in named if os.path.exists(path)}
        for directory in existing or {base for base in bases if base != _NOWHERE}:
            reason = self._places.secret_below(directory)
            if reason is not None:
                yield Part(subject, "ask", None, reason, "protected")

    def _path_rules(self, target: Target, subject: str, *, reads: bool) -> Iterator[Part]:
        tools = ("read",) if reads else ("read", "write", "edit")
        for tool in tools:
            part = self._policy.judge_path(tool, target)
            if part.origin == "rule" and part.decision != "allow" and not _is_everything(part, self._policy.rules):
                yield Part(subject, part.decision, part.rule, part.reason, "rule")

    def _paths(self, words: Sequence[Word], bases: Sequence[str]) -> Iterator[str]:
        known = [word for word in words if word.text is not None]
        patterns = {word.text for word in known if word.globs}
        for text in dict.fromkeys(path_arguments([word.text or "" for word in known])):
            yield text
            if text in patterns:
                yield from self._expanded(text, bases)

    def _expanded(self, pattern: str, bases: Sequence[str]) -> Iterator[str]:
        if pattern.startswith("~/"):
            pattern = self._places.home + pattern[1:]
        for base in bases:
            if base != _NOWHERE:
                found = glob.iglob(pattern, root_dir=base, include_hidden=pattern.rpartition("/")[2].startswith("."))
                yield from (os.path.join(base, match) for match in islice(found, _MATCHES))

    def _subject(self, words: Sequence[Word]) -> str:
        if all(word.text is not None and not word.globs and not word.tilde for word in words):
            return command_rule(word.text or "" for word in words)
        return " ".join(word.raw for word in words)

    @staticmethod
    def _plain(program: Word) -> Word:
        """The program without its directory, as wrappers and known programs are looked up."""
        name = None if program.text is None else program.text.rpartition("/")[2] or program.text
        return Word(program.raw, name)


def _by_name(program: str) -> bool:
    """Whether a program is found on the path or in a directory of the system, never elsewhere."""
    return os.sep not in program or re.fullmatch(r"(?:/usr|/usr/local)?/s?bin/[^/]+", program) is not None


def _is_everything(part: Part, rules: Sequence[Rule]) -> bool:
    """Whether a finding comes from a rule for every call: such a rule speaks of its tool, not of paths."""
    return any(rule.text == part.rule and rule.everything for rule in rules)
