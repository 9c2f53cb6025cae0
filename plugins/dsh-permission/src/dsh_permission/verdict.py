"""
What a policy says about a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from dsh_permission.rules import Decision

__all__ = ["Origin", "Part", "Verdict", "strictest"]

Origin: TypeAlias = Literal["rule", "protected", "unreadable", "mode"]

_RANK: Final = {"deny": 3, "ask": 2, "allow": 1}
_ORIGIN_RANK: Final = {"rule": 4, "protected": 3, "unreadable": 2, "mode": 1}


@attrs.frozen
class Part:
    """
    The verdict on one piece of a call: a simple command, a redirection, a path.

    Args:
        subject: The piece, as text.
        decision: `allow`, `ask` or `deny`.
        rule: Text of the deciding rule, or None.
        reason: Why, for people and for the model.
        origin: What decided: a rule, a protected place, that it cannot be read, or the mode.
    """

    subject: str
    decision: Decision
    rule: str | None
    reason: str
    origin: Origin = "mode"


@attrs.frozen
class Verdict:
    """
    The verdict on a call: that of its strictest part.

    Args:
        decision: `allow`, `ask` or `deny`.
        rule: Text of the deciding rule, or None when no rule decided.
        reason: Why, for people and for the model.
        parts: The verdicts on the pieces.
        origin: What decided.
    """

    decision: Decision
    rule: str | None
    reason: str
    parts: tuple[Part, ...] = ()
    origin: Origin = "mode"


def strictest(parts: Sequence[Part]) -> Verdict:
    """Join the verdicts on the pieces of one call: deny before ask before allow."""
    worst = max(parts, key=lambda part: (_RANK[part.decision], _ORIGIN_RANK[part.origin]))
    return Verdict(worst.decision, worst.rule, worst.reason, tuple(parts), worst.origin)


def strictest_part(subject: str, parts: Iterable[Part]) -> Part:
    """The same for the findings on one piece."""
    verdict = strictest(list(parts))
    return Part(subject, verdict.decision, verdict.rule, verdict.reason, verdict.origin)
