"""Where the bytes of a stream are cut makes no difference (llm-13)."""

from __future__ import annotations

import pytest
from dsh_llm_openai.chunks import decode_chunk
from dsh_llm_openai.profiles import PROFILES
from dsh_llm_openai.sse import Event, EventParser
from dsh_llm_openai.translate import Translator
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.anyio

_LINES = [
    b": heartbeat",
    'data: {"choices":[{"index":0,"delta":{"content":"中文 \U0001f600 é"}}]}'.encode(),
    b"",
    b"event: message",
    b'data:{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read"}}]}}]}',
    b"",
    b"id: 7",
    b"retry: 10",
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":',
    'data: [{"index":0,"function":{"arguments":"{\\"p\\":\\"日本\U0001f680\\"}"}}]}}]}'.encode(),
    b"",
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}',
    b"",
    b"data: [DONE]",
    b"",
    b"",
]


def _parsed(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def _translated(pieces: list[bytes]) -> list[object]:
    translator = Translator(PROFILES["generic"], ["read"])
    out: list[object] = []
    for event in _parsed(pieces):
        if event.data != b"[DONE]":
            out += translator.take(decode_chunk(event.data))
    return out + translator.close(done=True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_single_cut_and_every_byte_alone(line_end, mark):
    """llm-13: one byte at a time, and cut in two at each position, with each line end and a byte order mark."""
    body = mark + line_end.join(_LINES)
    whole = _translated([body])
    assert _translated([body[at : at + 1] for at in range(len(body))]) == whole
    for at in range(len(body)):
        assert _translated([body[:at], body[at:]]) == whole
    assert whole == _translated([b"\n".join(_LINES)])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_cuts(data):
    """llm-13: random cuts of random texts, mixed line ends included."""
    texts = data.draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=5)
    )
    ends = data.draw(st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=2 * len(texts), max_size=2 * len(texts)))
    body = b"".join(b"data: " + text.encode() + ends[2 * i] + ends[2 * i + 1] for i, text in enumerate(texts))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert [event.data for event in _parsed(pieces)] == [text.encode() for text in texts]


def test_line_separators_of_unicode_do_not_end_a_line():
    """log-7: only LF, CRLF and CR separate lines of a stream."""
    text = "a\u2028b\u2029c\u0085d\x0be\x1cf"
    assert _parsed([f"data: {text}\n\n".encode()]) == [Event(b"", text.encode())]


def test_several_data_lines_are_one_event():
    """M-1: joined by line feeds, also when the last blank line is missing."""
    assert _parsed([b"data: a\ndata: b\n\ndata: c"]) == [Event(b"", b"a\nb"), Event(b"", b"c")]


def test_a_forgotten_blank_line_between_two_objects():
    """M-1: two whole objects are two events."""
    assert [event.data for event in _parsed([b'data: {"a":1}\ndata: {"b":2}\ndata: [DONE]\n'])] == [
        b'{"a":1}', b'{"b":2}', b"[DONE]",
    ]  # fmt: skip


def test_a_very_long_line_in_small_pieces_is_read_in_linear_work():
    """M-1: pieces of an unfinished line are kept apart until it ends."""
    parser = EventParser()
    for _ in range(20_000):
        assert parser.feed(b"x" * 50) == []
    assert len(parser._parts) == 20_000
    assert parser.feed(b"\n\n") == []


async def test_the_whole_adapter_takes_single_bytes(wire):
    """llm-13: the same through the SDK's transport."""
    body = b"\r\n".join(_LINES)
    heard = await wire.speak(*(body[at : at + 1] for at in range(len(body)))).ask(wire.asked("read"))
    assert (heard.text, heard.calls) == ("中文 \U0001f600 é", [("a", "read", '{"p":"日本\U0001f680"}')])
