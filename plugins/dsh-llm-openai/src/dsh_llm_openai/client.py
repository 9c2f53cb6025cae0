"""
The SDK's client: made on first use, in a thread as far as the import goes, with its own retries off.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

__all__ = ["ClientSource", "import_ahead"]

_CONNECT: Final = 15.0
_importing: Final = threading.Event()


def import_ahead() -> None:
    """Start importing the SDK in a thread: it takes half a second, which the first request then need not wait."""
    if not _importing.is_set():
        _importing.set()
        threading.Thread(target=_import, name="dsh-import-openai", daemon=True).start()


def _import() -> Any:
    return importlib.import_module("openai")


class ClientSource:
    """
    Makes the client of one adapter and closes it, unless it was given.

    Args:
        base_url: Where the provider lives.
        timeout: Seconds to connect (at most 15), to send, and for the answer's head.
        headers: Sent with every request.
        given: An `AsyncOpenAI`, or an `httpx2.AsyncClient` to use below one; whoever gave it closes it.
        http: Which transport to make.
        from_environment: Whether the SDK's own environment variables are meant for this provider.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float | None,
        headers: Mapping[str, str],
        given: AsyncOpenAI | httpx2.AsyncClient | None,
        http: str,
        from_environment: bool,
    ) -> None:
        self._base_url = base_url
        self._timeout = timeout
        self._headers = dict(headers)
        self._given: Any = given
        self._http = http
        self._from_environment = from_environment
        self._client: AsyncOpenAI | None = None

    @property
    def has_own_key(self) -> bool:
        """Whether a client was given that knows its key itself."""
        return self._given is not None and hasattr(self._given, "chat")

    async def get(self, api_key: str | None) -> AsyncOpenAI:
        """The client, made on the first call."""
        if self._client is None:
            module = await asyncio.to_thread(_import)
            if self._client is None:  # another request may have come first
                self._client = self._make(module, api_key)
        return self._client

    async def aclose(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        client, self._client = self._client, None
        if client is not None and self._given is None:
            await client.close()

    def _make(self, module: Any, api_key: str | None) -> AsyncOpenAI:
        if self.has_own_key:
            given: AsyncOpenAI = self._given.with_options(max_retries=0)
            return given
        import httpx2

        connect = _CONNECT if self._timeout is None else min(_CONNECT, self._timeout)
        # reading has no limit of its own: the adapter's watch counts events, not bytes
        timeout = httpx2.Timeout(self._timeout, connect=connect, read=None)
        transport = self._given
        if transport is None and self._http == "aiohttp":
            transport = module.DefaultAioHttpClient(timeout=timeout)
        client: AsyncOpenAI = module.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=timeout,
            default_headers={**self._foreign_headers(module), **self._headers},
            http_client=transport,
        )
        if not self._from_environment:
            client.organization = client.project = None
        return client

    def _foreign_headers(self, module: Any) -> dict[str, Any]:
        """Headers that the environment sets for OpenAI, taken out for everybody else: they may hold secrets."""
        if self._from_environment:
            return {}
        lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
        return {line.partition(":")[0].strip(): module.Omit() for line in lines if ":" in line}
