"""
The `dsh` command.

Importing this imports neither the core nor any plugin: `dsh --version` and `dsh --help` stay light.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["entry", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command.

    Args:
        argv: The arguments without the program's name; the process's own when left out.

    Returns:
        The exit code: 0 completed, 1 failed turn, 2 usage or configuration, 3 completed with a call denied
        because nobody could be asked, 4 limit reached, 130 interrupted, 141 broken pipe.
    """
    from dsh_cli.app import run_command

    return run_command(list(sys.argv[1:] if argv is None else argv))


def entry() -> None:
    """The console script."""
    sys.exit(main())
