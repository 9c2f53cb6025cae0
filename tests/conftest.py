"""Shared fixtures of the core's own tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The core runs on asyncio only."""
    return "asyncio"
