"""
What plugin authors test with. `pip install dsh-core[testing]` brings pytest for the contract suites; the
scripted models and the invariants work without it.
"""

from __future__ import annotations

from typing import Any

from dsh_core.llm.scripted import ScriptedAdapter, ScriptedPlugin, call, calls, fail, pause, text
from dsh_core.testing.invariants import invariants

__all__ = [
    "PersistenceContract",
    "ReplayAdapter",
    "ScriptedAdapter",
    "ScriptedPlugin",
    "call",
    "calls",
    "fail",
    "invariants",
    "pause",
    "text",
]

_LAZY = {
    "PersistenceContract": ("dsh_core.testing.persistence", "PersistenceContract"),
    "ReplayAdapter": ("dsh_core.llm.replay", "ReplayAdapter"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    found = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found
