"""
Where a user's configuration and state live on this machine.

`DSH_CONFIG_DIR` and `DSH_STATE_DIR` override the platform's directories. Nothing here touches the disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dsh_core.errors import ConfigError

__all__ = ["config_dir", "home_dir", "state_dir"]


def home_dir(env: Mapping[str, str] | None = None) -> Path:
    """
    The user's home directory.

    Args:
        env: Environment to look at instead of the process's own.

    Raises:
        ConfigError: Neither `HOME` nor the user database names one.
    """
    home = (os.environ if env is None else env).get("HOME")
    if home:
        return Path(home)
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError("no home directory: set HOME, or DSH_CONFIG_DIR and DSH_STATE_DIR") from error


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """The directory of the user's `config.toml`."""
    return _directory(env, "DSH_CONFIG_DIR", "XDG_CONFIG_HOME", ".config")


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """The directory for what dsh itself writes: sessions, trust, grants, logs."""
    return _directory(env, "DSH_STATE_DIR", "XDG_STATE_HOME", ".local/state")


def _directory(env: Mapping[str, str] | None, override: str, xdg: str, below_home: str) -> Path:
    env = os.environ if env is None else env
    if given := env.get(override):
        return Path(os.path.abspath(os.path.expanduser(given)))
    base = env.get(xdg, "")
    if os.path.isabs(base):  # the XDG specification tells to ignore relative values
        return Path(base) / "dsh"
    if sys.platform == "darwin":
        return home_dir(env) / "Library" / "Application Support" / "dsh"
    return home_dir(env) / below_home / "dsh"
