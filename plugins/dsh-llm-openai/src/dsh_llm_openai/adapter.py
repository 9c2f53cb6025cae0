"""
The adapter: one request, one stream (M-1).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from dsh_core.errors import LlmError
from dsh_core.llm.seam import LlmAdapter, StreamChunk
from dsh_llm_openai.answer import Answer
from dsh_llm_openai.body import BodyWriter
from dsh_llm_openai.client import ClientSource
from dsh_llm_openai.faults import Endpoint, classify
from dsh_llm_openai.profiles import Profile, profile_named
from dsh_llm_openai.translate import Translator
from dsh_llm_openai.watch import Silence, SilenceWatch

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

    from dsh_core.content import GenerateRequest

__all__ = ["DEFAULT_IDLE_TIMEOUT", "DEFAULT_TIMEOUT", "OpenAIAdapter"]

DEFAULT_TIMEOUT: Final = 600.0
DEFAULT_IDLE_TIMEOUT: Final = 300.0


class OpenAIAdapter(LlmAdapter):
    """
    Streams chat completions from one provider.

    Args:
        base_url: Where the provider lives; the profile's own place when left out.
        api_key: The key; when left out it is read from `api_key_env` at each request.
        profile: A known profile's name, or a `Profile`.
        timeout: Seconds to connect, to send the request, and until the answer begins; None for no limit.
        idle_timeout: Seconds without a real event (heartbeats do not count); None for no limit.
        client: An `AsyncOpenAI`, or an `httpx2.AsyncClient` to use below one. Whoever gave it closes it.
        name: Name of the provider in messages; the profile's when left out.
        api_key_env: Environment variable with the key; the profile's when left out.
        headers: Sent with every request.
        extra_body: Members of every request.
        context_window: Tokens that fit into a request, for all models or by model.
        http: `aiohttp` uses the SDK's other transport, which costs less per event (extra `[aiohttp]`).

    Raises:
        ValueError: No such profile, or no base_url although the profile has none.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | Profile = "openai",
        timeout: float | None = DEFAULT_TIMEOUT,
        idle_timeout: float | None = DEFAULT_IDLE_TIMEOUT,
        client: AsyncOpenAI | httpx2.AsyncClient | None = None,
        name: str | None = None,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        context_window: int | Mapping[str, int] | None = None,
        http: Literal["httpx", "aiohttp"] = "httpx",
    ) -> None:
        self.profile = profile_named(profile)
        self.name = name or self.profile.name
        # a key must not go to a place it was not meant for, so another base_url asks for a key of its own
        own_place = base_url is None or base_url.rstrip("/") == self.profile.base_url
        self._key_env = api_key_env or (self.profile.api_key_env if own_place else None)
        self.base_url = (base_url or _from_env(self.profile.base_url_env) or self.profile.base_url or "").rstrip("/")
        if not self.base_url and not hasattr(client, "chat"):
            raise ValueError(f"the provider {self.name!r} needs a base_url, such as http://127.0.0.1:8080/v1")
        self._api_key = api_key
        self._timeout = timeout
        self._idle_timeout = idle_timeout
        self._context_window = context_window
        self._writer = BodyWriter(self.profile, extra_body)
        self._source = ClientSource(
            self.base_url,
            timeout=timeout,
            headers=headers or {},
            given=client,
            http=http,
            from_environment=own_place and self.profile.base_url_env is not None,
        )

    def stream(self, request: GenerateRequest) -> AsyncGenerator[StreamChunk, None]:
        """
        Run one request.

        Args:
            request: The request, whole. Tools in it carry their wire names already (T-4).

        Returns:
            The chunks. Closing or cancelling the iterator closes the connection at once.

        Raises:
            LlmError: While iterating, with a code of M-3.
        """
        return self._stream(request)

    def context_window(self, model: str) -> int | None:
        """Tokens that fit into one request of `model`, as configured."""
        if isinstance(self._context_window, Mapping):
            return self._context_window.get(model)
        return self._context_window

    async def aclose(self) -> None:
        """Close the connections, unless the client was given."""
        await self._source.aclose()

    @property
    def _endpoint(self) -> Endpoint:
        return Endpoint(
            name=self.name, base_url=self.base_url, profile=self.profile, api_key_env=self._key_env, secret=self._key()
        )

    def _key(self) -> str | None:
        key = self._api_key or _from_env(self._key_env)
        return key.strip() if key else None

    def _require_key(self) -> str | None:
        key = self._key()
        if key is None and self._key_env is not None and not self._source.has_own_key:
            raise LlmError("AUTH", f"{self.name}: no API key; set the environment variable {self._key_env}")
        if key is not None and not (key.isascii() and key.isprintable()):
            source = self._key_env or "api_key"
            raise LlmError("AUTH", f"{self.name}: the key in {source} holds characters that no key has; copy it again")
        return key

    async def _stream(self, request: GenerateRequest) -> AsyncGenerator[StreamChunk, None]:
        key = self._require_key()
        prepared = self._writer.write(request)
        client = await self._source.get(key)
        translator = Translator(self.profile, prepared.offered, prepared.answer_tool)
        watch = SilenceWatch(_shortest(self._timeout, self._idle_timeout))
        answer: Answer | None = None
        try:
            response = await self._open(client, prepared.body, watch, keyless=key is None)
            watch.set_limit(self._idle_timeout)
            answer = Answer(response, translator, self._endpoint, watch, self._idle_timeout)
            while (chunks := await answer.read()) is not None:
                for chunk in chunks:
                    yield chunk
        finally:
            watch.close()
            if answer is not None:
                await answer.aclose()

    async def _open(self, client: AsyncOpenAI, body: bytes, watch: SilenceWatch, *, keyless: bool) -> httpx2.Response:
        import httpx2
        from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncStream, Omit, OpenAIError

        headers: dict[str, Any] = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        if keyless and not self._source.has_own_key:
            headers["authorization"] = Omit()
        call = client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=body,
            stream=True,
            stream_cls=AsyncStream[Any],
            options={"headers": headers},
        )
        try:
            opened: Any = await watch.wait(call)
        except APIStatusError as error:
            raise classify(self._endpoint, error.status_code, error.response.headers, _body_of(error)) from error
        except (APITimeoutError, Silence) as error:
            raise self._too_slow(error) from error
        except APIConnectionError as error:
            raise self._unreachable(error.__cause__ or error) from error
        except (OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._unreachable(error) from error
        response: httpx2.Response = opened
        return response

    def _too_slow(self, error: Exception) -> LlmError:
        import httpx2

        if isinstance(error.__cause__, httpx2.ConnectTimeout):
            return self._unreachable(error.__cause__)
        limit = _shortest(self._timeout, self._idle_timeout)
        seconds = f" for {limit:g} seconds" if limit is not None else ""
        told = f"{self.base_url} gave no answer{seconds}; try again, or raise timeout and idle_timeout"
        return self._endpoint.error("TIMEOUT", told)

    def _unreachable(self, error: BaseException) -> LlmError:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self._endpoint.error(
            "TRANSPORT", f"cannot reach {self.base_url} ({told}); check that the server runs and that base_url is right"
        )


def _body_of(error: Any) -> Any:
    """The whole body: the SDK keeps only the error object in it, and codes may stand beside that."""
    try:
        return error.response.json()
    except Exception:  # noqa: BLE001 - whatever the body is, the status must not be masked by it
        try:
            return error.response.text
        except Exception:  # noqa: BLE001 - a body that was never read
            return error.body


def _from_env(name: str | None) -> str | None:
    return (os.environ.get(name) or None) if name else None


def _shortest(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
