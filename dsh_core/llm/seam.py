"""
The seam between the loop and a model: chunks in, requests out.

An adapter turns one `GenerateRequest` into a stream of chunks and does nothing else. Its contract (M-1):
usage comes before finish and nothing after finish; arguments stay raw text; a failure is a raised
`LlmError` or a finish of kind `error` or `aborted`; cancelling the iterator closes the connection at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TypeAlias

import attrs

from dsh_core.content import Block, Finish, GenerateRequest, ToolSchema, Usage
from dsh_core.errors import LlmError

__all__ = [
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


@attrs.frozen
class BlockStart:
    """
    A block begins.

    Args:
        index: Position of the block in the message, chosen by the adapter.
        kind: `text`, `reasoning` or `tool-call`.
    """

    index: int
    kind: str


@attrs.frozen
class TextDelta:
    """More text of block `index`."""

    index: int
    text: str


@attrs.frozen
class ReasoningDelta:
    """More reasoning of block `index`."""

    index: int
    text: str


@attrs.frozen
class ToolCallDelta:
    """
    More of the tool call in block `index`.

    Args:
        id: The provider's id, or None in later fragments.
        name: The whole name, or None in later fragments.
        arguments: The next piece of raw JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@attrs.frozen
class BlockEnd:
    """
    A block is complete.

    Args:
        block: The whole block where the adapter knows it; it then counts more than the deltas.
    """

    index: int
    block: Block | None = None


@attrs.frozen
class UsageChunk:
    """What the request cost."""

    usage: Usage


@attrs.frozen
class FinishChunk:
    """The end of the stream."""

    finish: Finish


StreamChunk: TypeAlias = (
    BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | FinishChunk
)


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

    async def aclose(self) -> None:
        """Release connections; called once when the adapter's plugin goes."""
