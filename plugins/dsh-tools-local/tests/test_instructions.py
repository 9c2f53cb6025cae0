"""AGENTS.md as context (30-plugins §6)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsh_tools_local import InstructionsConfig, InstructionsPlugin
from dsh_tools_local.instructions import compose, find_instructions

from dsh_core.content import Source, as_blocks, text_of
from dsh_core.session import Session, SessionHeader
from dsh_core.session.events import ContextMessageEvent


class Reader:
    """An agent as the plugin sees it: a real session that what is injected is appended to."""

    def __init__(self, cwd: Path | None, session: Session | None = None) -> None:
        self.session = session or Session(SessionHeader(id="s", cwd=str(cwd) if cwd else None))
        self.id = self.session.id

    def inject(self, content: str, *, source: Source, pinned: bool) -> None:
        self.session.append(ContextMessageEvent(as_blocks(content), source, pinned))

    def told(self) -> list[str]:
        found = [event.data for event in self.session.events]
        return [text_of(data.content) for data in found if isinstance(data, ContextMessageEvent)]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("DSH_CONFIG_DIR", str(tmp_path / "config"))
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    return root


def start(plugin: InstructionsPlugin, reader: Any) -> None:
    plugin.agent_session_start(reader)


def test_user_and_project_are_given_once_with_the_nearest_last(repo: Path, tmp_path: Path) -> None:
    """§6: user, root, directory; where they differ the later ones hold."""
    (tmp_path / "config" / "AGENTS.md").write_text("of the user")
    (repo / "AGENTS.md").write_bytes(b"\xef\xbb\xbfof the root\r\nline two")
    (repo / "sub" / "AGENTS.md").write_text("of the directory")
    (tmp_path / "AGENTS.md").write_text("outside of the repository")
    plugin, reader = InstructionsPlugin(), Reader(repo / "sub")
    start(plugin, reader)
    plugin.agent_pre_step(reader)  # type: ignore[arg-type]
    (text,) = reader.told()
    order = [text.index(part) for part in ("of the user", "of the root\nline two", "of the directory")]
    assert order == sorted(order)
    assert "the later ones hold" in text
    assert "outside" not in text
    (event,) = reader.session.events
    assert isinstance(event.data, ContextMessageEvent)
    assert (event.data.pinned, event.data.source) == (True, Source.plugin("instructions"))


def test_without_files_nothing_is_said(repo: Path) -> None:
    """§6: no message for nothing; also without a working directory, and for an empty file."""
    (repo / "AGENTS.md").write_text(" \n")
    for cwd in (repo, None):
        reader = Reader(cwd)
        start(InstructionsPlugin(), reader)
        assert reader.told() == []


def test_changes_are_announced(repo: Path) -> None:
    """§6: changed, added nearer, removed, and back again; a mere touch is no change."""
    plugin, reader = InstructionsPlugin(), Reader(repo / "sub")
    start(plugin, reader)
    steps: list[Callable[[], object]] = [
        lambda: (repo / "AGENTS.md").write_text("first"),
        lambda: os.utime(repo / "AGENTS.md", (1, 1)),
        lambda: (repo / "AGENTS.md").write_text("second"),
        lambda: (repo / "sub" / "AGENTS.md").write_text("nearer"),
        lambda: [each.rename(f"{each}.old") for each in (repo / "AGENTS.md", repo / "sub" / "AGENTS.md")],
        lambda: (repo / "AGENTS.md").write_text("third"),
    ]
    counts = []
    for step in steps:
        step()
        plugin.agent_pre_step(reader)  # type: ignore[arg-type]
        counts.append(len(reader.told()))
    assert counts == [1, 1, 2, 3, 4, 5]
    first, second, third, fourth, fifth = reader.told()
    assert "changed" not in first
    assert second.startswith("The instructions changed; these take the place of the earlier ones.")
    assert "second" in third
    assert "nearer" in third
    assert "were removed" in fourth
    assert "third" in fifth


def test_a_resumed_session_is_told_only_what_changed(repo: Path) -> None:
    """§6: the log knows what was given."""
    (repo / "AGENTS.md").write_text("first")
    reader = Reader(repo)
    start(InstructionsPlugin(), reader)
    start(InstructionsPlugin(), Reader(repo, reader.session))
    assert len(reader.told()) == 1
    (repo / "AGENTS.md").write_text("second")
    start(InstructionsPlugin(), Reader(repo, reader.session))
    start(InstructionsPlugin(), Reader(repo, reader.session))
    assert len(reader.told()) == 2
    (repo / "AGENTS.md").unlink()
    start(InstructionsPlugin(), Reader(repo, reader.session))
    start(InstructionsPlugin(), Reader(repo, reader.session))
    assert len(reader.told()) == 3


def test_when_there_is_too_much_the_nearest_survives(repo: Path) -> None:
    """§6: size bound; what is left out is named, what is cut is cut at a character."""
    (repo / "AGENTS.md").write_text("far " * 200)
    (repo / "sub" / "AGENTS.md").write_text("日" * 200)
    files = find_instructions(repo / "sub", ("AGENTS.md",))
    text = compose(files, 600)
    assert "日" * 200 in text
    assert f"Left out, because they are too long together: {repo / 'AGENTS.md'}" in text
    assert "far" not in text.replace("AGENTS.md", "")
    assert "日" * 199 + "\n[… cut" in compose(files, 599)


def test_the_same_text_is_given_once(repo: Path, tmp_path: Path) -> None:
    """§6: a user's file that is a copy of the project's."""
    (tmp_path / "config" / "AGENTS.md").write_text("identical words\n")
    (repo / "AGENTS.md").write_text("identical words")
    reader = Reader(repo)
    start(InstructionsPlugin(), reader)
    assert reader.told()[0].count("identical words") == 1


def test_a_link_out_of_the_project_is_not_followed(repo: Path, tmp_path: Path) -> None:
    """§6: a foreign project must not send the user's files to a model; links inside are fine."""
    (tmp_path / "private").write_text("private key")
    (repo / "AGENTS.md").symlink_to(tmp_path / "private")
    (repo / "real.md").write_text("inside")
    (repo / "sub" / "AGENTS.md").symlink_to("../real.md")
    reader = Reader(repo / "sub")
    start(InstructionsPlugin(), reader)
    assert "inside" in reader.told()[0]
    assert "private" not in reader.told()[0]


def test_what_is_not_a_file_is_passed_over(repo: Path) -> None:
    """§6: a pipe or a directory of that name never hangs a session."""
    os.mkfifo(repo / "AGENTS.md")
    (repo / "sub" / "AGENTS.md").mkdir()
    reader = Reader(repo / "sub")
    start(InstructionsPlugin(), reader)
    assert reader.told() == []


def test_other_names_can_be_configured(repo: Path) -> None:
    """§6: the first that exists in a directory counts."""
    (repo / "NOTES.md").write_text("notes")
    (repo / "AGENTS.md").write_text("agents")
    reader = Reader(repo)
    start(InstructionsPlugin(InstructionsConfig(names=("NOTES.md", "AGENTS.md"))), reader)
    assert "notes" in reader.told()[0]
    assert "agents" not in reader.told()[0]
