"""
The providers of a harness, and how a model's name finds its adapter (M-5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core._ownership import Owner, Registration, current_owner, own
from dsh_core.errors import HookError, LlmError, PluginError

if TYPE_CHECKING:
    from dsh_core.content import GenerateRequest
    from dsh_core.hooks import Hooks
    from dsh_core.llm.seam import LlmAdapter, StreamChunk

__all__ = ["LlmRegistry"]

log: Final = logging.getLogger("dsh")

_CLOSE_GRACE: Final = 5.0
_SHOWN: Final = 8

_NO_MODEL: Final = (
    "no model is set; give one as provider/model in one of three ways: model=… in code or --model on the command "
    "line, `model` in config.toml or dsh.toml, or the environment variable DSH_MODEL"
)


@attrs.frozen(eq=False)
class _Provider:
    name: str
    adapter: LlmAdapter
    models: tuple[str, ...]
    owner: Owner | None

    @property
    def origin(self) -> str:
        return "the embedding program" if self.owner is None else f"plugin {self.owner.name!r}"


class LlmRegistry:
    """
    The providers of a harness.

    Args:
        hooks: The harness's hooks; `llm_stream` runs round every request.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._providers: dict[str, _Provider] = {}
        self._gone: list[LlmAdapter] = []
        self._closing: set[asyncio.Task[None]] = set()

    def register(self, provider: str, adapter: LlmAdapter, models: Iterable[str] | None = None) -> Registration:
        """
        Add a provider.

        Args:
            provider: Its name, the part before the slash of `provider/model`.
            adapter: What runs its requests; may serve several providers.
            models: Names to list, and to find when they are given without the provider; others can be asked
                for all the same.

        Returns:
            Undoes the registration when called. An adapter that no provider uses any more is closed.

        Raises:
            PluginError: The name is taken (`DUPLICATE_PROVIDER`); both owners are named and nothing changes.
            ValueError: The name is blank or holds a slash or white space.
        """
        if not provider or "/" in provider or any(character.isspace() for character in provider):
            raise ValueError(f"a provider's name must be a word without a slash, not {provider!r}")
        entry = _Provider(provider, adapter, tuple(models or ()), current_owner())
        self._refuse_duplicate(entry)
        self._providers[provider] = entry
        return own(lambda: self._remove(entry))

    def _refuse_duplicate(self, entry: _Provider) -> None:
        taken = self._providers.get(entry.name)
        if taken is not None:
            raise PluginError(
                f"{entry.origin} registers LLM provider {entry.name!r}, which is registered already by "
                f"{taken.origin}; rename one of them, or leave one plugin out",
                "DUPLICATE_PROVIDER",
                plugin=entry.owner.name if entry.owner else None,
            )

    def _remove(self, entry: _Provider) -> None:
        if self._providers.get(entry.name) is not entry:
            return
        del self._providers[entry.name]
        self._gone.append(entry.adapter)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop runs: aclose() is still to come
        task = loop.create_task(self._close_gone(), name=f"close LLM provider {entry.name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- finding -----------------------------------------------------------------------------------------

    def providers(self) -> list[str]:
        """The names of all providers, sorted."""
        return sorted(self._providers)

    def models(self) -> list[str]:
        """The models that providers list, as `provider/model`, sorted."""
        return sorted({f"{entry.name}/{model}" for entry in self._providers.values() for model in entry.models})

    def resolve(self, model: str) -> tuple[str, str]:
        """
        The provider and the model that a name means (M-5).

        Args:
            model: `provider/model`, where the model may hold further slashes, or the bare name of a model that
                exactly one provider lists.

        Raises:
            LlmError: No name was given (`NO_MODEL`), or nobody or more than one offers it (`NO_ADAPTER`).
        """
        if not model or not model.strip():
            raise LlmError("NO_MODEL", _NO_MODEL)
        provider, slash, rest = model.partition("/")
        if slash and rest and provider in self._providers:
            return provider, rest
        offering = sorted(entry.name for entry in self._providers.values() if model in entry.models)
        if len(offering) == 1:
            return offering[0], model
        raise LlmError("NO_ADAPTER", self._unresolved(model, offering))

    def _unresolved(self, model: str, offering: list[str]) -> str:
        if offering:
            candidates = ", ".join(f"{name}/{model}" for name in offering)
            return f"model {model!r} is offered by more than one provider; say which: {candidates}"
        provider, slash, rest = model.partition("/")
        if slash and not rest:
            said = f"{model!r} names no model behind the provider"
        elif slash:
            said = f"no provider is called {provider!r}, and none lists model {model!r}"
        else:
            said = f"no provider lists model {model!r}; write provider/model"
        return f"{said}. {self._hint(model)}"

    def _hint(self, model: str) -> str:
        if not self._providers:
            return (
                "No provider is registered: install an adapter such as dsh-llm-openai and set its key, "
                "or call harness.llm.register(…)"
            )
        nearest = self._nearest(model)
        suggestion = f"Did you mean {' or '.join(nearest)}? " if nearest else ""
        return f"{suggestion}Registered providers: {_listed(self.providers())}"

    def _nearest(self, model: str) -> list[str]:
        from difflib import get_close_matches

        known = self.models()
        found = get_close_matches(model, known, n=3, cutoff=0.7)
        bare = {name.partition("/")[2]: name for name in known}
        found += [bare[name] for name in get_close_matches(model, bare, n=3, cutoff=0.7)]
        provider, slash, rest = model.partition("/")
        if slash and rest:
            found += [f"{name}/{rest}" for name in get_close_matches(provider, self._providers, n=1, cutoff=0.7)]
        return list(dict.fromkeys(found))[:3]

    def context_window(self, provider: str, model: str) -> int | None:
        """Tokens that fit into one request of a model, or None where that is not known."""
        entry = self._providers.get(provider)
        return None if entry is None else entry.adapter.context_window(model)

    # -- running a request -------------------------------------------------------------------------------

    def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """
        Run a request inside the implementations of `llm_stream`.

        Args:
            request: The request; a model without its provider is resolved first.

        Returns:
            The chunks as they come. Where nobody implements the hook, this is the adapter's own iterator.

        Raises:
            LlmError: There is no such provider.
        """
        entry = self._providers.get(request.provider)
        if entry is None:
            address = f"{request.provider}/{request.model}" if request.provider else request.model
            provider, model = self.resolve(address)
            entry, request = self._providers[provider], attrs.evolve(request, provider=provider, model=model)
        if self._hooks.wants("llm_stream", request.session_id):
            return self._hooked(entry.adapter, request)
        return entry.adapter.stream(request)

    async def _hooked(self, adapter: LlmAdapter, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        # A wrapper that iterates over the real stream does not close it when it is closed itself.
        opened: list[object] = []

        async def open_stream() -> AsyncIterator[StreamChunk]:
            opened.append(adapter.stream(request))
            return opened[-1]  # type: ignore[return-value]

        try:
            stream = await self._hooks.llm_stream(request=request, open_stream=open_stream)
            if not hasattr(stream, "__aiter__"):
                raise HookError(
                    f"llm_stream: a plugin returned {type(stream).__name__!r} in place of a stream; return what "
                    "the real thing gave, or an async generator over it",
                    hook="llm_stream",
                )
            opened.append(stream)
            async for chunk in stream:
                yield chunk
        finally:
            while opened:  # the outermost first
                await _close(opened.pop())

    # -- closing -----------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close every adapter, once each. What goes wrong is logged; nothing is raised."""
        self._gone += [entry.adapter for entry in self._providers.values()]
        self._providers.clear()
        await self._close_gone()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _close_gone(self) -> None:
        gone, self._gone = self._gone, []
        used = {id(entry.adapter) for entry in self._providers.values()}
        for adapter in {id(adapter): adapter for adapter in gone if id(adapter) not in used}.values():
            try:
                async with asyncio.timeout(_CLOSE_GRACE):
                    await adapter.aclose()
            except Exception:  # every other adapter must still be closed
                log.warning("LLM adapter %s could not be closed", type(adapter).__name__, exc_info=True)


async def _close(stream: object) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
