"""Raw chunks: packed without loss, in packs of a bounded size, in front of every other event."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from logs import Clock, Log, NoteEvent

from dsh_core.content import Finish, ReasoningBlock, TextBlock, ToolCallBlock, Usage
from dsh_core.errors import HarnessError, NotSerializable
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
from dsh_core.session import Session, decode_event, encode_event, unpack_chunks
from dsh_core.session.events import AssistantChunkEvent

pytestmark = pytest.mark.anyio


def in_step(clock: Clock | None = None) -> Log:
    """A session whose first step is open."""
    log = Log(clock=clock or Clock())
    log.start()
    log.user()
    log.step()
    return log


def stream(log: Log, chunks: Sequence[StreamChunk], *, attempt: int = 1) -> Session:
    for chunk in chunks:
        log.session.append_chunk(1, 1, attempt, chunk)
    return log.session


def packs(session: Session) -> list[AssistantChunkEvent]:
    return [event.data for event in session.events if isinstance(event.data, AssistantChunkEvent)]


def reread(session: Session) -> list[StreamChunk]:
    """What the log gives back after it was written and read."""
    session.close_pack()
    return unpack_chunks([decode_event(encode_event(event)) for event in session.events])


EVERYTHING: list[StreamChunk] = [
    BlockStart(0, "reasoning"),
    ReasoningDelta(0, "hm "),
    ReasoningDelta(0, ""),
    BlockEnd(0, ReasoningBlock("hm ")),
    BlockStart(1, "text"),
    TextDelta(1, "Hé"),
    TextDelta(1, "llo \U0001f600"),
    BlockEnd(1),
    BlockStart(2, "tool-call"),
    ToolCallDelta(2, "c1", "add", ""),
    ToolCallDelta(2, None, None, '{"a":'),
    ToolCallDelta(2, None, "", " 1}"),
    BlockEnd(2, ToolCallBlock("c1", "add", '{"a": 1}')),
    ToolCallDelta(3, "c2", None, "{}"),
    BlockEnd(3, ToolCallBlock("c2", "add", '{"another": "block"}')),
    UsageChunk(Usage(1, 2, 0, 4, 0)),
    UsageChunk(Usage(0, 0)),
    FinishChunk(Finish("stop")),
    FinishChunk(Finish("error", "broken", "SERVER")),
]


def test_what_an_adapter_produced_comes_back() -> None:
    """S-8: every kind of chunk, exactly, also where an end names another block than the deltas made."""
    session = stream(in_step(), EVERYTHING)
    assert reread(session) == EVERYTHING


def test_a_block_that_says_nothing_new_is_not_stored_twice() -> None:
    """S-8: an end equal to the assembly stores no content, any other stores it."""
    session = stream(in_step(), EVERYTHING)
    session.close_pack()
    entries = [entry for pack in packs(session) for entry in pack.chunks]
    ends = [entry[3:] for entry in entries if entry[0] == "end"]
    assert [end[0] is True if end else None for end in ends] == [True, None, True, False]


def test_chunks_wait_for_company_and_go_before_any_other_event() -> None:
    """S-8: no event for each token; the append itself closes the pack."""
    log = in_step()
    stream(log, [TextDelta(0, "a"), TextDelta(0, "b")])
    assert packs(log.session) == []
    log.answer("ab")
    assert log.types()[-2:] == ["assistant/chunk", "assistant/message"]
    assert len(packs(log.session)[0].chunks) == 2


def test_a_pack_has_at_most_64_entries() -> None:
    """S-8: entries, whatever their kind."""
    session = stream(in_step(), [TextDelta(0, "x")] * 130)
    assert [len(pack.chunks) for pack in packs(session)] == [64, 64]
    assert reread(session) == [TextDelta(0, "x")] * 130


def test_a_pack_has_about_4_kib() -> None:
    """S-8: the delta that reaches the limit is the last."""
    session = stream(in_step(), [TextDelta(0, "x" * 1500)] * 7)
    assert [len(pack.chunks) for pack in packs(session)] == [3, 3]


def test_a_chunk_that_comes_100_ms_later_opens_a_new_pack() -> None:
    """S-8: and the time of a pack is that of its first entry, the others are told relative to it."""
    clock = Clock(1_000)
    log = in_step(clock)
    for now in (1_000, 1_040, 1_099, 1_100, 1_150):
        clock.now = now
        stream(log, [TextDelta(0, str(now))])
    log.session.close_pack()
    events = [event for event in log.session.events if event.type == "assistant/chunk"]
    assert [event.time for event in events] == [1_000, 1_100]
    assert [[entry[2] for entry in event.data.chunks] for event in events] == [[0, 40, 99], [0, 50]]


async def test_a_pack_is_written_although_no_chunk_follows() -> None:
    """S-8: one timer of the session."""
    log = Log()
    log.start()
    log.step()
    log.session.append_chunk(1, 1, 1, TextDelta(0, "a"))
    for _ in range(100):
        await asyncio.sleep(0.02)
        if packs(log.session):
            break
    assert len(packs(log.session)) == 1


async def test_a_detached_session_leaves_no_timer() -> None:
    """S-8, A-5: nothing is called after the end."""
    log = Log()
    log.start()
    log.step()
    log.session.append_chunk(1, 1, 1, TextDelta(0, "a"))
    log.session.detach()
    await asyncio.sleep(0.15)
    assert packs(log.session) == []


def test_each_attempt_has_packs_of_its_own() -> None:
    """S-8, L-4: what a failed attempt produced is told apart."""
    log = in_step()
    stream(log, [TextDelta(0, "bad")], attempt=1)
    stream(log, [TextDelta(0, "good")], attempt=2)
    log.session.close_pack()
    assert [(pack.attempt, unpack_chunks([pack])) for pack in packs(log.session)] == [
        (1, [TextDelta(0, "bad")]),
        (2, [TextDelta(0, "good")]),
    ]


# -- surrogates ------------------------------------------------------------------------------------------


def test_a_surrogate_pair_cut_in_two_is_one_character() -> None:
    """S-8, log-4: the first half is held back and joined with the next delta."""
    session = stream(
        in_step(), [TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), BlockEnd(0, TextBlock("a\U0001f600b"))]
    )
    assert reread(session) == [TextDelta(0, "a"), TextDelta(0, "\U0001f600b"), BlockEnd(0, TextBlock("a\U0001f600b"))]


def test_halves_of_two_streams_do_not_mix() -> None:
    """S-8: each block has its own."""
    session = stream(
        in_step(),
        [
            TextDelta(0, "\ud83d"),
            ToolCallDelta(1, "c", "f", "\ud83c"),
            TextDelta(0, "\ude00"),
            ToolCallDelta(1, None, None, "\udf89"),
        ],
    )
    joined: dict[int, str] = {0: "", 1: ""}
    for chunk in reread(session):
        joined[chunk.index] += chunk.text if isinstance(chunk, TextDelta) else chunk.arguments  # type: ignore[union-attr]
    assert joined == {0: "\U0001f600", 1: "\U0001f389"}


@pytest.mark.parametrize(
    "behind",
    [[], [BlockEnd(0)], [FinishChunk(Finish("stop"))], [TextDelta(0, "x"), BlockEnd(0)]],
    ids=["cut off", "end", "finish", "other text"],
)
def test_half_a_pair_without_its_other_half_is_a_replacement_character(behind: list[StreamChunk]) -> None:
    """S-8, S-2: nothing is lost silently; the bytes are valid."""
    log = in_step()
    session = stream(log, [TextDelta(0, "a\ud83d"), *behind])
    log.answer("a\ufffd")
    text = "".join(chunk.text for chunk in reread(session) if isinstance(chunk, TextDelta))
    assert text == "a\ufffd" + ("x" if len(behind) == 2 else "")
    assert b"\xed\xa0" not in b"".join(encode_event(event) for event in session.events)


def test_an_event_in_the_middle_of_a_stream_does_not_part_a_pair() -> None:
    """S-8: a note that arrives between two deltas closes the pack, not the stream."""
    log = in_step()
    stream(log, [TextDelta(0, "a\ud83d")])
    log.context("by the way")
    stream(log, [TextDelta(0, "\ude00"), BlockEnd(0, TextBlock("a\U0001f600"))])
    assert reread(log.session) == [
        TextDelta(0, "a"),
        TextDelta(0, "\U0001f600"),
        BlockEnd(0, TextBlock("a\U0001f600")),
    ]
    assert log.types()[-3:] == ["assistant/chunk", "context/message", "assistant/chunk"]


def test_a_low_half_alone_is_a_replacement_character() -> None:
    """S-2: in text, arguments and names."""
    session = stream(in_step(), [TextDelta(0, "a\udc80b"), ToolCallDelta(1, "c\udc80", "f", "\udc80")])
    assert reread(session) == [TextDelta(0, "a\ufffdb"), ToolCallDelta(1, "c\ufffd", "f", "\ufffd")]


# -- refusals --------------------------------------------------------------------------------------------


anything: Any = dict[str, Any]
NO_CHUNKS = ["text", None, TextDelta(0, anything(b=1)), ToolCallDelta(0, anything()), UsageChunk(anything(input=1))]


@pytest.mark.parametrize("chunk", NO_CHUNKS, ids=repr)
def test_what_is_no_chunk_is_refused(chunk: Any) -> None:
    """S-2: with an error that names what the adapter produced; the stream before it is kept."""
    log = in_step()
    stream(log, [TextDelta(0, "a")])
    with pytest.raises(NotSerializable, match="the adapter produced"):
        log.session.append_chunk(1, 1, 1, chunk)
    assert reread(log.session) == [TextDelta(0, "a")]


def test_chunks_cannot_be_logged_from_an_observer() -> None:
    """S-2: the same rule as for any append."""
    caught: list[str] = []

    class Sink:
        def check(self, session: Session, event: Any) -> None: ...

        def record(self, session: Session, event: Any, encoded: bytes) -> None: ...

        def notify(self, session: Session, event: Any) -> None:
            with pytest.raises(HarnessError) as error:
                session.append_chunk(1, 1, 1, TextDelta(0, "a"))
            caught.append(error.value.code)

        def created(self, session: Session) -> None: ...

        def disposed(self, session: Session) -> None: ...

    Log(sink=Sink()).session.append(NoteEvent())
    assert caught == ["REENTRANT"]


def test_a_pack_in_the_log_cannot_be_changed() -> None:
    """S-2: nor can its entries."""
    session = stream(in_step(), [TextDelta(0, "a")])
    session.close_pack()
    (pack,) = packs(session)
    with pytest.raises(TypeError):
        pack.chunks[0][3] = "b"
    with pytest.raises(TypeError):
        pack.chunks[0] = ()  # type: ignore[index]


def test_unpacking_passes_over_other_events() -> None:
    """S-8: a whole log can be given, or the data of its packs."""
    session = stream(in_step(), EVERYTHING)
    session.close_pack()
    assert unpack_chunks(session.events) == EVERYTHING
    assert unpack_chunks(packs(session)) == EVERYTHING
    assert unpack_chunks([]) == []


def test_entries_of_a_later_version_are_passed_over() -> None:
    """S-5: unknown kinds are carried, not fatal."""
    data = AssistantChunkEvent(1, 1, chunks=[["hologram", 0, 0, {"x": 1}], ["text", 0, 1, "a"]])
    assert unpack_chunks([data]) == [TextDelta(0, "a")]
