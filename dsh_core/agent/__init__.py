"""
Agents: what they are to a plugin or an embedder, and how they are made.
"""

from __future__ import annotations

from dsh_core.agent.registry import AgentFactory, AgentHandle, AgentRegistry, RunnableAgent
from dsh_core.agent.types import Agent, AgentOptions, Receipt, TurnResult

__all__ = [
    "Agent",
    "AgentFactory",
    "AgentHandle",
    "AgentOptions",
    "AgentRegistry",
    "Receipt",
    "RunnableAgent",
    "TurnResult",
]
