"""The estimator and the meter of the compaction seam."""

from __future__ import annotations

import pytest

from dsh_core.compaction import HeuristicEstimator, Pressure, PressureMeter
from dsh_core.content import (
    ImageBlock,
    Message,
    Tagged,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    UnknownBlock,
    Usage,
)
from dsh_core.session import Session, SessionHeader
from dsh_core.session.events import (
    AssistantMessageEvent,
    RequestHeaderEvent,
    StepEndEvent,
    StepStartEvent,
    TurnStartEvent,
    UserMessageEvent,
)

ESTIMATOR = HeuristicEstimator()


@pytest.mark.parametrize("text", ["汉" * 4000, "かな" * 2000, "한글" * 2000, "汉字, かな 한글!" * 300])
def test_scripts_without_blanks_count_at_least_six_tenths_a_character(text):
    """C-1: CJK text at 0.6 tokens a character or more."""
    wide = sum(1 for char in text if ord(char) > 0x1000)
    assert ESTIMATOR.text(text) >= 0.6 * wide


def test_plain_text_counts_about_four_characters_a_token():
    """C-1: the same length in ASCII is far less."""
    assert ESTIMATOR.text("a" * 4000) == 1000
    assert ESTIMATOR.text("") == 0
    assert ESTIMATOR.text("汉" * 4000) > 2 * ESTIMATOR.text("a" * 4000)


def test_other_scripts_lie_between():
    """C-1: neither ASCII nor CJK."""
    assert 1000 < ESTIMATOR.text("я" * 4000) < ESTIMATOR.text("汉" * 4000)


def test_an_image_is_a_bounded_constant():
    """C-1: the bytes of an image do not count."""
    assert ESTIMATOR.blocks([ImageBlock("image/png", "A" * 10_000_000)]) == ESTIMATOR.image_tokens


def test_every_kind_of_block_counts():
    """C-1: calls, results and blocks of a newer version count too."""
    for block in (
        ToolCallBlock("1", "read", '{"path": "' + "x" * 400 + '"}'),
        ToolResultBlock("1", "x" * 400),
        UnknownBlock("video", {"type": "video", "data": "x" * 400}),
    ):
        assert ESTIMATOR.blocks([block]) >= 100


def test_pressure_is_a_part_of_the_window():
    """C-1: the ratio is what a threshold is compared with."""
    assert Pressure(80, 100).ratio == 0.8
    assert Pressure(1, 0).ratio > 1


@pytest.fixture
def session():
    found = Session(SessionHeader(id="s", created_at=0))
    found.append(TurnStartEvent(1, Tagged("message")))
    return found


def say(session, text):
    return session.append(UserMessageEvent(f"m{len(session.events)}", text))


def answer(session, text, usage=None):
    step = 1 + sum(1 for event in session.events if event.type == "step/start")
    session.append(StepStartEvent(1, step))
    event = session.append(AssistantMessageEvent(1, step, content=text, usage=usage))
    session.append(StepEndEvent(1, step))
    return event


def test_without_usage_everything_is_estimated(session):
    """C-1: messages, system prompt and tools."""
    say(session, "x" * 400)
    tools = (ToolSchema("read", "d" * 400, {}),)
    bare = PressureMeter().measure(session, 1000)
    full = PressureMeter().measure(session, 1000, system="s" * 400, tools=tools)
    assert 100 <= bare.tokens < 120
    assert full.tokens == bare.tokens + full.overhead
    assert full.overhead >= 200


def test_real_usage_is_the_anchor_and_corrects_the_estimate(session):
    """C-1: the real usage of the last request plus an estimate of what came since."""
    meter = PressureMeter()
    say(session, "x" * 400)
    session.append(RequestHeaderEvent(1, 1, system="sys"))
    answer(session, "y" * 40, Usage(input=5000, output=20, cache_read=1000))
    assert meter.measure(session, 9999, system="sys").tokens == 6020
    say(session, "z" * 400)
    assert meter.measure(session, 9999, system="sys").tokens == 6020 + ESTIMATOR.message([TextBlock("z" * 400)])
    assert meter.measure(session, 9999, system="sys" + "t" * 400).tokens > 6200


def test_a_replacement_makes_the_anchor_void(session):
    """C-1: usage from before the latest compaction says nothing about what is left."""
    meter = PressureMeter()
    first = say(session, "x" * 4000)
    second = answer(session, "y" * 40, Usage(input=5000))
    assert meter.measure(session, 9999).tokens == 5000
    session.append(UserMessageEvent("c", "short"), replace=(first.seq, second.seq), sources=[first.seq, second.seq])
    assert meter.measure(session, 9999).tokens < 20
    answer(session, "y", Usage(input=77))
    assert meter.measure(session, 9999).tokens == 77


def test_measuring_step_by_step_equals_measuring_at_once(session):
    """C-1: what is kept between two measurements changes nothing."""
    meter = PressureMeter()
    for index in range(20):
        say(session, "x" * index * 10)
        if index % 3 == 0:
            answer(session, "y" * index, Usage(input=index * 50) if index % 2 else None)
        assert meter.measure(session, 9999).tokens == PressureMeter().measure(session, 9999).tokens


def test_only_what_is_new_is_estimated(session):
    """C-1: a step costs the same at message 10 and at message 10,000."""

    class Counting(HeuristicEstimator):
        seen = 0

        def text(self, text):
            Counting.seen += 1
            return super().text(text)

    meter = PressureMeter(Counting())
    for _ in range(50):
        say(session, "x")
        meter.measure(session, 9999)
    assert Counting.seen == 50


def test_a_message_costs_more_than_its_text():
    """C-1: the frame of a message counts."""
    message = Message("user", "x" * 400)
    assert ESTIMATOR.message(message.content) > ESTIMATOR.text("x" * 400)
