"""
One step's request to the model: made at an anchor of the log, logged, sent, read, and repeated on request.

The anchor is `step/start`, later `request/retry`: what the model reads is the projection of everything
before it, so each request can be rebuilt from the log alone (L-9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core._secrets import looks_like_secret_name, looks_like_secret_text
from dsh_core.content import Finish, GenerateRequest, Message, ToolSchema
from dsh_core.errors import HarnessError, HookError, LlmError, StorageError
from dsh_core.llm.assembler import BlockAssembler
from dsh_core.session.events import RequestHeaderEvent, RequestRetryEvent

if TYPE_CHECKING:
    from dsh_core._turnrun import TurnRun
    from dsh_core.llm.seam import StreamChunk

__all__ = ["Answer", "flush", "request_answer"]

_log: Final = logging.getLogger("dsh")


@attrs.define(eq=False)
class Answer:
    """
    What a request came back with.

    Args:
        message: The assembled message, as the adapter gave it.
        finish: Why the model stopped.
        assembler: The assembler, for usage.
        attempt: The attempt that succeeded.
        tools: The tools that were on offer in this request.
    """

    message: Message
    finish: Finish
    assembler: BlockAssembler
    attempt: int
    tools: tuple[ToolSchema, ...]


async def request_answer(run: TurnRun, step: int, system: str | None, tools: tuple[ToolSchema, ...]) -> Answer:
    """
    Ask the model, again where a plugin says so (L-4).

    Args:
        run: The turn.
        step: Number of the open step.
        system: The rendered system prompt.
        tools: The tools on offer.

    Raises:
        LlmError: The request failed for good.
        StorageError: The log could not be handed to the backend first (L-16).
    """
    attempt = 1
    while True:
        request = await _prepare(run, step, attempt, system, tools)
        try:
            return await _send(run, request)
        except LlmError as error:
            run.check()
            retry = await run.hooks.agent_request_error(
                agent=run.agent, turn=run.turn, step=step, request=request, error=error, attempt=attempt
            )
            run.check()
            if retry is None:
                raise
            attempt += 1
            run.anchor_messages()
            run.append(_retry_event(run.turn, step, attempt, retry.delay, error))
            if retry.delay > 0:
                await asyncio.sleep(retry.delay)
            run.check()


def _retry_event(turn: int, step: int, attempt: int, delay: float, error: LlmError) -> RequestRetryEvent:
    described: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.status is not None:
        described["status"] = error.status
    return RequestRetryEvent(turn, step, attempt, round(max(delay, 0) * 1000), described)


async def _prepare(
    run: TurnRun, step: int, attempt: int, system: str | None, tools: tuple[ToolSchema, ...]
) -> GenerateRequest:
    base = _base_request(run, step, attempt, system, tools)
    request = await run.hooks.agent_request(agent=run.agent, turn=run.turn, step=step, request=base)
    if request is not base:
        request = _decided(base, request)
    if request is not base or not request.provider:
        provider, model = run.harness.llm.resolve(_address(request))
        if (provider, model) != (request.provider, request.model):
            request = attrs.evolve(request, provider=provider, model=model)
    if request.extra:
        _refuse_secrets(request.extra, "extra")
    if run.halted:
        run.check()
    _log_header(run, request)
    await flush(run, "request")
    if run.halted:
        run.check()
    return request


def _base_request(
    run: TurnRun, step: int, attempt: int, system: str | None, tools: tuple[ToolSchema, ...]
) -> GenerateRequest:
    options = run.agent.options
    provider, model = _preferred(run)
    return GenerateRequest(
        model=model,
        provider=provider,
        messages=run.messages,
        system=system or None,
        tools=tools,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        stop=options.stop,
        reasoning_effort=options.reasoning_effort,
        extra=options.extra,
        session_id=run.session.id,
        turn=run.turn,
        step=step,
        attempt=attempt,
    )


def _preferred(run: TurnRun) -> tuple[str, str]:
    """Provider and model of the agent where they can be told already; a plugin may still choose others (M-5)."""
    address = run.agent.model or ""
    try:
        return run.harness.llm.resolve(address)
    except LlmError:
        return "", address


def _decided(base: GenerateRequest, request: GenerateRequest) -> GenerateRequest:
    """What plugins made of the request, with what they cannot change."""
    if request.messages is not base.messages and request.messages != base.messages:
        raise HookError(
            "agent_request: a plugin changed request.messages, which is the log's projection; append an event "
            "(agent.inject) or replace part of the surface in agent_pre_step instead",
            hook="agent_request",
        )
    return attrs.evolve(
        request,
        messages=base.messages,
        system=request.system or None,
        session_id=base.session_id,
        turn=base.turn,
        step=base.step,
        attempt=base.attempt,
    )


def _address(request: GenerateRequest) -> str:
    # A plugin may set `model` to a whole address; `provider` then is what is left of the one before.
    if not request.provider or not request.model:
        return request.model
    prefix = f"{request.provider}/"
    return request.model if request.model.startswith(prefix) else prefix + request.model


def _params(request: GenerateRequest) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if request.temperature is not None:
        params["temperature"] = request.temperature
    if request.max_tokens is not None:
        params["max_tokens"] = request.max_tokens
    if request.reasoning_effort is not None:
        params["reasoning_effort"] = request.reasoning_effort
    if request.response_format is not None:
        params["response_format"] = request.response_format
    if request.stop:
        params["stop"] = list(request.stop)
    if request.extra:
        params["extra"] = dict(request.extra)
    return params


def _log_header(run: TurnRun, request: GenerateRequest) -> None:
    params = _params(request)
    reason = run.agent.header_reason(request.provider, request.model, params, request.system, request.tools)
    if reason is None:
        return
    header = RequestHeaderEvent(
        run.turn,
        request.step,
        request.attempt,
        request.provider,
        request.model,
        params,
        request.system,
        request.tools,
        reason,
    )
    run.append(header)
    run.agent.header_logged(header)


def _refuse_secrets(value: object, path: str, named: bool = False) -> None:
    """Refuse text that looks like a secret, or stands under a name that says it is one, at any depth."""
    if isinstance(value, str):
        if named or looks_like_secret_text(value):
            raise HarnessError(
                f"request {path} looks like a secret and would be written to the log; "
                "give keys to the provider's configuration (api_key_env) instead",
                "SECRET_IN_REQUEST",
            )
    elif isinstance(value, Mapping):
        for key, member in value.items():
            _refuse_secrets(member, f"{path}.{key}", named or looks_like_secret_name(str(key)))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            _refuse_secrets(member, f"{path}[{index}]", named)


async def flush(run: TurnRun, barrier: str) -> None:
    """
    Hand everything logged so far to the backend (L-16).

    Raises:
        StorageError: A backend or another plugin could not take it; what comes next must not happen.
    """
    try:
        await run.hooks.session_flush(session=run.session, barrier=barrier)
    except Exception as error:  # whatever a plugin raises here means "not stored"
        raise StorageError(f"the log of session {run.session.id!r} could not be stored: {_leaf(error)}") from error


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, HookError) and isinstance(error.__cause__, HarnessError):
        return error.__cause__  # which speaks for itself
    return error


async def _send(run: TurnRun, request: GenerateRequest) -> Answer:
    assembler = BlockAssembler()
    run.streaming = (request, assembler)
    try:
        await _read(run, request, assembler)
        finish = _accepted(assembler)
    except LlmError as error:
        error.after_output = assembler.has_output
        run.streaming = None
        raise
    if run.halted:
        run.check()
    run.streaming = None
    return Answer(assembler.message(), finish, assembler, request.attempt, request.tools)


async def _read(run: TurnRun, request: GenerateRequest, assembler: BlockAssembler) -> None:
    session, turn, step, attempt = run.session, run.turn, request.step, request.attempt
    observed = run.hooks.wants("agent_stream_chunk", session.id)
    watchers = run.agent.watchers
    push, append = assembler.push, session.append_chunk
    stream: AsyncIterator[StreamChunk] | None = None
    read_out = False
    try:
        stream = run.harness.llm.stream(request)
        async for chunk in stream:
            if run.halted:
                run.check()
            append(turn, step, attempt, chunk)
            push(chunk)
            if observed:
                run.hooks.agent_stream_chunk(agent=run.agent, turn=turn, step=step, chunk=chunk)
            for watch in watchers:
                watch(chunk)
        read_out = type(stream) is AsyncGeneratorType  # such a one has closed itself
    except (LlmError, HookError):
        raise
    except asyncio.CancelledError as error:
        if run.cancelled:
            raise
        raise LlmError("UNKNOWN", f"the adapter of {request.provider!r} cancelled its own stream") from error
    except (Exception, SystemExit) as error:  # not LlmError: the adapter's fault, and never the loop's end
        raise LlmError(
            "UNKNOWN", f"the adapter of {request.provider!r} failed with {type(error).__name__}: {error}"
        ) from error
    finally:
        if not read_out:
            await _close(stream)


async def _close(stream: object) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is None:
        return
    try:
        await aclose()
    except (Exception, SystemExit):  # noqa: BLE001 - the answer, or its failure, is known already
        _log.warning("a stream of a model could not be closed", exc_info=True)


def _accepted(assembler: BlockAssembler) -> Finish:
    finish = assembler.finish
    if finish is None:
        if not assembler.has_output and assembler.usage is None:
            raise LlmError("EMPTY_RESPONSE", "the model's stream ended without a single chunk of an answer")
        raise LlmError("STREAM_CLOSED", "the model's stream ended in the middle of the answer")
    if finish.kind == "error":
        raise LlmError(finish.code or "SERVER", finish.message or "the provider reported an error")
    if finish.kind == "aborted":
        raise LlmError(finish.code or "ABORTED", finish.message or "the model's stream was aborted")
    if finish.kind == "content-filter":
        raise LlmError("CONTENT_FILTER", finish.message or "the provider's content filter stopped the answer")
    if assembler.usage is None and not assembler.has_output:
        raise LlmError("EMPTY_RESPONSE", "the model answered with nothing, not even usage")
    return finish
