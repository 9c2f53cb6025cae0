"""
Structured output: the schema a final answer must match, and what it is turned into.

Asking for it is a built-in plugin: it puts the schema into the request and gives the model one more try when
an answer does not match.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core._markers import hookimpl
from dsh_core.content import ToolCallBlock, text_of
from dsh_core.decisions import ContinuationDecision, Continue, Stop
from dsh_core.errors import ConfigError, HarnessError
from dsh_core.session.events import AssistantMessageEvent

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.content import GenerateRequest

__all__ = ["OutputMismatch", "StructuredOutput", "output_schema", "parse_output"]


class OutputMismatch(HarnessError):
    """An answer does not match the `output_type`; the message lists what is wrong."""

    default_code = "OUTPUT_MISMATCH"


def output_schema(output_type: Any) -> Mapping[str, Any]:
    """
    The JSON Schema of an `output_type`.

    Args:
        output_type: An attrs class, or a JSON Schema as a mapping.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(output_type, Mapping):
        return output_type
    if isinstance(output_type, type) and attrs.has(output_type):
        from dsh_core.tools.schema import schema_of

        return schema_of(output_type)
    raise ConfigError(f"output_type must be an attrs class or a JSON Schema, not {output_type!r}")


def parse_output(output_type: Any, text: str) -> Any:
    """
    Turn the text of an answer into what `output_type` asks for.

    Args:
        output_type: An attrs class (an instance is returned) or a JSON Schema (the JSON value is returned).
        text: The answer; a fence of three backticks round the JSON is taken off.

    Raises:
        OutputMismatch: It is no JSON, or does not match.
    """
    try:
        value = json.loads(_unfenced(text))
    except ValueError as error:
        raise OutputMismatch(f"the answer is not JSON: {error}") from error
    import jsonschema

    validator = jsonschema.Draft202012Validator(dict(output_schema(output_type)))
    faults = [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(value)]
    if faults:
        raise OutputMismatch("the answer does not match the schema: " + "; ".join(faults))
    if isinstance(output_type, Mapping):
        return value
    import msgspec

    try:
        return msgspec.convert(value, output_type)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise OutputMismatch(f"the answer does not match {output_type.__name__}: {error}") from error


def _unfenced(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") + 1 : -3]
    return stripped


class StructuredOutput:
    """The built-in plugin `structured-output`: one schema in each request, one repair round a turn."""

    name = "structured-output"

    @hookimpl
    def agent_request(self, agent: Agent, request: GenerateRequest) -> GenerateRequest | None:
        """Ask the provider for the schema, unless a plugin has set a format already."""
        if agent.options.output_type is None or request.response_format is not None:
            return None
        return attrs.evolve(request, response_format=output_schema(agent.options.output_type))

    @hookimpl
    def agent_turn_continuation(self, agent: Agent, decision: ContinuationDecision) -> ContinuationDecision | None:
        """Give the model one more try when its final answer does not match."""
        output_type = agent.options.output_type
        if output_type is None or not isinstance(decision, Stop) or decision.code is not None:
            return None
        answers = _texts_of_turn(agent)
        try:
            parse_output(output_type, answers[-1] if answers else "")
        except OutputMismatch as mismatch:
            if len(_mismatches(output_type, answers)) == 1:
                return Continue(
                    f"{mismatch.message}. Answer again with JSON that matches the schema, and nothing else."
                )
            return Stop(mismatch.message, mismatch.code)
        return None


def _texts_of_turn(agent: Agent) -> list[str]:
    """Texts of the turn's answers that called no tool."""
    texts: list[str] = []
    for event in reversed(agent.session.events):
        data = event.data
        if event.type == "turn/start":
            break
        if isinstance(data, AssistantMessageEvent) and not any(
            isinstance(block, ToolCallBlock) for block in data.content
        ):
            texts.append(text_of(data.content))
    return texts[::-1]


def _mismatches(output_type: Any, texts: list[str]) -> list[str]:
    wrong = []
    for text in texts:
        try:
            parse_output(output_type, text)
        except OutputMismatch:
            wrong.append(text)
    return wrong
