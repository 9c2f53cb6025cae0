"""
Around hooks: implementations nested round the real thing.

What `call_next` runs is what was judged and logged, so it takes no arguments, and it runs once. A failure of
the real thing comes out unchanged, whichever plugins it passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh_core._failures import Failed, at_the_edge, blame, wrong_result
from dsh_core._invoke import Pending, Step, begin
from dsh_core._ownership import InFlight, acting
from dsh_core._results import check_type
from dsh_core._wrappers import inside_wrappers
from dsh_core.errors import HarnessError, LlmError, ToolError

if TYPE_CHECKING:
    from dsh_core._plans import Plan

__all__ = ["around"]

Body: TypeAlias = Callable[[], Awaitable[Any]]

_SPOKEN_FOR: Final = (LlmError, ToolError)
"""Raised on purpose, in the name of the thing that is wrapped, these count as its own failure."""


async def around(plan: Plan, args: Sequence[Any], body: Body) -> Any:
    """
    Run `body` inside the implementations.

    Args:
        plan: The plan.
        args: The arguments, with anything in the place of `call_next`.
        body: The real thing.

    Raises:
        HookError: A plugin failed. What the body raises comes out unchanged.
    """
    onion = _Onion(plan, args, body)
    try:
        if not plan.wrappers:
            return await onion.layer(0)
        return await inside_wrappers(plan.wrappers, args, lambda: onion.layer(0), onion.accept)
    except Failed as error:
        failed = error
    raise at_the_edge(failed, plan.spec.name)


class _Onion:
    """One run: the layers round the body."""

    __slots__ = ("_args", "_body", "_owner", "_plan", "_slot")

    def __init__(self, plan: Plan, args: Sequence[Any], body: Body) -> None:
        self._plan = plan
        self._args = args
        self._body = body
        self._slot = plan.spec.around
        self._owner = acting.get()

    async def layer(self, depth: int) -> Any:
        """Run the implementation at `depth` and everything inside it."""
        if depth == len(self._plan.steps):
            return await self._innermost()
        step = self._plan.steps[depth]
        call_next = _CallNext(self, depth + 1, step)
        args = [*self._args]
        args[self._slot] = call_next
        try:
            result = begin(step, args)
            if type(result) is Pending:
                call_next.suspends(result.flight)
                result = await result
            call_next.finished = not _is_lazy(result)
            return self.check(result)
        except BaseException as error:  # noqa: BLE001 - handed on
            call_next.finished = True
            raise self._failure(error, step, call_next) from None

    async def _innermost(self) -> Any:
        before = acting.get()
        acting.set(self._owner)
        try:
            return await self._body()
        except BaseException as error:  # noqa: BLE001 - handed on
            raise Failed(error, None) from None
        finally:
            acting.set(before)

    def check(self, result: Any) -> Any:
        """The result, if it is of the right type."""
        if result is None and self._plan.spec.results is not None:
            raise wrong_result(result, "what call_next() returned, or a result in its place")
        return check_type(result, self._plan.spec.results)

    def accept(self, before: Any, returned: Any, plugin: str) -> Any:
        """The result after a wrapper."""
        return self.check(before if returned is None else returned)

    def _failure(self, error: BaseException, step: Step, call_next: _CallNext) -> Failed:
        inner = call_next.failed
        if inner is not None and error is inner.error:
            return inner
        if isinstance(error, _SPOKEN_FOR):
            return Failed(error, None)
        return blame(error, step.plugin)


def _is_lazy(result: object) -> bool:
    """A stream may open what it wraps after it was returned."""
    return hasattr(type(result), "__aiter__")


class _CallNext:
    """The rest of the chain, to be run once."""

    __slots__ = ("_depth", "_flight", "_onion", "_running", "_step", "called", "failed", "finished")

    def __init__(self, onion: _Onion, depth: int, step: Step) -> None:
        self._onion = onion
        self._depth = depth
        self._step = step
        self.called = False
        self.finished = False
        self.failed: Failed | None = None
        self._running = False
        self._flight: InFlight | None = None

    def suspends(self, flight: InFlight) -> None:
        """The implementation is being waited for; its time does not run while the rest of the chain does (H-4)."""
        self._flight = flight
        if self._running:
            flight.pause()

    async def __call__(self) -> Any:
        if self.called or self.finished:
            raise HarnessError(
                f"plugin {self._step.plugin!r} called call_next() of {self._step.hook!r} "
                f"{'a second time' if self.called else 'after it had returned'}; call it once and await it",
                "CALL_NEXT",
            )
        self.called = self._running = True
        if self._flight is not None:
            self._flight.pause()
        try:
            return await self._onion.layer(self._depth)
        except Failed as error:
            failed = self.failed = error
        finally:
            self._running = False
            if self._flight is not None:
                self._flight.resume()
        raise failed.error
