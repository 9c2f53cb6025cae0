"""
Requests rebuilt from the log alone (L-9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh_core.content import GenerateRequest, Message
from dsh_core.errors import HarnessError
from dsh_core.session.events import RequestHeaderEvent, RequestRetryEvent, StepStartEvent
from dsh_core.session.projection import Projection
from dsh_core.session.surface import SurfaceFold, is_message

if TYPE_CHECKING:
    from dsh_core.session.event import SessionEvent

__all__ = ["rebuild_request"]


def rebuild_request(events: Sequence[SessionEvent], turn: int, step: int, attempt: int = 1) -> GenerateRequest:
    """
    The request that an adapter received.

    Args:
        events: The log, from its first event, up to the request or further.
        turn: Number of the turn.
        step: Number of the step.
        attempt: Number of the attempt, from 1.

    Raises:
        HarnessError: The log holds no such request (`NO_REQUEST`).
    """
    anchor = _anchor(events, turn, step, attempt)
    header = _header(events, turn, step, attempt)
    if anchor is None or header is None:
        raise HarnessError(
            f"the log holds no request for attempt {attempt} of step {step} in turn {turn}; "
            "steps count from 1 in each turn, attempts from 1 in each step",
            "NO_REQUEST",
        )
    params = header.params
    return GenerateRequest(
        model=header.model,
        provider=header.provider,
        messages=_messages(events[:anchor]),
        system=header.system,
        tools=header.tools,
        temperature=params.get("temperature"),
        max_tokens=params.get("max_tokens"),
        stop=params.get("stop", ()),
        reasoning_effort=params.get("reasoning_effort"),
        response_format=params.get("response_format"),
        extra=params.get("extra", {}),
        session_id=getattr(events, "session_id", None),
        turn=turn,
        step=step,
        attempt=attempt,
    )


def _anchor(events: Sequence[SessionEvent], turn: int, step: int, attempt: int) -> int | None:
    """Seq of the event before which everything was known to the request: `step/start`, later `request/retry`."""
    for event in events:
        data = event.data
        kind = type(data)
        if kind is StepStartEvent and attempt == 1:
            if (data.turn, data.step) == (turn, step):
                return event.seq
        elif kind is RequestRetryEvent and (data.turn, data.step, data.attempt) == (turn, step, attempt):
            return event.seq
    return None


def _header(events: Sequence[SessionEvent], turn: int, step: int, attempt: int) -> RequestHeaderEvent | None:
    """The last header that was logged for this request or one before it."""
    found = None
    for event in events:
        data = event.data
        if type(data) is RequestHeaderEvent:
            if (data.turn, data.step, data.attempt) > (turn, step, attempt):
                break
            found = data
    return found


def _messages(events: Sequence[SessionEvent]) -> Sequence[Message]:
    surface = SurfaceFold(events)
    for event in events:
        if is_message(event.data):
            surface.push(event)
    return Projection(surface, events).view()
