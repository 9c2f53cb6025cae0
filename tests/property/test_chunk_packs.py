"""Whatever an adapter produces, and whatever happens meanwhile, the log gives it back (S-8)."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsh_core.content import Finish, ReasoningBlock, Source, TextBlock, ToolCallBlock, Usage
from dsh_core.llm import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)
from dsh_core.session import Session, SessionHeader, decode_event, encode_event, unpack_chunks
from dsh_core.session.events import AssistantChunkEvent, ContextMessageEvent

INDEX = st.integers(0, 2)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["ab", "c" * 3000])
SHORT = st.sampled_from(["", "a", "b", "ab"])
BLOCKS = (
    st.builds(TextBlock, SHORT | TEXT)
    | st.builds(ReasoningBlock, SHORT)
    | st.builds(ToolCallBlock, SHORT, SHORT, SHORT | TEXT)
)
CHUNKS: st.SearchStrategy[StreamChunk] = st.one_of(
    st.builds(BlockStart, INDEX, st.sampled_from(["text", "reasoning", "tool-call", "video"])),
    st.builds(TextDelta, INDEX, SHORT | TEXT),
    st.builds(ReasoningDelta, INDEX, SHORT),
    st.builds(ToolCallDelta, INDEX, st.none() | SHORT, st.none() | SHORT, SHORT | TEXT),
    st.builds(BlockEnd, INDEX, st.none() | BLOCKS),
    st.builds(UsageChunk, st.builds(Usage, *[st.integers(0, 3)] * 5)),
    st.builds(FinishChunk, st.builds(Finish, st.sampled_from(["stop", "error"]), st.none() | SHORT, st.none() | SHORT)),
)
# What happens between two chunks: another event, somebody who closes the pack, time, or nothing.
MEANWHILE = st.sampled_from(["note", "close", "wait", "", "", ""])


@given(st.lists(st.tuples(CHUNKS, MEANWHILE), max_size=90))
def test_the_log_gives_back_what_the_adapter_produced(script: list[tuple[StreamChunk, str]]) -> None:
    """S-8: exactly, in order, also from bytes, whatever cut the packs; each pack keeps its bounds."""
    now = [1_000]
    session = Session(SessionHeader("s"), clock=lambda: now[0])
    for chunk, meanwhile in script:
        session.append_chunk(1, 1, 1, chunk)
        if meanwhile == "note":
            session.append(ContextMessageEvent("note", Source.plugin("p")))
        elif meanwhile == "close":
            session.close_pack()
        now[0] += 70 if meanwhile == "wait" else 1
    session.close_pack()
    stored = [decode_event(encode_event(event)) for event in session.events]
    assert unpack_chunks(session.events) == [chunk for chunk, _ in script]
    assert unpack_chunks(stored) == [chunk for chunk, _ in script]
    assert stored == list(session.events)
    for event in session.events:
        if isinstance(event.data, AssistantChunkEvent):
            _check_bounds(event.data.chunks)


def _check_bounds(entries: tuple[Any, ...]) -> None:
    assert 1 <= len(entries) <= 64
    assert all(entry[2] < 100 for entry in entries[:-1])
    assert sum(len(str(member)) for entry in entries[:-1] for member in entry[3:4]) < 2 * 4096


@given(st.text(st.characters(codec=None), max_size=8), st.lists(st.integers(0, 8), max_size=4))
def test_broken_characters_are_mended_wherever_they_are_cut(text: str, cuts: list[int]) -> None:
    """S-8, log-4: pairs that a delta boundary parts are joined, all else that is broken is U+FFFD."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    units = text.encode("utf-16-le", "surrogatepass")
    edges = sorted({0, len(units), *(min(2 * cut, len(units)) for cut in cuts)})
    session = Session(SessionHeader("s"))
    for start, end in itertools.pairwise(edges):
        # Each half of a pair as a character of its own, which is how a careless decoder gives it.
        session.append_chunk(1, 1, 1, TextDelta(0, "".join(map(chr, memoryview(units[start:end]).cast("H")))))
    session.close_pack()
    stored = unpack_chunks([decode_event(encode_event(event)) for event in session.events])
    assert "".join(chunk.text for chunk in stored if isinstance(chunk, TextDelta)) == whole
