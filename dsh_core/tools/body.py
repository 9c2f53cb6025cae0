"""
The body of a call: run on the loop or in a thread, limited in time, and answered with a result whatever
happens (L-10, T-3).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsh_core._ownership import InFlight, Owner, acting
from dsh_core.errors import HookError, ToolError
from dsh_core.tools.function import FunctionBody, is_coroutine
from dsh_core.tools.normalise import as_result, fit
from dsh_core.tools.results import error_result, interrupted, not_started, timed_out
from dsh_core.tools.threads import TimeUp, run_in_thread

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.hooks import Hooks
    from dsh_core.tools.definition import PendingCall, ToolContext, ToolDefinition, ToolResult

__all__ = ["cancelled_from_outside", "failure", "run_body"]


def cancelled_from_outside() -> bool:
    """Whether somebody asked the current task to stop, as opposed to a body that raised `CancelledError` itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_body(hooks: Hooks, agent: Agent, call: PendingCall, *, context: ToolContext) -> ToolResult:
    """
    Run a call that may run: `tools_execute` round the tool's body.

    Args:
        hooks: The harness's hooks.
        agent: The agent that makes the call.
        call: The call in its final form.
        context: For the body; its `cancelled` is set when the call is cancelled.

    Returns:
        The result: of the body, of a plugin in its place, or of their failure.

    Raises:
        asyncio.CancelledError: The task was cancelled from outside and the body ended by it. A body that
            comes back all the same gives its result.
    """

    try:
        if not hooks.wants("tools_execute", agent.id):
            return await _run(call, context)
        return await hooks.tools_execute(agent=agent, call=call, body=lambda: _run(call, context))
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            context.cancelled.set()
            raise
        return failure(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin round the body failed: this call failed
        return failure(error)


async def _run(call: PendingCall, context: ToolContext) -> ToolResult:
    brought = call.registered
    if brought is not None and brought.removed:
        return not_started(f"its tool was removed; {brought.origin_text} took it back")
    flight = _Flight(brought.owner, call.name) if brought is not None and brought.owner is not None else None
    try:
        value = await (_execute(call, context) if flight is None else _owned(flight, call, context))
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            raise
        result = failure(error)
    except TimeUp as error:
        result = timed_out(call.definition.timeout or 0, still_running=error.still_running)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a body raises is the result of its call
        result = _unloaded(flight) if flight is not None and flight.ended_by is error else failure(error)
    else:
        result = as_result(value, call.name)
    return result if call.definition.max_output is None else fit(result, call.definition)


class _Flight(InFlight):
    """A body of a plugin's tool while it runs: unloading the plugin ends it (H-7)."""

    __slots__ = ("ended_by", "owner")

    def __init__(self, owner: Owner, tool: str) -> None:
        super().__init__(owner, f"tool {tool}")
        self.owner = owner
        self.ended_by: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        self.ended_by = self.ended_by or error
        super().interrupt(error)


def _unloaded(flight: _Flight) -> ToolResult:
    return interrupted(f"plugin {flight.owner.name!r}, which brought the tool, was unloaded")


async def _owned(flight: _Flight, call: PendingCall, context: ToolContext) -> Any:
    """Run the body in its plugin's name, so that what it registers and spawns goes when the plugin goes."""
    token = acting.set(flight.owner)
    try:
        with flight:
            return await _execute(call, context)
    finally:
        acting.reset(token)


async def _execute(call: PendingCall, context: ToolContext) -> Any:
    definition = call.definition
    execute = definition.execute
    if type(execute) is FunctionBody and execute.is_coroutine and definition.timeout is None:  # the usual tool
        return await execute(call.arguments, context)
    if definition.thread and not _is_coroutine(definition):
        value = await run_in_thread(
            definition.execute,
            _arguments_of(call),
            context,
            name=f"dsh-tool-{call.name}",
            cancelled=context.cancelled,
            timeout=definition.timeout,
        )
    elif definition.timeout is not None:
        return await _limited(call, definition.timeout, context)
    else:
        value = execute(_arguments_of(call), context)
    return await value if inspect.isawaitable(value) else value


async def _limited(call: PendingCall, seconds: float, context: ToolContext) -> Any:
    try:
        async with asyncio.timeout(seconds) as limit:
            value = call.definition.execute(_arguments_of(call), context)
            return await value if inspect.isawaitable(value) else value
    except Exception as error:  # what a body raises because its time is up is that its time is up
        if not limit.expired():
            raise
        context.cancelled.set()
        raise TimeUp from error


def _is_coroutine(definition: ToolDefinition) -> bool:
    execute = definition.execute
    if isinstance(execute, FunctionBody):
        return execute.is_coroutine
    return is_coroutine(execute)


def _arguments_of(call: PendingCall) -> Mapping[str, Any]:
    """The arguments for the body: its own copy, where it could change them."""
    if isinstance(call.definition.execute, FunctionBody):
        return call.arguments
    thawed: dict[str, Any] = _thaw(call.arguments)
    return thawed


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, list) else value


# -- failures --------------------------------------------------------------------------------------------


def failure(error: BaseException) -> ToolResult:
    """
    The result of a call that raised: its text gives type and message.

    Args:
        error: What was raised. A `ToolError` speaks for itself and keeps its code.
    """
    code = error.code if isinstance(error, ToolError | HookError) else ToolError.default_code
    return error_result(code, _text_of(error), type(error).__name__)


def _text_of(error: BaseException) -> str:
    kind, message = type(error).__name__, _message_of(error)
    if isinstance(error, ToolError) and message:
        text = message
    else:
        text = f"{kind}: {message}" if message else f"{kind} (without a message)"
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return "\n".join([text, *notes, *(f"- {_text_of(one)}" for one in inner)])


def _message_of(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception as broken:  # noqa: BLE001 - somebody else's __str__
        return f"its message cannot be read ({type(broken).__name__})"
