"""
Calling a hook that a plugin declared: the same executors, chosen by its mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_core._around import around
from dsh_core._dispatch import checkpoint, drain, first, transform
from dsh_core._gate import GateOutcome, gate
from dsh_core._hookcheck import nearest
from dsh_core._observe import check, observe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_core._plans import Plan
    from dsh_core._specs import Spec

__all__ = ["bind", "run_generic", "scope_of"]


def bind(spec: Spec, arguments: Mapping[str, Any]) -> list[Any]:
    """
    The arguments of a call in the order of the declaration.

    Raises:
        TypeError: One is missing, or the hook does not have it.
    """
    for name in arguments:
        if name not in spec.arguments:
            raise TypeError(f"hook {spec.name!r} has no argument {name!r}{nearest(name, spec.arguments)}")
    given = {**spec.defaults, **arguments}
    missing = [name for name in spec.arguments if name not in given]
    if missing:
        raise TypeError(f"a call of hook {spec.name!r} lacks {', '.join(missing)}")
    return [given[name] for name in spec.arguments]


def scope_of(arguments: Mapping[str, Any]) -> str | None:
    """The agent a call belongs to, found by its agent, session or request."""
    for name, attribute in (("agent", "id"), ("session", "id"), ("request", "session_id")):
        found = getattr(arguments.get(name), attribute, None)
        if isinstance(found, str):
            return found
    return None


def run_generic(plan: Plan | None, spec: Spec, args: list[Any]) -> Any:
    """Run a plan by the mode of its hook: at once where that is synchronous, else as a coroutine."""
    if spec.mode in ("check", "collect", "observe"):
        if plan is not None:
            (observe if spec.mode == "observe" else check)(plan, args)
        return None
    return _awaited(plan, spec, args)


async def _awaited(plan: Plan | None, spec: Spec, args: list[Any]) -> Any:
    if spec.mode == "transform":
        index: int = spec.value  # type: ignore[assignment]  # a transform has one
        return args[index] if plan is None else (await transform(plan, args))[0]
    if spec.mode == "gate":
        return GateOutcome(None) if plan is None else await gate(plan, args)
    if spec.mode == "around":
        body = args[spec.around]
        return await body() if plan is None else await around(plan, args, body)
    if plan is None:
        return None
    if spec.mode == "first":
        return (await first(plan, args))[0]
    await (drain(plan, args) if spec.mode == "drain" else checkpoint(plan, args))
    return None
