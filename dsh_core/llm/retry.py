"""
The built-in plugin `retry`: which failures of a request are worth another attempt, and when (M-4).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from dsh_core._markers import hookimpl
from dsh_core.decisions import Retry

if TYPE_CHECKING:
    from dsh_core.errors import LlmError

__all__ = ["RetryPlugin"]

_RETRIED: Final = frozenset({"RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"})
_ATTEMPTS: Final = 5
_FIRST_DELAY: Final = 0.5
_LAST_DELAY: Final = 10.0
_RETRY_AFTER_CAP: Final = 60.0
_JITTER: Final = 0.25


class RetryPlugin:
    """Answers `agent_request_error`; every attempt is visible in the log."""

    name = "retry"

    @hookimpl(trylast=True)
    def agent_request_error(self, error: LlmError, attempt: int) -> Retry | None:
        """Retry what may pass by itself, at most five attempts, with growing delays."""
        if error.code not in _RETRIED or attempt >= _ATTEMPTS:
            return None
        if error.code == "TIMEOUT" and error.after_output:
            return None
        if error.retry_after is not None and error.retry_after > _RETRY_AFTER_CAP:
            return None
        delay = min(_FIRST_DELAY * 2 ** (attempt - 1), _LAST_DELAY) * random.uniform(1 - _JITTER, 1 + _JITTER)
        return Retry(max(delay, error.retry_after or 0.0))
