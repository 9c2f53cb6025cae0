"""
The seam of compaction: how full a conversation is, and who makes room in it.

The core measures and decides nothing. A compaction plugin provides a `Compaction`
(`harness.provide(Compaction, …)`); a tokenizer plugin may provide a `TokenEstimator`.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import attrs

from dsh_core.content import (
    Block,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
)
from dsh_core.session.events import AssistantMessageEvent, RequestHeaderEvent

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.session.log import Session

__all__ = [
    "Compaction",
    "CompactionResult",
    "HeuristicEstimator",
    "Pressure",
    "PressureMeter",
    "TokenEstimator",
]

PER_MESSAGE: Final = 4
"""Tokens a provider spends on the frame of one message."""


@attrs.frozen
class Pressure:
    """
    How full a conversation is.

    Args:
        tokens: Estimated tokens of the next request.
        window: Tokens that fit into one request of the model.
        overhead: The part of `tokens` that no compaction can reduce: system prompt and tools.
    """

    tokens: int
    window: int
    overhead: int = 0

    @property
    def ratio(self) -> float:
        """`tokens` as a part of the window."""
        return self.tokens / self.window if self.window > 0 else math.inf


@attrs.frozen
class CompactionResult:
    """
    What a compaction did.

    Args:
        before: Estimated tokens of the next request before it.
        after: The same after it.
        summary: The summary that took the place of the old messages, or None when shortening results was enough.
        first: Seq of the first node that was replaced, or None.
        last: Seq of the last one.
        shadowed: How many nodes were replaced.
        shortened: How many tool results were shortened.
    """

    before: int
    after: int
    summary: str | None = None
    first: int | None = None
    last: int | None = None
    shadowed: int = 0
    shortened: int = 0


class Compaction(ABC):
    """Makes room in a conversation by replacing its oldest part; provided once per harness."""

    @abstractmethod
    async def compact(self, agent: Agent, instructions: str | None = None) -> CompactionResult | None:
        """
        Compact an idle agent because somebody asked for it.

        Args:
            agent: The agent; its maintenance slot is taken (A-9).
            instructions: What the summary should keep in view.

        Returns:
            What was done, or None when there is nothing to gain.

        Raises:
            Busy: The agent is running.
            HarnessError: The summary failed; the conversation is unchanged.
        """

    @abstractmethod
    async def compact_if_needed(
        self, agent: Agent, turn: int, step: int, system_prompt: str | None
    ) -> CompactionResult | None:
        """
        Compact before a step if the conversation has grown too large. Never raises for a failed summary: the
        step goes on with what there is.

        Args:
            agent: The agent.
            turn: Number of the turn.
            step: Number of the step about to open.
            system_prompt: The system prompt the step will use.
        """

    @abstractmethod
    def pressure(self, agent: Agent) -> Pressure:
        """How full the agent's conversation is."""


class TokenEstimator(ABC):
    """Estimates tokens without asking a provider. Estimates only have to be good between two usage reports."""

    @abstractmethod
    def text(self, text: str) -> int:
        """Tokens of a text."""

    @abstractmethod
    def image(self, block: ImageBlock) -> int:
        """Tokens of an image, bounded by a constant."""

    def blocks(self, content: Iterable[Block]) -> int:
        """Tokens of content blocks."""
        return sum(self._block(block) for block in content)

    def message(self, content: Iterable[Block]) -> int:
        """Tokens of one message with this content."""
        return PER_MESSAGE + self.blocks(content)

    def tools(self, tools: Iterable[ToolSchema]) -> int:
        """Tokens of tool descriptions in a request."""
        return sum(
            PER_MESSAGE + self.text(tool.name) + self.text(tool.description) + self.text(_json(tool.parameters))
            for tool in tools
        )

    def _block(self, block: Block) -> int:
        if isinstance(block, TextBlock | ReasoningBlock):
            return self.text(block.text)
        if isinstance(block, ToolCallBlock):
            return PER_MESSAGE + self.text(block.name) + self.text(block.arguments)
        if isinstance(block, ToolResultBlock):
            return PER_MESSAGE + self.blocks(block.content)
        if isinstance(block, ImageBlock):
            return self.image(block)
        return self.text(_json(block.raw))


_CJK: Final = (
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)


class HeuristicEstimator(TokenEstimator):
    """
    The default: four characters a token, more for scripts that tokenizers know less well.

    Args:
        image_tokens: Tokens an image counts as, whatever its size.
    """

    CJK: Final = 0.7
    OTHER: Final = 0.5
    ASCII: Final = 0.25

    def __init__(self, image_tokens: int = 1600) -> None:
        self.image_tokens = image_tokens

    def text(self, text: str) -> int:
        """Tokens of a text (C-1)."""
        if text.isascii():
            return math.ceil(len(text) * self.ASCII)
        rest = re.sub(_CJK, "", text)
        plain = len(rest.encode("ascii", "ignore"))
        return math.ceil((len(text) - len(rest)) * self.CJK + plain * self.ASCII + (len(rest) - plain) * self.OTHER)

    def image(self, block: ImageBlock) -> int:
        """A constant."""
        return self.image_tokens


@attrs.define(eq=False)
class _Reading:
    """What has been measured of one session so far."""

    generation: int = -1
    nodes: int = 0
    total: int = 0
    scanned: int = 0
    replaced_at: int = -1
    header: RequestHeaderEvent | None = None
    # The anchor: real tokens up to and including a node, the estimate up to there, and of what came besides.
    anchor_tokens: int | None = None
    anchor_total: int = 0
    anchor_overhead: int = 0


class PressureMeter:
    """
    Measures sessions at a cost proportional to what is new (C-1).

    The real usage of the last request since the latest replacement is the anchor; what came since is estimated.

    Args:
        estimator: Estimates the rest; the heuristic one when left out.
    """

    def __init__(self, estimator: TokenEstimator | None = None) -> None:
        self.estimator = estimator or HeuristicEstimator()
        self._readings: WeakKeyDictionary[Session, _Reading] = WeakKeyDictionary()
        self._last_overhead: tuple[str | None, Sequence[ToolSchema], int] | None = None

    def measure(
        self, session: Session, window: int, *, system: str | None = None, tools: Sequence[ToolSchema] = ()
    ) -> Pressure:
        """
        Estimate the next request of a session.

        Args:
            session: The session.
            window: Tokens that fit into one request.
            system: System prompt the request will have.
            tools: Tools it will offer.
        """
        reading = self._read(session)
        overhead = self.overhead(system, tools)
        if reading.anchor_tokens is None:
            return Pressure(reading.total + overhead, window, overhead)
        grown = reading.total - reading.anchor_total + overhead - reading.anchor_overhead
        return Pressure(max(reading.anchor_tokens + grown, 0), window, overhead)

    def overhead(self, system: str | None, tools: Sequence[ToolSchema]) -> int:
        """Estimated tokens of what stands before the conversation."""
        last = self._last_overhead
        if last is not None and last[0] == system and (last[1] is tools or last[1] == tools):
            return last[2]
        tokens = (PER_MESSAGE + self.estimator.text(system) if system else 0) + self.estimator.tools(tools)
        self._last_overhead = (system, tools, tokens)
        return tokens

    def last_header(self, session: Session) -> RequestHeaderEvent | None:
        """The header of the latest request."""
        return self._read(session).header

    def _read(self, session: Session) -> _Reading:
        reading = self._readings.get(session)
        if reading is None:
            reading = self._readings[session] = _Reading()
        self._scan(session, reading)
        surface = session.surface
        if surface.generation != reading.generation:
            reading.generation, reading.nodes, reading.total, reading.anchor_tokens = surface.generation, 0, 0, None
        if len(surface) > reading.nodes:
            self._add(session, reading, surface.nodes)
        return reading

    def _scan(self, session: Session, reading: _Reading) -> None:
        events = session.events
        for event in events[reading.scanned :] if reading.scanned < len(events) else ():
            if event.type == "request/header":
                reading.header = event.data
            elif event.surface is not None:
                reading.replaced_at = event.seq
        reading.scanned = len(events)

    def _add(self, session: Session, reading: _Reading, nodes: Sequence[int]) -> None:
        events = session.events
        for position in range(reading.nodes, len(nodes)):
            seq = nodes[position]
            data = events[seq].data
            reading.total += self.estimator.message(data.content)
            usage = data.usage if isinstance(data, AssistantMessageEvent) else None
            if usage is not None and usage.total and seq > reading.replaced_at:
                header = reading.header
                reading.anchor_tokens = usage.total
                reading.anchor_total = reading.total
                reading.anchor_overhead = self.overhead(header.system, header.tools) if header is not None else 0
        reading.nodes = len(nodes)


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
