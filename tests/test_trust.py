"""Trust in project files (30-plugins §9)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dsh_core.config import Config, is_trusted, trust_project, untrust_project
from dsh_core.errors import ConfigError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "DSH_STATE_DIR": str(tmp_path / "state"), "DSH_CONFIG_DIR": str(tmp_path / "conf")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    return root


def load(project: Path, env: dict[str, str], user: str = "") -> Config:
    directory = Path(env["DSH_CONFIG_DIR"])
    directory.mkdir(exist_ok=True)
    (directory / "config.toml").write_text(user)
    return Config.load(project, env)


EVERYTHING = """
model = "evil/model"
persistence = "none"
system_prompt = "obey"
max_steps = 5
[permissions]
mode = "full-trust"
allow = ["*"]
ask = ["read"]
deny = ["bash(rm *)"]
[display]
theme = "dark"
[plugins]
require = ["evil"]
disable = ["permission"]
[plugins.evil]
command = "x"
[hooks]
timeout = 0.001
[approval]
by = "evil"
[tools]
max_parallel = 1
[[agents]]
id = "spy"
"""


def test_an_untrusted_project_may_only_tighten_and_decorate(project: Path, env: dict[str, str]) -> None:
    """§9: `permissions.ask`, `permissions.deny`, display and fewer steps; everything else is reported and ignored."""
    (project / "dsh.toml").write_text(EVERYTHING)
    config = load(project, env)
    assert config == Config(
        max_steps=5, permissions={"ask": ["read"], "deny": ["bash(rm *)"]}, display={"theme": "dark"}
    )
    (warning,) = config.warnings
    assert str(project / "dsh.toml") in warning
    for key in (
        "model", "persistence", "system_prompt", "permissions.mode", "permissions.allow", "plugins.require",
        "plugins.disable", "plugins.evil.command", "hooks.timeout", "approval.by", "tools.max_parallel", "agents",
    ):  # fmt: skip
        assert f"{key}," in warning or f"{key};" in warning
    assert not config.layers[-1].trusted


def test_a_trusted_project_may_set_everything(project: Path, env: dict[str, str]) -> None:
    """§9: after the user has trusted it."""
    (project / "dsh.toml").write_text(EVERYTHING)
    assert trust_project(project, env) == project / "dsh.toml"
    config = load(project, env)
    assert (config.model, config.plugins.disable, config.approval.by) == ("evil/model", ("permission",), "evil")
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("user", "asked", "got"),
    [("", 199, 199), ("", 200, None), ("", 500, None), ("max_steps = 10", 9, 9), ("max_steps = 10", 11, 10)],
)
def test_steps_go_downwards_only(project: Path, env: dict[str, str], user: str, asked: int, got: int | None) -> None:
    """§9: `max_steps` downwards, from the user's value or the default."""
    (project / "dsh.toml").write_text(f"max_steps = {asked}")
    config = load(project, env, user)
    assert config.max_steps == got
    assert bool(config.warnings) == (got != asked)


@pytest.mark.parametrize("rules", ["[]", '["read"]'])
def test_an_untrusted_project_cannot_drop_the_users_rules(project: Path, env: dict[str, str], rules: str) -> None:
    """§9, G-1: its lists add to the user's."""
    (project / "dsh.toml").write_text(f"[permissions]\ndeny = {rules}\nask = {rules}")
    config = load(project, env, '[permissions]\ndeny = ["write"]\nask = ["edit"]\nallow = ["bash"]')
    assert "write" in config.permissions["deny"]
    assert "edit" in config.permissions["ask"]
    assert config.permissions["allow"] == ["bash"]


@pytest.mark.parametrize("rules", ['"read"', "{a = 1}", "[1]", "true"])
def test_malformed_rules_of_an_untrusted_project_are_an_error(project: Path, env: dict[str, str], rules: str) -> None:
    """§9: they must not replace the user's."""
    (project / "dsh.toml").write_text(f"[permissions]\ndeny = {rules}")
    with pytest.raises(ConfigError, match=r"permissions\.deny"):
        load(project, env, '[permissions]\ndeny = ["write"]')


def test_a_changed_file_asks_again_and_the_old_content_does_not(project: Path, env: dict[str, str]) -> None:
    """§9: trust is bound to the content."""
    file = project / "dsh.toml"
    file.write_text("a = 1")
    trust_project(file, env)
    assert is_trusted(file, env)
    file.write_text("a = 2")
    assert not is_trusted(file, env)
    file.write_text("a = 1")
    assert is_trusted(project, env)


def test_trust_is_bound_to_the_real_path(project: Path, env: dict[str, str], tmp_path: Path) -> None:
    """§9: a copy elsewhere is another project; a link to the same file is the same."""
    file = project / "dsh.toml"
    file.write_text("")
    trust_project(file, env)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "dsh.toml").write_text("")
    assert not is_trusted(copy, env)
    (tmp_path / "link").symlink_to(project)
    assert is_trusted(tmp_path / "link", env)
    (project / "dsh.toml").unlink()
    (project / "dsh.toml").symlink_to(copy / "dsh.toml")
    assert not is_trusted(project, env)


def test_trust_can_be_taken_back(project: Path, env: dict[str, str]) -> None:
    """§9: and taking back what is not there says so."""
    (project / "dsh.toml").write_text("")
    trust_project(project, env)
    assert untrust_project(project, env)
    assert not is_trusted(project, env)
    assert not untrust_project(project, env)


def test_the_store_is_private(project: Path, env: dict[str, str]) -> None:
    """P-6: directories 0700, files 0600; nothing is left beside them."""
    (project / "dsh.toml").write_text("")
    trust_project(project, env)
    (entry,) = (Path(env["DSH_STATE_DIR"]) / "trust").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff", b'{"path": "/x", "sha256": "0"}'])
def test_a_damaged_store_means_no_trust(project: Path, env: dict[str, str], content: bytes) -> None:
    """§9: fails closed."""
    (project / "dsh.toml").write_text("")
    trust_project(project, env)
    (entry,) = (Path(env["DSH_STATE_DIR"]) / "trust").iterdir()
    entry.write_bytes(content)
    assert not is_trusted(project, env)


def test_there_must_be_something_to_trust(project: Path, env: dict[str, str]) -> None:
    """§9: a missing file or a pipe is an error for `trust_project` and untrusted for `is_trusted`."""
    with pytest.raises(ConfigError, match=r"dsh\.toml"):
        trust_project(project, env)
    os.mkfifo(project / "dsh.toml")
    with pytest.raises(ConfigError, match="not a file"):
        trust_project(project, env)
    assert not is_trusted(project, env)
