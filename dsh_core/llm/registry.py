"""
Which adapter answers for which model (M-5).
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

import attrs

from dsh_core._ownership import Registration, current_owner, own
from dsh_core.errors import LlmError, PluginError

if TYPE_CHECKING:
    from dsh_core.content import GenerateRequest
    from dsh_core.hooks import Hooks
    from dsh_core.llm.seam import LlmAdapter, StreamChunk

__all__ = ["LlmRegistry"]

_log: Final = logging.getLogger("dsh")
_WAYS: Final = (
    "give one with model=… (or --model), with `model` in config.toml or dsh.toml, or in the environment as DSH_MODEL"
)


@attrs.frozen
class _Entry:
    adapter: LlmAdapter
    models: tuple[str, ...] | None
    owner: str


class LlmRegistry:
    """
    The adapters of a harness, by provider.

    Args:
        hooks: The facade, for `llm_stream`.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._entries: dict[str, _Entry] = {}

    def register(self, provider: str, adapter: LlmAdapter, models: Iterable[str] | None = None) -> Registration:
        """
        Add an adapter.

        Args:
            provider: Name before the slash in a model's address.
            adapter: The adapter; it is closed when the registration is undone by the end of the harness.
            models: The models it offers, where they are known.

        Raises:
            PluginError: The provider is taken; the message names both owners.
            ValueError: The provider's name is empty or has a slash.
        """
        if not provider or "/" in provider:
            raise ValueError(f"a provider's name must not be empty or contain a slash, as {provider!r} does")
        owner = current_owner()
        name = owner.name if owner is not None else "the embedder"
        taken = self._entries.get(provider)
        if taken is not None:
            raise PluginError(
                f"provider {provider!r} is registered by {taken.owner!r} already, so {name!r} cannot register it too",
                "DUPLICATE_ADAPTER",
                plugin=name,
            )
        entry = _Entry(adapter, tuple(models) if models is not None else None, name)
        self._entries[provider] = entry

        def undo() -> None:
            if self._entries.get(provider) is entry:
                del self._entries[provider]

        return own(undo)

    def models(self) -> list[str]:
        """The addresses of all models that are known by name."""
        return sorted(
            f"{provider}/{model}" for provider, entry in self._entries.items() for model in entry.models or ()
        )

    def resolve(self, model: str | None) -> tuple[str, str]:
        """
        Provider and model of an address.

        Args:
            model: `provider/model`, or a bare name that exactly one provider offers.

        Raises:
            LlmError: `NO_MODEL` for no address at all, `NO_ADAPTER` for one that nobody answers for.
        """
        if not model:
            raise LlmError("NO_MODEL", f"no model is set: {_WAYS}")
        provider, slash, name = model.partition("/")
        if slash and provider in self._entries and name:
            return provider, name
        offering = [known for known, entry in self._entries.items() if model in (entry.models or ())]
        if len(offering) == 1:
            return offering[0], model
        raise LlmError("NO_ADAPTER", self._unresolved(model, provider if slash else "", offering))

    def _unresolved(self, model: str, provider: str, offering: list[str]) -> str:
        if offering:
            candidates = ", ".join(f"{known}/{model}" for known in sorted(offering))
            return f"model {model!r} is offered by several providers; say which: {candidates}"
        known = sorted(self._entries)
        if not known:
            return f"no adapter is loaded, so nobody answers for model {model!r}; install one, such as dsh-llm-openai"
        near = difflib.get_close_matches(model, [*self.models(), *(f"{one}/…" for one in known)], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        what = f"no adapter is registered for provider {provider!r}" if provider else f"no provider offers {model!r}"
        return f"{what} (registered: {', '.join(known)}){hint}; write provider/model, and check the provider's key"

    def context_window(self, provider: str, model: str) -> int | None:
        """Tokens that fit into one request, or None where that is not known."""
        entry = self._entries.get(provider)
        return entry.adapter.context_window(model) if entry is not None else None

    def stream(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        """
        Run one request through the `llm_stream` hook.

        Raises:
            LlmError: `NO_ADAPTER`, or what the adapter raises.
        """
        if not self._hooks.wants("llm_stream", request.session_id):
            return self._adapter(request).stream(request)
        return self._hooked(request)

    def _adapter(self, request: GenerateRequest) -> LlmAdapter:
        entry = self._entries.get(request.provider)
        if entry is None:
            raise LlmError("NO_ADAPTER", self._unresolved(request.model, request.provider, []))
        return entry.adapter

    async def _hooked(self, request: GenerateRequest) -> AsyncIterator[StreamChunk]:
        async def open_stream() -> AsyncIterator[StreamChunk]:
            return self._adapter(request).stream(request)

        stream = await self._hooks.llm_stream(request=request, open_stream=open_stream)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def aclose(self) -> None:
        """Close every adapter; failures are logged."""
        for provider, entry in list(self._entries.items()):
            try:
                await entry.adapter.aclose()
            except Exception:  # the others must still be closed
                _log.exception("the adapter of provider %s could not be closed", provider)
