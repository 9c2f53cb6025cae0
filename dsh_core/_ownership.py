"""
Who made a registration, and how it is undone.

A context variable names the plugin on whose behalf code runs: it is set round `register`, `start` and each
hook call, and child tasks inherit it. Whatever is registered meanwhile is written down with that owner, so
that unloading the plugin undoes it (H-7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["Owner", "Registration", "acting_for", "current_owner", "own"]

T = TypeVar("T")


class Registration:
    """
    One thing that was registered. Call it to undo the registration; a second call does nothing.

    Also a context manager that undoes on exit.
    """

    __slots__ = ("_owner", "_undo")

    def __init__(self, undo: Callable[[], object], owner: Owner | None = None) -> None:
        self._undo: Callable[[], object] | None = undo
        self._owner = owner

    def __call__(self) -> None:
        undo, self._undo = self._undo, None
        if undo is None:
            return
        if self._owner is not None:
            self._owner.forget(self)
        undo()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exc: object) -> None:
        self()


class Owner:
    """
    One loaded plugin as the owner of registrations and tasks.

    Args:
        name: The plugin's name.
        trusted: True for plugins handed in by code, False for those found through entry points (L-15).
    """

    __slots__ = ("_registrations", "name", "tasks", "trusted")

    def __init__(self, name: str, *, trusted: bool = True) -> None:
        self.name = name
        self.trusted = trusted
        self._registrations: dict[int, Registration] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def adopt(self, registration: Registration) -> None:
        """Write a registration down."""
        self._registrations[id(registration)] = registration

    def forget(self, registration: Registration) -> None:
        """Strike a registration that has been undone."""
        self._registrations.pop(id(registration), None)

    def undo_all(self) -> list[Exception]:
        """Undo every registration, newest first, and return what went wrong."""
        errors: list[Exception] = []
        for registration in list(reversed(self._registrations.values())):
            try:
                registration()
            except Exception as error:  # every other registration must still be undone
                errors.append(error)
        self._registrations.clear()
        return errors

    def __repr__(self) -> str:
        return f"<Owner {self.name!r}>"


_current: ContextVar[Owner | None] = ContextVar("dsh_owner", default=None)


def current_owner() -> Owner | None:
    """The plugin on whose behalf this code runs, or None for the embedder's own code."""
    return _current.get()


@contextmanager
def acting_for(owner: Owner | None) -> Iterator[None]:
    """Name `owner` as the plugin on whose behalf the body runs."""
    token = _current.set(owner)
    try:
        yield
    finally:
        _current.reset(token)


def own(undo: Callable[[], object]) -> Registration:
    """Make a `Registration` of `undo` that belongs to the current owner."""
    owner = _current.get()
    registration = Registration(undo, owner)
    if owner is not None:
        owner.adopt(registration)
    return registration


def spawn_owned(coro: Coroutine[Any, Any, T], name: str, owner: Owner | None) -> asyncio.Task[T]:
    """Start a task that ends with its owner."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    if owner is not None:
        owner.tasks.add(task)
        task.add_done_callback(owner.tasks.discard)
    return task
