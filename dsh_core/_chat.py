"""
A conversation in its simplest form: ask, or watch while it is answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dsh_core._loop import LoopAgent
    from dsh_core._receipts import LoopReceipt
    from dsh_core.agent.types import TurnResult
    from dsh_core.content import Content
    from dsh_core.harness import Harness
    from dsh_core.llm.seam import StreamChunk
    from dsh_core.session.log import SessionEvent

__all__ = ["Chat"]


class Chat:
    """
    One agent and the harness it runs in; `dsh_core.open` makes it.

    Args:
        harness: The harness.
        agent: The agent.
    """

    def __init__(self, harness: Harness, agent: LoopAgent) -> None:
        self.harness = harness
        self.agent = agent
        self._last: TurnResult | None = None

    @property
    def last(self) -> TurnResult | None:
        """The result of the last turn that was asked for, or None."""
        return self._last

    async def ask(self, content: Content) -> TurnResult:
        """
        Send a prompt and wait for its turn to end.

        Cancelling this, `asyncio.timeout` included, cancels the prompt's turn and waits for its close.

        Args:
            content: Text or content blocks.

        Raises:
            PromptBlocked: A plugin blocked the prompt.
            MessageDropped: `agent.cancel` removed it before it ran.
            StorageError: It could not be stored.
        """
        receipt = self.agent.send(content)
        try:
            await receipt.stored
            self._last = await receipt
        except asyncio.CancelledError:
            await self._give_up(receipt)
            raise
        return self._last

    async def stream(self, content: Content) -> AsyncIterator[StreamChunk | SessionEvent]:
        """
        Send a prompt and yield what happens: raw chunks and session events as they come.

        Leaving the loop early cancels the prompt's turn. `last` is the result afterwards.

        Args:
            content: Text or content blocks.

        Raises:
            PromptBlocked, MessageDropped, StorageError: As in `ask`, after the last item.
        """
        items: asyncio.Queue[StreamChunk | SessionEvent | None] = asyncio.Queue()
        with self.agent.watch(items.put_nowait):  # type: ignore[arg-type]
            receipt = self.agent.send(content)
            waiter = asyncio.ensure_future(_outcome(receipt))
            waiter.add_done_callback(lambda _: items.put_nowait(None))
            finished = False
            try:
                while (item := await items.get()) is not None:
                    yield item
                finished = True
            finally:
                if not finished:
                    waiter.cancel()
                    await self._give_up(receipt)
        self._last = await waiter

    async def _give_up(self, receipt: LoopReceipt) -> None:
        """Cancel what the prompt caused and wait for its close."""
        if receipt.done:
            return
        self.agent.cancel_message(receipt.message_id, "cancelled")
        closing = asyncio.ensure_future(_quietly(receipt))
        interrupted: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


async def _outcome(receipt: LoopReceipt) -> TurnResult:
    await receipt.stored
    return await receipt


async def _quietly(receipt: LoopReceipt) -> None:
    try:
        await receipt
    except Exception:  # noqa: BLE001 - only its end matters here; the caller is already leaving
        return
