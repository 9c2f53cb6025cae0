"""
The typed facade over the hooks: the only way the core calls one (H-3).

One keyword-only method per hook of `hookspecs`. Hooks that observe or check are plain methods, the others
are awaited. Where nobody implements a hook, a call costs one look-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._around import around
from dsh_core._dispatch import checkpoint, contained_checkpoint, drain, first, transform
from dsh_core._failures import describe
from dsh_core._gate import GateOutcome, gate
from dsh_core._generic import bind, run_generic, scope_of
from dsh_core._hooktable import HookTable, Reporter
from dsh_core._hooktrace import HookCall
from dsh_core._observe import check, observe
from dsh_core._plans import Implementation
from dsh_core.decisions import ApprovalGranted, ApprovalRefused, PromptAllow, ResultAccept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dsh_core._plans import Registered
    from dsh_core.agent.types import Agent, TurnResult
    from dsh_core.content import GenerateRequest, Message
    from dsh_core.decisions import (
        Approval,
        ApprovalDecision,
        ContinuationDecision,
        PromptDecision,
        ResultDecision,
        Retry,
    )
    from dsh_core.harness import Harness
    from dsh_core.llm.seam import LlmError, StreamChunk
    from dsh_core.prompt import PromptAssembly
    from dsh_core.session.log import Session, SessionEvent
    from dsh_core.tools.definition import PendingCall, ToolResult

__all__ = ["AnswererFailed", "GateOutcome", "HookCall", "Hooks", "Implementation", "Reporter"]


class Hooks(HookTable):
    """
    Every hook of the core as a method; what each means is said in `dsh_core.hookspecs`.

    Agent-scoped plugins are found by the id of the agent, the session or the request. Awaited methods raise
    `HookError` with the plugin's exception as its cause, unless the mode contains or collects failures.

    Args:
        timeout: The configured time limit of awaited implementations (H-4), or None.
    """

    # -- loading and plugins' own hooks ------------------------------------------------------------------

    def register(self, *, harness: Harness, registered: Registered) -> None:
        """Let one plugin register what it brings."""
        plan = self._maker.single(self._spec("register"), registered)
        if plan is not None:
            check(plan, (harness,))

    def call(self, hook: str, /, **arguments: Any) -> Any:
        """
        Call a hook by name: a plugin's own, or one of the core.

        Args:
            hook: Its name.
            **arguments: Its arguments; an around hook takes the real thing as `call_next`.

        Returns:
            For `observe` and `check` None, else an awaitable: of the value (transform, around, first), of a
            `GateOutcome` (gate), of None (checkpoint, drain).

        Raises:
            LookupError: There is no such hook.
            TypeError: An argument is missing or unknown.
        """
        spec = self._spec(hook)
        if spec.plugin is None:
            return getattr(self, hook)(**arguments)
        return run_generic(self._plan(hook, scope_of(arguments)), spec, bind(spec, arguments))

    # -- agents ------------------------------------------------------------------------------------------

    def agent_created(self, *, agent: Agent) -> None:
        """An agent exists."""
        plan = self._scoped.get(agent.id, self._shared)["agent_created"]
        if plan is not None:
            observe(plan, (agent,))

    def agent_disposed(self, *, agent: Agent) -> None:
        """An agent is gone."""
        plan = self._scoped.get(agent.id, self._shared)["agent_disposed"]
        if plan is not None:
            observe(plan, (agent,))

    def agent_status(self, *, agent: Agent, status: str) -> None:
        """The status changed."""
        plan = self._scoped.get(agent.id, self._shared)["agent_status"]
        if plan is not None:
            observe(plan, (agent, status))

    def agent_queued(self, *, agent: Agent, message: Message, lane: str) -> None:
        """A message was accepted."""
        plan = self._scoped.get(agent.id, self._shared)["agent_queued"]
        if plan is not None:
            observe(plan, (agent, message, lane))

    def agent_error(self, *, agent: Agent, turn: int, step: int, error: BaseException, origin: str) -> None:
        """Something failed."""
        plan = self._scoped.get(agent.id, self._shared)["agent_error"]
        if plan is not None:
            observe(plan, (agent, turn, step, error, origin))

    def agent_stream_chunk(self, *, agent: Agent, turn: int, step: int, chunk: StreamChunk) -> None:
        """A chunk came."""
        plan = self._scoped.get(agent.id, self._shared)["agent_stream_chunk"]
        if plan is not None:
            observe(plan, (agent, turn, step, chunk))

    async def agent_session_start(self, *, agent: Agent, source: str) -> None:
        """Before the first turn; failures are reported and contained."""
        plan = self._scoped.get(agent.id, self._shared)["agent_session_start"]
        if plan is not None:
            await contained_checkpoint(plan, (agent, source))

    async def agent_prompt_submit(self, *, agent: Agent, message: Message) -> PromptDecision:
        """May the prompt run, and as what? Contexts name their source."""
        plan = self._scoped.get(agent.id, self._shared)["agent_prompt_submit"]
        if plan is None:
            return PromptAllow()
        decision: PromptDecision = (await transform(plan, [agent, message, PromptAllow()]))[0]
        return decision

    async def agent_pre_step(self, *, agent: Agent, turn: int, step: int, system_prompt: str | None) -> None:
        """Before a step."""
        plan = self._scoped.get(agent.id, self._shared)["agent_pre_step"]
        if plan is not None:
            await checkpoint(plan, (agent, turn, step, system_prompt))

    async def agent_request(self, *, agent: Agent, turn: int, step: int, request: GenerateRequest) -> GenerateRequest:
        """The request to send."""
        plan = self._scoped.get(agent.id, self._shared)["agent_request"]
        if plan is None:
            return request
        changed: GenerateRequest = (await transform(plan, [agent, turn, step, request]))[0]
        return changed

    async def agent_request_error(
        self, *, agent: Agent, turn: int, step: int, request: GenerateRequest, error: LlmError, attempt: int
    ) -> Retry | None:
        """Is the request repeated?"""
        plan = self._scoped.get(agent.id, self._shared)["agent_request_error"]
        if plan is None:
            return None
        retry: Retry | None = (await first(plan, (agent, turn, step, request, error, attempt)))[0]
        return retry

    async def agent_step_result(self, *, agent: Agent, turn: int, step: int, message: Message) -> Message:
        """The answer to keep."""
        plan = self._scoped.get(agent.id, self._shared)["agent_step_result"]
        if plan is None:
            return message
        kept: Message = (await transform(plan, [agent, turn, step, message]))[0]
        return kept

    async def agent_turn_continuation(
        self, *, agent: Agent, turn: int, step: int, decision: ContinuationDecision
    ) -> tuple[ContinuationDecision, str | None]:
        """Does the turn go on? Also who changed the decision last, None for nobody."""
        plan = self._scoped.get(agent.id, self._shared)["agent_turn_continuation"]
        if plan is None:
            return decision, None
        return await transform(plan, [agent, turn, step, decision])

    async def agent_turn_end(self, *, agent: Agent, result: TurnResult) -> None:
        """A turn is closed; failures are reported and contained."""
        plan = self._scoped.get(agent.id, self._shared)["agent_turn_end"]
        if plan is not None:
            await contained_checkpoint(plan, (agent, result))

    # -- tools -------------------------------------------------------------------------------------------

    async def tools_pre_execute(self, *, agent: Agent, call: PendingCall) -> GateOutcome:
        """May the call run? Never raises for a plugin's failure: that is its `Deny`."""
        plan = self._scoped.get(agent.id, self._shared)["tools_pre_execute"]
        return _NO_OPINION if plan is None else await gate(plan, (agent, call))

    async def approval_request(
        self, *, agent: Agent, approval: Approval, may_grant: Callable[[str], bool] | None = None
    ) -> tuple[ApprovalDecision | None, str | None]:
        """
        Who answers the question, and how? A failure of an answerer is its refusal (L-14).

        Args:
            agent: The agent.
            approval: The question.
            may_grant: Whether the plugin of this name may grant; what others grant is passed over, and the next
                one is asked.
        """
        plan = self._scoped.get(agent.id, self._shared)["approval_request"]
        if plan is None:
            return None, None

        def admits(answer: ApprovalDecision, plugin: str) -> bool:
            return may_grant is None or not isinstance(answer, ApprovalGranted) or may_grant(plugin)

        return await first(plan, (agent, approval), refused=_refusal, admits=admits)

    def approval_decided(self, *, agent: Agent, approval: Approval, outcome: str) -> None:
        """A question is settled."""
        plan = self._scoped.get(agent.id, self._shared)["approval_decided"]
        if plan is not None:
            observe(plan, (agent, approval, outcome))

    async def tools_execute(
        self, *, agent: Agent, call: PendingCall, body: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Run `body`, the tool, inside the implementations."""
        plan = self._scoped.get(agent.id, self._shared)["tools_execute"]
        if plan is None:
            return await body()
        result: ToolResult = await around(plan, (agent, call, None), body)
        return result

    async def tools_post_execute(self, *, agent: Agent, call: PendingCall, result: ToolResult) -> ResultDecision:
        """What becomes of the result? Contexts name their source."""
        plan = self._scoped.get(agent.id, self._shared)["tools_post_execute"]
        if plan is None:
            return _ACCEPTED
        decision: ResultDecision = (await transform(plan, [agent, call, result, _ACCEPTED]))[0]
        return decision

    # -- model and prompt --------------------------------------------------------------------------------

    async def llm_stream(
        self, *, request: GenerateRequest, open_stream: Callable[[], Awaitable[AsyncIterator[StreamChunk]]]
    ) -> AsyncIterator[StreamChunk]:
        """Open the stream with `open_stream`, inside the implementations."""
        plan = self._plan("llm_stream", request.session_id)
        if plan is None:
            return await open_stream()
        stream: AsyncIterator[StreamChunk] = await around(plan, (request, None), open_stream)
        return stream

    async def system_prompt_assemble(self, *, agent: Agent, assembly: PromptAssembly) -> PromptAssembly:
        """The assembly to render."""
        plan = self._scoped.get(agent.id, self._shared)["system_prompt_assemble"]
        if plan is None:
            return assembly
        changed: PromptAssembly = (await transform(plan, [agent, assembly]))[0]
        return changed

    # -- sessions ----------------------------------------------------------------------------------------

    def session_created(self, *, session: Session) -> None:
        """A session is live."""
        plan = self._scoped.get(session.id, self._shared)["session_created"]
        if plan is not None:
            observe(plan, (session,))

    def session_disposed(self, *, session: Session) -> None:
        """A session is no longer live."""
        plan = self._scoped.get(session.id, self._shared)["session_disposed"]
        if plan is not None:
            observe(plan, (session,))

    def session_append(self, *, session: Session, event: SessionEvent) -> None:
        """May the event be appended? What a plugin raises comes out as it is, with a note."""
        plan = self._scoped.get(session.id, self._shared)["session_append"]
        if plan is not None:
            check(plan, (session, event))

    def session_event(self, *, session: Session, event: SessionEvent) -> None:
        """An event was appended."""
        plan = self._scoped.get(session.id, self._shared)["session_event"]
        if plan is not None:
            observe(plan, (session, event))

    async def session_flush(self, *, session: Session, barrier: str) -> None:
        """
        Hand on what was logged.

        Raises:
            ExceptionGroup: A `HookError` for each plugin that failed; the others have run.
        """
        plan = self._scoped.get(session.id, self._shared)["session_flush"]
        if plan is not None:
            await drain(plan, (session, barrier))


_ACCEPTED: Final = ResultAccept()
_NO_OPINION: Final = GateOutcome(None)


@attrs.frozen
class AnswererFailed(ApprovalRefused):
    """Stands for the answer of an answerer that raised: it counts as a refusal, but nobody said no (L-14)."""


def _refusal(error: BaseException, plugin: str) -> ApprovalRefused:
    return AnswererFailed(f"plugin {plugin!r} could not answer: {describe(error)}")
