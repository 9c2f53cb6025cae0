"""
How calls are approved and how many run at once.
"""

from __future__ import annotations

import attrs

__all__ = ["ToolSettings"]


@attrs.frozen(kw_only=True)
class ToolSettings:
    """
    How the calls of a harness are approved and run.

    Args:
        approver: The plugin that alone may grant (`approval.by`), or None: then every plugin that
            was handed in by code may.
        approval_timeout: Seconds to wait for an answer, or None to wait as long as it takes.
        max_parallel: Parallel-safe calls that run at the same time (L-11).
    """

    approver: str | None = None
    approval_timeout: float | None = None
    max_parallel: int = 8
