"""
The system prompt: sections in order, variables in them, and the tools that go with it.

What changes during a session belongs into context messages: one changed line here voids the provider's
cache of the whole conversation.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from dsh_core._markers import hookimpl
from dsh_core._ownership import Registration, own
from dsh_core._templates import VARIABLE, render_template
from dsh_core.content import ToolSchema, to_tuple
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from dsh_core.agent.types import Agent
    from dsh_core.harness import Harness
    from dsh_core.hooks import Hooks
    from dsh_core.tools.registry import ToolRegistry

__all__ = ["IdentityPlugin", "PromptAssembly", "PromptSection", "SystemPrompt"]

Provider: TypeAlias = "Callable[[Agent], str | None | Awaitable[str | None]]"
PERSONA_ORDER: Final = 0


@attrs.frozen
class PromptSection:
    """
    One section.

    Args:
        name: Unique.
        order: −100 identity, 0 persona, 100–199 tool guidance, 200 and above project context.
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


@attrs.frozen
class _Source:
    name: str
    order: int
    text: str | Provider


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
        self._variables: dict[str, Provider] = {"model": _model, "cwd": _cwd}
        self._last: WeakKeyDictionary[Agent, tuple[tuple[Any, ...], PromptAssembly]] = WeakKeyDictionary()
        self._rendered: tuple[PromptAssembly, str] | None = None

    def section(self, name: str, order: int, text: str | Provider) -> Registration:
        """
        Add a section.

        Args:
            name: Unique, such as `git:status`.
            order: Where it stands; see `PromptSection`.
            text: A template, or a plain or coroutine function from the agent to one; None or empty leaves it out.

        Raises:
            PluginError: The name is taken.
        """
        self._refuse_taken(name, self._sections, "section")
        self._sections[name] = _Source(name, order, text)
        return own(lambda: self._sections.pop(name, None))

    def variable(self, name: str, provider: Provider | str) -> Registration:
        """
        Add a variable that templates may name.

        Args:
            name: Lower case letters, digits and underscores.
            provider: Its value, or a plain or coroutine function from the agent to it; None means no value.

        Raises:
            PluginError: The name is taken.
            ValueError: The name is malformed.
        """
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"a variable's name is lower case letters, digits and underscores, not {name!r}")
        self._refuse_taken(name, self._variables, "variable")
        self._variables[name] = provider if callable(provider) else lambda _agent: provider
        return own(lambda: self._variables.pop(name, None))

    def _refuse_taken(self, name: str, taken: Mapping[str, Any], what: str) -> None:
        if name in taken:
            raise PluginError(f"system prompt {what} {name!r} is registered already; choose another name")

    async def assemble(self, agent: Agent) -> PromptAssembly:
        """
        Collect sections, variables and tools for an agent and run `system_prompt_assemble`.

        Raises:
            HookError: A plugin failed.
        """
        parts = await self._parts(agent)
        last = self._last.get(agent)
        if last is None or last[0] != parts:  # mostly nothing changed since the step before
            last = self._last[agent] = (parts, PromptAssembly(*parts))
        return await self._hooks.system_prompt_assemble(agent=agent, assembly=last[1])

    async def _parts(self, agent: Agent) -> tuple[Any, ...]:
        variables: dict[str, str | None] = {}
        for name, provider in list(self._variables.items()):
            value = provider(agent)
            variables[name] = value if value is None or type(value) is str else await _resolved(value)
        sections = []
        for source in list(self._sections.values()):
            text = source.text if type(source.text) is str else source.text(agent)  # type: ignore[operator]
            if text is not None and type(text) is not str:
                text = await _resolved(text)
            if text:
                sections.append(PromptSection(source.name, source.order, text))
        sections.sort(key=_order)
        return tuple(sections), variables, self._tools.wire_schemas(agent.options.tools)

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


def _order(section: PromptSection) -> int:
    return section.order


async def _resolved(value: Any) -> str | None:
    resolved: str | None = await value if inspect.isawaitable(value) else value
    return resolved


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
