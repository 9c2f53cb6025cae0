"""
Agents: what they are to a plugin or an embedder, and how they are made.

The loop itself is a factory behind `AgentRegistry.set_factory`; nothing here knows how a turn runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from dsh_core.content import Content, ContextLike, Message, Source, Tagged, Usage, to_tuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from dsh_core.harness import Harness
    from dsh_core.session.log import Session, SessionEvent

__all__ = ["Agent", "AgentOptions", "Receipt", "TurnResult"]


@attrs.frozen(kw_only=True)
class AgentOptions:
    """
    How an agent runs.

    Args:
        model: `provider/model`, or a bare name that exactly one provider offers.
        system_prompt: The persona, a template (see the system prompt's sections).
        max_steps: Steps a turn may have.
        max_tokens: Upper bound of tokens of one answer.
        temperature: Sampling temperature.
        reasoning_effort: Such as `low` or `high`.
        stop: Stop sequences.
        extra: Further members of the provider's request body.
        tools: Names of the tools to offer; None offers all.
        output_type: An attrs class or a JSON Schema the final answer must match.
    """

    model: str | None = None
    system_prompt: str | None = None
    max_steps: int = 200
    max_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = attrs.field(default=(), converter=to_tuple)
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    tools: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(to_tuple))
    output_type: Any = attrs.field(default=None, hash=False)


@attrs.frozen(kw_only=True)
class TurnResult:
    """
    What a turn came to; `str()` of it is the text.

    Args:
        text: Text of the last answer of the turn.
        output: The structured output, where `output_type` was given.
        reason: Why the turn ended (S-5): `reason.kind` is `completed`, `error`, `limit`, …
        turn: Its number.
        usage: Tokens of all its requests.
        messages: The messages the turn added, as a model sees them.
        session_id: Where it ran.
        events: Its events, from `turn/start` to `turn/end`.
    """

    text: str = ""
    output: Any = attrs.field(default=None, hash=False)
    reason: Tagged
    turn: int
    usage: Usage = attrs.field(factory=Usage)
    messages: Sequence[Message] = attrs.field(default=(), hash=False)
    session_id: str = ""
    events: Sequence[SessionEvent] = attrs.field(default=(), repr=False, hash=False)

    def __str__(self) -> str:
        return self.text


class Receipt(Protocol):
    """
    The answer to `send` and `steer`.

    Await it for the `TurnResult` of the turn the message ends in; that raises `MessageDropped`,
    `PromptBlocked` or `AgentDisposed`. Cancelling the wait stops only the waiting (A-2).
    """

    @property
    def message_id(self) -> str:
        """Id of the message in the log."""

    @property
    def stored(self) -> Awaitable[None]:
        """Await it to know that the message is with the operating system: it is accepted."""

    def __await__(self) -> Generator[Any, None, TurnResult]: ...


class Agent(Protocol):
    """A running agent. Its id is the id of its session."""

    @property
    def id(self) -> str: ...

    @property
    def session(self) -> Session: ...

    @property
    def options(self) -> AgentOptions: ...

    @property
    def status(self) -> str:
        """`idle`, `running` or `disposed`."""

    @property
    def harness(self) -> Harness: ...

    @property
    def pending(self) -> Sequence[Message]:
        """Messages that were accepted and have not run, in the order in which they will."""

    def send(self, content: Content, *, source: Source | None = None) -> Receipt:
        """Queue a prompt and wake the agent (A-1)."""

    def steer(self, content: Content, *, source: Source | None = None) -> Receipt:
        """Add to the running turn between two steps; the same as `send` when idle."""

    def inject(self, content: ContextLike | Content, *, source: Source | None = None, pinned: bool = False) -> None:
        """Add context without running the model."""

    def cancel(self, reason: str = "cancelled") -> list[Message]:
        """Stop the running turn and empty the inbox; what was dropped is returned (A-3)."""

    async def when_idle(self) -> None:
        """Return when no turn runs and none is about to start (A-4)."""

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """The slot for maintenance of an idle agent (A-9)."""
