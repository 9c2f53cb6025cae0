"""
One running turn: opens it, admits prompts, takes steps, and closes it exactly once.

Everything that must hold in the end is decided from the log, and closing is nothing but synchronous
appends, so that a turn is closed whole however it ends (L-3, A-7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._attempt import Answer, request_answer
from dsh_core._batch import Batch, CallState
from dsh_core._calls import offered_names, with_logged_calls, without_calls
from dsh_core._failures import STOPS, told
from dsh_core._turn import Outcome, error_reason, open_events, result_of
from dsh_core.content import GenerateRequest, Message, Source, Tagged, ToolCallBlock
from dsh_core.decisions import ContinuationDecision, Continue, PromptAllow, PromptBlock, Stop
from dsh_core.errors import HarnessError, HookError, PromptBlocked
from dsh_core.session.events import (
    AssistantMessageEvent,
    ContextMessageEvent,
    PromptBlockedEvent,
    SteeringMessageEvent,
    StepEndEvent,
    StepStartEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnContinuationEvent,
    TurnStartEvent,
    UserMessageEvent,
)
from dsh_core.tools import pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_core._inbox import Entry
    from dsh_core._loop import LoopAgent
    from dsh_core.agent.types import TurnResult
    from dsh_core.llm.assembler import BlockAssembler
    from dsh_core.tools.definition import ToolResult

__all__ = ["Stopped", "TurnRun", "running_turn"]

_log: Final = logging.getLogger("dsh")


class Stopped(Exception):
    """The turn has a recorded cause to stop; raised at the next safe place."""


running_turn: ContextVar[TurnRun | None] = ContextVar("dsh_running_turn", default=None)
"""The turn in whose hooks and tools this code runs; tasks started there inherit it."""


class TurnRun:
    """
    Args:
        agent: The agent whose turn it is.
    """

    def __init__(self, agent: LoopAgent) -> None:
        self.agent = agent
        self.harness = agent.harness
        self.hooks = agent.harness.hooks
        self.session = agent.session
        self.turn = agent.session.last_turn + 1
        self.outer = running_turn.get()
        self.outcome = Outcome()
        self.entries: list[Entry] = []
        self.admitting: Entry | None = None
        self.calls: dict[str, CallState] = {}
        self.streaming: tuple[GenerateRequest, BlockAssembler] | None = None
        self.messages: Sequence[Message] = ()
        self.step = 0
        self.task: asyncio.Task[None] | None = None
        self.settled: asyncio.Future[None] | None = None
        self.result: TurnResult | None = None
        self.host_cancelled = False
        self.abandoned = False
        self.closed = False
        self.halted = False
        """Whether a cause to stop was recorded, or the turn was closed over our head."""

    # -- stopping ----------------------------------------------------------------------------------------

    def stop(self, cause: Tagged) -> None:
        """Record why the turn has to stop, unless something was recorded before, and interrupt it."""
        if self.closed:
            return
        if self.outcome.stop is None:
            self.outcome.stop = cause
            self.halted = True
            if self.task is not None:
                self.task.cancel()

    def settle(self) -> None:
        """Let the driver go on; it does not wait for the task of a turn that was given up."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)

    @property
    def stopped(self) -> bool:
        """The same, for others."""
        return self.halted

    @property
    def cancelled(self) -> bool:
        """Whether a `CancelledError` that is seen now came from outside."""
        return self.stopped or (self.task is not None and self.task.cancelling() > 0)

    def check(self) -> None:
        """Leave the turn here if it has been stopped; asked so often that most places look at `halted` first."""
        if self.halted:
            raise Stopped

    def append(self, data: object) -> None:
        """Append an event of this turn; a turn that was given up appends nothing more."""
        if self.closed:
            raise Stopped
        self.session.append(data)

    def anchor_messages(self) -> None:
        """
        Take the projection of the log as it is now as what the next request reads.

        Done before the anchor is appended: what its observers inject stands behind it in the log, and what those
        of the last chunks inject before it (L-9).
        """
        self.session.close_pack()
        self.messages = self.session.derive_messages()

    # -- the whole turn ----------------------------------------------------------------------------------

    async def execute(self) -> None:
        """Run the turn to its end and close it; only host cancellation leaves this as an exception."""
        running_turn.set(self)
        try:
            await self._body()
        except Stopped:
            pass
        except asyncio.CancelledError as error:
            self._cancelled(error)
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever failed, the turn is closed and the agent lives on
            self._failed(error)
        self.close()
        if self.host_cancelled:
            raise asyncio.CancelledError
        await self._shake_off_cancellation()

    async def _shake_off_cancellation(self) -> None:
        # The cancellation that stopped the turn must not reach what follows the turn in this task. If the turn
        # stopped by itself before its next await, the cancellation has not been delivered yet: it is taken here.
        if self.task is None or self.task.cancelling() == 0:
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while self.task.cancelling() > 0:
            self.task.uncancel()

    def _cancelled(self, error: asyncio.CancelledError) -> None:
        if self.outcome.stop is not None:
            return
        if self.cancelled:
            self.host_cancelled = True
            self.outcome.stop = Tagged("aborted", reason="host")
            self.halted = True
        else:
            self._failed(HarnessError(f"a plugin or tool cancelled itself: {error}", "CANCELLED"))

    def _failed(self, error: BaseException) -> None:
        if self.outcome.stop is not None:
            return
        step = self.step if self.session.open_step is not None or not self._next_step_opening else self.step + 1
        self.outcome.error = error_reason(error, step)
        origin = _origin(error)
        self.agent.report_error(error, self.turn, step, origin)

    _next_step_opening = False

    async def _body(self) -> None:
        first = self.agent.inbox.first()
        if first is None:
            return  # taken back before its turn began: there is nothing to open a turn for
        # Read here and not before: an injection into the idle agent takes a number too (L-1).
        self.turn = self.session.last_turn + 1
        self.append(TurnStartEvent(self.turn, Tagged("message", source=_source_fields(first.message.source))))
        await self._admit_prompts(self.agent.inbox.queued)
        while True:
            self._next_step_opening = True
            if self.halted:
                self.check()
            self._drain_steering()
            system, tools = await self._assemble()
            if self.halted:
                self.check()
            await self.hooks.agent_pre_step(agent=self.agent, turn=self.turn, step=self.step + 1, system_prompt=system)
            if self.halted:
                self.check()
            self.step += 1
            self._next_step_opening = False
            self.anchor_messages()
            self.append(StepStartEvent(self.turn, self.step))
            if self.halted:
                self.check()
            went_on = await self._step(system, tools)
            if not await self._goes_on(went_on):
                return

    async def _assemble(self) -> tuple[str | None, tuple[Any, ...]]:
        prompt = self.harness.system_prompt
        assembly = await prompt.assemble(self.agent)
        return prompt.render(assembly) or None, assembly.tools

    # -- prompts and steering ----------------------------------------------------------------------------

    async def _admit_prompts(self, count: int) -> None:
        """Offer the first `count` queued messages to the plugins, one by one (L-1, L-2)."""
        blocked: str | None = None
        admitted = False
        for _ in range(count):
            self.check()
            entry = self.agent.inbox.first()
            if entry is None:
                break
            reason = await self._admit(entry)
            admitted = admitted or reason is None
            blocked = reason if reason is not None else blocked
        if not admitted:
            self.check()
            self.outcome.rejected = Tagged("rejected", reason=blocked or "")
            raise Stopped

    async def _admit(self, entry: Entry) -> str | None:
        """Append the message or its block; returns the reason of a block."""
        self.admitting = entry
        try:
            decision = await self.hooks.agent_prompt_submit(agent=self.agent, message=entry.message)
            self.check()
        except HookError as error:
            self.check()
            self._block(entry, f"its plugin failed: {error}")
            raise
        finally:
            self.admitting = None
        if isinstance(decision, PromptBlock):
            self._block(entry, decision.reason)
            return decision.reason
        self._enter(entry, decision)
        for context in decision.context:
            self.append(ContextMessageEvent(context.content, context.source))
        return None

    def _enter(self, entry: Entry, decision: PromptAllow) -> None:
        content = entry.message.content if decision.content is None else decision.content
        self.agent.inbox.take(entry)
        try:
            self.append(UserMessageEvent(entry.id, content, entry.message.source))
        except Exception as error:  # the message must not be lost: it is blocked, and the turn fails (L-1)
            self._block(entry, f"it could not be logged: {told(error)}")
            raise
        self.entries.append(entry)

    def _block(self, entry: Entry, reason: str) -> None:
        self.agent.inbox.take(entry)
        message = entry.message
        if entry.receipt is not None:
            entry.receipt.settle(PromptBlocked(f"the prompt was blocked: {reason}"))
        self.append(PromptBlockedEvent(entry.id, message.content, message.source, reason))

    def _drain_steering(self) -> bool:
        inbox, drained = self.agent.inbox, False
        for _ in range(inbox.steering):
            entry = inbox.first_steering()
            if entry is None:  # an observer of the one before has cancelled
                break
            inbox.take(entry)
            self.entries.append(entry)
            self.append(SteeringMessageEvent(entry.id, self.turn, entry.message.content, entry.message.source))
            drained = True
        return drained

    # -- one step ----------------------------------------------------------------------------------------

    async def _step(self, system: str | None, tools: tuple[Any, ...]) -> bool:
        """Run the open step and end it; returns whether there were tool calls."""
        answer = await request_answer(self, self.step, system, tools)
        message = await self._accept(answer)
        calls = [block for block in message.content if isinstance(block, ToolCallBlock)]
        contexts = []
        if calls:
            offered = offered_names(self.harness.tools, self.agent.options.tools, answer.tools)
            contexts = await Batch(self, self.step, calls, offered).execute()
        for context in contexts:
            self.append(ContextMessageEvent(context.content, context.source))
        self.append(StepEndEvent(self.turn, self.step))
        return bool(calls)

    async def _accept(self, answer: Answer) -> Message:
        cut = answer.finish.kind == "max-tokens"
        message = with_logged_calls(answer.message, self.harness.tools, self.session, self.turn, self.step)
        message = without_calls(message) if cut else message
        changed = await self.hooks.agent_step_result(agent=self.agent, turn=self.turn, step=self.step, message=message)
        if self.halted:
            self.check()
        if changed is not message:
            message = with_logged_calls(changed, self.harness.tools, self.session, self.turn, self.step)
            message = without_calls(message) if cut else message
        self.append(
            AssistantMessageEvent(
                self.turn, self.step, answer.attempt, message.content, answer.assembler.usage, answer.finish
            )
        )
        self.outcome.max_tokens = self.outcome.max_tokens or cut
        return message

    def log_result(self, step: int, call_id: str, result: ToolResult) -> None:
        """Log the one answer to a call; a late second one is dropped (L-10)."""
        if self.closed or call_id not in self.calls:
            _log.warning("session %s: a late result of call %s was dropped", self.session.id, call_id)
            return
        self.append(
            ToolResultEvent(self.turn, step, call_id, result.content, result.is_error, result.error, result.meta)
        )
        del self.calls[call_id]

    # -- going on ----------------------------------------------------------------------------------------

    async def _goes_on(self, owed: bool) -> bool:
        if self.halted:
            self.check()
        # Steering is not taken up before it is known that a request follows: at a limit it opens the next turn.
        default: ContinuationDecision = Continue() if owed or self._may_steer() else Stop()
        decision, plugin = await self.hooks.agent_turn_continuation(
            agent=self.agent, turn=self.turn, step=self.step, decision=default
        )
        if self.halted:
            self.check()
        if plugin is not None and decision != default:
            self._log_decision(decision, plugin)
        if isinstance(decision, Continue):
            return True
        if decision.code is not None:
            self.outcome.limit = Tagged("limit", message=decision.reason or decision.code, code=decision.code)
            return False
        return self._may_steer()

    def _may_steer(self) -> bool:
        """Whether steering waits and the turn may have another step for it; at its last step it opens the next turn."""
        return self.agent.inbox.steering > 0 and self.step < self.agent.options.max_steps

    def _log_decision(self, decision: ContinuationDecision, plugin: str) -> None:
        action = "continue" if isinstance(decision, Continue) else "stop"
        self.append(TurnContinuationEvent(self.turn, self.step, action, decision.reason, plugin))
        if isinstance(decision, Continue) and decision.reason:
            self.agent.accept(decision.reason, Source.plugin(plugin), "steering")

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Append what the turn owes, once (L-3, L-6, L-10)."""
        if self.closed:
            return
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - a check refuses the closing events: the agent goes on regardless
            self.agent.report_error(error, self.turn, self.step, "turn/end")
        finally:
            self.closed = self.halted = True

    def _close(self) -> None:
        self.session.close_pack()
        if self.session.open_turn == self.turn:
            if self.outcome.stop is not None:
                self._keep_visible_prefix()
            self._answer_open_calls()
            for data in open_events(self.session, self.turn, self.outcome.reason()):
                self.session.append(data)
            self.result = result_of(self.session, self.turn, self.outcome.reason(), self.agent.options.output_type)

    def _keep_visible_prefix(self) -> None:
        """What the user saw of an answer that was cut off becomes part of the history (L-6)."""
        if self.streaming is None or self.session.open_step is None:
            return
        request, assembler = self.streaming
        content = assembler.visible_prefix()
        if content:
            self.session.append(
                AssistantMessageEvent(
                    self.turn, request.step, request.attempt, content, assembler.usage, interrupted=True
                )
            )

    def _answer_open_calls(self) -> None:
        """Every call of a logged message gets its one result (L-10)."""
        for block in self.session.unanswered_calls():
            state = self.calls.get(block.id)
            result = pipeline.interrupted() if state == "running" else pipeline.not_started(self._why_not_started())
            if state is None and self.session.open_step is not None:
                self.session.append(ToolCallEvent(self.turn, self.step, block.id, block.name, block.arguments))
            self.session.append(ToolResultEvent(self.turn, self.step, block.id, result.content, True, result.error))

    def _why_not_started(self) -> str:
        if self.outcome.stop is None:
            return "the turn failed before its start"
        return "the turn was cancelled before its start"


def _origin(error: BaseException) -> str:
    if isinstance(error, HookError):
        return f"hook:{error.hook} plugin:{error.plugin}"
    return "loop"


def _source_fields(source: Source | None) -> Mapping[str, Any] | None:
    if source is None:
        return None
    return {name: value for name, value in attrs.asdict(source).items() if value is not None}
