"""
The vocabulary of the session log: one attrs class per event type of the core (S-5).

Wire names (`turn/start`) are the on-disk format. The attribute names are the keys inside `data`; what has
its default value is not written. A plugin adds types of its own with `@session_event`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from dsh_core.content import Block, ErrorInfo, Finish, Source, Tagged, ToolSchema, Usage, as_blocks, to_tuple
from dsh_core.session._registry import EventType, register_event_type

__all__ = [
    "ApprovalAskedEvent",
    "ApprovalDecidedEvent",
    "AssistantChunkEvent",
    "AssistantMessageEvent",
    "ContextMessageEvent",
    "InboxDroppedEvent",
    "InboxQueuedEvent",
    "PromptBlockedEvent",
    "RequestHeaderEvent",
    "RequestRetryEvent",
    "SteeringMessageEvent",
    "StepEndEvent",
    "StepStartEvent",
    "ToolCallEvent",
    "ToolResultEvent",
    "ToolRewrittenEvent",
    "TurnContinuationEvent",
    "TurnEndEvent",
    "TurnStartEvent",
    "UnknownEvent",
    "UserMessageEvent",
    "session_event",
]

C = TypeVar("C", bound=type)


def session_event(
    name: str,
    *,
    ignorable: bool = True,
    between_turns: bool = True,
    surface: bool = False,
    version: int = 1,
) -> Callable[[C], C]:
    """
    Register a plugin's attrs class as an event type.

    Args:
        name: Wire name, `area/what`; an area of the core or a name that is taken is refused.
        ignorable: A reader without the plugin may leave such events out; otherwise it refuses to resume.
        between_turns: May stand outside a turn (S-7).
        surface: Reserved for the core: the messages of a conversation are the core's own types.
        version: Version of the type; stored when it is not 1.

    Raises:
        ValueError: The name is malformed, taken or the core's; `surface` is asked for.
        TypeError: The class is not an attrs class.
    """

    def decorate(cls: C) -> C:
        register_event_type(
            cls,
            EventType(name, cls, ignorable=ignorable, between_turns=between_turns, surface=surface, version=version),
            core=False,
        )
        return cls

    return decorate


def _core(name: str, *, surface: bool = False, between_turns: bool = False) -> Callable[[C], C]:
    def decorate(cls: C) -> C:
        register_event_type(
            cls,
            EventType(name, cls, ignorable=False, between_turns=between_turns, surface=surface, version=1),
            core=True,
        )
        return cls

    return decorate


@_core("turn/start")
@attrs.frozen
class TurnStartEvent:
    """A turn begins. `trigger.kind`: message, injection, maintenance."""

    turn: int
    trigger: Tagged


@_core("turn/end")
@attrs.frozen
class TurnEndEvent:
    """A turn is over. `reason.kind`: completed, max-tokens, limit, aborted, error, rejected, disposed, interrupted."""

    turn: int
    reason: Tagged


@_core("step/start")
@attrs.frozen
class StepStartEvent:
    """A step begins; the request of its first attempt is the projection of everything before this."""

    turn: int
    step: int


@_core("step/end")
@attrs.frozen
class StepEndEvent:
    """A step is over."""

    turn: int
    step: int


@_core("inbox/queued", between_turns=True)
@attrs.frozen
class InboxQueuedEvent:
    """A message was accepted. `lane`: queued, steering."""

    message_id: str
    lane: str
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None


@_core("inbox/dropped", between_turns=True)
@attrs.frozen
class InboxDroppedEvent:
    """Messages were removed before they ran."""

    message_ids: tuple[str, ...] = attrs.field(converter=to_tuple)
    reason: str = ""


@_core("user/message", surface=True)
@attrs.frozen
class UserMessageEvent:
    """A prompt as the model sees it."""

    message_id: str
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None
    pinned: bool = False


@_core("prompt/blocked")
@attrs.frozen
class PromptBlockedEvent:
    """A prompt that a plugin blocked; the model never sees it."""

    message_id: str
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None
    reason: str = ""


@_core("context/message", surface=True)
@attrs.frozen
class ContextMessageEvent:
    """A note to the model."""

    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None
    pinned: bool = False


@_core("steering/message", surface=True)
@attrs.frozen
class SteeringMessageEvent:
    """A message that joined a running turn."""

    message_id: str
    turn: int
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None


@_core("request/header")
@attrs.frozen
class RequestHeaderEvent:
    """Everything of a request but its messages, when it differs from the last. `reason`: initial, resume, change."""

    turn: int
    step: int
    attempt: int = 1
    provider: str = ""
    model: str = ""
    params: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    system: str | None = None
    tools: tuple[ToolSchema, ...] = attrs.field(default=(), converter=to_tuple)
    reason: str = "change"


@_core("request/retry")
@attrs.frozen
class RequestRetryEvent:
    """The request is about to be repeated; `attempt` is the one about to start. `error`: {code, message, status}."""

    turn: int
    step: int
    attempt: int = 1
    delay_ms: int = 0
    error: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


@_core("assistant/chunk")
@attrs.frozen
class AssistantChunkEvent:
    """A pack of raw chunks (S-8); `unpack_chunks` gives back what the adapter produced."""

    turn: int
    step: int
    attempt: int = 1
    chunks: tuple[Any, ...] = attrs.field(default=(), converter=to_tuple, hash=False)


@_core("assistant/message", surface=True)
@attrs.frozen
class AssistantMessageEvent:
    """What the model said, as history and dispatch have it."""

    turn: int
    step: int
    attempt: int = 1
    content: tuple[Block, ...] = attrs.field(default=(), converter=as_blocks)
    usage: Usage | None = None
    finish: Finish | None = None
    interrupted: bool = False


@_core("tool/call")
@attrs.frozen
class ToolCallEvent:
    """A call is taken up. `arguments` is the model's raw text."""

    turn: int
    step: int
    call_id: str
    name: str
    arguments: str = ""


@_core("tool/rewritten")
@attrs.frozen
class ToolRewrittenEvent:
    """A gate changed the arguments (L-13)."""

    call_id: str
    arguments: Mapping[str, Any] = attrs.field(hash=False)
    plugin: str = ""


@_core("approval/asked")
@attrs.frozen
class ApprovalAskedEvent:
    """Somebody was asked about the call in its final form."""

    approval_id: str
    call_id: str
    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    reason: str = ""
    rule: str | None = None


@_core("approval/decided")
@attrs.frozen
class ApprovalDecidedEvent:
    """The answer. `outcome`: approved, rejected, timeout, cancelled, unavailable."""

    approval_id: str
    call_id: str
    outcome: str
    remember: str | None = None
    by: str | None = None


@_core("tool/result", surface=True)
@attrs.frozen
class ToolResultEvent:
    """The one answer to a call."""

    turn: int
    step: int
    call_id: str
    content: tuple[Block, ...] = attrs.field(default=(), converter=as_blocks)
    is_error: bool = False
    error: ErrorInfo | None = None
    meta: Mapping[str, Any] | None = attrs.field(default=None, hash=False)


@_core("turn/continuation")
@attrs.frozen
class TurnContinuationEvent:
    """A plugin changed whether the turn goes on. `action`: continue, stop."""

    turn: int
    step: int
    action: str
    reason: str | None = None
    plugin: str | None = None


@attrs.frozen
class UnknownEvent:
    """
    An event of a type this version does not know, kept byte for byte.

    Args:
        type: Its wire name.
        raw: The record as it was read.
    """

    type: str
    raw: bytes
