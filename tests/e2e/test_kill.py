"""
Kill -9 at random points: whatever an agent was doing, its session opens, nothing accepted is lost, nothing ran
twice behind anybody's back, and the next prompt works.

`DSH_KILLS` says how many kills there are; the same seed gives the same work, but never the same point.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e.kill_worker import Store

import dsh_core as dsh
from dsh_core.session import events as ev
from dsh_core.session import is_balanced
from dsh_core.testing import ScriptedAdapter, ScriptedPlugin, invariants, text

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).with_name("kill_worker.py")
SESSIONS = 8
KILLS = int(os.environ.get("DSH_KILLS", "40"))


def kill_at_random(room: Path, seed: str, chance: random.Random) -> None:
    """Let the worker work for a random while and kill it."""
    command = [sys.executable, str(WORKER), str(room), "endless", seed]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    ready = process.stdout.readline()
    try:
        process.wait(chance.choice([0.02, 0.2, 0.8]) * chance.random())
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert (ready, process.returncode) == (b"READY\n", -signal.SIGKILL), err.decode()
    assert b"Traceback" not in err, err.decode()


def lines(path: Path) -> list[str]:
    """What the worker noted."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def stored_bytes(room: Path) -> dict[str, bytes]:
    """Every file of the store."""
    return {str(path): path.read_bytes() for path in sorted(room.rglob("*.jsonl"))}


def opened(room: Path) -> Any:
    """The session, opened as the next process would."""
    plugins = [Store(room), ScriptedPlugin(ScriptedAdapter([text("fine")] * 5)), invariants]
    return dsh.open("endless", model="scripted/next", plugins=plugins, autoload=False)


def check_nothing_lost(agent: Any, room: Path) -> None:
    """Every message whose `receipt.stored` returned is in the log or pending, once."""
    told = Counter(
        event.data.message_id
        for event in agent.session.events
        if isinstance(event.data, ev.UserMessageEvent | ev.SteeringMessageEvent | ev.PromptBlockedEvent)
        and event.data.message_id is not None
    )
    pending = Counter(message.id for message in agent.pending)
    missing = [each for each in lines(room / "accepted") if told[each] + pending[each] != 1]
    assert missing == []
    assert max((told + pending).values(), default=1) == 1


def check_bodies(session: Any, room: Path) -> None:
    """No body ran twice; whichever began is in the log as a call that may have run, approved if it was asked."""
    ran = lines(room / "ran")
    assert [key for key, times in Counter(ran).items() if times > 1] == []
    called = {event.data.call_id: event.data for event in session.events if isinstance(event.data, ev.ToolCallEvent)}
    results = {event.data.call_id: event.data for event in session.events if isinstance(event.data, ev.ToolResultEvent)}
    granted = {
        event.data.call_id
        for event in session.events
        if isinstance(event.data, ev.ApprovalDecidedEvent) and event.data.outcome == "approved"
    }
    for key in ran:
        call_id = key.removeprefix(f"{session.id}:")
        assert call_id in called, f"{call_id} ran and the log does not know it"
        error = results[call_id].error
        assert error is None or error.code == "INTERRUPTED", f"{call_id} ran and the log says {error}"
        assert called[call_id].name != "careful" or call_id in granted
    assert set(called) <= set(results)


def check_log(session: Any) -> None:
    """Whole: contiguous, balanced, every turn ended."""
    assert [event.seq for event in session.events] == list(range(len(session.events)))
    assert is_balanced(session)
    assert not session.turn_open
    kinds = Counter(type(event.data) for event in session.events)
    assert kinds[ev.TurnStartEvent] == kinds[ev.TurnEndEvent]
    assert kinds[ev.StepStartEvent] == kinds[ev.StepEndEvent]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(SESSIONS))
async def test_a_session_survives_kills_at_random_points(number, tmp_path):
    """P-1, P-3, A-2, L-10: killed again and again, in chats, calls, questions, steering and recovery itself."""
    chance = random.Random(number)
    for kill in range(max(1, KILLS // SESSIONS)):
        kill_at_random(tmp_path, f"{number}-{kill}", chance)
        async with opened(tmp_path) as chat:
            check_log(chat.agent.session)
            check_nothing_lost(chat.agent, tmp_path)
            check_bodies(chat.agent.session, tmp_path)
        before = stored_bytes(tmp_path)
        async with opened(tmp_path) as chat:
            assert stored_bytes(tmp_path) == before, "recovery is not idempotent"
            if kill % 2:
                result = await chat.ask("and now?")
                assert (result.text, result.reason.kind) == ("fine", "completed")
                assert not chat.agent.pending
                check_nothing_lost(chat.agent, tmp_path)
