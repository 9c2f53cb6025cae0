"""
What the core and the plugins log, as lines for the person: made harmless, without tracebacks.

`DSH_DEBUG=1` shows the tracebacks.
"""

from __future__ import annotations

import logging
import os
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dsh_cli.terminal import Terminal

__all__ = ["DEBUG", "show_logs"]

DEBUG: Final = "DSH_DEBUG"
"""Environment variable that asks for tracebacks."""


def show_logs(terminal: Terminal) -> None:
    """
    Show warnings and errors of every logger on stderr, in place of `logging`'s own last resort.

    Args:
        terminal: Where.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Lines)]:
        root.removeHandler(handler)
    root.addHandler(_Lines(terminal))


class _Lines(logging.Handler):
    def __init__(self, terminal: Terminal) -> None:
        super().__init__(logging.WARNING)
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(record)
        except Exception:  # noqa: BLE001 - a terminal that cannot be written to must not stop what is reported
            return

    def _show(self, record: logging.LogRecord) -> None:
        show = self._terminal.error if record.levelno >= logging.ERROR else self._terminal.warn
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage()
        if error is not None and str(error) not in text:
            text = f"{text}: {type(error).__name__}: {error}"
        show(text)
        if error is not None and os.environ.get(DEBUG):
            self._terminal.note("".join(traceback.format_exception(error)).rstrip())
