"""
Tools on this machine for dsh agents: a shell, files, search; and the instructions in AGENTS.md.
"""

from dsh_tools_local.files import FilesConfig, FilesPlugin
from dsh_tools_local.instructions import InstructionsConfig, InstructionsPlugin
from dsh_tools_local.shell import ShellConfig, ShellPlugin

__all__ = [
    "FilesConfig",
    "FilesPlugin",
    "InstructionsConfig",
    "InstructionsPlugin",
    "ShellConfig",
    "ShellPlugin",
]
