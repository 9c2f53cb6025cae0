"""
What differs between providers, as data. Nothing outside this module asks for a provider by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import attrs

__all__ = ["EffortStyle", "OutputStyle", "PROFILES", "Profile", "ReasoningReplay", "profile_named"]

ReasoningReplay: TypeAlias = Literal["never", "tool-calls", "always"]
EffortStyle: TypeAlias = Literal["reasoning_effort", "reasoning", "thinking", "enable_thinking", "unsupported"]
OutputStyle: TypeAlias = Literal["json_schema", "json_object", "tool"]

_USAGE: Final = MappingProxyType({"stream_options": {"include_usage": True}})


@attrs.frozen(kw_only=True)
class Profile:
    """
    How one provider speaks the protocol. The defaults suit a careful, unknown server.

    Args:
        name: Name of the profile, used in messages.
        base_url: Where the provider lives; None if that must be configured.
        api_key_env: Environment variable with the key; None if no key is needed.
        base_url_env: Environment variable that overrides `base_url`.
        reasoning_fields: Members of a delta that may hold reasoning; the first that is not empty counts.
        replay_reasoning: Which assistant messages go back with their reasoning.
        reasoning_key: Member in which reasoning goes back.
        reasoning_required: Messages that go back with reasoning need the member even when there was none.
        empty_content: What stands for the content of an assistant message that has only tool calls.
        images: Whether the models take images; otherwise a note takes their place.
        assistant_after_tool: The provider refuses a user message directly behind a tool result.
        call_id: Pattern of legal tool call ids; others are replaced by a hash of them.
        max_tools: How many tools one request may offer.
        parallel_tool_calls: Sent with tools if not None.
        max_tokens_key: Member for the bound on tokens to write.
        usage_request: Members that make the stream carry usage.
        effort: How `reasoning_effort` is asked for.
        output: How structured output is asked for.
        output_with_tools: The same, when the request offers tools.
        finish_optional: `[DONE]` counts as the end although no finish reason came.
        overflow: Further wordings (regular expressions) of "the request is too long".
        extra_body: Members of every request.
    """

    name: str
    base_url: str | None = None
    api_key_env: str | None = None
    base_url_env: str | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
    replay_reasoning: ReasoningReplay = "never"
    reasoning_key: str = "reasoning_content"
    reasoning_required: bool = False
    empty_content: str | None = ""
    images: bool = True
    assistant_after_tool: bool = False
    call_id: str | None = None
    max_tools: int | None = None
    parallel_tool_calls: bool | None = None
    max_tokens_key: str = "max_tokens"
    usage_request: Mapping[str, Any] = attrs.field(default=_USAGE, hash=False)
    effort: EffortStyle = "reasoning_effort"
    output: OutputStyle = "json_schema"
    output_with_tools: OutputStyle | None = None
    finish_optional: bool = False
    overflow: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


_KNOWN: Final = (
    Profile(name="generic"),
    Profile(
        name="openai",
        base_url="https://api.openai.com/v1",
        api_key_env="OPENAI_API_KEY",
        base_url_env="OPENAI_BASE_URL",
        call_id=r"[\x21-\x7e]{1,40}",
        max_tools=128,
        max_tokens_key="max_completion_tokens",
    ),
    Profile(
        name="deepseek",
        base_url="https://api.deepseek.com/v1",
        api_key_env="DEEPSEEK_API_KEY",
        reasoning_fields=("reasoning_content",),
        replay_reasoning="tool-calls",
        reasoning_required=True,
        images=False,
        max_tools=128,
        effort="thinking",
        output="json_object",
    ),
    Profile(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        api_key_env="OPENROUTER_API_KEY",
        reasoning_fields=("reasoning", "reasoning_details", "reasoning_content"),
        replay_reasoning="tool-calls",
        reasoning_key="reasoning",
        empty_content=None,
        effort="reasoning",
    ),
    Profile(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        api_key_env="GROQ_API_KEY",
        reasoning_fields=("reasoning", "reasoning_content"),
        max_tools=128,
        max_tokens_key="max_completion_tokens",
        output="tool",
    ),
    Profile(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        api_key_env="MISTRAL_API_KEY",
        assistant_after_tool=True,
        call_id=r"[A-Za-z0-9]{9}",
        usage_request={},
        effort="unsupported",
        overflow=(r"too large for model with \d+ maximum context",),
    ),
    Profile(
        name="moonshot",
        base_url="https://api.moonshot.ai/v1",
        api_key_env="MOONSHOT_API_KEY",
        reasoning_fields=("reasoning_content",),
        replay_reasoning="tool-calls",
        reasoning_required=True,
        max_tools=128,
        effort="thinking",
        output="json_object",
        overflow=(r"exceeded model token limit",),
    ),
    Profile(
        name="alibaba",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        api_key_env="DASHSCOPE_API_KEY",
        reasoning_fields=("reasoning_content",),
        effort="enable_thinking",
        output="json_object",
        overflow=(r"range of input length should be",),
    ),
    Profile(
        name="xai",
        base_url="https://api.x.ai/v1",
        api_key_env="XAI_API_KEY",
        reasoning_fields=("reasoning_content",),
        max_tools=128,
        overflow=(r"maximum prompt length is \d+",),
    ),
    Profile(
        name="ollama",
        base_url="http://127.0.0.1:11434/v1",
        reasoning_fields=("reasoning", "reasoning_content", "thinking"),
    ),
    Profile(
        name="llama.cpp",
        base_url="http://127.0.0.1:8080/v1",
        reasoning_fields=("reasoning_content",),
        replay_reasoning="tool-calls",
        output_with_tools="tool",
    ),
    Profile(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        reasoning_fields=("reasoning_content", "reasoning"),
    ),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType({profile.name: profile for profile in _KNOWN})
"""The known profiles by name; `generic` is for a server of which nothing is known."""


def profile_named(profile: str | Profile) -> Profile:
    """
    The profile of this name, or the profile itself.

    Raises:
        ValueError: There is none of this name; the known ones are listed.
    """
    if isinstance(profile, Profile):
        return profile
    try:
        return PROFILES[profile]
    except KeyError:
        known = ", ".join(PROFILES)
        raise ValueError(f"unknown profile {profile!r}; choose one of {known}, or pass a Profile") from None
