"""
Messages as the provider wants them, as bytes.

What a message becomes depends on the message and the profile alone, so its bytes are made once and kept
as long as the message lives. A request is these bytes joined; nothing is encoded twice.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from dsh_core.content import Block, ImageBlock, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock
from dsh_core.tools.names import wire_name

if TYPE_CHECKING:
    from dsh_llm_openai.profiles import Profile

__all__ = ["MessageWriter", "encode"]

_NO_OUTPUT: Final = "(no output)"
_NO_IMAGES: Final = "[an image was left out: this model takes text only]"
_encoder: Final = msgspec.json.Encoder()


class Fragment(NamedTuple):
    """
    One message on the wire.

    Args:
        parts: Its JSON objects, in order.
        after_tools: A user message that must wait until the last result of the batch.
        first_role: Role of the first part.
        last_role: Role of the last part.
    """

    parts: tuple[bytes, ...]
    after_tools: bytes | None = None
    first_role: str = ""
    last_role: str = ""


def encode(value: Any) -> bytes:
    """Encode to strict JSON in UTF-8; half surrogate pairs become U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


class MessageWriter:
    """
    Writes conversations for one profile.

    Args:
        profile: How the provider wants them.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._call_id = re.compile(profile.call_id) if profile.call_id else None
        self._kept: dict[int, tuple[weakref.ref[Message], Fragment]] = {}

    def write(self, system: str | None, messages: Sequence[Message]) -> bytes:
        """The value of `messages`: the system prompt first, then the conversation."""
        parts: list[bytes] = []
        if system:
            parts.append(encode({"role": "system", "content": system}))
        waiting: list[bytes] = []  # images out of tool results; results of one batch must stand together
        last_role = ""
        kept_of = self._kept.get  # this loop runs over the whole history at every step
        for message in messages:
            kept = kept_of(id(message))
            pieces, after_tools, first_role, role = (
                kept[1] if kept is not None and kept[0]() is message else self._fragment(message)
            )
            if not pieces:
                continue
            if first_role != "tool" and last_role == "tool":
                last_role = self._release(waiting, parts, last_role)
                self._separate(parts, last_role, first_role)
            parts += pieces
            last_role = role
            if after_tools is not None:
                waiting.append(after_tools)
        self._release(waiting, parts, last_role)
        return b"[" + b",".join(parts) + b"]"

    def _release(self, waiting: list[bytes], parts: list[bytes], last_role: str) -> str:
        if not waiting:
            return last_role
        self._separate(parts, last_role, "user")
        parts += waiting
        waiting.clear()
        return "user"

    def _separate(self, parts: list[bytes], last_role: str, role: str) -> None:
        if self._profile.assistant_after_tool and last_role == "tool" and role == "user":
            parts.append(b'{"role":"assistant","content":"OK."}')

    def _fragment(self, message: Message) -> Fragment:
        fragment = self._make(message)
        key = id(message)
        forget = partial(_forget, weakref.ref(self), key)
        self._kept[key] = (weakref.ref(message, forget), fragment)
        return fragment

    def _make(self, message: Message) -> Fragment:
        if message.role == "assistant":
            return self._assistant(message.content)
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        parts = [encode(self._result(block)) for block in results]
        after = self._images_of(results)
        rest = self._spoken(others)
        role = "system" if message.role == "system" else "user"
        if rest:
            spoken = encode({"role": role, "content": rest})
            if after is not None:
                parts.append(after)
                after = None
            parts.append(spoken)
        first, last = ("tool" if results else role), (role if rest else "tool")
        return Fragment(tuple(parts), after, first, last)

    def _assistant(self, content: Sequence[Block]) -> Fragment:
        text = "".join(block.text for block in content if isinstance(block, TextBlock))
        calls = [self._call(block) for block in content if isinstance(block, ToolCallBlock)]
        reasoning = self._reasoning(content, bool(calls))
        if not text and not calls and not reasoning:
            return Fragment(())
        empty = self._profile.empty_content if calls else ""
        message: dict[str, Any] = {"role": "assistant", "content": text or empty}
        if reasoning is not None:
            message[self._profile.reasoning_key] = reasoning
        if calls:
            message["tool_calls"] = calls
        return Fragment((encode(message),), None, "assistant", "assistant")

    def _reasoning(self, content: Sequence[Block], has_calls: bool) -> str | None:
        """The reasoning to send back; empty text is sent back too where the provider wants the member."""
        replay = self._profile.replay_reasoning
        if replay == "never" or (replay == "tool-calls" and not has_calls):
            return None
        texts = [block.text for block in content if isinstance(block, ReasoningBlock)]
        return "".join(texts) if texts or self._profile.reasoning_required else None

    def _call(self, block: ToolCallBlock) -> dict[str, Any]:
        function = {"name": wire_name(block.name), "arguments": _arguments(block.arguments)}
        return {"id": self._id(block.id), "type": "function", "function": function}

    def _result(self, block: ToolResultBlock) -> dict[str, Any]:
        texts = [part.text for part in block.content if isinstance(part, TextBlock)]
        text = "\n".join(texts)
        if any(isinstance(part, ImageBlock) for part in block.content):
            note = "[the image follows in the next message]" if self._profile.images else _NO_IMAGES
            text = f"{text}\n{note}" if text else note
        return {"role": "tool", "tool_call_id": self._id(block.tool_call_id), "content": text or _NO_OUTPUT}

    def _images_of(self, results: Sequence[ToolResultBlock]) -> bytes | None:
        if not self._profile.images:
            return None
        parts: list[dict[str, Any]] = []
        for result in results:
            images = [_image(block) for block in result.content if isinstance(block, ImageBlock)]
            if images:
                note = f"Image in the result of tool call {self._id(result.tool_call_id)}:"
                parts.append({"type": "text", "text": note})
                parts += images
        return encode({"role": "user", "content": parts}) if parts else None

    def _spoken(self, blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
        """Text as one string; with images, a list of parts in the order of the blocks."""
        if not any(isinstance(block, ImageBlock) for block in blocks):
            return "".join(block.text for block in blocks if isinstance(block, TextBlock))
        if not self._profile.images:
            texts = [block.text if isinstance(block, TextBlock) else _NO_IMAGES for block in blocks if _visible(block)]
            return "\n".join(texts)
        return [
            _image(block) if isinstance(block, ImageBlock) else {"type": "text", "text": block.text}
            for block in blocks
            if isinstance(block, ImageBlock) or (isinstance(block, TextBlock) and block.text)
        ]

    def _id(self, call_id: str) -> str:
        """A legal id, a pure function of the id, so that call and result still belong together."""
        if self._call_id is None or self._call_id.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _forget(writer: weakref.ref[MessageWriter], key: int, gone: weakref.ref[Message]) -> None:
    alive = writer()
    if alive is not None and (kept := alive._kept.get(key)) is not None and kept[0] is gone:
        del alive._kept[key]


def _visible(block: Block) -> bool:
    return isinstance(block, TextBlock | ImageBlock)


def _image(block: ImageBlock) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{block.data}"}}


def _arguments(raw: str) -> str:
    """
    Arguments as text of a JSON object.

    Several servers parse the arguments in the history and refuse the whole request if they cannot, so text
    that was broken when the model wrote it goes back inside an object.
    """
    if not raw.strip():
        return "{}"
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeEncodeError):
        value = None
    return raw if isinstance(value, dict) else encode({"invalid_arguments": raw}).decode()
