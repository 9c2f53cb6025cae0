"""
What a plugin may answer where dsh asks for a decision.

One family per question; a value of another family counts as a failure of the plugin (H-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from dsh_core.content import Block, Context, ContextLike, as_blocks, as_contexts

if TYPE_CHECKING:
    from dsh_core.tools.definition import PendingCall

__all__ = [
    "Allow",
    "Approval",
    "ApprovalDecision",
    "ApprovalGranted",
    "ApprovalRefused",
    "Ask",
    "ContinuationDecision",
    "Continue",
    "Deny",
    "GateDecision",
    "PromptAllow",
    "PromptBlock",
    "PromptDecision",
    "ResultAccept",
    "ResultDecision",
    "ResultReject",
    "Retry",
    "Stop",
]


def _contexts(value: ContextLike | None) -> tuple[Context, ...]:
    return as_contexts(value)


def _content(value: Any) -> tuple[Block, ...] | None:
    return None if value is None else as_blocks(value)


@attrs.frozen
class Allow:
    """
    A gate lets the call through.

    Args:
        arguments: Run the call with these instead; all gates judge them again (L-13).
    """

    arguments: Mapping[str, Any] | None = attrs.field(default=None, hash=False)


@attrs.frozen
class Ask:
    """
    A gate wants somebody to be asked.

    Args:
        reason: Shown with the question.
        rule: The rule that "always" would store, or None when nothing can be remembered.
    """

    reason: str
    rule: str | None = None


@attrs.frozen
class Deny:
    """A gate refuses the call; the model is told `reason`."""

    reason: str


GateDecision: TypeAlias = Allow | Ask | Deny


@attrs.frozen
class PromptAllow:
    """
    A prompt may run.

    Args:
        content: Replaces the prompt's content; None keeps it.
        context: Notes that follow the prompt.
    """

    content: tuple[Block, ...] | None = attrs.field(default=None, converter=_content)
    context: tuple[Context, ...] = attrs.field(default=None, converter=_contexts)


@attrs.frozen
class PromptBlock:
    """A prompt must not run; the model never sees it."""

    reason: str


PromptDecision: TypeAlias = PromptAllow | PromptBlock


@attrs.frozen
class ResultAccept:
    """
    A tool result may go to the model; `is_error` and `meta` stay as they are.

    Args:
        content: Replaces the result's content; None keeps it.
        context: Notes that follow the batch of results.
    """

    content: tuple[Block, ...] | None = attrs.field(default=None, converter=_content)
    context: tuple[Context, ...] = attrs.field(default=None, converter=_contexts)


@attrs.frozen
class ResultReject:
    """A tool result is withheld: the model gets `feedback` as an error, `meta` is dropped."""

    feedback: tuple[Block, ...] = attrs.field(converter=as_blocks)
    context: tuple[Context, ...] = attrs.field(default=None, converter=_contexts)


ResultDecision: TypeAlias = ResultAccept | ResultReject


@attrs.frozen
class Stop:
    """
    The turn ends here.

    Args:
        reason: Why, in words.
        code: Given for a limit: it stands against pending steering (L-17) and the turn ends `limit`.
    """

    reason: str | None = None
    code: str | None = None


@attrs.frozen
class Continue:
    """
    Another step follows.

    Args:
        reason: Recorded as steering, so that the model knows why it goes on.
    """

    reason: str | None = None


ContinuationDecision: TypeAlias = Stop | Continue


@attrs.frozen
class Retry:
    """Repeat the request in the same step after `delay` seconds (L-4)."""

    delay: float = 0.0


@attrs.frozen
class ApprovalGranted:
    """
    Somebody said yes.

    Args:
        remember: None for this once, `"session"`, or `"project"`.
    """

    remember: Literal["session", "project"] | None = None


@attrs.frozen
class ApprovalRefused:
    """Somebody said no, with a note to the model if there is one."""

    reason: str | None = None


ApprovalDecision: TypeAlias = ApprovalGranted | ApprovalRefused


@attrs.frozen
class Approval:
    """
    A question that waits for an answer.

    Args:
        id: Unique in the session; an answer is used once.
        call: The call in its final form.
        reason: Why the gate asks.
        rule: What "always" would store.
        agent_id: The agent that wants to make the call.
    """

    id: str
    call: PendingCall
    reason: str
    rule: str | None
    agent_id: str
