"""The plugin: where it stores, and that it finds out early."""

from __future__ import annotations

import attrs
import pytest
from dsh_persistence_jsonl import JsonlPersistence, JsonlPlugin, default_root

from dsh_core.errors import StorageError
from dsh_core.persistence import SessionPersistence

pytestmark = pytest.mark.anyio


class Services:
    """The part of a harness that `register` uses."""

    def __init__(self) -> None:
        self.provided: dict[type, object] = {}

    def provide(self, kind: type, service: object) -> None:
        self.provided[kind] = service


def test_the_store_is_offered_as_the_harness_persistence(tmp_path):
    """10-api: `register` provides `SessionPersistence`."""
    plugin = JsonlPlugin(JsonlPlugin.Config(root=str(tmp_path), durability="step"))
    services = Services()
    plugin.register(services)
    assert services.provided == {SessionPersistence: plugin.backend}
    assert plugin.backend.durability == "step"
    assert plugin.backend.root == tmp_path


def test_the_default_root_follows_the_state_directory(tmp_path, monkeypatch):
    """§1: `DSH_STATE_DIR` overrides the platform's state directory."""
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path))
    assert default_root() == tmp_path / "sessions"
    monkeypatch.delenv("DSH_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert default_root().name == "sessions"
    assert "dsh" in default_root().parts


def test_an_unknown_durability_is_refused(tmp_path):
    """§2: in configuration and in code."""
    with pytest.raises(ValueError):
        JsonlPlugin.Config(durability="sometimes")
    with pytest.raises(ValueError, match="turn, step, none"):
        JsonlPersistence(tmp_path, durability="sometimes")
    assert attrs.fields_dict(JsonlPlugin.Config).keys() == {"root", "durability"}


async def test_an_unusable_store_stops_the_start(tmp_path):
    """P-6: before any model is called."""
    (tmp_path / "file").write_text("")
    plugin = JsonlPlugin(JsonlPlugin.Config(root=str(tmp_path / "file")))
    with pytest.raises(StorageError, match="file"):
        await plugin.start(Services())
    good = JsonlPlugin(JsonlPlugin.Config(root=str(tmp_path / "good")))
    await good.start(Services())
    await good.stop()


def test_building_the_plugin_touches_nothing(tmp_path):
    """P-6: directories are made when they are needed."""
    JsonlPlugin(JsonlPlugin.Config(root=str(tmp_path / "later")))
    assert not (tmp_path / "later").exists()
