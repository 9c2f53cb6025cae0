"""A model's name finds its adapter, and every request passes the hook (M-5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

import dsh_core
from dsh_core import hookimpl
from dsh_core._ownership import Owner, acting_for
from dsh_core.content import Finish, GenerateRequest
from dsh_core.errors import LlmError, PluginError
from dsh_core.hooks import Hooks
from dsh_core.llm import FinishChunk, LlmAdapter, LlmRegistry, StreamChunk, TextDelta
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, text

pytestmark = pytest.mark.anyio


class Adapter(LlmAdapter):
    """Counts what is opened and closed."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.opened = self.ended = self.closed = 0

    async def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        self.opened += 1
        try:
            yield TextDelta(0, "a")
            yield TextDelta(0, "b")
            yield FinishChunk(Finish("stop"))
        finally:
            self.ended += 1

    def context_window(self, model: str) -> int | None:
        return {"big": 1000}.get(model)

    async def aclose(self) -> None:
        self.closed += 1
        if self.broken:
            raise OSError("already gone")


@pytest.fixture
def registry() -> LlmRegistry:
    made = LlmRegistry(Hooks())
    made.register("acme", Adapter(), models=["small", "org/large"])
    made.register("other", Adapter(), models=["small", "only"])
    made.register("open", Adapter())
    return made


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("acme/small", ("acme", "small")),
        ("acme/unlisted", ("acme", "unlisted")),
        ("open/org/model:free", ("open", "org/model:free")),
        ("only", ("other", "only")),
        ("org/large", ("acme", "org/large")),
    ],
)
def test_an_address_names_provider_and_model(registry, address, found):
    """M-5: the model may hold slashes; a bare name is found if exactly one provider lists it."""
    assert registry.resolve(address) == found


def test_a_bare_name_that_two_providers_list_is_refused_with_both(registry):
    """M-5: the candidates are named as they have to be written."""
    with pytest.raises(LlmError, match=r"acme/small, other/small") as caught:
        registry.resolve("small")
    assert caught.value.code == "NO_ADAPTER"


@pytest.mark.parametrize("address", ["nowhere/x", "unknown", "acme/", "/x"])
def test_what_nobody_offers_is_refused_with_what_is_there(registry, address):
    """M-5: the message names the providers that are registered."""
    with pytest.raises(LlmError, match="acme, open, other") as caught:
        registry.resolve(address)
    assert caught.value.code == "NO_ADAPTER"


def test_a_misspelt_model_is_answered_with_the_nearest(registry):
    """M-5: a typing error is the usual reason."""
    with pytest.raises(LlmError, match="acme/small"):
        registry.resolve("acmee/small")


def test_no_model_at_all_names_the_ways_to_give_one(registry):
    """M-5: code or option, file, environment."""
    with pytest.raises(LlmError) as caught:
        registry.resolve("")
    assert caught.value.code == "NO_MODEL"
    for way in ("model=", "--model", "config.toml", "dsh.toml", "DSH_MODEL"):
        assert way in caught.value.message


def test_without_any_provider_the_message_says_what_to_install():
    """M-5: the first thing a new user may see."""
    with pytest.raises(LlmError, match="dsh-llm-openai"):
        LlmRegistry(Hooks()).resolve("acme/x")


def test_models_are_listed_sorted_as_addresses(registry):
    """M-5: what is listed can be used as it is."""
    assert registry.models() == ["acme/org/large", "acme/small", "other/only", "other/small"]


def test_a_second_provider_of_one_name_is_refused():
    """H-7: both owners are named, and the first stays."""
    registry, first = LlmRegistry(Hooks()), Adapter()
    with acting_for(Owner("one")):
        registry.register("acme", first, models=["m"])
    with acting_for(Owner("two")), pytest.raises(PluginError, match=r"'two' registers.*already by plugin 'one'"):
        registry.register("acme", Adapter())
    assert registry.models() == ["acme/m"]


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_provider_needs_a_name_that_can_be_addressed(name):
    """M-5: a slash would end the name early."""
    with pytest.raises(ValueError, match="provider"):
        LlmRegistry(Hooks()).register(name, Adapter())


def test_unloading_the_owner_undoes_the_registration():
    """H-7: and the name is free again."""
    registry, owner = LlmRegistry(Hooks()), Owner("one")
    with acting_for(owner):
        registry.register("acme", Adapter(), models=["m"])
    assert owner.undo_all() == []
    assert registry.models() == []
    registry.register("acme", Adapter())


def test_an_old_registration_does_not_undo_a_newer_one():
    """H-7: undoing twice is harmless."""
    registry = LlmRegistry(Hooks())
    old = registry.register("acme", Adapter())
    old()
    registry.register("acme", Adapter(), models=["m"])
    old()
    assert registry.models() == ["acme/m"]


def test_the_context_window_is_the_adapters(registry):
    """M-5: None where it is not known."""
    assert registry.context_window("acme", "big") == 1000
    assert registry.context_window("acme", "x") is None
    assert registry.context_window("nobody", "big") is None


async def test_without_a_hook_the_stream_is_the_adapters_own(registry):
    """M-1: nothing stands between the loop and the adapter."""
    stream = registry.stream(GenerateRequest(provider="acme", model="m"))
    assert stream.ag_code is Adapter.stream.__code__
    assert [chunk.text async for chunk in stream if isinstance(chunk, TextDelta)] == ["a", "b"]


async def test_a_request_for_an_unknown_provider_fails(registry):
    """M-3: NO_ADAPTER."""
    with pytest.raises(LlmError) as caught:
        await anext(registry.stream(GenerateRequest(provider="nobody", model="m")))
    assert caught.value.code == "NO_ADAPTER"


async def test_every_adapter_is_closed_and_nothing_is_raised(caplog):
    """M-1: one that cannot be closed does not keep the others open."""
    registry, broken, whole = LlmRegistry(Hooks()), Adapter(broken=True), Adapter()
    registry.register("a", broken)
    registry.register("b", whole)
    with caplog.at_level(logging.WARNING, "dsh"):
        await registry.aclose()
    assert (broken.closed, whole.closed) == (1, 1)
    assert "could not be closed" in caplog.text


async def test_an_adapter_is_closed_once_nobody_uses_it(registry):
    """H-7: it goes with the last of its registrations."""
    shared = Adapter()
    first, second = registry.register("one", shared), registry.register("two", shared)
    first()
    await asyncio.sleep(0.01)
    assert shared.closed == 0
    second()
    await registry.aclose()
    assert shared.closed == 1


async def test_an_address_without_a_provider_is_resolved_on_the_way(registry):
    """M-5: a plugin that asks a model by itself gives the whole address in `model`."""
    stream = registry.stream(GenerateRequest(model="acme/small"))
    assert await anext(stream) == TextDelta(0, "a")
    await stream.aclose()


REQUEST = GenerateRequest(provider="scripted", model="x")


class Louder:
    """Rewrites a stream, as a redacting plugin would."""

    name = "louder"

    @hookimpl
    async def llm_stream(self, request, call_next):
        inner = await call_next()

        async def louder():
            async for chunk in inner:
                yield TextDelta(chunk.index, chunk.text.upper()) if isinstance(chunk, TextDelta) else chunk

        return louder()


async def test_plugins_may_rewrite_the_stream():
    """L-6: redaction of streams belongs here; the loop, the log and the user see what comes out."""
    plugins = [ScriptedPlugin(ScriptedAdapter([text("quiet")])), Louder()]
    async with dsh_core.open(model="scripted/x", plugins=plugins, autoload=False) as chat:
        shown = [chunk.text async for chunk in chat.harness.llm.stream(REQUEST) if isinstance(chunk, TextDelta)]
    assert "".join(shown) == "QUIET"


async def test_leaving_a_rewritten_stream_closes_the_real_one():
    """M-1: cancellation closes the connection at once, also behind a plugin that does not hand it on."""
    adapter = Adapter()
    async with dsh_core.Harness(plugins=[Louder()], autoload=False) as harness:
        harness.llm.register("acme", adapter)
        stream = harness.llm.stream(GenerateRequest(provider="acme", model="m"))
        assert (await anext(stream)).text == "A"
        await stream.aclose()
        assert (adapter.opened, adapter.ended) == (1, 1)
