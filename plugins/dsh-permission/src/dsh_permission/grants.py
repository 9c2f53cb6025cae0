"""
Remembered answers: for a session in its log, for a project in the user's state directory (G-5, G-6).

Exactly the rule that was displayed is stored, never in the project itself, where a model could write it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dsh_core.errors import ConfigError
from dsh_permission.rules import Rule, parse_rules

__all__ = ["ProjectGrants"]

_FORMAT: Final = 1
_NAME: Final = "grants.json"


class ProjectGrants:
    """
    Rules that people allowed for good, by project.

    Args:
        directory: The user's state directory of dsh.

    A project is told by the real path of its directory.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / _NAME
        self._projects: dict[str, list[str]] = {}

    def load(self) -> None:
        """
        Read the file; one that does not exist holds nothing.

        Raises:
            ConfigError: It is unreadable or damaged. Starting without it could widen nothing, but would hide
                that somebody tampered with it.
        """
        self._projects = self._read()

    def rules(self, workspace: str) -> tuple[Rule, ...]:
        """The rules remembered for a project."""
        texts = self._projects.get(os.path.realpath(workspace), [])
        return parse_rules("allow", texts, f"remembered in {self.path}")

    def add(self, workspace: str, rule: str) -> None:
        """
        Remember a rule for a project, durably.

        Raises:
            ConfigError: The file was damaged meanwhile.
            OSError: It cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            projects = self._read()
            rules = projects.setdefault(os.path.realpath(workspace), [])
            if rule not in rules:
                rules.append(rule)
                self._write(projects)
            self._projects = projects

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own: the grants file is replaced, and a lock on a replaced file excludes nobody.
        descriptor = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, list[str]]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(
                f"{self.path}: remembered permissions cannot be read ({error}); mend or move it"
            ) from error
        try:
            return self._projects_of(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path}: remembered permissions are damaged ({error}); mend the file, or move it away to "
                "start with none"
            ) from error

    def _projects_of(self, value: Any) -> dict[str, list[str]]:
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
            raise ValueError(f"expected an object with format {_FORMAT}")
        projects = value.get("projects")
        if not isinstance(projects, dict) or not all(
            isinstance(rules, list) and all(isinstance(rule, str) for rule in rules) for rules in projects.values()
        ):
            raise ValueError("`projects` must map directories to lists of rules")
        for rules in projects.values():
            try:
                parse_rules("allow", rules, str(self.path))
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return projects

    def _write(self, projects: Mapping[str, list[str]]) -> None:
        text = json.dumps({"format": _FORMAT, "projects": projects}, indent=2, ensure_ascii=False) + "\n"
        descriptor, name = tempfile.mkstemp(prefix=f"{_NAME}.", dir=self.path.parent)  # 0600 by itself
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise
