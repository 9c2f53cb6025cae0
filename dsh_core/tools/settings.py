"""
How calls are approved and how many run at once.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

__all__ = ["ToolSettings"]


def _everybody(plugin: str) -> bool:
    return True


@attrs.frozen(kw_only=True)
class ToolSettings:
    """
    How the calls of a harness are approved and run.

    Args:
        approver: The plugin that alone may grant (`approval.by`), or None: then any trusted plugin may.
        approval_timeout: Seconds to wait for an answer, or None to wait as long as it takes.
        max_parallel: Parallel-safe calls that run at the same time (L-11).
        trusted: Whether a plugin was handed in by code, asked by its name; only consulted without `approver`.
    """

    approver: str | None = None
    approval_timeout: float | None = None
    max_parallel: int = 8
    trusted: Callable[[str], bool] = attrs.field(default=_everybody, eq=False)

    def may_grant(self, plugin: str | None) -> bool:
        """Whether this plugin may answer yes (L-14); others may only refuse."""
        if self.approver is not None:
            return plugin == self.approver
        return plugin is not None and self.trusted(plugin)
