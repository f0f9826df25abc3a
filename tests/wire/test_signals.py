"""Signals by name and number."""

import signal

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.text import parse_signal


@pytest.mark.parametrize("word", ["USR1", "SIGUSR1", "usr1", " sigusr1 ", "10", 10])
def test_a_signal_is_a_name_with_or_without_sig_or_a_number(word: str | int) -> None:
    assert parse_signal(word) == signal.SIGUSR1


def test_every_name_means_what_linux_means_by_it() -> None:
    """Real-time signals too, whose names this system's library counts from 34."""
    for each in signal.Signals:
        assert parse_signal(each.name) == each.value, each
    assert parse_signal("RTMIN+1") == signal.SIGRTMIN + 1
    assert parse_signal("rtmax-1") == signal.SIGRTMAX - 1


@pytest.mark.parametrize(
    "word", ["", "USR3", "0", 0, -1, 65, "65", "-9", "RTMIN+99", "RTMIN-1", "SIG", "9" * 5_000, "\u0669"]
)
def test_what_is_no_signal_is_refused_with_what_to_write(word: str | int) -> None:
    with pytest.raises(StokerError) as caught:
        parse_signal(word)
    assert caught.value.refusal.code == "bad_signal"
    assert "USR1" in caught.value.refusal.hint
    assert len(caught.value.refusal.message) < 100
