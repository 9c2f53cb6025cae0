"""
The core's own behaviours: plugins like any other, with names, that can be switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_core._markers import hookimpl
from dsh_core._structured import StructuredOutput
from dsh_core.limits import RepeatGuard, StepLimit
from dsh_core.llm.retry import RetryPlugin
from dsh_core.prompt import IdentityPlugin

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dsh_core.harness import Harness
    from dsh_core.session.log import Session

__all__ = ["WriteBehind", "builtin_plugins"]


class WriteBehind:
    """Makes `session_flush` reach the persistence backend, if there is one."""

    name = "write-behind"

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    @hookimpl
    def session_flush(self, session: Session, barrier: str) -> Awaitable[None] | None:
        """Wait until everything logged so far is written (L-16), if there is anything."""
        writer = self._harness.writer
        return None if writer is None else writer.begin_flush(session, barrier)


def builtin_plugins(harness: Harness) -> list[tuple[str, object]]:
    """The built-in plugins with their names, in order."""
    return [
        ("identity", IdentityPlugin()),
        ("retry", RetryPlugin()),
        ("step-limit", StepLimit()),
        ("repeat-guard", RepeatGuard()),
        ("structured-output", StructuredOutput()),
        ("write-behind", WriteBehind(harness)),
    ]
