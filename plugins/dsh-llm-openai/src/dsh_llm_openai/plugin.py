"""
The plugin: which providers there are, and an adapter for each.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from dsh_core import hookimpl
from dsh_core.errors import ConfigError, LlmError
from dsh_llm_openai.adapter import DEFAULT_IDLE_TIMEOUT, DEFAULT_TIMEOUT, OpenAIAdapter
from dsh_llm_openai.client import import_ahead
from dsh_llm_openai.profiles import PROFILES

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.harness import Harness

__all__ = ["OpenAIConfig", "OpenAIPlugin", "ProviderConfig"]

_LOCAL: Final = "local"
_LOCAL_URL: Final = "DSH_LOCAL_BASE_URL"


@attrs.frozen(kw_only=True)
class ProviderConfig:
    """
    One provider: `[plugins.llm-openai.providers.NAME]`. For a known name everything is optional.

    Args:
        base_url: Where the provider lives.
        api_key_env: Environment variable with the key; none is sent when left out for an unknown provider.
        models: The models it offers; None takes any name.
        profile: Name of a profile; the provider's own name if that is known, else `generic`.
        context_window: Tokens that fit into a request.
        context_windows: The same for single models.
        timeout: Seconds to connect, to send, and until the answer begins.
        idle_timeout: Seconds without a real event.
        headers: Sent with every request; no secrets.
        extra_body: Members of every request.
        http: `aiohttp` uses the SDK's other transport (extra `dsh-llm-openai[aiohttp]`).
    """

    base_url: str | None = None
    api_key_env: str | None = None
    models: tuple[str, ...] | None = None
    profile: str | None = None
    context_window: int | None = None
    context_windows: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    timeout: float = DEFAULT_TIMEOUT
    idle_timeout: float = DEFAULT_IDLE_TIMEOUT
    headers: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    extra_body: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    http: Literal["httpx", "aiohttp"] = "httpx"


@attrs.frozen(kw_only=True)
class OpenAIConfig:
    """
    `[plugins.llm-openai]`.

    Args:
        providers: Providers by name, as used in `NAME/model`.
        discover: Register known providers whose key variable is set in the environment.
    """

    providers: Mapping[str, ProviderConfig] = attrs.field(factory=dict, hash=False)
    discover: bool = True


class OpenAIPlugin:
    """
    Registers an adapter for each provider that is configured or whose key is in the environment.

    Args:
        config: The configuration, as structured from `[plugins.llm-openai]`.
    """

    name = "llm-openai"
    Config = OpenAIConfig

    def __init__(self, config: OpenAIConfig | None = None) -> None:
        self.config = OpenAIConfig() if config is None else config
        self._registered: dict[str, OpenAIAdapter] = {}

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the adapters; a provider that cannot work is a `ConfigError` that names it."""
        providers = self._providers()
        adapters = {name: _adapter(name, provider) for name, provider in providers.items()}
        for name, adapter in adapters.items():
            self._add(harness, name, adapter, providers[name].models)

    @hookimpl
    def agent_created(self, agent: Agent) -> None:
        """
        Prepare for the agent's model: import the SDK ahead, and register a known provider that it names.

        A known provider without its key is registered here, so that the request fails with the name of the
        variable to set instead of "no adapter".
        """
        harness = agent.harness
        model = agent.options.model or harness.config.model or ""
        provider = model.partition("/")[0] if "/" in model else ""
        if self.config.discover and _is_place(provider) and not _is_registered(harness, provider):
            self._add(harness, provider, _adapter(provider, ProviderConfig()), None)
        if provider in self._registered:
            import_ahead()

    async def stop(self) -> None:
        """Close the connections."""
        adapters = list(self._registered.values())
        self._registered.clear()
        for adapter in adapters:
            await adapter.aclose()

    def _add(self, harness: Harness, name: str, adapter: OpenAIAdapter, models: tuple[str, ...] | None) -> None:
        harness.llm.register(name, adapter, models=models)
        self._registered[name] = adapter

    def _providers(self) -> dict[str, ProviderConfig]:
        providers = dict(self.config.providers)
        if self.config.discover:
            for profile in PROFILES.values():
                if profile.api_key_env and os.environ.get(profile.api_key_env):
                    providers.setdefault(profile.name, ProviderConfig())
            if base_url := os.environ.get(_LOCAL_URL):
                providers.setdefault(_LOCAL, ProviderConfig(base_url=base_url))
        return providers


def _is_place(name: str) -> bool:
    return name in PROFILES and PROFILES[name].base_url is not None


def _is_registered(harness: Harness, name: str) -> bool:
    try:
        return harness.llm.resolve(f"{name}/any")[0] == name
    except LlmError:
        return False


def _adapter(name: str, provider: ProviderConfig) -> OpenAIAdapter:
    where = f"plugins.llm-openai.providers.{name}"
    profile = provider.profile or (name if name in PROFILES else "generic")
    if profile not in PROFILES:
        raise ConfigError(f"{where}.profile: unknown profile {profile!r}; choose one of {', '.join(PROFILES)}")
    if provider.http == "aiohttp" and importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(f'{where}.http: aiohttp is not installed; run: pip install "dsh-llm-openai[aiohttp]"')
    base_url = provider.base_url or (os.environ.get(_LOCAL_URL) if name == _LOCAL else None)
    if base_url is None and PROFILES[profile].base_url is None:
        raise ConfigError(f'{where}: needs a base_url, such as base_url = "http://127.0.0.1:8080/v1"')
    return OpenAIAdapter(
        base_url,
        profile=profile,
        timeout=provider.timeout,
        idle_timeout=provider.idle_timeout,
        name=name,
        api_key_env=provider.api_key_env or (PROFILES[profile].api_key_env if name == profile else None),
        headers=provider.headers,
        extra_body=provider.extra_body,
        context_window=_windows(provider),
        http=provider.http,
    )


def _windows(provider: ProviderConfig) -> int | Mapping[str, int] | None:
    return provider.context_windows or provider.context_window
