"""
The built-in plugin that repeats failed requests (M-4).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from dsh_core._markers import hookimpl
from dsh_core.decisions import Retry

if TYPE_CHECKING:
    from dsh_core.errors import LlmError

__all__ = ["RetryPlugin"]

_ALWAYS: Final = frozenset({"RATE_LIMIT", "SERVER", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"})
_BEFORE_OUTPUT: Final = frozenset({"TIMEOUT"})

MAX_ATTEMPTS: Final = 5
FIRST_DELAY: Final = 0.5
MAX_DELAY: Final = 10.0
MAX_RETRY_AFTER: Final = 60.0


@attrs.define(eq=False)
class RetryPlugin:
    """
    Repeats requests that failed for a passing reason: 5 attempts, 0.5 s doubling to 10 s, with jitter.

    A wait the provider asks for is a lower bound; one of more than 60 s lets the failure surface at once. It
    answers last, so that a plugin that can repair a request comes first.

    Args:
        jitter: Gives numbers from 0 to 1; each wait is between half and all of its length.
    """

    name: ClassVar[str] = "retry"
    jitter: Callable[[], float] = random.random

    @hookimpl(trylast=True)
    async def agent_request_error(self, error: LlmError, attempt: int) -> Retry | None:
        """Repeat the request, or leave its failure to others."""
        if attempt >= MAX_ATTEMPTS or not _passing(error):
            return None
        delay = min(MAX_DELAY, FIRST_DELAY * 2 ** (attempt - 1)) * (0.5 + self.jitter() / 2)
        asked = _asked(error.retry_after)
        return None if asked > MAX_RETRY_AFTER else Retry(max(delay, asked))


def _passing(error: LlmError) -> bool:
    return error.code in _ALWAYS or (error.code in _BEFORE_OUTPUT and not error.after_output)


def _asked(retry_after: float | None) -> float:
    """Nonsense, such as a negative number, asks for nothing."""
    if retry_after is None or math.isnan(retry_after) or retry_after < 0:
        return 0.0
    return retry_after
