"""
The seam between the loop and a model: chunks in, requests out.

An adapter turns one `GenerateRequest` into a stream of chunks and does nothing else. Its contract (M-1):
usage comes before finish and nothing after finish; arguments stay raw text; a failure is a raised
`LlmError` or a finish of kind `error` or `aborted`; cancelling the iterator closes the connection at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final

from dsh_core.content import GenerateRequest, ToolSchema
from dsh_core.errors import LlmError
from dsh_core.session.chunks import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)

__all__ = [
    "LLM_CODES",
    "BlockEnd",
    "BlockStart",
    "FinishChunk",
    "GenerateRequest",
    "LlmAdapter",
    "LlmError",
    "ReasoningDelta",
    "StreamChunk",
    "TextDelta",
    "ToolCallDelta",
    "ToolSchema",
    "UsageChunk",
]


LLM_CODES: Final = frozenset({
    "AUTH", "CONTENT_FILTER", "CONTEXT_OVERFLOW", "EMPTY_RESPONSE", "INVALID_REQUEST", "MALFORMED_RESPONSE",
    "NO_ADAPTER", "NO_MODEL", "QUOTA", "RATE_LIMIT", "SERVER", "STREAM_CLOSED", "TIMEOUT", "TRANSPORT",
})  # fmt: skip
"""The codes of `LlmError` that dsh knows; what an adapter can say with one of them, it should (M-3)."""


class LlmAdapter(ABC):
    """Base class of adapters. One instance serves every session of a harness at the same time."""

    @abstractmethod
    def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """
        Run one request.

        Args:
            request: The request, whole.

        Returns:
            The chunks as they come; an async generator is the usual way to write this.

        Raises:
            LlmError: With a code of M-3.
        """

    def context_window(self, model: str) -> int | None:
        """Tokens that fit into one request of `model`, or None where that is not known."""
        return None

    async def aclose(self) -> None:  # noqa: B027 - most adapters have nothing to release
        """Release connections; called once when the adapter's plugin goes."""
