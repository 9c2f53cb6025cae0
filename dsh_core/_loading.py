"""
One plugin's life: loaded step by step, undone whole, and taken down without leaving anything behind (H-7, H-8).
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

import attrs

from dsh_core import hookspecs as core_hookspecs
from dsh_core._failures import blame, describe
from dsh_core._invoke import is_awaitable
from dsh_core._ownership import Owner, acting_for
from dsh_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_core._plans import Place, Registered
    from dsh_core.harness import Harness
    from dsh_core.hooks import Hooks

__all__ = ["GRACE_SECONDS", "Loaded", "PluginInfo", "PluginState"]

_log: Final = logging.getLogger("dsh")

GRACE_SECONDS: Final = 5.0
"""How long running calls of a plugin that is unloaded may go on before they are cancelled."""

SETTLE_SECONDS: Final = 1.0
"""How long cancelled calls and tasks may take to end before they are abandoned with a warning."""

PluginState: TypeAlias = Literal["loading", "loaded", "failed", "disabled", "refused", "unloading"]


@attrs.frozen(kw_only=True)
class PluginInfo:
    """
    What is known of a plugin.

    Args:
        name: Its name.
        distribution: The distribution that brought it, None for objects passed in.
        version: That distribution's version.
        origin: Where it comes from, in words.
        state: `loading`, `loaded`, `failed`, `disabled` (not to be loaded), `refused` (a second one of a
            name) or `unloading`.
        hooks: Names of the hooks it implements.
        error: Why it is not loaded.
        load_ms: How long importing, registering and starting took.
    """

    name: str
    distribution: str | None = None
    version: str | None = None
    origin: str = ""
    state: PluginState = "loaded"
    hooks: tuple[str, ...] = ()
    error: str | None = None
    load_ms: float = 0.0


@attrs.define(eq=False)
class Loaded:
    """
    A plugin in the harness.

    Args:
        name: Its name.
        plugin: The object or module.
        place: Its position in the list of H-2.
        scope: The agent it is for, None for all.
        required: It cannot be unloaded while an agent lives.
        fatal: The harness does not start without it.
        info: What is told of it.
    """

    name: str
    plugin: object
    owner: Owner
    place: Place
    scope: str | None
    required: bool
    fatal: bool
    info: PluginInfo
    registered: Registered | None = None
    started: bool = False
    _spent: float = 0.0

    @classmethod
    def make(
        cls,
        plugin: object,
        info: PluginInfo,
        place: Place,
        *,
        trusted: bool = True,
        required: bool = False,
        fatal: bool = False,
        scope: str | None = None,
    ) -> Loaded:
        """Prepare to load a plugin."""
        owner = Owner(info.name, trusted=trusted)
        return cls(info.name, plugin, owner, place, scope, required, fatal, attrs.evolve(info, state="loading"))

    def declare(self, hooks: Hooks) -> None:
        """
        Add the hookspecs it brings; done for all plugins before any implementation is looked at.

        Raises:
            PluginError: They cannot be added.
        """
        namespace = getattr(self.plugin, "hookspecs", None)
        if namespace is not None and namespace is not core_hookspecs:
            with acting_for(self.owner):
                hooks.declare(namespace, self.name)

    def register(self, hooks: Hooks, harness: Harness) -> None:
        """
        Put its implementations into effect and let it register what it brings.

        Raises:
            PluginError: An implementation cannot work, or `register` raised; everything is undone.
        """
        began = perf_counter()
        try:
            with acting_for(self.owner):
                self.registered = hooks.add(
                    self.plugin, name=self.name, owner=self.owner, place=self.place, scope=self.scope
                )
                hooks.register(harness=harness, registered=self.registered)
        except BaseException as error:  # noqa: BLE001 - handed on
            self.undo()
            self._raise(error, "its register hook failed")
        self._spent += perf_counter() - began

    async def start(self, harness: Harness) -> None:
        """
        Run `start(harness)`, if the plugin has it.

        Raises:
            PluginError: It raised; everything is undone.
        """
        began = perf_counter()
        start = getattr(self.plugin, "start", None)
        if start is not None:
            try:
                await self._run(start, harness)
            except BaseException as error:  # noqa: BLE001 - handed on
                await self.take_down(0)
                self._raise(error, "its start failed")
        self.started = True
        self._spent += perf_counter() - began
        hooks = sorted({each.hook for each in self.registered.found}) if self.registered else []
        self.info = attrs.evolve(
            self.info, state="loaded", hooks=tuple(hooks), load_ms=self.info.load_ms + self._spent * 1000
        )

    async def _run(self, function: Callable[..., Any], *args: object) -> None:
        """Call `start` or `stop` as the plugin; a plain function will do."""
        with acting_for(self.owner):
            result = function(*args)
            if is_awaitable(result):
                await result

    def _raise(self, error: BaseException, what: str) -> NoReturn:
        """Raise a `PluginError`; what stops the whole task stays what it is."""
        if blame(error, self.name).plugin is None or (isinstance(error, PluginError) and error.plugin == self.name):
            raise error
        message = f"plugin {self.name!r} cannot be loaded: {what}: {describe(error)}"
        raise PluginError(message, plugin=self.name) from error

    def undo(self) -> None:
        """Undo every registration, newest first."""
        for error in self.owner.undo_all():
            _log.error("a registration of plugin %s could not be undone: %s", self.name, error, exc_info=error)

    async def take_down(self, grace: float) -> None:
        """
        Undo its registrations, let running calls end, end the rest, then `stop()` it.

        Args:
            grace: Seconds running calls may go on.

        Raises:
            PluginError: Its `stop` raised; it is unloaded all the same.
        """
        self.info = attrs.evolve(self.info, state="unloading")
        self.undo()
        await self._end_calls(grace)
        await self._end_tasks()
        self.undo()  # what its last calls may have registered
        stop = getattr(self.plugin, "stop", None)
        if stop is None or not self.started:
            return
        self.started = False
        try:
            await self._run(stop)
        except BaseException as error:
            if blame(error, self.name).plugin is None:
                raise
            raise PluginError(
                f"plugin {self.name!r} is unloaded, but its stop failed: {describe(error)}", plugin=self.name
            ) from error
        finally:
            self.undo()

    async def _end_calls(self, grace: float) -> None:
        if await self.owner.idle(grace):
            return
        for call in self.owner.running:
            call.interrupt(PluginError(f"plugin {self.name!r} was unloaded while {call.what} was running",
                                       "PLUGIN_UNLOADED", plugin=self.name))  # fmt: skip
        if not await self.owner.idle(SETTLE_SECONDS):
            left = ", ".join(sorted(call.what for call in self.owner.running))
            _log.warning("plugin %s was unloaded; this does not end and is abandoned: %s", self.name, left)

    async def _end_tasks(self) -> None:
        tasks: set[asyncio.Task[Any]] = {each for each in self.owner.tasks if each is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            _log.warning("plugin %s was unloaded; these tasks do not end and are abandoned: %s", self.name, names)
