"""
The plugin: offers the store to the harness, and finds out early whether it can be used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import platformdirs

from dsh_core import hookimpl
from dsh_core.persistence import SessionPersistence
from dsh_persistence_jsonl._backend import DURABILITIES, JsonlPersistence

if TYPE_CHECKING:
    from dsh_core.harness import Harness

__all__ = ["JsonlConfig", "JsonlPlugin", "default_root"]


def default_root() -> Path:
    """Where sessions lie unless configured: below `DSH_STATE_DIR` or the platform's state directory."""
    state = os.environ.get("DSH_STATE_DIR") or platformdirs.user_state_dir("dsh", appauthor=False)
    return Path(state).expanduser() / "sessions"


@attrs.frozen
class JsonlConfig:
    """
    Configuration, table `plugins.persistence-jsonl`.

    Args:
        root: Directory of the store; `default_root()` when left out.
        durability: `turn`, `step` or `none`; see `JsonlPersistence`.
    """

    root: str | None = None
    durability: str = attrs.field(default="turn", validator=attrs.validators.in_(DURABILITIES))


class JsonlPlugin:
    """Stores sessions as JSONL files."""

    name = "persistence-jsonl"
    Config = JsonlConfig

    def __init__(self, config: JsonlConfig | None = None) -> None:
        config = config or JsonlConfig()
        self.backend = JsonlPersistence(config.root or default_root(), durability=config.durability)

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Offer the store as the harness's persistence."""
        # The seam is an abstract class: it is the key of the service, never instantiated through it.
        harness.provide(SessionPersistence, self.backend)  # type: ignore[type-abstract]

    async def start(self, harness: Harness) -> None:
        """Refuse to start with a store that cannot be used, before any model is called (P-6)."""
        await self.backend.probe()

    async def stop(self) -> None:
        """Give back every session."""
        await self.backend.aclose()
