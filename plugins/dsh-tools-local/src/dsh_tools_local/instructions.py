"""
AGENTS.md: what the user and the project tell every agent.

The texts are given as a context message at the start of a session and again when they change; they are not
part of the system prompt, so that a change does not spoil the provider's cache. The log tells what an agent
was given last, so a resumed session is told again only if something changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from dsh_core import Source, ToolError, hookimpl
from dsh_core.config import config_dir
from dsh_core.content import text_of
from dsh_core.session.events import ContextMessageEvent
from dsh_tools_local._paths import open_regular, show

if TYPE_CHECKING:
    from dsh_core import Agent, Session

__all__ = ["InstructionsConfig", "InstructionsPlugin", "compose", "find_instructions"]

_CHANGED: Final = "The instructions changed; these take the place of the earlier ones.\n\n"
_REMOVED: Final = "The instructions were removed; the earlier ones no longer hold."
_Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


@attrs.frozen(kw_only=True)
class InstructionsConfig:
    """
    `[plugins.instructions]`.

    Args:
        names: File names, the first one that exists in a directory counts.
        max_bytes: Bound of all texts together; the nearest are kept.
    """

    names: tuple[str, ...] = ("AGENTS.md",)
    max_bytes: int = attrs.field(default=64 * 1024, validator=attrs.validators.ge(256))


class InstructionsPlugin:
    """
    Instructions from files.

    Args:
        config: Names and bound.
    """

    name = "instructions"
    Config = InstructionsConfig

    def __init__(self, config: InstructionsConfig | None = None) -> None:
        self._config = config or InstructionsConfig()
        self._stamps: dict[str, _Stamp] = {}

    @hookimpl
    def agent_session_start(self, agent: Agent) -> None:
        """Give the instructions before the first turn."""
        self._tell(agent)

    @hookimpl
    def agent_pre_step(self, agent: Agent) -> None:
        """Give them again when they changed."""
        self._tell(agent)

    @hookimpl
    def agent_disposed(self, agent: Agent) -> None:
        """Forget the agent."""
        self._stamps.pop(agent.id, None)

    def _tell(self, agent: Agent) -> None:
        cwd = agent.session.header.cwd
        files = find_instructions(Path(cwd) if cwd else None, self._config.names)
        stamp = _stamp(files)
        if self._stamps.get(agent.id) == stamp:
            return
        self._stamps[agent.id] = stamp
        text, last = compose(files, self._config.max_bytes), _last_told(agent.session)
        if last is None and not text:
            return
        message = text or _REMOVED
        if last is not None and last.removeprefix(_CHANGED) == message:
            return
        message = _CHANGED + message if last not in (None, _REMOVED) and text else message
        agent.inject(message, source=Source.plugin(self.name), pinned=True)


def _last_told(session: Session) -> str | None:
    source = Source.plugin(InstructionsPlugin.name)
    for event in reversed(session.events):
        if isinstance(event.data, ContextMessageEvent) and event.data.source == source:
            return text_of(event.data.content)
    return None


# -- finding ---------------------------------------------------------------------------------------------


def find_instructions(cwd: Path | None, names: tuple[str, ...]) -> list[Path]:
    """
    The files that hold, from the farthest to the nearest: the user's, then from the repository's root to `cwd`.

    A project's file that is a link out of the project is left out: it could be any file of the user's.
    """
    found = [first] if (first := _first(config_dir(), names)) else []
    if cwd is None:
        return found
    here = Path(os.path.realpath(cwd))
    root = next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
    chain = [each for each in reversed((here, *here.parents)) if each == root or root in each.parents]
    for directory in chain:
        file = _first(directory, names)
        if file is not None and file not in found and Path(os.path.realpath(file)).is_relative_to(root):
            found.append(file)
    return found


def _first(directory: Path, names: tuple[str, ...]) -> Path | None:
    return next((directory / name for name in names if (directory / name).is_file()), None)


def _stamp(files: list[Path]) -> _Stamp:
    stamp = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        stamp.append((os.fspath(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamp)


# -- the text --------------------------------------------------------------------------------------------


def compose(files: list[Path], max_bytes: int) -> str:
    """
    One text of all files, the nearest last; the empty text when there is nothing to say.

    Args:
        files: From the farthest to the nearest.
        max_bytes: Bound; the farthest are left out first, and what is left is cut.
    """
    parts: list[str] = []
    left_out: list[str] = []
    seen: set[str] = set()
    room = max_bytes
    for file in reversed(files):
        text = _read(file, max_bytes)
        if not text or text in seen:
            continue
        seen.add(text)
        if room <= 0:
            left_out.append(show(file))
            continue
        parts.insert(0, f"# From {show(file)}\n\n{_cut(text, room)}")
        room -= len(text.encode("utf-8", "replace"))
    if not parts:
        return ""
    head = "Instructions of the user and the project. Where they differ, the later ones hold."
    if left_out:
        head += f" Left out, because they are too long together: {', '.join(left_out)}."
    return "\n\n".join([head, *parts])


def _read(file: Path, max_bytes: int) -> str:
    try:
        with open_regular(file) as stream:
            return stream.read(max_bytes + 4).decode("utf-8-sig", "replace").replace("\r\n", "\n").strip()
    except (OSError, ToolError):
        return ""


def _cut(text: str, room: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= room:
        return text
    return data[:room].decode("utf-8", "ignore") + "\n[… cut: the instructions are too long …]"
