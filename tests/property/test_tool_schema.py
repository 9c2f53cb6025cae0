"""Schemas, validation and names under random input."""

from __future__ import annotations

import datetime
import enum
import json
import re
from typing import Annotated, Any, Literal

import attrs
import jsonschema
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dsh_core.tools import ToolDefinition, tool, wire_name
from dsh_core.tools.arguments import InvalidArguments
from dsh_core.tools.docstrings import parse_docstring
from dsh_core.tools.normalise import as_result, fit
from dsh_core.tools.validate import check_arguments, read_arguments


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@attrs.frozen
class Inner:
    a: int
    b: str = ""


@attrs.frozen
class Outer:
    inner: Inner
    more: list[Inner] = attrs.Factory(list)


@tool
def everything(
    number: int,
    outer: Outer,
    ratio: float = 0.5,
    size: Size = Size.SMALL,
    mode: Literal["fast", "slow"] = "fast",
    small: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0,
    short: Annotated[str, msgspec.Meta(max_length=3, pattern="^[a-z]*$")] = "",
    names: list[str] | None = None,
    table: dict[str, int | str | None] | None = None,
    flag: bool = False,
    anything: Any = None,
) -> str:
    return str(number)


HINTS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53) + 1, 2**53 - 1),
    str: st.text(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    Size: st.sampled_from([size.value for size in Size]),
    Literal["x", "y"]: st.sampled_from(["x", "y"]),
    Inner: st.fixed_dictionaries({"a": st.integers(-99, 99)}, optional={"b": st.text()}),
    datetime.date: st.dates().map(datetime.date.isoformat),
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
near_misses = st.fixed_dictionaries(
    {},
    optional={
        name: json_values | st.sampled_from([0, 1, 5.0, "", "ab", "[]", '{"inner": {"a": 1}}', {"inner": {"a": 1}}])
        for name in everything.parameters["properties"]
    },
)

foreign = ToolDefinition("foreign", "", everything.parameters, lambda arguments, context: "")


@given(st.text() | near_misses.map(json.dumps) | json_values.map(json.dumps))
def test_reading_arguments_gives_an_object_or_a_complaint(text: str) -> None:
    """L-12: whatever a model writes, nothing is raised but the complaint."""
    for definition in (everything, foreign):
        problems: tuple[str, ...] = ()
        try:
            arguments = read_arguments(definition, text)
        except InvalidArguments as error:
            problems = error.problems
        if problems:
            assert all(problem.strip() for problem in problems)
        else:
            assert isinstance(arguments, dict)
            assert jsonschema.Draft202012Validator(everything.parameters).is_valid(arguments)


@given(near_misses)
def test_a_function_accepts_what_its_schema_accepts(value: Any) -> None:
    """T-3: the fast path and the schema give the same verdict."""
    verdicts = []
    for definition in (everything, foreign):
        try:
            check_arguments(definition, value)
        except InvalidArguments:
            verdicts.append(False)
        else:
            verdicts.append(True)
    assert verdicts[0] == verdicts[1]


@given(st.data())
def test_every_supported_signature_takes_what_its_schema_describes(data: st.DataObject) -> None:
    """T-1: schema, conversion and defaults of random signatures agree."""
    hints = data.draw(st.lists(st.sampled_from([*HINTS]), max_size=5))
    wrappers = {"plain": lambda hint: hint, "list": lambda hint: list[hint], "optional": lambda hint: hint | None}
    annotations: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for number, hint in enumerate(hints):
        kind = data.draw(st.sampled_from([*wrappers]))
        if kind == "optional" and not isinstance(hint, type):
            kind = "plain"
        annotations[f"p{number}"] = wrappers[kind](hint)
        values = {"plain": HINTS[hint], "list": st.lists(HINTS[hint], max_size=3), "optional": st.none() | HINTS[hint]}
        arguments[f"p{number}"] = data.draw(values[kind])
    received: dict[str, Any] = {}
    namespace: dict[str, Any] = {"received": received}
    exec(f"def probe({', '.join(annotations)}): received.update(locals())", namespace)
    namespace["probe"].__annotations__ = annotations
    made = tool(namespace["probe"])
    jsonschema.Draft202012Validator.check_schema(made.parameters)
    assert jsonschema.Draft202012Validator(made.parameters).is_valid(arguments)
    made.execute(read_arguments(made, json.dumps(arguments)), None)
    assert received.keys() == arguments.keys()


@given(st.lists(st.text(min_size=1), min_size=2, unique=True))
def test_wire_names_are_legal_and_distinct(names: list[str]) -> None:
    """T-4: for any text, and different for different names."""
    wires = [wire_name(name) for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire) for wire in wires)
    assert len(set(wires)) == len(names)
    assert wires == [wire_name(name) for name in names]


@given(st.text())
def test_any_text_is_a_docstring(text: str) -> None:
    """T-1: reading a docstring never fails."""
    docs = parse_docstring(text)
    assert isinstance(docs.description, str)


class Hostile:
    """Raises wherever it is touched."""

    def __repr__(self) -> str:
        raise ValueError("no")


returned = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Hostile) | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text() | st.none() | st.booleans(), inner),
    max_leaves=8,
)


@given(returned, st.integers(1, 40))
def test_whatever_a_tool_returns_becomes_content(value: Any, limit: int) -> None:
    """T-3: never empty, never a crash; T-2: never longer than allowed, but for the marker."""
    result = as_result(value, "probe")
    assert result.content
    assert all(block.text for block in result.content)  # type: ignore[union-attr]
    cut = fit(result, ToolDefinition("probe", "", {}, print, max_output=limit))
    whole = "".join(block.text for block in result.content)  # type: ignore[union-attr]
    text = "".join(block.text for block in cut.content)  # type: ignore[union-attr]
    assert text == whole if len(whole) <= limit else len(re.sub(r"\n\[… .* …\]\n", "", text, count=1)) == limit
