"""
The tools of a harness: who brought them, in which order and under which names they go out.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from dsh_core._ownership import Owner, Registration, current_owner, own
from dsh_core.content import ToolCallBlock, ToolSchema
from dsh_core.errors import PluginError
from dsh_core.tools.definition import PendingCall, ToolDefinition, ToolResult
from dsh_core.tools.function import tool
from dsh_core.tools.names import wire_name
from dsh_core.tools.settings import ToolSettings

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.hooks import Hooks

__all__ = ["RegisteredTool", "ToolRegistry"]

log = logging.getLogger("dsh")

Names = Iterable[str] | None


@attrs.define(eq=False)
class RegisteredTool:
    """
    A tool and who brought it.

    Args:
        definition: The tool.
        owner: The plugin that registered it, or None for the embedder's own code.
        schema: What a model is told of it, under its wire name.
        removed: The registration was undone; calls that did not start yet do not start any more.
    """

    definition: ToolDefinition
    owner: Owner | None
    schema: ToolSchema
    removed: bool = False

    @property
    def origin(self) -> Literal["code", "plugin"]:
        """`code` for tools handed in by code, `plugin` for those of an autoloaded plugin (L-15)."""
        return "code" if self.owner is None or self.owner.trusted else "plugin"

    @property
    def origin_text(self) -> str:
        """Who brought it, in words."""
        return "the embedding program" if self.owner is None else f"plugin {self.owner.name!r}"


class ToolRegistry:
    """
    The tools of a harness.

    Args:
        hooks: The harness's hooks, round every call.
        order: Names that go out first, in this order; all others follow by name (T-5).
        settings: How calls are approved.
    """

    def __init__(self, hooks: Hooks, *, order: Sequence[str] = (), settings: ToolSettings | None = None) -> None:
        self._hooks = hooks
        self._rank = {name: number for number, name in enumerate(order)}
        self._tools: dict[str, RegisteredTool] = {}
        self._by_wire: dict[str, str] = {}
        self._offers: dict[tuple[str, ...] | None, tuple[RegisteredTool, ...]] = {}
        self._schemas: dict[tuple[str, ...] | None, tuple[ToolSchema, ...]] = {}
        self._offered_names: dict[tuple[str, ...] | None, frozenset[str]] = {}
        self._warned: set[object] = set()
        self.generation = 0
        """Grows with every registration and every undoing of one."""
        self.settings = settings or ToolSettings()

    def register(self, definition: ToolDefinition | Callable[..., Any]) -> Registration:
        """
        Add a tool.

        Args:
            definition: A tool, or a typed function to make one of.

        Returns:
            Undoes the registration when called; unloading the plugin that made it does so too (H-7).

        Raises:
            PluginError: The name is taken (`DUPLICATE_TOOL`); both owners are named and nothing changes.
            TypeError: It is no tool, or the function cannot be made one.
            ValueError: A fact of it makes no sense.
        """
        if not isinstance(definition, ToolDefinition):
            definition = tool(definition)
        _check(definition)
        wire = wire_name(definition.name)
        schema = ToolSchema(wire, definition.description, definition.parameters)
        entry = RegisteredTool(definition, current_owner(), schema)
        self._refuse_duplicate(entry, self._by_wire.get(wire))
        self._tools[definition.name] = entry
        self._by_wire[wire] = definition.name
        self._changed()
        return own(lambda: self._remove(entry))

    def _refuse_duplicate(self, entry: RegisteredTool, taken_by: str | None) -> None:
        if taken_by is None:
            return
        other = self._tools[taken_by]
        name = entry.definition.name
        as_what = "" if taken_by == name else f", which goes out under the same name {entry.schema.name!r},"
        raise PluginError(
            f"{entry.origin_text} registers tool {name!r}, but tool {taken_by!r}{as_what} is registered already by "
            f"{other.origin_text}; rename one of them, or leave one plugin out",
            "DUPLICATE_TOOL",
            plugin=entry.owner.name if entry.owner else None,
        )

    def _remove(self, entry: RegisteredTool) -> None:
        name = entry.definition.name
        entry.removed = True
        if self._tools.get(name) is entry:
            del self._tools[name]
            del self._by_wire[entry.schema.name]
            self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._offers.clear()
        self._schemas.clear()
        self._offered_names.clear()

    # -- looking up --------------------------------------------------------------------------------------

    def get(self, name: str) -> ToolDefinition | None:
        """The tool of this name, or None."""
        entry = self._tools.get(name)
        return entry.definition if entry else None

    def entry(self, name: str) -> RegisteredTool | None:
        """The tool of this name, by its own or its wire name, with who brought it."""
        return self._tools.get(name) or self._tools.get(self._by_wire.get(name, ""))

    def list(self) -> list[ToolDefinition]:
        """All tools, in the order in which they go out."""
        return [entry.definition for entry in self._offer(None)]

    def origin(self, name: str) -> Literal["code", "plugin"]:
        """
        Where a tool came from (L-15).

        Raises:
            KeyError: There is no tool of this name.
        """
        return self._tools[name].origin

    # -- what goes out -----------------------------------------------------------------------------------

    def offered(self, names: Names = None, limit: int | None = None) -> tuple[ToolDefinition, ...]:
        """
        The tools of a request, in the order of T-5.

        Args:
            names: Only these; None for all. Names that no tool has are warned about once.
            limit: At most so many: tools that came in by code first, the others by name. What is left out is
                warned about once.
        """
        return tuple(entry.definition for entry in self._limited(self._offer(_key(names)), limit))

    def wire_schemas(self, names: Names = None, limit: int | None = None) -> tuple[ToolSchema, ...]:
        """
        What a model is told of the tools of a request; the same object as long as nothing changes.

        Args:
            names: Only these; None for all.
            limit: As for `offered`.
        """
        key = _key(names)
        if limit is not None:
            return tuple(entry.schema for entry in self._limited(self._offer(key), limit))
        found = self._schemas.get(key)
        if found is None:
            found = self._schemas[key] = tuple(entry.schema for entry in self._offer(key))
        return found

    def offered_names(self, names: Names = None) -> frozenset[str]:
        """The tools' own names of what `offered` gives without a limit."""
        key = _key(names)
        found = self._offered_names.get(key)
        if found is None:
            found = self._offered_names[key] = frozenset(entry.definition.name for entry in self._offer(key))
        return found

    def schemas(self) -> tuple[ToolSchema, ...]:
        """What a model is told of all tools."""
        return self.wire_schemas()

    def _offer(self, key: tuple[str, ...] | None) -> tuple[RegisteredTool, ...]:
        found = self._offers.get(key)
        if found is None:
            entries = list(self._tools.values()) if key is None else self._named(key)
            last = len(self._rank)
            entries.sort(key=lambda entry: (self._rank.get(entry.definition.name, last), entry.definition.name))
            found = self._offers[key] = tuple(entries)
        return found

    def _named(self, names: tuple[str, ...]) -> builtins.list[RegisteredTool]:
        for name in names:
            if name not in self._tools:
                self._warn_once(
                    name, "no tool is called %r, so it is not offered; registered: %s", name, _listed(self._tools)
                )
        return [self._tools[name] for name in dict.fromkeys(names) if name in self._tools]

    def _limited(self, entries: tuple[RegisteredTool, ...], limit: int | None) -> tuple[RegisteredTool, ...]:
        if limit is None or len(entries) <= limit:
            return entries
        kept = sorted(entries, key=lambda entry: entry.origin == "plugin")[:limit]  # stable: by name within each
        left_out = tuple(entry.definition.name for entry in entries if entry not in kept)
        self._warn_once(left_out, "more tools than the model takes (%d); left out: %s", limit, _listed(left_out))
        return tuple(entry for entry in entries if entry in kept)

    def _warn_once(self, about: object, message: str, *arguments: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(message, *arguments)

    # -- running one call --------------------------------------------------------------------------------

    async def execute(self, agent: Agent, call: ToolCallBlock | PendingCall) -> ToolResult:
        """
        Run one call outside the loop: checks, gates, approval, body and post-processing, as in a turn.

        Gates and approvals are logged if a turn is open. The result is the caller's: it enters no history,
        and notes that hooks add to it are left out.

        Args:
            agent: The agent on whose behalf it runs.
            call: The call.

        Returns:
            The result, also of a call that was denied or failed.
        """
        from dsh_core.tools.pipeline import execute

        return await execute(self._hooks, self, agent, call)


def _key(names: Names) -> tuple[str, ...] | None:
    return names if names is None or type(names) is tuple else tuple(names)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check(definition: ToolDefinition) -> None:
    name = definition.name
    if not str(name).strip():
        raise ValueError(f"a tool needs a name that is not blank, not {name!r}")
    if not callable(definition.execute):
        raise TypeError(f"execute of tool {name!r} cannot be called")
    if definition.parameters.get("type", "object") != "object":
        raise ValueError(
            f"the schema of tool {name!r} describes {definition.parameters['type']!r} at its root; arguments are an "
            'object, so write {"type": "object", "properties": {…}}'
        )
    if definition.timeout is not None and not definition.timeout > 0:
        raise ValueError(f"the timeout of tool {name!r} must be more than 0 seconds, not {definition.timeout!r}")
    if definition.max_output is not None and definition.max_output < 1:
        raise ValueError(f"max_output of tool {name!r} must be at least 1 character, not {definition.max_output!r}")
