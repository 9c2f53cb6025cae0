"""
One event's JSON as one shape, whatever the provider made of it.

The usual case is one typed decode. What does not fit is decoded as plain JSON and put right by hand:
content in a list of parts, numbers as text, a whole message in place of a delta.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["Chunk", "Choice", "Delta", "Function", "NotJson", "ToolCall", "decode_chunk", "reasoning_text"]


class NotJson(ValueError):
    """The data of an event is not JSON, or no object."""


class Function(msgspec.Struct):
    """Name and arguments, or the next piece of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A fragment of a tool call."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    """What is new. Reasoning fields keep whatever form the provider gives them."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    thinking: Any = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct):
    """One alternative; only the first is ever asked for."""

    index: int | None = None
    delta: Delta | None = None
    message: Any = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class Chunk(msgspec.Struct):
    """
    One event.

    Args:
        failure: Set when the object has none of the members of a chunk: an error in a shape of its own.
    """

    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None
    failure: Any = None


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """
    Decode the data of one event.

    Raises:
        NotJson: It is no JSON at all.
    """
    try:
        chunk = _decoder.decode(data)
    except msgspec.DecodeError:  # also a ValidationError: JSON of another shape
        return _tolerant(_plain(data))
    if chunk.choices is None and chunk.usage is None and chunk.error is None:
        return _tolerant(_plain(data))
    if chunk.choices and chunk.choices[0].delta is None:
        return _tolerant(_plain(data))
    return chunk


def reasoning_text(value: Any) -> str:
    """The text in a reasoning field: text, an object with text in it, or a list of either."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(reasoning_text(part) for part in value)
    if isinstance(value, dict):
        for key in ("text", "thinking", "summary", "content"):
            if value.get(key):
                return reasoning_text(value[key])
    return ""


def _plain(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"))  # takes NaN and half surrogate pairs, unlike msgspec
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def _tolerant(value: Any) -> Chunk:
    if value is None:
        return Chunk()
    if isinstance(value, str):
        return Chunk(failure=value)
    if not isinstance(value, dict):
        raise NotJson(f"an object was expected, found {type(value).__name__}")
    choices = value.get("choices")
    chunk = Chunk(usage=value.get("usage"), error=value.get("error"), x_groq=value.get("x_groq"))
    if isinstance(choices, list):
        chunk.choices = [_choice(choice) for choice in choices if isinstance(choice, dict)]
    elif chunk.usage is None and chunk.error is None and _looks_failed(value):
        chunk.failure = value
    return chunk


def _looks_failed(value: dict[str, Any]) -> bool:
    kind = (value.get("object"), value.get("type"))
    return "error" in kind or any(value.get(key) for key in ("message", "detail", "errors", "error_message"))


def _choice(value: dict[str, Any]) -> Choice:
    delta = value.get("delta")
    if not isinstance(delta, dict):
        delta = value.get("message")
    if not isinstance(delta, dict):
        delta = {"content": value.get("text")}  # the older completions shape
    return Choice(
        index=_whole(value.get("index")),
        delta=_delta(delta),
        finish_reason=_text(value.get("finish_reason")),
        usage=value.get("usage"),
        error=value.get("error"),
    )


def _delta(value: dict[str, Any]) -> Delta:
    content, thought = _content(value.get("content"))
    calls = value.get("tool_calls")
    calls = [calls] if isinstance(calls, dict) else calls
    return Delta(
        content=content,
        reasoning_content=value.get("reasoning_content") or thought or None,
        reasoning=value.get("reasoning"),
        reasoning_details=value.get("reasoning_details"),
        thinking=value.get("thinking"),
        refusal=_text(value.get("refusal")),
        tool_calls=[_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else None,
        function_call=_function(value.get("function_call")),
    )


def _content(value: Any) -> tuple[str | None, str]:
    """Content and the reasoning found among its parts."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return _text(value), ""
    text, thought = [], []
    for part in value:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict) and part.get("type") in ("thinking", "reasoning"):
            thought.append(reasoning_text(part))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), "".join(thought)


def _call(value: dict[str, Any]) -> ToolCall:
    function = value.get("function")
    if function is None and "name" in value:
        function = value  # name and arguments beside the id
    return ToolCall(index=_whole(value.get("index")), id=_text(value.get("id")), function=_function(function))


def _function(value: Any) -> Function | None:
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))  # an object instead of its text
    return Function(name=_text(value.get("name")), arguments=arguments)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None
