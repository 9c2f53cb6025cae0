"""Configuration: layers, strictness, faults, explanations (30-plugins §9, 20-core §8)."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from dsh_core.config import AgentConfig, Config, config_dir, find_project_file, state_dir, structure, trust_project
from dsh_core.errors import ConfigError


class World:
    """A home directory with a repository in it, and the environment that belongs to them."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.repo = self.home / "repo"
        self.cwd = self.repo / "src"
        self.cwd.mkdir(parents=True)
        (self.repo / ".git").mkdir()
        self.env = {
            "HOME": str(self.home),
            "DSH_CONFIG_DIR": str(root / "config"),
            "DSH_STATE_DIR": str(root / "state"),
        }
        self.user_file = root / "config" / "config.toml"
        self.user_file.parent.mkdir()
        self.project_file = self.repo / "dsh.toml"

    def user(self, text: str | bytes) -> None:
        self.user_file.write_bytes(text.encode() if isinstance(text, str) else text)

    def project(self, text: str, *, trusted: bool = True) -> None:
        self.project_file.write_text(text)
        if trusted:
            trust_project(self.project_file, self.env)

    def load(self, overrides: Mapping[str, Any] | None = None, **env: str) -> Config:
        return Config.load(self.cwd, {**self.env, **env}, overrides)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def faults_of(call: Any, *arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return caught.value.message.splitlines()


# -- defaults and layers -----------------------------------------------------------------------------------


def test_nothing_configured_gives_the_defaults(world: World) -> None:
    """§9: no file, no variable: the same as `Config()`."""
    config = world.load()
    assert config == Config()
    assert (config.persistence, config.tools.max_parallel, config.max_steps) == ("jsonl", 8, None)
    assert config.warnings == ()


def test_later_layers_win_and_tables_are_merged(world: World) -> None:
    """§9: user file < project file < environment < overrides, key by key."""
    world.user(
        'model = "a/user"\nmax_steps = 10\n[plugins.compact]\nthreshold = 0.5\nretain = 0.1\n[hooks]\ntimeout = 3'
    )
    world.project('model = "a/project"\nsystem_prompt = "p"\n[plugins.compact]\nthreshold = 0.7')
    config = world.load({"max_steps": 30, "display": {"color": False}}, DSH_MODEL="a/env", DSH_MAX_STEPS="20")
    assert (config.model, config.max_steps, config.system_prompt) == ("a/env", 30, "p")
    assert config.plugins.tables == {"compact": {"threshold": 0.7, "retain": 0.1}}
    assert config.hooks.timeout == 3.0
    assert config.display == {"color": False}


def test_explain_names_the_source_of_every_key(world: World) -> None:
    """§9: `dsh config explain KEY` shows where a value comes from."""
    world.user('[plugins.compact]\nthreshold = 0.5\n[plugins."dotted.name"]\nx = 1\n[[agents]]\nid = "helper"')
    world.project("[plugins.compact]\nretain = 0.2")
    config = world.load({"max_steps": 3}, DSH_MODEL="a/env")
    user, project = str(world.user_file), str(world.project_file)
    assert config.explain("plugins.compact.threshold").origin == user
    assert config.explain("plugins.compact.retain").origin == project
    assert config.explain("plugins.compact").origin == f"{user} and {project}"
    assert config.explain('plugins."dotted.name".x').value == 1
    assert config.explain("model").origin == "environment variable DSH_MODEL"
    assert config.explain("max_steps").origin == "overrides"
    assert config.explain("tools.max_parallel") == type(config.explain("model"))("tools.max_parallel", 8, "default")
    assert config.explain("agents").origin == user


@pytest.mark.parametrize(
    ("key", "hint"), [("modle", "'model'"), ("tools.max_paralel", "'max_parallel'"), ("a..b", "key path"), ("", "key")]
)
def test_explain_of_an_unknown_key_names_the_nearest(key: str, hint: str) -> None:
    """§9: errors name the nearest valid key."""
    assert hint in faults_of(Config().explain, key)[0]


def test_a_table_replaced_by_a_value_leaves_no_stale_origin() -> None:
    """§9: where a value comes from is told of the value that won."""
    config = Config.from_mapping({"display": {"a": {"b": 1}}}, "first")
    assert config.origins == {"display.a.b": "first"}


def test_permission_rules_of_all_layers_add_up(world: World) -> None:
    """G-1: a later list cannot drop an earlier denial; the layers tell which rule came from where."""
    world.user('[permissions]\ndeny = ["bash(rm *)"]\nallow = ["read"]')
    world.project('[permissions]\ndeny = ["write", "bash(rm *)"]\nallow = []')
    config = world.load()
    assert config.permissions == {"deny": ["bash(rm *)", "write"], "allow": ["read"]}
    assert [(layer.kind, layer.values["permissions"]["deny"]) for layer in config.layers] == [
        ("user", ["bash(rm *)"]),
        ("project", ["write", "bash(rm *)"]),
    ]
    assert config.explain("permissions.deny").origin == f"{world.user_file} and {world.project_file}"


@pytest.mark.parametrize("value", ["none", "", None])
def test_persistence_can_be_switched_off(value: str | None) -> None:
    """H-9: configuration names the provider, or none."""
    assert Config.from_mapping({"persistence": value}).persistence is None


def test_an_empty_variable_counts_as_not_set(world: World) -> None:
    """§9: `DSH_MODEL=` does not erase the file's model."""
    world.user('model = "a/b"')
    assert world.load(DSH_MODEL="", DSH_PERSISTENCE="none").model == "a/b"


# -- files -----------------------------------------------------------------------------------------------


def test_byte_order_mark_and_crlf_are_read_as_if_absent(world: World) -> None:
    """log-13: a file saved by a Windows editor."""
    world.user(b'\xef\xbb\xbfmodel = "a/b"\r\nsystem_prompt = """one\r\ntwo"""\r\n[tools]\r\nmax_parallel = 2\r\n')
    config = world.load()
    assert (config.model, config.tools.max_parallel, config.system_prompt) == ("a/b", 2, "one\ntwo")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'model = "a"\nmodel = \n', 2),
        (b"a = 1\n[x\n", 2),
        (b'a = "\n', 1),
        (b"a = 1\na = 2", 2),
        (b"x = 1\r\n\r\ny = \r\n", 3),
        (b"x = 1\ny = '\xff'\n", 2),
        (b"\xff\xfem\x00o\x00", 1),
    ],
)
def test_invalid_toml_names_file_and_line_and_is_not_touched(world: World, content: bytes, line: int) -> None:
    """log-13: an unreadable configuration is an error and never overwritten."""
    world.user(content)
    (message,) = faults_of(world.load)
    assert message.startswith(f"{world.user_file}: line {line} ")
    assert world.user_file.read_bytes() == content


def test_both_broken_files_are_named_at_once(world: World) -> None:
    """§9: all faults at once."""
    world.user("=")
    world.project("=", trusted=False)
    assert [line.split(":")[0] for line in faults_of(world.load)] == [str(world.user_file), str(world.project_file)]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])
def test_what_is_not_a_file_is_an_error_and_never_hangs(world: World, make: Any) -> None:
    """§9: a directory, a pipe or a dangling link in the place of the file."""
    make(world.user_file)
    assert str(world.user_file) in faults_of(world.load)[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_an_error(world: World) -> None:
    """log-13: not readable is not the same as not there."""
    world.user('model = "a/b"')
    world.user_file.chmod(0)
    assert "cannot be read" in faults_of(world.load)[0]


def test_the_nearest_project_file_within_the_repository_counts(world: World) -> None:
    """§9: from the working directory upwards to the root of the repository, not beyond."""
    (world.home / "dsh.toml").write_text("")
    assert find_project_file(world.cwd, world.home) is None
    world.project_file.write_text("")
    assert find_project_file(world.cwd, world.home) == world.project_file
    (world.cwd / "dsh.toml").write_text("")
    assert find_project_file(world.cwd, world.home) == world.cwd / "dsh.toml"


def test_outside_of_repositories_the_search_ends_at_home(tmp_path: Path) -> None:
    """§9: below home up to home; elsewhere only the directory itself, for further up may be anybody's."""
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "dsh.toml").write_text("")
    assert find_project_file(deep, tmp_path) == tmp_path / "dsh.toml"
    assert find_project_file(deep, tmp_path / "elsewhere") is None
    assert find_project_file(tmp_path, tmp_path / "elsewhere") == tmp_path / "dsh.toml"


@pytest.mark.skipif(sys.platform == "darwin", reason="XDG directories")
def test_directories_follow_xdg_and_can_be_overridden() -> None:
    """20-core §8: `$XDG_CONFIG_HOME/dsh`, `DSH_CONFIG_DIR` overrides; a relative XDG value is ignored."""
    assert config_dir({"HOME": "/h"}) == Path("/h/.config/dsh")
    assert state_dir({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/dsh")
    assert config_dir({"HOME": "/h", "XDG_CONFIG_HOME": "rel"}) == Path("/h/.config/dsh")
    assert config_dir({"HOME": "/h", "XDG_CONFIG_HOME": "/x", "DSH_CONFIG_DIR": "/c"}) == Path("/c")


# -- strictness ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "fault"),
    [
        ({"model": 3}, "f: model: expected text, found a whole number"),
        ({"model": ["a"]}, "f: model: expected text, found a list"),
        ({"model": "  "}, "f: model: expected text that is not empty"),
        ({"max_steps": True}, "f: max_steps: expected a whole number, found true or false"),
        ({"max_steps": 1.0}, "f: max_steps: expected a whole number, found a number"),
        ({"max_steps": "3"}, "f: max_steps: expected a whole number, found text"),
        ({"max_steps": 0}, "f: max_steps: expected a number of at least 1"),
        ({"plugins": {"strict": 1}}, "f: plugins.strict: expected true or false, found a whole number"),
        ({"plugins": {"require": "a"}}, "f: plugins.require: expected a list of text, found text"),
        ({"plugins": {"require": {"a": 1}}}, "f: plugins.require: expected a list of text, found a table"),
        ({"plugins": {"require": ["a", 1]}}, "f: plugins.require[1]: expected text, found a whole number"),
        ({"plugins": ["a"]}, "f: plugins: expected a table, found a list"),
        ({"hooks": {"timeout": True}}, "f: hooks.timeout: expected a number, found true or false"),
        ({"hooks": {"timeout": 0}}, "f: hooks.timeout: expected a number above 0"),
        ({"agents": {"id": "a"}}, "f: agents: expected a list of tables, found a table"),
        ({"agents": [{"model": "m"}]}, "f: agents[0].id: is missing; expected text"),
        ({"agents": [{"id": "a"}, {"id": "a"}]}, "f: agents: expected distinct ids, found twice: a"),
        ({"display": 3}, "f: display: expected a table, found a whole number"),
        ({"permissions": {"deny": "x"}}, "f: permissions.deny: expected a list of text, found text"),
        ({"permissions": {"ask": [1]}}, "f: permissions.ask[0]: expected text, found a whole number"),
        ({"max-steps": 3}, "f: max-steps: unknown key; did you mean 'max_steps'?"),
        ({"provenance": 3}, "f: provenance: unknown key"),
        ({"plugins": {"tables": 3}}, "f: plugins.tables: unknown key"),
        ({"tools": {"ordre": []}}, "f: tools.ordre: unknown key; did you mean 'order'?"),
    ],
)
def test_nothing_is_silently_coerced(mapping: dict[str, Any], fault: str) -> None:
    """20-core §8: structuring is strict; the fault names file, key path, expected form and nearest key."""
    (found,) = faults_of(Config.from_mapping, mapping, "f")
    assert found.startswith(fault)


def test_all_faults_are_told_at_once(world: World) -> None:
    """§9: one run shows everything that is wrong, each with its own source."""
    world.user('model = 3\n[tools]\norder = 1\nmax_parallel = 0\n[plugins.x]\napi_key = "v"')
    world.project("[hooks]\ntimout = 1\n[permissions]\ndeny = [2]")
    found = faults_of(lambda: world.load({"nonsense": 1}, DSH_MAX_STEPS="many"))
    user, project = str(world.user_file), str(world.project_file)
    assert sorted(": ".join(line.split(": ")[:2]) for line in found) == sorted(
        [
            f"{user}: model", f"{user}: tools.order", f"{user}: tools.max_parallel", f"{user}: plugins.x.api_key",
            f"{project}: hooks.timout", f"{project}: permissions.deny[0]",
            "overrides: nonsense", "environment variable DSH_MAX_STEPS: max_steps",
        ]
    )  # fmt: skip


class Mode(enum.StrEnum):
    FAST = "fast"
    SAFE = "safe"


@attrs.frozen
class Limits:
    low: int = 0
    high: int = attrs.field(default=10, validator=attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class Everything:
    """A plugin's configuration with every form that TOML can give."""

    name: str
    ratio: float = 0.5
    flag: bool = False
    mode: Literal["ask", "plan"] = "ask"
    speed: Mode = Mode.FAST
    root: Path | None = None
    limits: Limits = attrs.field(factory=Limits)
    many: tuple[Limits, ...] = ()
    named: Mapping[str, Limits] = attrs.field(factory=dict)
    words: Sequence[str] = ()
    pair: tuple[str, int] = ("", 0)
    choice: str | list[str] | Limits | None = None
    free: dict[str, Any] = attrs.field(factory=dict)


def test_a_plugins_class_is_built_from_its_table() -> None:
    """H-8: a plugin's class is built with its structured configuration."""
    built = Config().structure(
        {
            "name": "n", "ratio": 1, "mode": "plan", "speed": "safe", "root": "/r", "limits": {"low": 1},
            "many": [{"high": 2}], "named": {"a b": {"low": 3}}, "words": ["w"], "pair": ["x", 1],
            "choice": ["c"], "free": {"x": [1, {"y": None}]},
        },
        Everything,
        "plugins.all",
    )  # fmt: skip
    assert built == Everything(
        name="n", ratio=1.0, mode="plan", speed=Mode.SAFE, root=Path("/r"), limits=Limits(1), many=(Limits(0, 2),),
        named={"a b": Limits(3)}, words=("w",), pair=("x", 1), choice=["c"], free={"x": [1, {"y": None}]},
    )  # fmt: skip
    assert type(built.ratio) is float


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({}, "name: is missing; expected text"),
        ({"mode": "plam"}, "mode: expected one of 'ask', 'plan', found text; did you mean 'plan'?"),
        ({"speed": "slow"}, "speed: expected one of 'fast', 'safe', found text"),
        ({"speed": 1}, "speed: expected one of 'fast', 'safe', found a whole number"),
        ({"root": 3}, "root: expected a path as text, found a whole number"),
        ({"limits": {"high": 0}}, "limits.high: "),
        ({"limits": {"high": 0, "low": "x"}}, "limits.low: expected a whole number, found text"),
        ({"many": [{}, {"lo": 1}]}, "many[1].lo: unknown key; did you mean 'low'?"),
        ({"named": {"a.b": {"low": 1.5}}}, 'named."a.b".low: expected a whole number, found a number'),
        ({"words": "abc"}, "words: expected a list of text, found text"),
        ({"words": {"a": 1}}, "words: expected a list of text, found a table"),
        ({"pair": ["x"]}, "pair: expected a list of text, found a list"),
        ({"choice": {"low": "x"}}, "choice.low: expected a whole number, found text"),
        ({"choice": 3}, "choice: expected text or a list of text or a table, found a whole number"),
        ({"free": []}, "free: expected a table, found a list"),
        ({"flag": 0}, "flag: expected true or false, found a whole number"),
    ],
)
def test_faults_in_a_plugins_table_name_the_whole_path(table: dict[str, Any], fault: str) -> None:
    """20-core §8: at any depth, in lists, maps and unions."""
    table = table if table == {} else {"name": "n", **table}
    found = faults_of(structure, table, Everything, "plugins.all")
    assert any(line.startswith(f"plugins.all.{fault}") for line in found)


def test_a_plugins_fault_names_the_file_that_set_the_key(world: World) -> None:
    """§9: errors of plugins' tables name their file too, also for what is missing."""
    world.user("[plugins.all]\nratio = true")
    world.project("[plugins.all.limits]\nlow = false")
    config = world.load()
    found = faults_of(config.structure, config.plugins.tables["all"], Everything, "plugins.all")
    assert f"{world.user_file}: plugins.all.ratio: expected a number, found true or false" in found
    assert f"{world.project_file}: plugins.all.limits.low: expected a whole number, found true or false" in found
    assert any(line.endswith("plugins.all.name: is missing; expected text") for line in found)


def test_defaults_do_not_import_cattrs() -> None:
    """Import budget: a harness without configuration does not pay for cattrs."""
    program = (
        "import sys\nfrom dsh_core.config import *\nimport attrs\n"
        "@attrs.frozen\nclass C:\n    x: int = 1\n"
        "Config(); Config.from_mapping({}); Config.load('/', {'HOME': '/nowhere'})\n"
        "Config().structure({}, C, 'plugins.c')\n"
        "assert 'cattrs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- secrets ---------------------------------------------------------------------------------------------

KEY = "sk-" + "a1B2" * 8


@pytest.mark.parametrize(
    "table",
    [
        {"api_key": "x"},
        {"apiKey": "x"},
        {"providers": {"openai": {"api-key": "x"}}},
        {"providers": [{"token": "x"}]},
        {"auth_token": ["x"]},
        {"password": "x"},
        {"client_secret": "x"},
        {"headers": {"Authorization": "Bearer x"}},
        {"anything": KEY},
        {"header": f"Bearer {KEY}"},
    ],
)
def test_written_down_secrets_are_refused_without_being_repeated(table: dict[str, Any]) -> None:
    """§9: secrets are references, never values, and never appear in errors."""
    (fault,) = faults_of(Config.from_mapping, {"plugins": {"p": table}}, "f")
    assert fault.startswith("f: plugins.p.")
    assert '_env = "NAME"' in fault
    assert KEY not in fault


def test_what_only_sounds_like_a_secret_is_fine() -> None:
    """§9: the harmless twins: references, counts, switches, lists of patterns."""
    table = {
        "api_key_env": "OPENAI_API_KEY", "max_tokens": 3, "token_limit": "8k", "secret_patterns": ["*.pem"],
        "password": False, "keys": ["a"], "tokenizer": "bpe", "api_key": "", "model": "sk-small",
    }  # fmt: skip
    assert Config.from_mapping({"plugins": {"p": table}}).plugins.tables["p"] == table


def test_errors_never_show_values() -> None:
    """§9: a secret in the wrong place is not repeated by the error."""
    message = "\n".join(faults_of(Config.from_mapping, {"max_steps": "hunter2", "tools": {"order": "hunter2"}}))
    assert "hunter2" not in message


def test_agents_are_structured() -> None:
    """A-10: `[[agents]]` id, model, system_prompt, session."""
    config = Config.from_mapping({"agents": [{"id": "a", "model": "m"}, {"id": "b", "session": "s"}]})
    assert config.agents == (AgentConfig(id="a", model="m"), AgentConfig(id="b", session="s"))
