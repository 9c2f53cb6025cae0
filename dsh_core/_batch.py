"""
The tool calls of one answer: taken up in the model's order, run in groups, each answered exactly once.

Gates run in order and do not wait for approvals of earlier calls; bodies run one after the other, except
that neighbours which declare themselves parallel-safe share a pool (L-11).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Literal

import attrs

from dsh_core._attempt import flush
from dsh_core.errors import HarnessError
from dsh_core.session.events import ToolCallEvent
from dsh_core.tools import pipeline
from dsh_core.tools.definition import PendingCall, ToolContext, ToolResult

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from dsh_core._turnrun import TurnRun
    from dsh_core.content import Context, ToolCallBlock

__all__ = ["Batch", "CallState"]

CallState = Literal["waiting", "running"]


@attrs.define(eq=False)
class _Taken:
    """One call that was taken up: its question or its readiness."""

    block: ToolCallBlock
    call: PendingCall | None = None
    question: asyncio.Task[pipeline.Verdict] | None = None
    refused: bool = False
    contexts: tuple[Context, ...] = ()

    @property
    def parallel(self) -> bool:
        return self.call is not None and self.call.definition.parallel


class Batch:
    """
    Runs the calls of one answer.

    Args:
        run: The turn.
        step: Number of the open step.
        calls: The calls, in the model's order.
        offered: Names of the tools that were on offer in this request.
    """

    def __init__(self, run: TurnRun, step: int, calls: Sequence[ToolCallBlock], offered: frozenset[str]) -> None:
        self._run = run
        self._step = step
        self._calls = calls
        self._offered = offered
        self._giving_up = False

    async def execute(self) -> list[Context]:
        """
        Run all calls.

        Returns:
            The contexts that plugins added, in the order of the calls.

        Raises:
            StorageError: The log could not be stored before a body; the turn ends and closes what is open.
        """
        taken: list[_Taken] = []
        try:
            for block in self._calls:
                taken.append(await self._take_up(block))
                if self._run.halted:
                    self._run.check()
            if len(taken) == 1:
                await self._run_one(taken[0])
                if self._run.halted:
                    self._run.check()
            else:
                for parallel, group in itertools.groupby(taken, key=lambda one: one.parallel):
                    await self._run_group(list(group), parallel)
                    self._run.check()
        finally:
            questions = [one.question for one in taken if one.question is not None]
            if questions:
                await _settle(questions)
        return [context for one in taken for context in one.contexts]

    # -- before the bodies -------------------------------------------------------------------------------

    async def _take_up(self, block: ToolCallBlock) -> _Taken:
        run, taken = self._run, _Taken(block)
        run.append(ToolCallEvent(run.turn, self._step, block.id, block.name, block.arguments))
        run.calls[block.id] = "waiting"
        resolved = pipeline.resolve_call(run.harness.tools, run.session.id, block, self._offered)
        if isinstance(resolved, ToolResult):
            taken.refused = True
            run.log_result(self._step, block.id, resolved)
            return taken
        taken.call = resolved
        verdict = await pipeline.judge(
            run.hooks, run.harness.tools, run.agent, resolved, log=run.append, settings=run.harness.tool_settings
        )
        if run.halted:
            run.check()
        taken.call = verdict.call
        if verdict.kind == "ask":
            taken.question = asyncio.ensure_future(
                pipeline.ask(
                    run.hooks, run.agent, verdict.call, verdict, log=run.append, settings=run.harness.tool_settings
                )
            )
        elif verdict.kind == "deny":
            await self._refuse(taken, verdict)
        return taken

    async def _refuse(self, taken: _Taken, verdict: pipeline.Verdict) -> None:
        taken.refused = True
        await self._finish(taken, pipeline.error_result("DENIED", verdict.reason or "the call was denied"))

    # -- the bodies --------------------------------------------------------------------------------------

    async def _run_group(self, group: list[_Taken], parallel: bool) -> None:
        if not parallel or len(group) == 1:
            for one in group:
                await self._run_one(one)
                self._run.check()
            return
        slots = asyncio.Semaphore(self._run.harness.tool_settings.max_parallel)
        await self._gather([self._in_slot(slots, one) for one in group])

    async def _in_slot(self, slots: asyncio.Semaphore, one: _Taken) -> None:
        # A call that waits for an answer holds no slot: its siblings go on.
        if await self._answered(one):
            async with slots:
                self._run.check()
                await self._run_body(one)

    async def _run_one(self, one: _Taken) -> None:
        if not one.refused and (one.question is None or await self._answered(one)):
            if self._run.halted:
                self._run.check()
            await self._run_body(one)

    async def _answered(self, one: _Taken) -> bool:
        """Whether the call may run, after the answer to its question if there is one."""
        if one.refused:
            return False
        if one.question is None:
            return True
        try:
            verdict = await one.question
        except asyncio.CancelledError:
            if self._giving_up or self._run.cancelled or not one.question.cancelled():
                raise
            # Whoever was asked cancelled the question itself: that is no yes (L-14).
            one.refused = True
            await self._finish(one, pipeline.error_result("DENIED", "the call was denied: whoever was asked gave up"))
            return False
        self._run.check()
        if verdict.kind == "run":
            return True
        await self._refuse(one, verdict)
        return False

    async def _run_body(self, one: _Taken) -> None:
        run, call = self._run, one.call
        assert call is not None
        if not call.definition.read_only:
            await flush(run, "tool")
            if run.halted:
                run.check()
        run.calls[call.call_id] = "running"
        try:
            result = await pipeline.run_body(run.hooks, run.agent, call, context=self._context(call))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._giving_up or run.cancelled or task is None or task is run.task:
                raise
            # The body cancelled the task that its siblings do not share: its own call fails, nothing else (L-11).
            task.uncancel()
            result = pipeline.error_result("INTERRUPTED", "The tool cancelled itself; it may have taken effect.")
        # Also of a body that swallowed the cancellation and came back in time: no result gets past the plugins
        # that judge results, since what they withhold must not reach the log by way of a cancel.
        await self._finish(one, result)

    async def _gather(self, jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.cancelled():
                    raise HarnessError("a tool or plugin cancelled its own call", "CANCELLED")
                if task.done() and (error := task.exception()) is not None:
                    raise error
        finally:
            self._giving_up = True
            await _settle(tasks)
            self._giving_up = False

    def _context(self, call: PendingCall) -> ToolContext:
        run = self._run
        return ToolContext(
            run.agent,
            run.session,
            call.call_id,
            call.idempotency_key,
            run.session.header.cwd,
            asyncio.Event(),
            lambda text: run.agent.report_progress(call, text),
        )

    async def _finish(self, one: _Taken, result: ToolResult) -> None:
        run, call = self._run, one.call
        assert call is not None
        final, one.contexts = await pipeline.finish(run.hooks, run.agent, call, result)
        run.log_result(self._step, call.call_id, final)


async def _settle(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel what is left of `tasks` and wait until it has ended, also while being cancelled oneself."""
    for task in tasks:
        task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            interrupted = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: the first failure is on its way already
    if interrupted is not None:
        raise interrupted
