"""
A plugin as a stranger would write it, with public names only.
"""

from __future__ import annotations

import attrs

import dsh_core as dsh


@dsh.tool(read_only=True)
async def shout(words: str) -> str:
    """Say it louder.

    Args:
        words: What to say.
    """
    return words.upper()


@dsh.tool(read_only=True)
async def whisper(words: str) -> str:
    """Say it so that nobody hears.

    Args:
        words: What to say.
    """
    return words.lower()


@attrs.frozen
class ForeignConfig:
    """Configuration, under `[plugins.foreign]`."""

    temperature: float = 0.25


class ForeignPlugin:
    """Changes each request, denies one tool, adds two."""

    Config = ForeignConfig

    def __init__(self, config: ForeignConfig) -> None:
        self.config = config

    @dsh.hookimpl
    def register(self, harness):
        harness.tools.register(shout)
        harness.tools.register(whisper)

    @dsh.hookimpl
    def agent_request(self, request):
        return attrs.evolve(request, temperature=self.config.temperature)

    @dsh.hookimpl
    def tools_pre_execute(self, call):
        if call.name == "whisper":
            return dsh.Deny("whispering is not polite")
        return None
