"""The system prompt: sections in order, strict templates, built-in variables (section 6)."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest

import dsh_core
from dsh_core import AgentOptions, HarnessError, PluginError, hookimpl, tool
from dsh_core._ownership import Owner, acting_for
from dsh_core._templates import render_template
from dsh_core.prompt import PromptAssembly, PromptSection, SystemPrompt
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, text

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(*plugins, **options):
    """A chat with a scripted model, and without the identity section unless asked for."""
    adapter = ScriptedAdapter([text("ok"), text("ok")])
    options = {"model": "scripted/m", "autoload": False, **options}
    async with dsh_core.open(plugins=[ScriptedPlugin(adapter), *plugins], **options) as chat:
        yield chat, adapter


async def prompt_of(chat) -> str:
    prompt = chat.harness.system_prompt
    return prompt.render(await prompt.assemble(chat.agent))


def rendered(template: str, **variables: str | None) -> str:
    return render_template(template, variables, "area:what")


# -- templates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("", ""),
        ("plain } text {", "plain } text {"),
        ("{{name}}", "Ada"),
        ("a {{name}} b {{name}}", "a Ada b Ada"),
        ("{{{{name}}", "{{name}}"),
        ("{{{{ {{name}}", "{{ Ada"),
        ("open {{ and nothing behind it", "open {{ and nothing behind it"),
        ("{{name}} and {{ at the end", "Ada and {{ at the end"),
        ("}} {{name}}", "}} Ada"),
    ],
)
def test_a_template_renders(template, result):
    """Section 6: `{{name}}` is a value, `{{{{` two braces, `{{` without a later `}}` literal."""
    assert rendered(template, name="Ada") == result


@pytest.mark.parametrize("group", ["{{}}", "{{ name }}", "{{{name}}}", "{{a{b}}", "{{a b}}", "{{1}}", "{{__class__}}"])
def test_a_malformed_group_is_an_error_that_names_the_section(group):
    """Section 6: a typing error must not reach the model."""
    with pytest.raises(HarnessError, match="area:what") as caught:
        rendered(f"text {group}", name="Ada")
    assert caught.value.code == "PROMPT"


def test_an_unknown_variable_is_an_error_that_lists_the_known_ones():
    """Section 6: what the object has as attributes is no variable."""
    with pytest.raises(HarnessError, match=r"area:what.*'constructor'.*a, b"):
        rendered("{{constructor}}", b="1", a="2")
    with pytest.raises(HarnessError, match=r"\(none\)"):
        rendered("{{x}}")


def test_a_variable_without_a_value_is_an_error():
    """Section 6: valueless is told apart from unknown."""
    with pytest.raises(HarnessError, match=r"area:what.*'cwd' has no value"):
        rendered("{{cwd}}", cwd=None)


def test_inserted_values_are_not_scanned_again():
    """Section 6: a value cannot smuggle a group in."""
    assert rendered("{{a}}", a="{{b}} {{{{", b="no") == "{{b}} {{{{"


# -- sections ------------------------------------------------------------------------------------------------


def assembly(*texts: str, **variables: str | None) -> PromptAssembly:
    sections = tuple(PromptSection(f"s:{number}", number, text) for number, text in enumerate(texts))
    return PromptAssembly(sections, variables)


@pytest.fixture
def prompt() -> SystemPrompt:
    from dsh_core.hooks import Hooks
    from dsh_core.tools import ToolRegistry

    hooks = Hooks()
    return SystemPrompt(hooks, ToolRegistry(hooks))


def test_sections_are_joined_by_one_blank_line(prompt):
    """Section 6: however the texts begin and end."""
    assert prompt.render(assembly("a\n", "\n\nb\n\n", "c")) == "a\n\nb\n\nc"


def test_empty_sections_vanish(prompt):
    """Section 6: also those that are empty only once rendered."""
    assert prompt.render(assembly("a", "", " \n ", "{{nothing}}", "b", nothing="")) == "a\n\nb"


async def test_sections_go_by_their_order():
    """Section 6: identity, persona, guidance on tools, the project's context."""
    async with opened(system_prompt="persona") as (chat, _):
        chat.harness.system_prompt.section("p:context", 200, "context")
        chat.harness.system_prompt.section("p:guide", 100, "guide")
        made = await chat.harness.system_prompt.assemble(chat.agent)
    assert [section.name for section in made.sections] == ["harness:identity", "agent:persona", "p:guide", "p:context"]


async def test_a_section_may_be_a_function_of_the_agent():
    """Section 6: plain or async, its text is a template too, None leaves it out."""

    async def late(agent):
        return "model {{model}}"

    async with opened() as (chat, _):
        chat.harness.system_prompt.section("a:plain", 1, lambda agent: f"id {agent.id}")
        chat.harness.system_prompt.section("a:async", 2, late)
        chat.harness.system_prompt.section("a:none", 3, lambda agent: None)
        assert (await prompt_of(chat)).endswith(f"id {chat.agent.id}\n\nmodel scripted/m")


async def test_a_variable_may_be_plain_or_async():
    """Section 6: the provider gets the agent."""

    async def late(agent):
        return "late"

    async with opened(system_prompt="{{now}} {{later}}") as (chat, _):
        chat.harness.system_prompt.variable("now", lambda agent: agent.session.id)
        chat.harness.system_prompt.variable("later", late)
        assert (await prompt_of(chat)).endswith(f"{chat.agent.session.id} late")


async def test_model_and_cwd_are_built_in(tmp_path):
    """Section 6: the agent's model and the session's directory."""
    async with opened(system_prompt="{{model}} in {{cwd}}", cwd=tmp_path) as (chat, _):
        assert (await prompt_of(chat)).endswith(f"scripted/m in {tmp_path}")


@pytest.mark.parametrize("name", ["agent:persona", "harness:identity", "my:own"])
async def test_the_name_of_a_section_is_taken_once(name):
    """Section 6: the built-in names too; the first stays."""
    async with opened(system_prompt="persona") as (chat, _):
        prompt = chat.harness.system_prompt
        prompt.section("my:own", 300, "first")
        with acting_for(Owner("late")), pytest.raises(PluginError, match=f"'late' registers.*{name}") as caught:
            prompt.section(name, 300, "second")
        assert caught.value.code == "DUPLICATE_SECTION"
        assert "second" not in await prompt_of(chat)


@pytest.mark.parametrize("name", ["model", "cwd", "mine"])
async def test_the_name_of_a_variable_is_taken_once(name):
    """Section 6: the built-in names too."""
    async with opened() as (chat, _):
        chat.harness.system_prompt.variable("mine", lambda agent: "x")
        with pytest.raises(PluginError, match=name):
            chat.harness.system_prompt.variable(name, lambda agent: "y")


@pytest.mark.parametrize("name", ["", "a b", "{", "1x", "__class__"])
def test_a_variable_needs_a_name_that_templates_can_use(prompt, name):
    """Section 6: otherwise nobody could ask for it."""
    with pytest.raises(ValueError, match="name"):
        prompt.variable(name, lambda agent: "x")


async def test_a_registration_can_be_undone():
    """H-7: section and variable go, and the names are free again."""
    async with opened() as (chat, _):
        prompt = chat.harness.system_prompt
        with prompt.variable("mine", lambda agent: "x"), prompt.section("my:own", 300, "own {{mine}}"):
            assert (await prompt_of(chat)).endswith("own x")
        assert "own" not in (await prompt_of(chat)).splitlines()
        prompt.section("my:own", 300, "again")


# -- in a turn -----------------------------------------------------------------------------------------------


class Supplies:
    """Gives a variable that nobody registered and a section behind all others."""

    name = "supplies"

    @hookimpl
    async def system_prompt_assemble(self, agent, assembly):
        sections = (*assembly.sections, PromptSection("supplies:more", 900, "more"))
        return attrs.evolve(assembly, sections=sections, variables={**assembly.variables, "project": "dsh"})


async def test_plugins_may_change_the_assembly():
    """Section 6: sections, values and tools before they are rendered."""
    async with opened(Supplies(), system_prompt="works on {{project}}") as (chat, adapter):
        await chat.ask("hi")
    assert adapter.requests[0].system.endswith("works on dsh\n\nmore")


async def test_a_prompt_that_cannot_be_rendered_ends_the_turn():
    """Section 6, L-3: before the step; the agent lives and the model was not asked."""
    async with opened(system_prompt="{{nobody}}") as (chat, adapter):
        reason = (await chat.ask("hi")).reason
        assert (reason.kind, reason.code, reason.step) == ("error", "PROMPT", 1)
        assert "agent:persona" in reason.message
        chat.harness.system_prompt.variable("nobody", lambda agent: "somebody")
        assert (await chat.ask("hi")).text == "ok"
    assert len(adapter.requests) == 1


async def fails_late(agent):
    raise ValueError("boom")


def fails(agent):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("provider", "said"),
    [(fails, "ValueError: boom"), (fails_late, "ValueError: boom"), (lambda agent: 7, "gave 'int'")],
)
@pytest.mark.parametrize("what", ["section", "variable"])
async def test_what_cannot_be_made_is_named_with_its_plugin(what, provider, said):
    """Section 6, L-3: the turn ends, the message says whose part failed and how."""
    async with opened(system_prompt="persona") as (chat, _):
        prompt = chat.harness.system_prompt
        with acting_for(Owner("weather")):
            undo = prompt.section("mine", 5, provider) if what == "section" else prompt.variable("mine", provider)
        reason = (await chat.ask("hi")).reason
        assert (reason.kind, reason.code) == ("error", "PROMPT")
        assert reason.message.startswith(f"system prompt {what} 'mine' of plugin 'weather' ")
        assert said in reason.message
        undo()
        assert (await chat.ask("hi")).text == "ok"


async def test_an_assembly_cannot_be_changed_in_place():
    """H-3: a plugin returns a changed copy; the next step starts from the registered values."""
    async with opened() as (chat, _):
        assembly = await chat.harness.system_prompt.assemble(chat.agent)
        with pytest.raises(TypeError):
            assembly.variables["model"] = "other"  # type: ignore[index]


async def test_a_changed_value_reaches_the_next_prompt():
    """Section 6: what is reused from step to step is only what stayed the same."""
    value = "one"
    async with opened(system_prompt="{{mine}}") as (chat, _):
        chat.harness.system_prompt.variable("mine", lambda agent: value)
        assert (await prompt_of(chat)).endswith("one")
        value = "two"
        assert (await prompt_of(chat)).endswith("two")


async def test_the_assembly_has_the_tools_of_the_agent():
    """T-5: under their wire names, only those of `AgentOptions.tools`."""

    @tool(name="a.b")
    def dotted() -> str:
        """One."""
        return ""

    @tool
    def other() -> str:
        """Two."""
        return ""

    async with opened(tools=[dotted, other]) as (chat, _):
        made = await chat.harness.system_prompt.assemble(chat.agent)
        assert [schema.name for schema in made.tools] == [dsh_core.tools.names.wire_name("a.b"), "other"]
        handle = await chat.harness.agents.create("one", options=AgentOptions(model="scripted/m", tools=("other",)))
        made = await chat.harness.system_prompt.assemble(handle.agent)
        assert [schema.name for schema in made.tools] == ["other"]
        await handle.dispose()


async def test_the_prompt_of_a_session_stays_the_same():
    """Section 6: so that the provider's cache hits."""
    async with opened(system_prompt="persona") as (chat, adapter):
        await chat.ask("one")
        await chat.ask("two")
    assert adapter.requests[0].system == adapter.requests[1].system


async def test_the_identity_can_be_switched_off():
    """H-1: a built-in is a plugin like any other."""
    async with opened(system_prompt="only this", config={"plugins": {"disable": ["identity"]}}) as (chat, _):
        assert await prompt_of(chat) == "only this"
