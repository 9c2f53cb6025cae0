"""
What plugins offer to each other and to people: services by kind, and commands by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import attrs

from dsh_core._ownership import Registration, current_owner, own
from dsh_core.errors import PluginError

__all__ = ["Command", "CommandRegistry", "ServiceRegistry"]

T = TypeVar("T")
Handler: TypeAlias = Callable[..., Any | Awaitable[Any]]


class ServiceRegistry:
    """Services of which there is one each, such as the persistence backend."""

    def __init__(self) -> None:
        self._services: dict[type, tuple[object, str]] = {}

    def provide(self, kind: type[T], service: T, gone: Callable[[], object] | None = None) -> Registration:
        """
        Offer the one service of a kind.

        Args:
            kind: The class or protocol under which it is asked for.
            service: The service.
            gone: Called when it has been taken back.

        Raises:
            PluginError: Another plugin provides this kind already; the message names both.
        """
        owner = current_owner()
        name = owner.name if owner is not None else "the embedder"
        taken = self._services.get(kind)
        if taken is not None:
            raise PluginError(
                f"{kind.__name__} is provided by {taken[1]!r} already, so {name!r} cannot provide it too; "
                "disable one of the two",
                plugin=name,
            )
        self._services[kind] = (service, name)

        def undo() -> None:
            self._services.pop(kind, None)
            if gone is not None:
                gone()

        return own(undo)

    def get(self, kind: type[T]) -> T | None:
        """The service of a kind, or None."""
        found = self._services.get(kind)
        return found[0] if found is not None else None  # type: ignore[return-value]


@attrs.frozen
class Command:
    """
    A command for people, such as `/compact` in a chat.

    Args:
        name: What is typed, without a slash.
        help: One line.
        handler: Called with the agent and the rest of the line; plain or coroutine. Text it returns is shown.
        owner: The plugin that brought it, or None.
    """

    name: str
    help: str
    handler: Handler
    owner: str | None = None


class CommandRegistry:
    """Commands that front ends show to people."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}

    def register(self, name: str, help: str, handler: Handler) -> Registration:
        """
        Add a command.

        Raises:
            PluginError: The name is taken; the message names both owners.
        """
        owner = current_owner()
        who = owner.name if owner is not None else None
        taken = self._commands.get(name)
        if taken is not None:
            raise PluginError(
                f"command {name!r} is registered by {taken.owner or 'the embedder'!r} already, "
                f"so {who or 'the embedder'!r} cannot register it too",
                plugin=who,
            )
        self._commands[name] = Command(name, help, handler, who)

        def undo() -> None:
            self._commands.pop(name, None)

        return own(undo)

    def get(self, name: str) -> Command | None:
        """The command of this name, or None."""
        return self._commands.get(name)

    def list(self) -> list[Command]:
        """All commands by name."""
        return sorted(self._commands.values(), key=lambda command: command.name)
