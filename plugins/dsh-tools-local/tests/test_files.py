"""The file tools, with real files (30-plugins §6; cases tool-4, 5, 6, 9)."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from dsh_tools_local import FilesPlugin

from dsh_core.content import ImageBlock, text_of
from dsh_core.errors import ToolError

pytestmark = pytest.mark.anyio


async def seen(desk: Any, name: str, content: bytes) -> Path:
    """A file that the session has read."""
    path: Path = desk.cwd / name
    path.write_bytes(content)
    await desk.call("read", path=name)
    return path


async def refused(desk: Any, code: str, tool: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await desk.call(tool, **arguments)
    assert caught.value.code == code
    return caught.value.message


# -- read ------------------------------------------------------------------------------------------------


async def test_lines_come_with_numbers_and_a_way_on(desk: Any) -> None:
    """§6: offset and limit, and where to go on."""
    (desk.cwd / "f").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    assert await desk.text("read", path="f", offset=3, limit=2) == (
        "     3\tline 3\n     4\tline 4\n[lines 3 to 4 of 10; go on with offset=5]"
    )
    assert (await desk.text("read", path="f", offset=10)) == "    10\tline 10"
    assert "10 lines, none at 11" in await refused(desk, "NO_SUCH_LINE", "read", path="f", offset=11)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "is empty"),
        (b"no end", "     1\tno end"),
        (b"a\r\nb\r\n", "     1\ta\n     2\tb"),
        (b"\xef\xbb\xbfa\n", "     1\ta"),
        (b"a\xffb\n", "     1\ta\ufffdb\n[not all of it is UTF-8"),
        ("日本\n".encode(), "     1\t日本"),
        ("a\u2028b\x0bc\x85d\n".encode(), "     1\ta\u2028b\x0bc\x85d"),
    ],
)
async def test_text_of_every_kind_is_shown(desk: Any, content: bytes, shown: str) -> None:
    """§6: line ends, byte order mark, what is not UTF-8; only LF separates lines."""
    (desk.cwd / "f").write_bytes(content)
    assert shown in await desk.text("read", path="f")


async def test_reading_is_bounded_in_every_direction(desk: Any) -> None:
    """tool-8: a line of 5 MB, many lines, much text."""
    (desk.cwd / "wide").write_bytes("日".encode() * 1_700_000 + b"\nnext\n")
    text = await desk.text("read", path="wide")
    assert len(text) < 3_000
    assert "line of 5100001 bytes cut" in text
    assert text.endswith("     2\tnext")
    (desk.cwd / "long").write_text("x\n" * 5_000)
    assert (await desk.text("read", path="long")).endswith("[lines 1 to 2000 of 5000; go on with offset=2001]")
    (desk.cwd / "much").write_text(("y" * 1_000 + "\n") * 200)
    text = await desk.text("read", path="much")
    assert len(text) < 60_000
    assert "go on with offset=" in text


async def test_images_come_as_images(desk: Any) -> None:
    """§6: recognised by their content, not their name."""
    data = b"\x89PNG\r\n\x1a\n" + b"\x00" * 20
    (desk.cwd / "picture.txt").write_bytes(data)
    (block,) = (await desk.call("read", path="picture.txt")).content
    assert block == ImageBlock("image/png", base64.b64encode(data).decode())
    (desk.cwd / "big.jpg").write_bytes(b"\xff\xd8\xff" + b"\x00" * (5 << 20))
    await refused(desk, "TOO_LARGE", "read", path="big.jpg")


async def test_what_is_no_text_file_is_an_error_and_never_hangs(desk: Any) -> None:
    """§6: binary, fifo, device, directory, socket, missing."""
    (desk.cwd / "binary").write_bytes(b"ab\x00cd")
    os.mkfifo(desk.cwd / "pipe")
    (desk.cwd / "to-pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(desk.cwd / "sock"))
        for path, code in [
            ("binary", "BINARY"), ("pipe", "NOT_A_FILE"), ("to-pipe", "NOT_A_FILE"), ("/dev/zero", "NOT_A_FILE"),
            ("/dev/tty", "NOT_A_FILE"), (".", "NOT_A_FILE"), ("sock", "NOT_A_FILE"), ("missing", "NOT_FOUND"),
            ("binary/x", "NOT_FOUND"), ("", "INVALID_PATH"), ("a\0b", "INVALID_PATH"), ("a\ud800", "INVALID_PATH"),
        ]:  # fmt: skip
            async with asyncio.timeout(10):
                await refused(desk, code, "read", path=path)


# -- tool-4: bytes outside the edit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "b", "B", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc", "c", "c\nd", b"a\r\nb\r\nc\r\nd"),
        (b"a\nb\r\nc\n", "b", "b\nB", b"a\nb\r\nB\r\nc\n"),
        (b"a\nb\r\nc\n", "a", "a\nA", b"a\nA\nb\r\nc\n"),
        (b"a\r\nb\n", "a\r\nb", "a\nb", b"a\nb\n"),
        (b"\xef\xbb\xbfa\nb\n", "a", "A", b"\xef\xbb\xbfA\nb\n"),
        (b"a\nb", "b", "B", b"a\nB"),
        (b"a\nb\n", "b\n", "b", b"a\nb"),
        (b"x\xff\xfe\na\n\x80y", "a", "A", b"x\xff\xfe\nA\n\x80y"),
        (b"x\ry\na\n", "a", "A", b"x\ry\nA\n"),
        (b"only", "only", "more\nlines", b"more\nlines"),
        ("日本語\n".encode(), "本", "", "日語\n".encode()),
        (b"a  \r\nb\r\n", "a\nb", "A\nB", b"A\r\nB\r\n"),
    ],
)
async def test_bytes_outside_the_edit_are_identical(desk: Any, before: bytes, old: str, new: str, after: bytes) -> None:
    """tool-4: CRLF, mixed ends, byte order mark, no final newline, not UTF-8; new lines end like their place."""
    path = await seen(desk, "f", before)
    await desk.call("edit", path="f", old=old, new=new)
    assert path.read_bytes() == after


async def test_random_files_keep_every_other_byte(desk: Any) -> None:
    """tool-4 as a property: what is before and after the edit comes back unchanged, whatever it is."""
    dice = random.Random(4)
    pieces = [b"\r\n", b"\n", b"\r", b"\xff", b"\xc3", "é".encode(), b" \t", b"word", "“q”".encode(), b"\xef\xbb\xbf"]
    for number in range(150):
        head = b"".join(dice.choices(pieces, k=dice.randrange(30)))
        tail = b"".join(dice.choices(pieces, k=dice.randrange(30)))
        path = await seen(desk, f"f{number}", head + b"<MARK>" + tail)
        await desk.call("edit", path=path.name, old="<MARK>", new="<NEW>")
        assert path.read_bytes() == head + b"<NEW>" + tail


async def test_mode_and_links_are_kept(desk: Any) -> None:
    """§6: mode, symbolic and hard links."""
    path = await seen(desk, "real", b"a\n")
    path.chmod(0o751)
    (desk.cwd / "soft").symlink_to("real")
    await desk.call("edit", path="soft", old="a", new="b")
    assert (desk.cwd / "soft").is_symlink()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"b\n", 0o751)
    os.link(path, desk.cwd / "hard")
    await desk.call("edit", path="real", old="b", new="c")
    assert (desk.cwd / "hard").read_bytes() == b"c\n"
    assert path.stat().st_nlink == 2
    await desk.call("write", path="real", content="d")
    assert ((desk.cwd / "hard").read_bytes(), path.stat().st_size) == (b"d", 1)


async def test_nothing_is_left_beside_the_file(desk: Any) -> None:
    """§6: atomic replacement leaves no temporary file, also after a refusal."""
    await seen(desk, "f", b"a\n")
    await desk.call("edit", path="f", old="a", new="b")
    await desk.call("write", path="g", content="x")
    await refused(desk, "NOT_FOUND", "edit", path="f", old="nope", new="b")
    assert sorted(os.listdir(desk.cwd)) == ["f", "g"]


# -- tool-5, tool-9: what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("replace_all", [True, False])
@pytest.mark.parametrize(("old", "new", "code"), [("", "x", "EMPTY_OLD_TEXT"), ("a", "a", "NO_CHANGE")])
async def test_an_empty_or_equal_text_is_refused(desk: Any, old: str, new: str, code: str, replace_all: bool) -> None:
    """tool-5: the file is unchanged, with and without `replace_all`."""
    path = await seen(desk, "f", b"a\nb\n")
    before = path.stat()
    await refused(desk, code, "edit", path="f", old=old, new=new, replace_all=replace_all)
    assert path.read_bytes() == b"a\nb\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("content", "old", "lines"),
    [
        (b"x\na\nx\nb\nx\n", "x", "3 times in .*, at lines 1, 3, 5"),
        (b"aaa\n", "aa", "2 times in .*, at lines 1, 1"),
        (b"a\r\nb\r\na\nb\n", "a\nb", "2 times in .*, at lines 1, 3"),
        (b"q \nr\nq\t\nr\n", "q\nr", "2 times in .*, at lines 1, 3"),
    ],
)
async def test_a_text_that_is_there_more_than_once_is_counted(desk: Any, content: bytes, old: str, lines: str) -> None:
    """tool-9: count and line numbers; overlapping and tolerant matches count too."""
    path = await seen(desk, "f", content)
    with pytest.raises(ToolError, match=lines):
        await desk.call("edit", path="f", old=old, new="y")
    assert path.read_bytes() == content


async def test_replace_all_replaces_each_with_its_own_line_end(desk: Any) -> None:
    """tool-4, tool-9: the harmless twin."""
    path = await seen(desk, "f", b"a\r\nb\r\n-\na\nb\n")
    result = await desk.call("edit", path="f", old="a\nb", new="c\nd", replace_all=True)
    assert path.read_bytes() == b"c\r\nd\r\n-\nc\nd\n"
    assert result.meta["replacements"] == 2


async def test_several_edits_are_made_all_or_none(desk: Any) -> None:
    """tool-9: the second part does not match: nothing is changed, and the part is named."""
    path = await seen(desk, "f", b"one two three\n")
    edits = [{"old": "one", "new": "1"}, {"old": "four", "new": "4"}]
    assert "edit 2 of 2" in await refused(desk, "NOT_FOUND", "edit", path="f", edits=edits)
    assert path.read_bytes() == b"one two three\n"
    await desk.call("edit", path="f", edits=[{"old": "one", "new": "1"}, {"old": "1 two", "new": "12"}])
    assert path.read_bytes() == b"12 three\n"
    wrong: list[dict[str, Any]] = [{"edits": []}, {"old": "1"}, {}, {"edits": edits, "old": "a", "new": "b"}]
    for arguments in wrong:
        await refused(desk, "INVALID_ARGUMENTS", "edit", path="f", **arguments)


@pytest.mark.parametrize(
    ("content", "old", "new", "after", "note"),
    [
        ("a  \nb\n", "a\nb", "c\nd", "c\nd\n", "blanks at line ends, at line 1"),
        ("x\n\u201chi\u201d \u2013 now\n", '"hi" - now', "bye", "x\nbye\n", "quotes, dashes or spaces, at line 2"),
        ("it\u2019s\u00a0here\n", "it's here", "gone", "gone\n", "quotes, dashes or spaces"),
    ],
)
async def test_a_tolerant_match_changes_its_span_and_says_so(
    desk: Any, content: str, old: str, new: str, after: str, note: str
) -> None:
    """§6: only the matched span changes, and what differed is reported."""
    path = await seen(desk, "f", content.encode())
    result = await desk.call("edit", path="f", old=old, new=new)
    assert path.read_text() == after
    assert note in text_of(result.content)
    assert note in result.meta["notes"][0]


async def test_a_miss_names_the_line_that_is_most_like_it(desk: Any) -> None:
    """§6: what to do next."""
    await seen(desk, "f", b"alpha\ndef compute(value):\n")
    assert "line 2 is the most like it" in await refused(
        desk, "NOT_FOUND", "edit", path="f", old="def compute(values):", new="x"
    )


# -- tool-6: seen and unchanged ----------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "arguments"), [("write", {"content": "new"}), ("edit", {"old": "a", "new": "b"})])
async def test_unseen_and_changed_files_are_not_touched(desk: Any, tool: str, arguments: dict[str, Any]) -> None:
    """tool-6: never read; changed between read and write, also with size and time as before: advice to re-read."""
    path = desk.cwd / "f"
    path.write_bytes(b"a\n")
    assert "read it first" in await refused(desk, "NOT_READ", tool, path="f", **arguments)
    await desk.call("read", path="f")
    times = path.stat()
    path.write_bytes(b"a!")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "read it again" in await refused(desk, "CHANGED_SINCE_READ", tool, path="f", **arguments)
    assert path.read_bytes() == b"a!"
    await desk.call("read", path="f")
    await desk.call(tool, path="f", **arguments)


async def test_own_changes_touches_and_times_that_go_back_are_fine(desk: Any) -> None:
    """tool-6: changed by our own previous edit; touched; mtime going back; replaced by the same content."""
    path = await seen(desk, "f", b"1\n")
    await desk.call("edit", path="f", old="1", new="2")
    await desk.call("edit", path="f", old="2", new="3")
    os.utime(path)
    await desk.call("edit", path="f", old="3", new="4")
    os.utime(path, (1, 1))
    await desk.call("edit", path="f", old="4", new="5")
    path.unlink()
    path.write_bytes(b"5\n")
    await desk.call("write", path="f", content="6")
    await desk.call("write", path="f", content="7")
    await desk.call("edit", path="f", old="7", new="8")
    assert path.read_bytes() == b"8"


async def test_reading_a_part_or_through_a_link_counts_as_seen(desk: Any) -> None:
    """tool-6: the file is what counts, not its name."""
    path = desk.cwd / "f"
    path.write_text("x\n" * 5_000 + "end\n")
    (desk.cwd / "link").symlink_to("f")
    await desk.call("read", path="link", offset=3, limit=1)
    await desk.call("edit", path="f", old="end", new="END")
    assert path.read_text().endswith("END\n")


async def test_what_one_session_saw_another_did_not(desk: Any) -> None:
    """§6: per session; and a session that is gone is forgotten."""
    files = FilesPlugin()
    desk.add(files)
    await seen(desk, "f", b"a\n")
    other = type(desk)(desk.cwd, "other")
    other.add(files)
    await refused(other, "NOT_READ", "edit", path="f", old="a", new="b")
    files.agent_disposed(desk)
    await refused(desk, "NOT_READ", "edit", path="f", old="a", new="b")


# -- write -----------------------------------------------------------------------------------------------


async def test_a_new_file_comes_with_its_directories(desk: Any) -> None:
    """§6: exactly the given bytes; created files are as seen as read ones."""
    result = await desk.call("write", path="deep/er/f", content="a\r\nb")
    assert (desk.cwd / "deep/er/f").read_bytes() == b"a\r\nb"
    assert result.meta["created"] is True
    await desk.call("write", path="deep/er/f", content="")
    assert (desk.cwd / "deep/er/f").read_bytes() == b""


async def test_a_dangling_link_is_written_through(desk: Any) -> None:
    """§6, perm-8: a link stays a link; its target is made."""
    (desk.cwd / "link").symlink_to("target")
    await desk.call("write", path="link", content="x")
    assert (desk.cwd / "link").is_symlink()
    assert (desk.cwd / "target").read_text() == "x"


async def test_changed_line_ends_and_marks_are_told(desk: Any) -> None:
    """tool-4: `write` gives what it was given, and says what that means."""
    await seen(desk, "f", b"\xef\xbb\xbfa\r\n")
    text = await desk.text("write", path="f", content="b\n")
    assert "were CRLF and are LF now" in text
    assert "byte order mark" in text


async def test_half_a_character_is_refused(desk: Any) -> None:
    """log-4: nothing that is not text reaches the disk."""
    path = await seen(desk, "f", b"a")
    await refused(desk, "INVALID_TEXT", "write", path="f", content="x\ud800")
    await refused(desk, "INVALID_TEXT", "edit", path="f", old="a", new="\udcff")
    assert path.read_bytes() == b"a"


async def test_directories_and_pipes_are_not_written(desk: Any) -> None:
    """§6: clear errors, never a hang."""
    os.mkfifo(desk.cwd / "pipe")
    (desk.cwd / "file").write_text("")
    for path, code in (("pipe", "NOT_A_FILE"), (".", "NOT_A_FILE"), ("file/x", "NOT_FOUND")):
        async with asyncio.timeout(10):
            with pytest.raises(ToolError) as caught:
                await desk.call("write", path=path, content="x")
        assert caught.value.code in (code, "IO_ERROR")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everything")
async def test_a_files_own_mode_is_respected(desk: Any) -> None:
    """§6: read-only files are not replaced behind their mode's back."""
    path = await seen(desk, "f", b"a\n")
    path.chmod(0o444)
    await refused(desk, "PERMISSION_DENIED", "edit", path="f", old="a", new="b")


# -- the diff --------------------------------------------------------------------------------------------


async def test_the_diff_has_right_places_and_is_bounded(desk: Any) -> None:
    """§6: a unified diff in `meta`."""
    lines = [f"line {number}" for number in range(1, 10_001)]
    await seen(desk, "f", "\n".join(lines).encode())
    result = await desk.call("edit", path="f", old="line 5000\n", new="changed\nmore\n")
    assert result.meta["diff"].split("\n")[2:] == [
        "@@ -4997,7 +4997,8 @@", " line 4997", " line 4998", " line 4999", "-line 5000", "+changed",
        "+more", " line 5001", " line 5002", " line 5003",
    ]  # fmt: skip
    created = await desk.call("write", path="g", content="x\n" * 100_000)
    assert len(created.meta["diff"]) < 70_000


async def test_the_facts_of_the_tools() -> None:
    """T-2: what permission, repair and scheduling read."""
    facts = {tool.name: (tool.read_only, tool.parallel, tool.destructive) for tool in FilesPlugin().tools()}
    looks, changes = (True, True, False), (False, False, True)
    assert facts == {"read": looks, "glob": looks, "grep": looks, "write": changes, "edit": changes}
