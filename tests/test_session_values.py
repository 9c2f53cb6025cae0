"""What an event may hold, and that nobody can change it afterwards (S-2)."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from dsh_core.content import Source, Tagged, TextBlock, ToolCallBlock, ToolSchema, UnknownBlock
from dsh_core.errors import InvariantViolation, NotSerializable
from dsh_core.session import Session, SessionEvent, SessionHeader, decode_event, encode_event, session_event
from dsh_core.session.events import (
    AssistantMessageEvent,
    RequestHeaderEvent,
    StepStartEvent,
    ToolResultEvent,
    ToolRewrittenEvent,
    TurnEndEvent,
    UserMessageEvent,
)


@session_event("test-values/free")
@attrs.frozen
class FreeEvent:
    value: Any = None


@session_event("test-values/mutable")
@attrs.define
class MutableEvent:
    text: str
    items: list[str] = attrs.field(factory=list)


@pytest.fixture
def session() -> Session:
    return Session(SessionHeader(id="s", created_at=1))


def user(text: str, message_id: str = "m") -> UserMessageEvent:
    return UserMessageEvent(message_id, text, Source.user())


# -- what is refused -------------------------------------------------------------------------------------

_CYCLE: list[Any] = []
_CYCLE.append({"again": _CYCLE})
_DEEP: list[Any] = []
for _ in range(500):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), float("-inf"), b"x", bytearray(b"x"), (1,), {1}, frozenset(), {1: "a"}, {None: 1},
        object(), 2**53, -(2**53), _CYCLE, _DEEP, Source.user(), range(3), 1j, {"a": {"b": [1, {2}]}},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_json_cannot_hold_is_refused_without_a_trace(session: Session, value: Any) -> None:
    """S-2: the error names the event type and the path; the log goes on where it was."""
    session.append(user("a"))
    with pytest.raises(NotSerializable, match=r"test-values/free.*\$\.value"):
        session.append(FreeEvent(value))
    assert len(session.events) == 1
    assert session.append(user("b")).seq == 1


def test_the_path_leads_to_the_culprit(session: Session) -> None:
    """S-2: through objects and lists."""
    with pytest.raises(NotSerializable, match=r"\$\.value\.a\.b\[1\]\.c is nan"):
        session.append(FreeEvent({"a": {"b": [1, {"c": float("nan")}]}}))


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**53 - 1, -(2**53) + 1, 1.5, -0.0, "", "\x00\u2028😀", [], {}, {"": [None, {"a": [[]]}]}],
    ids=repr,
)
def test_what_json_can_hold_is_kept_exactly(session: Session, value: Any) -> None:
    """S-2: the harmless twin, with types: True is not 1 and 1.0 is not 1."""
    stored = session.append(FreeEvent(value)).data.value
    assert stored == value
    assert type(stored) in (type(value), *type(value).__subclasses__())
    assert decode_event(encode_event(session.events[0])).data == FreeEvent(value)


def test_a_value_reached_twice_is_no_cycle(session: Session) -> None:
    """S-2: only what contains itself is refused."""
    shared = {"a": [1]}
    assert session.append(FreeEvent([shared, shared, {"b": shared}])).data.value[2] == {"b": {"a": [1]}}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (StepStartEvent("1", 1), r"\$\.turn must be an integer"),
        (StepStartEvent(True, 1), r"\$\.turn must be an integer"),
        (StepStartEvent(1, 2**53), r"\$\.step must be an integer"),
        (UserMessageEvent(7, "x"), r"\$\.message_id must be text"),
        (UserMessageEvent("m", "x", pinned=1), r"\$\.pinned must be true or false"),
        (UserMessageEvent("m", "x", source="user"), r"\$\.source must be a Source"),
        (UserMessageEvent("m", (TextBlock("a"), TextBlock(5))), r"\$\.content\[1\]\.text must be text"),
        (AssistantMessageEvent(1, 1, content=(ToolCallBlock("c", "t", {"a": 1}),)), r"\$\.content\[0\]\.arguments"),
        (AssistantMessageEvent(1, 1, usage={"input": 1}), r"\$\.usage must be a Usage"),
        (TurnEndEvent(1, {"kind": "completed"}), r"\$\.reason must be a Tagged"),
        (TurnEndEvent(1, Tagged("error", step=float("nan"))), r"\$\.reason\.step"),
        (ToolRewrittenEvent("c", [1]), r"\$\.arguments must be an object"),
        (RequestHeaderEvent(1, 1, tools=(ToolSchema("t", None, {}),)), r"\$\.tools\[0\]\.description must be text"),
        (RequestHeaderEvent(1, 1, params={"a": {1}}), r"\$\.params\.a is a set"),
        (ToolResultEvent(1, 1, "c", meta=[]), r"\$\.meta must be an object"),
    ],
)  # fmt: skip
def test_typed_fields_are_checked_too(session: Session, data: Any, path: str) -> None:
    """S-2: an int for text, a bool for an int, a dict for a class: refused, naming the field."""
    with pytest.raises(NotSerializable, match=path):
        session.append(data)
    assert len(session.events) == 0


def test_what_is_no_event_is_refused(session: Session) -> None:
    """S-2: only registered classes; the error says how."""
    for data in ({"turn": 1}, "text", None, TextBlock("x")):
        with pytest.raises(NotSerializable, match="@session_event"):
            session.append(data)


def test_validate_says_what_append_would_say(session: Session) -> None:
    """S-2: and changes nothing."""
    session.validate(user("a"))
    with pytest.raises(NotSerializable, match="message_id"):
        session.validate(UserMessageEvent(1, "x"))
    assert len(session.events) == 0


@pytest.mark.parametrize("sources", [[5], [-1], [1], [True], ["0"], [0, 0]])
def test_sources_are_earlier_events_each_once(session: Session, sources: list[Any]) -> None:
    """S-1: provenance names what is there."""
    session.append(user("a"))
    with pytest.raises(InvariantViolation, match="sources"):
        session.append(FreeEvent(), sources=sources)
    assert session.append(FreeEvent(), sources=[0]).sources == (0,)


# -- snapshots -------------------------------------------------------------------------------------------


def test_changing_what_was_handed_over_changes_nothing(session: Session) -> None:
    """S-2: free-form values, lists of sources, and whole instances of classes that can be changed."""
    value, sources, items = {"a": [1]}, [0], ["x"]
    session.append(user("a"))
    free = session.append(FreeEvent(value), sources=sources)
    mutable = MutableEvent("before", items)
    stored = session.append(mutable)
    value["a"].append(2)
    value["b"] = 1
    sources.append(1)
    items.append("y")
    mutable.text = "after"
    assert (free.data.value, free.sources) == ({"a": [1]}, (0,))
    assert stored.data == MutableEvent("before", ["x"])
    assert [decode_event(encode_event(event)) for event in session.events] == list(session.events)


def test_snapshots_cannot_be_changed_from_the_log_either(session: Session) -> None:
    """S-2: every way to change a list or an object is refused."""
    stored = session.append(FreeEvent({"a": [1], "b": {}})).data.value
    for change in (
        lambda: stored.update(c=1), lambda: stored.pop("a"), lambda: stored.clear(), lambda: stored.setdefault("z", 1),
        lambda: stored.popitem(), lambda: stored["a"].append(1), lambda: stored["a"].sort(),
        lambda: stored["a"].extend([1]), lambda: stored["a"].insert(0, 1), lambda: stored["a"].reverse(),
        lambda: stored.__setitem__("a", 1), lambda: stored.__delitem__("a"), lambda: stored["a"].__setitem__(0, 1),
        lambda: stored["a"].__iadd__([1]), lambda: stored["a"].__imul__(2), lambda: stored.__ior__({"a": 1}),
        lambda: stored["a"].pop(), lambda: stored["a"].remove(1), lambda: stored["a"].clear(),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="immutable"):
            change()
    assert stored == {"a": [1], "b": {}}


def test_free_form_values_inside_content_are_copied(session: Session) -> None:
    """S-2: blocks of unknown types, tool schemas and reasons carry objects too."""
    raw, schema, details = {"x": [1]}, {"type": "object"}, ["d"]
    block = session.append(UserMessageEvent("m", (UnknownBlock("video", raw),)))
    header = session.append(RequestHeaderEvent(1, 1, tools=(ToolSchema("t", "", schema),)))
    end = session.append(TurnEndEvent(1, Tagged("error", details=details)))
    raw["x"].append(2)
    schema["y"] = 1
    details.append("e")
    assert block.data.content[0].raw == {"x": [1]}
    assert header.data.tools[0].parameters == {"type": "object"}
    assert end.data.reason.details == ["d"]


def test_what_nobody_can_change_is_not_copied(session: Session) -> None:
    """S-2: the common event goes into the log as it is."""
    data = user("a")
    assert session.append(data).data is data


def test_lone_surrogates_become_replacement_characters_everywhere(session: Session) -> None:
    """S-2, log-4: in typed text, free-form values and keys; a pair is the character it means."""
    session.append(AssistantMessageEvent(1, 1, content=(ToolCallBlock("c", "t", "{}"),)))
    result = session.append(
        ToolResultEvent(
            1, 1, "c", (TextBlock("name \udcff, cut \ud83d"),), meta={"p\udc80": ["\ud83d\ude00", "\ud800"]}
        )
    )
    assert result.data.content == (TextBlock("name \ufffd, cut \ufffd"),)
    assert result.data.meta == {"p\ufffd": ["😀", "\ufffd"]}
    encode_event(result).decode("utf-8")
    assert decode_event(encode_event(result)) == result
    assert session.derive_messages()[-1].content[0].content == result.data.content


def test_keys_that_would_become_the_same_are_refused(session: Session) -> None:
    """S-2: nothing is lost silently."""
    with pytest.raises(NotSerializable, match="differ only in broken characters"):
        session.append(FreeEvent(dict.fromkeys(["\ud800", "\ud801"], 1)))


def test_line_and_paragraph_separators_come_back_identical(session: Session) -> None:
    """log-7: only LF separates records, and no record contains one."""
    text = "a\u2028b\u2029c\x85d\x0be\x1cf\rg\nh"
    event = session.append(user(text))
    assert b"\n" not in encode_event(event)
    assert decode_event(encode_event(event)).data.content == (TextBlock(text),)


# -- seeds and views -----------------------------------------------------------------------------------


def seed_of(*data: Any) -> list[SessionEvent]:
    return [SessionEvent(seq, 100 + seq, item) for seq, item in enumerate(data)]


def test_a_seed_with_bad_data_is_refused() -> None:
    """S-2: seeds are checked as appends are."""
    with pytest.raises(NotSerializable, match="test-values/free"):
        Session(SessionHeader(id="s", created_at=1), seed=seed_of(FreeEvent({1})))


def test_a_seed_is_a_copy() -> None:
    """S-2: changing it afterwards changes nothing."""
    value = {"a": 1}
    session = Session(SessionHeader(id="s", created_at=1), seed=seed_of(FreeEvent(value)))
    value["a"] = 2
    assert session.events[0].data.value == {"a": 1}


def test_appends_do_not_slow_down_with_the_log() -> None:
    """S-4: asking for the conversation at each step walks only what is new."""
    session = Session(SessionHeader(id="s", created_at=1))
    views = []
    for number in range(300):
        session.append(user(str(number), f"m{number}"))
        views.append(session.derive_messages())
    assert all(view[0] is views[0][0] for view in views)
    assert [len(view) for view in views] == list(range(1, 301))
    assert all(earlier[number] is views[-1][number] for number, earlier in itertools.islice(enumerate(views), 300))
