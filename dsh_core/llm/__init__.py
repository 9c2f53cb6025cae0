"""
The way to a model: the seam, the registry of adapters, and adapters for tests.
"""

from __future__ import annotations

from dsh_core.llm.assembler import BlockAssembler
from dsh_core.llm.registry import LlmRegistry
from dsh_core.llm.seam import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    GenerateRequest,
    LlmAdapter,
    LlmError,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    UsageChunk,
)

__all__ = [
    "BlockAssembler",
    "BlockEnd",
    "BlockStart",
    "FinishChunk",
    "GenerateRequest",
    "LlmAdapter",
    "LlmError",
    "LlmRegistry",
    "ReasoningDelta",
    "StreamChunk",
    "TextDelta",
    "ToolCallDelta",
    "ToolSchema",
    "UsageChunk",
]
