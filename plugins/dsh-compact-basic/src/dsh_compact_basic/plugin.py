"""
The plugin: where compaction hooks into the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dsh_compact_basic.basic import BasicCompaction
from dsh_compact_basic.config import CompactConfig
from dsh_core import hookimpl
from dsh_core.compaction import Compaction, TokenEstimator

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.content import GenerateRequest
    from dsh_core.decisions import Retry
    from dsh_core.errors import LlmError
    from dsh_core.harness import Harness

__all__ = ["CompactPlugin"]


class CompactPlugin:
    """
    Keeps conversations inside the context window.

    Args:
        config: Thresholds.
    """

    name: ClassVar[str] = "compact-basic"
    Config: ClassVar[type[CompactConfig]] = CompactConfig

    def __init__(self, config: CompactConfig | None = None) -> None:
        self.compaction = BasicCompaction(config)

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Provide the service and the command `/compact`."""
        harness.provide(Compaction, self.compaction)  # type: ignore[type-abstract]
        harness.commands.register("compact", "Summarise the older part of the conversation.", self._command)

    async def start(self, harness: Harness) -> None:
        """Take up the tokenizer another plugin provides, if any."""
        try:
            self.compaction.use_estimator(harness.service(TokenEstimator))  # type: ignore[type-abstract]
        except LookupError:
            return

    async def _command(self, agent: Agent, line: str = "") -> str:
        result = await self.compaction.compact(agent, line.strip() or None)
        if result is None:
            return "There is nothing to compact."
        return f"Compacted: about {result.before} tokens before, {result.after} now."

    @hookimpl
    def agent_session_start(self, agent: Agent, source: str) -> None:
        """Mark an attempt that a crash cut off (C-6)."""
        if source == "resume":
            self.compaction.close_abandoned(agent.session)

    @hookimpl
    async def agent_pre_step(self, agent: Agent, turn: int, step: int, system_prompt: str | None) -> None:
        """Compact before a step if it is time."""
        await self.compaction.compact_if_needed(agent, turn, step, system_prompt)

    @hookimpl
    async def agent_request_error(
        self, agent: Agent, turn: int, step: int, request: GenerateRequest, error: LlmError
    ) -> Retry | None:
        """Repair an overflow and repeat the request."""
        if error.code != "CONTEXT_OVERFLOW":
            return None
        return await self.compaction.repair(agent, turn, step, request, error)
