"""
Which project files the user has trusted.

Trust is bound to the real path of the file and to a hash of its content, so a change asks again. It lives
in the user's state directory, one small file for each project: two processes cannot overwrite each other,
and a damaged entry costs only the trust in that one project.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from dsh_core._dirs import state_dir
from dsh_core.errors import ConfigError

__all__ = ["PROJECT_FILE", "is_trusted", "trust_project", "trusts", "untrust_project"]

PROJECT_FILE = "dsh.toml"


def trust_project(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Path:
    """
    Trust a project file as it is now.

    Args:
        path: The `dsh.toml`, or the directory that holds it.
        env: Environment to look at instead of the process's own.

    Returns:
        The real path that is trusted.

    Raises:
        ConfigError: There is no such file, or the trust store cannot be written.
    """
    file = _project_file(path)
    entry = {"path": os.fspath(file), "sha256": _digest(_content(file))}
    target = _entry(file, env)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(target, json.dumps(entry, ensure_ascii=True).encode())
    except OSError as error:
        raise ConfigError(f"cannot remember the trust in {file}: {error}; check {target.parent}") from error
    return file


def untrust_project(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> bool:
    """Take the trust in a project file back; tells whether there was any."""
    try:
        _entry(_project_file(path), env).unlink()
    except FileNotFoundError:
        return False
    return True


def is_trusted(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> bool:
    """
    Whether the user trusts a project file with exactly its present content.

    Args:
        path: The `dsh.toml`, or the directory that holds it.
        env: Environment to look at instead of the process's own.
    """
    file = _project_file(path)
    try:
        content = _content(file)
    except ConfigError:
        return False
    return trusts(file, content, env)


def trusts(file: Path, content: bytes, env: Mapping[str, str] | None = None) -> bool:
    """Whether `content`, read from `file`, is trusted: for those who must judge the very bytes they use."""
    real = Path(os.path.realpath(file))
    try:
        entry = json.loads(_entry(real, env).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(entry == {"path": os.fspath(real), "sha256": _digest(content)})


def _project_file(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    return Path(os.path.realpath(file / PROJECT_FILE if file.is_dir() else file))


def _content(file: Path) -> bytes:
    try:
        if not file.is_file():  # also keeps pipes and devices from being opened
            raise ConfigError(f"{file} is not a file; name a project's {PROJECT_FILE} or its directory")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _entry(file: Path, env: Mapping[str, str] | None) -> Path:
    return state_dir(env) / "trust" / f"{_digest(os.fsencode(file))}.json"


def _write_private(target: Path, content: bytes) -> None:
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
