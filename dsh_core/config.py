"""
Configuration: what may be set, and how layers become one `Config`.

`Config.load` merges, later wins: the user's `config.toml`, the project's `dsh.toml`, the environment
(`DSH_MODEL`, `DSH_PERSISTENCE`, `DSH_MAX_STEPS`), overrides (the command line). Every error names file, key
path, expected form and nearest valid key, all at once. No value is ever put into a message: it may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from dsh_core._dirs import config_dir, state_dir
from dsh_core._explain import Explanation, member_of, origin_of, parts_of, source_of
from dsh_core._faults import Fault, Faults, dotted, kind_of, nearest
from dsh_core._layers import ENVIRONMENT, USER_FILE, Layer, find_project_file, merge, read_layers
from dsh_core._secrets import looks_like_secret_name, looks_like_secret_text, secret_paths
from dsh_core._sections import (
    AgentConfig,
    ApprovalConfig,
    HooksConfig,
    PluginsConfig,
    ToolsConfig,
    at_least,
    some_text,
)
from dsh_core._structure import structure_mapping
from dsh_core._trust import PROJECT_FILE, is_trusted, trust_project, untrust_project
from dsh_core.errors import ConfigError

__all__ = [
    "AgentConfig",
    "ApprovalConfig",
    "Config",
    "ENVIRONMENT",
    "Explanation",
    "HooksConfig",
    "Layer",
    "PROJECT_FILE",
    "PluginsConfig",
    "ToolsConfig",
    "USER_FILE",
    "config_dir",
    "find_project_file",
    "is_trusted",
    "looks_like_secret_name",
    "looks_like_secret_text",
    "state_dir",
    "structure",
    "trust_project",
    "untrust_project",
]

T = TypeVar("T")


@attrs.frozen
class _Provenance:
    layers: tuple[Layer, ...] = ()
    origins: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    warnings: tuple[str, ...] = ()


def _backend(value: str | None) -> str | None:
    return None if value in ("none", "") else value  # TOML and the environment have no null


def _unique_ids(_: Any, field: Any, agents: tuple[AgentConfig, ...]) -> None:
    ids = [agent.id for agent in agents]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"expected distinct ids, found twice: {', '.join(twice)}")


@attrs.frozen(kw_only=True)
class Config:
    """
    The whole configuration; `Config()` is the defaults.

    Args:
        model: `provider/model`, or a bare name that one provider offers.
        persistence: Name of the backend; `"none"` or None keeps sessions in memory.
        system_prompt: The persona of agents that bring none.
        max_steps: Steps a turn may have; None leaves the default of `AgentOptions`.
        plugins: `[plugins]` and `[plugins.NAME]`.
        hooks: `[hooks]`.
        approval: `[approval]`.
        agents: `[[agents]]`.
        tools: `[tools]`.
        permissions: `[permissions]`, for the plugin that judges calls. The lists `allow`, `ask` and `deny` of
            all layers add up; `layers` tells which rule came from where.
        display: `[display]`, for front ends.
    """

    model: str | None = attrs.field(default=None, validator=some_text)
    persistence: str | None = attrs.field(default="jsonl", converter=_backend)
    system_prompt: str | None = None
    max_steps: int | None = attrs.field(default=None, validator=at_least(1))
    plugins: PluginsConfig = attrs.field(factory=PluginsConfig)
    hooks: HooksConfig = attrs.field(factory=HooksConfig)
    approval: ApprovalConfig = attrs.field(factory=ApprovalConfig)
    agents: tuple[AgentConfig, ...] = attrs.field(default=(), converter=tuple, validator=_unique_ids)
    tools: ToolsConfig = attrs.field(factory=ToolsConfig)
    permissions: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    display: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    _provenance: _Provenance = attrs.field(factory=_Provenance, eq=False, repr=False)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The sources, weakest first, as they were given."""
        return self._provenance.layers

    @property
    def origins(self) -> Mapping[str, str]:
        """For each key path that was set, where; what is not in here is a default."""
        return self._provenance.origins

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was ignored, and why."""
        return self._provenance.warnings

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], source: str = "mapping") -> Config:
        """
        Build a configuration from one mapping, without looking at files or environment.

        Args:
            mapping: The keys of a configuration file.
            source: Its name in messages.

        Raises:
            ConfigError: With all faults.
        """
        return _from_layers([Layer("mapping", source, mapping)], ())

    @classmethod
    def load(
        cls,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Config:
        """
        Merge all sources for a working directory.

        Args:
            cwd: Where to look for a project file, upwards; the process's own directory when left out.
            env: Environment to use instead of the process's own.
            overrides: What the command line sets, in the shape of a configuration file.

        Raises:
            ConfigError: With all faults of all sources. No file is ever written.
        """
        layers, warnings = read_layers(Path.cwd() if cwd is None else Path(cwd), os.environ if env is None else env)
        if overrides:
            layers.append(Layer("overrides", "overrides", overrides))
        return _from_layers(layers, warnings)

    def explain(self, key: str) -> Explanation:
        """
        The value of a key and where it comes from.

        Args:
            key: A path such as `plugins.compact.threshold`, quoted as in TOML where a part holds a dot.

        Raises:
            ConfigError: There is no such key; the nearest one is named.
        """
        value: Any = self
        path = ""
        for part in parts_of(key):
            value = member_of(value, part, dotted(path, part))
            path = dotted(path, part)
        return Explanation(path, value, origin_of(self.origins, path))

    def structure(self, mapping: Mapping[str, Any], cls: type[T], where: str) -> T:
        """
        Build a plugin's `Config` class from its table.

        Args:
            mapping: The table, from `plugins.tables`.
            cls: An attrs class.
            where: Key path of the table, such as `plugins.compact`.

        Raises:
            ConfigError: With all faults, each naming its file.
        """
        return structure(mapping, cls, where, origins=self.origins)


_PUBLIC: Final = tuple(field.name for field in attrs.fields(Config) if not field.name.startswith("_"))


def structure(mapping: Mapping[str, Any], cls: type[T], where: str, *, origins: Mapping[str, str] | None = None) -> T:
    """
    Build an attrs class from a mapping, strictly.

    Args:
        mapping: Plain values.
        cls: The attrs class.
        where: Key path of the mapping, for messages.
        origins: For key paths, the source that set them.

    Raises:
        ConfigError: With all faults.
    """
    try:
        return structure_mapping(mapping, cls)
    except Faults as wrong:
        raise _error([fault.below(where) if where else fault for fault in wrong.faults], origins or {}) from None


def _from_layers(layers: Sequence[Layer], warnings: Iterable[str]) -> Config:
    values, origins = merge(layers)
    faults = [
        Fault(path, f"holds a secret; name the environment variable that has it instead, {_reference(path)}")
        for path in secret_paths(values)
    ]
    permissions = values.get("permissions")
    if isinstance(permissions, dict):
        faults += _rule_faults(permissions)
    faults += [Fault(key, f"unknown key; {nearest(key, _PUBLIC)}") for key in values if key not in _PUBLIC]
    values = {key: value for key, value in values.items() if key in _PUBLIC}
    plugins, more = _plugins_table(values.get("plugins"))
    faults += more
    try:
        found = structure_mapping(values | plugins, Config)
    except Faults as wrong:
        faults += wrong.faults
    if faults:
        raise _error(faults, origins)
    return attrs.evolve(found, provenance=_Provenance(tuple(layers), origins, tuple(warnings)))


def _reference(path: str) -> str:
    name = path.rpartition(".")[2].partition("[")[0].strip('"')
    return f'{name}_env = "NAME"' if looks_like_secret_name(name) else 'such as api_key_env = "NAME"'


def _rule_faults(permissions: Mapping[str, Any]) -> list[Fault]:
    wrong = []
    for key in ("allow", "ask", "deny"):
        rules = permissions.get(key, [])
        if not isinstance(rules, list):
            wrong.append(Fault(f"permissions.{key}", f"expected a list of text, found {kind_of(rules)}"))
            continue
        for index, rule in enumerate(rules):
            if not isinstance(rule, str):
                wrong.append(Fault(f"permissions.{key}[{index}]", f"expected text, found {kind_of(rule)}"))
    return wrong


def _plugins_table(plugins: Any) -> tuple[dict[str, Any], list[Fault]]:
    """Set the plugins' own tables apart from the keys of `[plugins]`."""
    if not isinstance(plugins, Mapping):
        return {}, []
    own = {key: value for key, value in plugins.items() if key in PluginsConfig.own_keys}
    tables = {key: value for key, value in plugins.items() if key not in own and isinstance(value, Mapping)}
    faults = [
        Fault(dotted("plugins", key), f"unknown key; {nearest(key, PluginsConfig.own_keys)} (plugins have tables)")
        for key in plugins
        if key not in own and key not in tables
    ]
    return {"plugins": {**own, "tables": tables}}, faults


def _error(faults: Iterable[Fault], origins: Mapping[str, str]) -> ConfigError:
    lines = [f"{source_of(origins, fault.path)}{fault.path}: {fault.text}" for fault in faults]
    return ConfigError("\n".join(dict.fromkeys(lines)))
