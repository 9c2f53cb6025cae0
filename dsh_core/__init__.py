"""
dsh: a plugin-first agent harness.

A thin asyncio core calls the model, runs the tools and repeats, over an append-only log of session events;
everything else is a plugin that attaches to the hooks in `dsh_core.hookspecs`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dsh_core._markers import ENTRY_POINT_GROUP, GATE_ENTRY_POINT_GROUP, hookimpl, hookspec
    from dsh_core._ownership import Registration
    from dsh_core._plugins import PluginInfo
    from dsh_core.agent import Agent, AgentFactory, AgentHandle, AgentOptions, AgentRegistry, Receipt, TurnResult
    from dsh_core.compaction import Compaction, CompactionResult, Pressure, TokenEstimator
    from dsh_core.config import Config
    from dsh_core.content import (
        Context,
        Finish,
        ImageBlock,
        Message,
        ReasoningBlock,
        Source,
        TextBlock,
        ToolCallBlock,
        ToolResultBlock,
        Usage,
    )
    from dsh_core.decisions import (
        Allow,
        Approval,
        ApprovalGranted,
        ApprovalRefused,
        Ask,
        Continue,
        Deny,
        PromptAllow,
        PromptBlock,
        ResultAccept,
        ResultReject,
        Retry,
        Stop,
    )
    from dsh_core.errors import (
        AgentDisposed,
        Busy,
        ConfigError,
        HarnessError,
        HookError,
        InvariantViolation,
        LlmError,
        MessageDropped,
        NotSerializable,
        PluginError,
        PromptBlocked,
        SequenceError,
        SessionCorrupt,
        SessionExists,
        SessionLocked,
        SessionNotFound,
        StorageError,
        ToolError,
        UnsupportedFormat,
    )
    from dsh_core.harness import Chat, Harness, run
    from dsh_core.harness import open as open  # not in __all__: `import *` leaves the builtin alone
    from dsh_core.hooks import HookCall
    from dsh_core.llm import (
        BlockAssembler,
        BlockEnd,
        BlockStart,
        FinishChunk,
        GenerateRequest,
        LlmAdapter,
        LlmRegistry,
        ReasoningDelta,
        StreamChunk,
        TextDelta,
        ToolCallDelta,
        ToolSchema,
        UsageChunk,
    )
    from dsh_core.persistence import (
        Damage,
        PersistenceCoordinator,
        RawLog,
        SessionPersistence,
        SessionSummary,
        StoredSession,
    )
    from dsh_core.prompt import PromptAssembly
    from dsh_core.session import (
        Session,
        SessionEvent,
        SessionHeader,
        SessionStore,
        decode_event,
        encode_event,
        interrupted_turn_closers,
        is_balanced,
        rebuild_request,
        session_event,
        unpack_chunks,
    )
    from dsh_core.tools import PendingCall, ToolContext, ToolDefinition, ToolRegistry, ToolResult, tool

__all__ = [
    "Agent",
    "AgentDisposed",
    "AgentFactory",
    "AgentHandle",
    "AgentOptions",
    "AgentRegistry",
    "Allow",
    "Approval",
    "ApprovalGranted",
    "ApprovalRefused",
    "Ask",
    "BlockAssembler",
    "BlockEnd",
    "BlockStart",
    "Busy",
    "Chat",
    "Compaction",
    "CompactionResult",
    "Config",
    "ConfigError",
    "Context",
    "Continue",
    "Damage",
    "Deny",
    "ENTRY_POINT_GROUP",
    "Finish",
    "FinishChunk",
    "GATE_ENTRY_POINT_GROUP",
    "GenerateRequest",
    "Harness",
    "HarnessError",
    "HookCall",
    "HookError",
    "ImageBlock",
    "InvariantViolation",
    "LlmAdapter",
    "LlmError",
    "LlmRegistry",
    "Message",
    "MessageDropped",
    "NotSerializable",
    "PendingCall",
    "PersistenceCoordinator",
    "PluginError",
    "PluginInfo",
    "Pressure",
    "PromptAllow",
    "PromptAssembly",
    "PromptBlock",
    "PromptBlocked",
    "RawLog",
    "ReasoningBlock",
    "ReasoningDelta",
    "Receipt",
    "Registration",
    "ResultAccept",
    "ResultReject",
    "Retry",
    "SequenceError",
    "Session",
    "SessionCorrupt",
    "SessionEvent",
    "SessionExists",
    "SessionHeader",
    "SessionLocked",
    "SessionNotFound",
    "SessionPersistence",
    "SessionStore",
    "SessionSummary",
    "Source",
    "Stop",
    "StorageError",
    "StoredSession",
    "StreamChunk",
    "TextBlock",
    "TextDelta",
    "TokenEstimator",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolResultBlock",
    "ToolSchema",
    "TurnResult",
    "UnsupportedFormat",
    "Usage",
    "UsageChunk",
    "decode_event",
    "encode_event",
    "hookimpl",
    "hookspec",
    "interrupted_turn_closers",
    "is_balanced",
    "rebuild_request",
    "run",
    "session_event",
    "tool",
    "unpack_chunks",
]

_NAMES: Final = {
    "_markers": "ENTRY_POINT_GROUP GATE_ENTRY_POINT_GROUP hookimpl hookspec",
    "_ownership": "Registration",
    "_plugins": "PluginInfo",
    "agent": "Agent AgentFactory AgentHandle AgentOptions AgentRegistry Receipt TurnResult",
    "compaction": "Compaction CompactionResult Pressure TokenEstimator",
    "config": "Config",
    "content": "Context Finish ImageBlock Message ReasoningBlock Source TextBlock ToolCallBlock ToolResultBlock Usage",
    "decisions": (
        "Allow Approval ApprovalGranted ApprovalRefused Ask Continue Deny PromptAllow PromptBlock ResultAccept "
        "ResultReject Retry Stop"
    ),
    "errors": (
        "AgentDisposed Busy ConfigError HarnessError HookError InvariantViolation LlmError MessageDropped "
        "NotSerializable PluginError PromptBlocked SequenceError SessionCorrupt SessionExists SessionLocked "
        "SessionNotFound StorageError ToolError UnsupportedFormat"
    ),
    "harness": "Chat Harness run open",
    "hooks": "HookCall",
    "llm": (
        "BlockAssembler BlockEnd BlockStart FinishChunk GenerateRequest LlmAdapter LlmRegistry ReasoningDelta "
        "StreamChunk TextDelta ToolCallDelta ToolSchema UsageChunk"
    ),
    "persistence": "Damage PersistenceCoordinator RawLog SessionPersistence SessionSummary StoredSession",
    "prompt": "PromptAssembly",
    "session": (
        "Session SessionEvent SessionHeader SessionStore decode_event encode_event interrupted_turn_closers "
        "is_balanced rebuild_request session_event unpack_chunks"
    ),
    "tools": "PendingCall ToolContext ToolDefinition ToolRegistry ToolResult tool",
}
"""Public names by the module they are in."""

_MODULES: Final = frozenset({"hookspecs", *(module for module in _NAMES if not module.startswith("_"))})
_HOMES: Final = {name: f"dsh_core.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module, when it is first used: whoever needs a marker does not load the loop."""
    if name in _MODULES:
        return import_module(f"dsh_core.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
