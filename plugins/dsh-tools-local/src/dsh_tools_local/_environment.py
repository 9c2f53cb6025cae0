"""
The environment of commands: nothing in it waits for a person, and no secret is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dsh_core.config import looks_like_secret_text

__all__ = ["TASK_MARK", "child_environment", "is_secret"]

TASK_MARK: Final = "DSH_SHELL_TASK"
"""Holds the token of the task: children that left session and process group are found by it."""

_NO_EDITOR: Final = "false"  # an editor that "succeeds" would carry out a rebase nobody looked at

QUIET: Final[Mapping[str, str]] = {
    "AWS_PAGER": "",
    "BAT_PAGER": "cat",
    "DEBIAN_FRONTEND": "noninteractive",
    "EDITOR": _NO_EDITOR,
    "GH_PAGER": "cat",
    "GH_PROMPT_DISABLED": "1",
    "GIT_ASKPASS": "false",
    "GIT_EDITOR": _NO_EDITOR,
    "GIT_PAGER": "cat",
    "GIT_SEQUENCE_EDITOR": _NO_EDITOR,
    "GIT_TERMINAL_PROMPT": "0",
    "HGPLAIN": "1",
    "MANPAGER": "cat",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "PIP_NO_INPUT": "1",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "SUDO_ASKPASS": "/bin/false",
    "SYSTEMD_PAGER": "cat",
    "TERM": "dumb",
    "VISUAL": _NO_EDITOR,
}

_GIT_SSH: Final = "ssh -o BatchMode=yes"
_STARTUP_FILES: Final = ("BASH_ENV", "ENV")  # bash would run them before the command that was judged

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:API_?KEY|APIKEY|(?:ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|MASTER|ACCOUNT|SERVICE|DEPLOY|AUTH)_KEY|TOKENS?"
    r"|SECRETS?|PASSW(?:OR)?D|PASSPHRASE|PASS|CREDENTIALS?|COOKIE|AUTHORIZATION|BEARER|DSN)(?:_|$)"
    r"|^[A-Z]+PASSWORD$|_PWD$|_PAT$|_KEY$|ACCESS_KEY_ID$",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD: Final = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by its name or by the look of its value."""
    if not value:
        return False
    named = _SECRET_NAME.search(name) is not None and not name.upper().startswith("SSH_ASKPASS")
    return named or looks_like_secret_text(value) or _URL_WITH_PASSWORD.match(value) is not None


def child_environment(base: Mapping[str, str], token: str, keep: Iterable[str] = ()) -> dict[str, str]:
    """
    The environment of a command.

    Args:
        base: The harness's own environment.
        token: Marks every descendant of the command.
        keep: Names that stay although they look like secrets.
    """
    kept = frozenset(keep)
    env = {name: value for name, value in base.items() if name in kept or not is_secret(name, value)}
    for name in _STARTUP_FILES:
        env.pop(name, None)
    for name in [name for name in env if name.startswith("BASH_FUNC_")]:
        del env[name]  # exported functions would stand in for the programs that were judged
    env.setdefault("GIT_SSH_COMMAND", _GIT_SSH)
    return {**env, **QUIET, TASK_MARK: token}
