"""
From the provider's chunks to ours (M-1). Pure: no I/O, no time.

Ends, usage and finish are held until the stream is over, because providers put usage before the finish
reason, beside it, or after it, and some open a block again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dsh_core.content import Finish, Usage
from dsh_core.errors import LlmError
from dsh_core.llm.seam import BlockEnd, BlockStart, FinishChunk, ReasoningDelta, StreamChunk, TextDelta, UsageChunk
from dsh_llm_openai.calls import CallTracker
from dsh_llm_openai.chunks import Choice, Chunk, Delta, ToolCall, reasoning_text
from dsh_llm_openai.usage import usage_of

if TYPE_CHECKING:
    from dsh_llm_openai.profiles import Profile

__all__ = ["Translator", "finish_kind"]

_KINDS: Final = {
    "stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop", "complete": "stop",
    "tool_calls": "tool-calls", "tool_call": "tool-calls", "tool_use": "tool-calls", "function_call": "tool-calls",
    "length": "max-tokens", "max_tokens": "max-tokens", "model_length": "max-tokens", "max_output_tokens": "max-tokens",
    "content_filter": "content-filter", "safety": "content-filter", "sensitive": "content-filter",
    "error": "error", "network_error": "error", "insufficient_system_resource": "error",
    "abort": "aborted", "cancelled": "aborted",
}  # fmt: skip


def finish_kind(reason: str) -> str:
    """Our kind for a provider's finish reason; an unknown reason stays as it is."""
    return _KINDS.get(reason.lower(), reason)


class Translator:
    """
    The state of one answer.

    Args:
        profile: Where reasoning is found, and whether a finish reason is optional.
        offered: Names of the tools in the request.
        answer_tool: Name of the tool whose arguments are the answer (structured output).
    """

    def __init__(self, profile: Profile, offered: Iterable[str] = (), answer_tool: str | None = None) -> None:
        self._profile = profile
        self._indices = 0
        self._open: int | None = None  # the text or reasoning block that takes the next delta
        self._open_kind = ""
        self._held = ""  # the first half of a surrogate pair that was cut in two
        self._calls = CallTracker(offered, self._next_index, answer_tool)
        self._reason: str | None = None
        self._usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """Whether the provider has said why it stopped."""
        return self._reason is not None

    @property
    def has_output(self) -> bool:
        """Whether any block was opened."""
        return self._indices > 0 or bool(self._calls)

    def take(self, chunk: Chunk) -> list[StreamChunk]:
        """Our chunks for one of the provider's."""
        out: list[StreamChunk] = []
        if chunk.choices:
            choice = chunk.choices[0]
            if not choice.index:
                self._take_choice(choice, out)
        usage = chunk.usage
        if usage is None and isinstance(chunk.x_groq, dict):
            usage = chunk.x_groq.get("usage")
        if usage is not None:
            self._usage = usage_of(usage) or self._usage
        return out

    def close(self, *, done: bool) -> list[StreamChunk]:
        """
        The ends of all open blocks, then usage, then finish.

        Args:
            done: Whether the stream's own end mark was seen.

        Raises:
            LlmError: EMPTY_RESPONSE or STREAM_CLOSED: the answer has no end.
        """
        if self._reason is None and not (done and self._profile.finish_optional and self.has_output):
            self._refuse(done)
        out: list[StreamChunk] = []
        self._end_prose(out)
        out += self._calls.close()
        if self._usage is not None:
            out.append(UsageChunk(self._usage))
        out.append(FinishChunk(self._finish()))
        return out

    def _refuse(self, done: bool) -> None:
        if not self.has_output and self._usage is None:
            raise LlmError("EMPTY_RESPONSE", "the stream ended without an answer")
        how = "with its end mark but" if done else "early,"
        raise LlmError("STREAM_CLOSED", f"the stream ended {how} without a finish reason")

    def _finish(self) -> Finish:
        kind = finish_kind(self._reason or ("tool_calls" if self._calls else "stop"))
        if kind == "error":
            return Finish("error", f"the provider stopped with {self._reason!r}", "SERVER")
        if kind == "tool-calls" and self._calls and self._calls.only_answers:
            kind = "stop"
        return Finish(kind)

    def _take_choice(self, choice: Choice, out: list[StreamChunk]) -> None:
        if choice.delta is not None:
            self._take_delta(choice.delta, out)
        reason = choice.finish_reason
        if reason and reason.lower() not in ("null", "none"):
            self._reason = reason
        if choice.usage is not None:
            self._usage = usage_of(choice.usage) or self._usage

    def _take_delta(self, delta: Delta, out: list[StreamChunk]) -> None:
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details or delta.thinking:
            if thought := self._reasoning(delta):
                self._prose("reasoning", thought, out)
        if delta.content:
            self._prose("text", delta.content, out)
        if delta.refusal:
            self._prose("text", delta.refusal, out)
        if delta.tool_calls:
            self._end_prose(out)
            out += self._calls.take(delta.tool_calls)
        elif delta.function_call is not None:  # the older shape: one call, without id
            self._end_prose(out)
            out += self._calls.take([ToolCall(index=0, function=delta.function_call)])

    def _reasoning(self, delta: Delta) -> str:
        for field in self._profile.reasoning_fields:
            value = getattr(delta, field, None)
            if value and (text := reasoning_text(value)):
                return text
        # content parts of kind "thinking" are put there whatever the profile says
        return reasoning_text(delta.reasoning_content) if delta.reasoning_content else ""

    def _prose(self, kind: str, text: str, out: list[StreamChunk]) -> None:
        if self._open is None or self._open_kind != kind:
            self._end_prose(out)
            self._open, self._open_kind = self._next_index(), kind
            out.append(BlockStart(self._open, kind))
        if self._held or "\ud800" <= text[-1] <= "\udbff":
            text = self._join_surrogates(text)
            if not text:
                return
        out.append(TextDelta(self._open, text) if kind == "text" else ReasoningDelta(self._open, text))

    def _join_surrogates(self, text: str) -> str:
        text = self._held + text
        self._held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return _paired(text[:-1] if self._held else text)

    def _end_prose(self, out: list[StreamChunk]) -> None:
        if self._open is None:
            return
        if self._held:
            self._held = ""
            lost = "\ufffd"
            out.append(TextDelta(self._open, lost) if self._open_kind == "text" else ReasoningDelta(self._open, lost))
        out.append(BlockEnd(self._open))
        self._open = None

    def _next_index(self) -> int:
        self._indices += 1
        return self._indices - 1


def _paired(text: str) -> str:
    """Join the halves of surrogate pairs; what stays alone becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
