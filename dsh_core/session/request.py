"""
Requests rebuilt from the log alone (L-9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh_core.content import GenerateRequest
from dsh_core.errors import HarnessError
from dsh_core.session._registry import event_type_of
from dsh_core.session.events import (
    AssistantChunkEvent,
    AssistantMessageEvent,
    RequestHeaderEvent,
    RequestRetryEvent,
    StepEndEvent,
    StepStartEvent,
)
from dsh_core.session.projection import Projection
from dsh_core.session.surface import Surface

if TYPE_CHECKING:
    from dsh_core.session.codec import SessionEvent

__all__ = ["rebuild_request"]


def rebuild_request(events: Sequence[SessionEvent], turn: int, step: int, attempt: int = 1) -> GenerateRequest:
    """
    The request that an adapter received.

    Args:
        events: The log up to the request or further.
        turn: Number of the turn.
        step: Number of the step.
        attempt: Number of the attempt, from 1.

    Raises:
        HarnessError: The log holds no such request (`NO_REQUEST`).
    """
    anchor = _anchor(events, turn, step, attempt)
    header = _header(events, anchor)
    if anchor is None or header is None:
        raise HarnessError(f"the log holds no request {attempt} of step {step} in turn {turn}", "NO_REQUEST")
    params = header.params
    return GenerateRequest(
        model=header.model,
        provider=header.provider,
        messages=_projected(events[:anchor]),
        system=header.system,
        tools=header.tools,
        temperature=params.get("temperature"),
        max_tokens=params.get("max_tokens"),
        stop=tuple(params.get("stop", ())),
        reasoning_effort=params.get("reasoning_effort"),
        response_format=params.get("response_format"),
        extra=params.get("extra", {}),
        session_id=getattr(events, "session_id", None),
        turn=turn,
        step=step,
        attempt=attempt,
    )


def _anchor(events: Sequence[SessionEvent], turn: int, step: int, attempt: int) -> int | None:
    for index in range(len(events) - 1, -1, -1):
        data = events[index].data
        if attempt == 1 and type(data) is StepStartEvent and (data.turn, data.step) == (turn, step):
            return index
        if type(data) is RequestRetryEvent and (data.turn, data.step, data.attempt) == (turn, step, attempt):
            return index
    return None


def _header(events: Sequence[SessionEvent], anchor: int | None) -> RequestHeaderEvent | None:
    if anchor is None:
        return None
    for index in range(anchor + 1, len(events)):
        data = events[index].data
        if type(data) is RequestHeaderEvent:
            return data
        if type(data) in (AssistantChunkEvent, AssistantMessageEvent, RequestRetryEvent, StepEndEvent):
            break
    for index in range(anchor, -1, -1):
        data = events[index].data
        if type(data) is RequestHeaderEvent:
            return data
    return None


def _projected(events: Sequence[SessionEvent]) -> Sequence[object]:
    surface = Surface()
    for event in events:
        kind = event_type_of(type(event.data))
        if kind is not None and kind.surface:
            if event.surface is None:
                surface.append(event.seq)
            else:
                surface.replace(event.seq, event.surface)
    return Projection(events[seq].data for seq in surface.nodes).view()
