"""Moments of people who look back: T6 of `wire.text`."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.units import DAY_MS, HOUR_MS
from stoker.wire.text import parse_timestamp, timestamp_text

NOW = 1_800_000_000_000
BERLIN = timezone(timedelta(hours=1))


def ms(*parts: int, zone: timezone = UTC) -> int:
    return round(datetime(*parts, tzinfo=zone).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", NOW),
        (" NOW ", NOW),
        ("7d", NOW - 7 * DAY_MS),
        ("36h", NOW - 36 * HOUR_MS),
        ("1d12h", NOW - 36 * HOUR_MS),
        ("90s", NOW - 90_000),
        ("2026-12-01", ms(2026, 12, 1)),
        ("2026-12-01T10:30", ms(2026, 12, 1, 10, 30)),
        ("2026-12-01 10:30:15", ms(2026, 12, 1, 10, 30, 15)),
        ("2026-12-01T10:30:15.250Z", ms(2026, 12, 1, 10, 30, 15) + 250),
        ("2026-12-01T10:30+01:00", ms(2026, 12, 1, 9, 30)),
        ("9000d", NOW - 9_000 * DAY_MS),
        ("1970-01-01", 1),
        ("0001-01-01", 1),
    ],
)
def test_m1_each_form_is_read(text: str, at: int) -> None:
    assert parse_timestamp(text, NOW) == at


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "yesterday", "7", "7x", "d", "-7d", "7d ago", "25:99", "2026-13-01", "2026-12-32", "1h1d"),
        *("2026-12-01T25:00", "99999999999999d", "nowish", "\x00", "7" * 5_000, "\N{DEVANAGARI DIGIT SEVEN}d"),
    ],
)
def test_m3_what_cannot_be_read_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_timestamp(timestamp_text(text, BERLIN), NOW)
    assert refused.value.refusal.code == "bad_moment"
    assert "7d" in refused.value.refusal.hint
    assert len(refused.value.refusal.message) < 120
    with pytest.raises(StokerError, match="is not a moment"):
        parse_timestamp(text, NOW)


def test_m2_a_wall_clocks_time_is_sent_with_its_zone_and_what_is_counted_as_it_is() -> None:
    assert parse_timestamp(timestamp_text("2026-12-01T10:30", BERLIN), NOW) == ms(2026, 12, 1, 9, 30)
    assert parse_timestamp(timestamp_text("2026-12-01", BERLIN), NOW) == ms(2026, 11, 30, 23)
    assert parse_timestamp(timestamp_text("2026-12-01T10:30Z", BERLIN), NOW) == ms(2026, 12, 1, 10, 30)
    assert (timestamp_text("7d", BERLIN), timestamp_text("now", BERLIN)) == ("7d", "now")


@given(st.text(max_size=30))
def test_m3_whatever_the_text_is_the_answer_is_a_moment_or_a_refusal(text: str) -> None:
    with suppress(StokerError):
        assert parse_timestamp(text, NOW) >= 1
        assert parse_timestamp(timestamp_text(text, BERLIN), NOW) >= 1
