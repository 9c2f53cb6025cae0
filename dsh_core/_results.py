"""
What implementations may return: types per hook, and how a decision is joined with the earlier ones.

A value of another type, or of another family of decisions, counts as a failure that names the right ones (H-3).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs

from dsh_core._failures import wrong_result
from dsh_core.content import Context, GenerateRequest, Message, Source, as_contexts
from dsh_core.decisions import (
    Allow,
    ApprovalGranted,
    ApprovalRefused,
    Ask,
    Continue,
    Deny,
    PromptAllow,
    PromptBlock,
    ResultAccept,
    ResultReject,
    Retry,
    Stop,
)
from dsh_core.tools.definition import ToolResult

__all__ = ["ENDS", "MERGES", "RESULTS", "Merge", "Types", "check_type", "join", "strictness", "types_of"]

Types: TypeAlias = tuple[type, ...]
Merge: TypeAlias = Callable[[Any, Any, str], Any]

RESULTS: Final[Mapping[str, Types]] = {
    "agent_prompt_submit": (PromptAllow, PromptBlock),
    "agent_request": (GenerateRequest,),
    "agent_request_error": (Retry,),
    "agent_step_result": (Message,),
    "agent_turn_continuation": (Stop, Continue),
    "approval_request": (ApprovalGranted, ApprovalRefused),
    "llm_stream": (AsyncIterable,),
    "tools_execute": (ToolResult,),
    "tools_post_execute": (ResultAccept, ResultReject),
    "tools_pre_execute": (Allow, Ask, Deny),
}
"""The types a hook's implementations may return, besides None where its mode allows that."""

GATE: Final[Types] = (Allow, Ask, Deny)
ENDS: Final[Mapping[str, type]] = {"agent_prompt_submit": PromptBlock, "tools_post_execute": ResultReject}
"""Answers that end the chain."""


def types_of(function: Callable[..., Any], mode: str) -> Types | None:
    """
    The types a plugin's own hookspec declares as its result, or None where they cannot be checked.

    Args:
        function: The declaration; its return annotation counts.
        mode: Gates always answer with the three decisions.
    """
    if mode == "gate":
        return GATE
    try:
        hint = get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - an annotation that only a type checker can resolve
        return None
    members = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    plain = tuple(get_origin(member) or member for member in members if member not in (None, type(None)))
    return plain if plain and _can_be_checked(plain) else None


def _can_be_checked(types: tuple[Any, ...]) -> bool:
    """`Any`, protocols and the like are classes that `isinstance` does not take."""
    try:
        isinstance(None, types)
    except TypeError:
        return False
    return True


def check_type(value: Any, types: Types | None) -> Any:
    """
    Give `value` back if it is of one of the types.

    Raises:
        TypeError: It is not; the message names what was returned and what may be.
    """
    if types is None or isinstance(value, types):
        return value
    raise wrong_result(value, _wanted(types))


def _wanted(types: Types) -> str:
    names = ["an async iterator" if each is AsyncIterable else each.__name__ for each in types]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# -- decisions that are handed on ------------------------------------------------------------------------


def _sourced(contexts: tuple[Context, ...], plugin: str) -> tuple[Context, ...]:
    return as_contexts(contexts, Source.plugin(plugin))


def _accumulate(earlier: tuple[Context, ...], added: tuple[Context, ...], plugin: str) -> tuple[Context, ...]:
    """Append; an implementation that returned the earlier contexts along with its own does not double them."""
    if added[: len(earlier)] == earlier:
        added = added[len(earlier) :]
    return earlier + _sourced(added, plugin)


def _merge_content(earlier: Any, new: Any, plugin: str) -> Any:
    """`PromptAllow` and `ResultAccept`: context accumulates, omitted content keeps the earlier value."""
    if isinstance(new, PromptBlock) or new is earlier:
        return new
    context = _accumulate(getattr(earlier, "context", ()), new.context, plugin)
    if isinstance(new, ResultReject):
        return ResultReject(new.feedback, context)
    content = getattr(earlier, "content", None) if new.content is None else new.content
    return attrs.evolve(new, content=content, context=context)


def _merge_continuation(earlier: Stop | Continue, new: Stop | Continue, plugin: str) -> Stop | Continue:
    """An answer of the same kind keeps what it leaves out; one that says nothing new changes nothing."""
    if isinstance(earlier, Stop) and isinstance(new, Stop):
        new = Stop(new.reason if new.reason is not None else earlier.reason, new.code or earlier.code)
    elif isinstance(earlier, Continue) and isinstance(new, Continue):
        new = Continue(new.reason if new.reason is not None else earlier.reason)
    return earlier if new == earlier else new


def _keep_messages(earlier: GenerateRequest, new: GenerateRequest, plugin: str) -> GenerateRequest:
    """What the model reads of the conversation is the log's projection (L-9)."""
    if new.messages is not earlier.messages and new.messages != earlier.messages:
        raise ValueError(
            "it changed request.messages, which is the log's projection and read-only; "
            "append an event (agent.inject) or replace part of the surface instead"
        )
    return new


MERGES: Final[Mapping[str, Merge]] = {
    "agent_prompt_submit": _merge_content,
    "agent_request": _keep_messages,
    "agent_turn_continuation": _merge_continuation,
    "tools_post_execute": _merge_content,
}
"""How a hook's new value is joined with the current one: `(current, new, plugin) -> value`."""


# -- gates -----------------------------------------------------------------------------------------------


def strictness(decision: Allow | Ask | Deny | None) -> int:
    """Deny over ask over allow; an `Allow` that rewrites counts more than a plain one, no opinion least."""
    if isinstance(decision, Deny):
        return 4
    if isinstance(decision, Ask):
        return 3
    if isinstance(decision, Allow):
        return 1 if decision.arguments is None else 2
    return 0


def join(first: Allow | Ask | Deny | None, second: Allow | Ask | Deny | None) -> Allow | Ask | Deny | None:
    """The stricter of two decisions, the earlier one where they are equally strict."""
    return second if strictness(second) > strictness(first) else first
