"""
The two lanes of an agent: prompts that wait for a turn, and steering that waits for the next step.

Pure: nothing here appends, wakes or awaits. The log says what was accepted; this says what is next.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_core._receipts import LoopReceipt
    from dsh_core.content import Message

__all__ = ["Entry", "Inbox", "Lane"]

Lane: TypeAlias = Literal["queued", "steering"]


@attrs.define(eq=False)
class Entry:
    """
    One accepted message.

    Args:
        message: The message, with its id and source.
        receipt: What its sender holds; None after a resume, when nobody waits.
    """

    message: Message
    receipt: LoopReceipt | None = None

    @property
    def id(self) -> str:
        """The message's id, which an accepted message always has."""
        assert self.message.id is not None
        return self.message.id


class Inbox:
    """
    Accepted messages in the order in which they were accepted.

    Args:
        entries: What was pending when the session was opened; it waits in the queued lane.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._queued: deque[Entry] = deque(entries)
        self._steering: deque[Entry] = deque()
        self._order: dict[str, int] = {entry.id: i for i, entry in enumerate(self._queued)}
        self._accepted = len(self._order)

    def add(self, entry: Entry, lane: Lane) -> None:
        """Put an entry at the end of a lane."""
        self._order[entry.id] = self._accepted
        self._accepted += 1
        (self._queued if lane == "queued" else self._steering).append(entry)

    @property
    def queued(self) -> int:
        """How many messages wait for a turn."""
        return len(self._queued)

    @property
    def steering(self) -> int:
        """How many messages wait for the next step."""
        return len(self._steering)

    def first(self) -> Entry | None:
        """The next prompt, which stays where it is until it is taken."""
        return self._queued[0] if self._queued else None

    def take(self, entry: Entry) -> bool:
        """Remove one entry from wherever it waits; False when it is gone already."""
        for lane in (self._queued, self._steering):
            if entry in lane:
                lane.remove(entry)
                self._order.pop(entry.id, None)
                return True
        return False

    def first_steering(self) -> Entry | None:
        """The next steering, which stays where it is until it is taken."""
        return self._steering[0] if self._steering else None

    def queue_steering(self) -> None:
        """Steering that no step took up becomes queued, in the order in which it was accepted."""
        if self._steering:
            merged = sorted((*self._queued, *self._steering), key=lambda entry: self._order[entry.id])
            self._queued = deque(merged)
            self._steering.clear()

    def find(self, message_id: str) -> Entry | None:
        """The waiting entry with this message id."""
        return next((entry for entry in (*self._queued, *self._steering) if entry.id == message_id), None)

    def all(self) -> list[Entry]:
        """Everything that waits, in the order in which it was accepted."""
        return sorted((*self._queued, *self._steering), key=lambda entry: self._order[entry.id])

    def clear(self) -> list[Entry]:
        """Remove and return everything that waits."""
        entries = self.all()
        self._queued.clear()
        self._steering.clear()
        self._order.clear()
        return entries
