"""
Asking a model for a summary, and framing what it says (C-3, C-5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from dsh_compact_basic.region import balanced_half
from dsh_core.content import Block, GenerateRequest, Message, TextBlock, ToolCallBlock
from dsh_core.errors import HarnessError, LlmError
from dsh_core.llm import BlockAssembler
from dsh_core.session.events import ContextMessageEvent, UserMessageEvent

if TYPE_CHECKING:
    from dsh_core.llm import LlmRegistry
    from dsh_core.session import Session

__all__ = ["SOURCE", "SummaryFailed", "ask_for_summary", "frame", "pinned_blocks"]

SOURCE: Final = "compact-basic"
"""Name under which the replacing message is sourced."""

_OPEN: Final = "<conversation-summary>"
_CLOSE: Final = "</conversation-summary>"
_PREAMBLE: Final = (
    "The earlier part of this conversation was summarised to save room. Take the summary as what happened, "
    "and go on from there without mentioning it."
)
_PINNED: Final = "Notes pinned for the whole conversation, word for word:"
_MOST_PIECES: Final = 8

INSTRUCTION: Final = f"""\
Stop working on the task for a moment. Everything above this message is about to be replaced by a summary that you \
write now, so that the conversation can go on in less room. Whatever you leave out is forgotten.

Write these sections, each as short as it can be without losing facts; leave out empty ones:
1. What the user wants, and every correction they made. Quote their words where the wording matters.
2. Constraints and decisions, with their reasons.
3. Files and other things that were read, made or changed, and the state they are in now.
4. Errors that came up, and how each was solved.
5. What is still open.
6. What was being done just now, and the next step.

If the conversation begins with an earlier summary ({_OPEN}), merge it into yours: do not quote it or refer to it.
Answer with the text of the summary only. Do not call tools."""


class SummaryFailed(HarnessError):
    """A model gave no summary that can be used; nothing was changed."""

    default_code = "SUMMARY_FAILED"


async def ask_for_summary(llm: LlmRegistry, request: GenerateRequest, instructions: str | None = None) -> str:
    """
    Have a prefix of a conversation summarised.

    Args:
        llm: Where the request goes.
        request: What to summarise in `messages`, with system prompt and tools as in the conversation, so that
            the provider's cache of the prefix is used again.
        instructions: What the summary should keep in view.

    Returns:
        The text.

    Raises:
        SummaryFailed: The answer was empty, cut off, refused, or a tool call.
        LlmError: The request failed; an overflow only when the conversation cannot be split further.
    """
    ask = INSTRUCTION if not instructions else f"{INSTRUCTION}\n\nWhoever asked for it adds: {instructions}"
    return await _summarise(llm, request, ask, [_MOST_PIECES])


async def _summarise(llm: LlmRegistry, request: GenerateRequest, ask: str, budget: list[int]) -> str:
    if budget[0] <= 0:
        raise SummaryFailed("the conversation does not fit into the model even in pieces")
    budget[0] -= 1
    try:
        return await _answer(llm, attrs.evolve(request, messages=(*request.messages, Message("user", ask))))
    except LlmError as error:
        cut = balanced_half(request.messages)
        if error.code != "CONTEXT_OVERFLOW" or cut is None:
            raise
    oldest = await _summarise(llm, attrs.evolve(request, messages=request.messages[:cut]), ask, budget)
    rest = (Message("user", _framed(oldest)), *request.messages[cut:])
    return await _summarise(llm, attrs.evolve(request, messages=rest), ask, budget)


async def _answer(llm: LlmRegistry, request: GenerateRequest) -> str:
    assembler = BlockAssembler()
    stream = llm.stream(request)
    try:
        async for chunk in stream:
            assembler.push(chunk)
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()
    finish = assembler.finish
    if finish is None:
        raise LlmError("STREAM_CLOSED", "the summary broke off without a finish reason")
    if finish.kind in ("error", "aborted"):
        raise LlmError(finish.code or "SERVER", finish.message or f"the summary ended with {finish.kind}")
    if finish.kind != "stop":
        raise SummaryFailed(f"the summary ended with {finish.kind}; a partial one is not used")
    return _text(assembler.message())


def _text(message: Message) -> str:
    if any(isinstance(block, ToolCallBlock) for block in message.content):
        raise SummaryFailed("the model called a tool in place of writing a summary")
    text = message.text.replace(_OPEN, "").replace(_CLOSE, "").strip()
    if not text:
        raise SummaryFailed("the model wrote an empty summary")
    return text


def frame(summary: str, pinned: Sequence[Block]) -> tuple[Block, ...]:
    """The content of the message that takes the place of what was summarised."""
    head = TextBlock(f"{_PREAMBLE}\n\n{_framed(summary)}")
    return (head, TextBlock(f"\n\n{_PINNED}\n\n"), *pinned) if pinned else (head,)


def _framed(summary: str) -> str:
    return f"{_OPEN}\n{summary}\n{_CLOSE}"


def pinned_blocks(session: Session, seqs: Sequence[int]) -> tuple[Block, ...]:
    """
    The content of every pinned message among nodes, those that earlier summaries carry included.

    Args:
        session: The session.
        seqs: Nodes that are about to be replaced.
    """
    blocks: list[Block] = []
    for seq in _pinned(session, seqs):
        blocks += [*([TextBlock("\n\n")] if blocks else []), *session.events[seq].data.content]
    return tuple(blocks)


def _pinned(session: Session, seqs: Sequence[int]) -> Iterator[int]:
    for seq in seqs:
        event = session.events[seq]
        data = event.data
        if not isinstance(data, UserMessageEvent | ContextMessageEvent):
            continue
        if data.pinned:
            yield seq
        elif event.surface is not None and data.source is not None and data.source.name == SOURCE:
            # What an earlier summary stands for lies in its sources; its pinned notes come along each time.
            yield from _pinned(session, event.sources)
