"""
Ctrl-C: the first cancels the turn, a second within two seconds leaves at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dsh_cli.exits import INTERRUPTED

__all__ = ["on_interrupt"]

_WINDOW: Final = 2.0
"""Seconds in which a second Ctrl-C leaves at once."""


@contextmanager
def on_interrupt(first: Callable[[], object]) -> Iterator[None]:
    """
    Call `first` on Ctrl-C and SIGTERM while the body runs; leave with 130 on a second within 2 s.

    Every event of the log is written by then or by the write-behind's next iteration, and a log that is cut
    off anywhere is repaired when it is opened again, so leaving at once loses nothing that was accepted.
    """
    last = -_WINDOW

    def interrupted() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _WINDOW:
            os._exit(INTERRUPTED)
        last = now
        first()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
