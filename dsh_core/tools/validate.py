"""
Arguments against the schema of their tool, strictly and all violations at once (T-3, L-12).

Tools made of functions are checked by the type msgspec built for them, which also gives the function's own
values. The schema itself is asked for the list of violations, and for tools that have nothing but a schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsh_core.session._json import FrozenDict
from dsh_core.tools.arguments import CallArguments, InvalidArguments, freeze_arguments, parse_arguments
from dsh_core.tools.function import FunctionBody
from dsh_core.tools.repair import unwrap_json_text

if TYPE_CHECKING:
    from dsh_core.tools.definition import ToolDefinition

__all__ = ["BrokenSchema", "check_arguments", "read_arguments"]

_LISTED: Final = 20
_MESSAGE_LENGTH: Final = 300
_LARGEST_EXACT: Final = 2**53


class BrokenSchema(Exception):
    """The tool's own schema cannot be used; nobody's arguments can satisfy it."""


def read_arguments(definition: ToolDefinition, text: str) -> CallArguments:
    """
    Parse a model's argument text and check it.

    Args:
        definition: The tool.
        text: The raw text.

    Raises:
        InvalidArguments: Broken JSON, or violations of the schema.
        BrokenSchema: The tool's schema is unusable.
    """
    value = parse_arguments(text)
    body = definition.execute
    if type(body) is FunctionBody and type(value) is FrozenDict:
        try:
            return CallArguments.of(value, body.convert(value))
        except Exception:  # noqa: BLE001 - what is wrong with them is said below
            pass
    return check_arguments(definition, value)


def check_arguments(definition: ToolDefinition, value: Any) -> CallArguments:
    """
    Check arguments that are JSON values already.

    Args:
        definition: The tool.
        value: Its arguments.

    Returns:
        The arguments, read-only; repaired if the one repair of T-3 was needed and was enough.

    Raises:
        InvalidArguments: With all violations.
        BrokenSchema: The tool's schema is unusable.
    """
    frozen = value if type(value) is FrozenDict else freeze_arguments(value)
    accepted, problems = _check(definition, frozen)
    if accepted is None:
        repaired = unwrap_json_text(frozen, definition.parameters)
        if repaired is not frozen:
            accepted, problems = _check(definition, freeze_arguments(repaired))
    if accepted is None:
        raise InvalidArguments(problems)
    return accepted


def _check(definition: ToolDefinition, value: Any) -> tuple[CallArguments | None, list[str]]:
    if not isinstance(value, dict):
        return None, [f"the arguments must be a JSON object, not {_json_type(value)}"]
    if isinstance(definition.execute, FunctionBody):
        return _check_by_type(definition, definition.execute, value)
    problems = _violations(definition, value)
    return (None, problems) if problems else (CallArguments.of(freeze_arguments(value)), [])


def _check_by_type(
    definition: ToolDefinition, body: FunctionBody, value: Any
) -> tuple[CallArguments | None, list[str]]:
    try:
        return CallArguments.of(value, body.convert(value)), []
    except Exception as error:  # noqa: BLE001 - attrs validators and converters raise what they like
        problems = _violations(definition, value)
        if problems:
            return None, problems
        complaint = str(error) or type(error).__name__
    # What JSON Schema calls an integer may be written 1.0.
    try:
        return CallArguments.of(value, body.convert(_with_plain_integers(value))), []
    except Exception:  # noqa: BLE001 - as above; the first complaint is about what the model wrote
        return None, [complaint]


def _with_plain_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_plain_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_plain_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_EXACT else value


# -- JSON Schema -----------------------------------------------------------------------------------------


def _violations(definition: ToolDefinition, value: Any) -> list[str]:
    """All that `value` violates, one line each, in the order of their paths."""
    validator = _validator(msgspec.json.encode(definition.parameters))
    try:
        errors = sorted(validator.iter_errors(value), key=lambda error: [str(part) for part in error.absolute_path])
        lines = [line for error in errors for line in _lines(error)]
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except Exception as error:  # an unresolvable $ref, a pattern that is no regular expression
        raise BrokenSchema(f"{type(error).__name__}: {error}") from error
    unique = list(dict.fromkeys(lines))
    more = [f"and {len(unique) - _LISTED} more"] if len(unique) > _LISTED else []
    return unique[:_LISTED] + more


@lru_cache(maxsize=512)
def _validator(encoded: bytes) -> Any:
    from jsonschema import validators
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    schema = msgspec.json.decode(encoded)
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Exception as error:  # jsonschema's own SchemaError and whatever odd schemas make it raise
        raise BrokenSchema(str(error).splitlines()[0]) from error
    # An explicit registry: by default jsonschema would fetch a remote $ref over the network.
    return kind(schema, registry=REGISTRY)


def _lines(error: Any) -> Iterable[str]:
    """One violation as text; a failed alternative is told as what would have fitted."""
    path = error.json_path
    if error.validator == "type":
        wanted = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
        yield f"{path}: expected {' or '.join(wanted)}, got {_json_type(error.instance)}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        yield from _alternatives(error)
    elif error.validator == "required":
        yield f"{path}: {error.message.replace(' is a required property', ' is missing')}"
    elif error.validator == "additionalProperties" and "patternProperties" not in error.schema:
        yield from _unknown_members(error, path)
    elif error.validator == "enum":
        yield _short(f"{path}: {_shown(error.instance)} is not one of {', '.join(map(_shown, error.validator_value))}")
    else:
        yield _short(f"{path}: {error.message}")


def _unknown_members(error: Any, path: str) -> Iterable[str]:
    from difflib import get_close_matches

    known = list(error.schema.get("properties", ()))
    for name in error.instance:
        if name not in known and error.validator_value is False:
            close = get_close_matches(name, known, 1)
            yield _short(f"{path}: unknown member {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _alternatives(error: Any) -> Iterable[str]:
    """Violations of the alternatives that have the right JSON type, or the types that would be right."""
    here = error.absolute_path
    wrong_type = [inner for inner in error.context if inner.validator == "type" and inner.absolute_path == here]
    indexes = {inner.schema_path[0] for inner in wrong_type}
    nearer = [inner for inner in error.context if inner.schema_path[0] not in indexes]
    if nearer:
        for inner in nearer:
            yield from _lines(inner)
        return
    wanted = [inner.validator_value for inner in wrong_type]
    names = [name for value in wanted for name in ([value] if isinstance(value, str) else value)]
    yield f"{error.json_path}: expected {' or '.join(dict.fromkeys(names))}, got {_json_type(error.instance)}"


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    names: Mapping[type, str] = {str: "string", int: "integer", float: "number", dict: "object", list: "array"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), type(value).__name__)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + "…"
