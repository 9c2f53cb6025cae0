"""
How full an agent's conversation is: the window of its model, and what the next request will hold (C-1).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dsh_compact_basic.config import DEFAULT_WINDOW, CompactConfig
from dsh_core.compaction import Pressure, PressureMeter, TokenEstimator
from dsh_core.errors import HarnessError

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.content import ToolSchema
    from dsh_core.session import Session
    from dsh_core.session.events import RequestHeaderEvent

__all__ = ["Gauge"]

_log: Final = logging.getLogger("dsh")


class Gauge:
    """
    Measures agents.

    Args:
        config: The window, where it is configured, and the model for summaries.
        estimator: Estimates tokens between two usage reports.
    """

    def __init__(self, config: CompactConfig, estimator: TokenEstimator | None = None) -> None:
        self._config = config
        self._meter = PressureMeter(estimator)
        self._warned: set[str] = set()

    @property
    def estimator(self) -> TokenEstimator:
        """What estimates tokens."""
        return self._meter.estimator

    def measure(self, agent: Agent, system: str | None) -> Pressure:
        """Estimate the next request of an agent whose system prompt will be `system`."""
        return self._meter.measure(agent.session, self._window(agent), system=system, tools=self.tools(agent))

    def retain(self, pressure: Pressure) -> int:
        """Tokens the newest messages keep."""
        return int(pressure.window * self._config.retain)

    def header(self, session: Session) -> RequestHeaderEvent | None:
        """The header of the latest request."""
        return self._meter.last_header(session)

    def system_of(self, agent: Agent) -> str | None:
        """The system prompt of the latest request."""
        header = self.header(agent.session)
        return header.system if header is not None else None

    def tools(self, agent: Agent) -> tuple[ToolSchema, ...]:
        """The tools the next request will offer."""
        return agent.harness.tools.wire_schemas(agent.options.tools)

    def summary_route(self, agent: Agent) -> tuple[str, str]:
        """Provider and model that write the summary."""
        if self._config.summary_model is not None:
            return agent.harness.llm.resolve(self._config.summary_model)
        return self._route(agent)

    def _route(self, agent: Agent) -> tuple[str, str]:
        header = self.header(agent.session)
        if header is not None and header.model:
            return header.provider, header.model
        return agent.harness.llm.resolve(agent.options.model or agent.harness.config.model or "")

    def _window(self, agent: Agent) -> int:
        if self._config.context_window is not None:
            return self._config.context_window
        try:
            provider, model = self._route(agent)
            known = agent.harness.llm.context_window(provider, model)
        except HarnessError:
            return DEFAULT_WINDOW  # no model yet: the loop says so when it needs one
        if known is None:
            self._warn(f"{provider}/{model}")
        return known or DEFAULT_WINDOW

    def _warn(self, model: str) -> None:
        if model not in self._warned:
            self._warned.add(model)
            _log.warning(
                "the window of %s is not known; %d tokens are assumed; set plugins.compact-basic.context_window",
                model,
                DEFAULT_WINDOW,
            )
