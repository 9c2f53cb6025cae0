"""
What a tool is: its definition, the call that is about to run, and its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from dsh_core.content import Block, ErrorInfo, as_blocks
from dsh_core.session._json import freeze_json

if TYPE_CHECKING:
    from dsh_core.agent import Agent
    from dsh_core.session.log import Session
    from dsh_core.tools.registry import RegisteredTool

__all__ = ["PendingCall", "ToolContext", "ToolDefinition", "ToolResult"]


def _frozen_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    # What is sent to a model, what is logged and what is checked must stay one thing.
    frozen: Mapping[str, Any] = freeze_json(dict(schema), where="the parameters of a tool")
    return frozen


@attrs.frozen(kw_only=True)
class ToolDefinition:
    """
    A tool, ready to be registered.

    Args:
        name: Any text; what the model sees is derived from it (T-4).
        description: What the tool is for, for the model.
        parameters: JSON Schema of the arguments, an object schema; read-only from here on.
        execute: Called with `(arguments, context)`; a plain function or a coroutine function. It returns
            text, content blocks, an attrs instance, any JSON value, None, or a `ToolResult`.
        read_only: Changes nothing.
        destructive: May destroy what cannot be had back.
        idempotent: Running it twice is the same as once.
        open_world: Reaches beyond this machine.
        parallel: May run together with other parallel tools of one message (L-11).
        repeatable: Exempt from the repeat guard (L-17).
        timeout: Seconds a call may take, or None.
        max_output: Characters of text a result may have, or None.
        thread: Run a plain function in a thread (the default) or on the loop.
    """

    name: str = attrs.field(kw_only=False)
    description: str = attrs.field(kw_only=False)
    parameters: Mapping[str, Any] = attrs.field(kw_only=False, hash=False, converter=_frozen_schema)
    execute: Callable[..., Any] = attrs.field(kw_only=False, eq=False)
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    parallel: bool = False
    repeatable: bool = False
    timeout: float | None = None
    max_output: int | None = None
    thread: bool = True


@attrs.frozen(eq=False)
class ToolContext:
    """
    What a running tool may know of its call.

    Args:
        agent: The agent that makes the call.
        session: Its session.
        call_id: Id of the call, unique in the session.
        idempotency_key: `f"{session_id}:{call_id}"`, for services that accept one.
        cwd: The session's working directory, or None.
        cancelled: Set when the call is cancelled; plain functions in threads look at it.
    """

    agent: Agent
    session: Session
    call_id: str
    idempotency_key: str
    cwd: str | None
    cancelled: asyncio.Event
    _progress: Callable[[str], None] | None = None

    def progress(self, text: str) -> None:
        """Tell a person who watches how far the call has come; the model does not see it."""
        if self._progress is not None:
            self._progress(text)


@attrs.frozen
class PendingCall:
    """
    A call before it runs, as gates judge it.

    Args:
        call_id: Id of the call.
        name: The tool's own name.
        arguments: The parsed and validated arguments, read-only.
        raw_arguments: The model's text.
        definition: The tool.
        idempotency_key: `f"{session_id}:{call_id}"`.
        registered: The tool's registration, with the plugin that brought it; internal.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] = attrs.field(hash=False)
    raw_arguments: str
    definition: ToolDefinition
    idempotency_key: str
    registered: RegisteredTool | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class ToolResult:
    """
    What a call came to.

    Args:
        content: For the model; text is taken as one block.
        is_error: The call failed, or did not run.
        error: Name and code of the failure.
        meta: JSON object for front ends and logs; the model does not see it.
    """

    content: tuple[Block, ...] = attrs.field(converter=as_blocks)
    is_error: bool = False
    error: ErrorInfo | None = None
    meta: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
