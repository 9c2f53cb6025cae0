"""
The plugin: it joins rules from every source, judges each call, and remembers answers.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from dsh_core import hookimpl
from dsh_core.config import state_dir
from dsh_core.decisions import Allow, Ask, Deny
from dsh_core.errors import ConfigError
from dsh_core.session.events import ApprovalAskedEvent, ApprovalDecidedEvent
from dsh_permission.grants import ProjectGrants
from dsh_permission.policy import MODES, PermissionPolicy
from dsh_permission.rules import Decision, Rule, parse_rules

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.decisions import GateDecision
    from dsh_core.harness import Harness
    from dsh_core.session import Session, SessionEvent
    from dsh_core.tools import PendingCall
    from dsh_permission.verdict import Verdict

__all__ = ["PermissionConfig", "PermissionPlugin"]

_log: Final = logging.getLogger("dsh")
_EFFECTS: Final[tuple[Decision, ...]] = ("deny", "ask", "allow")
_TYPES: Final = frozenset({"approval/asked", "approval/decided"})
_KEYS: Final = frozenset({"mode", "allow", "ask", "deny"})


@attrs.frozen(kw_only=True)
class PermissionConfig:
    """
    `[plugins.permission]`.

    Args:
        mode: `ask`, `accept-edits`, `plan` or `full-trust`.
        allow: Rules for calls that run without a question.
        ask: Rules for calls that somebody has to confirm.
        deny: Rules for calls that never run.
    """

    mode: str = "ask"
    allow: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    ask: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    deny: tuple[str, ...] = attrs.field(default=(), converter=tuple)


@attrs.define(eq=False)
class _SessionAnswers:
    """Open questions and remembered answers of one session."""

    workspace: str
    asked: dict[str, ApprovalAskedEvent] = attrs.field(factory=dict)
    rules: tuple[Rule, ...] = ()


class PermissionPlugin:
    """
    The permission gate.

    Args:
        config: Rules and mode; those of the harness's `permissions` table are added.
    """

    name: ClassVar[str] = "permission"
    Config: ClassVar[type[PermissionConfig]] = PermissionConfig

    def __init__(self, config: PermissionConfig | None = None) -> None:
        self.config = config or PermissionConfig()
        self._harness: Harness | None = None
        self._grants = ProjectGrants(state_dir())
        self._rules: tuple[Rule, ...] = ()
        self._mode = self.config.mode
        self._policies: dict[str, PermissionPolicy] = {}
        self._answers: dict[str, _SessionAnswers] = {}

    # -- loading -------------------------------------------------------------------------------------------

    @hookimpl
    def register(self, harness: Harness) -> None:
        """
        Join the rules of all sources.

        Raises:
            ConfigError: A rule or the mode is malformed, or the remembered rules are damaged.
        """
        self._harness = harness
        self._policies.clear()
        table = getattr(harness.config, "permissions", None) or {}
        self._mode, self._rules = _joined(self.config, table)
        self._grants = ProjectGrants(state_dir())
        self._grants.load()
        for warning in self._policy(os.getcwd()).warnings:
            _log.warning("%s", warning)

    # -- judging -------------------------------------------------------------------------------------------

    @hookimpl
    def tools_pre_execute(self, agent: Agent, call: PendingCall) -> GateDecision | None:
        """Judge one call; the denials of every ancestor bind it too (G-7)."""
        workspace = _workspace(agent.session)
        for ancestor in _ancestors(agent):
            above = self._policy_of(ancestor.session).judge(call.name, call.arguments, base=workspace)
            if above.decision == "deny":
                return Deny(f"{above.reason}; the rule binds agent {ancestor.id!r} and its descendants")
        policy = self._policy_of(agent.session)
        verdict = policy.judge(call.name, call.arguments, read_only=call.definition.read_only)
        if verdict.decision == "deny":
            return Deny(visible(verdict.reason))
        if verdict.decision == "allow":
            return None if verdict.origin == "mode" and self._leaves_to_default(call, policy) else Allow()
        if self._leaves_to_default(call, policy) and self._is_opinionless(verdict, call, policy):
            return None
        return Ask(_question(call, verdict), policy.proposal(call.name, call.arguments))

    def _leaves_to_default(self, call: PendingCall, policy: PermissionPolicy) -> bool:
        """In mode `ask`, tools the embedder brought in by code run unless a rule speaks of them (L-15)."""
        if policy.mode != "ask" or self._harness is None:
            return False
        return self._harness.tools.origin(call.name) == "code"

    @staticmethod
    def _is_opinionless(verdict: Verdict, call: PendingCall, policy: PermissionPolicy) -> bool:
        if verdict.origin == "unreadable":
            return not policy.speaks_of(call.name)
        return verdict.origin == "mode"

    def policy_for(self, agent: Agent) -> PermissionPolicy:
        """The policy that judges the calls of an agent, its remembered answers included."""
        return self._policy_of(agent.session)

    def _policy_of(self, session: Session) -> PermissionPolicy:
        policy = self._policy(_workspace(session))
        rules = self._answers_of(session).rules
        return policy.with_rules(rules) if rules else policy

    def _policy(self, workspace: str) -> PermissionPolicy:
        policy = self._policies.get(workspace)
        if policy is None:
            bare = PermissionPolicy.from_rules(mode=self._mode, workspace=workspace)
            policy = bare.with_rules((*self._rules, *self._grants.rules(workspace)))
            self._policies[workspace] = policy
        return policy

    # -- remembered answers --------------------------------------------------------------------------------

    @hookimpl
    def session_event(self, session: Session, event: SessionEvent) -> None:
        """Learn of questions and answers from the log."""
        if event.type in _TYPES:
            answers = self._answers_of(session, before=event.seq)
            rule = self._fold(answers, event)
            if rule is not None and event.data.remember == "project":
                self._remember(answers.workspace, rule)

    @hookimpl
    def session_disposed(self, session: Session) -> None:
        """Forget what was remembered for a session; its log still holds it."""
        self._answers.pop(session.id, None)

    def _answers_of(self, session: Session, *, before: int | None = None) -> _SessionAnswers:
        """What was answered in a session; its log is folded when it is met for the first time."""
        answers = self._answers.get(session.id)
        if answers is None:
            answers = self._answers[session.id] = _SessionAnswers(_workspace(session))
            for event in session.events[session.header.seed_length : before]:
                if event.type in _TYPES:
                    self._fold(answers, event)
        return answers

    def _fold(self, answers: _SessionAnswers, event: SessionEvent) -> str | None:
        """Take one event in; the rule it remembers is returned."""
        data = event.data
        if isinstance(data, ApprovalAskedEvent):
            answers.asked[data.approval_id] = data
        elif isinstance(data, ApprovalDecidedEvent):
            asked = answers.asked.pop(data.approval_id, None)
            if asked is not None and data.outcome == "approved" and data.remember and self._is_own(answers, asked):
                source = f"remembered for this {data.remember}"
                answers.rules = (*answers.rules, *parse_rules("allow", [asked.rule or ""], source))
                return asked.rule
        return None

    def _is_own(self, answers: _SessionAnswers, asked: ApprovalAskedEvent) -> bool:
        """Whether the displayed rule is the one this gate proposes for the call, and so nothing wider (G-5)."""
        policy = self._policy(answers.workspace).with_rules(answers.rules)
        return asked.rule is not None and policy.proposal(asked.name, asked.arguments) == asked.rule

    def _remember(self, workspace: str, rule: str) -> None:
        try:
            self._grants.add(workspace, rule)
        except (OSError, ConfigError) as error:
            _log.warning("the answer is kept for this session only, because %s cannot be written: %s",
                         self._grants.path, error)  # fmt: skip
            return
        self._policies.clear()


def _joined(config: PermissionConfig, table: Mapping[str, Any]) -> tuple[str, tuple[Rule, ...]]:
    faults = [f"permissions.{key} is unknown; use {', '.join(sorted(_KEYS))}" for key in table if key not in _KEYS]
    mode = table.get("mode", config.mode)
    if mode not in MODES:
        faults.append(f"permission mode {mode!r} is unknown; choose one of {', '.join(MODES)}")
    rules: list[Rule] = []
    for effect in _EFFECTS:
        for texts, source in (
            (getattr(config, effect), f"plugins.permission.{effect}"),
            (table.get(effect, ()), f"permissions.{effect}"),
        ):
            try:
                rules += parse_rules(effect, texts, source)
            except ConfigError as error:
                faults.append(error.message)
    if faults:
        raise ConfigError("\n".join(faults))
    return str(mode), tuple(rules)


def _ancestors(agent: Agent) -> Iterator[Agent]:
    parent = getattr(agent, "parent", None)
    while parent is not None:
        yield parent
        parent = getattr(parent, "parent", None)


def _workspace(session: Session) -> str:
    return session.header.cwd or os.getcwd()


def _question(call: PendingCall, verdict: Verdict) -> str:
    pieces = [part for part in verdict.parts if part.decision == "ask"]
    reasons = dict.fromkeys(f"{part.subject}: {part.reason}" for part in pieces) or {verdict.reason: None}
    return visible(f"{call.name} wants to run: " + "; ".join(reasons))


def visible(text: str) -> str:
    """Text with every character that would not show, or would change how others show, made visible."""
    return "".join(
        char if char in "\n " or (char.isprintable() and unicodedata.category(char) not in ("Cf", "Cc", "Co")) else
        char.encode("unicode_escape", "backslashreplace").decode() for char in text
    )  # fmt: skip
