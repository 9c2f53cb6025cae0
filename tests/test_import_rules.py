"""The layers of the architecture, checked on the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_rules import CORE, core_faults, faults, plugin_faults


def test_all_layers_are_kept() -> None:
    """00-overview: import downwards; the loop is the harness's own; plugins know public modules only."""
    assert faults() == []


@pytest.mark.parametrize(
    ("here", "line", "words"),
    [
        ("session/mine.py", "from dsh_core.hooks import Hooks", "session imports hooks"),
        ("content.py", "import dsh_core.session", "content imports session"),
        ("tools/mine.py", "from dsh_core._loop import LoopAgent", "imports the loop"),
        ("prompt.py", "from dsh_core.harness import Harness", "imports harness"),
        ("prompt.py", "def f():\n    from dsh_core import _turnrun", "imports the loop"),
    ],
)
def test_a_breach_is_found(here: str, line: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rules see imports of every form, inside functions too."""
    (tmp_path / "dsh_core" / "session").mkdir(parents=True)
    (tmp_path / "dsh_core" / "tools").mkdir()
    for path in CORE.glob("*.py"):
        (tmp_path / "dsh_core" / path.name).touch()
    (tmp_path / "dsh_core" / here).write_text(line)
    monkeypatch.setattr("import_rules.CORE", tmp_path / "dsh_core")
    monkeypatch.setattr("import_rules.ROOT", tmp_path)
    found = list(core_faults(tmp_path / "dsh_core" / here))
    assert any(words in fault for fault in found), found


def test_what_only_type_checkers_import_is_no_breach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Annotations may point upwards."""
    (tmp_path / "dsh_core").mkdir()
    module = tmp_path / "dsh_core" / "prompt.py"
    module.write_text("if TYPE_CHECKING:\n    from dsh_core.harness import Harness\n")
    (tmp_path / "dsh_core" / "harness.py").touch()
    monkeypatch.setattr("import_rules.CORE", tmp_path / "dsh_core")
    monkeypatch.setattr("import_rules.ROOT", tmp_path)
    assert list(core_faults(module)) == []


def test_a_plugin_that_reaches_into_the_core_or_another_plugin_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """30-plugins: public modules of the core and libraries, nothing else."""
    monkeypatch.setattr("import_rules.ROOT", tmp_path)
    module = tmp_path / "plugin.py"
    module.write_text("from dsh_core import hookimpl\nfrom dsh_core._loop import LoopAgent\nimport dsh_other.parts\n")
    found = list(plugin_faults(module, "dsh_mine", {"dsh_mine", "dsh_other"}))
    assert any("private to the core" in fault for fault in found)
    assert any("dsh_other" in fault for fault in found)
    assert all(":1:" not in fault for fault in found)
