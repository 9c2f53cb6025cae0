"""
Tracing of hook calls: functions are wrapped while somebody listens, and only then (H-5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias

import attrs

from dsh_core._invoke import is_awaitable

__all__ = ["HookCall", "Outcome", "traced"]

_log: Final = logging.getLogger("dsh")

Outcome: TypeAlias = Literal["nothing", "answered", "raised", "cancelled"]


@attrs.frozen
class HookCall:
    """
    One implementation has run.

    Args:
        hook: Name of the hook.
        plugin: Name of the plugin.
        duration: Seconds, waiting included; for wrappers and around hooks also what they are wrapped round.
        outcome: `nothing` (returned None), `answered`, `raised` or `cancelled`; a time limit cancels.
        error: What was raised.
    """

    hook: str
    plugin: str
    duration: float
    outcome: Outcome
    error: BaseException | None = None


Emit: TypeAlias = Callable[[HookCall], None]


def traced(function: Callable[..., Any], hook: str, plugin: str, emit: Emit, *, wrapper: bool) -> Callable[..., Any]:
    """
    Wrap an implementation so that each call is reported.

    Args:
        function: The implementation.
        hook: Name of the hook.
        plugin: Name of the plugin.
        emit: Called with each `HookCall`; what it raises is logged.
        wrapper: Whether the implementation is one of pluggy's wrappers.
    """

    def report(started: float, value: object, error: BaseException | None) -> None:
        outcome: Outcome = "nothing" if value is None else "answered"
        if error is not None:
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "raised"
        try:
            emit(HookCall(hook, plugin, perf_counter() - started, outcome, error))
        except Exception:  # noqa: BLE001 - a broken tracer must not change what is traced
            _log.exception("a tracer of hooks failed")

    async def awaited(awaitable: Awaitable[Any], started: float) -> Any:
        try:
            value = await awaitable
        except BaseException as error:
            report(started, None, error)
            raise
        report(started, value, None)
        return value

    def call(*args: Any) -> Any:
        started = perf_counter()
        try:
            value = function(*args)
        except BaseException as error:
            report(started, None, error)
            raise
        if is_awaitable(value):
            return awaited(value, started)
        report(started, value, None)
        return value

    def wrap(*args: Any) -> Generator[Any, Any, Any]:
        started = perf_counter()
        try:
            value = yield from function(*args)
        except BaseException as error:
            report(started, None, error)
            raise
        report(started, value, None)
        return value

    return wrap if wrapper else call
