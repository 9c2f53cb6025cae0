"""
A model that says again what a recorded log has it say (M-6).

Requests are compared with those of the log, so that a change of prompts, tools or history shows itself at
the first request it reaches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from dsh_core.errors import LlmError
from dsh_core.llm.seam import LlmAdapter
from dsh_core.session.chunks import FinishChunk, StreamChunk, unpack_chunks
from dsh_core.session.events import AssistantChunkEvent, RequestRetryEvent, StepStartEvent, TurnEndEvent
from dsh_core.session.request import rebuild_request

if TYPE_CHECKING:
    from dsh_core.content import GenerateRequest, Message, ToolSchema
    from dsh_core.session.codec import SessionEvent

__all__ = ["ReplayAdapter"]

Key: TypeAlias = "tuple[int, int, int]"

_SHOWN: Final = 60
_BEFORE_THE_ADAPTER: Final = frozenset({"HOOK", "NO_ADAPTER", "NO_MODEL", "SECRET_IN_REQUEST", "STORAGE"})
"""Codes of steps that failed before their request went out."""
_CUT_OFF: Final = {"code": "ABORTED", "message": "the recorded request was cut off here, by a cancel or a crash"}


@attrs.define
class _Recorded:
    """What one recorded attempt received, and the failure it ended with."""

    packs: list[AssistantChunkEvent] = attrs.field(factory=list)
    error: Mapping[str, Any] | None = None

    @property
    def sent(self) -> bool:
        """Whether it is certain that the request went out."""
        return bool(self.packs) or (self.error is not None and self.error.get("code") not in _BEFORE_THE_ADAPTER)


class ReplayAdapter(LlmAdapter):
    """
    Plays a recorded session log.

    Failures are played as well: an attempt that was repeated, or that ended its turn, fails again with the same
    code, and one that was cut off by a cancel or a crash fails with `ABORTED` where it was cut. A request is found
    by its turn, step and attempt, so a session that was resumed can be replayed from there.

    Args:
        events: The log, such as `session.events` or what a backend loads.
    """

    def __init__(self, events: Sequence[SessionEvent]) -> None:
        self._events = events
        self._recorded = _recorded(events)
        self._unplayed = dict.fromkeys(key for key, recorded in self._recorded.items() if recorded.sent)
        self._divergence: str | None = None
        self.requests: list[GenerateRequest] = []
        """Every request received, in order."""

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """
        Play the recorded answer to this request.

        Raises:
            LlmError: The recorded failure; or the request is not the recorded one (`INVALID_REQUEST`): the message
                names turn, step and the first thing that differs.
        """
        self.requests.append(request)
        recorded = self._matching(request)
        finished = False
        for chunk in unpack_chunks(recorded.packs):
            finished = finished or type(chunk) is FinishChunk
            yield chunk
        if not finished:
            raise _failure(recorded.error or _CUT_OFF)

    def _matching(self, request: GenerateRequest) -> _Recorded:
        # What follows a divergence differs because of it, so the first one is told again.
        key = (request.turn, request.step, request.attempt)
        if self._divergence is None:
            self._divergence = self._compared(key, request)
        if self._divergence is not None:
            raise LlmError("INVALID_REQUEST", self._divergence)
        self._unplayed.pop(key, None)
        return self._recorded[key]

    def _compared(self, key: Key, request: GenerateRequest) -> str | None:
        if key in self._recorded:
            difference = _difference(rebuild_request(self._events, *key), request)
        else:
            difference = f"the log holds no such request; it holds {_listed(self._recorded)}"
        return None if difference is None else f"the replay diverges at {_named(key)}: {difference}"

    def assert_complete(self) -> None:
        """
        Check that the whole log was played.

        Raises:
            AssertionError: Requests are left; the message lists them.
        """
        if self._unplayed:
            raise AssertionError(f"recorded requests were not repeated: {_listed(self._unplayed)}")


def _recorded(events: Iterable[SessionEvent]) -> dict[Key, _Recorded]:
    """The attempts of a log, in order."""
    found: dict[Key, _Recorded] = {}
    for event in events:
        data = event.data
        if isinstance(data, StepStartEvent):
            found[data.turn, data.step, 1] = _Recorded()
        elif isinstance(data, AssistantChunkEvent):
            found.setdefault((data.turn, data.step, data.attempt), _Recorded()).packs.append(data)
        elif isinstance(data, RequestRetryEvent):
            found.setdefault((data.turn, data.step, data.attempt - 1), _Recorded()).error = data.error
            found.setdefault((data.turn, data.step, data.attempt), _Recorded())
        elif isinstance(data, TurnEndEvent) and data.reason.kind == "error":
            _note_failure(found, data)
    return found


def _note_failure(found: dict[Key, _Recorded], end: TurnEndEvent) -> None:
    step = end.reason.step
    attempts = [attempt for turn, at, attempt in found if (turn, at) == (end.turn, step)]
    if attempts:  # else it failed before the step was open
        found[end.turn, step, max(attempts)].error = end.reason


def _failure(error: Mapping[str, Any]) -> LlmError:
    return LlmError(error.get("code") or "UNKNOWN", error.get("message") or "", error.get("status"))


def _difference(recorded: GenerateRequest, request: GenerateRequest) -> str | None:
    """The first thing a model would see differently, in words."""
    return (
        _message_difference(recorded.messages, request.messages)
        or _text_difference("system", recorded.system or "", request.system or "")
        or _tool_difference(recorded.tools, request.tools)
    )


def _message_difference(recorded: Sequence[Message], sent: Sequence[Message]) -> str | None:
    for index, (before, now) in enumerate(zip(recorded, sent, strict=False)):
        if (before.role, before.content) != (now.role, now.content):
            return f"messages[{index}] was {_shown(before)} and is {_shown(now)}"
    if len(recorded) == len(sent):
        return None
    more = sent if len(sent) > len(recorded) else recorded
    first = min(len(recorded), len(sent))
    return f"messages: {len(recorded)} were sent then and {len(sent)} now; messages[{first}] is {_shown(more[first])}"


def _shown(message: Message) -> str:
    said = message.text if message.text else ", ".join(type(block).__name__ for block in message.content)
    return f"{message.role} {_short(said)}"


def _text_difference(what: str, before: str, now: str) -> str | None:
    if before == now:
        return None
    at = next((i for i, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(before), len(now)) if at is None else at
    return f"{what} differs from character {at} on: it was {_short(before[at:])} and is {_short(now[at:])}"


def _tool_difference(before: tuple[ToolSchema, ...], now: tuple[ToolSchema, ...]) -> str | None:
    if before == now:
        return None
    names, names_now = [schema.name for schema in before], [schema.name for schema in now]
    if names != names_now:
        return f"tools were {', '.join(names) or 'none'} and are {', '.join(names_now) or 'none'}"
    changed = next(old.name for old, new in zip(before, now, strict=True) if old != new)
    return f"tools: the description or schema of {changed!r} changed"


def _short(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


def _named(key: Key) -> str:
    turn, step, attempt = key
    return f"turn {turn}, step {step}" + (f", attempt {attempt}" if attempt > 1 else "")


def _listed(keys: Iterable[Key]) -> str:
    named = [_named(key) for key in keys]
    return "; ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "") or "none at all"
