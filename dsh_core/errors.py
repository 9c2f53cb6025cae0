"""
Every error that dsh raises on purpose, and whose fault each one is.

The tree, drawn once::

    HarnessError(message, code=None)
    ├── ConfigError            your configuration, command line or environment
    ├── PluginError            a plugin that cannot be found, loaded, built or unloaded
    ├── HookError              a plugin's hook implementation raised or returned nonsense
    ├── LlmError               the model, its provider, or the way to it
    ├── ToolError              a tool says why it could not do what was asked
    ├── AgentDisposed          the agent is gone; `pending` tells whether your message was kept
    ├── MessageDropped         a message was removed from the inbox by `cancel`
    ├── PromptBlocked          a plugin refused a prompt
    ├── Busy                   the agent is running; wait until it is idle
    ├── SessionNotFound        no such session in the store
    ├── SessionExists          the id is taken
    ├── SessionLocked          another writer owns the session
    ├── SessionCorrupt         stored bytes are damaged beyond a torn tail
    ├── UnsupportedFormat      written by a newer version or with a plugin that is missing
    ├── SequenceError          a batch of events does not continue the log
    ├── NotSerializable        a value cannot survive JSON
    ├── StorageError           the disk or the database failed
    └── InvariantViolation     the log would break a rule of its own

Messages say what happened, to which thing, and what to do next. Codes are stable text for programs.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AgentDisposed",
    "Busy",
    "ConfigError",
    "HarnessError",
    "HookError",
    "InvariantViolation",
    "LlmError",
    "MessageDropped",
    "NotSerializable",
    "PluginError",
    "PromptBlocked",
    "SequenceError",
    "SessionCorrupt",
    "SessionExists",
    "SessionLocked",
    "SessionNotFound",
    "StorageError",
    "ToolError",
    "UnsupportedFormat",
]


class HarnessError(Exception):
    """
    The root of all errors raised by dsh.

    Args:
        message: What happened, to which thing, and what to do next.
        code: Stable text for programs; the class's own default when left out.
    """

    default_code: ClassVar[str] = "HARNESS"

    def __init__(self, message: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code

    def __str__(self) -> str:
        return self.message


class ConfigError(HarnessError):
    """Configuration, command line or environment is wrong; the message lists every fault at once."""

    default_code = "CONFIG"


class PluginError(HarnessError):
    """
    A plugin cannot be found, imported, configured, registered, started or unloaded.

    Args:
        plugin: Name of the plugin, where it is known.
    """

    default_code = "PLUGIN"

    def __init__(self, message: str = "", code: str | None = None, *, plugin: str | None = None) -> None:
        super().__init__(message, code)
        self.plugin = plugin


class HookError(HarnessError):
    """
    A hook implementation raised, timed out, or returned something the hook does not allow (H-3).

    The original exception is the `__cause__`.

    Args:
        hook: Name of the hook, such as `agent_request`.
        plugin: Name of the plugin whose implementation failed.
    """

    default_code = "HOOK"

    def __init__(
        self, message: str = "", code: str | None = None, *, hook: str = "", plugin: str | None = None
    ) -> None:
        super().__init__(message, code)
        self.hook = hook
        self.plugin = plugin


class LlmError(HarnessError):
    """
    A request to a model failed (M-3).

    Args:
        code: One of the codes of M-3, such as `RATE_LIMIT` or `CONTEXT_OVERFLOW`.
        message: The provider's own words where there are any.
        status: HTTP status, if the failure had one.
        retry_after: Seconds the provider asked to wait.

    `after_output` is set by the loop: whether any text, reasoning or tool call had been received.
    """

    default_code = "LLM"

    def __init__(
        self,
        code: str = "SERVER",
        message: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message or code, code)
        self.status = status
        self.retry_after = retry_after
        self.after_output = False


class ToolError(HarnessError):
    """A tool raises this to say why it failed; text and code reach the model."""

    default_code = "TOOL_ERROR"


class AgentDisposed(HarnessError):
    """
    The agent was disposed.

    Args:
        pending: True when the message is still pending in the log and runs after a resume.
    """

    default_code = "AGENT_DISPOSED"

    def __init__(self, message: str = "", code: str | None = None, *, pending: bool = False) -> None:
        super().__init__(message, code)
        self.pending = pending


class MessageDropped(HarnessError):
    """A message was removed from the inbox before it ran."""

    default_code = "MESSAGE_DROPPED"


class PromptBlocked(HarnessError):
    """A plugin blocked the prompt (L-2)."""

    default_code = "PROMPT_BLOCKED"


class Busy(HarnessError):
    """The agent is running and the slot for maintenance is not free (A-9)."""

    default_code = "BUSY"


class SessionNotFound(HarnessError):
    """No session of this id in the store."""

    default_code = "SESSION_NOT_FOUND"


class SessionExists(HarnessError):
    """The session id is taken."""

    default_code = "SESSION_EXISTS"


class SessionLocked(HarnessError):
    """Another process or instance owns the session; the message names the holder."""

    default_code = "SESSION_LOCKED"


class SessionCorrupt(HarnessError):
    """Stored bytes are damaged beyond a torn tail; `repair` saves what can be read."""

    default_code = "SESSION_CORRUPT"


class UnsupportedFormat(HarnessError):
    """The session needs a newer dsh or a plugin that is not installed; its bytes are unchanged."""

    default_code = "UNSUPPORTED_FORMAT"


class SequenceError(HarnessError):
    """A batch of events does not continue the stored log."""

    default_code = "SEQUENCE"


class NotSerializable(HarnessError):
    """A value cannot survive JSON without loss; the message names the event type and the path."""

    default_code = "NOT_SERIALIZABLE"


class StorageError(HarnessError):
    """The store failed; what was durable is still there."""

    default_code = "STORAGE"


class InvariantViolation(HarnessError):
    """An event would break a rule of the log, so it was refused."""

    default_code = "INVARIANT"
