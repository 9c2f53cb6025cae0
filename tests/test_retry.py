"""Which failures are repeated, how often, and after how long (M-4)."""

from __future__ import annotations

import pytest

from dsh_core.errors import LlmError
from dsh_core.llm.retry import RetryPlugin
from dsh_core.llm.seam import LLM_CODES

PASSING = ["RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"]
FINAL = [
    "AUTH", "QUOTA", "INVALID_REQUEST", "CONTEXT_OVERFLOW", "CONTENT_FILTER", "MALFORMED_RESPONSE", "NO_ADAPTER",
    "NO_MODEL", "UNKNOWN",
]  # fmt: skip


def answer(code: str, attempt: int = 1, retry_after: float | None = None, after_output: bool = False):
    error = LlmError(code, "said the provider", retry_after=retry_after)
    error.after_output = after_output
    return RetryPlugin().agent_request_error(error, attempt)


@pytest.mark.parametrize("code", PASSING)
def test_a_passing_failure_is_repeated(code):
    """M-4: these six pass by themselves."""
    assert answer(code) is not None


@pytest.mark.parametrize("code", FINAL)
def test_any_other_failure_surfaces_at_once(code):
    """M-4: repeating it would only cost."""
    assert answer(code) is None


def test_every_code_is_one_or_the_other():
    """M-3, M-4: a new code has to be judged."""
    assert {*PASSING, *FINAL} - {"UNKNOWN"} == LLM_CODES


def test_a_timeout_is_repeated_only_before_output():
    """M-4: after output a time-out is a clear failure; others are repeated even then."""
    assert answer("TIMEOUT", after_output=True) is None
    assert answer("TRANSPORT", after_output=True) is not None


def test_there_are_five_attempts():
    """M-4: the fifth failure is the last."""
    assert [answer("SERVER", attempt) is not None for attempt in range(1, 7)] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("attempt", "middle"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0)])
def test_waits_double_and_differ(attempt, middle):
    """M-4: 0.5 s doubling, with jitter, so that clients do not come back together."""
    delays = {answer("SERVER", attempt).delay for _ in range(50)}
    assert len(delays) > 1
    assert all(middle * 0.5 <= delay <= middle * 1.5 for delay in delays)


@pytest.mark.parametrize("asked", [7.0, 60.0])
def test_what_the_provider_asks_for_is_a_lower_bound(asked):
    """M-4: the wait is not shorter than Retry-After."""
    assert answer("RATE_LIMIT", retry_after=asked).delay >= asked


def test_a_short_retry_after_does_not_shorten_the_wait():
    """M-4: Retry-After is a lower bound, not the wait."""
    assert answer("RATE_LIMIT", attempt=4, retry_after=0.1).delay > 1


def test_a_long_retry_after_surfaces_at_once():
    """M-4: above 60 s the failure is told rather than slept on."""
    assert answer("RATE_LIMIT", retry_after=60.5) is None
    assert answer("RATE_LIMIT", retry_after=float("inf")) is None


@pytest.mark.parametrize("nonsense", [-5.0, 0.0, float("nan"), float("-inf")])
def test_a_retry_after_that_is_nonsense_asks_for_nothing(nonsense):
    """M-4: the wait is the usual one."""
    assert 0.25 <= answer("RATE_LIMIT", retry_after=nonsense).delay <= 0.75
