"""`@tool`: what becomes of a function's signature and docstring."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

import attrs
import jsonschema
import msgspec
import pytest

from dsh_core.tools import ToolContext, ToolDefinition, tool
from dsh_core.tools.docstrings import parse_docstring

if TYPE_CHECKING:
    from dsh_core.tools import ToolContext as HiddenContext

pytestmark = pytest.mark.anyio


class Unit(enum.Enum):
    """Unit of temperature."""

    CELSIUS = "c"
    FAHRENHEIT = "f"


@attrs.frozen
class Place:
    """
    A place on earth.

    Args:
        name: What people call it.
        height: Metres above the sea.
    """

    name: str
    height: float = attrs.field(default=0.0, validator=attrs.validators.ge(-500))


@dataclass
class Box:
    width: int


class Options(TypedDict, total=False):
    loud: bool


def call(definition: ToolDefinition, **arguments: Any) -> Any:
    """Run a tool's body with JSON arguments, as the pipeline does."""
    return definition.execute(arguments, "the context")


def properties(definition: ToolDefinition) -> Any:
    return definition.parameters["properties"]


# -- schema ----------------------------------------------------------------------------------------------


def test_a_function_becomes_an_object_schema_without_a_reference_at_its_root() -> None:
    """T-1: the schema is a plain object; unknown arguments violate it."""

    @tool
    def weather(city: str, days: int = 3) -> str:
        """Forecast of the weather."""
        return f"{city} {days}"

    assert isinstance(weather, ToolDefinition)
    assert (weather.name, weather.description) == ("weather", "Forecast of the weather.")
    assert weather.parameters == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_has_an_empty_object_schema() -> None:
    """T-1: no parameters are a schema too."""

    @tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert call(ping) == "pong"


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Literal[1, 2], {"enum": [1, 2], "type": "integer"}),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[str, msgspec.Meta(pattern="^a")], {"type": "string", "pattern": "^a"}),
        (Annotated[str, "Name of the city"], {"type": "string", "description": "Name of the city"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (datetime.date, {"type": "string", "format": "date"}),
        (Any, {}),
    ],
)
def test_hints_become_their_schema(hint: Any, schema: dict[str, Any]) -> None:
    """T-1: plain types, containers, Literal, constraints, optional types."""

    def probe(value: Any) -> None: ...

    probe.__annotations__["value"] = hint
    assert properties(tool(probe))["value"] == schema


def test_classes_become_definitions_with_their_own_descriptions() -> None:
    """T-1: attrs classes, dataclasses, typed dictionaries and enums may be nested."""

    @tool
    def visit(
        place: Place,
        others: list[Place] | None = None,
        unit: Unit = Unit.CELSIUS,
        box: Box | None = None,
        options: Options | None = None,
    ) -> str:
        return ""

    definitions = visit.parameters["$defs"]
    assert definitions["Place"] == {
        "type": "object",
        "description": "A place on earth.",
        "properties": {
            "name": {"type": "string", "description": "What people call it."},
            "height": {"type": "number", "default": 0.0, "description": "Metres above the sea."},
        },
        "required": ["name"],
    }
    assert definitions["Unit"] == {"enum": ["c", "f"], "type": "string", "description": "Unit of temperature."}
    assert properties(visit)["unit"] == {"$ref": "#/$defs/Unit", "default": "c"}
    assert properties(visit)["place"] == {"$ref": "#/$defs/Place"}
    jsonschema.Draft202012Validator.check_schema(visit.parameters)


def test_a_class_of_the_functions_own_name_is_told_apart() -> None:
    """T-1: the arguments' type never shadows a class."""

    @attrs.frozen
    class arguments:
        x: int

    @tool
    def probe(value: arguments) -> int:
        return value.x

    assert call(probe, value={"x": 4}) == 4


def test_defaults_without_a_json_form_are_left_out_of_the_schema_and_kept_in_the_call() -> None:
    """T-1: the function gets its own default object."""
    marker: Any = object()

    @tool
    def probe(value: Any = marker, text: str = cast("str", None), number: float = float("nan")) -> Any:
        return value

    assert all("default" not in schema for schema in properties(probe).values())
    assert call(probe) is marker


# -- values ----------------------------------------------------------------------------------------------


def test_the_function_receives_its_own_types() -> None:
    """T-1: JSON arguments arrive as what the hints say."""
    seen: list[object] = []

    @tool
    def visit(place: Place, unit: Unit, when: datetime.date, by_id: dict[int, str], tags: set[str]) -> None:
        seen.extend([place, unit, when, by_id, tags])

    call(
        visit,
        place={"name": "Ulm", "height": 478},
        unit="f",
        when="2024-02-29",
        by_id={"7": "seven"},
        tags=["a"],
    )
    assert seen == [Place("Ulm", 478.0), Unit.FAHRENHEIT, datetime.date(2024, 2, 29), {7: "seven"}, {"a"}]


def test_a_tool_can_be_called_like_its_function() -> None:
    """T-1: a decorated function stays usable, for tests and other code."""

    @tool
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8


async def test_a_coroutine_function_gives_a_coroutine() -> None:
    """T-1: coroutine functions are awaited."""

    @tool
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert await call(later, number=3) == 3


def test_methods_partials_and_callable_objects_become_tools() -> None:
    """T-1: whatever can be called with names."""

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, amount: int) -> int:
            """Add to the counter."""
            self.count += amount
            return self.count

        async def __call__(self, text: str) -> str:
            return text

    def scale(factor: int, value: int) -> int:
        return factor * value

    counter = Counter()
    assert call(tool(counter.add), amount=2) == 2
    assert tool(counter.add).description == "Add to the counter."
    doubled = tool(name="double")(functools.partial(scale, 2))
    assert call(doubled, value=4) == 8
    assert tool(counter).execute.is_coroutine  # type: ignore[attr-defined]


# -- the context -----------------------------------------------------------------------------------------


def test_the_context_is_injected_and_not_in_the_schema() -> None:
    """T-1: a parameter annotated `ToolContext` belongs to dsh, wherever it stands."""

    @tool
    def first(context: ToolContext, text: str) -> Any:
        return context, text

    @tool
    def optional(text: str, context: ToolContext | None = None) -> Any:
        return context, text

    assert list(properties(first)) == list(properties(optional)) == ["text"]
    assert call(first, text="a") == call(optional, text="a") == ("the context", "a")


def test_a_context_that_is_imported_for_type_checkers_only_is_recognised() -> None:
    """T-1: under `from __future__ import annotations` the name alone says what is meant."""

    def probe(text: str, context: HiddenContext) -> Any:
        return context

    # What a module does that imports ToolContext only under TYPE_CHECKING.
    probe.__annotations__["context"] = "ToolContext"
    source = {name: value for name, value in globals().items() if name != "ToolContext"}
    probe = type(probe)(probe.__code__, source, "probe", None, probe.__closure__)
    probe.__annotations__ = {"text": "str", "context": "dsh.ToolContext"}
    assert list(properties(tool(probe))) == ["text"]


def test_hints_that_name_local_classes_are_resolved() -> None:
    """T-1: classes defined in the function that makes the tool, also behind a factory's closure."""

    @attrs.frozen
    class Local:
        x: int

    @tool
    def direct(value: Local) -> int:
        return value.x

    @tool(read_only=True)
    def with_facts(values: list[Local]) -> int:
        return len(values)

    assert call(direct, value={"x": 1}) == 1
    assert call(with_facts, values=[{"x": 1}]) == 1


# -- descriptions ----------------------------------------------------------------------------------------

GOOGLE = """Look up the weather.

    It comes from a service
    that may be slow.

    Args:
        city (str): Name of the city,
            in any language.
        unit: Unit, such as `c`: lower case.

    Returns:
        str: The weather.

    Raises:
        ToolError: The service is down.
    """

NUMPY = """Look up the weather.

    It comes from a service that may be slow.

    Parameters
    ----------
    city : str
        Name of the city, in
        any language.
    unit : {'c', 'f'}, optional
        Unit, such as `c`: lower case.

    Returns
    -------
    str
        The weather.
    """

SPHINX = """Look up the weather.

    It comes from a service that may be slow.

    :param city: Name of the city,
        in any language.
    :type city: str
    :param str unit: Unit, such as `c`: lower case.
    :returns: The weather.
    :raises ToolError: The service is down.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_descriptions_come_from_the_docstring(text: str) -> None:
    """T-1: three styles say the same; returns and raises are for programmers."""

    def weather(city: str, unit: str = "c") -> str:
        return city + unit

    weather.__doc__ = text
    made = tool(weather)
    assert made.description == "Look up the weather.\n\nIt comes from a service that may be slow."
    assert properties(made)["city"]["description"] == "Name of the city, in any language."
    assert properties(made)["unit"]["description"] == "Unit, such as `c`: lower case."


def test_a_hints_own_description_counts_more_than_the_docstring() -> None:
    """T-1: what stands at the parameter is the most specific."""

    @tool
    def probe(value: Annotated[int, msgspec.Meta(description="From the hint.")]) -> None:
        """
        Do.

        Args:
            value: From the docstring.
        """

    assert properties(probe)["value"]["description"] == "From the hint."


@pytest.mark.parametrize(
    "text", [None, "", "Args:", "Args:\n    x", ":param:", "Parameters\n----------", "a\n---", "x: y\n\tz", "\n\n  \n"]
)
def test_odd_docstrings_do_no_harm(text: str | None) -> None:
    """T-1: reading a docstring never fails."""
    assert parse_docstring(text).parameters == {}


def test_notes_and_examples_stay_in_the_description() -> None:
    """T-1: what helps a model is kept, with the line breaks of code and lists."""
    docs = parse_docstring("Run.\n\n- one\n- two\n\nExample:\n    run(1)\n    run(2)\n\nReturns:\n    Nothing.")
    assert docs.description == "Run.\n\n- one\n- two\n\nExample:\n    run(1)\n    run(2)"


# -- facts -----------------------------------------------------------------------------------------------


def test_facts_are_declared_with_the_decorator() -> None:
    """T-2: name, description and all facts can be given."""

    @tool(
        name="fs/list",
        description="List.",
        read_only=True,
        destructive=True,
        idempotent=True,
        open_world=True,
        parallel=True,
        repeatable=True,
        timeout=3,
        max_output=100,
        thread=False,
    )
    def listing() -> str:
        """Not this."""
        return ""

    assert (listing.name, listing.description, listing.timeout, listing.max_output) == ("fs/list", "List.", 3, 100)
    facts = ("read_only", "destructive", "idempotent", "open_world", "parallel", "repeatable")
    assert all(getattr(listing, fact) for fact in facts)
    assert not listing.thread


# -- refusals --------------------------------------------------------------------------------------------


def _untyped(value):  # type: ignore[no-untyped-def]
    return value


def _callback(number: int, done: asyncio.Event) -> None: ...


def _unresolvable(value: NoSuchClass) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _inside(value: list[NoSuchClass]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _two_classes(value: Place | Box) -> None: ...


def _variadic(*values: int) -> None: ...


def _keywords(**values: int) -> None: ...


def _positional(value: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter", "advice"),
    [
        (_untyped, "value", "add one"),
        (_callback, "done", "has no JSON form"),
        (_unresolvable, "value", "cannot be resolved"),
        (_inside, "value", "cannot be resolved"),
        (_two_classes, "value", "has no JSON form"),
        (_variadic, "values", "ordinary parameter"),
        (_keywords, "values", "ordinary parameter"),
        (_positional, "value", "ordinary parameter"),
    ],
)
def test_what_cannot_be_a_tool_names_function_and_parameter(function: Any, parameter: str, advice: str) -> None:
    """T-1: the error says which parameter of which function, and what to do."""
    with pytest.raises(TypeError) as caught:
        tool(function)
    assert repr(parameter) in str(caught.value)
    assert repr(function.__name__) in str(caught.value)
    assert advice in str(caught.value)


def test_an_unbound_method_is_told_to_be_bound() -> None:
    """T-1: `self` is nothing a model can give."""
    with pytest.raises(TypeError, match=r"tool\(thing.method\)"):

        class Thing:
            @tool
            def method(self, value: int) -> None: ...


def test_generators_classes_and_unknown_facts_are_refused() -> None:
    """T-1, T-2: with words for each."""

    def stream(value: int) -> Any:
        yield value

    with pytest.raises(TypeError, match=r"'stream' yields.*context.progress"):
        tool(stream)
    with pytest.raises(TypeError, match="takes a function"):
        tool(Place)
    with pytest.raises(TypeError, match="knows no 'readonly'"):
        tool(readonly=True)  # type: ignore[call-overload]
