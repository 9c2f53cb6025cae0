"""
Where configuration comes from: files, environment, overrides; and how the layers become one.

Later layers win and tables are merged. The lists of permission rules add up instead, because a later list
that replaced an earlier one would silently drop the denials in it. Files are read, never written.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from dsh_core._dirs import config_dir, home_dir
from dsh_core._faults import dotted
from dsh_core._trust import PROJECT_FILE, trusts
from dsh_core.errors import ConfigError

__all__ = ["ENVIRONMENT", "USER_FILE", "Layer", "find_project_file", "merge", "read_layers"]

LayerKind: TypeAlias = Literal["user", "project", "environment", "mapping", "overrides"]

USER_FILE: Final = "config.toml"
MAX_FILE_BYTES: Final = 1 << 20
ADDITIVE: Final = frozenset({"permissions.allow", "permissions.ask", "permissions.deny"})

ENVIRONMENT: Final[Mapping[str, str]] = {
    "DSH_MODEL": "model",
    "DSH_PERSISTENCE": "persistence",
    "DSH_MAX_STEPS": "max_steps",
}
"""The environment variables that set a key; an empty one counts as not set."""


@attrs.frozen
class Layer:
    """
    One source of configuration, as it was given.

    Args:
        kind: What sort of source it is.
        source: Its name for messages: a file, `environment`, `overrides`.
        values: What it sets.
        trusted: False for a project file the user has not trusted; `values` then holds only what it may set.
    """

    kind: LayerKind
    source: str
    values: Mapping[str, Any] = attrs.field(hash=False)
    trusted: bool = True

    def origin(self, path: str) -> str:
        """Where the key at `path` was set, in words."""
        if self.kind != "environment":
            return self.source
        return next((f"environment variable {name}" for name, key in ENVIRONMENT.items() if key == path), self.source)


def read_layers(cwd: Path, env: Mapping[str, str]) -> tuple[list[Layer], list[str]]:
    """
    Read the user's file, the project's file and the environment, in this order.

    Returns:
        The layers, and the warnings about what an untrusted project file may not set.

    Raises:
        ConfigError: A file cannot be read or is not TOML; all such files are named.
    """
    layers: list[Layer] = []
    warnings: list[str] = []
    faults: list[str] = []
    user = config_dir(env) / USER_FILE
    project = find_project_file(cwd, home_dir(env))
    for kind, file in (("user", user), ("project", project)):
        try:
            content = _read(file) if file is not None else None
            if file is None or content is None:
                continue
            values = _parse(file, content)
        except ConfigError as error:
            faults.append(error.message)
            continue
        if kind == "user":
            layers.append(Layer("user", os.fspath(file), values))
        elif trusts(file, content, env):
            layers.append(Layer("project", os.fspath(file), values))
        else:
            allowed = _of_untrusted(file, values, layers, warnings)
            layers.append(Layer("project", os.fspath(file), allowed, trusted=False))
    if faults:
        raise ConfigError("\n".join(faults))
    layers.append(_environment(env))
    return [layer for layer in layers if layer.values], warnings


def find_project_file(cwd: Path, home: Path) -> Path | None:
    """
    The nearest `dsh.toml` from `cwd` upwards, up to the root of the repository or the home directory.

    Outside of both only `cwd` itself is looked at: further up may be anybody's.
    """
    here = Path(os.path.realpath(cwd))
    bound = Path(os.path.realpath(home))
    passed: list[Path] = []
    for directory in (here, *here.parents):
        passed.append(directory)
        if directory == bound or (directory / ".git").exists():
            break
    else:
        passed = [here]
    return next((each / PROJECT_FILE for each in passed if os.path.lexists(each / PROJECT_FILE)), None)


def _read(file: Path) -> bytes | None:
    """The bytes of a file, None when there is none."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{file}: is not a regular file; replace it with one, or remove it")
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if not file.is_symlink():
            return None
        raise ConfigError(f"{file}: is a link to nowhere; mend or remove it") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; check its permissions") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: is larger than {MAX_FILE_BYTES} bytes; that cannot be configuration")
    return content


def _parse(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}: line {line} is not UTF-8; save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else content.count(b"\n") + 1
        raise ConfigError(f"{file}: line {line} is not valid TOML: {error}; mend it by hand") from error
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply; that cannot be configuration") from None


def _environment(env: Mapping[str, str]) -> Layer:
    values: dict[str, Any] = {}
    for name, key in ENVIRONMENT.items():
        text = env.get(name, "")
        if text:
            values[key] = int(text) if key == "max_steps" and re.fullmatch(r"[0-9]{1,9}", text) else text
    return Layer("environment", "environment", values)


def _of_untrusted(file: Path, values: dict[str, Any], below: list[Layer], warnings: list[str]) -> dict[str, Any]:
    """What a project file may set before the user has trusted it: it may tighten and decorate."""
    bound = next((layer.values["max_steps"] for layer in below if "max_steps" in layer.values), 200)
    allowed: dict[str, Any] = {}
    refused: list[str] = []
    for key, value in values.items():
        if key == "permissions" and isinstance(value, dict):
            allowed[key] = {name: rules for name, rules in value.items() if name in ("ask", "deny")}
            refused += [dotted(key, name) for name in value if name not in ("ask", "deny")]
        elif key == "display" or (key == "max_steps" and _lowers(value, bound)):
            allowed[key] = value
        else:
            refused += _leaves(value, dotted("", key))
    if refused:
        warnings.append(
            f"{file} is not trusted, so this in it is ignored: {', '.join(sorted(refused))}; "
            "read the file, then trust the project if you agree with it"
        )
    return allowed


def _lowers(value: object, bound: object) -> bool:
    return type(value) is int and (type(bound) is not int or value < bound)


def _leaves(value: object, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(inner, dotted(path, str(key)))


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Merge layers, the last one winning.

    Returns:
        The merged values, and for each key path that holds no table the source it comes from.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _merge_into(values, layer.values, "", layer, origins)
    return values, origins


def _merge_into(
    target: dict[str, Any], values: Mapping[str, Any], path: str, layer: Layer, origins: dict[str, str]
) -> None:
    for key, value in values.items():
        here = dotted(path, str(key))
        before = target.get(key)
        if isinstance(value, Mapping):
            if not isinstance(before, dict):
                before = target[key] = {}
                origins.pop(here, None)
            _merge_into(before, value, here, layer, origins)
        elif here in ADDITIVE and isinstance(before, list) and isinstance(value, list | tuple):
            _add_rules(before, value, here, layer, origins)
        else:
            _strike(origins, here)
            target[key] = list(value) if isinstance(value, list | tuple) else value
            origins[here] = layer.origin(here)


def _add_rules(before: list[Any], value: Sequence[Any], path: str, layer: Layer, origins: dict[str, str]) -> None:
    added = [rule for rule in value if rule not in before]
    if added:
        before.extend(added)
        origins[path] = f"{origins[path]} and {layer.origin(path)}"


def _strike(origins: dict[str, str], path: str) -> None:
    for stale in [each for each in origins if each.startswith(f"{path}.")]:
        del origins[stale]
