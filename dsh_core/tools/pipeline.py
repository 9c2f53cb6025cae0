"""
One tool call, from the model's block to the result in the log: resolve, judge, ask, run, finish.

The loop calls the stages one by one, because it logs, flushes and schedules between them (`_batch`);
`execute` runs them in a row for everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core.content import Context, ErrorInfo, ToolCallBlock
from dsh_core.decisions import ResultReject
from dsh_core.tools.approval import ask
from dsh_core.tools.arguments import InvalidArguments
from dsh_core.tools.body import cancelled_from_outside, failure, run_body
from dsh_core.tools.definition import PendingCall, ToolContext, ToolResult
from dsh_core.tools.gates import Verdict, judge
from dsh_core.tools.normalise import NO_OUTPUT
from dsh_core.tools.results import (
    error_result,
    interrupted,
    invalid_arguments,
    not_started,
    timed_out,
    unknown_tool,
)
from dsh_core.tools.settings import ToolSettings
from dsh_core.tools.validate import BrokenSchema, read_arguments

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.hooks import Hooks
    from dsh_core.tools.registry import ToolRegistry

__all__ = [
    "ToolSettings",
    "Verdict",
    "ask",
    "error_result",
    "execute",
    "finish",
    "interrupted",
    "judge",
    "not_started",
    "resolve_call",
    "run_body",
    "timed_out",
]


def resolve_call(
    registry: ToolRegistry, session_id: str, block: ToolCallBlock, offered: Container[str] | None
) -> PendingCall | ToolResult:
    """
    Find the tool of a call and check its arguments (L-12).

    Args:
        registry: The tools.
        session_id: For the idempotency key.
        block: The call as the model wrote it.
        offered: Names that were on offer in this request; None for all.

    Returns:
        The call, ready for the gates, or the result that answers it.
    """
    entry = registry.entry(block.name) if block.name else None
    if entry is None or (offered is not None and entry.definition.name not in offered):
        names = [tool.name for tool in registry.offered() if offered is None or tool.name in offered]
        return unknown_tool(block.name, names)
    definition = entry.definition
    try:
        arguments = read_arguments(definition, block.arguments)
    except InvalidArguments as error:
        return invalid_arguments(definition.name, error.problems)
    except BrokenSchema as error:
        text = f"The schema of {definition.name!r} cannot be used, so nothing was run ({error}). Do without this tool."
        return error_result("TOOL_ERROR", text, "BrokenSchema")
    return PendingCall(
        block.id, definition.name, arguments, block.arguments, definition, f"{session_id}:{block.id}", entry
    )


async def finish(
    hooks: Hooks, agent: Agent, call: PendingCall, result: ToolResult
) -> tuple[ToolResult, tuple[Context, ...]]:
    """
    Show a result to `tools_post_execute` before it is logged.

    Args:
        hooks: The harness's hooks.
        agent: The agent that made the call.
        call: The call.
        result: Its result, also of a call that was denied or failed.

    Returns:
        The result to log, and notes that follow the batch. A hook that raises makes the result an error.
    """
    try:
        decision = await hooks.tools_post_execute(agent=agent, call=call, result=result)
    except asyncio.CancelledError as error:
        if cancelled_from_outside():
            raise
        return _withheld(error), ()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin's failure is this call's failure, not the turn's
        return _withheld(error), ()
    if isinstance(decision, ResultReject):
        feedback = decision.feedback or (NO_OUTPUT,)
        return ToolResult(feedback, is_error=True, error=ErrorInfo("ResultRejected", "REJECTED")), decision.context
    if decision.content is not None:
        result = attrs.evolve(result, content=decision.content or (NO_OUTPUT,))
    return result, decision.context


def _withheld(error: BaseException) -> ToolResult:
    """The result of a call whose result a plugin failed to judge: not shown, since it may have to be hidden."""
    broken = failure(error)
    text = "The call is over and may have taken effect, but its result is withheld, because judging it failed: "
    return attrs.evolve(broken, content=text + getattr(broken.content[0], "text", ""))


async def execute(hooks: Hooks, registry: ToolRegistry, agent: Agent, block: ToolCallBlock | PendingCall) -> ToolResult:
    """Run one call through all stages; what `ToolRegistry.execute` does."""
    session, settings = agent.session, registry.settings

    def log(data: Any) -> None:
        # Outside a turn the log has no place for a call's events (S-7).
        if session.turn_open:
            session.append(data)

    call = block if isinstance(block, PendingCall) else resolve_call(registry, session.id, block, None)
    if isinstance(call, ToolResult):
        return call
    verdict = await judge(hooks, registry, agent, call, log=log, settings=settings)
    if verdict.kind == "ask":
        verdict = await ask(hooks, agent, verdict.call, verdict, log=log, settings=settings)
    call = verdict.call
    if verdict.kind == "deny":
        result = error_result("DENIED", verdict.reason or "")
    else:
        result = await run_body(hooks, agent, call, context=_context(agent, call))
    return (await finish(hooks, agent, call, result))[0]


def _context(agent: Agent, call: PendingCall) -> ToolContext:
    session = agent.session
    return ToolContext(agent, session, call.call_id, call.idempotency_key, session.header.cwd, asyncio.Event())
