"""
One request body, as bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core.content import GenerateRequest, ToolSchema
from dsh_core.errors import LlmError
from dsh_llm_openai.wire import MessageWriter, encode

if TYPE_CHECKING:
    from dsh_llm_openai.profiles import OutputStyle, Profile

__all__ = ["BodyWriter", "Prepared"]

_log: Final = logging.getLogger("dsh")
_OURS: Final = frozenset({"messages", "stream", "model"})
_ANSWER_TOOL: Final = "final_answer"


@attrs.frozen
class Prepared:
    """
    A request, ready to go.

    Args:
        body: The bytes.
        offered: Names of the tools in it.
        answer_tool: The tool whose arguments are the answer, where structured output goes by a tool.
    """

    body: bytes
    offered: tuple[str, ...]
    answer_tool: str | None = None


class BodyWriter:
    """
    Writes bodies for one profile.

    Args:
        profile: How the provider wants them.
        extra_body: Members of every request, over those of the profile.
    """

    def __init__(self, profile: Profile, extra_body: Mapping[str, Any] | None = None) -> None:
        self._profile = profile
        self._extra = {**profile.extra_body, **(extra_body or {})}
        self._messages = MessageWriter(profile)
        self._tools: tuple[tuple[ToolSchema, ...], bytes] = ((), b"")
        self._left_out: frozenset[str] = frozenset()

    def write(self, request: GenerateRequest) -> Prepared:
        """
        The body of one request.

        Raises:
            LlmError: INVALID_REQUEST: `extra` holds a member that is not the caller's, or something that is no JSON.
        """
        tools = self._offered(request.tools)
        members = self._members(request, bool(tools))
        system, answer_tool = request.system, None
        if request.response_format is not None:
            style = self._output_style(bool(tools))
            if style == "tool":
                answer_tool = _unused(_ANSWER_TOOL, tools)
                system = _joined(system, f"Give your final answer by calling the tool `{answer_tool}`.")
            else:
                members["response_format"], note = _response_format(style, request.response_format)
                system = _joined(system, note)
        members.update(self._extras(request))
        parts = [b'{"model":', encode(request.model), b',"messages":', self._messages.write(system, request.messages)]
        parts.append(b',"stream":true')
        if tools or answer_tool:
            parts += [b',"tools":', self._tools_json(tools, answer_tool, request.response_format)]
        body = b"".join(parts) + (b"," + _encoded(members)[1:] if members else b"}")
        names = tuple(tool.name for tool in tools)
        return Prepared(body, names if answer_tool is None else (*names, answer_tool), answer_tool)

    def _members(self, request: GenerateRequest, has_tools: bool) -> dict[str, Any]:
        profile = self._profile
        members: dict[str, Any] = dict(profile.usage_request)
        if request.temperature is not None:
            members["temperature"] = request.temperature
        if request.max_tokens is not None:
            members[profile.max_tokens_key] = request.max_tokens
        if request.stop:
            members["stop"] = list(request.stop)
        if request.reasoning_effort is not None:
            members.update(_effort(profile, request.reasoning_effort))
        if has_tools and profile.parallel_tool_calls is not None:
            members["parallel_tool_calls"] = profile.parallel_tool_calls
        return members

    def _extras(self, request: GenerateRequest) -> dict[str, Any]:
        extra = {**self._extra, **request.extra}
        if wrong := sorted(_OURS & set(extra)):
            names = ", ".join(map(repr, wrong))
            raise LlmError("INVALID_REQUEST", f"extra may not set {names}: the request has its own; remove it")
        return extra

    def _output_style(self, has_tools: bool) -> OutputStyle:
        with_tools = self._profile.output_with_tools
        return with_tools if has_tools and with_tools is not None else self._profile.output

    def _offered(self, tools: tuple[ToolSchema, ...]) -> tuple[ToolSchema, ...]:
        limit = self._profile.max_tools
        if limit is None or len(tools) <= limit:
            return tools
        left_out = frozenset(tool.name for tool in tools[limit:])
        if left_out != self._left_out:
            self._left_out = left_out
            _log.warning(
                "%s takes at most %d tools, %d were offered; left out: %s",
                self._profile.name, limit, len(tools), ", ".join(sorted(left_out)),
            )  # fmt: skip
        return tools[:limit]

    def _tools_json(
        self, tools: tuple[ToolSchema, ...], answer_tool: str | None, schema: Mapping[str, Any] | None
    ) -> bytes:
        if answer_tool is not None:
            answer = ToolSchema(answer_tool, "Gives the final answer, in the form that was asked for.", schema or {})
            return _encoded([_tool(tool) for tool in (*tools, answer)])
        known, encoded = self._tools
        if len(known) != len(tools) or any(a is not b for a, b in zip(known, tools, strict=True)):
            encoded = _encoded([_tool(tool) for tool in tools])
            self._tools = (tools, encoded)
        return encoded


def _encoded(value: Any) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise LlmError("INVALID_REQUEST", f"the request holds something that is no JSON: {error}") from error


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _effort(profile: Profile, effort: str) -> dict[str, Any]:
    on = effort not in ("none", "off", "disabled")
    if profile.effort == "reasoning_effort":
        return {"reasoning_effort": effort}
    if profile.effort == "reasoning":
        return {"reasoning": {"effort": effort} if on else {"enabled": False}}
    if profile.effort == "thinking":
        return {"thinking": {"type": "enabled" if on else "disabled"}}
    return {"enable_thinking": on} if profile.effort == "enable_thinking" else {}


def _response_format(style: OutputStyle, schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if style == "json_object":
        wanted = _encoded(schema).decode()
        return {
            "type": style
        }, f"Answer with one JSON object, and nothing else, that matches this JSON Schema: {wanted}"
    return {"type": style, style: {"name": "answer", "schema": schema, "strict": _is_strict(schema)}}, ""


def _is_strict(schema: Any) -> bool:
    """Whether the schema is of the closed form that providers ask for in strict mode."""
    if isinstance(schema, list | tuple):
        return all(_is_strict(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(properties):
            return False
    return all(_is_strict(part) for part in schema.values())


def _joined(system: str | None, note: str) -> str | None:
    return f"{system}\n\n{note}" if system and note else (system or note or None)


def _unused(name: str, tools: tuple[ToolSchema, ...]) -> str:
    taken = {tool.name for tool in tools}
    while name in taken:
        name += "_"
    return name
