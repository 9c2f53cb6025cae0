"""
What is said: blocks, messages, their sources, and one request to a model.

Everything here is an immutable value. This module imports nothing of dsh but its errors, so that the
session log, which stores these values, depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

__all__ = [
    "Block",
    "Content",
    "Context",
    "ContextLike",
    "ErrorInfo",
    "Finish",
    "GenerateRequest",
    "ImageBlock",
    "Message",
    "ReasoningBlock",
    "Source",
    "Tagged",
    "TextBlock",
    "ToolCallBlock",
    "ToolResultBlock",
    "ToolSchema",
    "UnknownBlock",
    "Usage",
    "as_blocks",
    "as_contexts",
    "text_of",
]


def as_blocks(content: Content) -> tuple[Block, ...]:
    """
    Turn a string, a block or several blocks into a tuple of blocks.

    Args:
        content: A string becomes one text block; the empty string becomes no block.

    Raises:
        TypeError: The value is none of these; the message names the type that was given.
    """
    if type(content) is tuple and _BLOCK_SET.issuperset(map(type, content)):  # nearly always
        return content
    if isinstance(content, str):
        return (TextBlock(content),) if content else ()
    if isinstance(content, _BLOCK_TYPES):
        return (content,)
    if hasattr(content, "__iter__") and not isinstance(content, bytes | Mapping):
        blocks = tuple(content)
        for block in blocks:
            if not isinstance(block, _BLOCK_TYPES):
                raise TypeError(
                    f"content must be a string or content blocks, found {type(block).__name__!r} in it; "
                    "wrap text in TextBlock(...)"
                )
        return blocks
    raise TypeError(f"content must be a string or content blocks, not {type(content).__name__!r}")


if TYPE_CHECKING:

    def to_tuple(value: Iterable[Any]) -> tuple[Any, ...]:
        """`tuple` as a converter whose type the checkers understand."""

else:
    to_tuple = tuple


@attrs.frozen
class TextBlock:
    """Text."""

    text: str


@attrs.frozen
class ReasoningBlock:
    """Reasoning text of a model, kept so that providers that want it back can have it."""

    text: str


@attrs.frozen
class ImageBlock:
    """
    An image.

    Args:
        media_type: Such as `image/png`.
        data: The bytes in base64.
    """

    media_type: str
    data: str


@attrs.frozen
class ToolCallBlock:
    """
    One tool call as the model wrote it.

    Args:
        id: Unique in its session (L-12).
        name: The tool's own name, not the wire name.
        arguments: The model's raw text; parsed only by the tool pipeline.
    """

    id: str
    name: str
    arguments: str


@attrs.frozen
class ToolResultBlock:
    """The answer to one tool call."""

    tool_call_id: str
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    is_error: bool = False


@attrs.frozen
class UnknownBlock:
    """A block type that this version does not know: carried, never dropped."""

    type: str
    raw: Mapping[str, Any]


Block: TypeAlias = TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ToolResultBlock | UnknownBlock
Content: TypeAlias = str | Block | Iterable[Block]

_BLOCK_TYPES = (TextBlock, ReasoningBlock, ImageBlock, ToolCallBlock, ToolResultBlock, UnknownBlock)

_BLOCK_SET = frozenset(_BLOCK_TYPES)


def text_of(content: Iterable[Block]) -> str:
    """The text blocks of `content`, joined without a separator."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


@attrs.frozen
class Source:
    """
    Who speaks.

    Args:
        kind: `user`, `plugin`, or a kind of an embedder's own.
        name: For `plugin`, the plugin's name.
    """

    kind: str
    name: str | None = None

    @classmethod
    def user(cls) -> Source:
        """The person at the other end."""
        return cls("user")

    @classmethod
    def plugin(cls, name: str) -> Source:
        """The plugin called `name`."""
        return cls("plugin", name)


@attrs.frozen
class Message:
    """One message of a conversation, as a model sees it."""

    role: Literal["system", "user", "assistant"] | str
    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None
    id: str | None = None

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return text_of(self.content)


@attrs.frozen
class Context:
    """A note to the model that is not the user's own words; framed by `<context source=…>` (S-4)."""

    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    source: Source | None = None


ContextLike: TypeAlias = str | Context | Sequence[str | Context]


def as_contexts(value: ContextLike | None, source: Source | None = None) -> tuple[Context, ...]:
    """
    Turn what a plugin gave as context into contexts.

    Args:
        value: A string, a `Context`, several of them, or None for nothing.
        source: Put into each context that names no source of its own.
    """
    if value is None:
        return ()
    items: Sequence[str | Context] = [value] if isinstance(value, str | Context) else list(value)
    contexts = []
    for item in items:
        if isinstance(item, str):
            item = Context(item)
        elif not isinstance(item, Context):
            raise TypeError(f"context must be text or Context, not {type(item).__name__!r}")
        contexts.append(attrs.evolve(item, source=source) if item.source is None and source else item)
    return tuple(contexts)


@attrs.frozen
class Usage:
    """
    Tokens of one request; the counts are disjoint (M-2).

    Args:
        input: Uncached prompt tokens.
        output: Tokens written, without reasoning.
        cache_read: Prompt tokens read from the provider's cache.
        cache_write: Prompt tokens written to it.
        reasoning: Tokens spent on reasoning.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    @property
    def total(self) -> int:
        """All five counts together."""
        return self.input + self.output + self.cache_read + self.cache_write + self.reasoning


@attrs.frozen
class Finish:
    """
    Why a model stopped.

    Args:
        kind: `stop`, `tool-calls`, `max-tokens`, `aborted`, `error`, `content-filter`, or a kind this
            version does not know.
        message: The provider's words for `error`.
        code: A code of M-3 for `error`.
    """

    kind: str
    message: str | None = None
    code: str | None = None


@attrs.frozen
class ErrorInfo:
    """Name and code of the error behind a failed tool call."""

    name: str
    code: str


class Tagged(Mapping[str, Any]):
    """
    One member of an open tagged union: an immutable JSON object with a `kind` and whatever belongs to it.

    Fields are read as attributes or as keys; an attribute that is not there is None, so that code written
    for a newer kind can read an older log.

    Args:
        kind: The tag, such as `completed` or `aborted`.
        fields: What the tag carries; None is left out.
    """

    __slots__ = ("_fields",)

    def __init__(self, kind: str, /, **fields: Any) -> None:
        values = {"kind": kind}
        values.update((name, value) for name, value in fields.items() if value is not None)
        object.__setattr__(self, "_fields", values)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._fields.get(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        rest = "".join(f", {name}={value!r}" for name, value in self.items() if name != "kind")
        return f"Tagged({self.kind!r}{rest})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_tagged_from, (dict(self._fields),))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tagged:
        """Build one from a JSON object that has a `kind`."""
        return _tagged_from(value)


def _tagged_from(value: Mapping[str, Any]) -> Tagged:
    fields = dict(value)
    return Tagged(fields.pop("kind"), **fields)


@attrs.frozen
class ToolSchema:
    """
    A tool as a model is told of it.

    Args:
        name: The wire name (T-4).
        description: What the tool is for.
        parameters: JSON Schema of the arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = attrs.field(hash=False)


@attrs.frozen(kw_only=True)
class GenerateRequest:
    """
    One request to a model, whole: an adapter needs nothing else.

    `messages` is the log's projection and is read-only (L-9). Everything else may be changed by an
    `agent_request` hook and is logged in `request/header`.

    Args:
        model: Model name without its provider.
        provider: Name under which the adapter is registered.
        messages: The conversation.
        system: The system prompt, or None.
        tools: The tools on offer, in the order in which they go out.
        temperature: Sampling temperature, or None for the provider's default.
        max_tokens: Upper bound of tokens to write.
        stop: Stop sequences.
        reasoning_effort: Such as `low` or `high`.
        response_format: JSON Schema the answer must match, or None.
        extra: Further members of the provider's request body.
        session_id: For routing only.
        turn: Turn number.
        step: Step number within the turn.
        attempt: 1 for the first try of this step.
    """

    model: str = ""
    provider: str = ""
    messages: Sequence[Message] = attrs.field(default=(), hash=False)
    system: str | None = None
    tools: tuple[ToolSchema, ...] = attrs.field(default=(), converter=to_tuple)
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = attrs.field(default=(), converter=to_tuple)
    reasoning_effort: str | None = None
    response_format: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    session_id: str | None = attrs.field(default=None, eq=False)
    turn: int = 0
    step: int = 0
    attempt: int = 1
