"""Streams as providers send them, rebuilt by hand in a few chunks and named after provider and quirk."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from dsh_core.content import Usage
from dsh_core.errors import LlmError

pytestmark = pytest.mark.anyio


async def test_openai_text_with_usage_in_a_last_chunk_without_choices(wire):
    """llm-12, M-2: the answer is kept and usage counted once, disjointly."""
    usage = {
        "prompt_tokens": 283,
        "completion_tokens": 20,
        "total_tokens": 303,
        "prompt_tokens_details": {"cached_tokens": 256},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    heard = await wire.say(
        wire.delta(role="assistant", content=""),
        wire.delta(content="Hel"),
        wire.delta(content="lo"),
        wire.delta("stop"),
        {"choices": [], "usage": usage},
    ).ask()
    assert (heard.text, heard.finish) == ("Hello", "stop")
    assert heard.usage == Usage(input=27, output=8, cache_read=256, reasoning=12)


async def test_azure_first_chunk_has_empty_choices_and_filter_results(wire):
    """llm-12: a chunk without choices says nothing and ends nothing."""
    heard = await wire.say(
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"id": "x", "object": "chat.completion.chunk"},
        wire.delta(content="ok"),
        wire.delta("stop"),
    ).ask()
    assert (heard.text, heard.finish, heard.usage) == ("ok", "stop", None)


async def test_openai_parallel_calls_by_index(wire):
    """llm-9: two calls opened in one delta, pieces alternating without ids."""
    heard = await wire.say(
        wire.delta(
            tool_calls=[wire.call("", index=0, id="a", name="read"), wire.call("", index=1, id="b", name="grep")]
        ),
        wire.delta(tool_calls=[wire.call('{"pa', index=0)]),
        wire.delta(tool_calls=[wire.call('{"q":', index=1)]),
        wire.delta(tool_calls=[wire.call('th":1}', index=0)]),
        wire.delta(tool_calls=[wire.call("2}", index=1)]),
        wire.delta("tool_calls"),
    ).ask(wire.asked("read", "grep"))
    assert heard.calls == [("a", "read", '{"path":1}'), ("b", "grep", '{"q":2}')]
    assert heard.finish == "tool-calls"


@pytest.mark.parametrize("seed", range(40))
async def test_three_calls_in_any_interleaving_come_out_in_index_order(wire, seed):
    """llm-9: whatever order the fragments of three calls arrive in."""
    rng = random.Random(seed)
    arguments = ['{"n":"zero"}', '{"n":"one"}', '{"n":"two"}']
    queues = []
    for index, text in enumerate(arguments):
        cut = rng.randrange(len(text))
        queues.append([
            wire.call("", index=index, id=f"id{index}", name="read"),
            wire.call(text[:cut], index=index),
            wire.call(text[cut:], index=index),
        ])  # fmt: skip
    events = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        events.append(wire.delta(tool_calls=[queue.pop(0)]))
    heard = await wire.say(*events, wire.delta("tool_calls")).ask(wire.asked("read"))
    assert heard.calls == [(f"id{index}", "read", text) for index, text in enumerate(arguments)]


async def test_mistral_calls_without_index(wire):
    """llm-1: no index anywhere, ids on the heads only."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a"', id="aaaaaaaaa", name="read")]),
        wire.delta(tool_calls=[wire.call(":1}")]),
        wire.delta(tool_calls=[wire.call('{"b"', id="bbbbbbbbb", name="read")]),
        wire.delta("tool_calls", tool_calls=[wire.call(":2}")]),
    ).ask(wire.asked("read"))
    assert heard.calls == [("aaaaaaaaa", "read", '{"a":1}'), ("bbbbbbbbb", "read", '{"b":2}')]


async def test_mistral_whole_calls_in_one_delta_without_index(wire):
    """llm-1: two whole calls in one list, told apart by their ids."""
    heard = await wire.say(
        wire.delta("tool_calls", tool_calls=[wire.call("{}", id="a", name="x"), wire.call('{"b":2}', id="b", name="y")])
    ).ask(wire.asked("x", "y"))
    assert heard.calls == [("a", "x", "{}"), ("b", "y", '{"b":2}')]


async def test_calls_with_neither_index_nor_id_are_told_apart(wire):
    """llm-1: whole calls one after the other, also of the same tool, also without arguments."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a":1}', name="read")]),
        wire.delta(tool_calls=[wire.call('{"a":2}', name="read")]),
        wire.delta(tool_calls=[wire.call("", name="list")]),
        wire.delta(tool_calls=[wire.call("", name="read")]),
        wire.delta("tool_calls", tool_calls=[wire.call("", name="list"), wire.call("", name="list")]),
    ).ask(wire.asked("read", "list"))
    assert [(name, arguments) for _, name, arguments in heard.calls] == [
        ("read", '{"a":1}'), ("read", '{"a":2}'), ("list", ""), ("read", ""), ("list", ""), ("list", ""),
    ]  # fmt: skip


async def test_pieces_of_two_calls_without_index_go_by_their_place_in_the_list(wire):
    """llm-1: a list of two nameless fragments continues the two latest calls."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call("", id="a", name="read"), wire.call("", id="b", name="read")]),
        wire.delta(tool_calls=[wire.call('{"a"'), wire.call('{"b"')]),
        wire.delta("tool_calls", tool_calls=[wire.call(":1}"), wire.call(":2}")]),
    ).ask(wire.asked("read"))
    assert heard.calls == [("a", "read", '{"a":1}'), ("b", "read", '{"b":2}')]


async def test_every_call_numbered_zero(wire):
    """llm-1: a new id with a name behind a whole call is a new call, though its number is taken."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a":1}', index=0, id="a", name="read")]),
        wire.delta("tool_calls", tool_calls=[wire.call('{"b":2}', index=0, id="b", name="read")]),
    ).ask(wire.asked("read"))
    assert heard.calls == [("a", "read", '{"a":1}'), ("b", "read", '{"b":2}')]


@pytest.mark.parametrize("later", ["", None, "first", "another"])
async def test_alibaba_later_fragments_empty_repeat_or_change_the_id(wire, later):
    """llm-10: one call, and the first id that is not empty."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a', index=0, id="first", name="read")]),
        wire.delta(tool_calls=[wire.call('":1', index=0, id=later)]),
        wire.delta("tool_calls", tool_calls=[wire.call("}", index=0, id=later)]),
    ).ask(wire.asked("read"))
    assert heard.calls == [("first", "read", '{"a":1}')]


async def test_an_id_that_comes_late_is_kept(wire):
    """llm-10: the end of the block repeats the whole call."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a', index=0, id="", name="read")]),
        wire.delta("tool_calls", tool_calls=[wire.call('":1}', index=0, id="late")]),
    ).ask(wire.asked("read"))
    assert heard.calls == [("late", "read", '{"a":1}')]


async def test_llama_cpp_python_whole_name_in_every_fragment(wire):
    """llm-11a: the name is set, never appended."""
    heard = await wire.say(
        *(
            wire.delta(tool_calls=[wire.call(piece, index=0, id="a", name="get_weather")])
            for piece in ('{"c', 'ity":', '"X"}')
        ),
        wire.delta("tool_calls"),
    ).ask(wire.asked("get_weather"))
    assert heard.calls == [("a", "get_weather", '{"city":"X"}')]


@pytest.mark.parametrize("offered", [("get_weather",), ("get", "get_weather"), ("other",)])
async def test_a_name_in_two_pieces(wire, offered):
    """llm-11b: put together, also when the first piece is a tool of its own or nothing fits."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call(index=0, id="a", name="get")]),
        wire.delta(tool_calls=[wire.call(index=0, name="_weather")]),
        wire.delta("tool_calls", tool_calls=[wire.call("{}", index=0)]),
    ).ask(wire.asked(*offered))
    assert heard.calls == [("a", "get_weather", "{}")]


async def test_a_name_of_two_equal_pieces(wire):
    """llm-11b: the names in the request tell a repeated name from one in pieces."""
    events = [
        wire.delta(tool_calls=[wire.call(index=0, id="a", name="go")]),
        wire.delta("tool_calls", tool_calls=[wire.call("{}", index=0, name="go")]),
    ]
    assert (await wire.say(*events).ask(wire.asked("gogo"))).calls == [("a", "gogo", "{}")]
    assert (await wire.say(*events).ask(wire.asked("go"))).calls == [("a", "go", "{}")]
    assert (await wire.say(*events).ask(wire.asked())).calls == [("a", "go", "{}")]


async def test_a_name_after_the_first_arguments(wire):
    """llm-11c: the arguments are not held back, and the name is right at the end."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"a', index=0, id="a")]),
        wire.delta(tool_calls=[wire.call('":1}', index=0, name="read")]),
        wire.delta("tool_calls"),
    ).ask(wire.asked("read"))
    assert heard.calls == [("a", "read", '{"a":1}')]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([None], ""),
        ([""], ""),
        ([None, '{"a":', "1}"], '{"a":1}'),
        (["{}", '{"a":', "1}"], '{"a":1}'),
        (["{}"], "{}"),
        (["null"], "{}"),
        (["{}", "", None], "{}"),
    ],
)
async def test_arguments_missing_empty_or_behind_a_placeholder(wire, pieces, expected):
    """llm-2: a call without arguments has none, and `{}` before real arguments does not spoil them."""
    events = [
        wire.delta(
            tool_calls=[{**wire.call(index=0, id="a", name="now"), "function": {"name": "now", "arguments": pieces[0]}}]
        )
    ]
    events += [wire.delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces[1:]]
    heard = await wire.say(*events, wire.delta("tool_calls")).ask(wire.asked("now"))
    assert heard.calls == [("a", "now", expected)]


async def test_arguments_as_an_object_become_its_text(wire):
    """llm-2: arguments stay text from here on."""
    event = wire.delta(
        "tool_calls", tool_calls=[{"index": 0, "id": "a", "function": {"name": "now", "arguments": {"é": [1]}}}]
    )
    assert (await wire.say(event).ask(wire.asked("now"))).calls == [("a", "now", '{"é":[1]}')]


async def test_whole_calls_with_finish_stop(wire):
    """llm-3: the calls are there whatever the reason says; the loop decides."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call("{}", index=0, id="a", name="now")]), wire.delta("stop")
    ).ask(wire.asked("now"))
    assert (heard.calls, heard.finish) == ([("a", "now", "{}")], "stop")


@pytest.mark.parametrize(("reason", "kind"), [("tool_calls", "tool-calls"), ("length", "max-tokens"), ("stop", "stop")])
async def test_cut_arguments_stay_cut(wire, reason, kind):
    """llm-4: nothing is repaired; the raw text goes on."""
    heard = await wire.say(
        wire.delta(tool_calls=[wire.call('{"path": "/tm', index=0, id="a", name="rm")]), wire.delta(reason)
    ).ask(wire.asked("rm"))
    assert (heard.calls, heard.finish) == ([("a", "rm", '{"path": "/tm')], kind)


async def test_a_call_with_neither_id_nor_name_is_passed_on_as_it_is(wire):
    """pair-8: the core names it and answers it; the adapter invents nothing."""
    event = wire.delta("tool_calls", tool_calls=[{"index": 0, "id": "", "function": {"arguments": "{}"}}])
    assert (await wire.say(event).ask(wire.asked("now"))).calls == [("", "", "{}")]


async def test_the_older_function_call_shape(wire):
    """M-1: one call without an id."""
    heard = await wire.say(
        wire.delta(function_call={"name": "now", "arguments": '{"a"'}),
        wire.delta(function_call={"arguments": ":1}"}),
        wire.delta("function_call"),
    ).ask(wire.asked("now"))
    assert (heard.calls, heard.finish) == ([("", "now", '{"a":1}')], "tool-calls")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_content", "hm"),
        ("reasoning", "hm"),
        ("reasoning_details", [{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}]),
        ("reasoning", {"text": "hm"}),
        ("thinking", "hm"),
    ],
)
async def test_reasoning_in_any_of_its_members(wire, field, value):
    """Quirk table: DeepSeek, Groq, OpenRouter, Snowflake and Ollama name it differently."""
    heard = await wire.say(
        wire.delta(reasoning_content="", content=""),
        wire.delta(**{field: value}),
        wire.delta(content="so"),
        wire.delta("stop"),
    ).ask()
    assert (heard.reasoning, heard.text) == ("hm", "so")
    assert [type(block).__name__ for block in heard.blocks] == ["ReasoningBlock", "TextBlock"]


async def test_openrouter_reasoning_given_twice_counts_once(wire):
    """Quirk table: `reasoning` beside `reasoning_details`."""
    event = wire.delta(reasoning="hm", reasoning_details=[{"type": "reasoning.text", "text": "hm"}])
    assert (await wire.say(event, wire.delta("stop"), profile="openrouter").ask()).reasoning == "hm"


async def test_mistral_content_as_a_list_of_parts(wire):
    """Quirk table: thinking and text parts in place of text."""
    heard = await wire.say(
        wire.delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
        wire.delta(content=[{"type": "text", "text": "so"}, {"type": "reference", "reference_ids": [1]}]),
        wire.delta(content=" be it"),
        wire.delta("stop"),
        profile="mistral",
    ).ask()
    assert (heard.reasoning, heard.text) == ("hm", "so be it")


async def test_deepseek_usage_on_the_finish_chunk_with_cache_hits(wire):
    """M-2: cached tokens are taken out of the input."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "prompt_cache_hit_tokens": 64,
        "prompt_cache_miss_tokens": 36,
    }
    heard = await wire.say(wire.delta(content="x"), {**wire.delta("stop"), "usage": usage}, profile="deepseek").ask()
    assert heard.usage == Usage(input=36, output=5, cache_read=64)


async def test_groq_usage_under_x_groq_only(wire):
    """Quirk table: none at the top level."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    heard = await wire.say(
        {**wire.delta(role="assistant"), "x_groq": {"id": "r"}},
        wire.delta(content="x"),
        {**wire.delta("stop"), "x_groq": {"id": "r", "usage": usage}},
        profile="groq",
    ).ask()
    assert heard.usage == Usage(input=7, output=3)


async def test_moonshot_usage_inside_the_choice(wire):
    """Quirk table: usage beside the finish reason, inside the choice."""
    event = wire.delta("stop", content="x")
    event["choices"][0]["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 2}
    assert (await wire.say(event, profile="moonshot").ask()).usage == Usage(input=5, output=3, cache_read=2)


async def test_xai_counts_reasoning_beside_the_output(wire):
    """M-2: the total tells whether reasoning is in the output."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 34,
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    heard = await wire.say(wire.delta("stop", content="x"), {"choices": [], "usage": usage}, profile="xai").ask()
    assert heard.usage == Usage(input=10, output=4, reasoning=20)


async def test_vllm_usage_in_every_chunk_counts_once(wire):
    """llm-12: the last usage counts."""
    heard = await wire.say(
        {**wire.delta(content="x"), "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
        {**wire.delta("stop"), "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    ).ask()
    assert heard.usage == Usage(input=7, output=2)


async def test_snowflake_without_any_finish_reason(wire):
    """L-5: STREAM_CLOSED, unless the profile says that the end mark is enough."""
    with pytest.raises(LlmError) as caught:
        await wire.say(wire.delta(content="x")).ask()
    assert caught.value.code == "STREAM_CLOSED"
    from dsh_llm_openai import Profile

    heard = await wire.say(wire.delta(content="x"), profile=Profile(name="snowflake", finish_optional=True)).ask()
    assert (heard.text, heard.finish) == ("x", "stop")
    with pytest.raises(LlmError) as cut:
        await wire.speak(
            wire.sse(wire.delta(content="x"), done=False), profile=Profile(name="s", finish_optional=True)
        ).ask()
    assert cut.value.code == "STREAM_CLOSED"


@pytest.mark.parametrize("body", [b"", b": hello\n\n", b"data: [DONE]\n\n", b"data:\n\n", b"\n\n"])
async def test_a_stream_with_nothing_in_it_is_an_empty_response(wire, body):
    """L-5: nothing at all is not a success."""
    with pytest.raises(LlmError) as caught:
        await wire.speak(body).ask()
    assert caught.value.code == "EMPTY_RESPONSE"


async def test_llama_cpp_python_role_chunk_and_then_nothing(wire):
    """L-5: an overflow there ends in an empty stream without a finish reason."""
    with pytest.raises(LlmError) as caught:
        await wire.say(wire.delta(role="assistant")).ask()
    assert caught.value.code == "EMPTY_RESPONSE"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("length", "max-tokens"), ("model_length", "max-tokens"), ("content_filter", "content-filter"), ("eos", "stop"),
     ("function_call", "tool-calls"), ("insufficient_system_resource", "error"), ("abort", "aborted"), ("odd", "odd")],
)  # fmt: skip
async def test_finish_reasons(wire, reason, kind):
    """M-1: known reasons have our names, unknown ones stay."""
    assert (await wire.say(wire.delta(content="x"), wire.delta(reason)).ask()).finish == kind


async def test_an_empty_finish_reason_is_none(wire):
    """Quirk: some servers send an empty reason on every chunk."""
    heard = await wire.say(wire.delta("", content="a"), wire.delta("", content="b"), wire.delta("stop")).ask()
    assert (heard.text, heard.finish) == ("ab", "stop")


async def test_foreign_members_are_ignored(wire):
    """Quirk table: Hugging Face, Crusoe, OpenRouter and Groq add members of their own."""
    event = wire.delta(content="x", token_id=5, annotations=[{"a": 1}])
    event["choices"][0]["native_finish_reason"] = None
    heard = await wire.say(
        {**event, "provider": "P", "sla_metrics": {}, "prompt_token_ids": [1]}, wire.delta("stop")
    ).ask()
    assert heard.text == "x"


async def test_a_refusal_is_shown(wire):
    """M-1: what the model says in refusing is text."""
    assert (await wire.say(wire.delta(refusal="I will not"), wire.delta("stop")).ask()).text == "I will not"


async def test_a_server_that_ignores_stream(wire):
    """M-1: one JSON object with a whole message, under whatever content type."""
    message = {"role": "assistant", "content": "hi", "tool_calls": [wire.call("{}", id="a", name="now")]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}}
    provider = wire.speak(json.dumps(body, indent=1).encode(), headers={"content-type": "application/json"})
    heard = await provider.ask(wire.asked("now"))
    assert (heard.text, heard.calls, heard.usage) == ("hi", [("a", "now", "{}")], Usage(input=1))


async def test_events_under_a_wrong_content_type(wire):
    """M-1: the bytes count, not the label."""
    provider = wire.speak(wire.sse(wire.delta("stop", content="x")), headers={"content-type": "application/json"})
    assert (await provider.ask()).text == "x"


async def test_text_after_the_end_mark_is_ignored(wire):
    """M-1: nothing comes after finish."""
    body = wire.sse(wire.delta("stop", content="x")) + wire.sse(wire.delta(content="y")) + b"garbage"
    assert (await wire.speak(body).ask()).text == "x"


async def test_a_second_choice_is_not_mixed_in(wire):
    """M-1: one answer was asked for."""
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": None}]}
    assert (await wire.say(wire.delta(content="x"), other, wire.delta("stop")).ask()).text == "x"


async def test_a_surrogate_pair_cut_between_two_deltas_is_joined(wire):
    """log-4: half a character never leaves the adapter."""
    events = [
        b'{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ude00b"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"c\\ud83d"},"finish_reason":"stop"}]}',
    ]
    heard = await wire.say(*events).ask()
    assert heard.text == "a\U0001f600bc\ufffd"


async def test_text_and_reasoning_may_alternate(wire):
    """M-1: each change opens a block of its own; the order of speech is kept."""
    heard = await wire.say(
        wire.delta(reasoning="r1"),
        wire.delta(content="t1"),
        wire.delta(reasoning="r2"),
        wire.delta("stop", content="t2"),
    ).ask()
    assert [block.text for block in heard.blocks] == ["r1", "t1", "r2", "t2"]


async def test_every_permutation_of_member_types_is_survived(wire):
    """M-1: numbers, booleans, lists and objects where text belongs never raise anything but LlmError."""
    odd = [None, 1, True, 1.5, "x", [], {}, [1], {"a": 1}]
    for content, calls, reason in itertools.product(odd, odd, odd):
        event = {"choices": [{"index": 0, "delta": {"content": content, "tool_calls": calls}, "finish_reason": reason}]}
        try:
            await wire.say(event, wire.delta("stop", content="end")).ask()
        except LlmError as error:
            pytest.fail(f"{event}: {error}")


async def test_a_compressed_stream(wire):
    """M-1: a proxy may compress the events."""
    import gzip

    body = gzip.compress(wire.sse(wire.delta("stop", content="x")))
    provider = wire.speak(body[:20], body[20:], headers={"content-encoding": "gzip"})
    assert (await provider.ask()).text == "x"
