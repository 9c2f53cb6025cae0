"""
How an awaited hook runs: one executor per mode, over plans (H-1, H-3); gates and around hooks have their own modules.

Inside, failures travel as `Failed`; the facade turns them into what its callers see. Wrappers go round the
whole chain. A cancellation of the running task and `KeyboardInterrupt` pass through everywhere, after the
wrappers have seen them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from dsh_core._failures import Failed, at_the_edge, blame, wrong_result
from dsh_core._invoke import Pending, Step, begin
from dsh_core._results import check_type
from dsh_core._wrappers import inside_wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_core._plans import Plan

__all__ = ["checkpoint", "contained_checkpoint", "drain", "first", "transform"]


def _nothing(before: Any, returned: Any, plugin: str) -> None:
    if returned is not None:
        raise wrong_result(returned, "nothing")


# -- transform -------------------------------------------------------------------------------------------


async def transform(plan: Plan, args: list[Any]) -> tuple[Any, str | None]:
    """
    Hand the value from one implementation to the next.

    Args:
        plan: The plan.
        args: The arguments; the value among them is replaced as the chain goes on.

    Returns:
        The value, and the plugin that changed it last.

    Raises:
        HookError: A plugin failed.
    """
    if plan.wrappers:
        return await _transform_in_wrappers(plan, _Chain(plan, args))
    chain: _Chain | None = None  # made when somebody changes something
    index, ends = plan.spec.value, plan.spec.ends
    assert index is not None
    for step in plan.steps:  # as `_Chain.run`, written out: this is the usual case, several times a step
        try:
            result = begin(step, args)
            if type(result) is Pending:
                result = await result
            if result is not None:
                chain = chain or _Chain(plan, args)
                args[index] = chain.accept(args[index], result, step.plugin)
        except BaseException as error:  # noqa: BLE001 - handed on
            failed = blame(error, step.plugin)
        else:
            if result is not None and ends is not None and isinstance(result, ends):
                break
            continue
        raise at_the_edge(failed, plan.spec.name)
    return args[index], None if chain is None else chain.changed_by


async def _transform_in_wrappers(plan: Plan, chain: _Chain) -> tuple[Any, str | None]:
    try:
        value = await inside_wrappers(plan.wrappers, chain.args, chain.run, chain.accept, chain.args[chain.index])
        return value, chain.changed_by
    except Failed as error:
        failed = error
    raise at_the_edge(failed, plan.spec.name)


class _Chain:
    """One run of a transform: the value on its way."""

    __slots__ = ("args", "changed_by", "index", "plan", "types")

    def __init__(self, plan: Plan, args: list[Any]) -> None:
        spec = plan.spec
        self.plan = plan
        self.args = args
        self.index: int = spec.value  # type: ignore[assignment]  # a transform has one
        self.types = spec.results
        if self.types is None and spec.plugin is None:
            self.types = (type(args[self.index]),)
        self.changed_by: str | None = None

    async def run(self) -> Any:
        args, index, ends = self.args, self.index, self.plan.spec.ends
        for step in self.plan.steps:
            try:
                result = begin(step, args)
                if type(result) is Pending:
                    result = await result
                if result is None:
                    continue
                args[index] = self.accept(args[index], result, step.plugin)
            except BaseException as error:  # noqa: BLE001 - handed on
                raise blame(error, step.plugin) from None
            if ends is not None and isinstance(result, ends):
                break
        return args[index]

    def accept(self, current: Any, new: Any, plugin: str) -> Any:
        """The value after `plugin` returned `new`; None means unchanged."""
        if new is None:
            return current
        check_type(new, self.types)
        if self.plan.spec.merge is not None:
            new = self.plan.spec.merge(current, new, plugin)
        if new is not current:
            self.changed_by = plugin
        return new


# -- checkpoint, drain -----------------------------------------------------------------------------------


async def checkpoint(plan: Plan, args: Sequence[Any]) -> None:
    """
    Run one after the other; the first failure ends it.

    Raises:
        HookError: A plugin failed.
    """

    await _run_all(plan, args, None)


async def contained_checkpoint(plan: Plan, args: Sequence[Any]) -> None:
    """Run one after the other, each failure reported and contained."""

    def contain(failed: Failed) -> None:
        plan.failed(failed.plugin or "", failed.error, args)

    await _run_all(plan, args, contain)


async def drain(plan: Plan, args: Sequence[Any]) -> None:
    """
    Run all, also after a failure.

    Raises:
        ExceptionGroup: A `HookError` for each plugin that failed, in call order.
    """
    failures: list[Failed] = []
    if plan.wrappers:
        await _run_all(plan, args, failures.append)
    elif (ended := await _each(plan, args, failures.append)) is not None:
        raise at_the_edge(ended, plan.spec.name)
    if failures:
        name = plan.spec.name
        errors = [error for each in failures if isinstance(error := at_the_edge(each, name), Exception)]
        raise ExceptionGroup(f"hook {name!r} failed in {len(errors)} of its implementations", errors)


async def _each(plan: Plan, args: Sequence[Any], contain: Callable[[Failed], None] | None) -> Failed | None:
    """Run the implementations; returns the failure that ended it, if one did."""
    for step in plan.steps:
        try:
            result = begin(step, args)
            if type(result) is Pending:
                result = await result
            if result is not None:
                _nothing(None, result, step.plugin)
        except BaseException as error:  # noqa: BLE001 - handed on
            failed = blame(error, step.plugin)
        else:
            continue
        if failed.plugin is None or contain is None:
            return failed
        contain(failed)
    return None


async def _run_all(plan: Plan, args: Sequence[Any], contain: Callable[[Failed], None] | None) -> None:
    """Run a chain whose implementations return nothing; without `contain` the first failure ends it."""

    async def chain() -> None:
        ended = await _each(plan, args, contain)
        if ended is not None:
            raise ended

    failed: Failed | None = None
    if not plan.wrappers:
        failed = await _each(plan, args, contain)
    else:
        try:
            await inside_wrappers(plan.wrappers, args, chain, _nothing)
        except Failed as error:
            failed = error
    if failed is None:
        return
    if failed.plugin is None or contain is None:
        raise at_the_edge(failed, plan.spec.name)
    contain(failed)


# -- first -----------------------------------------------------------------------------------------------


async def first(
    plan: Plan,
    args: Sequence[Any],
    *,
    refused: Callable[[BaseException, str], Any] | None = None,
    admits: Callable[[Any, str], bool] | None = None,
) -> tuple[Any, str | None]:
    """
    Ask until one answers; a failure is reported and the next one is asked.

    Args:
        plan: The plan.
        args: The arguments.
        refused: Makes a failure the answer instead.
        admits: Whether a plugin may give this answer; else it is passed over.

    Returns:
        The answer, and who gave it.
    """
    asking = _Asking(plan, args, refused, admits)
    try:
        if plan.wrappers:
            answer = await inside_wrappers(plan.wrappers, args, asking.run, asking.accept)
        else:
            answer = await asking.run()
        return answer, asking.answered_by
    except Failed as error:
        failed = error
    if failed.plugin is None:
        raise failed.error
    return asking.failed(failed), failed.plugin if refused is not None else None


@attrs.define
class _Asking:
    """One question to whoever answers first."""

    plan: Plan
    args: Sequence[Any]
    refused: Callable[[BaseException, str], Any] | None
    admits: Callable[[Any, str], bool] | None
    answered_by: str | None = None

    async def run(self) -> Any:
        for step in self.plan.steps:
            answer = await self._ask(step)
            if answer is not None and (self.admits is None or self.admits(answer, step.plugin)):
                self.answered_by = step.plugin
                return answer
        return None

    async def _ask(self, step: Step) -> Any:
        try:
            answer = begin(step, self.args)
            if type(answer) is Pending:
                answer = await answer
            return answer if answer is None else check_type(answer, self.plan.spec.results)
        except BaseException as error:  # noqa: BLE001 - handed on
            failed = blame(error, step.plugin)
        if failed.plugin is None:
            raise failed
        return self.failed(failed)

    def failed(self, failed: Failed) -> Any:
        """Report a failure; the answer it counts as."""
        plugin = failed.plugin or ""
        self.plan.failed(plugin, failed.error, self.args)
        return None if self.refused is None else self.refused(failed.error, plugin)

    def accept(self, before: Any, returned: Any, plugin: str) -> Any:
        """The answer after a wrapper: None takes it back, as in pluggy."""
        if returned is before:
            return before
        if returned is not None:
            check_type(returned, self.plan.spec.results)
            if self.admits is not None and not self.admits(returned, plugin):
                return before
        self.answered_by = plugin if returned is not None else None
        return returned
