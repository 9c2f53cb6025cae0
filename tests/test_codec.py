"""Events as bytes, and back: the form on disk, what is tolerated, what is refused."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from logs import Clock, Log, NoteEvent, StrictEvent

from dsh_core.content import (
    ErrorInfo,
    Finish,
    ImageBlock,
    ReasoningBlock,
    Source,
    Tagged,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    UnknownBlock,
    Usage,
)
from dsh_core.errors import SessionCorrupt
from dsh_core.session import Session, SessionEvent, SessionHeader, decode_event, encode_event, session_event
from dsh_core.session import events as ev

BLOCKS = (
    TextBlock("t"),
    ReasoningBlock("r"),
    ImageBlock("image/png", "aGk="),
    ToolCallBlock("c", "add", '{"a": 1}'),
    ToolResultBlock("c", "x", is_error=True),
    UnknownBlock("video", {"url": "x", "frames": [1, 2]}),
)

ONE_OF_EACH = [
    ev.TurnStartEvent(1, Tagged("message", source={"kind": "user"})),
    ev.TurnEndEvent(1, Tagged("error", step=1, message="m", code="SERVER")),
    ev.TurnEndEvent(1, Tagged("of-a-later-version", depth=[1, {"a": None}])),
    ev.StepStartEvent(1, 1),
    ev.StepEndEvent(1, 1),
    ev.InboxQueuedEvent("m1", "queued", "hi", Source.user()),
    ev.InboxDroppedEvent(["m1", "m2"], "cancelled"),
    ev.UserMessageEvent("m1", BLOCKS, Source.plugin("p"), pinned=True),
    ev.PromptBlockedEvent("m1", "no", None, "why"),
    ev.ContextMessageEvent("note", Source.plugin("p")),
    ev.SteeringMessageEvent("m1", 1, "also"),
    ev.RequestHeaderEvent(
        1,
        2,
        3,
        "p",
        "m",
        {"extra": {"a": [1.5]}},
        "sys",
        [ToolSchema("add", "Add.", {"type": "object"})],
        "initial",
    ),
    ev.RequestRetryEvent(1, 1, 2, 500, {"code": "SERVER", "status": 503}),
    ev.AssistantChunkEvent(1, 1, chunks=[["text", 0, 0, "a"], ["finish", 0, 3, {"kind": "stop"}]]),
    ev.AssistantMessageEvent(1, 1, 2, BLOCKS[:4], Usage(1, 2, 3, 4, 5), Finish("stop", "m", "c"), interrupted=True),
    ev.ToolCallEvent(1, 1, "c", "add", '{"a": 1}'),
    ev.ToolRewrittenEvent("c", {"a": 2}, "gate"),
    ev.ApprovalAskedEvent("a", "c", "add", {"a": 2}, "why", "rule"),
    ev.ApprovalDecidedEvent("a", "c", "approved", "session", "cli"),
    ev.ToolResultEvent(1, 1, "c", BLOCKS[:3], True, ErrorInfo("Boom", "TOOL_ERROR"), {"exit": 1}),
    ev.TurnContinuationEvent(1, 1, "stop", "limit", "repeat-guard"),
    NoteEvent({"a": [1, None, "x"]}, ["t"]),
    StrictEvent(True),
]


def stored(data: Any, **keywords: Any) -> SessionEvent:
    """The event of `data`, appended to a session of its own."""
    log = Log(clock=Clock())
    if isinstance(data, ev.ToolResultEvent):
        log.start()
        log.step()
        log.answer("", [data.call_id])
    return log.session.append(data, **keywords)


def wire(event: SessionEvent) -> dict[str, Any]:
    found = json.loads(encode_event(event))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("data", ONE_OF_EACH, ids=lambda data: type(data).__name__)
def test_every_type_comes_back_as_it_went(data: Any) -> None:
    """S-1: data, envelope and bytes are the same after a round trip."""
    event = stored(data)
    again = decode_event(encode_event(event))
    assert again == event
    assert again.data == data
    assert again.type == event.type
    assert encode_event(again) == encode_event(event)


def test_the_sample_has_every_type_of_the_core() -> None:
    """S-5: a new type cannot be forgotten above."""
    core = {getattr(ev, name) for name in ev.__all__ if name.endswith("Event")} - {ev.UnknownEvent}
    assert core - {type(data) for data in ONE_OF_EACH} == set()


def test_the_envelope_is_seq_time_type_data() -> None:
    """S-1: compact, no line end, defaults left out."""
    event = stored(ev.StepStartEvent(2, 1))
    assert encode_event(event) == b'{"seq":0,"time":1000,"type":"step/start","data":{"turn":2,"step":1}}'


def test_marks_are_written_only_where_they_say_something() -> None:
    """S-1: v, ignorable, surface and sources."""
    log = Log(clock=Clock())
    log.start()
    node = log.user()
    assert set(wire(node)) == {"seq", "time", "type", "data"}
    replaced = log.replace(node.seq, node.seq)
    assert wire(replaced)["surface"] == {"replace": [node.seq, node.seq]}
    assert wire(replaced)["sources"] == [node.seq]
    assert wire(log.session.append(NoteEvent()))["ignorable"] is True
    strict = wire(log.session.append(StrictEvent()))
    assert strict["v"] == 2
    assert "ignorable" not in strict


def test_defaults_are_left_out_recursively() -> None:
    """S-1: attempt 1, zero counts, null, false, empty; but a value equal to one of another kind is kept."""
    event = stored(ev.AssistantMessageEvent(1, 1, 1, (), Usage(0, 7), Finish("stop")))
    assert wire(event)["data"] == {"turn": 1, "step": 1, "usage": {"output": 7}, "finish": {"kind": "stop"}}


def test_false_and_zero_are_not_each_others_default() -> None:
    """S-1, S-2: JSON tells false, 0 and 0.0 apart, so the log does."""
    for value in (False, 0, 0.0):
        again = decode_event(encode_event(stored(NoteEvent([value])))).data.value[0]
        assert type(again) is type(value)

    @session_event("test/zero")
    @attrs.frozen
    class ZeroEvent:
        value: Any = 0

    for given in (False, 0.0, 0, None):
        again = decode_event(encode_event(stored(ZeroEvent(given)))).data.value
        assert (type(again), again) == (type(given), given)


SEPARATORS = ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c\x1d\x1e\x1f", "\r\n", "\n", "\x00", "\x7f", "é\U0001f600"]


@pytest.mark.parametrize("text", SEPARATORS, ids=ascii)
def test_only_a_line_feed_separates_records(text: str) -> None:
    """log-7: text with other separators comes back identical, and no record contains a line feed."""
    event = stored(ev.InboxQueuedEvent(f"m{text}", "queued", f"a{text}b", Source("plugin", text)))
    encoded = encode_event(event)
    assert b"\n" not in encoded
    again = decode_event(encoded)
    assert again.data == ev.InboxQueuedEvent(f"m{text}", "queued", f"a{text}b", Source("plugin", text))


def test_records_are_valid_utf8_whatever_the_text() -> None:
    """log-4: no lone surrogate reaches the bytes."""
    event = stored(ev.InboxQueuedEvent("m", "queued", "cut \ud83d", Source.user()))
    assert "cut \ufffd" in encode_event(event).decode("utf-8")


def test_a_log_that_holds_half_pairs_already_is_read_and_goes_out_clean() -> None:
    """log-4: older writers escaped them; values, keys, ids."""
    poisoned = (
        b'{"seq":0,"time":1,"type":"test/note","data":{"value":{"k\\udc80":"a\\ud83d b"},"tags":["\\ud83d\\ude00"]},'
        b'"ignorable":true}'
    )
    event = decode_event(poisoned)
    assert event.data.value == {"k\ufffd": "a\ufffd b"}
    assert event.data.tags == ["\U0001f600"]
    assert json.loads(encode_event(event).decode("utf-8", "strict"))["data"]["value"] == {"k\ufffd": "a\ufffd b"}


def test_a_poisoned_log_sends_clean_requests() -> None:
    """log-4: what a model reads of such a log is valid text."""
    log = Log()
    log.start()
    record = encode_event(log.session.append(ev.ContextMessageEvent("XX", Source.plugin("p"))))
    seed = [log.session.events[0], decode_event(record.replace(b"XX", b"cut \\ud83d"))]
    message = Session(SessionHeader("t"), seed=seed).derive_messages()[0]
    assert "cut \ufffd" in message.content[0].text  # type: ignore[union-attr]


# -- other versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignorable", [True, False])
def test_an_unknown_type_is_kept_byte_for_byte(ignorable: bool) -> None:
    """S-10, log-11b, case 28: spaces and all; whether it may be left out is known."""
    record = b'{"seq": 0, "time":1,"type":"later/thing", "data":{"b":1e2}' + b',"ignorable":true}' * ignorable
    record += b"}" * (not ignorable)
    event = decode_event(record)
    assert event.type == "later/thing"
    assert event.data == ev.UnknownEvent("later/thing", record)
    assert event.ignorable is ignorable
    assert encode_event(event) == record


def test_a_newer_version_of_a_known_type_is_unknown() -> None:
    """S-10: its meaning may have changed."""
    record = b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":1,"x":2},"v":2}'
    event = decode_event(record)
    assert isinstance(event.data, ev.UnknownEvent)
    assert event.type == "step/start"
    assert not event.ignorable
    assert encode_event(event) == record


def test_an_older_version_of_a_known_type_is_read() -> None:
    """S-10: absent means 1."""
    event = decode_event(b'{"seq":0,"time":1,"type":"test/strict","data":{"value":7}}')
    assert event.data == StrictEvent(7)


def test_an_unknown_field_of_a_known_type_is_kept_byte_for_byte() -> None:
    """log-11b: the event is understood and its bytes are not changed."""
    record = b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":1,"later":[1, 2]}}'
    event = decode_event(record)
    assert event.data == ev.StepStartEvent(1, 1)
    assert encode_event(event) == record


def test_unknown_tags_and_blocks_are_carried() -> None:
    """S-5: reasons and unions are open."""
    record = (
        b'{"seq":0,"time":1,"type":"context/message","data":{"content":[{"type":"video","url":"u","deep":{"a":[1]}}]}}'
    )
    event = decode_event(record)
    assert event.data.content == (UnknownBlock("video", {"url": "u", "deep": {"a": [1]}}),)
    assert json.loads(encode_event(event)) == json.loads(record)
    end = decode_event(b'{"seq":0,"time":1,"type":"turn/end","data":{"turn":1,"reason":{"kind":"later","n":3}}}')
    assert (end.data.reason.kind, end.data.reason.n) == ("later", 3)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":1}',
        b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":1}}{}',
        b'{"seq":"0","time":1,"type":"step/start","data":{"turn":1,"step":1}}',
        b'{"seq":0,"time":1.5,"type":"step/start","data":{"turn":1,"step":1}}',
        b'{"time":1,"type":"step/start","data":{"turn":1,"step":1}}',
        b'{"seq":0,"time":1,"data":{}}',
        b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1}}',
        b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":"1"}}',
        b'{"seq":0,"time":1,"type":"step/start","data":{"turn":1,"step":true}}',
        b'{"seq":0,"time":1,"type":"step/start","data":[1,1]}',
        b'{"seq":0,"time":1,"type":"turn/end","data":{"turn":1,"reason":{}}}',
        b'{"seq":0,"time":1,"type":"turn/end","data":{"turn":1,"reason":"done"}}',
        b'{"seq":0,"time":1,"type":"context/message","data":{"content":[{"text":"no type"}]}}',
        b'{"seq":0,"time":1,"type":"context/message","data":{"content":[{"type":"text"}]}}',
        b'{"seq":0,"time":1,"type":"context/message","data":{"content":"plain"}}',
        b'{"seq":0,"time":1,"type":"user/message","data":{"message_id":"m","content":[]},"surface":{"replace":[1]}}',
        b'{"seq":0,"time":1,"type":"test/note","data":{"value":"\xff"}}',
    ],
    ids=lambda record: record.decode("latin-1")[:60],
)
def test_what_is_no_event_is_corrupt(record: bytes) -> None:
    """S-10: damaged is its own error, never a crash, never taken for a newer version."""
    with pytest.raises(SessionCorrupt):
        decode_event(record)


def test_every_cut_of_a_record_is_corrupt() -> None:
    """40-quality: a prefix of a record is never taken for one."""
    record = encode_event(stored(ONE_OF_EACH[7]))
    for length in range(len(record)):
        with pytest.raises(SessionCorrupt):
            decode_event(record[:length])


# -- registering -----------------------------------------------------------------------------------------


def test_a_name_can_be_taken_once() -> None:
    """10-api: the error names who has it; the core's names are taken."""
    with pytest.raises(ValueError, match=r"turn/start.*TurnStartEvent"):

        @session_event("turn/start")
        @attrs.frozen
        class Mine:
            """Not to be."""


@pytest.mark.parametrize("name", ["", "note", "Test/note", "test/", "/note", "test note/x", "test/note\n"])
def test_malformed_names_are_refused(name: str) -> None:
    """10-api: area/what, in lower case."""
    with pytest.raises(ValueError, match="malformed"):
        session_event(name)(attrs.make_class("Mine", []))


def test_plugins_have_no_surface_types() -> None:
    """S-3: the messages of a conversation are the core's own types."""
    with pytest.raises(ValueError, match="surface"):
        session_event("test/message", surface=True)(attrs.make_class("Mine", []))


def test_only_attrs_classes_are_event_types() -> None:
    """10-api: said when it is registered."""
    with pytest.raises(TypeError, match="attrs"):
        session_event("test/plain")(type("Plain", (), {}))


def test_the_same_class_may_be_registered_again_on_reload() -> None:
    """H-7: a plugin module that is imported again defines its classes again."""

    def define() -> Any:
        @session_event("test/reloaded")
        @attrs.frozen
        class Reloaded:
            value: int = 0

        return Reloaded

    first, second = define(), define()
    assert decode_event(encode_event(stored(second(3)))).data == second(3)
    assert stored(first(4)).data == first(4)
