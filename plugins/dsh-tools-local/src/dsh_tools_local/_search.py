"""
Running a search: ripgrep where it is on the path, else our own program; bounded in time, matches and bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from dsh_core.errors import ToolError
from dsh_tools_local import _worker
from dsh_tools_local._environment import child_environment
from dsh_tools_local._process import Command, new_token

__all__ = ["Found", "base_of", "find_files", "find_lines"]

_MAX_BYTES: Final = 20 << 20
_MAX_RECORD: Final = 1 << 16
_MAX_ERRORS: Final = 16 << 10
_RIPGREP: Final = tuple("--no-config --hidden --no-require-git --glob !.git --sort path --color never".split())


@attrs.define
class Found:
    """
    What a search gave.

    Args:
        records: Paths, or `path NUL line:text`.
        more: It was ended because there was enough.
        timed_out: It was ended because it took too long.
        problems: What could not be read, one line each.
    """

    records: list[bytes]
    more: bool
    timed_out: bool
    problems: list[str]


class _Records:
    """Takes records as they come and keeps the wanted ones, up to a number."""

    def __init__(self, end: bytes, limit: int, wanted: Callable[[bytes], bool]) -> None:
        self._end, self._limit, self._wanted = end, limit, wanted
        self._rest = b""
        self._room = _MAX_BYTES
        self.records: list[bytes] = []
        self.full = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self.full:
            return
        self._room -= len(data)
        *records, self._rest = (self._rest + data).split(self._end)
        self._rest = self._rest[:_MAX_RECORD]
        for record in records:
            if self._wanted(record):
                if len(self.records) >= self._limit:
                    self.full = True
                    return
                self.records.append(record)
        self.full = self._room <= 0


class _Errors:
    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes, up to a bound."""
        self.data += data[: _MAX_ERRORS - len(self.data)]

    def lines(self) -> list[str]:
        """The messages."""
        text = self.data.decode("utf-8", "replace")
        return [line.removeprefix("rg: ").removeprefix("./") for line in text.splitlines() if line.strip()]


async def find_files(root: Path, pattern: str, limit: int, seconds: float) -> Found:
    """
    The files below `root` that match a glob.

    Raises:
        ToolError: The search could not be run.
    """
    wanted = _matcher(pattern)
    ripgrep = shutil.which("rg")
    argv = [ripgrep, *_RIPGREP, "--files", "--null", "./"] if ripgrep else _own("files", os.fspath(root))
    records = _Records(b"\x00", limit, lambda record: wanted(_relative(record)))
    code, timed_out, errors = await _run(argv, root, records, seconds)
    return _found(code, records, timed_out, errors.lines())


async def find_lines(
    root: Path, expression: str, *, include: str, ignore_case: bool, context: int, limit: int, seconds: float
) -> Found:
    """
    The lines below `root`, or in the file `root`, that match a regular expression.

    Raises:
        ToolError: The expression is wrong, or the search could not be run.
    """
    if include:
        _matcher(include)  # a wrong one is told before the search, whatever searches
    ripgrep = shutil.which("rg")
    if ripgrep:
        argv = [ripgrep, *_RIPGREP, *_options(include, ignore_case, context), "-e", expression, "--", _target(root)]
    else:
        argv = _own("grep", os.fspath(root), expression, include, str(context), "i" if ignore_case else "")
    records = _Records(b"\n", limit, bool)
    code, timed_out, errors = await _run(argv, base_of(root), records, seconds)
    return _found(code, records, timed_out, errors.lines())


def _found(code: int | None, records: _Records, timed_out: bool, problems: list[str]) -> Found:
    ended_by_us = records.full or timed_out
    partial = code == 2 and any("os error" in line for line in problems)  # ripgrep could not read some file
    if not ended_by_us and code not in (0, 1) and not partial and not records.records:
        if any("regex" in line for line in problems):
            reason = " ".join(problems)
            raise ToolError(f"the pattern is not a regular expression for lines: {reason}", "INVALID_PATTERN")
        raise ToolError(f"the search failed with exit code {code}: {' '.join(problems[-3:])}", "SEARCH_FAILED")
    return Found([record.removeprefix(b"./") for record in records.records], records.full, timed_out, problems)


def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        return _worker.glob_matcher(pattern)
    except re.error as error:
        raise ToolError(f"{pattern!r} is not a glob: {error}", "INVALID_PATTERN") from error


def base_of(root: Path) -> Path:
    """The directory that the paths of a search are relative to."""
    return root if root.is_dir() else root.parent


def _options(include: str, ignore_case: bool, context: int) -> list[str]:
    options = ["--null", "--line-number", "--no-heading", "--with-filename", "--max-columns", "500"]
    options += ["--max-columns-preview", "--context", str(context)]
    options += ["--ignore-case"] if ignore_case else []
    return [*options, "--glob", include] if include else options


def _target(root: Path) -> str:
    return "./" if root.is_dir() else f"./{root.name}"


def _own(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", _worker.__file__, *arguments]


def _relative(record: bytes) -> str:
    return os.fsdecode(record.removeprefix(b"./"))


async def _run(argv: list[str], cwd: Path, records: _Records, seconds: float) -> tuple[int | None, bool, _Errors]:
    token, errors = new_token(), _Errors()
    env = child_environment(os.environ, token)
    try:
        command = Command(argv, cwd=os.fspath(cwd), env=env, token=token, output=records, errors=errors)
    except (OSError, ValueError) as error:
        raise ToolError(f"the search could not be started: {error}", "NOT_STARTED") from error
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            while not records.full and (command.returncode is None or command.pipe_open):
                command.activity.clear()
                await command.activity.wait()
    except TimeoutError:
        timed_out = True
    finally:
        if command.returncode is None:
            await command.end(0)
        command.close()
    return command.returncode, timed_out, errors
