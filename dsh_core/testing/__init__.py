"""
Help for tests of harnesses and plugins. Importing it does not import pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dsh_core.llm.replay import ReplayAdapter
from dsh_core.llm.scripted import ScriptedAdapter, ScriptedPlugin, call, calls, fail, pause, text

if TYPE_CHECKING:
    from dsh_core.testing.persistence import PersistenceContract

__all__ = [
    "PersistenceContract",
    "ReplayAdapter",
    "ScriptedAdapter",
    "ScriptedPlugin",
    "call",
    "calls",
    "fail",
    "pause",
    "text",
]

_ON_FIRST_USE: Final = {
    "PersistenceContract": "dsh_core.testing.persistence",
}


def __getattr__(name: str) -> Any:
    """Parts that need pytest, or cost time to import, are imported on first use."""
    module = _ON_FIRST_USE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
