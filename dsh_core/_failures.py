"""
Whose failure it was: the exception of a plugin on its way from where it was raised to the facade's edge.

Inside the dispatcher a failure travels as `Failed`, which carries the original exception and the plugin that
raised it, so that wrappers and `call_next` can be given the original and the edge can still name the plugin.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dsh_core.errors import HookError

__all__ = ["STOPS", "Failed", "at_the_edge", "blame", "cancelled_from_outside", "describe", "told", "wrong_result"]

STOPS: Final = (KeyboardInterrupt, GeneratorExit)
"""What stops the task or the process; whatever else an implementation raises is only a failed plugin."""


class Failed(Exception):
    """
    A failure on its way to the edge.

    Args:
        error: What was raised.
        plugin: Who raised it; None when it is not a plugin's failure and has to come out unchanged.
    """

    def __init__(self, error: BaseException, plugin: str | None) -> None:
        super().__init__(error)
        self.error = error
        self.plugin = plugin


def cancelled_from_outside(error: BaseException) -> bool:
    """Whether this is a cancellation of the running task, not a `CancelledError` that was simply raised."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread, so nothing can have been cancelled
        return False
    return task is not None and task.cancelling() > 0


def blame(error: BaseException, plugin: str) -> Failed:
    """The failure of `plugin`, or nobody's if the whole task is being stopped."""
    stops = isinstance(error, STOPS) or cancelled_from_outside(error)
    return Failed(error, None if stops else plugin)


def at_the_edge(failed: Failed, hook: str) -> BaseException:
    """
    What the facade raises: `HookError` from the plugin's exception (H-3), or an exception that is nobody's.

    Raise it outside of the `except` block that caught `failed`, so that no context is added to it.
    """
    error = failed.error
    if failed.plugin is None:
        return error
    wrapped = HookError(
        f"plugin {failed.plugin!r} failed in hook {hook!r}: {describe(error)}", hook=hook, plugin=failed.plugin
    )
    wrapped.__cause__ = error
    return wrapped


def describe(error: BaseException) -> str:
    """Type and text of an exception; one without text still gives its type."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def told(error: BaseException) -> str:
    """Its text and its notes, which name the plugin where an error comes out as it was raised."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return "; ".join([str(error) or type(error).__name__, *notes])


def wrong_result(value: object, wanted: str) -> TypeError:
    """The failure of an implementation that returned something its hook does not allow."""
    return TypeError(f"it returned {type(value).__name__} {_short(value)}; return {wanted}")


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the real fault
        return "(whose repr fails)"
    return text if len(text) <= 80 else f"{text[:77]}..."
