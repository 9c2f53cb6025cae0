"""
A question to whoever may answer it, and what the answer is worth (L-14).
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from dsh_core.decisions import Approval, ApprovalGranted, ApprovalRefused
from dsh_core.hooks import AnswererFailed
from dsh_core.session.events import ApprovalAskedEvent, ApprovalDecidedEvent
from dsh_core.tools.body import cancelled_from_outside
from dsh_core.tools.gates import Log, Verdict

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.decisions import ApprovalDecision
    from dsh_core.hooks import Hooks
    from dsh_core.tools.definition import PendingCall
    from dsh_core.tools.settings import ToolSettings

__all__ = ["ask"]

Outcome: TypeAlias = Literal["approved", "rejected", "timeout", "cancelled", "unavailable"]


@attrs.frozen
class _Answer:
    """What a question came to: its outcome, who gave it, and the text for the model if it is no."""

    outcome: Outcome
    by: str | None = None
    remember: str | None = None
    text: str = ""


_CANCELLED = _Answer("cancelled", text="the turn was cancelled while somebody was asked")


async def ask(
    hooks: Hooks, agent: Agent, call: PendingCall, verdict: Verdict, *, log: Log, settings: ToolSettings
) -> Verdict:
    """
    Ask whether a call may run. Question and answer are logged; no answer is no.

    Args:
        hooks: The harness's hooks.
        agent: The agent that wants to make the call.
        call: The call in its final form.
        verdict: The verdict that somebody has to be asked.
        log: Takes `approval/asked` and `approval/decided`.
        settings: Who may grant, and how long to wait.

    Returns:
        `run`, or `deny` with a text that tells a person's refusal from a question nobody answered.

    Raises:
        asyncio.CancelledError: Cancelled meanwhile; the question is logged as cancelled.
    """
    approval = Approval(f"approval-{uuid.uuid4().hex}", call, verdict.reason or "", verdict.rule, agent.id)
    log(ApprovalAskedEvent(approval.id, call.call_id, call.name, dict(call.arguments), approval.reason, approval.rule))
    try:
        answer = await _answer(hooks, agent, approval, settings)
    except BaseException:
        _settle(hooks, agent, approval, _CANCELLED, log)
        raise
    _settle(hooks, agent, approval, answer, log)
    if answer.outcome == "approved":
        return Verdict("run", call, plugin=answer.by)
    return Verdict("deny", call, f"This call did not run: {answer.text}", plugin=answer.by)


async def _answer(hooks: Hooks, agent: Agent, approval: Approval, settings: ToolSettings) -> _Answer:
    def may_grant(plugin: str) -> bool:
        return hooks.trusts(plugin) if settings.approver is None else plugin == settings.approver

    try:
        async with asyncio.timeout(settings.approval_timeout) as limit:
            decision, plugin = await hooks.approval_request(agent=agent, approval=approval, may_grant=may_grant)
    except asyncio.CancelledError:
        if cancelled_from_outside():
            raise
        return _Answer("unavailable", text="it needs an approval, and whoever was to be asked gave up.")
    except Exception as error:  # noqa: BLE001 - an answerer that fails has not said yes
        if limit.expired():
            return _timed_out(settings)
        return _Answer("unavailable", text=f"it needs an approval, and asking for it failed ({error}).")
    # An answer that comes although the question was withdrawn is too late.
    if cancelled_from_outside():
        raise asyncio.CancelledError
    if limit.expired():
        return _timed_out(settings)
    return _worth(decision, plugin, plugin is not None and may_grant(plugin), approval, settings)


def _timed_out(settings: ToolSettings) -> _Answer:
    return _Answer("timeout", text=f"it needs an approval, and nobody answered within {settings.approval_timeout:g} s.")


def _worth(
    decision: ApprovalDecision | None, plugin: str | None, entitled: bool, approval: Approval, settings: ToolSettings
) -> _Answer:
    """What an answer counts for, given who gave it."""
    if isinstance(decision, AnswererFailed):
        return _Answer("unavailable", plugin, text=f"it needs an approval, and {decision.reason}.")
    if isinstance(decision, ApprovalRefused):
        who = "the user refused it" if entitled else f"plugin {plugin!r} refused it"
        note = f", with this note: {decision.reason}" if decision.reason else "."
        return _Answer("rejected", plugin, text=who + note)
    if isinstance(decision, ApprovalGranted) and entitled:
        return _Answer("approved", plugin, decision.remember if approval.rule is not None else None)
    return _Answer("unavailable", text=f"it needs an approval, and {_why_nobody(settings)}.")


def _why_nobody(settings: ToolSettings) -> str:
    # What a plugin grants that may not grant is passed over, so that the right one is still asked.
    if settings.approver is None:
        return "there is nobody who could be asked: no plugin that was handed in by code answered"
    return f"plugin {settings.approver!r}, which alone may grant one, did not answer"


def _settle(hooks: Hooks, agent: Agent, approval: Approval, answer: _Answer, log: Log) -> None:
    log(ApprovalDecidedEvent(approval.id, approval.call.call_id, answer.outcome, answer.remember, answer.by))
    hooks.approval_decided(agent=agent, approval=approval, outcome=answer.outcome)
