"""`glob` and `grep`, with ripgrep where it is installed and with our own program (30-plugins §6; tool-8, tool-10)."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest
from dsh_tools_local import FilesConfig, FilesPlugin
from dsh_tools_local._worker import glob_matcher

from dsh_core.errors import ToolError

pytestmark = pytest.mark.anyio

RIPGREP = shutil.which("rg") or os.environ.get("DSH_TEST_RIPGREP", "")


@pytest.fixture(params=["own", "ripgrep"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Both ways of searching must keep the same promises."""
    wanted: str = request.param
    if wanted == "ripgrep" and not RIPGREP:
        pytest.skip("ripgrep is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    if wanted == "ripgrep":
        (programs / "rg").symlink_to(os.path.realpath(RIPGREP))
        monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    else:
        kept = [each for each in os.environ["PATH"].split(os.pathsep) if not os.path.exists(os.path.join(each, "rg"))]
        monkeypatch.setenv("PATH", os.pathsep.join(kept) or str(programs))
    return wanted


def plant(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


# -- glob ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/c.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("./a.py", ["a.py"]),
        ("*.{md,txt}", ["notes.txt", "src/read.md"]),
        ("?.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("[ab].py", ["a.py", "src/b.py"]),
        ("[!ab].py", ["src/deep/c.py"]),
        ("src/**", ["src/b.py", "src/deep/c.py", "src/read.md"]),
        (".hidden", [".hidden"]),
        ("*.none", ["(no file matches)"]),
        ("[", ["(no file matches)"]),
    ],
)
async def test_files_are_found_by_pattern(desk: Any, pattern: str, found: list[str]) -> None:
    """§6: stars, any depth, braces, classes, hidden files; sorted; no hit is a success."""
    names = ["a.py", "src/b.py", "src/deep/c.py", "notes.txt", "src/read.md", ".hidden", ".git/x.py"]
    plant(desk.cwd, dict.fromkeys(names, ""))
    assert (await desk.text("glob", pattern=pattern)).split("\n") == found


async def test_a_path_is_searched_and_shown_as_the_model_writes_it(desk: Any, tmp_path: Path) -> None:
    """§6: relative to the working directory below it, absolute elsewhere."""
    plant(desk.cwd, {"src/a.py": "", "src/sub/b.py": ""})
    plant(tmp_path, {"other/c.py": ""})
    assert await desk.text("glob", pattern="sub/*.py", path="src") == "src/sub/b.py"
    assert await desk.text("glob", pattern="*.py", path=str(tmp_path / "other")) == str(tmp_path / "other/c.py")
    for path, code in (("src/a.py", "NOT_A_DIRECTORY"), ("nowhere", "NOT_FOUND")):
        with pytest.raises(ToolError) as caught:
            await desk.call("glob", pattern="*", path=path)
        assert caught.value.code == code


async def test_ignore_files_are_respected(desk: Any) -> None:
    """§6: nested, negated, anchored, only directories; and those above the place that is searched."""
    (desk.cwd / ".git").mkdir()
    plant(
        desk.cwd,
        {
            ".gitignore": "*.log\n!keep.log\n/build\nnode_modules/\ndocs/**/draft.md\n# comment\n\n\\#odd\n",
            "src/.gitignore": "local.*\n", ".ignore": "secret.txt\n", "src/local.py": "", "local.py": "",
            "a.log": "", "keep.log": "", "build/x": "", "src/build": "", "node_modules/m.js": "",
            "src/node_modules/m.js": "",
            "docs/x/draft.md": "", "docs/final.md": "", "#odd": "", "secret.txt": "",
        },
    )  # fmt: skip
    found = (await desk.text("glob", pattern="*")).split("\n")
    assert found == [
        ".gitignore", ".ignore", "docs/final.md", "keep.log", "local.py", "src/.gitignore", "src/build",
    ]  # fmt: skip
    plant(desk.cwd, {"src/in.log": "x", "src/in.txt": "x"})
    assert await desk.text("grep", pattern="x", path="src") == "src/in.txt:1:x"


async def test_lists_are_bounded_and_say_so(desk: Any) -> None:
    """§6: bounded."""
    plant(desk.cwd, {f"f{number:03}": "" for number in range(150)})
    lines = (await desk.text("glob", pattern="f*")).split("\n")
    assert (len(lines), lines[0], lines[99]) == (101, "f000", "f099")
    assert lines[100] == "[only the first 100 files are shown; narrow the search]"


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*a*a*b", "**/" * 12 + "b", "**/a/" * 12 + "b", "{a,b}" * 40])
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    """§6: a glob cannot hang the process."""
    assert not glob_matcher(pattern)("a" * 250)
    assert not glob_matcher(pattern)("/".join("a" * 100))


# -- grep ------------------------------------------------------------------------------------------------


async def test_lines_are_found_with_path_and_number(desk: Any) -> None:
    """§6: `path:line:text`; by file name, without case, in one file."""
    plant(desk.cwd, {"a.py": "one\nTwo\nthree\n", "b.txt": "two\r\n", "src/c.py": "x two\n"})
    assert await desk.text("grep", pattern="two") == "b.txt:1:two\nsrc/c.py:1:x two"
    assert await desk.text("grep", pattern="two", glob="*.py", ignore_case=True) == "a.py:2:Two\nsrc/c.py:1:x two"
    assert await desk.text("grep", pattern="^t", path="a.py") == "a.py:3:three"
    assert await desk.text("grep", pattern="two", path="src") == "src/c.py:1:x two"
    assert await desk.text("grep", pattern="-e two|--one", path="src") == "(no line matches)"


async def test_context_lines_are_told_from_matches(desk: Any) -> None:
    """§6: a dash for context, a line between groups."""
    plant(desk.cwd, {"f": "".join(f"{number}\n" for number in range(1, 21))})
    assert await desk.text("grep", pattern="^(3|4|15)$", context=1) == (
        "f:2-2\nf:3:3\nf:4:4\nf:5-5\n--\nf:14-14\nf:15:15\nf:16-16"
    )


async def test_no_hit_is_a_success_and_a_bad_pattern_an_error_with_its_reason(desk: Any) -> None:
    """tool-10."""
    plant(desk.cwd, {"f": "x\n"})
    result = await desk.call("grep", pattern="nothing")
    assert not result.is_error
    wrong: list[dict[str, Any]] = [{"pattern": "(unclosed"}, {"pattern": "x", "glob": "[z-a]"}]
    for arguments in wrong:
        with pytest.raises(ToolError) as caught:
            await desk.call("grep", **arguments)
        assert caught.value.code == "INVALID_PATTERN"
        assert any(word in caught.value.message for word in ("unclosed", "unterminated", "range"))
    with pytest.raises(ToolError, match="is not a glob"):
        await desk.call("glob", pattern="[z-a]")


@pytest.mark.parametrize("engine", ["own"], indirect=True)
async def test_a_search_that_breaks_is_not_a_search_without_a_hit(
    desk: Any, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """tool-10: a broken installation, or a program that crashes, is an error with its reason."""
    monkeypatch.setattr("dsh_tools_local._worker.__file__", str(tmp_path / "gone.py"))
    for tool in ("glob", "grep"):
        with pytest.raises(ToolError, match=r"failed with exit code 2: .*gone\.py"):
            await desk.call(tool, pattern="x")
    (tmp_path / "gone.py").write_text("raise SystemExit(3)")
    with pytest.raises(ToolError, match="exit code 3"):
        await desk.call("grep", pattern="x")


async def test_what_cannot_be_read_is_a_note_beside_the_rest(desk: Any) -> None:
    """tool-10: partial results; a dangling link and, for people other than root, a closed file."""
    plant(desk.cwd, {"a": "hit\n", "closed": "hit\n"})
    (desk.cwd / "closed").chmod(0)
    (desk.cwd / "dangling").symlink_to("nowhere")
    os.mkfifo(desk.cwd / "pipe")
    text = await desk.text("grep", pattern="hit")
    assert text.startswith("a:1:hit")
    assert os.geteuid() == 0 or "[could not be searched: closed" in text


async def test_names_and_lines_that_are_not_utf8_are_shown(desk: Any) -> None:
    """tool-10: a file name in another encoding; bytes in a line."""
    Path(os.fsdecode(os.fsencode(desk.cwd) + b"/na\xffme")).write_bytes(b"hit \xfe\n")
    assert await desk.text("grep", pattern="hit") == "na\ufffdme:1:hit \ufffd"
    assert await desk.text("glob", pattern="na*") == "na\ufffdme"


async def test_binary_files_are_left_out(desk: Any) -> None:
    """§6: no noise."""
    plant(desk.cwd, {"b.bin": b"hit\x00\n" * 10, "t": "hit\n"})
    assert "t:1:hit" in await desk.text("grep", pattern="hit")
    assert "b.bin:1:" not in await desk.text("grep", pattern="hit")


async def test_a_line_of_50_megabytes_is_bounded(desk: Any) -> None:
    """tool-8: a match in a minified file."""
    (desk.cwd / "min.js").write_bytes(b"x" * 100 + b"needle" + b"y" * 50_000_000 + b"\n")
    before = psutil.Process().memory_info().rss
    text = await desk.text("grep", pattern="needle")
    assert psutil.Process().memory_info().rss - before < 30 << 20
    assert text.startswith("min.js:1:xxx")
    assert len(text) < 1_000


async def test_many_matches_are_bounded_and_the_search_ends_early(desk: Any, children: Any) -> None:
    """tool-8: enough is enough; nothing is left running."""
    plant(desk.cwd, {"f": "hit\n" * 1_000_000})
    lines = (await desk.text("grep", pattern="hit")).split("\n")
    assert len(lines) == 251
    assert "only the first 250 lines" in lines[-1]
    assert len((await desk.text("grep", pattern="hit", limit=3)).split("\n")) == 4
    assert not children()


@pytest.mark.parametrize("engine", ["own"], indirect=True)
async def test_a_search_without_end_is_ended(desk: Any, engine: str, children: Any) -> None:
    """§6: an expression that backtracks for ever takes neither the loop nor the process along."""
    plant(desk.cwd, {"f": "a" * 200 + "!\n"})
    desk.add(FilesPlugin(FilesConfig(search_timeout=0.7)))
    assert "took too long" in await desk.text("grep", pattern=r"^(a+)+$")
    assert not children()


@pytest.mark.parametrize("engine", ["own"], indirect=True)
async def test_a_cancelled_search_leaves_nothing_running(desk: Any, engine: str, children: Any) -> None:
    """§6: cancel ends the search at once."""
    plant(desk.cwd, {"f": "a" * 200 + "!\n"})
    task = asyncio.create_task(desk.call("grep", pattern=r"^(a+)+$"))
    while not children():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()


async def test_links_to_directories_are_not_followed(desk: Any) -> None:
    """§6: a loop of links cannot hang a search."""
    plant(desk.cwd, {"a/f": "hit\n"})
    (desk.cwd / "a" / "loop").symlink_to("..")
    assert await desk.text("grep", pattern="hit") == "a/f:1:hit"
    assert stat.S_ISLNK((desk.cwd / "a" / "loop").lstat().st_mode)
