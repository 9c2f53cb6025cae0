"""What goes out: bodies, messages, tools (30-plugins §7)."""

from __future__ import annotations

import gc
import json
import logging

import attrs
import pytest
from dsh_llm_openai import PROFILES, Profile
from dsh_llm_openai.body import BodyWriter
from dsh_llm_openai.wire import MessageWriter, encode
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_core.content import (
    GenerateRequest,
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    UnknownBlock,
)
from dsh_core.errors import LlmError
from dsh_core.tools.names import wire_name

pytestmark = pytest.mark.anyio

_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def _messages(*messages: Message, profile: str | Profile = "generic", system: str | None = None) -> list[dict]:
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    return json.loads(MessageWriter(chosen).write(system, messages))


def _body(profile: str | Profile = "generic", **members) -> dict:
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    request = GenerateRequest(**{"model": "m", "messages": (Message("user", "hi"),), **members})
    return json.loads(BodyWriter(chosen).write(request).body)


def _result(call_id: str, *content, **members) -> Message:
    return Message("user", (ToolResultBlock(call_id, content, **members),))


def _call(call_id: str, name: str = "read", arguments: str = "{}") -> ToolCallBlock:
    return ToolCallBlock(call_id, name, arguments)


def _tools(*names: str) -> tuple[ToolSchema, ...]:
    return tuple(ToolSchema(name, "", {"type": "object"}) for name in names)


def test_the_system_prompt_is_first_and_consecutive_user_messages_stay_apart():
    """§7: nothing is merged."""
    sent = _messages(Message("user", "a"), Message("user", "b"), system="be brief")
    assert sent == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_text_and_images_are_parts_in_their_order():
    """§7: an image is a data URL."""
    blocks = (TextBlock("look"), ImageBlock("image/png", "QUJD"), TextBlock("well?"))
    (sent,) = _messages(Message("user", blocks))
    assert sent["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "text", "text": "well?"},
    ]
    (text_only,) = _messages(Message("user", blocks), profile="deepseek")
    assert text_only["content"] == "look\n[an image was left out: this model takes text only]\nwell?"


def test_calls_and_results():
    """§7: each result is a tool message; empty output is said, never sent empty."""
    sent = _messages(
        Message("assistant", (TextBlock("I look"), _call("a", arguments='{"p": 1}'), _call("b"))),
        _result("a", TextBlock("one"), TextBlock("two")),
        _result("b"),
    )
    assert sent == [
        {"role": "assistant", "content": "I look", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"p": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "b", "content": "(no output)"},
    ]  # fmt: skip


def test_images_of_results_follow_behind_the_whole_batch():
    """§7: results of one batch stand together, then one user message for each that had images."""
    image = ImageBlock("image/png", "QUJD")
    sent = _messages(
        Message("assistant", (_call("a"), _call("b"))),
        _result("a", image),
        _result("b", TextBlock("x")),
        Message("user", "go on"),
    )
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user", "user"]
    assert "next message" in sent[1]["content"]
    assert sent[3]["content"][1]["image_url"]["url"].endswith("QUJD")
    last = _messages(Message("assistant", (_call("a"),)), _result("a", image))
    assert [message["role"] for message in last] == ["assistant", "tool", "user"]


def test_a_message_with_results_and_words_keeps_the_results_next_to_their_call():
    """§7: results first, then images, then words."""
    mixed = Message("user", (TextBlock("also"), ToolResultBlock("a", (ImageBlock("image/png", "QUJD"),))))
    sent = _messages(Message("assistant", (_call("a"),)), mixed)
    assert [message["role"] for message in sent] == ["assistant", "tool", "user", "user"]
    assert sent[3]["content"] == "also"


@pytest.mark.parametrize(("profile", "content"), [
    ("openai", ""), ("deepseek", ""), ("vllm", ""), ("ollama", ""), ("llama.cpp", ""), ("generic", ""),
    ("openrouter", None), (Profile(name="null", empty_content=None), None),
])  # fmt: skip
def test_the_content_of_a_message_with_calls_only(profile, content):
    """llm-14: the profile decides null or empty; the key is always there."""
    (sent,) = _messages(Message("assistant", (_call("a"),)), profile=profile)
    assert "content" in sent
    assert sent["content"] == content


def test_deepseek_gets_reasoning_back_with_calls_and_only_there():
    """llm-8: exactly, on every message that carried calls, empty reasoning included."""
    sent = _messages(
        Message("assistant", (ReasoningBlock("h\n"), ReasoningBlock("m "), _call("a"))),
        _result("a", TextBlock("x")),
        Message("assistant", (_call("b"),)),
        _result("b", TextBlock("x")),
        Message("assistant", (ReasoningBlock("done thinking"), TextBlock("so"))),
        profile="deepseek",
    )
    assert sent[0]["reasoning_content"] == "h\nm "
    assert sent[2]["reasoning_content"] == ""
    assert "reasoning_content" not in sent[4]


def test_other_profiles_get_no_reasoning_or_under_another_name():
    """§7: reasoning field names and replay are the profile's."""
    message = Message("assistant", (ReasoningBlock("hm"), TextBlock("so"), _call("a")))
    assert "reasoning_content" not in _messages(message, profile="openai")[0]
    assert _messages(message, profile="openrouter")[0]["reasoning"] == "hm"
    always = attrs.evolve(PROFILES["generic"], replay_reasoning="always")
    (alone,) = _messages(Message("assistant", (ReasoningBlock("hm"),)), profile=always)
    assert alone == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_an_assistant_message_with_nothing_to_send_is_left_out():
    """§7: reasoning alone, where reasoning does not go back."""
    assert _messages(Message("assistant", (ReasoningBlock("hm"),)), Message("user", "?")) == [
        {"role": "user", "content": "?"}
    ]


def test_unknown_blocks_are_left_out():
    """S-10: what this version does not know it cannot say."""
    assert _messages(Message("user", (UnknownBlock("audio", {}), TextBlock("x")))) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("name", ["a.b", "a/b", "a b", "名前", "n" * 90, "a_b", ""])
def test_names_in_the_history_are_wire_names(name):
    """llm-17, T-4: the same pure function as for the tools of the request."""
    (sent,) = _messages(Message("assistant", (_call("a", name),)))
    assert sent["tool_calls"][0]["function"]["name"] == wire_name(name)
    assert len(wire_name(name)) <= 64


@pytest.mark.parametrize(("raw", "sent"), [
    ("", "{}"), ("  ", "{}"), ('{"a":1}', '{"a":1}'), ('{"path": "/tm', '{"invalid_arguments":"{\\"path\\": \\"/tm"}'),
    ("[1]", '{"invalid_arguments":"[1]"}'), ("NaN", '{"invalid_arguments":"NaN"}'),
])  # fmt: skip
def test_arguments_in_the_history_are_always_an_object(raw, sent):
    """llm-4: servers that parse the history do not choke on what was broken."""
    (message,) = _messages(Message("assistant", (_call("a", arguments=raw),)))
    assert message["tool_calls"][0]["function"]["arguments"] == sent
    assert isinstance(json.loads(sent), dict)


def test_mistral_call_ids_and_roles():
    """§7: ids of nine characters, and no user message directly behind a result."""
    sent = _messages(
        Message("assistant", (_call("call-t1s1i0"), _call("abcdefgh9"))),
        _result("call-t1s1i0", ImageBlock("image/png", "QUJD")),
        _result("abcdefgh9"),
        Message("user", "go on"),
        profile="mistral",
    )
    ids = [call["id"] for call in sent[0]["tool_calls"]]
    assert [len(call_id) for call_id in ids] == [9, 9]
    assert ids == [sent[1]["tool_call_id"], sent[2]["tool_call_id"]]
    assert ids[1] == "abcdefgh9"
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "assistant", "user", "user"]


def test_half_surrogate_pairs_never_go_out():
    """log-4: the body is strictly valid JSON in UTF-8."""
    sent = _messages(Message("user", "a\ud800b"), _result("x", TextBlock("\udfff")), system="\ud83d")
    assert [message["content"] for message in sent] == ["\ufffd", "a\ufffdb", "\ufffd"]
    assert encode({"\ud800": ["\ud83d\ude00"]}) == '{"\ufffd":["\U0001f600"]}'.encode()


def test_a_body_for_openai_and_for_others():
    """§7: names of members, usage, stop and effort are the profile's."""
    members = {"max_tokens": 5, "temperature": 0.0, "stop": ("x",), "reasoning_effort": "low", "tools": _tools("read")}
    body = _body("openai", **members)
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True,
        "stream_options": {"include_usage": True}, "max_completion_tokens": 5, "temperature": 0.0, "stop": ["x"],
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {
            "name": "read", "description": "", "parameters": {"type": "object"},
        }}],
    }  # fmt: skip
    assert _body("deepseek", **members)["thinking"] == {"type": "enabled"}
    assert _body("deepseek", reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert _body("openrouter", **members)["reasoning"] == {"effort": "low"}
    assert _body("alibaba", **members)["enable_thinking"] is True
    assert set(_body("mistral", **members)) == {
        "model",
        "messages",
        "stream",
        "tools",
        "max_tokens",
        "temperature",
        "stop",
    }
    assert set(_body()) == {"model", "messages", "stream", "stream_options"}


def test_extra_members_go_over_all_others_but_not_over_the_request_itself():
    """10-api: `extra` holds further members of the body."""
    assert _body(temperature=0.5, extra={"temperature": 1, "seed": 7})["seed"] == 7
    assert _body(temperature=0.5, extra={"temperature": 1})["temperature"] == 1
    with pytest.raises(LlmError, match="extra may not set 'messages', 'stream'") as caught:
        _body(extra={"stream": False, "messages": []})
    assert caught.value.code == "INVALID_REQUEST"
    with pytest.raises(LlmError, match="no JSON") as bad:
        _body(extra={"x": object()})
    assert bad.value.code == "INVALID_REQUEST"


def test_more_tools_than_the_provider_takes(caplog):
    """T-5: the first ones go out, and one warning lists the others."""
    names = [f"t{index:03}" for index in range(130)]
    writer = BodyWriter(PROFILES["openai"])
    with caplog.at_level(logging.WARNING, "dsh"):
        for _ in range(3):
            prepared = writer.write(GenerateRequest(model="m", tools=_tools(*names)))
    assert prepared.offered == tuple(names[:128])
    assert [record.getMessage() for record in caplog.records] == [
        "openai takes at most 128 tools, 130 were offered; left out: t128, t129"
    ]


def test_structured_output_as_a_schema():
    """§7: strict only where the schema is of the closed form."""
    assert _body("openai", response_format=_SCHEMA)["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA, "strict": True},
    }  # fmt: skip
    loose = _body("openai", response_format={"type": "object", "properties": {"n": {}}})
    assert loose["response_format"]["json_schema"]["strict"] is False


def test_structured_output_as_an_object_with_the_schema_in_the_prompt():
    """§7: a provider that only knows `json_object` is told the schema in words."""
    body = _body("deepseek", response_format=_SCHEMA, system="be brief")
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"][0]["content"].startswith("be brief\n\nAnswer with one JSON object")
    assert '"additionalProperties":false' in body["messages"][0]["content"]


async def test_structured_output_by_a_final_tool_comes_back_as_text(wire):
    """§7: where there is no response format, or none together with tools."""
    event = wire.delta(tool_calls=[wire.call('{"n"', index=0, id="a", name="final_answer_")])
    rest = wire.delta(tool_calls=[wire.call(":1}", index=0)])
    provider = wire.say(event, rest, wire.delta("tool_calls"), profile="llama.cpp")
    heard = await provider.ask(wire.asked("final_answer", response_format=_SCHEMA))
    assert (heard.text, heard.calls, heard.finish) == ('{"n":1}', [], "stop")
    (body,) = provider.requests
    assert [tool["function"]["name"] for tool in body["tools"]] == ["final_answer", "final_answer_"]
    assert body["tools"][1]["function"]["parameters"] == _SCHEMA
    assert "response_format" not in body
    assert "`final_answer_`" in body["messages"][0]["content"]
    assert "response_format" in _body("llama.cpp", response_format=_SCHEMA)


async def test_a_final_answer_beside_other_calls(wire):
    """§7: the other calls stay calls."""
    calls = [wire.call('{"n":1}', index=0, id="a", name="final_answer"), wire.call("{}", index=1, id="b", name="read")]
    provider = wire.say(wire.delta(tool_calls=calls), wire.delta("tool_calls"), profile="groq")
    heard = await provider.ask(wire.asked("read", response_format=_SCHEMA))
    assert (heard.text, heard.calls, heard.finish) == ('{"n":1}', [("b", "read", "{}")], "tool-calls")


def test_a_message_is_encoded_once_and_forgotten_with_it(monkeypatch):
    """§7: fragments live as long as their message."""
    writer = MessageWriter(PROFILES["generic"])
    made = []
    original = MessageWriter._make
    monkeypatch.setattr(MessageWriter, "_make", lambda self, message: made.append(1) or original(self, message))
    messages = [Message("user", f"m{index}") for index in range(20)]
    first = writer.write(None, messages)
    assert writer.write(None, messages) == first
    assert len(made) == 20
    assert writer.write(None, [Message("user", "m0")]) == b'[{"role":"user","content":"m0"}]'
    del messages
    gc.collect()
    assert writer._kept == {}


_text = st.text(max_size=8)
_block = st.one_of(
    st.builds(TextBlock, _text),
    st.builds(ReasoningBlock, _text),
    st.builds(ImageBlock, st.just("image/png"), st.just("QUJD")),
    st.builds(ToolCallBlock, _text, _text, _text),
    st.builds(ToolResultBlock, _text, st.lists(st.builds(TextBlock, _text), max_size=2).map(tuple)),
)
_message = st.builds(Message, st.sampled_from(["user", "assistant", "system"]), st.lists(_block, max_size=4).map(tuple))


@settings(max_examples=200, deadline=None)
@given(st.lists(_message, max_size=6), st.sampled_from(sorted(PROFILES)))
def test_any_conversation_is_strict_json_for_any_profile(messages, profile):
    """log-4: roles are legal, contents are there, results directly follow."""
    for message in _messages(*messages, profile=profile):
        assert message["role"] in ("user", "assistant", "system", "tool")
        assert "content" in message
        assert message["content"] or message["role"] == "assistant"
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert 1 <= len(call["function"]["name"]) <= 64
