"""
Every hook of the core: the map of the whole system.

A hook's *mode* says how its implementations run, what they may return and what happens when one raises:

========== ============================================ ========================= =============================
mode       how it runs                                  an implementation returns when one raises
========== ============================================ ========================= =============================
observe    synchronous, all are called                  nothing                   contained, the others still run
checkpoint awaited one after the other                  nothing                   the turn ends ``error``
transform  awaited; each gets the current value         a new value, or None      the turn ends ``error``
gate       awaited, all are asked, the strictest wins   a decision, or None       counts as deny
around     nested round the real thing                  ``await call_next()``     like the thing it wraps
drain      awaited, all run even after a failure        nothing                   collected into one group
first      awaited until one answers                    an answer, or None        reported, the next is asked
check      synchronous, before an append                nothing                   the append is refused
collect    synchronous, at load time                    nothing                   the plugin fails to load
========== ============================================ ========================= =============================

Implementations are plain functions or coroutines (observe, check and collect: plain only) and take any
subset of the declared arguments, by name. Agents see the implementations of the harness and of their own
scope in one order; ``dsh hooks`` prints it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_core._markers import hookspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dsh_core.agent import Agent, TurnResult
    from dsh_core.content import GenerateRequest, Message
    from dsh_core.decisions import (
        Approval,
        ApprovalDecision,
        ContinuationDecision,
        GateDecision,
        PromptDecision,
        ResultDecision,
        Retry,
    )
    from dsh_core.harness import Harness
    from dsh_core.llm.seam import LlmError, StreamChunk
    from dsh_core.prompt import PromptAssembly
    from dsh_core.session.log import Session, SessionEvent
    from dsh_core.tools.definition import PendingCall, ToolResult

# -- loading ---------------------------------------------------------------------------------------------


@hookspec(mode="collect")
def register(harness: Harness) -> None:
    """
    Register what the plugin brings: tools, adapters, prompt sections, services, commands.

    Fires once, when the plugin is loaded, before `start`. Everything registered here is undone when the
    plugin is unloaded.

    Args:
        harness: The harness that loads the plugin.

    An exception makes the plugin fail to load; what it had registered is undone.
    """


# -- agents ----------------------------------------------------------------------------------------------


@hookspec(mode="observe")
def agent_created(agent: Agent) -> None:
    """
    An agent exists and can be found by its id; its loop has not started.

    Args:
        agent: The new agent.
    """


@hookspec(mode="observe")
def agent_disposed(agent: Agent) -> None:
    """
    An agent has stopped: its loop has exited, its last events are flushed, its id is free.

    Args:
        agent: The agent; its session stays readable.
    """


@hookspec(mode="observe")
def agent_status(agent: Agent, status: str) -> None:
    """
    The status changed. It is a comfort for displays: whether a turn is open is answered by the log.

    Args:
        agent: The agent.
        status: `idle`, `running` or `disposed`.
    """


@hookspec(mode="observe")
def agent_queued(agent: Agent, message: Message, lane: str) -> None:
    """
    A message was accepted.

    Args:
        agent: The agent.
        message: The message, with its id and source.
        lane: `queued` or `steering`.
    """


@hookspec(mode="observe")
def agent_error(agent: Agent, turn: int, step: int, error: BaseException, origin: str) -> None:
    """
    Something failed: a turn, a flush, or a plugin that was contained.

    Args:
        agent: The agent.
        turn: Number of the turn, 0 outside turns.
        step: Number of the step, 0 before the first.
        error: What was raised.
        origin: Where, as text such as `hook:agent_request plugin:router`.

    An implementation that raises is logged and not reported again.
    """


@hookspec(mode="observe")
def agent_stream_chunk(agent: Agent, turn: int, step: int, chunk: StreamChunk) -> None:
    """
    A raw chunk came from the model. This is the hottest hook there is: buffer, do not work.

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step.
        chunk: The chunk as the adapter produced it.
    """


@hookspec(mode="checkpoint")
async def agent_session_start(agent: Agent, source: str) -> None:
    """
    Once per agent, before its first turn; may `agent.inject`.

    Args:
        agent: The agent.
        source: `startup`, `resume` or `fork`.

    Failures are contained: they are reported and the agent starts.
    """


@hookspec(mode="transform", value="decision")
async def agent_prompt_submit(agent: Agent, message: Message, decision: PromptDecision) -> PromptDecision | None:
    """
    A prompt is about to enter a turn: change it, add context, or block it.

    Args:
        agent: The agent.
        message: The prompt.
        decision: What the implementations before this one decided.

    Returns:
        `PromptAllow(content=, context=)`, `PromptBlock(reason)`, or None for "unchanged". Context
        accumulates; a block ends the chain.

    An exception blocks this message and ends the turn with `error`; messages behind it run next.
    """


@hookspec(mode="checkpoint")
async def agent_pre_step(agent: Agent, turn: int, step: int, system_prompt: str | None) -> None:
    """
    Before each step, outside of it: the place to change the surface (compaction).

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step about to open.
        system_prompt: The system prompt the step will use.
    """


@hookspec(mode="transform", value="request")
async def agent_request(agent: Agent, turn: int, step: int, request: GenerateRequest) -> GenerateRequest | None:
    """
    A request is about to go out; runs again for each attempt.

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step.
        request: The request; return a changed copy made with `attrs.evolve`.

    Returns:
        The request to send, or None for "unchanged". Everything but `messages` may differ: what the model
        reads of the conversation is the log's projection, so append an event to add to it (L-9).
    """


@hookspec(mode="first")
async def agent_request_error(
    agent: Agent, turn: int, step: int, request: GenerateRequest, error: LlmError, attempt: int
) -> Retry | None:
    """
    A request failed in the adapter or on its way; may repair the surface and ask for another attempt.

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step.
        request: The request that failed.
        error: Its failure, with `after_output`.
        attempt: Number of the attempt that failed, from 1.

    Returns:
        `Retry(delay)` or None. Failures of plugins are never offered here.
    """


@hookspec(mode="transform", value="message")
async def agent_step_result(agent: Agent, turn: int, step: int, message: Message) -> Message | None:
    """
    The model's answer is complete and not yet in the log: what is returned is logged, shown to the model
    later, and dispatched.

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step.
        message: The answer, with its tool calls.

    Returns:
        The message to keep, or None for "unchanged".
    """


@hookspec(mode="transform", value="decision")
async def agent_turn_continuation(
    agent: Agent, turn: int, step: int, decision: ContinuationDecision
) -> ContinuationDecision | None:
    """
    A step is over: does the turn go on?

    Args:
        agent: The agent.
        turn: Number of the turn.
        step: Number of the step that ended.
        decision: `Continue()` after tool calls or steering, else `Stop()`.

    Returns:
        `Stop(reason=, code=)`, `Continue(reason=)` or None for "unchanged". A `Stop` with a code is a
        limit and stands against pending steering (L-17).
    """


@hookspec(mode="checkpoint")
async def agent_turn_end(agent: Agent, result: TurnResult) -> None:
    """
    A turn is closed in the log and not yet flushed: the place to send the next prompt.

    Args:
        agent: The agent.
        result: What the turn came to.

    Failures are contained: they are reported and the agent goes on.
    """


# -- tools -----------------------------------------------------------------------------------------------


@hookspec(mode="gate")
async def tools_pre_execute(agent: Agent, call: PendingCall) -> GateDecision | None:
    """
    A call with valid arguments wants to run.

    Args:
        agent: The agent.
        call: The call; a rewritten one is judged again.

    Returns:
        `Allow()`, `Allow(arguments=…)`, `Ask(reason, rule=)`, `Deny(reason)`, or None for "no opinion".

    Raising, hanging or answering nonsense counts as deny.
    """


@hookspec(mode="first")
async def approval_request(agent: Agent, approval: Approval) -> ApprovalDecision | None:
    """
    A gate asked; somebody has to answer.

    Args:
        agent: The agent.
        approval: The question, bound to one call in its final form.

    Returns:
        `ApprovalGranted(remember=)`, `ApprovalRefused(reason)`, or None for "not me". Only the answerer
        named by `approval.by` may grant. Raising means refused.
    """


@hookspec(mode="observe")
def approval_decided(agent: Agent, approval: Approval, outcome: str) -> None:
    """
    A question is settled.

    Args:
        agent: The agent.
        approval: The question.
        outcome: `approved`, `rejected`, `timeout`, `cancelled` or `unavailable`.
    """


@hookspec(mode="around")
async def tools_execute(  # type: ignore[empty-body]  # a declaration has no body
    agent: Agent, call: PendingCall, call_next: Callable[[], Awaitable[ToolResult]]
) -> ToolResult:
    """
    Round the body of a tool.

    Args:
        agent: The agent.
        call: The call as it was judged and logged.
        call_next: Runs the rest, once; takes no arguments.

    Returns:
        What `call_next` returned, or a result in its place.

    Raising makes the call's result an error.
    """


@hookspec(mode="transform", value="decision")
async def tools_post_execute(
    agent: Agent, call: PendingCall, result: ToolResult, decision: ResultDecision
) -> ResultDecision | None:
    """
    A call has its result, which is not yet in the log.

    Args:
        agent: The agent.
        call: The call.
        result: Its result.
        decision: What the implementations before this one decided.

    Returns:
        `ResultAccept(content=, context=)`, `ResultReject(feedback, context=)` or None for "unchanged".
        Context accumulates; a rejection ends the chain.

    Raising makes this call's result an error; the turn goes on.
    """


# -- model and prompt ------------------------------------------------------------------------------------


@hookspec(mode="around")
async def llm_stream(  # type: ignore[empty-body]
    request: GenerateRequest, call_next: Callable[[], Awaitable[AsyncIterator[StreamChunk]]]
) -> AsyncIterator[StreamChunk]:
    """
    Round the stream of one request.

    Args:
        request: The request as it was logged.
        call_next: Opens the stream, once; takes no arguments.

    Returns:
        An async iterator of chunks: the one `call_next` gave, one that wraps it, or another.
    """


@hookspec(mode="transform", value="assembly")
async def system_prompt_assemble(agent: Agent, assembly: PromptAssembly) -> PromptAssembly | None:
    """
    The parts of the system prompt are collected and not yet rendered.

    Args:
        agent: The agent.
        assembly: Sections, variables and tools; return a changed copy made with `attrs.evolve`.

    Returns:
        The assembly to render, or None for "unchanged".
    """


# -- sessions --------------------------------------------------------------------------------------------


@hookspec(mode="observe")
def session_created(session: Session) -> None:
    """
    A session is live. Its seed events are not announced one by one.

    Args:
        session: The session.
    """


@hookspec(mode="observe")
def session_disposed(session: Session) -> None:
    """
    A session is no longer live; it stays readable.

    Args:
        session: The session.
    """


@hookspec(mode="check")
def session_append(session: Session, event: SessionEvent) -> None:
    """
    An event is about to be pushed.

    Args:
        session: The session, without the event.
        event: The event.

    Raising refuses the append; the error goes to the appender. For invariants.
    """


@hookspec(mode="observe")
def session_event(session: Session, event: SessionEvent) -> None:
    """
    An event was appended; it is already in the log.

    Args:
        session: The session.
        event: The event.

    `session.append` is refused here; `send`, `steer`, `inject` and `cancel` take effect at once and their
    events follow directly after this round (S-2).
    """


@hookspec(mode="drain")
async def session_flush(session: Session, barrier: str) -> None:
    """
    What was logged so far has to be handed on.

    Args:
        session: The session.
        barrier: `request` (a model request follows), `tool` (a body that may change something follows),
            `turn` (a turn ended) or `dispose`.

    If this fails at `request` or `tool`, neither happens (L-16).
    """
