"""
Tools: what they are, how a function becomes one, and how a harness keeps them.
"""

from dsh_core.errors import ToolError
from dsh_core.tools.definition import PendingCall, ToolContext, ToolDefinition, ToolResult
from dsh_core.tools.function import tool
from dsh_core.tools.names import wire_name
from dsh_core.tools.registry import ToolRegistry

__all__ = [
    "PendingCall",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "tool",
    "wire_name",
]
