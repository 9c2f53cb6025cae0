"""
The tools `read`, `write`, `edit`, `glob` and `grep`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core import TextBlock, ToolContext, ToolDefinition, ToolError, ToolResult, hookimpl
from dsh_tools_local._diff import unified_diff
from dsh_tools_local._edit import Edit, apply_edits, decode, encode
from dsh_tools_local._observed import Observed, Version
from dsh_tools_local._paths import refusal, resolve, show
from dsh_tools_local._reading import MAX_LINES, read_page, read_whole
from dsh_tools_local._replacing import create, replace
from dsh_tools_local._schemas import (
    EDIT,
    EDIT_TEXT,
    GLOB,
    GLOB_TEXT,
    GREP,
    GREP_TEXT,
    READ,
    READ_TEXT,
    WRITE,
    WRITE_TEXT,
)
from dsh_tools_local._search import Found, base_of, find_files, find_lines

if TYPE_CHECKING:
    from dsh_core import Agent, Harness

__all__ = ["FilesConfig", "FilesPlugin"]

_MAX_RESULT: Final = 50 * 1024


@attrs.frozen(kw_only=True)
class FilesConfig:
    """
    `[plugins.files]`.

    Args:
        max_files: Paths in a result of `glob`.
        max_matches: Lines in a result of `grep`.
        search_timeout: Seconds a search may take.
    """

    max_files: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    max_matches: int = attrs.field(default=250, validator=attrs.validators.ge(1))
    search_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))


class FilesPlugin:
    """
    Files for an agent.

    Args:
        config: Limits.
    """

    name = "files"
    Config = FilesConfig

    def __init__(self, config: FilesConfig | None = None) -> None:
        self._config = config or FilesConfig()
        self._observed = Observed()
        self._changing = threading.Lock()  # between check and replacement nobody else of this process writes

    @hookimpl
    def register(self, harness: Harness) -> None:
        """Register the tools."""
        for definition in self.tools():
            harness.tools.register(definition)

    @hookimpl
    def agent_disposed(self, agent: Agent) -> None:
        """What the agent has seen is of no use any more."""
        self._observed.forget(agent.id)

    def tools(self) -> tuple[ToolDefinition, ...]:
        """The definitions, for harnesses that register tools by hand."""
        looks: dict[str, Any] = {"read_only": True, "idempotent": True, "parallel": True}
        return (
            ToolDefinition("read", READ_TEXT, READ, self._read, **looks),
            ToolDefinition("write", WRITE_TEXT, WRITE, self._write, destructive=True, idempotent=True),
            ToolDefinition("edit", EDIT_TEXT, EDIT, self._edit, destructive=True),
            ToolDefinition("glob", GLOB_TEXT, GLOB, self._glob, **looks),
            ToolDefinition("grep", GREP_TEXT, GREP, self._grep, **looks),
        )

    # -- files -------------------------------------------------------------------------------------------

    def _read(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        path = resolve(arguments["path"], context.cwd)
        offset, limit = int(arguments.get("offset") or 1), int(arguments.get("limit") or MAX_LINES)
        page = read_page(path, offset, min(limit, MAX_LINES), context.cancelled.is_set)
        self._observed.note(context.session.id, os.path.realpath(path), page.version)
        return ToolResult(page.content, meta=page.meta)

    def _write(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        path = resolve(arguments["path"], context.cwd)
        content = _to_bytes(arguments["content"], "content")
        with self._changing:
            real = Path(os.path.realpath(path))  # judged when it is written, not when it was asked for
            if not os.path.lexists(real):
                create(real, content)
                before = None
            else:
                before = self._replace(real, content, context)
        self._observed.note(context.session.id, os.fspath(real), Version.of(content))
        return _written(path, before, content)

    def _replace(self, real: Path, content: bytes, context: ToolContext) -> bytes:
        before, stat = read_whole(real)
        self._observed.check(context.session.id, os.fspath(real), Version.of(before))
        replace(real, content, stat)
        return before

    def _edit(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        path = resolve(arguments["path"], context.cwd)
        edits = _edits(arguments)
        with self._changing:
            real = Path(os.path.realpath(path))
            before, stat = read_whole(real)
            self._observed.check(context.session.id, os.fspath(real), Version.of(before))
            edited = apply_edits(decode(before), edits, show(path))
            after = encode(edited.text)
            replace(real, after, stat)
        self._observed.note(context.session.id, os.fspath(real), Version.of(after))
        times = "1 replacement" if edited.count == 1 else f"{edited.count} replacements"
        text = "\n".join([f"Edited {show(path)}: {times}.", *(f"[{note}]" for note in edited.notes)])
        meta = {
            "path": show(real),
            "replacements": edited.count,
            "notes": list(edited.notes),
            "diff": unified_diff(decode(before), edited.text, show(path)),
        }
        return ToolResult((TextBlock(text),), meta=meta)

    # -- search ------------------------------------------------------------------------------------------

    async def _glob(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        root = _search_root(arguments.get("path"), context.cwd)
        if not root.is_dir():
            raise ToolError(f"{show(root)} is a file; give a directory", "NOT_A_DIRECTORY")
        found = await find_files(root, arguments["pattern"], self._config.max_files, self._config.search_timeout)
        lines = [_place(root, os.fsdecode(record), context.cwd) for record in found.records]
        return _listed(lines, found, "no file matches", f"only the first {len(lines)} files are shown")

    async def _grep(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        root = _search_root(arguments.get("path"), context.cwd)
        limit = min(int(arguments.get("limit") or self._config.max_matches), self._config.max_matches)
        found = await find_lines(
            root,
            str(arguments["pattern"]),
            include=str(arguments.get("glob") or ""),
            ignore_case=bool(arguments.get("ignore_case")),
            context=min(int(arguments.get("context") or 0), 20),
            limit=limit,
            seconds=self._config.search_timeout,
        )
        lines = [_match(base_of(root), record, context.cwd) for record in found.records]
        return _listed(lines, found, "no line matches", f"only the first {len(lines)} lines are shown")


def _to_bytes(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{what} holds half a character; nothing was changed", "INVALID_TEXT") from None


def _written(path: Path, before: bytes | None, content: bytes) -> ToolResult:
    verb = "Created" if before is None else "Wrote"
    lines = [f"{verb} {show(path)}: {len(content)} bytes."]
    if before is not None and b"\r\n" in before and b"\n" in content and b"\r\n" not in content:
        lines.append("[the line ends were CRLF and are LF now]")
    if before is not None and before.startswith(b"\xef\xbb\xbf") and not content.startswith(b"\xef\xbb\xbf"):
        lines.append("[the byte order mark at the start is gone]")
    meta = {
        "path": show(os.path.realpath(path)),
        "created": before is None,
        "bytes": len(content),
        "diff": unified_diff(decode(before or b""), decode(content), show(path)),
    }
    return ToolResult((TextBlock("\n".join(lines)),), meta=meta)


def _edits(arguments: Mapping[str, Any]) -> list[Edit]:
    several = arguments.get("edits")
    if several is None:
        several = [arguments]
    elif "old" in arguments or "new" in arguments:
        raise ToolError("give either old and new, or edits; not both", "INVALID_ARGUMENTS")
    if not several:
        raise ToolError("edits is empty; give at least one", "INVALID_ARGUMENTS")
    if any("old" not in each or "new" not in each for each in several):
        raise ToolError("give old, the text to replace, and new, what to put in its place", "INVALID_ARGUMENTS")
    for each in several:
        _to_bytes(each["old"], "old")
        _to_bytes(each["new"], "new")
    return [Edit(each["old"], each["new"], bool(each.get("replace_all"))) for each in several]


def _search_root(path: object, cwd: str | None) -> Path:
    root = resolve(path or ".", cwd)
    try:
        os.stat(root)
    except OSError as error:
        raise refusal(root, error) from error
    return Path(os.path.realpath(root))


def _place(root: Path, name: str, cwd: str | None) -> str:
    """A path as the model would write it: relative to its working directory where it lies below."""
    path = os.path.join(root, name)
    base = os.path.realpath(cwd or os.getcwd())
    return show(os.path.relpath(path, base) if path.startswith(os.path.join(base, "")) else path)


def _match(root: Path, record: bytes, cwd: str | None) -> str:
    name, nul, rest = record.partition(b"\x00")
    text = (rest if nul else name).decode("utf-8", "replace").rstrip("\r")
    if not nul:
        return text  # the line between two groups
    number = text[: len(text) - len(text.lstrip("0123456789"))]
    return f"{_place(root, os.fsdecode(name), cwd)}:{number}{text[len(number) :]}"


def _listed(lines: list[str], found: Found, nothing: str, more: str) -> ToolResult:
    shown: list[str] = []
    room = _MAX_RESULT
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    notes = [f"[{more}; narrow the search]"] if found.more and len(shown) == len(lines) else []
    if len(shown) < len(lines):
        notes.append(f"[only the first {len(shown)} of {len(lines)} are shown; narrow the search]")
    if found.timed_out:
        notes.append("[the search took too long and was ended; narrow it]")
    if found.problems:
        rest = f" and {len(found.problems) - 3} more" if len(found.problems) > 3 else ""
        notes.append(f"[could not be searched: {'; '.join(found.problems[:3])}{rest}]")
    text = "\n".join([*(shown or [f"({nothing})"]), *notes])
    meta = {"count": len(shown), "more": found.more, "problems": found.problems[:20]}
    return ToolResult((TextBlock(text),), meta=meta)
