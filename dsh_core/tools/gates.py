"""
What the gates say of a call: the strictest opinion wins, on the form the model wrote and on the form that
would run (L-13, L-15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import msgspec

from dsh_core.decisions import Allow, Ask, Deny
from dsh_core.session.events import ToolRewrittenEvent
from dsh_core.tools.arguments import InvalidArguments
from dsh_core.tools.validate import BrokenSchema, check_arguments

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.decisions import GateDecision
    from dsh_core.hooks import GateOutcome, Hooks
    from dsh_core.tools.definition import PendingCall
    from dsh_core.tools.registry import ToolRegistry
    from dsh_core.tools.settings import ToolSettings

__all__ = ["Log", "Verdict", "denial", "judge"]

Log: TypeAlias = Callable[[Any], object]
"""Appends event data to the session."""

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


@attrs.frozen
class Verdict:
    """
    What became of a call before its body.

    Args:
        kind: `run`, `deny`, or `ask` as long as somebody has to be asked.
        call: The call in its final form.
        reason: For `deny` the text for the model, for `ask` the text for the person.
        rule: For `ask`, what "always" would store.
        plugin: Whose opinion it is, or None.
    """

    kind: Literal["run", "deny", "ask"]
    call: PendingCall
    reason: str | None = None
    rule: str | None = None
    plugin: str | None = None


def denial(call: PendingCall, reason: str, plugin: str | None = None) -> Verdict:
    """A call that must not run, in words for the model."""
    return Verdict("deny", call, f"This call was denied and did not run: {reason}", plugin=plugin)


async def judge(
    hooks: Hooks, registry: ToolRegistry, agent: Agent, call: PendingCall, *, log: Log, settings: ToolSettings
) -> Verdict:
    """
    Ask the gates about a call with valid arguments.

    Args:
        hooks: The harness's hooks.
        registry: Its tools, which know who brought them.
        agent: The agent that wants to make the call.
        call: The call as the model wrote it.
        log: Takes `tool/rewritten`.
        settings: How calls are approved.

    Returns:
        What to do, with the call in its final form.
    """
    first = await hooks.tools_pre_execute(agent=agent, call=call)
    decision = first.decision
    if decision is None:
        return _by_default(registry, call)
    if type(decision) is Allow and decision.arguments is None:
        return Verdict("run", call)  # the strictest opinion is this, so nobody asks, denies or rewrites
    if isinstance(decision, Deny):
        return _denied(call, first)
    rewrites = _rewrites(first, call)
    if not rewrites:
        return _combined(call, [first])
    if len(rewrites) > 1:
        return _conflict(call, [plugin for plugin, _ in rewrites])
    return await _judge_rewritten(hooks, agent, call, first, rewrites[0], log)


async def _judge_rewritten(
    hooks: Hooks, agent: Agent, call: PendingCall, first: GateOutcome, rewrite: _Rewrite, log: Log
) -> Verdict:
    plugin, arguments = rewrite
    try:
        final = attrs.evolve(call, arguments=check_arguments(call.definition, arguments))
    except InvalidArguments as error:
        problems = "; ".join(error.problems)
        return denial(
            call, f"plugin {plugin!r} rewrote its arguments into a form that is not valid: {problems}", plugin
        )
    except BrokenSchema as error:
        return denial(call, f"the tool's schema cannot be used ({error})", plugin)
    log(ToolRewrittenEvent(call.call_id, dict(final.arguments), plugin or ""))
    second = await hooks.tools_pre_execute(agent=agent, call=final)
    if isinstance(second.decision, Deny):
        return _denied(final, second)
    again = _rewrites(second, final)
    if again:
        return _conflict(final, [plugin, *(other for other, _ in again)])
    return _combined(final, [second, first])


# -- rewriting -------------------------------------------------------------------------------------------

_Rewrite: TypeAlias = tuple[str | None, Any]


def _rewrites(outcome: GateOutcome, call: PendingCall) -> list[_Rewrite]:
    """The different forms that gates want in place of the present one, each with the first who wants it."""
    forms: dict[bytes, _Rewrite] = {}
    for plugin, opinion in _opinions(outcome):
        if isinstance(opinion, Allow) and opinion.arguments is not None:
            forms.setdefault(_form(opinion.arguments), (plugin, opinion.arguments))
    # A gate that always answers with the form it wants is content once the call has that form.
    forms.pop(_form(call.arguments), None)
    return list(forms.values())


def _form(arguments: Any) -> bytes:
    """Arguments as comparable bytes; unlike `==`, this tells 1 from True."""
    try:
        return _ENCODER.encode(dict(arguments))
    except Exception:  # noqa: BLE001 - not JSON: validation will say so
        return repr(arguments).encode("utf-8", "replace")


def _conflict(call: PendingCall, plugins: Iterable[str | None]) -> Verdict:
    named = " and ".join(dict.fromkeys(repr(plugin) for plugin in plugins if plugin))
    return denial(call, f"plugins rewrite its arguments against each other ({named or 'unnamed'}); this is a conflict")


# -- opinions --------------------------------------------------------------------------------------------


def _opinions(outcome: GateOutcome) -> Sequence[tuple[str | None, GateDecision]]:
    if outcome.opinions or outcome.decision is None:
        return outcome.opinions
    return ((None, outcome.decision),)


def _denied(call: PendingCall, outcome: GateOutcome) -> Verdict:
    decision = outcome.decision
    assert isinstance(decision, Deny)
    plugin = next((plugin for plugin, opinion in _opinions(outcome) if opinion == decision), None)
    return denial(call, decision.reason or "no reason was given", plugin)


def _combined(call: PendingCall, outcomes: Sequence[GateOutcome]) -> Verdict:
    """Ask if anybody asked, in either form; only a rule made for the final form (the first outcome) is kept."""
    asked = [
        (plugin, opinion, outcome is outcomes[0])
        for outcome in outcomes
        for plugin, opinion in [*_opinions(outcome), (None, outcome.decision)]
        if isinstance(opinion, Ask)
    ]
    if not asked:
        return Verdict("run", call)
    reasons = "; ".join(dict.fromkeys(opinion.reason for _, opinion, _ in asked))
    rule = next((opinion.rule for _, opinion, final in asked if final and opinion.rule is not None), None)
    return Verdict("ask", call, reasons, rule, asked[0][0])


def _by_default(registry: ToolRegistry, call: PendingCall) -> Verdict:
    """With no opinion, what came in by code runs; an autoloaded plugin's tool asks unless it only reads."""
    brought = call.registered or registry.entry(call.name)
    if brought is None or brought.origin == "code" or call.definition.read_only:
        return Verdict("run", call)
    return Verdict(
        "ask", call, f"{brought.origin_text} was loaded by itself and brings this tool; no rule speaks of it"
    )
