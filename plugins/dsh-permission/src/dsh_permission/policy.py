"""
Rules, a mode and a workspace, ready to judge calls.

A policy is pure: the same call gives the same verdict as long as the files it names stay what they are.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from dsh_core.errors import ConfigError
from dsh_permission.places import Places, Target
from dsh_permission.rules import Decision, Rule, escape_words, parse_rules
from dsh_permission.verdict import Part, Verdict, strictest, strictest_part

__all__ = ["MODES", "PermissionPolicy"]

MODES: Final = ("ask", "accept-edits", "plan", "full-trust")

_READERS: Final = frozenset({"read", "glob", "grep"})
_WRITERS: Final = frozenset({"write", "edit"})
_HARMLESS: Final = frozenset({"bash_output", "bash_kill"})
_PATH_KEYS: Final = ("path", "file_path", "filename")
_LONGEST_RULE: Final = 500


@attrs.frozen(kw_only=True, eq=False)
class PermissionPolicy:
    """
    Judges tool calls.

    Args:
        rules: All rules, whatever their source.
        mode: `ask`, `accept-edits`, `plan` or `full-trust` (G-2).
        places: The workspace and what is protected.
    """

    rules: tuple[Rule, ...]
    mode: str
    places: Places

    @classmethod
    def from_rules(
        cls,
        allow: Iterable[str] = (),
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        mode: str = "ask",
        workspace: str | os.PathLike[str],
        home: str | os.PathLike[str] | None = None,
        source: str = "rules",
    ) -> PermissionPolicy:
        """
        Build a policy from the text of rules.

        Args:
            allow: Calls that run without a question.
            ask: Calls that somebody has to confirm.
            deny: Calls that never run.
            mode: What happens where no rule matches.
            workspace: Directory relative paths and the defaults refer to.
            home: What `~` means; the user's home when left out.
            source: Where the rules come from, for messages.

        Raises:
            ConfigError: The mode is unknown or a rule is malformed.
        """
        if mode not in MODES:
            raise ConfigError(f"{source}: permission mode {mode!r} is unknown; choose one of {', '.join(MODES)}")
        rules = (
            *parse_rules("deny", deny, source),
            *parse_rules("ask", ask, source),
            *parse_rules("allow", allow, source),
        )
        places = Places(os.fspath(workspace), os.fspath(home) if home is not None else os.path.expanduser("~"))
        return cls(rules=rules, mode=mode, places=places)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Rules that can never match, and why."""
        return tuple(
            f"{rule.source}: {rule.effect} rule {rule.text!r} can never match: {rule.complaint}"
            for rule in self.rules
            if rule.complaint is not None
        )

    def with_rules(self, rules: Iterable[Rule]) -> PermissionPolicy:
        """The same policy with further rules."""
        return attrs.evolve(self, rules=(*self.rules, *rules))

    def speaks_of(self, tool: str) -> bool:
        """Whether any rule is about this tool."""
        return any(rule.covers(tool) for rule in self.rules)

    def judge(
        self, tool: str, arguments: Mapping[str, Any], *, base: str | None = None, read_only: bool = False
    ) -> Verdict:
        """
        Judge one call.

        Args:
            tool: Name of the tool.
            arguments: Its arguments.
            base: Directory the call starts in; the workspace when left out.
            read_only: The tool is declared to change nothing; counts for tools this package does not know.

        Returns:
            The verdict of the strictest part, with all parts.
        """
        if tool == "bash":
            from dsh_permission.commands import CommandJudge

            return CommandJudge(self).judge(arguments, base)
        if tool in _READERS or tool in _WRITERS:
            return self._judge_file(tool, arguments, base)
        return strictest([self._judge_other(tool, arguments, read_only)])

    def proposal(self, tool: str, arguments: Mapping[str, Any], *, base: str | None = None) -> str | None:
        """
        The rule that "always" would store for a call: exactly this call and nothing wider (G-5).

        Returns:
            Its text, or None where nothing can be remembered: protected places, what cannot be read, several
            commands at once, or a call that an ask rule stops in any case.
        """
        verdict = self.judge(tool, arguments, base=base)
        if verdict.decision != "ask" or verdict.origin in ("protected", "unreadable"):
            return None
        text = self._exact_rule(tool, arguments, base, verdict)
        if text is None or len(text) > _LONGEST_RULE:
            return None
        trial = self.with_rules(parse_rules("allow", [text], "trial")).judge(tool, arguments, base=base)
        return text if trial.decision == "allow" else None

    def _exact_rule(self, tool: str, arguments: Mapping[str, Any], base: str | None, verdict: Verdict) -> str | None:
        if tool == "bash":
            asking = {part.subject for part in verdict.parts if part.decision == "ask"}
            return f"bash({asking.pop()})" if len(asking) == 1 else None
        if tool in _READERS or tool in _WRITERS:
            target = self._file_targets(tool, arguments, base)
            return f"{tool}({_glob_escape(self.places.relative(target[0].typed))})" if len(target) == 1 else None
        return f"{tool}({_glob_escape(_canonical(arguments))})"

    # -- files ---------------------------------------------------------------------------------------------

    def _judge_file(self, tool: str, arguments: Mapping[str, Any], base: str | None) -> Verdict:
        targets = self._file_targets(tool, arguments, base)
        if not targets:
            return strictest([Part(tool, "ask", None, f"{tool} names no path", "unreadable")])
        return strictest([self.judge_path(tool, target) for target in targets])

    def _file_targets(self, tool: str, arguments: Mapping[str, Any], base: str | None) -> list[Target]:
        path = next((arguments[key] for key in _PATH_KEYS if isinstance(arguments.get(key), str)), None)
        if tool in ("glob", "grep"):
            path = path or "."
            pattern = arguments.get("pattern" if tool == "glob" else "glob")
            paths = [path, *([_fixed_part(path, pattern)] if isinstance(pattern, str) else [])]
            return list(dict.fromkeys(self.places.target(item, base) for item in paths))
        return [] if not path or "\0" in path else [self.places.target(path, base)]

    def judge_path(self, tool: str, target: Target, *, whole_trees: bool = False) -> Part:
        """
        Judge one access to a path.

        Args:
            tool: The file tool whose rules and defaults apply.
            target: The path.
            whole_trees: The access may hit everything below the path.
        """
        subject = f"{tool} {target.typed}"
        writes = tool in _WRITERS
        found = [self._rule_on_path(rule, tool, target) for rule in self.rules]
        findings = [part for part in found if part is not None]
        if self.mode != "full-trust":
            reason = self.places.protected(target, whole_trees=whole_trees) if writes else None
            reason = reason or self.places.secret(target)
            if reason is not None:
                findings.append(Part(subject, "ask", None, reason, "protected"))
        if writes and self.mode == "plan":
            findings.append(Part(subject, "deny", None, "mode plan: nothing is written", "mode"))
        return strictest_part(subject, findings or [self._default_for_path(subject, writes, target)])

    def _rule_on_path(self, rule: Rule, tool: str, target: Target) -> Part | None:
        if not rule.covers(tool):
            return None
        if rule.pattern is not None:
            pattern = self.places.pattern(rule.pattern)
            hits = [self.places.matches(pattern, path) for path in target.both]
            if not (all(hits) if rule.effect == "allow" else any(hits)):
                return None
        return rule_part(rule, f"{tool} {target.typed}")

    def _default_for_path(self, subject: str, writes: bool, target: Target) -> Part:
        inside = self.places.inside(target)
        if self.mode == "full-trust":
            return Part(subject, "allow", None, "mode full-trust")
        if inside and not writes:
            return Part(subject, "allow", None, "a read inside the workspace")
        if inside and self.mode == "accept-edits":
            return Part(subject, "allow", None, "mode accept-edits: a write inside the workspace")
        what = "writes to" if writes else "reads"
        where = target.typed if target.typed == target.resolved else f"{target.typed} (really {target.resolved})"
        return Part(subject, "ask", None, f"it {what} {where}" + ("" if inside else ", outside the workspace"))

    # -- other tools ---------------------------------------------------------------------------------------

    def _judge_other(self, tool: str, arguments: Mapping[str, Any], read_only: bool) -> Part:
        text = _canonical(arguments)
        findings = [
            rule_part(rule, tool)
            for rule in self.rules
            if rule.covers(tool) and (rule.everything or fnmatch.fnmatchcase(text, rule.pattern or ""))
        ]
        quiet = read_only or tool in _HARMLESS
        if self.mode == "plan" and not quiet:
            findings.append(Part(tool, "deny", None, f"mode plan: {tool} may change something"))
        if findings:
            return strictest_part(tool, findings)
        if quiet or self.mode == "full-trust":
            return Part(tool, "allow", None, "it changes nothing" if quiet else "mode full-trust")
        return Part(tool, "ask", None, f"no rule speaks of this call of {tool}")


def rule_part(rule: Rule, subject: str) -> Part:
    """The verdict of a rule on a piece it matches."""
    verb: dict[Decision, str] = {"allow": "allowed", "ask": "a person is asked", "deny": "denied"}
    return Part(subject, rule.effect, rule.text, f"{verb[rule.effect]} by rule {rule.text} ({rule.source})", "rule")


def command_rule(texts: Iterable[str]) -> str:
    """A command as the subject of a part and as the pattern of a rule."""
    return escape_words(texts)


def _canonical(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _glob_escape(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _fixed_part(path: str, pattern: str) -> str:
    """The directory a file pattern cannot leave: its parts before the first one with pattern characters."""
    fixed: list[str] = []
    parts = pattern.split("/")
    for part in parts:
        if any(char in part for char in "*?[{"):
            break
        fixed.append(part)
    # `..` behind a pattern character still climbs; count it from the start, which errs on the safe side.
    climbs = [part for part in parts[len(fixed) :] if part == ".."]
    return os.path.join(path, "/".join(fixed) or ("/" if pattern.startswith("/") else "."), *climbs)
