"""
The chunks of a session on their way into its log (S-8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from time import time_ns
from typing import TYPE_CHECKING, Final

from dsh_core.session.packing import MAX_AGE_MS, ChunkPacker

if TYPE_CHECKING:
    from dsh_core.session.chunks import StreamChunk
    from dsh_core.session.events import AssistantChunkEvent

__all__ = ["ChunkStream", "now_ms"]

_log: Final = logging.getLogger("dsh")


def now_ms() -> int:
    """The default clock."""
    return time_ns() // 1_000_000


class ChunkStream:
    """
    Gathers chunks into packs and closes each in time: when it is full, when the next chunk finds it old, or by
    one timer where none comes.

    Args:
        clock: Epoch milliseconds.
        write: Takes a pack and the time of its first chunk.
    """

    __slots__ = ("_clock", "_timer", "_write", "packer")

    def __init__(self, clock: Callable[[], int], write: Callable[[AssistantChunkEvent, int], None]) -> None:
        self._clock = clock
        self._write = write
        self.packer: ChunkPacker | None = None
        """What may hold something to write."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: tuple[int, int, int], chunk: StreamChunk) -> None:
        """
        Take the next chunk.

        Args:
            key: Turn, step and attempt.
            chunk: The chunk.
        """
        clock = self._clock
        now = time_ns() // 1_000_000 if clock is now_ms else clock()
        packer = self.packer
        if packer is None or packer.key != key:
            if packer is not None:
                self.end()
            packer = self.packer = ChunkPacker(*key)
        elif now - packer.started >= MAX_AGE_MS and len(packer):
            self.write()
        if packer.add(chunk, now):
            self.write()
        elif self._timer is None:
            self._start_timer(MAX_AGE_MS)

    def write(self) -> None:
        """Write what waits; more may follow, and half a character waits for the rest of it."""
        packer = self.packer
        if packer is not None:
            started = packer.started
            pack = packer.take()
            if pack is not None:
                self._write(pack, started)

    def end(self) -> None:
        """Write what waits; nothing follows."""
        packer = self.packer
        if packer is not None:
            packer.finish(self._clock())
            self.write()
            if not packer.unfinished:
                self.packer = None

    def forget_timer(self) -> None:
        """Nobody is told any more, so nothing has to be in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, milliseconds: int) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop, no timer: the next chunk or event closes the pack
        # A context of its own: whoever produced the chunk does not own what the session does with it.
        self._timer = loop.call_later(milliseconds / 1000, self._on_time, context=Context())

    def _on_time(self) -> None:
        self._timer = None
        packer = self.packer
        if packer is None or not len(packer):
            return
        left = MAX_AGE_MS - (self._clock() - packer.started)
        if 0 < left <= MAX_AGE_MS:
            self._start_timer(left)
            return
        try:
            self.write()
        except Exception:  # noqa: BLE001 - nobody waits here; whoever reads the stream goes on
            _log.exception("a pack of chunks was refused")
