"""What fails has the right code, the provider's words, and a way out (M-3)."""
# ruff: noqa: E501 (the wordings are quoted whole)

from __future__ import annotations

import email.utils
import json

import httpx2
import pytest
from dsh_llm_openai import OpenAIAdapter
from dsh_llm_openai.faults import retry_after

from dsh_core.errors import LlmError

pytestmark = pytest.mark.anyio


async def _failure(wire, status, body, *, headers=None, **options) -> LlmError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **(headers or {})}
    with pytest.raises(LlmError) as caught:
        await wire.speak(data, status=status, headers=sent, **options).ask()
    return caught.value


def _error(message, **members):
    return {"error": {"message": message, **members}}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, _error("Anything", code="context_length_exceeded")),
        (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, your request has "
         "at least 5000 input tokens. Please reduce the length of the input messages.", "code": 400}),
        (400, _error("prompt is too long: 212000 tokens > 200000 maximum")),
        (400, _error("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000")),
        (400, _error(json.dumps(_error("x", code="context_length_exceeded")))),
        (400, _error("Provider returned error", metadata={"raw": json.dumps(_error("prompt is too long: 9 > 8"))})),
        (413, b"Request Entity Too Large"),
        (400, _error("Die Anfrage ist zu lang", code="context_length_exceeded")),
        (400, _error("请求过长", type="invalid_request_error", code="context_length_exceeded")),
        (400, _error("the request exceeds the available context size, try increasing it", type="exceed_context_size_error")),
        (400, _error("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length")),
        (400, _error("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
        (400, _error("Your request exceeded model token limit: 8192", type="invalid_request_error")),
        (400, _error("Range of input length should be [1, 129024]", code="invalid_parameter_error")),
        (400, {"error": "This model's maximum prompt length is 131072 but the request contains 200000 tokens.", "code": "x"}),
        (500, _error("prompt too long; exceeded max context length by 12 tokens")),
        (400, _error("The input token count (2000) exceeds the maximum number of tokens allowed (1000).")),
        (422, {"detail": [{"msg": "context window exceeded"}]}),
    ],
)  # fmt: skip
async def test_overflow_in_all_its_spellings(wire, status, body):
    """cmp-5: code field, wordings, nested JSON, status, and other languages with a code."""
    assert (await _failure(wire, status, body)).code == "CONTEXT_OVERFLOW"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, _error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens"), "INVALID_REQUEST"),
        (400, _error("`max_tokens` must be less than 8192"), "INVALID_REQUEST"),
        (400, _error("Invalid schema for function 'context': too long"), "INVALID_REQUEST"),
        (400, _error("string too long: expected at most 40 characters", param="messages[1].tool_call_id"), "INVALID_REQUEST"),
        (429, _error("Too many tokens, please wait before trying again: context requests exceed the limit"), "RATE_LIMIT"),
        (401, _error("The context of this key exceeds your organisation"), "AUTH"),
        (429, _error("Rate limit reached for m on tokens per min (TPM): Limit 10000. Add a payment method at /account/billing",
                     code="rate_limit_exceeded"), "RATE_LIMIT"),
        (429, _error("Quota exceeded for quota metric requests per minute"), "RATE_LIMIT"),
    ],
)  # fmt: skip
async def test_what_only_looks_like_overflow_or_quota(wire, status, body, code):
    """cmp-5, llm-16: the harmless twins."""
    assert (await _failure(wire, status, body)).code == code


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, _error("Incorrect API key provided"), "AUTH"),
        (403, _error("Country, region, or territory not supported", code="unsupported_country_region_territory"), "AUTH"),
        (403, _error("Your input was flagged by moderation"), "CONTENT_FILTER"),
        (400, _error("Output data may contain inappropriate content.", code="data_inspection_failed"), "CONTENT_FILTER"),
        (429, _error("You exceeded your current quota, please check your plan", code="insufficient_quota"), "QUOTA"),
        (429, _error("Your billing limit was reached"), "QUOTA"),
        (429, _error("Your account is suspended", type="exceeded_current_quota_error"), "QUOTA"),
        (402, _error("Insufficient Balance"), "QUOTA"),
        (403, _error("The free quota has been exhausted", code="AllocationQuota.FreeTierOnly"), "QUOTA"),
        (429, _error("slow down"), "RATE_LIMIT"),
        (429, b"", "RATE_LIMIT"),
        (400, _error("bad"), "INVALID_REQUEST"),
        (404, _error("The model `x` does not exist", code="model_not_found"), "INVALID_REQUEST"),
        (422, {"detail": "no"}, "INVALID_REQUEST"),
        (400, _error("Failed to call a function", code="tool_use_failed", failed_generation="<x>"), "MALFORMED_RESPONSE"),
        (408, b"", "TIMEOUT"),
        (409, b"", "SERVER"),
        (500, _error("oops"), "SERVER"),
        (503, b"", "SERVER"),
        (529, _error("Overloaded", type="overloaded_error"), "SERVER"),
    ],
)  # fmt: skip
async def test_status_and_body_give_the_code(wire, status, body, code):
    """llm-16, M-3: with the provider's own words and the status."""
    error = await _failure(wire, status, body)
    assert (error.code, error.status) == (code, status)
    assert error.message.startswith("generic: ")


async def test_a_broken_body_does_not_mask_the_status(wire):
    """M-3: whatever the body is."""
    for body in (b"{", b"\xff\xfe", b"[1, 2]", b"null", b'"text"', b"<html><title>502 Bad Gateway</title>"):
        error = await _failure(wire, 502, body)
        assert (error.code, error.status) == ("SERVER", 502)
    assert "502 Bad Gateway" in error.message


async def test_the_key_never_gets_into_a_message(wire):
    """M-3: providers quote keys."""
    error = await _failure(wire, 401, _error("key s3cret-key-value is wrong"), api_key="s3cret-key-value")
    assert "s3cret" not in str(error)
    assert "check the key" in str(error)


async def test_a_web_page_in_place_of_a_stream_names_the_base_url(wire):
    """M-3: the usual mistake is a base_url that is a page."""
    provider = wire.speak(
        b"<!DOCTYPE html><title>Hello</title>", headers={"content-type": "text/html"}, base_url="http://x.test"
    )
    with pytest.raises(LlmError, match=r"web page.*Hello.*http://x.test.*/v1 may be missing") as caught:
        await provider.ask()
    assert caught.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("body", [b"just words", b'{"unrelated": 1}', b"[1]"])
async def test_an_answer_that_is_no_stream(wire, body):
    """M-3: neither events nor a whole answer."""
    with pytest.raises(LlmError) as caught:
        await wire.speak(body).ask()
    assert caught.value.code == "MALFORMED_RESPONSE"


async def test_an_event_that_is_no_json(wire):
    """M-3: named, with the text."""
    with pytest.raises(LlmError, match=r"no JSON.*oops") as caught:
        await wire.say(wire.delta(content="x"), b"oops").ask()
    assert caught.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([b'{"error": {"message": "Upstream broke", "code": 502}}'], "SERVER", "Upstream broke"),
        ([b'{"error": "model crashed"}'], "SERVER", "model crashed"),
        ([b'{"error": {"message": "slow", "type": "rate_limit_error"}}'], "RATE_LIMIT", "slow"),
        ([b'{"error": {"message": "no", "type": "invalid_request_error"}}'], "INVALID_REQUEST", "no"),
        ([b'{"error": {"message": "maximum context length is 8"}}'], "CONTEXT_OVERFLOW", "maximum"),
        ([b'{"error": {"message": "x", "code": "insufficient_quota"}}'], "QUOTA", "x"),
        ([b'{"object": "error", "message": "boom", "code": 500}'], "SERVER", "boom"),
        ([b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'], "SERVER", "Overloaded"),
        ([b'{"detail": "nope"}'], "SERVER", "nope"),
        ([b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 429, "message": "busy"}}]}'],
         "RATE_LIMIT", "busy"),
    ],
)  # fmt: skip
async def test_an_error_object_inside_the_stream(wire, events, code, words):
    """llm-5: the provider's message, in the right class; after text as well as before."""
    for before in ([], [wire.delta(content="so far")]):
        with pytest.raises(LlmError, match=words) as caught:
            await wire.say(*before, *events).ask()
        assert caught.value.code == code


@pytest.mark.parametrize(
    "tail",
    [
        b"event: error\ndata: it broke\n\n",
        b'event: error\ndata: {"message": "it broke"}\n\n',
        b'event: error\ndata: {"error": {"message": "it broke"}}\n\n',
        b'error: {"code": 500, "message": "it broke", "type": "server_error"}\n\n',
    ],
)
async def test_an_error_event(wire, tail):
    """llm-5: named by the event's own field, with text or an object in it."""
    with pytest.raises(LlmError, match="it broke") as caught:
        await wire.speak(wire.sse(wire.delta(content="x"), done=False) + tail).ask()
    assert caught.value.code == "SERVER"


async def test_an_event_of_another_name_is_no_error(wire):
    """llm-6: heartbeats in an event of their own."""
    body = b"event: ping\ndata: hello\n\n" + wire.sse(wire.delta("stop", content="x"))
    assert (await wire.speak(body).ask()).text == "x"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (httpx2.ReadError("reset"), "TRANSPORT"),
        (httpx2.RemoteProtocolError("peer closed connection without sending complete message body"), "STREAM_CLOSED"),
        (ConnectionResetError("reset"), "TRANSPORT"),
    ],
)
async def test_a_connection_that_breaks_in_the_middle(wire, error, code):
    """llm-7: half an answer is no answer, unless its end was there already."""
    half = wire.sse(wire.delta(content="half"), done=False)
    with pytest.raises(LlmError) as caught:
        await wire.speak(half, error).ask()
    assert caught.value.code == code
    whole = wire.sse(wire.delta("stop", content="whole"), done=False)
    assert (await wire.speak(whole, error).ask()).text == "whole"


async def test_an_unreachable_server_is_named_with_a_hint(wire, unused_port):
    """M-3: TRANSPORT, base_url, and what to check."""
    adapter = OpenAIAdapter(f"http://127.0.0.1:{unused_port}/v1", profile="llama.cpp")
    with pytest.raises(LlmError, match=rf"127\.0\.0\.1:{unused_port}/v1.*check that the server runs") as caught:
        await wire.drain(adapter.stream(wire.asked()))
    assert caught.value.code == "TRANSPORT"
    await adapter.aclose()


@pytest.mark.parametrize("base_url", ["localhost:8080/v1", "ftp://x/v1", "http://"])
async def test_a_base_url_that_is_none(wire, base_url):
    """M-3: TRANSPORT with the base_url, not a traceback of the HTTP library."""
    adapter = OpenAIAdapter(base_url, profile="generic")
    with pytest.raises(LlmError, match="check that the server runs and that base_url is right") as caught:
        await wire.drain(adapter.stream(wire.asked()))
    assert caught.value.code == "TRANSPORT"
    await adapter.aclose()


async def test_a_missing_key_names_the_variable(wire, monkeypatch):
    """M-3: AUTH before anything is sent."""
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(LlmError, match="set the environment variable DEEPSEEK_API_KEY") as caught:
        await wire.drain(OpenAIAdapter(profile="deepseek").stream(wire.asked()))
    assert caught.value.code == "AUTH"


@pytest.mark.parametrize("key", ["sk\nx", "schlüssel", "a\x00b"])
async def test_a_key_that_cannot_be_one(wire, key):
    """M-3: AUTH, without the key, where the HTTP library would quote it."""
    with pytest.raises(LlmError, match="characters that no key has") as caught:
        await wire.say(wire.delta("stop"), api_key=key).ask()
    assert caught.value.code == "AUTH"
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("1.5", 1.5), ("86400", 86400.0), ("-5", None), ("soon", None), ("", None), ("0", 0.0), ("inf", None),
     ("nan", None), ("1e3", None), ("٣", None), (" 3 ", 3.0), ("Thu, 99 Foo 2026 99:99:99 GMT", None)],
)  # fmt: skip
def test_retry_after_in_seconds(value, seconds):
    """llm-15: numbers are obeyed, nonsense is not."""
    assert retry_after({"retry-after": value}) == seconds


def test_retry_after_as_a_date_or_in_milliseconds():
    """llm-15: dates ahead are obeyed, past ones are not."""
    now = 1_800_000_000.0
    assert retry_after({"retry-after": email.utils.formatdate(now + 30, usegmt=True)}, now) == pytest.approx(30, abs=1)
    assert retry_after({"retry-after": email.utils.formatdate(now - 30, usegmt=True)}, now) is None
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}, now) == 0.25
    assert retry_after({}, now) is None


async def test_retry_after_reaches_the_error_and_nothing_is_repeated(wire):
    """M-4, llm-15: the SDK's own retries are off, so that each attempt is visible."""
    provider = wire.speak(b"{}", status=429, headers={"retry-after": "7"})
    with pytest.raises(LlmError) as caught:
        await provider.ask()
    assert (caught.value.retry_after, len(provider.requests)) == (7.0, 1)
