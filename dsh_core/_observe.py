"""
The synchronous modes: observe, check, collect.

Observing is the hottest path there is (once per chunk), so its loop is written out.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from dsh_core._failures import Failed, at_the_edge, blame, wrong_result
from dsh_core._invoke import BLOCKED_SECONDS, Step, is_awaitable, watch
from dsh_core._ownership import acting
from dsh_core._wrappers import Opened, close_all, close_one, open_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_core._plans import Plan

__all__ = ["check", "observe"]


def observe(plan: Plan, args: Sequence[Any]) -> None:
    """Call all; whatever one raises, `KeyboardInterrupt` excepted, is reported and the next one is called."""
    opened = _open(plan, args) if plan.wrappers else None
    before = acting.get()
    started = perf_counter()
    try:
        for step in plan.steps:
            acting.set(step.owner)
            pick = step.pick
            try:
                result = step.bare(*args) if pick is None else step.bare(*pick(args))
                if result is not None and is_awaitable(result):
                    _refuse(result)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - handed on
                plan.failed(step.plugin, error, args)
            now = perf_counter()
            if now - started > BLOCKED_SECONDS:
                watch(step, started)
            started = now
    finally:
        acting.set(before)
        if opened:
            _close(plan, args, opened)


def _open(plan: Plan, args: Sequence[Any]) -> Opened:
    opened: Opened = []
    for step in plan.wrappers:
        try:
            opened.append((step, open_one(step, args)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - handed on
            plan.failed(step.plugin, error, args)
    return opened


def _close(plan: Plan, args: Sequence[Any], opened: Opened) -> None:
    for step, generator in reversed(opened):
        try:
            close_one(step, generator, None, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - handed on
            plan.failed(step.plugin, error, args)


def _refuse(result: Any) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()
    raise TypeError("it returned something to await, but this hook is called synchronously; use harness.spawn")


def check(plan: Plan, args: Sequence[Any]) -> None:
    """
    Call one after the other until one raises.

    Raises:
        Exception: What the implementation raised, with a note that names plugin and hook.
        HookError: It raised something that is not an `Exception`.
    """
    opened: Opened = []
    failed: Failed | None = None
    step: Step | None = None
    try:
        for step in plan.wrappers:
            opened.append((step, open_one(step, args)))
        for step in plan.steps:
            _call(step, args)
    except BaseException as error:  # noqa: BLE001 - handed on
        failed = blame(error, step.plugin if step is not None else "")
    try:
        close_all(opened, None, failed, _nothing)
        return
    except Failed as error:
        failed = error
    raise _noted(failed, plan.spec.name)


def _call(step: Step, args: Sequence[Any]) -> None:
    before = acting.get()
    acting.set(step.owner)
    started = perf_counter()
    try:
        result = step.fn(*args)
        if is_awaitable(result):
            _refuse(result)
        _nothing(None, result, step.plugin)
    finally:
        acting.set(before)
        watch(step, started)


def _nothing(before: Any, returned: Any, plugin: str) -> None:
    if returned is not None:
        raise wrong_result(returned, "nothing; this hook refuses by raising")


def _noted(failed: Failed, hook: str) -> BaseException:
    """The error goes to the caller as it is, so that it can tell an invariant from a broken plugin."""
    error = failed.error
    if failed.plugin is None or not isinstance(error, Exception):
        return at_the_edge(failed, hook)
    note = f"raised by plugin {failed.plugin!r} in hook {hook!r}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
