"""
The system prompt: sections in order, variables in them, and the tools that go with it.

What changes during a session belongs into context messages: one changed line here voids the provider's
cache of the whole conversation.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from dsh_core._markers import hookimpl
from dsh_core._ownership import Registration, current_owner, own
from dsh_core._templates import VARIABLE, render_template
from dsh_core.content import ToolSchema, to_tuple
from dsh_core.errors import HarnessError, PluginError

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.harness import Harness
    from dsh_core.hooks import Hooks
    from dsh_core.session.log import Session
    from dsh_core.tools.registry import ToolRegistry

__all__ = ["IdentityPlugin", "PromptAssembly", "PromptSection", "SystemPrompt"]

Provider: TypeAlias = "Callable[[Agent], str | Awaitable[str | None] | None]"
PERSONA_ORDER: Final = 0


@attrs.frozen
class PromptSection:
    """
    One section.

    Args:
        name: Unique.
        order: -100 identity, 0 persona, 100 to 199 tool guidance, 200 and above project context.
        text: A template.
    """

    name: str
    order: int
    text: str


@attrs.frozen
class PromptAssembly:
    """
    The parts of a system prompt before it is rendered.

    Args:
        sections: In order.
        variables: Values by name; None means registered but without a value.
        tools: The tools on offer.
    """

    sections: tuple[PromptSection, ...] = attrs.field(converter=to_tuple)
    variables: Mapping[str, str | None] = attrs.field(hash=False)
    tools: tuple[ToolSchema, ...] = attrs.field(default=(), converter=to_tuple)


@attrs.frozen(eq=False)
class _Source:
    """A registered section or variable, and who brought it."""

    name: str
    order: int
    text: str | Provider
    origin: str = "dsh itself"


_Values: TypeAlias = list[tuple[_Source, str | None]]


class SystemPrompt:
    """
    The system prompt of a harness.

    Args:
        hooks: The facade, for `system_prompt_assemble`.
        tools: The registry of tools.
    """

    def __init__(self, hooks: Hooks, tools: ToolRegistry) -> None:
        self._hooks = hooks
        self._tools = tools
        self._sections: dict[str, _Source] = {"agent:persona": _Source("agent:persona", PERSONA_ORDER, _persona)}
        self._variables = {"model": _Source("model", 0, _model), "cwd": _Source("cwd", 0, _cwd)}
        self._last: WeakKeyDictionary[Session, tuple[tuple[Any, ...], PromptAssembly]] = WeakKeyDictionary()
        self._rendered: tuple[PromptAssembly, str] | None = None

    def section(self, name: str, order: int, text: str | Provider) -> Registration:
        """
        Add a section.

        Args:
            name: Unique, such as `git:status`.
            order: Where it stands; see `PromptSection`.
            text: A template, or a plain or coroutine function from the agent to one; None or empty leaves it out.

        Raises:
            PluginError: The name is taken (`DUPLICATE_SECTION`); both owners are named and nothing changes.
        """
        return _add("section", self._sections, _Source(name, order, text, _origin()))

    def variable(self, name: str, provider: Provider | str) -> Registration:
        """
        Add a variable that templates may name.

        Args:
            name: Lower case letters, digits and underscores.
            provider: Its value, or a plain or coroutine function from the agent to it; None means no value.

        Raises:
            PluginError: The name is taken (`DUPLICATE_VARIABLE`); both owners are named and nothing changes.
            ValueError: The name is malformed.
        """
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"a variable's name is lower case letters, digits and underscores, not {name!r}")
        return _add("variable", self._variables, _Source(name, 0, provider, _origin()))

    async def assemble(self, agent: Agent) -> PromptAssembly:
        """
        Collect sections, variables and tools for an agent and run `system_prompt_assemble`.

        Raises:
            HarnessError: A section or variable could not be made; it is named (`PROMPT`).
            HookError: A plugin failed in the hook.
        """
        variables = await _values("variable", self._variables, agent)
        texts = await _values("section", self._sections, agent)
        parts = (variables, texts, self._tools.wire_schemas(agent.options.tools))
        last = self._last.get(agent.session)
        if last is None or last[0] != parts:  # mostly nothing changed since the step before
            last = self._last[agent.session] = (parts, _assembled(*parts))
        return await self._hooks.system_prompt_assemble(agent=agent, assembly=last[1])

    def render(self, assembly: PromptAssembly) -> str:
        """
        The text of an assembly: variables filled in, empty sections left out, one blank line between.

        Raises:
            HarnessError: A malformed group, an unknown variable or one without a value; names the section (`PROMPT`).
        """
        if self._rendered is not None and self._rendered[0] is assembly:
            return self._rendered[1]
        texts = (render_template(one.text, assembly.variables, one.name).strip("\n") for one in assembly.sections)
        rendered = "\n\n".join(text for text in texts if text.strip())
        self._rendered = (assembly, rendered)
        return rendered


def _assembled(variables: _Values, texts: _Values, tools: tuple[ToolSchema, ...]) -> PromptAssembly:
    sections = [PromptSection(source.name, source.order, text) for source, text in texts if text]
    sections.sort(key=_order)
    return PromptAssembly(sections, MappingProxyType({source.name: value for source, value in variables}), tools)


def _order(section: PromptSection) -> int:
    return section.order


def _origin() -> str:
    owner = current_owner()
    return "the embedding program" if owner is None else f"plugin {owner.name!r}"


def _add(what: str, table: dict[str, _Source], source: _Source) -> Registration:
    taken = table.get(source.name)
    if taken is not None:
        raise PluginError(
            f"{source.origin} registers system prompt {what} {source.name!r}, which is registered already by "
            f"{taken.origin}; choose another name, or change the assembly in system_prompt_assemble",
            f"DUPLICATE_{what.upper()}",
        )
    table[source.name] = source
    return own(lambda: table.pop(source.name, None))


async def _values(what: str, table: Mapping[str, _Source], agent: Agent) -> _Values:
    """What each source gives for an agent."""
    values: _Values = []
    for source in list(table.values()):
        value: Any = source.text
        if not isinstance(value, str):
            try:
                value = value(agent)
                if value is not None and type(value) is not str and inspect.isawaitable(value):
                    value = await value
            except (Exception, SystemExit) as error:  # a plugin may even exit
                raise _failed(what, source, f"failed: {type(error).__name__}: {error}") from error
            if value is not None and not isinstance(value, str):
                raise _failed(what, source, f"gave {type(value).__name__!r}; it has to be text or None")
        values.append((source, value))
    return values


def _failed(what: str, source: _Source, how: str) -> HarnessError:
    return HarnessError(f"system prompt {what} {source.name!r} of {source.origin} {how}", "PROMPT")


def _persona(agent: Agent) -> str | None:
    return agent.options.system_prompt or agent.harness.config.system_prompt


def _model(agent: Agent) -> str | None:
    return agent.options.model or agent.harness.config.model


def _cwd(agent: Agent) -> str | None:
    return agent.session.header.cwd


class IdentityPlugin:
    """The built-in plugin `identity`: one sentence on what the model runs in."""

    name = "identity"

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the section."""
        harness.system_prompt.section(
            "harness:identity", -100, "You are an agent running in dsh, a harness that executes the tools you call."
        )
