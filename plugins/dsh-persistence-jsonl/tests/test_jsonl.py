"""The files of the store: what is written, and what is made of damaged ones."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from pathlib import Path
from zlib import crc32

import pytest
from dsh_persistence_jsonl import JsonlPersistence
from dsh_persistence_jsonl._lines import parse, seal

from dsh_core.content import Tagged
from dsh_core.errors import (
    SessionCorrupt,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    StorageError,
    UnsupportedFormat,
)
from dsh_core.persistence import decode_header
from dsh_core.session import SessionEvent, SessionHeader, decode_event, encode_event
from dsh_core.session.events import StepEndEvent, StepStartEvent, ToolCallEvent, TurnEndEvent, TurnStartEvent

pytestmark = pytest.mark.anyio


def turn(number: int = 1, seq: int = 0, *, text: str = "") -> list[SessionEvent]:
    """A closed turn of five events."""
    data = [
        TurnStartEvent(number, Tagged("message")),
        StepStartEvent(number, 1),
        ToolCallEvent(number, 1, f"c{number}", "t", text),
        StepEndEvent(number, 1),
        TurnEndEvent(number, Tagged("completed")),
    ]
    return [SessionEvent(seq + index, 1000 + seq + index, item) for index, item in enumerate(data)]


async def saved(root: Path, session_id: str = "s", *, turns: int = 1, cwd: str | None = None, text: str = "") -> Path:
    """A session on disk that nobody has open: the path of its log."""
    store = JsonlPersistence(root)
    await store.create(SessionHeader(id=session_id, created_at=1, cwd=cwd))
    for number in range(turns):
        await store.append(session_id, turn(number + 1, 5 * number, text=text))
    await store.aclose()
    return store._path(session_id)


def logs(root: Path) -> list[Path]:
    return sorted(root.rglob("*.jsonl"))


# -- the format ------------------------------------------------------------------------------------------


async def test_a_log_is_a_header_line_and_one_sealed_line_per_event(root):
    """§2: compact UTF-8 JSON, LF only, each line ends with the CRC-32 of what stands before it."""
    path = await saved(root, text="ä\u2028")
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    for line in lines:
        body, mark, seal_text = line.rpartition(b',"crc":')
        assert mark
        assert seal_text == b'"%08x"}' % crc32(body)
        assert b" " not in line
    header = json.loads(lines[0])
    assert (header["format"], header["id"], header["created_at"]) == (1, "s", 1)
    assert [json.loads(line)["seq"] for line in lines[1:]] == [0, 1, 2, 3, 4]


def test_the_example_in_the_documentation_is_a_log():
    """§2: the format is documented by lines that a reader accepts."""
    page = Path(__file__).parents[3] / "docs" / "log-format.md"
    if not page.exists():
        pytest.skip("the documentation is not part of this distribution")
    example = page.read_bytes().partition(b"```json\n")[2].partition(b"```")[0]
    found = parse(example)
    assert found.bad is None
    header = decode_header(found.records[0])
    assert header.id == "trip"
    assert [encode_event(decode_event(record)) for record in found.records[1:]] == found.records[1:]


async def test_the_bytes_of_an_event_are_those_made_at_append(root):
    """P-2: without its seal, a line is the encoded event."""
    path = await saved(root)
    assert path.read_bytes().split(b"\n", 1)[1] == b"".join(seal(encode_event(event)) for event in turn())


@pytest.mark.parametrize("text", ["\u2028\u2029\x85\x0b\x1c\x1e", "日本😀", '"}\\n{"seq":', "\\ud800", "\r\n\t\x00"])
async def test_only_line_feeds_separate_records(root, text):
    """log-7: text comes back identical."""
    await saved(root, text=text)
    assert (await JsonlPersistence(root).load("s")).events[2].data.arguments == text


async def test_a_sixteen_mebibyte_record_comes_back(root):
    """Size extremes; `list` does not read it all."""
    text = "x" * (16 << 20)
    await saved(root, text=text)
    store = JsonlPersistence(root)
    assert (await store.load("s")).events[2].data.arguments == text
    assert [found.events async for found in store.list()] == [5]


async def test_directories_are_0700_and_files_0600(root):
    """P-6: whatever the umask."""
    before = os.umask(0)
    try:
        store = JsonlPersistence(root / "deep" / "er")
        await store.create(SessionHeader(id="s", created_at=1, cwd="/tmp"))
        await store.append("s", turn())
        paths = [root, *root.rglob("*")]
    finally:
        os.umask(before)
    assert len(paths) >= 6
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_links_are_not_followed_out_of_the_store(root, tmp_path):
    """P-6: neither a log nor a folder that is a link is read or written."""
    path = await saved(root, cwd="/tmp/a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    outside = elsewhere / path.name
    path.rename(outside)
    path.symlink_to(outside)
    before = outside.read_bytes()
    store = JsonlPersistence(root)
    for attempt in (store.load("s"), store.inspect("s"), store.append("s", turn(2, 5))):
        with pytest.raises(StorageError):
            await attempt
    assert [found async for found in store.list()] == []
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(elsewhere)
    with pytest.raises(SessionNotFound):
        await store.load("s")
    await store.create(SessionHeader(id="new", created_at=1, cwd="/tmp/a"))
    with pytest.raises(StorageError, match="links are not followed"):
        await store.append("new", turn())
    assert outside.read_bytes() == before
    assert [*elsewhere.iterdir()] == [outside]


async def test_the_store_itself_may_be_reached_through_a_link(root, tmp_path):
    """log-3: one store, whatever the path to it."""
    await saved(root)
    link = tmp_path / "link"
    link.symlink_to(root)
    assert len((await JsonlPersistence(link).inspect("s")).events) == 5


async def test_a_fifo_in_a_logs_place_is_an_error_and_does_not_hang(root):
    """P-6: only regular files are opened."""
    path = await saved(root)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="not a regular file"):
        await JsonlPersistence(root).inspect("s")


# -- names -----------------------------------------------------------------------------------------------


async def test_distinct_ids_never_share_a_file(root):
    """P-5: also on a disk that ignores case, and names stay within 255 bytes."""
    ids = ["a", "A", "ä", "ö", "日本", "東京", "x" * 200, "x" * 199 + "y", "a b", "a_b", "ab:c", ".hid", "😀" * 200]
    for session_id in ids:
        await saved(root, session_id)
    names = [path.name for path in logs(root)]
    assert len({name.lower() for name in names}) == len(ids)
    assert max(len(os.fsencode(name)) for name in names) + len(".backup-999") <= 255
    assert all(name.isascii() and name[0] not in ".-" for name in names)
    store = JsonlPersistence(root)
    assert {found.id async for found in store.list()} == {*ids}
    for session_id in ids:
        assert (await store.inspect(session_id)).header.id == session_id


async def test_different_working_directories_never_share_a_folder(root, tmp_path):
    """log-10: nor do two with different CJK names; two paths to one directory do."""
    for number, name in enumerate(["a/b", "a-b", "日本", "東京"]):
        (tmp_path / name).mkdir(parents=True)
        await saved(root, f"s{number}", cwd=str(tmp_path / name))
    assert len({path.parent for path in logs(root)}) == 4
    (tmp_path / "alias").symlink_to(tmp_path / "日本")
    await saved(root, "s4", cwd=str(tmp_path / "alias"))
    assert len({path.parent for path in logs(root)}) == 4
    await saved(root, "s5")
    assert {found.header.cwd async for found in JsonlPersistence(root).list()} >= {None, str(tmp_path / "a-b")}


async def test_an_id_exists_once_in_the_whole_store(root):
    """§1: `create` refuses an id of another working directory too."""
    await saved(root, cwd="/tmp")
    with pytest.raises(SessionExists):
        await JsonlPersistence(root).create(SessionHeader(id="s", created_at=1, cwd="/"))


@pytest.mark.parametrize("session_id", ["../x", "/tmp/x", "a/b", "..", "", "a\0", "a\nb", "C:\\x"])
async def test_illegal_ids_touch_no_file(root, session_id):
    """log-5: `sync` and `repair` included."""
    store = JsonlPersistence(root)
    for attempt in (store.create(SessionHeader(id=session_id, created_at=1)), store.load(session_id),
                    store.delete(session_id), store.sync(session_id), store.repair(session_id)):  # fmt: skip
        with pytest.raises(ValueError):
            await attempt
    assert not root.exists()


# -- torn and corrupt ------------------------------------------------------------------------------------


async def test_every_prefix_of_a_log_loads_or_says_what_is_wrong(root):
    """P-3: cut at every byte; what was whole before the cut is all there, and the log goes on."""
    path = await saved(root, turns=2)
    whole = path.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == 0x0A]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        store = JsonlPersistence(root)
        if length < ends[0]:
            with pytest.raises(SessionCorrupt, match="line 1"):
                await store.load("s")
            assert path.read_bytes() == whole[:length]
            continue
        loaded = await store.load("s")
        complete = sum(length >= end for end in ends[1:])
        assert loaded.events[:complete] == tuple([*turn(1), *turn(2, 5)][:complete])
        clean = length in ends or length - 1 in ends
        assert (loaded.damage is None) == clean, length
        await store.append("s", turn(9, len(loaded.events)))
        await store.aclose()
        again = await JsonlPersistence(root).inspect("s")
        assert again.damage is None
        assert len(again.events) == len(loaded.events) + 5


async def test_every_changed_byte_is_detected_or_harmless(root):
    """Reliability: no single-byte corruption gives other events than were written."""
    path = await saved(root)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x21]) + whole[position + 1 :])
        try:
            seen = await JsonlPersistence(root).inspect("s")
        except SessionCorrupt:
            continue
        assert seen.events == tuple(turn()[: len(seen.events)])
        assert seen.damage is not None, position


async def test_a_torn_tail_is_cut_and_kept_beside_the_log(root):
    """log-1: the five events load, the next append starts on its own line, a reload shows no damage."""
    path = await saved(root)
    good = path.stat().st_size
    half = encode_event(turn(2, 5)[0])[:30]
    with path.open("ab") as file:
        file.write(half)
    store = JsonlPersistence(root)
    assert (await store.inspect("s")).damage.records_after == 0
    loaded = await store.load("s")
    assert len(loaded.events) == 5
    assert loaded.damage.position == good
    assert str(path) in loaded.damage.reason
    assert "line 7" in loaded.damage.reason
    assert path.with_name(path.name + ".torn-1").read_bytes() == half
    await store.append("s", turn(2, 5))
    await store.release("s")
    again = await store.load("s")
    assert again.damage is None
    assert len(again.events) == 10


async def test_a_record_behind_a_bad_one_is_corrupt_and_can_be_repaired(root):
    """log-2: line 40 is cut in half with the next record in the same line; 60 good lines follow."""
    path = await saved(root, turns=20)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[39] = lines[39][:20]
    path.write_bytes(damaged := b"".join(lines))
    store = JsonlPersistence(root)
    with pytest.raises(SessionCorrupt, match=r"line 40: .*61 readable record"):
        await store.load("s")
    assert path.read_bytes() == damaged
    assert len((await store.inspect("s")).events) == 38
    assert [(found.id, found.events) async for found in store.list()] == [("s", 100)]
    assert await store.repair("s") == 100
    assert path.with_name(path.name + ".backup-1").read_bytes() == damaged
    loaded = await store.load("s")
    assert [event.type for event in loaded.events].count("log/lost") == 1
    assert [event.seq for event in loaded.events] == list(range(100))
    assert loaded.damage is None


async def test_a_whole_record_in_the_torn_line_is_not_cut(root):
    """P-3: corrupt is any valid record behind a bad one, wherever it lies."""
    path = await saved(root)
    tail = path.read_bytes()
    with path.open("ab") as file:
        file.write(seal(encode_event(turn(2, 5)[0]))[:25] + seal(encode_event(turn(2, 5)[0])))
    with pytest.raises(SessionCorrupt):
        await JsonlPersistence(root).load("s")
    path.write_bytes(tail[:-1] + b"junk")
    loaded = await JsonlPersistence(root).load("s")
    assert len(loaded.events) == 5
    assert loaded.damage.position == len(tail) - 1


async def test_blank_and_repeated_lines_are_skipped_with_a_warning(root, caplog):
    """P-3: blank, NUL-only, and a record that repeats its predecessor byte for byte."""
    path = await saved(root)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\n", *lines[1:3], b"\0" * 64 + b"\n", lines[2], *lines[3:]]))
    with caplog.at_level(logging.WARNING, "dsh"):
        loaded = await JsonlPersistence(root).load("s")
    assert loaded.events == tuple(turn())
    assert loaded.damage is None
    places = [record.message.partition(", ")[2].split(":")[0] for record in caplog.records]
    assert places == ["line 2", "line 5", "line 6"]


async def test_a_record_that_repeats_an_earlier_one_is_corrupt(root):
    """§10: only the direct predecessor may be repeated."""
    path = await saved(root)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[2], *lines[4:]]))
    with pytest.raises(SessionCorrupt, match="seq 1, expected 3"):
        await JsonlPersistence(root).load("s")


async def test_a_gap_is_corrupt_at_its_byte(root):
    """P-3, §10: the position of the record behind the gap."""
    path = await saved(root)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    seen = await JsonlPersistence(root).inspect("s")
    assert seen.damage.position == sum(map(len, lines[:3]))
    assert seen.damage.records_after == 2


async def test_a_log_saved_by_a_windows_editor_is_read(root):
    """log-13: byte order mark and CRLF."""
    path = await saved(root)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    store = JsonlPersistence(root)
    assert [(found.events, found.state) async for found in store.list()] == [(5, "ok")]
    assert (await store.load("s")).events == tuple(turn())
    await store.append("s", turn(2, 5))
    await store.update("s", metadata={"a": 1})
    await store.release("s")
    assert len((await store.load("s")).events) == 10


async def test_an_old_log_with_an_escaped_surrogate_loads_clean(root):
    """log-4: the text that comes out can be encoded."""
    path = await saved(root)
    header = path.read_bytes().partition(b"\n")[0] + b"\n"
    bad = encode_event(turn(text="MARK")[2]).replace(b"MARK", b"\\ud83d").replace(b'"seq":2', b'"seq":0')
    path.write_bytes(header + seal(bad))
    loaded = await JsonlPersistence(root).load("s")
    assert loaded.events[0].data.arguments.encode("utf-8") == "\ufffd".encode()


async def test_a_damaged_header_is_corrupt_listed_and_repairable(root):
    """§10: `list` takes the id from the store; `load` raises; `repair` keeps the events."""
    path = await saved(root, "my-trip", cwd="/tmp")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"created_at":1', b'"created_at":7', 1))
    store = JsonlPersistence(root)
    with pytest.raises(SessionCorrupt, match="header"):
        await store.load("my-trip")
    [found] = [found async for found in store.list()]
    assert (found.id, found.header, found.events, found.state) == ("my-trip", None, 5, "damaged")
    assert await store.has("my-trip")
    assert await store.repair("my-trip") == 5
    assert len((await store.load("my-trip")).events) == 5


async def test_a_file_renamed_by_hand_is_not_taken_for_another_session(root):
    """P-5: the id is in the header."""
    path = await saved(root, "one")
    other = await saved(root, "two")
    os.replace(path, other)
    with pytest.raises(SessionCorrupt, match="holds session 'one'"):
        await JsonlPersistence(root).load("two")


async def test_a_newer_format_is_listed_and_shown_with_its_bytes_unchanged(root):
    """log-11: resume is refused, even where a tail is torn."""
    path = await saved(root)
    lines = path.read_bytes().splitlines(keepends=True)
    newer = json.loads(lines[0]) | {"format": 2, "shape": "new"}
    del newer["crc"]
    lines[0] = seal(json.dumps(newer, separators=(",", ":")).encode())
    path.write_bytes(data := b"".join(lines) + b'{"seq"')
    store = JsonlPersistence(root)
    with pytest.raises(UnsupportedFormat, match="newer version"):
        await store.load("s")
    assert len((await store.inspect("s")).events) == 5
    assert [found.header.format async for found in store.list()] == [2]
    assert path.read_bytes() == data


# -- listing, updating, deleting -------------------------------------------------------------------------


async def test_list_reads_the_header_and_the_last_record(root, monkeypatch):
    """§1, log-12: a bounded part of a large log."""
    path = await saved(root, turns=3000, text="x" * 1000)
    size = path.stat().st_size
    read = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(real(*args)) or read[-1])
    [found] = [found async for found in JsonlPersistence(root).list()]
    assert (found.events, found.updated_at, found.state) == (15000, 15999, "ok")
    assert sum(map(len, read)) < size / 20


async def test_list_of_many_sessions_and_of_none(root):
    """log-12: a store that does not exist is empty."""
    store = JsonlPersistence(root)
    assert [found async for found in store.list()] == []
    for number in range(300):
        await store.create(SessionHeader(id=f"s{number}", created_at=number))
        await store.append(f"s{number}", turn())
    assert {found.id async for found in store.list()} == {f"s{number}" for number in range(300)}


async def test_update_replaces_the_header_and_leaves_the_events_as_they_are(root):
    """§1: under the owner too, whose lock and appends go on."""
    path = await saved(root)
    events = path.read_bytes().partition(b"\n")[2]
    store = JsonlPersistence(root)
    await store.load("s")
    await store.update("s", metadata={"title": "ä" * 5000})
    assert path.read_bytes().partition(b"\n")[2] == events
    await store.append("s", turn(2, 5))
    await store.sync("s")
    with pytest.raises(SessionLocked, match="open for writing"):
        await JsonlPersistence(root).load("s")
    await store.release("s")
    again = await JsonlPersistence(root).load("s")
    assert again.header.metadata["title"] == "ä" * 5000
    assert len(again.events) == 10
    assert [found.header.metadata["title"][:1] async for found in store.list()] == ["ä"]


async def test_a_failed_update_leaves_the_log_as_it_was(root, monkeypatch):
    """P-3: the new file gets its name at once or not at all."""
    path = await saved(root)
    data = path.read_bytes()
    store = JsonlPersistence(root)
    await store.load("s")

    def refuse(*args, **kwargs):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError):
            await store.update("s", metadata={"a": 1})
    assert path.read_bytes() == data
    await store.append("s", turn(2, 5))
    assert len((await store.inspect("s")).events) == 10


async def test_delete_takes_along_what_lies_beside_the_log(root):
    """§1: removed bytes and backups go with the session; others stay."""
    path = await saved(root)
    other = await saved(root, "s2")
    with path.open("ab") as file:
        file.write(b"half")
    store = JsonlPersistence(root)
    await store.load("s")
    await store.release("s")
    assert len([*path.parent.iterdir()]) == 3
    await store.delete("s")
    assert [*path.parent.iterdir()] == [other]
    await store.create(SessionHeader(id="s", created_at=1))
    await store.append("s", turn())
    assert len((await store.inspect("s")).events) == 5


async def test_nothing_temporary_is_left(root):
    """Reliability: after everything is closed, only logs."""
    await saved(root)
    store = JsonlPersistence(root)
    await store.probe()
    await store.create(SessionHeader(id="empty", created_at=1))
    await store.load("s")
    await store.update("s", metadata={"a": 1})
    await store.sync("s")
    await store.aclose()
    assert [path for path in root.rglob("*") if path.is_file()] == logs(root)


def test_parsing_is_by_lines_wherever_they_begin():
    """§10: a last line that is whole but lacks its line end counts."""
    lines = seal(b'{"a":1}') + seal(b'{"a":2}')
    assert parse(lines).records == [b'{"a":1}', b'{"a":2}']
    assert parse(lines).ended
    assert parse(lines[:-1]).records == parse(lines).records
    assert not parse(lines[:-1]).ended
    assert parse(b"").records == []
