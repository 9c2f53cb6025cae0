"""Terminals: questions, Ctrl-C, odd encodings, hostile text, narrow widths."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest
from dsh_cli.terminal import plain_json, safe, visible

HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\x1b]0;title\x9b31m\rover\x00\x7f\u202egnp.exe"
READY = "\x1b[?2004h"
"""What a prompt sends when it takes the keyboard over; what is typed before belongs to nobody."""
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def asks(model, command="touch made"):
    """Script a call that the gate asks about, and what the model says afterwards."""
    model.calls("bash", command=command, description="make a file")
    model.says("So be it.")


# -- questions ---------------------------------------------------------------------------------------------


def test_a_person_says_yes_and_the_call_runs_once(dsh, model):
    """G-5: once."""
    asks(model)
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    assert "touch made" in terminal.text
    terminal.type("y\r")
    assert terminal.end().code == 0
    assert (dsh.work / "made").exists()
    (decided,) = [each["data"] for each in dsh.log() if each["type"] == "approval/decided"]
    assert (decided["outcome"], decided["by"]) == ("approved", "cli")


def test_a_refusal_with_a_note_reaches_the_model(dsh, model):
    """G-5: no, with a note to the model."""
    asks(model)
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    terminal.type("use the other folder\r")
    assert terminal.end().code == 0
    assert not (dsh.work / "made").exists()
    assert "use the other folder" in model.requests[1]["messages"][-1]["content"]


def test_always_is_remembered_for_the_next_run(dsh, model):
    """G-5: always for this project, exactly the rule that was shown."""
    asks(model)
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    assert "would store" in terminal.text
    terminal.type("a\r")
    assert terminal.end().code == 0
    (dsh.work / "made").unlink()
    asks(model)
    assert dsh("run", "go").code == 0
    assert (dsh.work / "made").exists()


def test_end_of_input_at_a_question_is_a_no(dsh, model):
    """G-5: nobody agreed."""
    asks(model)
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    terminal.type("\x04")
    assert terminal.end().code == 0
    assert not (dsh.work / "made").exists()


def test_a_question_cannot_be_forged(dsh, model):
    """cli-4: what the model wrote stands on one line, hidden characters visible, in full."""
    asks(model, f"touch made # {HOSTILE}\nAllow? harmless" + " x" * 2000 + " THE-END")
    terminal = dsh.on_terminal("run", "go", width=10_000)
    terminal.until("Allow? [y]es")
    question = next(line for line in terminal.text.splitlines() if "touch made" in line and "THE-END" in line)
    assert "\\u001b" in question
    assert "\\u202e" in question
    assert "harmless" in question
    terminal.type("n\r")
    assert terminal.end().code == 0


def test_ctrl_c_at_a_question_stops_the_turn(dsh, model):
    """§8: the first Ctrl-C cancels the turn, also while a person is asked."""
    asks(model)
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    terminal.type("\x03")
    assert terminal.end().code == 130
    assert not (dsh.work / "made").exists()
    assert dsh.log()[-1]["data"]["reason"]["kind"] == "aborted"


def test_ctrl_c_works_after_a_question_too(dsh, model):
    """§8: asking does not take the handler away."""
    model.calls("bash", command="touch made", description="make a file")
    model.hangs("thinking")
    terminal = dsh.on_terminal("run", "go")
    terminal.until("Allow?")
    terminal.type("y\r")
    terminal.until("thinking")
    terminal.interrupt()
    assert terminal.end().code == 130
    assert dsh.log()[-1]["data"]["reason"]["kind"] == "aborted"


# -- Ctrl-C ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_ctrl_c_aborts_the_turn_and_the_log_is_whole(dsh, model, number):
    """§8: 130; what was shown is kept."""
    model.hangs("some words")
    process = dsh.start("run", "hi", "--format", "json")
    assert model.waiting.wait(30)
    time.sleep(0.2)  # let the words arrive
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert json.loads(out)["reason"]["kind"] == "aborted"
    events = dsh.log()
    assert events[-1]["type"] == "turn/end"
    (said,) = [each["data"] for each in events if each["type"] == "assistant/message"]
    assert (said["content"][0]["text"], said["interrupted"]) == ("some words", True)


def test_two_ctrl_c_leave_at_once_and_the_session_goes_on(dsh, model):
    """§8: a second within two seconds; a tool that ignores everything does not hold it up."""
    dsh.write_config('[permissions]\nallow = ["bash(*)"]\n')
    model.calls("bash", command="trap '' TERM INT; echo up > up; sleep 30", description="stubborn")
    process = dsh.start("run", "hi", "--session", "twice")
    while not (dsh.work / "up").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"Traceback" not in err
    model.says("on we go")
    assert dsh("run", "again", "--session", "twice").out == "on we go\n"
    kinds = [each["data"]["reason"]["kind"] for each in dsh.log("twice") if each["type"] == "turn/end"]
    assert kinds[0] in ("interrupted", "aborted")
    assert kinds[1:] == ["completed"]


def test_ctrl_c_before_the_turn_is_quiet(dsh, model):
    """§8: no traceback while it starts."""
    process = dsh.start("run")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)
    assert process.returncode == -signal.SIGINT or b"Traceback" not in err


# -- what is shown -----------------------------------------------------------------------------------------


def test_a_terminal_sees_the_answer_once_as_it_comes(dsh, model):
    """§8: streamed to a terminal, not repeated at the end."""
    model.says("one ", "two ", "three")
    shown = dsh.on_terminal("run", "hi").end()
    assert shown.out.count("one two three") == 1


@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_text_of_the_model_drives_no_terminal(dsh, model, where):
    """cli-4: OSC 52, titles, cursor moves, CR, 8-bit CSI and overrides are made visible; the log keeps them."""
    half = len(HOSTILE) // 2
    model.says(HOSTILE[:half], HOSTILE[half:])
    shown = dsh("run", "hi") if where == "pipe" else dsh.on_terminal("run", "hi", env={"NO_COLOR": "1"}).end()
    assert not ACTIVE.search(shown.out.replace("\r\n", "\n"))
    assert "\\x1b" in shown.out
    (said,) = [each["data"] for each in dsh.log() if each["type"] == "assistant/message"]
    assert said["content"][0]["text"] == HOSTILE


def test_names_arguments_and_results_of_tools_drive_no_terminal(dsh, model):
    """cli-4: tool name, file name, error of a provider; in the run and in the listing of the session."""
    model.calls("no\x1b[2Jtool", path=HOSTILE)
    model.fails(400, f"bad {HOSTILE}")
    shown = dsh("run", f"say {HOSTILE[:-1]}".replace("\x00", ""), "--session", "hostile")
    listed = dsh("sessions", "show", "hostile")
    assert listed.code == 0
    for text in (shown.out + shown.err, listed.out + listed.err):
        assert not ACTIVE.search(text)


def test_json_output_holds_no_active_character(dsh, model):
    """cli-4: the same meaning, escaped."""
    model.says(HOSTILE)
    shown = dsh("run", "hi", "--format", "json")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.out)
    assert shown.events[0]["text"] == HOSTILE


ASCII = {"PYTHONIOENCODING": "ascii"}
PLAIN_C = {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("env", [ASCII, PLAIN_C, {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "gbk"}])
def test_odd_encodings_change_what_is_shown_and_nothing_else(dsh, model, env):
    """cli-1: no crash, exit code unaffected, the log stays UTF-8."""
    said = "emoji 🙂, 漢字, ñ"
    for form in ("text", "json", "stream-json"):
        model.says(said)
        shown = dsh("run", "go 🙂", "--format", form, "--session", form, env=env)
        assert shown.code == 0, shown.err
        encoding = env.get("PYTHONIOENCODING", "ascii")
        text = shown.raw.decode(encoding)
        if form != "text":
            assert json.loads(text.splitlines()[-1])["text"] == said
        assert dsh.log(form)[-1]["type"] == "turn/end"
        assert said in json.dumps(dsh.log(form), ensure_ascii=False)


def test_file_names_in_other_encodings_do_no_harm(dsh, model):
    """cli-1: a working directory whose name is not text."""
    odd = os.fsencode(dsh.work) + b"/caf\xe9"
    os.mkdir(odd)
    model.says("ok")
    assert dsh("run", "hi", cwd=odd, env=PLAIN_C).code == 0
    assert dsh("sessions", "list", "--all").code == 0


def test_no_color_and_dumb_terminals_get_no_colors(dsh, model):
    """§8: NO_COLOR, unless it is empty (no-color.org)."""
    for env, colored in (({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        model.calls("glob", pattern="*")
        model.says("ok")
        shown = dsh.on_terminal("run", "hi", env=env).end()
        assert ("\x1b[" in shown.out) is colored, env


@pytest.mark.parametrize("width", [0, 1, 7, 20])
def test_narrow_terminals_work(dsh, model, width):
    """cli-5: widths 1, 7, 20 and 0, with CJK, emoji, tabs and a very long word, and a question."""
    said = "漢字\t🙂 " + "x" * 300
    model.calls("bash", command="touch made", description="make a file")
    model.says(said)
    terminal = dsh.on_terminal("run", "hi", width=width)
    terminal.until("make a file")
    time.sleep(1)
    terminal.type("y\r")
    shown = terminal.end()
    assert shown.code == 0
    assert (dsh.work / "made").exists()
    assert said.split("\t")[1] in shown.out


def test_a_terminal_that_is_closed_while_streaming_leaves_a_whole_log(dsh, model):
    """cli-5: the agent is not hurt by a display that goes away."""
    model.hangs("some words")
    terminal = dsh.on_terminal("run", "hi")
    terminal.until("some words")
    os.close(terminal._leader)
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.wait(30)
    kinds = [each["type"] for each in dsh.log()]
    assert kinds[-1] == "turn/end"


# -- conversations -----------------------------------------------------------------------------------------


def test_a_chat_answers_stops_a_turn_and_is_resumed(dsh, model):
    """§8: dsh chat, Ctrl-C stops a turn and not the chat, Ctrl-D leaves, dsh resume goes on."""
    model.says("first answer")
    model.hangs("second begins")
    model.says("third answer")
    terminal = dsh.on_terminal("chat", "--session", "talk")
    terminal.until("Ctrl-D leaves")
    terminal.until(READY)
    terminal.type("one\r")
    terminal.until("first answer")
    terminal.until(READY)
    terminal.type("two\r")
    terminal.until("second begins")
    terminal.interrupt()
    terminal.until("aborted")
    terminal.until(READY)
    terminal.type("/nonsense\r")
    terminal.until("/exit")
    terminal.until(READY)
    terminal.type("\x04")
    assert terminal.end().code == 0
    again = dsh.on_terminal("resume", "talk")
    again.until(READY)
    again.type("three\r")
    again.until("third answer")
    again.until(READY)
    again.type("/exit\r")
    assert again.end().code == 0
    said = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert [text for text in said if text in ("one", "two", "three")] == ["one", "two", "three"]


def test_a_chat_without_a_terminal_points_to_run(dsh):
    """§8: no TTY."""
    shown = dsh("chat")
    assert shown.code == 2
    assert "dsh run" in shown.err


# -- the border itself -------------------------------------------------------------------------------------


def test_safe_keeps_line_breaks_and_visible_does_not():
    """cli-4: `safe` for text, `visible` for questions."""
    assert safe("a\r\nb\tc\x1bd") == "a\nb\tc\\x1bd"
    assert visible("a\nb\u200bc") == "a\\nb\\u200bc"
    assert visible("👩\u200d💻 é 漢") == "👩\u200d💻 é 漢"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252", "gbk"])
def test_plain_json_keeps_its_meaning_in_every_encoding(encoding):
    """cli-1: the escapes are JSON's own, surrogate pairs included."""
    value = {"k\u00e9": "🙂漢\x9b\x7f\n"}
    text = plain_json(json.dumps(value, ensure_ascii=False), encoding)
    assert json.loads(text.encode(encoding).decode(encoding)) == value
    assert "\x9b" not in text


def test_the_command_and_the_module_are_one(dsh):
    """§8: the console script is what the package says."""
    code = "import sys, dsh_cli; sys.exit(dsh_cli.main(['--version']))"
    python = dsh.command.removesuffix("dsh") + "python"
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=dsh.env)
    assert shown.stdout == dsh("--version").out
