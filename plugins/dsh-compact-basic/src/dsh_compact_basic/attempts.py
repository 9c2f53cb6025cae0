"""
When not to try again: what earlier attempts of a session came to (C-2, C-4, C-5).
"""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["Attempts"]

_FAILURES: Final = 3
_GROWTH: Final = 0.05


@attrs.define(eq=False)
class Attempts:
    """
    The memory of one session.

    Args:
        failures: Summaries that failed in a row.
        wait_for: Tokens the conversation must reach before the next try, or None.
        repairs: Overflow repairs made in a step, with that step.
    """

    failures: int = 0
    wait_for: float | None = None
    repairs: tuple[int, int, int] = (0, 0, 0)

    def may_try(self, tokens: int) -> bool:
        """Whether a conversation of this size is worth a try."""
        return self.wait_for is None or tokens >= self.wait_for

    def succeeded(self) -> None:
        """A compaction landed."""
        self.failures = 0
        self.wait_for = None

    def gave_up(self, tokens: int, window: int) -> None:
        """Nothing can be gained now: wait until there is more."""
        self.wait_for = tokens + max(window * _GROWTH, 1)

    def failed(self, tokens: int, window: int) -> None:
        """A summary failed; after three in a row, wait until there is more."""
        self.failures += 1
        if self.failures >= _FAILURES:
            self.gave_up(tokens, window)

    def may_repair(self, turn: int, step: int, most: int) -> bool:
        """Whether this step may be repaired once more; counts the repair."""
        count = self.repairs[2] if self.repairs[:2] == (turn, step) else 0
        self.repairs = (turn, step, count + 1)
        return count < most
