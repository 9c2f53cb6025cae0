"""The shell tools, with real processes (30-plugins §6; cases tool-1, 2, 3, 7, 8, run-3)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from dsh_tools_local import ShellConfig, ShellPlugin

from dsh_core.content import text_of
from dsh_core.errors import ToolError

if TYPE_CHECKING:
    from dsh_core.tools import ToolResult

pytestmark = pytest.mark.anyio


def facts(result: ToolResult) -> dict[str, Any]:
    assert result.meta is not None
    return dict(result.meta)


async def gone(*pids: int) -> bool:
    """Whether these processes end within a few seconds."""
    for _ in range(250):
        if not any(alive(pid) for pid in pids):
            return True
        await asyncio.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


async def pids_in(path: Path, count: int) -> list[int]:
    for _ in range(500):
        if path.exists() and len(found := path.read_text().split()) == count:
            return [int(each) for each in found]
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} never held {count} numbers")


# -- plain runs ------------------------------------------------------------------------------------------


async def test_output_of_both_streams_and_the_exit_code(desk: Any) -> None:
    """§6: output in order; exit code and time-out are separate facts."""
    result = await desk.call("bash", command="echo one; echo two >&2; echo three; exit 3")
    assert text_of(result.content) == "one\ntwo\nthree\n[exit code 3]"
    assert (facts(result)["exit_code"], facts(result)["timed_out"], result.is_error) == (3, False, True)
    assert result.error is not None
    assert result.error.code == "EXIT_CODE"


async def test_success_without_output_says_so(desk: Any) -> None:
    """T-3: content is never empty."""
    result = await desk.call("bash", command="true")
    assert (text_of(result.content), result.is_error, facts(result)["exit_code"]) == ("(no output)", False, 0)


async def test_a_death_by_signal_is_not_an_exit_code(desk: Any) -> None:
    """§6: what happened is told as it was."""
    result = await desk.call("bash", command="kill -SEGV $$")
    assert "[signal SIGSEGV]" in text_of(result.content)
    assert (facts(result)["exit_code"], facts(result)["signal"]) == (None, "SIGSEGV")


async def test_it_runs_in_the_sessions_directory_or_below(desk: Any) -> None:
    """§6: `workdir` is relative to the session's working directory."""
    (desk.cwd / "sub").mkdir()
    assert await desk.text("bash", command="pwd -P") == os.path.realpath(desk.cwd)
    assert (await desk.text("bash", command="pwd", workdir="sub")).endswith("/work/sub")
    with pytest.raises(ToolError, match="no directory"):
        await desk.call("bash", command="pwd", workdir="nowhere")


@pytest.mark.parametrize("command", ["", "  \n", "echo a\0b", "echo " + "x" * (1 << 18), "echo \ud800"])
async def test_what_cannot_be_started_is_an_error(desk: Any, command: str) -> None:
    """§6: empty, with NUL, too long for the system, half a character."""
    with pytest.raises(ToolError):
        await desk.call("bash", command=command)


# -- tool-2: nothing waits for a person --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("read x; echo got=$x.$?", "got=.1"),
        ("cat; echo end", "end"),
        ("(: < /dev/tty) 2>&1 && echo opened || echo refused", "refused"),
        ("tty; ps -o tty= -p $$", "not a tty"),
        ("python3 -c \"import getpass, os; os.open('/dev/tty', os.O_RDWR)\" 2>&1", "No such device"),
        ("echo $PAGER $GIT_PAGER $TERM $EDITOR", "cat cat dumb false"),
    ],
)
async def test_nothing_can_wait_for_a_person(desk: Any, command: str, shows: str) -> None:
    """tool-2: stdin is empty, there is no controlling terminal, pagers and editors are off."""
    assert shows in await desk.text("bash", command=command, timeout=20)


GIT = "git -c user.name=n -c user.email=e@x -c commit.gpgsign=false"


async def test_git_fails_fast_where_it_would_open_an_editor(desk: Any) -> None:
    """tool-2: no commit without a message, and a rebase is not silently carried out; with a message all works."""
    setup = f"git init -q . && echo a > f && git add f && {GIT} commit -qm one && echo b > f && {GIT} commit -qam two"
    assert (await desk.call("bash", command=setup)).is_error is False
    assert (await desk.call("bash", command=f"echo c > f; {GIT} commit -a", timeout=20)).is_error
    head = await desk.text("bash", command="git checkout -q f; git rev-parse HEAD")
    result = await desk.call("bash", command=f"{GIT} rebase -i HEAD~1", timeout=20)
    assert result.is_error
    assert "editor" in text_of(result.content)
    assert await desk.text("bash", command="git rev-parse HEAD") == head
    assert await desk.text("bash", command="git log --oneline | wc -l") == "2"


async def test_secrets_are_not_in_the_environment(desk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """§6: secrets are scrubbed, by name and by look; the harmless twins stay; named ones can be kept."""
    secret = {
        "OPENAI_API_KEY": "v1", "AWS_SECRET_ACCESS_KEY": "v2", "AWS_ACCESS_KEY_ID": "v3", "GITHUB_TOKEN": "v4",
        "PGPASSWORD": "v5", "MYSQL_PWD": "v6", "MY_SECRET": "v7", "DB": "postgres://u:v8@h/d",
        "npm_config__auth_token": "v9", "INNOCENT": "sk-" + "a1" * 20,
    }  # fmt: skip
    harmless = {"TOKENIZERS_PARALLELISM": "w1", "SSH_AUTH_SOCK": "w2", "MONKEY": "w3", "URL": "https://h/p:w4@x"}
    for name, value in {**secret, **harmless}.items():
        monkeypatch.setenv(name, value)
    listed = await desk.text("bash", command="env")
    assert not [name for name in secret if f"{name}=" in listed]
    assert [name for name in harmless if f"{name}={harmless[name]}" in listed] == list(harmless)
    assert "PWD=" in listed
    desk.add(ShellPlugin(ShellConfig(keep_env=("GITHUB_TOKEN",), spill_dir=tmp_path / "s2")))
    assert "GITHUB_TOKEN=v4" in await desk.text("bash", command="env")


async def test_startup_files_and_exported_functions_do_not_run(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """§6: what runs is what was judged."""
    (desk.cwd / "rc").write_text("echo from-rc")
    monkeypatch.setenv("BASH_ENV", str(desk.cwd / "rc"))
    monkeypatch.setenv("BASH_FUNC_ls%%", "() { echo from-function; }")
    assert await desk.text("bash", command="ls") == "rc"


# -- tool-1: background children ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "child",
    [
        "sleep 60",
        "sleep 60 >/dev/null 2>&1",
        "sleep 60 >/dev/null",
        "sleep 60 2>/dev/null",
        "while :; do echo chatter; sleep 0.01; done",
        "yes",
        "(trap '' TERM HUP; sleep 60)",
    ],
)
async def test_it_returns_when_the_shell_exits_and_names_what_is_left(desk: Any, child: str) -> None:
    """tool-1: silent, chatty, only stderr inherited: the output so far, and a task to look after."""
    before = time.monotonic()
    result = await desk.call("bash", command=f"{child} & echo ready $!", timeout=30)
    assert time.monotonic() - before < 15
    text = text_of(result.content)
    assert "ready" in text
    assert "left running in the background" in text
    assert not result.is_error
    task = facts(result)["task"]
    assert "running" in await desk.text("bash_output", task_id=task)
    assert "killed" in await desk.text("bash_kill", task_id=task)
    pid = int(text.split("ready ")[1].split()[0]) if "ready " in text else 0
    assert await gone(pid)


async def test_a_child_left_behind_can_go_on_printing(desk: Any) -> None:
    """tool-1: it does not die of a closed pipe, and its output can be read."""
    result = await desk.call("bash", command="(sleep 0.3; echo later; sleep 0.2; echo last) & echo ready")
    text = ""
    for _ in range(20):
        text += await desk.text("bash_output", task_id=facts(result)["task"], wait=5)
        if ": ended" in text:
            break
    assert "later" in text
    assert "last" in text


async def test_a_child_that_ends_with_its_shell_is_not_left_behind(desk: Any) -> None:
    """tool-1: no false alarm."""
    result = await desk.call("bash", command="sleep 0.05 & wait; echo done")
    assert (text_of(result.content), facts(result)["task"]) == ("done", None)


# -- tool-3, run-3: time-out and cancel --------------------------------------------------------------------


async def test_a_time_out_gives_the_text_so_far_and_its_own_mark(desk: Any) -> None:
    """tool-3: text so far plus a clear mark, error status; the exit code is told apart."""
    result = await desk.call("bash", command="echo progress; sleep 60", timeout=0.5)
    text = text_of(result.content)
    assert text.startswith("progress\n[timed out after 0.5 s")
    assert result.is_error
    assert result.error is not None
    assert result.error.code == "TIMEOUT"
    assert (facts(result)["timed_out"], facts(result)["signal"]) == (True, "SIGTERM")


async def test_a_trapped_time_out_still_exits_zero(desk: Any) -> None:
    """§6: timeout and exit code are separate facts."""
    result = await desk.call("bash", command="trap 'echo bye; exit 0' TERM; sleep 60 & wait", timeout=0.5)
    assert "bye\n[timed out" in text_of(result.content)
    assert (facts(result)["timed_out"], facts(result)["exit_code"], result.is_error) == (True, 0, True)


async def test_a_cancel_gives_the_text_so_far_and_its_own_mark(desk: Any) -> None:
    """tool-3: the same with cancel."""
    task = asyncio.create_task(desk.call("bash", command="echo progress; touch started; sleep 60"))
    while not (desk.cwd / "started").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    result = await task
    assert text_of(result.content).startswith("progress\n[interrupted")
    assert (result.is_error, facts(result)["interrupted"], facts(result)["timed_out"]) == (True, True, False)


STUBBORN = 'trap "" TERM HUP INT; echo $BASHPID >> pids; while :; do sleep 0.1; done'
CHILD = f"bash -c '{STUBBORN}'"
TREES = {
    "children that ignore SIGTERM, a shell that dies at once": f"({STUBBORN}) & ({STUBBORN}) & echo $$ >> pids; wait",
    "a child in a session of its own": f"setsid {CHILD} & echo $$ >> pids; ({STUBBORN}) & wait",
    "a daemon whose parents are gone": f"(setsid {CHILD} &) ; echo $$ >> pids; ({STUBBORN}) & wait",
    "a child with an empty environment": f"env -i {CHILD} & ({STUBBORN}) & echo $$ >> pids; wait",
    "stopped children": (
        "(echo $BASHPID >> pids; kill -STOP $BASHPID) & (echo $BASHPID >> pids; exec sleep 60) & echo $$ >> pids; wait"
    ),
}


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("tree", TREES)
async def test_the_whole_tree_is_gone_in_the_end(desk: Any, tree: str, how: str) -> None:
    """run-3: everything the command started ends within the grace, SIGKILL even if the leader is dead."""
    command = f"export PATH; {TREES[tree]}"
    task = asyncio.create_task(desk.call("bash", command=command, timeout=2.0 if how == "timeout" else 60))
    pids = await pids_in(desk.cwd / "pids", 3)
    if how == "cancel":
        task.cancel()
    result = await task
    assert result.is_error
    assert not [pid for pid in pids if alive(pid)]


async def test_a_second_cancel_kills_at_once(desk: Any) -> None:
    """run-3: nothing survives an impatient host."""
    task = asyncio.create_task(desk.call("bash", command=f"({STUBBORN}) & ({STUBBORN}) & wait"))
    pids = await pids_in(desk.cwd / "pids", 2)
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(*pids)


async def test_others_processes_are_left_alone(desk: Any) -> None:
    """§6: only what the command started is ended."""
    mine = await asyncio.create_subprocess_exec("sleep", "60")
    await desk.call("bash", command="sleep 60", timeout=0.3)
    assert mine.returncode is None
    mine.kill()
    await mine.wait()


# -- tool-7, tool-8: output --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (r"a\377b", "a\ufffdb"),
        (r"a\303", "a\ufffd"),
        (r"\342\202x", "\ufffdx"),
        (r"a\000b", "a\ufffdb"),
        (r"\033[31mred\033[0m", "\033[31mred\033[0m"),
        (r"\346\227\245\346\234\254", "日本"),
    ],
)
async def test_output_that_is_not_text_keeps_the_exit_code(desk: Any, printed: str, shown: str) -> None:
    """tool-7: replacement characters, exit code kept."""
    result = await desk.call("bash", command=f"printf '{printed}'; exit 7")
    assert text_of(result.content) == f"{shown}\n[exit code 7]"


async def test_long_output_keeps_head_and_tail_and_the_rest_in_a_private_file(desk: Any) -> None:
    """tool-8: bounded, with a marker; the rest can be had from a file."""
    result = await desk.call("bash", command="seq 1 100000; exit 4")
    text = text_of(result.content)
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("99999\n100000\n[exit code 4]")
    assert len(text) < 3_000
    path = Path(facts(result)["output_file"])
    assert str(path) in text
    assert path.read_text() == "".join(f"{number}\n" for number in range(1, 100_001))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("shift", range(4))
async def test_output_is_cut_at_characters(desk: Any, shift: int) -> None:
    """tool-8: multibyte text at the cut."""
    result = await desk.call("bash", command=f"printf '{'x' * shift}'; for i in $(seq 2000); do printf '日😀'; done")
    text = text_of(result.content)
    assert "\ufffd" not in text
    assert "bytes left out" in text


async def test_a_flood_is_bounded_in_memory_and_on_disk(tmp_path: Path, desk: Any) -> None:
    """tool-8: one line of 200 MB; memory stays bounded, the file too, and it says so."""
    desk.add(ShellPlugin(ShellConfig(max_output=2_000, max_spill=1 << 20, spill_dir=tmp_path / "flood")))
    before = psutil.Process().memory_info().rss
    result = await desk.call("bash", command="head -c 200000000 /dev/zero | tr '\\0' x; echo; echo end", timeout=60)
    assert psutil.Process().memory_info().rss - before < 50 << 20
    text = text_of(result.content)
    assert text.endswith("end")
    assert facts(result)["output_bytes"] == 200_000_005
    assert os.path.getsize(facts(result)["output_file"]) == 1 << 20
    assert f"its first {1 << 20} bytes" in text


async def test_without_a_place_for_the_file_the_command_still_works(tmp_path: Path, desk: Any) -> None:
    """tool-8: an unusable directory costs the middle of the output, no more."""
    (tmp_path / "file").write_text("")
    desk.add(ShellPlugin(ShellConfig(max_output=2_000, spill_dir=tmp_path / "file" / "x")))
    text = await desk.text("bash", command="seq 1 100000")
    assert "could not be kept" in text
    assert text.endswith("100000")


# -- background tasks --------------------------------------------------------------------------------------


async def test_a_background_task_is_read_bit_by_bit(desk: Any) -> None:
    """§6: `bash_output` gives what is new; a character is never cut in two."""
    command = r"printf 'one\346\227'; while [ ! -e go ]; do sleep 0.02; done; printf '\245two'; exit 5"
    started = await desk.call("bash", command=command, background=True)
    task = facts(started)["task"]
    assert (await desk.text("bash_output", task_id=task, wait=10)).startswith("one\n")
    (desk.cwd / "go").touch()
    await asyncio.gather(*desk.spawned)
    text = await desk.text("bash_output", task_id=task, wait=10)
    assert text == f"日two\n[{task}: ended, exit code 5]"
    assert await desk.text("bash_output", task_id=task) == f"(no new output)\n[{task}: ended, exit code 5]"
    assert desk.notes == [f"Background task {task} ended with exit code 5; bash_output has what it printed."]


async def test_what_was_missed_is_said(desk: Any) -> None:
    """§6: a reader who comes late is told how much is left out."""
    started = await desk.call("bash", command="seq 1 100000", background=True)
    await asyncio.gather(*desk.spawned)
    text = await desk.text("bash_output", task_id=facts(started)["task"])
    assert "bytes left out" in text
    assert "100000\n" in text


async def test_killing_what_is_over_is_told_and_does_nothing(desk: Any) -> None:
    """§6: a reported no-op."""
    started = await desk.call("bash", command="true", background=True)
    await asyncio.gather(*desk.spawned)
    result = await desk.call("bash_kill", task_id=facts(started)["task"])
    assert "needs no killing" in text_of(result.content)
    assert not result.is_error


async def test_a_task_belongs_to_its_session(desk: Any, shell: ShellPlugin) -> None:
    """§6: other sessions neither see nor end it."""
    started = await desk.call("bash", command="sleep 60", background=True)
    other = type(desk)(desk.cwd, "other")
    other.add(shell)
    for tool in ("bash_output", "bash_kill"):
        with pytest.raises(ToolError, match="there are none"):
            await other.call(tool, task_id=facts(started)["task"])


async def test_tasks_end_with_their_session(desk: Any, shell: ShellPlugin) -> None:
    """§6: ended on dispose, with what commands left behind, and awaited."""
    first = facts(await desk.call("bash", command=STUBBORN, background=True))
    await pids_in(desk.cwd / "pids", 1)
    left = await desk.call("bash", command="sleep 60 & echo $!")
    await shell.session_flush(desk.session, "turn")
    assert alive(first["pid"])
    await shell.session_flush(desk.session, "dispose")
    assert not alive(first["pid"])
    assert await gone(int(text_of(left.content).split()[0]))
    with pytest.raises(ToolError, match="there are none"):
        await desk.call("bash_output", task_id=first["task"])
    assert desk.notes == []


async def test_unloading_the_plugin_ends_everything(desk: Any, shell: ShellPlugin) -> None:
    """H-7: nothing is left."""
    started = facts(await desk.call("bash", command="setsid sleep 60 & sleep 60", background=True))
    await shell.stop()
    assert not alive(started["pid"])


async def test_the_number_of_background_tasks_is_bounded(desk: Any, tmp_path: Path) -> None:
    """§6: a model that starts servers in a loop is told to stop."""
    plugin = ShellPlugin(ShellConfig(max_tasks=2, grace=0.1, spill_dir=tmp_path / "s3"))
    desk.add(plugin)
    for _ in range(2):
        await desk.call("bash", command="sleep 60", background=True)
    with pytest.raises(ToolError, match="bash_kill"):
        await desk.call("bash", command="sleep 60", background=True)
    await plugin.stop()


async def test_nothing_is_left_open(desk: Any) -> None:
    """Quality: no file handle, no thread, no process."""
    await desk.call("bash", command="true")
    process = psutil.Process()
    before = (process.num_fds(), process.num_threads(), len(process.children(recursive=True)))
    for _ in range(5):
        await desk.call("bash", command="seq 1 10000; (exit 1)")
        await desk.call("bash", command="sleep 60", timeout=0.05)
    assert (process.num_fds(), process.num_threads(), len(process.children(recursive=True))) == before


async def test_the_facts_of_the_tools(shell: ShellPlugin) -> None:
    """T-2: what permission, repair and scheduling read."""
    bash, output, kill = shell.tools()
    assert (bash.read_only, bash.destructive, bash.open_world, bash.parallel) == (False, True, True, False)
    assert (output.read_only, output.repeatable) == (True, True)
    assert kill.read_only is False
    assert signal.SIGTERM
