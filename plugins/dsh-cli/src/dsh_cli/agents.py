"""
Which session a command works on, and the agent for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsh_core import AgentOptions, Chat, ConfigError, LlmError, SessionNotFound

if TYPE_CHECKING:
    from dsh_core import AgentHandle, Harness, SessionPersistence, SessionSummary

__all__ = ["agent_for", "chat_with", "is_of", "last_session", "require_model"]


def require_model(harness: Harness) -> None:
    """
    Find out before anything is sent or stored whether there is a model.

    Asked when the agent exists: a plugin may know only then which provider is wanted.

    Raises:
        LlmError: `NO_MODEL` or `NO_ADAPTER`; the message says what to do.
    """
    model = harness.config.model or ""
    if model.startswith("local/") and not os.environ.get("DSH_LOCAL_BASE_URL"):
        try:
            harness.llm.resolve(model)
        except LlmError as error:
            raise ConfigError(
                f"nothing answers for {model!r}: say where the server on this machine is, for instance "
                "DSH_LOCAL_BASE_URL=http://127.0.0.1:8080/v1"
            ) from error
    harness.llm.resolve(model)


async def agent_for(harness: Harness, session: str | None, resume: str | None) -> AgentHandle:
    """
    The agent a command talks to.

    Args:
        harness: The harness.
        session: Create or resume the session of this name.
        resume: Only resume: a name, or the empty string for the last session of this directory.

    Raises:
        ConfigError: A session was named but nothing is loaded that stores sessions.
        SessionNotFound: There is nothing to resume.
    """
    options = AgentOptions(max_steps=harness.config.max_steps or AgentOptions().max_steps)
    backend = harness.persistence
    cwd = os.getcwd()
    if session is None and resume is None:
        return await harness.agents.create(options=options, cwd=cwd)
    if backend is None:
        raise ConfigError("sessions cannot be resumed: no persistence backend is loaded; install dsh-persistence-jsonl")
    if resume is not None:
        return await harness.agents.resume(resume or await last_session(backend, cwd), options=options)
    assert session is not None
    if await backend.has(session):
        return await harness.agents.resume(session, options=options)
    return await harness.agents.create(session, options=options, cwd=cwd)


def chat_with(harness: Harness, handle: AgentHandle) -> Chat:
    """The conversation with an agent; the built-in loop is what can be watched."""
    return Chat(harness, handle.agent)  # type: ignore[arg-type]


async def last_session(backend: SessionPersistence, cwd: str) -> str:
    """
    Id of the newest session of a directory.

    Raises:
        SessionNotFound: There is none.
    """
    newest: SessionSummary | None = None
    async for summary in backend.list():
        if not is_of(summary, cwd):
            continue
        if newest is None or (summary.updated_at or 0) > (newest.updated_at or 0):
            newest = summary
    if newest is None:
        raise SessionNotFound(f"there is no session of {cwd} to resume; dsh sessions list --all shows the others")
    return newest.id


def is_of(summary: SessionSummary, cwd: str) -> bool:
    """Whether a stored session belongs to a directory."""
    header = summary.header
    return header is not None and header.cwd is not None and _real(header.cwd) == _real(cwd)


def _real(path: str) -> str:
    # As the header of a session tells it, where a name that is not text loses what cannot be told.
    return os.path.realpath(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
