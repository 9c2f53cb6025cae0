"""`dsh run`: answers, formats, exit codes, where the prompt comes from."""

from __future__ import annotations

import json
import os
import subprocess

import pytest


def test_a_completed_turn_prints_the_answer_alone_and_ends_with_0(dsh, model):
    """§8: stdout carries the answer only."""
    model.says("Hello ", "there.")
    shown = dsh("run", "hi")
    assert (shown.code, shown.out, shown.err) == (0, "Hello there.\n", "")
    assert model.requests[0]["messages"][-1] == {"role": "user", "content": "hi"}


def test_json_is_one_object_with_the_reason_the_answer_and_the_usage(dsh, model):
    """§8: --format json."""
    model.says("Hello.")
    (result,) = dsh("run", "hi", "--format", "json").events
    assert (result["type"], result["text"], result["exit_code"]) == ("result", "Hello.", 0)
    assert result["reason"]["kind"] == "completed"
    assert (result["usage"]["input"], result["usage"]["output"]) == (7, 3)


def test_stream_json_is_the_log_event_by_event_and_then_the_result(dsh, model):
    """§8: --format stream-json."""
    model.says("Hel", "lo.")
    *events, result = dsh("run", "hi", "--format", "stream-json").events
    stored = dsh.log()
    assert events == stored[events[0]["seq"] :]
    assert [each["type"] for each in events][-1] == "turn/end"
    assert (result["type"], result["text"]) == ("result", "Hello.")


def test_progress_goes_to_stderr(dsh, model):
    """§8: calls are shown, and not where the answer is."""
    (dsh.work / "notes.txt").write_text("four words are here")
    model.calls("read", path="notes.txt")
    model.says("done")
    shown = dsh("run", "go")
    assert shown.out == "done\n"
    assert 'read {"path": "notes.txt"}' in shown.err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_turn_that_fails_ends_with_1_and_its_reason(dsh, model, form):
    """cli-2: provider 400."""
    model.fails(400, "this model is out of order")
    shown = dsh("run", "hi", "--format", form)
    assert shown.code == 1
    assert "this model is out of order" in shown.err
    if form == "json":
        (result,) = shown.events
        assert (result["exit_code"], result["reason"]["kind"]) == (1, "error")


def test_retries_that_are_exhausted_end_with_1(dsh, model):
    """cli-2: the provider is overloaded; without retries the first failure counts."""
    model.fails(503, "overloaded")
    shown = dsh("run", "hi", "-p", "no:retry")
    assert (shown.code, shown.out, len(model.requests)) == (1, "", 1)
    assert "overloaded" in shown.err


def test_a_retry_is_announced_on_stderr_and_the_answer_is_whole(dsh, model):
    """M-4 and §8: progress is visible."""
    model.fails(503, "overloaded")
    model.says("Hello.")
    shown = dsh("run", "hi")
    assert (shown.code, shown.out) == (0, "Hello.\n")
    assert "retry 2" in shown.err


def test_an_empty_answer_is_a_failure(dsh, model):
    """cli-2: 0 only for a completed turn with an answer from the model."""
    model.fails(200, "")
    shown = dsh("run", "hi", "-p", "no:retry")
    assert shown.code == 1
    assert "the turn ended with error" in shown.err


def test_the_limit_of_steps_ends_with_4(dsh, model):
    """cli-2: step limit."""
    for _ in range(3):
        model.calls("glob", pattern="*.txt")
    shown = dsh("run", "go", "--max-steps", "2", "--format", "json")
    (result,) = shown.events
    assert (shown.code, result["exit_code"], result["reason"]["kind"]) == (4, 4, "limit")
    assert len(model.requests) == 2


def test_an_answer_cut_off_by_the_model_ends_with_4_and_is_printed(dsh, model):
    """L-7: max-tokens keeps the text."""
    model.says("Once upon", finish="length")
    shown = dsh("run", "go")
    assert (shown.code, shown.out) == (4, "Once upon\n")
    assert "max-tokens" in shown.err


def test_no_model_is_a_usage_error_that_names_the_ways_to_give_one(dsh):
    """M-5: exit code 2, nothing is stored."""
    shown = dsh("run", "hi", env={"DSH_MODEL": None})
    assert (shown.code, shown.out) == (2, "")
    assert all(way in shown.err for way in ("--model", "config.toml", "DSH_MODEL"))
    assert dsh("sessions", "list").out == ""


def test_an_unknown_provider_is_a_usage_error(dsh):
    """M-5: NO_ADAPTER names the provider."""
    shown = dsh("run", "hi", "--model", "nowhere/x")
    assert (shown.code, shown.out) == (2, "")
    assert "nowhere" in shown.err


def test_a_missing_key_names_the_variable_to_set(dsh):
    """§7: a known provider without its key."""
    shown = dsh("run", "hi", "--model", "deepseek/deepseek-chat", env={"DEEPSEEK_API_KEY": None})
    assert shown.code in (1, 2)
    assert "DEEPSEEK_API_KEY" in shown.err


def test_an_endpoint_that_cannot_be_reached_is_one_clear_line(dsh):
    """cli-2: TRANSPORT, with the address."""
    shown = dsh("run", "hi", "-p", "no:retry", env={"DSH_LOCAL_BASE_URL": "http://127.0.0.1:9/v1"})
    assert shown.code == 1
    assert "127.0.0.1:9" in shown.err
    assert len(shown.err.splitlines()) <= 4


@pytest.mark.slow
def test_an_endpoint_that_cannot_be_reached_is_given_up_after_bounded_retries(dsh):
    """M-4: five attempts."""
    shown = dsh("run", "hi", env={"DSH_LOCAL_BASE_URL": "http://127.0.0.1:9/v1"})
    assert shown.code == 1
    assert "retry 5" in shown.err
    assert "retry 6" not in shown.err


def test_the_prompt_comes_from_standard_input(dsh, model):
    """cli-3: real piped text is used."""
    model.says("ok")
    assert dsh("run", given="\ufeffzwölf 🙂\n".encode()).code == 0
    assert model.requests[0]["messages"][-1]["content"] == "zwölf 🙂\n"


def test_prompt_and_standard_input_are_both_used(dsh, model):
    """cli-3: both given."""
    model.says("ok")
    assert dsh("run", "Sum this up", given=b"a b c").code == 0
    assert model.requests[0]["messages"][-1]["content"] == "Sum this up\n\na b c"


def test_an_idle_pipe_does_not_block_a_prompt(dsh, model):
    """cli-3: stdin an open silent pipe."""
    model.says("ok")
    reading, writing = os.pipe()
    try:
        shown = dsh("run", "hi", stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert (shown.code, shown.out) == (0, "ok\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_disturb_a_run(dsh, model, closed):
    """cli-3: stdin closed; the same for the others."""
    model.says("ok")
    script = f'exec "$0" run hi {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, dsh.command], cwd=dsh.work, env=dsh.env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_a_prompt_of_nothing_is_a_usage_error(dsh):
    """cli-3: nothing to do."""
    for arguments, given in (([], b""), (["  "], b" \n")):
        shown = dsh("run", *arguments, given=given)
        assert shown.code == 2
        assert "there is no prompt" in shown.err


def test_standard_input_that_is_too_large_is_refused_with_the_limit(dsh):
    """cli-3: size limited with a message."""
    shown = dsh("run", "hi", given=b"x" * (5 * 1024 * 1024))
    assert shown.code == 2
    assert "4 MiB" in shown.err


def test_a_session_is_created_and_gone_on_with_by_its_name(dsh, model):
    """§8: --session NAME creates or resumes, --resume only resumes."""
    for number, options in enumerate((["--session", "kept"], ["--session", "kept"], ["--resume", "kept"])):
        model.says(f"answer {number}")
        assert dsh("run", f"question {number}", *options).code == 0
    model.says("answer 3")
    assert dsh("run", "question 3", "--resume").code == 0
    said = [message["content"] for message in model.requests[-1]["messages"] if message["role"] != "system"]
    assert said == [text for n in range(3) for text in (f"question {n}", f"answer {n}")] + ["question 3"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume", "missing"], "missing"),
        (["--resume"], "no session"),
        (["--session", "../up"], "../up"),
        (["--session", "a", "--resume", "b"], "exclude each other"),
        (["--format", "xml"], "xml"),
        (["--max-steps", "0"], "0"),
        (["--permission-mode", "yolo"], "yolo"),
        (["-p", "retry"], "no:NAME"),
        (["--nonsense"], "--nonsense"),
        (["-p", "no:permission"], "full-trust"),
    ],
)
def test_wrong_options_are_usage_errors_that_name_what_is_wrong(dsh, model, options, words):
    """§8: exit code 2; the model is never asked."""
    shown = dsh("run", "hi", *options)
    assert (shown.code, shown.out, model.requests) == (2, "", [])
    assert words in shown.err


def test_resume_without_a_prompt_says_what_it_took_for_the_session(dsh):
    """§8: the optional value of --resume swallows what follows."""
    shown = dsh("run", "--resume", "go on")
    assert shown.code == 2
    assert "'go on' as the session" in shown.err


def test_without_a_gate_it_runs_only_by_explicit_wish(dsh, model):
    """§5: full-trust on the command line, not in a file."""
    dsh.write_config('[permissions]\nmode = "full-trust"\n')
    assert dsh("run", "hi", "-p", "no:permission").code == 2
    model.says("ok")
    assert dsh("run", "hi", "-p", "no:permission", "--permission-mode", "full-trust").code == 0


def test_a_store_that_cannot_be_used_is_one_line_before_any_request(dsh, model):
    """log-9: the path and the remedy; without the persistence plugin the run works."""
    dsh.state.mkdir()
    (dsh.state / "sessions").write_text("a file where a directory belongs")
    shown = dsh("run", "hi")
    assert (shown.code, shown.out, model.requests) == (2, "", [])
    assert str(dsh.state) in shown.err
    model.says("ok")
    assert dsh("run", "hi", "-p", "no:persistence-jsonl").out == "ok\n"


def test_no_session_can_be_named_where_nothing_stores_sessions(dsh, model):
    """A-6: an actionable error."""
    shown = dsh("run", "hi", "--session", "a", "-p", "no:persistence-jsonl")
    assert (shown.code, model.requests) == (2, [])
    assert "persistence" in shown.err


def test_a_call_that_nobody_can_approve_is_denied_and_the_run_ends_with_3(dsh, model):
    """perm-5: an immediate deny, the model is told why, stdout stays JSON."""
    model.calls("bash", command="touch made", description="make a file")
    model.says("I may not.")
    reading, writing = os.pipe()
    try:
        shown = dsh("run", "go", "--format", "json", stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    (result,) = shown.events
    assert (shown.code, result["exit_code"], result["text"]) == (3, 3, "I may not.")
    assert result["denied_calls"]
    assert not (dsh.work / "made").exists()
    assert "nobody could be asked" in shown.err
    told = model.requests[1]["messages"][-1]
    assert told["role"] == "tool"
    assert "needs an approval" in told["content"]


def test_what_is_allowed_beforehand_runs_without_a_terminal(dsh, model):
    """perm-5: pre-allowed tools work."""
    dsh.write_config('[permissions]\nallow = ["bash(touch made)"]\n')
    model.calls("bash", command="touch made", description="make a file")
    model.says("Made.")
    assert dsh("run", "go").code == 0
    assert (dsh.work / "made").exists()


def test_a_broken_pipe_ends_quietly_with_141(dsh, model):
    """§8: `dsh run … | head -1`."""
    model.says("x")
    process = dsh.start("run", "hi", "--format", "stream-json")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert err == b""


def test_a_reader_that_leaves_after_a_line_ends_the_run(dsh, model):
    """§8: the turn that nobody reads is stopped, its log is whole."""
    model.hangs("beginning")
    process = dsh.start("run", "hi", "--format", "stream-json", "--session", "piped")
    first = process.stdout.readline()
    process.stdout.close()
    assert json.loads(first)["type"]
    model.waiting.wait(30)
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141
    assert dsh.log("piped")[-1]["type"] == "turn/end"


def test_switching_off_what_is_not_there_is_a_usage_error(dsh, model):
    """H-9: a typing error in -p must not leave the plugin on without a word."""
    shown = dsh("run", "hi", "-p", "no:retyr")
    assert (shown.code, shown.out) == (2, "")
    assert "did you mean 'retry'" in shown.err


def test_a_local_model_without_its_address_is_told_how_to_give_one(dsh):
    """M-5: the message says what to do next."""
    (dsh.config / "config.toml").write_text("", encoding="utf-8")
    shown = dsh("run", "hi", "--model", "local/x", env={"DSH_LOCAL_BASE_URL": None})
    assert (shown.code, shown.out) == (2, "")
    assert "DSH_LOCAL_BASE_URL=" in shown.err
