"""The public names are those of the API document, importable where it says, and cheap to import."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import dsh_core

COMPOSITION = "open Harness run hookimpl hookspec Registration PluginInfo Chat ENTRY_POINT_GROUP GATE_ENTRY_POINT_GROUP"

# Heading of the API document -> names under it. All import from `dsh_core` and from the module of their heading.
NAMES = {
    "harness": "open Harness",
    "content": (
        "TextBlock ReasoningBlock ImageBlock ToolCallBlock ToolResultBlock Message Source Usage Finish Context"
    ),
    "session": (
        "SessionHeader SessionEvent encode_event decode_event session_event Session is_balanced "
        "interrupted_turn_closers rebuild_request unpack_chunks SessionStore"
    ),
    "agent": "AgentOptions Agent AgentRegistry AgentFactory AgentHandle Receipt TurnResult",
    "decisions": (
        "Allow Ask Deny PromptAllow PromptBlock ResultAccept ResultReject Stop Continue Retry ApprovalGranted "
        "ApprovalRefused Approval"
    ),
    "llm": (
        "GenerateRequest ToolSchema LlmAdapter StreamChunk BlockStart TextDelta ReasoningDelta ToolCallDelta BlockEnd "
        "UsageChunk FinishChunk BlockAssembler LlmRegistry LlmError"
    ),
    "tools": "tool ToolDefinition ToolContext PendingCall ToolResult ToolError ToolRegistry",
    "persistence": "SessionPersistence RawLog Damage StoredSession SessionSummary PersistenceCoordinator",
    "compaction": "Compaction CompactionResult Pressure TokenEstimator",
    "errors": (
        "HarnessError LlmError ToolError ConfigError PluginError HookError AgentDisposed MessageDropped PromptBlocked "
        "Busy SessionNotFound SessionExists SessionLocked SessionCorrupt UnsupportedFormat SequenceError "
        "NotSerializable StorageError InvariantViolation"
    ),
}

EVENT_CLASSES = (
    "TurnStartEvent TurnEndEvent StepStartEvent StepEndEvent InboxQueuedEvent InboxDroppedEvent UserMessageEvent "
    "PromptBlockedEvent ContextMessageEvent SteeringMessageEvent RequestHeaderEvent RequestRetryEvent "
    "AssistantChunkEvent AssistantMessageEvent ToolCallEvent ToolRewrittenEvent ApprovalAskedEvent "
    "ApprovalDecidedEvent ToolResultEvent TurnContinuationEvent UnknownEvent"
)

TESTING = "ScriptedAdapter ScriptedPlugin text call calls fail pause ReplayAdapter invariants PersistenceContract"

MODULES = [
    "dsh_core",
    *(f"dsh_core.{name}" for name in NAMES),
    "dsh_core.config",
    "dsh_core.hooks",
    "dsh_core.session.events",
    "dsh_core.testing",
]


def in_fresh_interpreter(code: str) -> Any:
    """What `code` prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize(("heading", "names"), list(NAMES.items()), ids=list(NAMES))
def test_every_name_imports_from_the_package_and_from_its_module(heading: str, names: str) -> None:
    """10-api: the same object in both places."""
    for name in names.split():
        assert hasattr(dsh_core, name), f"dsh_core.{name}"
        assert getattr(module(f"dsh_core.{heading}"), name) is getattr(dsh_core, name)


@pytest.mark.parametrize("name", COMPOSITION.split())
def test_the_composition_names_import_from_the_package(name: str) -> None:
    """10-api: entering a harness, and what a plugin's own module needs."""
    assert hasattr(dsh_core, name)


def test_the_entry_point_groups_have_their_names() -> None:
    """10-api: plugins in the wild depend on them."""
    assert (dsh_core.ENTRY_POINT_GROUP, dsh_core.GATE_ENTRY_POINT_GROUP) == ("dsh", "dsh_gates")


@pytest.mark.parametrize("name", EVENT_CLASSES.split())
def test_event_classes_import_from_their_module_only(name: str) -> None:
    """10-api: one class for each type of S-5."""
    assert name in module("dsh_core.session.events").__all__
    assert not hasattr(dsh_core, name)


@pytest.mark.parametrize("name", TESTING.split())
def test_the_testing_names_import(name: str) -> None:
    """10-api: what plugin authors test with."""
    assert getattr(module("dsh_core.testing"), name) is not None
    assert name in module("dsh_core.testing").__all__


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_true(name: str) -> None:
    """10-api: every name in `__all__` is there, once, in order."""
    found = module(name)
    names = list(found.__all__)
    assert names == sorted(set(names))
    assert [one for one in names if not hasattr(found, one)] == []


def test_open_is_not_in_all() -> None:
    """10-api: `import *` leaves the builtin alone."""
    assert "open" not in dsh_core.__all__
    assert "open" not in module("dsh_core.harness").__all__
    assert dsh_core.open is module("dsh_core.harness").open


def test_importing_dsh_is_light() -> None:
    """40-quality: what is needed later is imported later."""
    heavy = ["cattrs", "jsonschema", "importlib_metadata", "openai", "pytest", "hypothesis", "httpx", "httpx2"]
    loaded = f"[name for name in {heavy} if name in sys.modules]"
    code = f"import sys, json; from dsh_core import *; print(json.dumps({loaded}))"
    assert in_fresh_interpreter(code) == []


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_first(name: str) -> None:
    """10-api: no module needs another one imported before it, and none warns."""
    code = f"import warnings, json; warnings.simplefilter('error'); import {name}; print(json.dumps({name}.__name__))"
    assert in_fresh_interpreter(code) == name


def test_the_testing_names_do_not_need_pytest_until_they_are_used() -> None:
    """10-api: scripted models and invariants work without the extra."""
    code = (
        "import sys, json\n"
        "from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, invariants, text\n"
        "print(json.dumps('pytest' in sys.modules))"
    )
    assert in_fresh_interpreter(code) is False
