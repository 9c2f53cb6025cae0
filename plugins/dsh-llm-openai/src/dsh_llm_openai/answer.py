"""
One open answer: bytes in, our chunks out, the connection closed in every case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_core.errors import LlmError
from dsh_llm_openai.chunks import Chunk, NotJson, decode_chunk
from dsh_llm_openai.faults import Endpoint, stream_failure, unreadable
from dsh_llm_openai.sse import Event, EventParser
from dsh_llm_openai.watch import Silence, SilenceWatch

if TYPE_CHECKING:
    import httpx2

    from dsh_core.llm.seam import StreamChunk
    from dsh_llm_openai.translate import Translator

__all__ = ["Answer"]

_DONE: Final = b"[DONE]"
_FIELDS: Final = (b":", b"event:", b"data:", b"id:", b"retry:")
_AFTER_FINISH: Final = 10.0
"""Seconds to wait for usage and the end mark once the finish reason is there."""
_AFTER_DONE: Final = 0.5
"""Seconds to wait for the end of the body, which lets the connection be used again."""


class Answer:
    """
    Reads one response.

    Args:
        response: The open response, its status good.
        translator: The state of this answer.
        endpoint: For messages.
        watch: The limit on silence.
        idle_timeout: The limit's length, for messages.
    """

    def __init__(
        self,
        response: httpx2.Response,
        translator: Translator,
        endpoint: Endpoint,
        watch: SilenceWatch,
        idle_timeout: float | None,
    ) -> None:
        self._response = response
        self._translator = translator
        self._endpoint = endpoint
        self._watch = watch
        self._idle_timeout = idle_timeout
        self._done = False
        self._events = 0
        self._head: list[bytes] = []  # the body, as long as no event was found in it
        self._parser = EventParser()
        # bytes as they come cost less, but compressed ones and those read already come only this way
        plain = "content-encoding" not in response.headers and not response.is_stream_consumed
        self._source: Any = response.aiter_raw() if plain else response.aiter_bytes()
        self._anext = self._source.__anext__
        self._at_end = False

    async def read(self) -> list[StreamChunk] | None:
        """
        The chunks of the next bytes, perhaps none; None at the end.

        Raises:
            LlmError: With a code of M-3.
        """
        if self._at_end:
            return None
        data = await self._next()
        if data is None:
            self._at_end = True
            return self._take_all(self._parser.close()) + self._end()
        if not self._events:
            self._head.append(data)
        return self._take_all(self._parser.feed(data))

    async def aclose(self) -> None:
        """Close the connection, or give it back if the body was read to its end."""
        await self._source.aclose()
        await self._response.aclose()

    def _take_all(self, events: list[Event]) -> list[StreamChunk]:
        if len(events) == 1:
            return self._take(events[0])
        return [chunk for event in events for chunk in self._take(event)]

    async def _next(self) -> bytes | None:
        """The next bytes, or None at the end of the body, or of all of it that matters."""
        import httpx2

        try:
            return await self._watch.wait(self._anext())
        except StopAsyncIteration:
            return None
        except Silence:
            if self._done or self._translator.finished:
                return None
            raise self._silent() from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            if self._done or self._translator.finished:
                return None  # the answer is whole; what broke is the end of the connection
            raise self._broken(error) from error

    def _take(self, event: Event) -> list[StreamChunk]:
        if self._done or (event.data[:1] != b"{" and self._is_mark(event.data.strip())):
            return []
        chunk = self._decode(event)
        if chunk is None:
            return []
        self._events += 1
        if not chunk.choices or chunk.error or event.name or chunk.choices[0].error:
            self._refuse_failure(chunk, event)
        if chunk.choices or chunk.usage is not None:
            self._watch.touch()
        translator = self._translator
        was_finished = translator.finished
        out = translator.take(chunk)
        if translator.finished and not was_finished:
            limit = self._idle_timeout
            self._watch.set_limit(_AFTER_FINISH if limit is None else min(_AFTER_FINISH, limit))
        return out

    def _is_mark(self, data: bytes) -> bool:
        """Whether this is the end mark, or nothing at all."""
        if data == _DONE:
            self._events += 1
            self._done = True
            self._watch.set_limit(_AFTER_DONE)
        return data in (_DONE, b"")

    def _decode(self, event: Event) -> Chunk | None:
        try:
            return decode_chunk(event.data)
        except NotJson as error:
            text = event.data.decode("utf-8", "replace")
            if event.name == b"error":
                raise stream_failure(self._endpoint, text) from None
            if event.name not in (b"", b"message"):
                return None  # a heartbeat or an extension in a form of its own
            told = f"an event of the stream is no JSON object ({error}): {text[:200]!r}"
            raise self._endpoint.error("MALFORMED_RESPONSE", told) from error

    def _refuse_failure(self, chunk: Chunk, event: Event) -> None:
        error: Any = chunk.error or chunk.failure
        if not error and chunk.choices and chunk.choices[0].error:
            error = chunk.choices[0].error
        if not error and event.name == b"error":
            error = event.data.decode("utf-8", "replace")
        if error:
            raise stream_failure(self._endpoint, error)

    def _end(self) -> list[StreamChunk]:
        if not self._events and (body := b"".join(self._head)).strip():
            whole = self._whole(body)
            return whole + self._close()
        return self._close()

    def _close(self) -> list[StreamChunk]:
        try:
            return self._translator.close(done=self._done)
        except LlmError as error:
            raise self._endpoint.error(error.code, error.message) from None

    def _whole(self, body: bytes) -> list[StreamChunk]:
        """A server that ignores `stream` answers with one JSON object; its message counts as one delta."""
        content_type = self._response.headers.get("content-type", "")
        if body.lstrip().startswith(_FIELDS):  # an event stream that never said anything
            return []
        try:
            chunk = decode_chunk(body)
        except NotJson:
            raise unreadable(self._endpoint, body, content_type) from None
        self._refuse_failure(chunk, Event(b"", body))
        if chunk.choices is None:
            raise unreadable(self._endpoint, body, content_type)
        self._done = True
        return self._translator.take(chunk)

    def _silent(self) -> LlmError:
        what = "stopped sending" if self._events else "sent nothing"
        return self._endpoint.error("TIMEOUT", f"the model {what} for {self._idle_timeout:g} seconds (idle_timeout)")

    def _broken(self, error: Exception) -> LlmError:
        import httpx2

        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, httpx2.RemoteProtocolError):
            return self._endpoint.error("STREAM_CLOSED", f"the connection was closed in mid-answer ({told})")
        return self._endpoint.error("TRANSPORT", f"the connection broke in mid-answer ({told})")
