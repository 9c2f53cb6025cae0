"""However a provider cuts its stream, the message is the same."""

from __future__ import annotations

import random

import pytest

from dsh_core.content import Block, ReasoningBlock, TextBlock, ToolCallBlock
from dsh_core.llm import BlockAssembler, BlockEnd, BlockStart, ReasoningDelta, StreamChunk, TextDelta, ToolCallDelta

ALPHABET = 'ab {}":,\n\u00e9\u65e5\U0001f600'


def made_text(rng: random.Random) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 30)))


def made_block(rng: random.Random, index: int) -> Block:
    kind = rng.choice(["text", "reasoning", "call"])
    if kind == "text":
        return TextBlock(made_text(rng))
    if kind == "reasoning":
        return ReasoningBlock(made_text(rng))
    return ToolCallBlock(f"id{index}", rng.choice(["add", "read"]), made_text(rng))


def cut(rng: random.Random, text: str) -> list[str]:
    at = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
    return [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]


def streamed(rng: random.Random, index: int, block: Block) -> list[StreamChunk]:
    if isinstance(block, TextBlock):
        kind, deltas = "text", [TextDelta(index, piece) for piece in cut(rng, block.text)]
    elif isinstance(block, ReasoningBlock):
        kind, deltas = "reasoning", [ReasoningDelta(index, piece) for piece in cut(rng, block.text)]
    else:
        assert isinstance(block, ToolCallBlock)
        kind, deltas = "tool-call", call_deltas(rng, index, block)
    start = [BlockStart(index, kind)] if rng.random() < 0.7 else []
    end = [BlockEnd(index, rng.choice([None, block]))] if rng.random() < 0.7 else []
    return [*start, *deltas, *end]


def call_deltas(rng: random.Random, index: int, block: ToolCallBlock) -> list[ToolCallDelta]:
    pieces = cut(rng, block.arguments)
    named = rng.randrange(len(pieces))
    deltas = []
    for number, piece in enumerate(pieces):
        known = number == named or (number > named and rng.random() < 0.3)
        absent = rng.choice([None, ""])
        deltas.append(ToolCallDelta(index, block.id if known else absent, block.name if known else absent, piece))
    return deltas


def interleaved(rng: random.Random, streams: list[list[StreamChunk]]) -> list[StreamChunk]:
    """The blocks begin in order; after that their chunks come mixed."""
    mixed = [stream.pop(0) for stream in streams]
    while any(streams):
        mixed.append(rng.choice([stream for stream in streams if stream]).pop(0))
    return mixed


@pytest.mark.parametrize("seed", range(300))
def test_a_message_does_not_depend_on_how_its_stream_is_cut(seed):
    """M-1: any cut, any interleaving, with and without starts, ends and whole blocks."""
    rng = random.Random(seed)
    blocks = [made_block(rng, index) for index in range(rng.randint(1, 4))]
    assembler = BlockAssembler()
    for chunk in interleaved(rng, [streamed(rng, index, block) for index, block in enumerate(blocks)]):
        assembler.push(chunk)
    assert assembler.message().content == tuple(blocks)
