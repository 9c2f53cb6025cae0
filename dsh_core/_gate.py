"""
How gates are asked: all of them, whatever one of them does; the strictest wins (H-1).

A gate that raises, hangs, exits or answers nonsense has denied, and is named. Nothing a plugin does here can
loosen what another one said.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core._failures import Failed, blame, describe, wrong_result
from dsh_core._invoke import Pending, Step, begin
from dsh_core._results import check_type, join
from dsh_core._wrappers import Opened, close_all, close_one, open_one
from dsh_core.decisions import Allow, Ask, Deny, GateDecision

if TYPE_CHECKING:
    from dsh_core._plans import Plan

__all__ = ["GateOutcome", "gate"]


@attrs.frozen
class GateOutcome:
    """
    What the gates said.

    Args:
        decision: The strictest opinion, the earliest of several; None when nobody had one.
        opinions: Plugin and decision of all who had one; a gate that failed counts as `Deny`.
    """

    decision: GateDecision | None
    opinions: tuple[tuple[str, GateDecision], ...] = ()


async def gate(plan: Plan, args: Sequence[Any]) -> GateOutcome:
    """Ask every gate, wrappers included; a failure of one is its `Deny`."""
    asked = _Gates(plan, args)
    if plan.wrappers:
        asked.open()
    try:
        for step in plan.steps:
            try:
                decision = begin(step, args)
                if type(decision) is Pending:
                    decision = await decision
                asked.take(step.plugin, decision)
            except BaseException as error:  # noqa: BLE001 - handed on
                asked.denies(step, error)
    except BaseException as error:
        asked.abandon(error)
        raise
    if asked.opened:
        asked.close()
    return GateOutcome(asked.decision, tuple(asked.opinions))


class _Gates:
    """One question to all gates: the opinions so far."""

    __slots__ = ("args", "decision", "opened", "opinions", "plan")

    def __init__(self, plan: Plan, args: Sequence[Any]) -> None:
        self.plan = plan
        self.args = args
        self.opened: Opened = []
        self.opinions: list[tuple[str, GateDecision]] = []
        self.decision: GateDecision | None = None

    def open(self) -> None:
        for step in self.plan.wrappers:
            try:
                self.opened.append((step, open_one(step, self.args)))
            except BaseException as error:  # noqa: BLE001 - handed on
                self.denies(step, error)

    def take(self, plugin: str, decision: Any) -> None:
        """Note an opinion; raises for what is none."""
        if type(decision) is Allow and decision.arguments is None and self.decision is None:
            self.opinions.append((plugin, decision))  # what nearly every gate says of nearly every call
            self.decision = decision
        else:
            self._check(decision)
            self._add(plugin, decision)

    def close(self) -> None:
        """A wrapper is given the decision so far; what it makes of it can only tighten."""
        for step, generator in reversed(self.opened):
            try:
                decision = close_one(step, generator, self.decision, None)
                self._check(decision)
            except BaseException as error:  # noqa: BLE001 - handed on
                self.denies(step, error)
            else:
                if decision is not self.decision:
                    self._add(step.plugin, decision)

    def abandon(self, error: BaseException) -> None:
        """Let the wrappers see that the whole question is being stopped; none of them can answer it now."""
        with suppress(Failed):
            close_all(self.opened, None, Failed(error, None), lambda before, returned, plugin: before)

    def _check(self, decision: Any) -> None:
        if decision is None:
            return
        check_type(decision, (Allow, Ask, Deny))
        if isinstance(decision, Allow) and decision.arguments is not None and not hasattr(decision.arguments, "keys"):
            raise wrong_result(decision, "Allow(arguments=...) with a mapping")
        if isinstance(decision, Ask | Deny) and not isinstance(decision.reason, str):
            raise wrong_result(decision, f"{type(decision).__name__} with a text as its reason")

    def _add(self, plugin: str, decision: GateDecision | None) -> None:
        if decision is not None:
            self.opinions.append((plugin, decision))
            self.decision = join(self.decision, decision)

    def denies(self, step: Step, error: BaseException) -> None:
        if blame(error, step.plugin).plugin is None:
            raise error
        self.plan.failed(step.plugin, error, self.args)
        self._add(step.plugin, Deny(f"plugin {step.plugin!r} could not judge the call: {describe(error)}"))
