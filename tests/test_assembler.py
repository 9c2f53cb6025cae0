"""Chunks become blocks in one place (M-1)."""

from __future__ import annotations

import pytest

from dsh_core import LlmError
from dsh_core.content import Finish, ImageBlock, ReasoningBlock, TextBlock, ToolCallBlock, Usage
from dsh_core.llm import (
    BlockAssembler,
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)


def assembled(*chunks: object) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)  # type: ignore[arg-type]
    return assembler


def content(*chunks: object) -> tuple[object, ...]:
    return assembled(*chunks).message().content


def test_deltas_of_a_block_are_joined():
    """M-1: the deltas of one index are one block."""
    message = assembled(BlockStart(0, "text"), TextDelta(0, "a"), TextDelta(0, "b"), BlockEnd(0)).message()
    assert (message.role, message.content) == ("assistant", (TextBlock("ab"),))


def test_blocks_stand_in_the_order_of_first_sight():
    """M-1: the index names a block, it does not order it."""
    made = content(ReasoningDelta(5, "r"), TextDelta(1, "t"), ReasoningDelta(5, "s"))
    assert made == (ReasoningBlock("rs"), TextBlock("t"))


@pytest.mark.parametrize(
    ("delta", "block"),
    [
        (TextDelta(0, "x"), TextBlock("x")),
        (ReasoningDelta(0, "x"), ReasoningBlock("x")),
        (ToolCallDelta(0, "i", "n", "{}"), ToolCallBlock("i", "n", "{}")),
    ],
)
def test_a_delta_without_a_start_opens_its_kind(delta, block):
    """M-1: starts are optional."""
    assert content(delta) == (block,)


def test_a_second_start_is_ignored():
    """M-1: what has come stays."""
    assert content(BlockStart(0, "text"), TextDelta(0, "a"), BlockStart(0, "text"), TextDelta(0, "b")) == (
        TextBlock("ab"),
    )


def test_deltas_behind_the_end_of_a_block_are_ignored():
    """M-1: a closed block does not change."""
    assert content(TextDelta(0, "a"), BlockEnd(0), TextDelta(0, "b")) == (TextBlock("a"),)
    call = ToolCallDelta(0, "i", "n", "{}")
    assert content(call, BlockEnd(0), ToolCallDelta(0, "j", "m", "x")) == (ToolCallBlock("i", "n", "{}"),)


def test_the_block_of_an_end_counts_more_than_the_deltas():
    """M-1: the first end with a block is authoritative."""
    assert content(TextDelta(0, "a"), BlockEnd(0, TextBlock("A")), BlockEnd(0, TextBlock("B"))) == (TextBlock("A"),)


def test_a_block_may_come_with_its_end_alone():
    """M-1: a block that is not streamed comes whole."""
    image = ImageBlock("image/png", "AAAA")
    assert content(BlockEnd(0, image)) == (image,)


def test_the_first_id_and_name_that_are_not_empty_are_kept():
    """M-1: later fragments repeat, empty or leave out id and name."""
    made = content(
        ToolCallDelta(0, "", None, "{"),
        ToolCallDelta(0, "a", "", ""),
        ToolCallDelta(0, "b", "add", '"x"'),
        ToolCallDelta(0, "", "other", ":1}"),
    )
    assert made == (ToolCallBlock("a", "add", '{"x":1}'),)


def test_a_call_without_id_and_name_has_empty_ones():
    """L-12: the loop answers such a call; the assembler does not invent anything."""
    assert content(ToolCallDelta(0, None, None, "{}")) == (ToolCallBlock("", "", "{}"),)


def test_arguments_stay_raw_text():
    """M-1: broken JSON is not touched."""
    assert content(ToolCallDelta(0, "i", "n", '{"a": ')) == (ToolCallBlock("i", "n", '{"a": '),)


def test_the_last_usage_and_the_last_finish_win():
    """M-1: providers repeat both."""
    assembler = assembled(
        UsageChunk(Usage(1)), FinishChunk(Finish("stop")), UsageChunk(Usage(2)), FinishChunk(Finish("max-tokens"))
    )
    assert (assembler.usage, assembler.finish) == (Usage(2), Finish("max-tokens"))


def test_before_the_end_there_is_neither_usage_nor_finish():
    """L-5: a stream without a finish can be told from one with it."""
    assembler = assembled(TextDelta(0, "a"))
    assert (assembler.usage, assembler.finish) == (None, None)


def test_blocks_without_text_are_left_out():
    """M-1: a started block that stays empty says nothing."""
    assert content(BlockStart(0, "text"), BlockEnd(0), BlockStart(1, "reasoning"), TextDelta(2, "")) == ()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((), False),
        ((BlockStart(0, "text"), TextDelta(0, "")), False),
        ((UsageChunk(Usage(1)), FinishChunk(Finish("stop"))), False),
        ((TextDelta(0, " "),), True),
        ((ReasoningDelta(0, "r"),), True),
        ((ToolCallDelta(0),), True),
        ((BlockEnd(0, TextBlock("x")),), True),
    ],
)
def test_output_is_text_reasoning_or_a_call(chunks, expected):
    """M-3: `after_output` asks whether anything had been received."""
    assert assembled(*chunks).has_output is expected


def test_the_visible_prefix_is_what_was_shown():
    """L-6: text and reasoning that are more than white space, and no calls, finished or not."""
    assembler = assembled(
        ReasoningDelta(0, "why"), TextDelta(1, " \n"), TextDelta(2, "so far "), ToolCallDelta(3, "i", "n", "{")
    )
    assert assembler.visible_prefix() == (ReasoningBlock("why"), TextBlock("so far "))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ToolCallDelta(0, "i", "n", "{}"), TextDelta(0, "x")),
        (TextDelta(0, "x"), ToolCallDelta(0, "i", "n", "{}")),
        (TextDelta(0, "x"), ReasoningDelta(0, "x")),
        (BlockStart(0, "reasoning"), TextDelta(0, "x")),
        (BlockStart(0, "server-tool"), TextDelta(0, "x")),
    ],
)
def test_a_delta_of_another_kind_is_a_malformed_response(first, second):
    """M-1: text must not end up in the arguments of a call."""
    with pytest.raises(LlmError, match="block 0") as caught:
        assembled(first, second)
    assert caught.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
def test_a_character_cut_into_its_surrogates_is_whole_again(kind):
    """M-1: what a tool is called with and what the log says are the same text."""
    (block,) = content(kind(0, "a\ud83d"), kind(0, "\ude00b"))
    assert block.text == "a\U0001f600b"


def test_a_character_cut_within_arguments_is_whole_again():
    """L-8: history and dispatch agree."""
    made = content(ToolCallDelta(0, "i", "n", '"\ud83d'), ToolCallDelta(0, None, None, '\ude00"'))
    assert made == (ToolCallBlock("i", "n", '"\U0001f600"'),)


def test_an_empty_block_is_no_output():
    """L-5: a stream that says nothing is an empty response, however it says it."""
    assembler = assembled(BlockStart(0, "text"), BlockEnd(0, TextBlock("")))
    assert (assembler.has_output, assembler.message().content, assembler.visible_prefix()) == (False, (), ())


def test_what_is_no_chunk_is_refused():
    """M-1: a foreign object is the adapter's mistake and is named."""
    with pytest.raises(TypeError, match="dict"):
        assembled({"text": "x"})
