"""
The compaction itself: measure, shorten, summarise, replace; whatever fails leaves the conversation as it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import attrs

from dsh_compact_basic.attempts import Attempts
from dsh_compact_basic.config import CompactConfig
from dsh_compact_basic.events import CompactEndEvent, CompactStartEvent, CompactSummaryEvent
from dsh_compact_basic.gauge import Gauge
from dsh_compact_basic.region import Region, choose_region, survey
from dsh_compact_basic.shorten import shorten_results, too_long
from dsh_compact_basic.summary import SOURCE, SummaryFailed, ask_for_summary, frame, pinned_blocks
from dsh_core.compaction import Compaction, CompactionResult, Pressure, TokenEstimator
from dsh_core.content import GenerateRequest, Source
from dsh_core.decisions import Retry
from dsh_core.session.events import UserMessageEvent

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.errors import LlmError
    from dsh_core.session import Session

__all__ = ["BasicCompaction"]

_log: Final = logging.getLogger("dsh")
_SAVING: Final = 0.9
_WORTH: Final = 0.05
_SUMMARY_TOKENS: Final = 8192


@attrs.frozen
class _Job:
    """One attempt: for whom, why, and how full the conversation is."""

    agent: Agent
    trigger: str
    pressure: Pressure
    retain: int
    system: str | None
    turn: int = 0
    step: int = 0
    instructions: str | None = None


class BasicCompaction(Compaction):
    """
    Compaction by shortening old tool results and summarising the oldest part.

    Args:
        config: Thresholds.
        estimator: Estimates tokens between two usage reports.
    """

    def __init__(self, config: CompactConfig | None = None, *, estimator: TokenEstimator | None = None) -> None:
        self.config = config or CompactConfig()
        self._gauge = Gauge(self.config, estimator)
        self._attempts: WeakKeyDictionary[Session, Attempts] = WeakKeyDictionary()

    # -- the three ways in ---------------------------------------------------------------------------------

    async def compact(self, agent: Agent, instructions: str | None = None) -> CompactionResult | None:
        """Compact an idle agent (C-8); see the seam."""
        async with agent.exclusive("compact"):
            system = self._gauge.system_of(agent)
            pressure = self._gauge.measure(agent, system)
            retain = self._at_most_half(pressure)
            return await self._attempt(_Job(agent, "manual", pressure, retain, system, instructions=instructions))

    async def compact_if_needed(
        self, agent: Agent, turn: int, step: int, system_prompt: str | None
    ) -> CompactionResult | None:
        """Compact before a step (C-1, C-4); see the seam."""
        attempts = self._attempts_of(agent.session)
        done: CompactionResult | None = None
        for _ in range(1 + self.config.retries):
            pressure = self._gauge.measure(agent, system_prompt)
            if pressure.ratio < self.config.threshold or not attempts.may_try(pressure.tokens):
                return done
            landed = await self._attempt(
                _Job(agent, "pressure", pressure, self._gauge.retain(pressure), system_prompt, turn, step)
            )
            if landed is None:
                return done
            done = landed if done is None else attrs.evolve(landed, before=done.before)
        left = self._gauge.measure(agent, system_prompt)
        if left.ratio >= self.config.threshold:
            attempts.gave_up(left.tokens, left.window)
        return done

    async def repair(
        self, agent: Agent, turn: int, step: int, request: GenerateRequest, error: LlmError
    ) -> Retry | None:
        """
        Make room after the provider refused a request as too long.

        Args:
            agent: The agent.
            turn: Number of the turn.
            step: Number of the open step.
            request: The request that was refused.
            error: The refusal; its message is completed with the token counts when nothing can be done (C-9).
        """
        pressure = self._gauge.measure(agent, request.system)
        if self._attempts_of(agent.session).may_repair(turn, step, 1 + self.config.retries):
            retain = self._at_most_half(pressure)
            if await self._attempt(_Job(agent, "overflow", pressure, retain, request.system, turn, step)):
                return Retry()
        _explain(error, pressure)
        return None

    def pressure(self, agent: Agent) -> Pressure:
        """How full the agent's conversation is, with the system prompt of its latest request."""
        return self._gauge.measure(agent, self._gauge.system_of(agent))

    def use_estimator(self, estimator: TokenEstimator) -> None:
        """Estimate with this from now on."""
        self._gauge = Gauge(self.config, estimator)

    # -- one attempt ---------------------------------------------------------------------------------------

    async def _attempt(self, job: _Job) -> CompactionResult | None:
        """Try once; None when nothing was changed. Only a manual attempt raises when its summary fails."""
        session = job.agent.session
        region = self._region(job)
        long = list(too_long(session, self._old(job)))
        if not long and not self._worthwhile(job, region):
            self._attempts_of(session).gave_up(job.pressure.tokens, job.pressure.window)
            return None
        start = session.append(CompactStartEvent(job.trigger, job.pressure.tokens))
        error: BaseException | None = None
        result: CompactionResult | None = None
        try:
            count = shorten_results(session, long)
            if count:
                result = self._result(job, shortened=count)
            if not self._enough(job, count):
                result = await self._summarise(job, start.seq, count) or result
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - contained below
            error = failure
        session.append(CompactEndEvent(None if error is None else _described(error)))
        return self._settle(job, result, error)

    def _settle(
        self, job: _Job, result: CompactionResult | None, error: BaseException | None
    ) -> CompactionResult | None:
        attempts = self._attempts_of(job.agent.session)
        if isinstance(error, asyncio.CancelledError):
            raise error
        if error is None:
            if result is not None:
                attempts.succeeded()
            return result
        if isinstance(error, _NotSmaller):
            attempts.gave_up(job.pressure.tokens, job.pressure.window)
        else:
            attempts.failed(job.pressure.tokens, job.pressure.window)
        if job.trigger == "manual":
            raise error
        _log.warning("compaction of %r failed, the conversation is unchanged: %s", job.agent.id, _described(error))
        return result

    async def _summarise(self, job: _Job, start: int, shortened: int) -> CompactionResult | None:
        session = job.agent.session
        region = self._region(job)
        if region is None or not self._worthwhile(job, region):
            return None
        generation = session.surface.generation
        text = await ask_for_summary(job.agent.harness.llm, self._request(job, region), job.instructions)
        if session.surface.generation != generation:
            raise SummaryFailed("the conversation was changed while its summary was written")
        content = frame(text, pinned_blocks(session, region.seqs))
        after = self._gauge.estimator.message(content)
        if after > region.tokens * _SAVING:
            raise _NotSmaller(f"the summary has about {after} tokens, what it would replace {region.tokens}")
        first, last = region.seqs[0], region.seqs[-1]
        summary = session.append(CompactSummaryEvent(text, first, last, len(region.seqs), region.tokens, after))
        session.append(
            UserMessageEvent(f"compact-{summary.seq}", content, Source.plugin(SOURCE)),
            replace=(first, last),
            sources=[start, summary.seq, *region.seqs],
        )
        return attrs.evolve(
            self._result(job, shortened=shortened), summary=text, first=first, last=last, shadowed=len(region.seqs)
        )

    def _request(self, job: _Job, region: Region) -> GenerateRequest:
        """The conversation up to the cut, as the provider has seen it before."""
        session = job.agent.session
        header = self._gauge.header(session)
        provider, model = self._gauge.summary_route(job.agent)
        request = GenerateRequest(
            provider=provider,
            model=model,
            messages=tuple(session.derive_messages()[: region.messages]),
            system=job.system,
            tools=self._gauge.tools(job.agent),
            max_tokens=max(256, min(_SUMMARY_TOKENS, self._gauge.retain(job.pressure))),
            session_id=session.id,
            turn=job.turn,
            step=job.step,
        )
        if header is not None and self.config.summary_model is None:
            params = header.params
            return attrs.evolve(
                request, reasoning_effort=params.get("reasoning_effort"), extra=params.get("extra") or {}
            )
        return request

    # -- what there is to gain -----------------------------------------------------------------------------------------

    def _region(self, job: _Job) -> Region | None:
        return choose_region(survey(job.agent.session, self._gauge.estimator), job.retain)

    def _old(self, job: _Job) -> tuple[int, ...]:
        """Nodes that are not among the newest: those whose results may be shortened."""
        nodes = survey(job.agent.session, self._gauge.estimator)
        kept = 0
        for position in range(len(nodes) - 1, -1, -1):
            kept += nodes[position].tokens
            if kept > job.retain:
                # A single huge result may be what overflowed, so then even it is old enough.
                cut = position + 1 if job.trigger == "overflow" else position
                return tuple(node.seq for node in nodes[:cut])
        return ()

    def _at_most_half(self, pressure: Pressure) -> int:
        """What to keep where room has to be made although the conversation may look small."""
        return min(self._gauge.retain(pressure), max(pressure.tokens - pressure.overhead, 0) // 2)

    def _worthwhile(self, job: _Job, region: Region | None) -> bool:
        if region is None or all(self._is_summary(job.agent.session, seq) for seq in region.seqs):
            return False
        return job.trigger != "pressure" or region.tokens >= job.pressure.window * _WORTH

    @staticmethod
    def _is_summary(session: Session, seq: int) -> bool:
        event = session.events[seq]
        source = getattr(event.data, "source", None)
        return event.surface is not None and source is not None and source.name == SOURCE

    def _enough(self, job: _Job, shortened: int) -> bool:
        """Whether shortening alone made the room that was asked for."""
        if not shortened or job.trigger == "manual":
            return False
        left = self._gauge.measure(job.agent, job.system)
        return left.ratio < self.config.threshold and (job.trigger == "pressure" or left.tokens < job.pressure.tokens)

    def _result(self, job: _Job, *, shortened: int) -> CompactionResult:
        after = self._gauge.measure(job.agent, job.system).tokens
        return CompactionResult(before=job.pressure.tokens, after=after, shortened=shortened)

    def _attempts_of(self, session: Session) -> Attempts:
        attempts = self._attempts.get(session)
        if attempts is None:
            attempts = self._attempts[session] = Attempts()
        return attempts

    # -- resuming ------------------------------------------------------------------------------------------

    @staticmethod
    def close_abandoned(session: Session) -> bool:
        """
        Mark an attempt that a crash cut off.

        Args:
            session: A session that was just resumed.

        Returns:
            Whether there was one.
        """
        landed = False
        for event in reversed(session.events):
            if event.type == "compact/end":
                return False
            landed = landed or event.surface is not None
            if event.type == "compact/start":
                session.append(CompactEndEvent(None if landed else "abandoned: the process ended meanwhile"))
                return True
        return False


class _NotSmaller(SummaryFailed):
    """The summary would not save room; asking again at once would not help."""


def _described(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return str(error) or type(error).__name__


def _explain(error: LlmError, pressure: Pressure) -> None:
    conversation = max(pressure.tokens - pressure.overhead, 0)
    error.message = (
        f"{error.message} (nothing more can be left out: about {pressure.overhead} tokens of system prompt and tools, "
        f"{conversation} of conversation, {pressure.window} fit; offer fewer tools, shorten the prompt, or use a model "
        "with a larger window)"
    )
