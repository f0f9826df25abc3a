"""Rules N1 to N3 of `agent/outgoing.py`."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.outgoing import NOTED_MAX, HeartbeatAcks
from stoker.brain.domain.units import Mono


def test_an_answer_counts_from_when_its_beat_was_sent_and_is_for_all_before_it() -> None:
    answers = HeartbeatAcks(Mono(10.0))
    for sequence, at in ((1, 11.0), (2, 12.0), (3, 13.0)):
        answers.sent(sequence, Mono(at))
    assert answers.answered(2) == 12.0
    assert answers.waited_s(Mono(15.0)) == 2.0, "only the third is on its way"


def test_an_answer_that_brings_nothing_newer_tells_nothing() -> None:
    answers = HeartbeatAcks(Mono(10.0))
    answers.sent(1, Mono(11.0))
    assert answers.answered(1) == 11.0
    assert answers.answered(1) is None
    assert answers.answered(0) is None
    assert answers.waited_s(Mono(99.0)) == 0.0


def test_whatever_comes_down_answers_the_inventory_once() -> None:
    answers = HeartbeatAcks(Mono(10.0))
    answers.sent(1, Mono(11.0))
    assert answers.spoken() == 10.0
    assert answers.spoken() is None
    assert answers.answered(1) == 11.0


def test_a_beat_that_was_not_noted_counts_as_the_noted_one_before_it() -> None:
    answers = HeartbeatAcks(Mono(0.0))
    for sequence in range(1, NOTED_MAX + 10):
        answers.sent(sequence, Mono(float(sequence)))
    assert answers.answered(NOTED_MAX + 9) == float(NOTED_MAX - 1)
    answers.sent(NOTED_MAX + 10, Mono(500.0))
    assert answers.answered(NOTED_MAX + 10) == 500.0, "and later ones are noted again"


@given(st.lists(st.one_of(st.none(), st.integers(0, 120)), max_size=200))
def test_no_moment_is_named_that_is_later_than_the_sending_of_an_answered_beat(story: list[int | None]) -> None:
    """None = a beat is sent; a number = all up to it are answered."""
    answers, sequence, now, told = HeartbeatAcks(Mono(0.0)), 0, 0.0, 0.0
    sent_at: dict[int, float] = {}
    for step in story:
        now += 1.0
        if step is None:
            sequence += 1
            sent_at[sequence] = now
            answers.sent(sequence, Mono(now))
        elif step <= sequence:
            at = answers.answered(step)
            if at is not None:
                assert told <= at <= sent_at.get(step, 0.0)
                told = at
