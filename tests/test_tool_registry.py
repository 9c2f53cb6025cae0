"""The tools of a harness: names, owners, order."""

from __future__ import annotations

import hashlib
import logging

import pytest

from dsh_core._ownership import Owner, acting_for
from dsh_core.errors import NotSerializable, PluginError
from dsh_core.hooks import Hooks
from dsh_core.tools import ToolDefinition, ToolRegistry, tool, wire_name

EMPTY = {"type": "object", "properties": {}}


def definition(name: str) -> ToolDefinition:
    return ToolDefinition(name, f"Does {name}.", EMPTY, lambda arguments, context: name)


def registry(*names: str, order: tuple[str, ...] = ()) -> ToolRegistry:
    made = ToolRegistry(Hooks(), order=order)
    for name in names:
        made.register(definition(name))
    return made


def names(definitions: object) -> list[str]:
    return [one.name for one in definitions]  # type: ignore[attr-defined]


# -- registering -----------------------------------------------------------------------------------------


def test_a_function_may_be_registered_as_it_is() -> None:
    """T-1: `register` makes a tool of a typed function."""
    tools = registry()

    def weather(city: str) -> str:
        return city

    tools.register(weather)
    found = tools.get("weather")
    assert found is not None
    assert found.parameters["required"] == ["city"]
    assert tools.get("nothing") is None


def test_undoing_a_registration_removes_the_tool_once() -> None:
    """H-7: a registration is callable once; a tool of the same name registered since is not touched."""
    tools = registry()
    undo = tools.register(definition("a"))
    undo()
    assert tools.list() == []
    tools.register(definition("a"))
    undo()
    assert names(tools.list()) == ["a"]


def test_generation_grows_with_every_change() -> None:
    """T-5: who caches what a registry says can see that it changed."""
    tools = registry("a")
    before = tools.generation
    undo = tools.register(definition("b"))
    middle = tools.generation
    undo()
    assert before < middle < tools.generation


def test_a_tools_of_a_plugin_goes_with_the_plugin() -> None:
    """H-7: a registration belongs to whoever acts, and unloading undoes it."""
    tools, owner = registry("kept"), Owner("extra")
    with acting_for(owner):
        tools.register(definition("gone"))
    assert owner.undo_all() == []
    assert names(tools.list()) == ["kept"]


def test_a_name_never_changes_its_owner_silently() -> None:
    """H-7: the second registration is refused, both owners are named, nothing changes."""
    tools = registry()
    with acting_for(Owner("first")):
        tools.register(definition("read"))
    with acting_for(Owner("second")), pytest.raises(PluginError) as caught:
        tools.register(definition("read"))
    assert caught.value.code == "DUPLICATE_TOOL"
    assert caught.value.plugin == "second"
    assert "'first'" in str(caught.value)
    assert "'second'" in str(caught.value)
    assert tools.origin("read") == "code"
    assert len(tools.list()) == 1


def test_two_tools_never_share_a_wire_name() -> None:
    """T-4: a legal name that equals another tool's derived name is refused."""
    tools = registry("a.b")
    with pytest.raises(PluginError, match="same name"):
        tools.register(definition(wire_name("a.b")))


@pytest.mark.parametrize("name", ["", "  "])
def test_a_tool_needs_a_name(name: str) -> None:
    """T-4: any text is a name, but not none."""
    with pytest.raises(ValueError, match="not blank"):
        registry(name)


def test_facts_that_make_no_sense_are_refused_at_once() -> None:
    """T-2: not at the first call."""
    tools = registry()
    with pytest.raises(ValueError, match="timeout"):
        tools.register(ToolDefinition("a", "", EMPTY, print, timeout=0))
    with pytest.raises(ValueError, match="max_output"):
        tools.register(ToolDefinition("a", "", EMPTY, print, max_output=0))
    with pytest.raises(ValueError, match="object"):
        tools.register(ToolDefinition("a", "", {"type": "string"}, print))
    with pytest.raises(TypeError, match="called"):
        tools.register(ToolDefinition("a", "", EMPTY, None))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a function"):
        tools.register(3)  # type: ignore[arg-type]


def test_a_schema_is_json_and_is_not_changed_any_more() -> None:
    """T-3: what is sent to a model and what is checked are one thing."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    made = ToolDefinition("a", "", schema, print)
    schema["properties"] = {}
    assert made.parameters["properties"] == {"a": {"type": "string"}}
    with pytest.raises(NotSerializable, match="parameters"):
        ToolDefinition("a", "", {"type": "object", "default": {1, 2}}, print)


# -- origin ----------------------------------------------------------------------------------------------


def test_origin_tells_code_from_autoloaded_plugins() -> None:
    """L-15: what was handed in by code is trusted, what was found is not."""
    tools = registry("given")
    with acting_for(Owner("handed", trusted=True)):
        tools.register(definition("handed-in"))
    with acting_for(Owner("found", trusted=False)):
        tools.register(definition("found-by-itself"))
    assert [tools.origin(name) for name in ("given", "handed-in", "found-by-itself")] == ["code", "code", "plugin"]
    with pytest.raises(KeyError):
        tools.origin("nothing")


# -- order -----------------------------------------------------------------------------------------------


def test_tools_go_out_by_name_whatever_the_order_of_registration() -> None:
    """T-5: provider caches hit."""
    assert names(registry("c", "a", "b").offered()) == names(registry("b", "c", "a").list()) == ["a", "b", "c"]


def test_a_configured_order_comes_first() -> None:
    """T-5: the others follow by name."""
    assert names(registry("a", "b", "c", "d", order=("c", "x", "b")).offered()) == ["c", "b", "a", "d"]


def test_only_named_tools_are_offered(caplog: pytest.LogCaptureFixture) -> None:
    """T-5: a name that no tool has is warned about once."""
    tools = registry("a", "b", "c")
    with caplog.at_level(logging.WARNING, "dsh"):
        assert names(tools.offered(("c", "a", "nothing", "a"))) == ["a", "c"]
        tools.register(definition("d"))
        assert names(tools.offered(["c", "nothing"])) == ["c"]
    assert len(caplog.records) == 1
    assert "'nothing'" in caplog.text
    assert names(tools.offered(())) == []


def test_a_limit_keeps_what_came_by_code_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """T-5: built-ins first, the rest by name, one warning that lists what was left out."""
    tools = registry("y", "z")
    with acting_for(Owner("found", trusted=False)):
        for name in ("a", "b", "c"):
            tools.register(definition(name))
    with caplog.at_level(logging.WARNING, "dsh"):
        assert names(tools.offered(limit=3)) == ["a", "y", "z"]
        assert names(tools.wire_schemas(limit=3)) == ["a", "y", "z"]
        assert names(tools.offered(limit=5)) == ["a", "b", "c", "y", "z"]
    assert len(caplog.records) == 1
    assert "b, c" in caplog.text


# -- wire names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["read", "a-b_C9", "x" * 64])
def test_legal_names_go_out_unchanged(name: str) -> None:
    """T-4: 1 to 64 characters of letters, digits, underscore and hyphen."""
    assert wire_name(name) == name


@pytest.mark.parametrize(
    ("name", "readable"),
    [("x" * 65, "x" * 55), ("a.b", "a_b"), ("a/b", "a_b"), ("größe", "gr__e"), ("a\n", "a_"), ("日本", "__")],
)
def test_other_names_get_their_legal_characters_and_a_hash(name: str, readable: str) -> None:
    """T-4: sanitised to 55 characters, an underscore, 8 hex digits of SHA-256 of the name."""
    assert wire_name(name) == f"{readable}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def test_the_wire_name_exists_only_in_schemas() -> None:
    """T-4: the registry leads back to the tool's own name."""
    tools = registry("server/read file")
    [schema] = tools.schemas()
    assert schema.name == wire_name("server/read file")
    assert schema.description == "Does server/read file."
    entry = tools.entry(schema.name)
    assert entry is not None
    assert entry.definition.name == "server/read file"
    assert tools.get(schema.name) is None


def test_schemas_are_the_same_object_while_nothing_changes() -> None:
    """T-5: comparing the tools of two requests costs nothing."""
    tools = registry("a", "b")
    assert tools.wire_schemas() is tools.wire_schemas()
    assert tools.wire_schemas(("a",)) is tools.wire_schemas(["a"])
    before = tools.wire_schemas()
    undo = tools.register(tool(test_the_wire_name_exists_only_in_schemas))
    undo()
    assert tools.wire_schemas() == before
    assert tools.wire_schemas()[0] is before[0]
