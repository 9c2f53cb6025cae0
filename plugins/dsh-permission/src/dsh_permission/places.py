"""
Where a path really leads, and which places are protected (G-2, G-4).
"""

from __future__ import annotations

import fnmatch
import os
import re
import site
import sys
from functools import cache
from pathlib import Path
from typing import Final

import attrs

from dsh_core.config import config_dir, state_dir

__all__ = ["Places", "Target", "ignores_case"]

_STARTUP: Final = tuple(
    ".bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc "
    ".tcshrc .login .inputrc .xprofile .xinitrc .xsessionrc "
    ".config/fish .config/environment.d .config/autostart .pam_environment".split()
)
_SYSTEM_STARTUP: Final = tuple(
    "/etc/profile /etc/profile.d /etc/bash.bashrc /etc/bashrc /etc/zsh /etc/environment "
    "/etc/ld.so.preload /etc/sudoers".split()
)
_SECRETS: Final = (".env*", "*.pem", "id_*", "*credentials*")
_MOST_FILES: Final = 20_000
_SURE_SECRETS: Final = (".env*", "*.pem")


@attrs.frozen
class Target:
    """
    A path as a rule sees it.

    Args:
        typed: Absolute and normalised, links not followed.
        resolved: Where it leads; for something that does not exist yet, through its nearest existing parent.
    """

    typed: str
    resolved: str

    @property
    def both(self) -> tuple[str, str]:
        """Typed and resolved path."""
        return (self.typed, self.resolved)


def ignores_case(directory: str) -> bool:
    """Whether the disk that holds `directory` takes upper and lower case for the same."""
    path = Path(directory)
    while not path.exists() and path != path.parent:
        path = path.parent
    swapped = path.with_name(path.name.swapcase()) if path.name else path
    try:
        return swapped.name != path.name and swapped.exists() and swapped.samefile(path)
    except OSError:
        return False


@cache
def _interpreter_directories() -> tuple[str, ...]:
    places = {os.path.realpath(entry) for entry in (*sys.path, sys.prefix, *site.getsitepackages()) if entry}
    return tuple(sorted(places))


class Places:
    """
    The workspace, the user's home, and what is protected in them.

    Args:
        workspace: Directory the agent works in.
        home: The user's home directory.
    """

    def __init__(self, workspace: str, home: str) -> None:
        self.home = os.path.abspath(home)
        self.workspace = os.path.abspath(os.path.expanduser(workspace))
        self._real_workspace = os.path.realpath(self.workspace)
        self.fold = ignores_case(self.workspace)
        environ = {**os.environ, "HOME": self.home}
        own = (str(config_dir(environ)), str(state_dir(environ)))
        fixed = [*own, *(os.path.join(self.home, name) for name in _STARTUP), *_SYSTEM_STARTUP]
        fixed.append(os.path.join(self.workspace, "dsh.toml"))
        self._fixed = tuple(dict.fromkeys(self._key(form) for path in fixed for form in (path, os.path.realpath(path))))

    def _key(self, path: str) -> str:
        return path.casefold() if self.fold else path

    def target(self, text: str, base: str | None = None) -> Target:
        """
        What a path written by a model means; a leading `~` is the home directory.

        Args:
            text: The path as it was written.
            base: Directory relative paths start from; the workspace when left out.
        """
        if text == "~" or text.startswith("~/"):
            text = self.home + text[1:]
        joined = os.path.join(base or self.workspace, text)
        return Target(os.path.normpath(joined), os.path.realpath(joined))

    def inside(self, target: Target) -> bool:
        """Whether a path lies in the workspace, as typed and as resolved."""
        return _below(self._key(target.resolved), self._key(self._real_workspace)) and any(
            _below(self._key(target.typed), self._key(root)) for root in (self.workspace, self._real_workspace)
        )

    def protected(self, target: Target, *, whole_trees: bool = False) -> str | None:
        """
        Why a path must not be written without a person's yes, or None.

        Args:
            target: The path.
            whole_trees: The operation may hit everything below the path (`rm -r`, `mv`).
        """
        for path in target.both:
            key = self._key(path)
            if any(_below(key, fixed) or (whole_trees and _below(fixed, key)) for fixed in self._fixed):
                return f"{path} is part of the configuration of dsh or of a shell"
            reason = self._protected_by_name(path, whole_trees)
            if reason is not None:
                return reason
        return None

    def _protected_by_name(self, path: str, whole_trees: bool) -> str | None:
        parts = path.casefold().split(os.sep)
        for i, part in enumerate(parts):
            below = parts[i + 1 :]
            if part == ".git" and (not below or below[0] in ("config", "hooks", "config.worktree", "modules")):
                return f"{path} can make git run programs"
            if part in ("site-packages", "dist-packages"):
                return f"{path} belongs to an installed Python package"
        name = parts[-1]
        if name in ("sitecustomize.py", "usercustomize.py"):
            return f"{path} runs whenever Python starts"
        if name.endswith(".pth") and any(_below(path, place) for place in _interpreter_directories()):
            return f"{path} runs whenever Python starts"
        if name == "dsh.toml":
            return f"{path} is the configuration of dsh for a project"
        return None

    def secret(self, target: Target, *, certain: bool = True) -> str | None:
        """
        Why reading a path needs a person's yes, or None.

        Args:
            target: The path.
            certain: False where the text may not be a path at all: it then counts only if the file exists or
                the name leaves no doubt.
        """
        for path in target.both:
            name = os.path.basename(path).casefold()
            patterns = _SECRETS if certain or os.path.lexists(path) else _SURE_SECRETS
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return f"{path} looks like a secret"
        return None

    def secret_below(self, directory: str) -> str | None:
        """Why reading everything below a directory needs a person's yes, or None."""
        seen = 0
        for parent, names, files in os.walk(directory):
            names[:] = [name for name in names if name != ".git"]
            seen += len(files)
            if seen > _MOST_FILES:
                return f"{directory} holds more files than can be looked through for secrets"
            for name in files:
                if any(fnmatch.fnmatchcase(name.casefold(), pattern) for pattern in _SECRETS):
                    return f"{os.path.join(parent, name)} looks like a secret"
        return None

    def pattern(self, glob: str) -> re.Pattern[str]:
        """Compile a path pattern of a rule; relative ones start at the workspace."""
        if glob == "~" or glob.startswith("~/"):
            glob = self.home + glob[1:]
        absolute = glob if os.path.isabs(glob) else os.path.join(_escape(self.workspace), glob)
        return re.compile(_translate(_tidy(absolute)), re.IGNORECASE if self.fold else 0)

    def relative(self, path: str) -> str:
        """A path as a rule would write it: relative inside the workspace."""
        return os.path.relpath(path, self.workspace) if _below(path, self.workspace) else path

    def matches(self, pattern: re.Pattern[str], path: str) -> bool:
        """Whether a compiled pattern covers a path, the workspace counted under both of its names."""
        if pattern.fullmatch(path):
            return True
        # The workspace itself may be reached through a link; both spellings mean the same place.
        if _below(path, self._real_workspace):
            return pattern.fullmatch(self.workspace + path[len(self._real_workspace) :]) is not None
        return False


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _escape(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _tidy(glob: str) -> str:
    parts: list[str] = []
    for part in glob.split("/"):
        if part == ".." and parts and "*" not in parts[-1]:
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _translate(glob: str) -> str:
    out: list[str] = []
    for part in glob.split("/")[1:]:
        if part == "**":
            out.append("(?:/[^/]+)*")
        else:
            # fnmatch's own translation, kept from crossing a slash.
            out.append("/" + _translate_part(part))
    return "".join(out) or "/"


def _translate_part(part: str) -> str:
    out = ""
    i = 0
    while i < len(part):
        char = part[i]
        end = part.find("]", i + 2) if char == "[" else -1
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif end > 0:
            body = part[i + 1 : end].replace("\\", "\\\\")
            out += f"[{'^' + body[1:] if body.startswith('!') else re.escape(body) if len(body) == 1 else body}]"
            i = end
        else:
            out += re.escape(char)
        i += 1
    return out
