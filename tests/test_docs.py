"""The documentation is true: its code runs, its links lead somewhere, its reference is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def code_of(page: Path) -> str:
    """The Python blocks of a page, one after the other."""
    return "\n\n".join(FENCE.findall(page.read_text(encoding="utf-8")))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=name_of)
def test_the_code_on_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    """Each code block is executed: the blocks of a page are one program."""
    program = tmp_path / "page.py"
    program.write_text(code_of(page), encoding="utf-8")
    monkeypatch.setenv("DSH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    """A relative link names a file that is there."""
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken


def test_the_generated_reference_is_current():
    """The hook reference is generated from the code; `python docs/generate.py` writes it."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_every_hook_has_documentation_that_says_what_it_needs():
    """A hookspec is a document: a sentence, its arguments, and what may be returned."""
    import inspect

    from dsh_core import hookspecs
    from dsh_core._markers import hook_mode

    for name, function in vars(hookspecs).items():
        if not inspect.isfunction(function) or hook_mode(function) is None:
            continue
        text = inspect.getdoc(function) or ""
        for parameter in inspect.signature(function).parameters:
            assert f"    {parameter}:" in text, f"{name} does not document {parameter}"
        if inspect.signature(function).return_annotation not in ("None", None):
            assert "Returns:" in text, f"{name} does not say what may be returned"
