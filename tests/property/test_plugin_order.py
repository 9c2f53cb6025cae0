"""The dispatcher against stock pluggy: random plugin sets, same call log, same outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import attrs
import pluggy
import pytest

from dsh_core._markers import hookimpl, hookspec
from dsh_core._ownership import Owner, acting_for
from dsh_core.errors import HookError
from dsh_core.hooks import Hooks

pytestmark = pytest.mark.anyio

INITIAL = 0


class Specs:
    """The hooks under test."""

    @hookspec(mode="transform", value="value")
    def change(self, agent: Any, value: Any) -> Any:
        """Change a value."""

    @hookspec(mode="first")
    def answer(self, agent: Any, value: Any) -> Any:
        """Answer first."""

    @hookspec(mode="checkpoint")
    def visit(self, agent: Any, value: Any) -> Any:
        """Visit."""

    @hookspec(mode="check")
    def inspect(self, agent: Any, value: Any) -> Any:
        """Inspect."""


class StockSpecs:
    """The same hooks as stock pluggy knows them."""

    mark = pluggy.HookspecMarker("dsh")

    @mark
    def change(self, agent: Any, value: Any) -> Any: ...

    @mark(firstresult=True)
    def answer(self, agent: Any, value: Any) -> Any: ...

    @mark
    def visit(self, agent: Any, value: Any) -> Any: ...

    @mark
    def inspect(self, agent: Any, value: Any) -> Any: ...


class Boom(Exception):
    """Raised by implementations and wrappers; its argument says by which."""


@attrs.frozen
class Impl:
    """A random implementation: what it does is decided beforehand, how it is written is not."""

    number: int
    band: str
    wrapper: bool
    behaviour: str
    takes_agent: bool
    suspends: bool
    is_async: bool


@attrs.frozen
class Agent:
    id: str


def _random_impl(rng: random.Random, number: int, hook: str) -> Impl:
    wrapper = rng.random() < 0.35
    if wrapper:
        behaviours = ["pass"] * 4 + ["swallow", "reraise", "raise-before", "raise-after"]
        if hook in ("change", "answer"):
            behaviours += ["replace"] * 2
    else:
        behaviours = ["none"] * 3
        if hook in ("change", "answer"):
            behaviours += ["value"] * 3
        if hook != "answer":  # there a failure only means that the next one is asked
            behaviours += ["raise"]
    return Impl(
        number,
        rng.choice(["", "", "", "tryfirst", "trylast"]),
        wrapper,
        rng.choice(behaviours),
        rng.random() < 0.5,
        rng.random() < 0.3,
        hook != "inspect" and not wrapper and rng.random() < 0.6,
    )


def _act(impl: Impl, log: list[Any], seen: Any) -> Any:
    log.append(("call", impl.number, seen))
    if impl.behaviour == "raise":
        raise Boom(impl.number)
    return 100 + impl.number if impl.behaviour == "value" else None


def _body(impl: Impl, log: list[Any], *, stock: bool, hands_on: bool) -> Callable[..., Any]:
    """One implementation as a method; stock pluggy hands no value on, so there it is not logged."""

    def seen(value: Any) -> Any:
        return None if hands_on else value

    async def coroutine(self: Any, value: Any) -> Any:
        if impl.suspends:
            await asyncio.sleep(0)
        return _act(impl, log, seen(value))

    async def coroutine_with_agent(self: Any, agent: Any, value: Any) -> Any:
        return await coroutine(self, value)

    def plain(self: Any, value: Any) -> Any:
        return _act(impl, log, seen(value))

    def plain_with_agent(self: Any, agent: Any, value: Any) -> Any:
        return _act(impl, log, seen(value))

    if impl.is_async and not stock:
        return coroutine_with_agent if impl.takes_agent else coroutine
    return plain_with_agent if impl.takes_agent else plain


def _wrapper(impl: Impl, log: list[Any], last: Callable[[Any], Any]) -> Callable[..., Any]:
    def wrap(self: Any, value: Any) -> Any:
        log.append(("enter", impl.number))
        if impl.behaviour == "raise-before":
            raise Boom(impl.number)
        try:
            result = yield
        except Boom as error:
            log.append(("failed", impl.number, error.args))
            if impl.behaviour == "swallow":
                return None if last is _nothing else 1000 + impl.number
            if impl.behaviour == "reraise":
                raise Boom("instead", impl.number) from error
            raise
        log.append(("leave", impl.number, last(result)))
        if impl.behaviour == "raise-after":
            raise Boom(impl.number)
        return 1000 + impl.number if impl.behaviour == "replace" else result

    return wrap


def _nothing(result: Any) -> Any:
    return None


def _last(result: Any) -> Any:
    """What a chain of stock pluggy came to: the last of its results."""
    if isinstance(result, list):
        return result[-1] if result else INITIAL
    return result


def _plugin(impls: list[Impl], hook: str, log: list[Any], *, stock: bool) -> object:
    last = _nothing if hook in ("visit", "inspect") else _last if stock and hook == "change" else lambda result: result
    members: dict[str, Any] = {}
    for impl in impls:
        function = (
            _wrapper(impl, log, last) if impl.wrapper else _body(impl, log, stock=stock, hands_on=hook == "change")
        )
        options = {impl.band: True} if impl.band else {}
        members[f"impl_{impl.number:03}"] = hookimpl(specname=hook, wrapper=impl.wrapper, **options)(function)
    return type("Plugin", (), members)()


def _stock_outcome(plugins: list[list[Impl]], hook: str) -> tuple[list[Any], Any]:
    log: list[Any] = []
    manager = pluggy.PluginManager("dsh")
    manager.add_hookspecs(StockSpecs)
    for impls in reversed(plugins):
        manager.register(_plugin(impls, hook, log, stock=True))
    try:
        result = getattr(manager.hook, hook)(agent=Agent("a"), value=INITIAL)
    except Boom as error:
        return log, ("raised", error.args)
    if hook in ("visit", "inspect"):
        return log, ("returned", None)
    return log, ("returned", _last(result) if hook == "change" else result)


async def _our_outcome(hooks: Hooks, log: list[Any], hook: str) -> tuple[list[Any], Any]:
    log.clear()
    contained: list[BaseException] = []
    hooks.set_reporter(lambda hook, plugin, error, arguments: contained.append(error))
    try:
        result = hooks.call(hook, agent=Agent("child"), value=INITIAL)
        if hook != "inspect":
            result = await result
    except HookError as error:
        return log, ("raised", error.__cause__.args if isinstance(error.__cause__, Boom) else error)
    except Boom as error:
        return log, ("raised", error.args)
    if contained:  # what a wrapper of a `first` hook raises means "no answer" to the caller
        assert result is None
        return log, ("raised", contained[-1].args)
    return log, ("returned", result)


def _groups(rng: random.Random, count: int) -> list[int]:
    """Groups of the list of H-2: 4 is agent-scoped, 5 built-in."""
    return sorted(rng.choice([0, 1, 2, 3, 4, 5]) for _ in range(count))


async def _compare(seed: int) -> None:
    rng = random.Random(seed)
    hook = rng.choice(["change", "answer", "visit", "inspect"])
    groups = _groups(rng, rng.randint(0, 6))
    numbers = iter(range(1000))
    plugins = [[_random_impl(rng, next(numbers), hook) for _ in range(rng.choice([1, 1, 1, 2]))] for _ in groups]
    log: list[Any] = []
    hooks = Hooks()
    hooks.declare(Specs, "specs")
    hooks.open_scope("parent")
    hooks.open_scope("child", "parent")
    owners = [Owner(f"p{index}") for index in range(len(plugins))]
    order = list(range(len(plugins)))
    rng.shuffle(order)  # the list decides, not the sequence of registrations
    for index in order:
        scope = rng.choice(["child", "parent"]) if groups[index] == 4 else None
        with acting_for(owners[index]):
            hooks.add(
                _plugin(plugins[index], hook, log, stock=False),
                name=f"p{index}",
                owner=owners[index],
                place=(groups[index], index),
                scope=scope,
            )
    assert await _our_outcome(hooks, log, hook) == _stock_outcome(plugins, hook), f"seed {seed}, hook {hook}"
    gone = {index for index in order if rng.random() < 0.3}
    for index in gone:
        assert owners[index].undo_all() == []
    left = [impls for index, impls in enumerate(plugins) if index not in gone]
    assert await _our_outcome(hooks, log, hook) == _stock_outcome(left, hook), f"seed {seed}, hook {hook}, unloaded"


@pytest.mark.parametrize("block", range(6))
async def test_random_plugin_sets_run_as_in_stock_pluggy(block: int) -> None:
    """H-1, H-2: same call log and outcome as pluggy with the plugins registered in the list's reverse order."""
    for seed in range(block * 500, (block + 1) * 500):
        await _compare(seed)


async def test_the_comparison_would_notice_a_wrong_order() -> None:
    """H-2: the generator makes sets in which order matters."""
    differs = 0
    for seed in range(200):
        rng = random.Random(seed)
        impls = [[_random_impl(rng, number, "change")] for number in range(4)]
        differs += _stock_outcome(impls, "change") != _stock_outcome(impls[::-1], "change")
    assert differs > 100
