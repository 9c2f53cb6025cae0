"""Arguments: read strictly, checked against the schema, all violations at once."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import attrs
import msgspec
import pytest

from dsh_core.tools import ToolDefinition, tool
from dsh_core.tools.arguments import InvalidArguments
from dsh_core.tools.validate import BrokenSchema, check_arguments, read_arguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Point:
    x: int
    y: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))


@tool
def draw(
    points: list[Point],
    colour: Colour = Colour.RED,
    width: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1,
    label: str | None = None,
    extra: dict[str, Any] | None = None,
) -> str:
    return f"{points} {colour} {width} {label} {extra}"


def foreign(properties: dict[str, Any], **more: Any) -> ToolDefinition:
    return ToolDefinition("foreign", "", {"type": "object", "properties": properties, **more}, lambda arguments, _: "")


def problems(definition: ToolDefinition, text: str) -> list[str]:
    with pytest.raises(InvalidArguments) as caught:
        read_arguments(definition, text)
    return list(caught.value.problems)


# -- JSON ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_arguments_mean_an_empty_object(text: str) -> None:
    """L-12: no text is `{}`."""
    assert read_arguments(foreign({}), text) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a": 1', "line 1, column 8"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6"),
        ('{"a": "cut', "cut off"),
        ('{"a": 1} trailing', "character 9"),
        ("{'a': 1}", "character 1"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' appears more than once"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "unreadable"),
        ('{"a": 9007199254740993}', "a"),
    ],
)
def test_broken_json_is_answered_with_what_and_where(text: str, complaint: str) -> None:
    """L-12, T-3: broken arguments never run; nothing is guessed."""
    [problem] = problems(foreign({}), text)
    assert complaint in problem


@pytest.mark.parametrize(
    ("text", "found"), [("null", "null"), ("[]", "array"), ("3", "integer"), ('"x"', "string"), ("true", "boolean")]
)
def test_arguments_are_an_object(text: str, found: str) -> None:
    """L-12: what else is JSON is told what it is."""
    assert problems(foreign({}), text) == [f"the arguments must be a JSON object, not {found}"]
    assert problems(draw, text) == [f"the arguments must be a JSON object, not {found}"]


# -- the schema ------------------------------------------------------------------------------------------


def test_all_violations_are_listed_with_their_paths() -> None:
    """L-12: one answer tells a model everything that is wrong."""
    text = '{"points": [{"x": "1"}, 5, {}], "colour": "green", "widht": 3, "width": 12, "label": 4}'
    assert problems(draw, text) == [
        "$: unknown member 'widht'; did you mean 'width'?",
        '$.colour: "green" is not one of "blue", "red"',
        "$.label: expected string or null, got integer",
        "$.points[0].x: expected integer, got string",
        "$.points[1]: expected object, got integer",
        "$.points[2]: 'x' is missing",
        "$.width: 12 is greater than the maximum of 9",
    ]


def test_missing_arguments_are_listed() -> None:
    """L-12: every missing argument."""

    @tool
    def copy(source: str, target: str) -> None: ...

    assert problems(copy, "") == ["$: 'source' is missing", "$: 'target' is missing"]


@pytest.mark.parametrize("text", ['{"n": "5"}', '{"n": true}', '{"n": 1.5}', '{"n": null}', '{"n": [5]}'])
def test_nothing_is_coerced(text: str) -> None:
    """T-3: validation is strict, for functions and for foreign schemas alike."""

    @tool
    def probe(n: int) -> None: ...

    assert problems(probe, text)[0].startswith("$.n: expected integer")
    assert problems(foreign({"n": {"type": "integer"}}), text)[0].startswith("$.n: expected integer")


def test_an_integer_may_be_written_with_a_point() -> None:
    """T-3: for JSON Schema 5.0 is an integer; the function receives an int."""
    seen: list[object] = []

    @tool
    def probe(n: int) -> None:
        seen.append(n)

    probe.execute(read_arguments(probe, '{"n": 5.0}'), None)
    assert (seen, type(seen[0])) == ([5], int)


def test_a_validator_of_an_attrs_class_speaks_for_itself() -> None:
    """T-3: what no schema can say is still checked before the body."""
    assert "must be >= 0" in problems(draw, '{"points": [{"x": 1, "y": -1}]}')[0]


def test_foreign_schemas_are_checked_in_full() -> None:
    """T-3: references, combinations and patterns of JSON Schema."""
    definition = foreign(
        {"a": {"$ref": "#/$defs/name"}, "b": {"oneOf": [{"type": "integer"}, {"type": "array", "minItems": 2}]}},
        required=["a"],
        **{"$defs": {"name": {"type": "string", "pattern": "^[a-z]+$"}}},
    )
    assert read_arguments(definition, '{"a": "x", "b": [1, 2]}') == {"a": "x", "b": [1, 2]}
    assert problems(definition, '{"a": "X", "b": [1]}') == [
        "$.a: 'X' does not match '^[a-z]+$'",
        "$.b: [1] is too short",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"a": {"$ref": "http://127.0.0.1:9/schema.json"}},
        {"a": {"$ref": "#/$defs/missing"}},
        {"a": {"type": "text"}},
        {"a": {"pattern": "("}},
    ],
)
def test_a_schema_that_cannot_be_used_is_its_own_fault(schema: dict[str, Any]) -> None:
    """T-3: the model is not blamed, nothing is fetched, nothing runs."""
    with pytest.raises(BrokenSchema):
        read_arguments(foreign(schema), '{"a": "x"}')


def test_many_and_long_violations_stay_readable() -> None:
    """L-12: an answer is bounded."""
    definition = foreign({"a": {"type": "array", "items": {"type": "string"}}, "b": {"maxLength": 3}})
    listed = problems(definition, '{"a": [' + ",".join("1" * 50) + '], "b": "' + "x" * 10_000 + '"}')
    assert len(listed) == 21
    assert listed[-1] == "and 31 more"
    assert max(map(len, problems(definition, '{"b": "' + "x" * 10_000 + '"}'))) < 400


# -- the one repair --------------------------------------------------------------------------------------


def test_json_text_is_unwrapped_where_an_object_or_array_is_wanted() -> None:
    """T-3: the one documented repair, at any depth."""
    text = r'{"points": "[{\"x\": 1}]", "extra": "{\"k\": \"[1]\"}"}'
    assert read_arguments(draw, text) == {"points": [{"x": 1}], "extra": {"k": "[1]"}}
    assert read_arguments(draw, r'{"points": "[\"{\\\"x\\\": 1}\"]"}') == {"points": [{"x": 1}]}
    assert read_arguments(draw, r'"{\"points\": []}"') == {"points": []}


def test_text_is_never_unwrapped_where_text_is_allowed() -> None:
    """T-3: a string that looks like JSON stays a string."""

    @tool
    def write(content: str, anything: Any = None, either: str | list[str] = "") -> None: ...

    arguments = {"content": "[1]", "anything": "{}", "either": "[]"}
    assert read_arguments(write, msgspec.json.encode(arguments).decode()) == arguments


def test_only_objects_and_arrays_are_unwrapped() -> None:
    """T-3: numbers in text are not numbers, and broken JSON text is not mended."""
    assert problems(draw, '{"points": "[1"}') == ["$.points: expected array, got string"]
    assert problems(draw, '{"points": "{}"}') == ["$.points: expected array, got string"]
    assert problems(draw, '{"points": [], "width": "3"}') == ["$.width: expected integer, got string"]


def test_what_is_unwrapped_is_checked_like_everything_else() -> None:
    """T-3: the repair opens no hole."""
    assert problems(draw, r'{"points": "[{\"x\": \"1\"}]"}') == ["$.points[0].x: expected integer, got string"]


def test_foreign_schemas_are_repaired_through_references_and_alternatives() -> None:
    """T-3: `$ref`, `anyOf` and `additionalProperties` lead to what is wanted."""
    definition = foreign(
        {"a": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
        additionalProperties={"type": "object"},
        **{"$defs": {"list": {"type": "array"}}},
    )
    assert read_arguments(definition, '{"a": "[1]", "b": "{}"}') == {"a": [1], "b": {}}


# -- read-only -------------------------------------------------------------------------------------------


def test_checked_arguments_are_read_only_all_the_way_down() -> None:
    """L-13: what a gate judged is what runs."""
    arguments = read_arguments(foreign({}), '{"a": {"b": [1]}}')
    for change in (
        lambda: arguments.__setitem__("a", 1),
        lambda: arguments["a"].update(b=2),
        lambda: arguments["a"]["b"].append(2),
    ):
        with pytest.raises(TypeError):
            change()
    assert arguments == {"a": {"b": [1]}}


def test_arguments_that_are_json_already_are_checked_the_same() -> None:
    """L-13: a gate's rewriting goes through the same validation."""
    assert check_arguments(draw, {"points": [{"x": 1}]}) == {"points": [{"x": 1}]}
    with pytest.raises(InvalidArguments):
        check_arguments(draw, {"points": 1})
    with pytest.raises(InvalidArguments):
        check_arguments(draw, {"points": {1, 2}})
