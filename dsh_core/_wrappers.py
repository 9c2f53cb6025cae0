"""
pluggy's wrappers round an awaited chain: plain generators that yield once.

They are plain, so opening and closing them needs no await; only what lies between is awaited. As in pluggy
they see the original exception, may replace, swallow or re-raise it, and their return value is the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from dsh_core._failures import Failed, blame
from dsh_core._invoke import Step, watch
from dsh_core._ownership import acting

__all__ = ["Accept", "Opened", "close_all", "close_one", "inside_wrappers", "open_one"]

Opened: TypeAlias = list[tuple[Step, Generator[None, Any, Any]]]
Accept: TypeAlias = Callable[[Any, Any, str], Any]
"""`(value so far, what the wrapper returned, plugin) -> value`; raises for a value the hook does not allow."""


async def inside_wrappers(
    steps: Sequence[Step], args: Sequence[Any], run: Callable[[], Awaitable[Any]], accept: Accept, initial: Any = None
) -> Any:
    """
    Run a chain inside wrappers.

    Args:
        steps: The wrappers, the outermost first.
        args: The hook's arguments.
        run: The chain.
        accept: Judges what each wrapper returns.
        initial: The value a wrapper's "unchanged" means after it swallowed a failure.

    Returns:
        What the outermost wrapper made of it.

    Raises:
        Failed: The chain or a wrapper failed, or with `plugin=None` the task is being stopped.
    """
    opened: Opened = []
    value, failed = initial, None
    try:
        _open_all(steps, args, opened)
        value = await run()
    except Failed as error:
        failed = error
    except BaseException as error:  # noqa: BLE001 - handed on
        failed = Failed(error, None)
    return close_all(opened, value, failed, accept)


def open_one(step: Step, args: Sequence[Any]) -> Generator[None, Any, Any]:
    """
    Run a wrapper up to its yield.

    Raises:
        RuntimeError: It did not yield.
    """
    generator: Generator[None, Any, Any] = _as_owner(step, lambda: step.fn(*args))
    try:
        _as_owner(step, lambda: next(generator))
    except StopIteration:
        raise RuntimeError(f"wrapper {step.hook!r} of plugin {step.plugin!r} did not yield") from None
    return generator


def _open_all(steps: Sequence[Step], args: Sequence[Any], opened: Opened) -> None:
    """From the outside in; when one fails, the caller still closes those that are in `opened`."""
    for step in steps:
        try:
            opened.append((step, open_one(step, args)))
        except BaseException as error:  # noqa: BLE001 - handed on
            raise blame(error, step.plugin) from None


def close_all(opened: Opened, value: Any, failed: Failed | None, accept: Accept) -> Any:
    """
    Resume wrappers from the inside out.

    Args:
        opened: The wrappers that reached their yield.
        value: Result of what they are wrapped round; also what a wrapper's "unchanged" refers to.
        failed: Its failure, or None.
        accept: Judges what each wrapper returns.

    Raises:
        Failed: What is left of the failure, or a wrapper's own.
    """
    for step, generator in reversed(opened):
        try:
            returned = close_one(step, generator, value, failed.error if failed else None)
            value = accept(value, returned, step.plugin)
            failed = None
        except BaseException as error:  # noqa: BLE001 - handed on
            if failed is None or error is not failed.error:
                failed = blame(error, step.plugin)
    if failed is not None:
        raise failed
    return value


def close_one(step: Step, generator: Generator[None, Any, Any], value: Any, error: BaseException | None) -> Any:
    """
    Resume one wrapper with a result or an exception.

    Returns:
        What it returned.

    Raises:
        RuntimeError: It yielded again.
    """
    try:
        _as_owner(step, lambda: generator.throw(error) if error is not None else generator.send(value))
    except StopIteration as stop:
        return stop.value
    except RuntimeError as wrapped:
        # A StopIteration that leaves a generator becomes a RuntimeError; it still is the same failure.
        if isinstance(error, StopIteration) and wrapped.__cause__ is error:
            raise error from None
        raise
    generator.close()
    raise RuntimeError(f"wrapper {step.hook!r} of plugin {step.plugin!r} yielded twice; it has to yield once")


def _as_owner(step: Step, call: Callable[[], Any]) -> Any:
    before = acting.get()
    acting.set(step.owner)
    started = perf_counter()
    try:
        return call()
    finally:
        acting.set(before)
        watch(step, started)
