"""Durations, sizes, priorities and times to begin at, as people type them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.job import WarnSignal
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from stoker.wire.text import (
    begin_text,
    parse_begin,
    parse_checkpoint,
    parse_duration,
    parse_lost_after,
    parse_memory_mb,
    parse_priority,
    parse_warning,
    warning_text,
)


def code_or(read: Callable[[], int | str]) -> int | str:
    """What was read, or the code of the refusal."""
    try:
        return read()
    except StokerError as fault:
        return fault.refusal.code


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30", 30 * MINUTE_MS),
        ("05:30", 5 * MINUTE_MS + 30 * SECOND_MS),
        ("90:00", 90 * MINUTE_MS),
        ("02:30:15", 2 * HOUR_MS + 30 * MINUTE_MS + 15 * SECOND_MS),
        ("36:00:00", 36 * HOUR_MS),
        ("2-06", 2 * DAY_MS + 6 * HOUR_MS),
        ("2-06:30", 2 * DAY_MS + 6 * HOUR_MS + 30 * MINUTE_MS),
        ("2-06:30:15", 2 * DAY_MS + 6 * HOUR_MS + 30 * MINUTE_MS + 15 * SECOND_MS),
    ],
)
def test_all_six_forms_of_slurm_are_read_as_slurm_reads_them(text: str, ms: int) -> None:
    """Fault 112: MM:SS was read as HH:MM, and D-HH meant no limit."""
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30 * SECOND_MS),
        ("10m", 10 * MINUTE_MS),
        ("2h", 2 * HOUR_MS),
        ("1d", DAY_MS),
        ("1h30m", 90 * MINUTE_MS),
        ("1d2h3m4s", DAY_MS + 2 * HOUR_MS + 3 * MINUTE_MS + 4 * SECOND_MS),
        ("90m", 90 * MINUTE_MS),
        ("2H", 2 * HOUR_MS),
        (" 2h\n", 2 * HOUR_MS),
    ],
)
def test_units_add_up_from_large_to_small(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "0", "0s", "00:00", "0-0", "-5", "-1:00", "+5", "1.5h", "5x", "h", "m30"),
        *("25:99", "1:60:00", "1:00:60", "1-24", "1-00:60", "1-", "-1", ":30", "1:", "1:2:3:4", "30m1h", "1h90m"),
        *("unlimited", "UNLIMITED", "INFINITE", "infinite", "none", "null", "NaN", "inf", "1e3", "10 minutes"),
        *("\u0663\u0660", "1h\x0030m", "9" * 400, "99999-00", "1\n2"),
    ],
)
def test_what_is_not_a_duration_is_refused_and_never_means_unlimited(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_duration(text)
    assert caught.value.refusal.code == "bad_time"
    assert len(caught.value.refusal.message) < 200


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("never", 0), (" Never ", 0), ("0s", 0), ("10", 600_000), ("90s", 90_000), ("1h30m", 5_400_000)],
)
def test_silence_that_is_put_up_with_is_a_duration_or_for_ever(text: str, ms: int) -> None:
    assert parse_lost_after(text) == ms


@pytest.mark.parametrize("text", ["", "-5", "1.5h", "5x", "unlimited", "none", "9" * 400, "99999-00"])
def test_what_is_no_duration_of_silence_is_refused_with_the_word_for_for_ever(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_lost_after(text)
    assert caught.value.refusal.code == "bad_time"
    assert "`never`" in caught.value.refusal.hint


@given(st.text(max_size=12) | st.text(alphabet="0123456789:-dhms ", max_size=12))
def test_any_text_is_a_positive_bounded_duration_or_an_error(text: str) -> None:
    answer = code_or(lambda: parse_duration(text))
    assert answer == "bad_time" or (isinstance(answer, int) and 0 < answer <= 10_000 * DAY_MS)


@given(st.integers(0, 999), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_both_ways_to_write_a_duration_agree(days: int, hours: int, minutes: int, seconds: int) -> None:
    ms = days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS
    if ms:
        assert parse_duration(f"{days}-{hours}:{minutes:02}:{seconds:02}") == ms
        assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == ms


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("16000", 16_000),
        ("16GiB", 16_384),
        ("16G", 16_384),
        ("16g", 16_384),
        ("16GB", 15_259),
        ("512M", 512),
        ("512MB", 489),
        ("1.5T", 1_572_864),
        ("1K", 1),
        ("0", 0),
        ("0.5G", 512),
        ("16 GiB", 16_384),
    ],
)
def test_sizes_are_mib_and_round_up(text: str, mb: int) -> None:
    assert parse_memory_mb(text) == mb


@pytest.mark.parametrize(
    "text", ["", "-1", "-16G", "G", "16X", "16iB", "16b", "1e9", "16G16G", "9" * 15 + "P", "\u0663G", "1,5G"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_memory_mb(text)
    assert caught.value.refusal.code == "bad_size"


@given(st.integers(0, 1 << 24))
def test_a_size_in_gib_is_that_many_mib(gib: int) -> None:
    assert parse_memory_mb(f"{gib}G") == parse_memory_mb(f"{gib}GiB") == parse_memory_mb(str(gib * 1024)) == gib * 1024


@given(st.text(max_size=10) | st.text(alphabet="0123456789.kKmMgGtTpPiIbB -", max_size=10))
def test_any_text_is_a_size_that_is_not_negative_or_an_error(text: str) -> None:
    answer = code_or(lambda: parse_memory_mb(text))
    assert answer == "bad_size" or (isinstance(answer, int) and answer >= 0)


@pytest.mark.parametrize(
    ("value", "priority"),
    [("low", 100), ("normal", 500), ("high", 1000), ("urgent", 2000), ("HIGH", 1000), ("7", 7), ("-7", -7), (7, 7)],
)
def test_a_priority_is_a_number_or_one_of_four_words(value: str | int, priority: int) -> None:
    assert parse_priority(value) == priority


@pytest.mark.parametrize(
    "value", ["", "critical", "1.5", "1e3", "0x10", "\u0663", 2**60, -(2**60), "9" * 16, "9" * 5_000]
)
def test_what_is_not_a_priority_is_refused(value: str | int) -> None:
    with pytest.raises(StokerError) as caught:
        parse_priority(value)
    assert caught.value.refusal.code == "bad_priority"
    assert len(caught.value.refusal.message) < 200
    assert caught.value.refusal.facts["got"] == str(value)[:80], "the refusal shows what was written, and no stand-in"


class Berlin(tzinfo):
    """Near enough, and on every machine: an hour ahead of UTC, in summer two."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=1) + self.dst(at)

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(hours=1 if at is not None and 4 <= at.month <= 10 else 0)

    def tzname(self, at: datetime | None) -> str:
        return "Berlin"


BERLIN = Berlin()
AFTERNOON = datetime(2026, 11, 28, 14, 30, tzinfo=UTC)
"""15:30 in Berlin."""


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("16:00", "2026-11-28T16:00:00+01:00"),
        ("15:30", "2026-11-28T15:30:00+01:00"),
        ("15:29", "2026-11-29T15:29:00+01:00"),
        ("7:05:09", "2026-11-29T07:05:09+01:00"),
        ("noon", "2026-11-29T12:00:00+01:00"),
        ("Midnight", "2026-11-29T00:00:00+01:00"),
        ("tomorrow", "2026-11-29T00:00:00+01:00"),
        ("tomorrow 10:00", "2026-11-29T10:00:00+01:00"),
        ("tomorrowT23:59", "2026-11-29T23:59:00+01:00"),
        ("today 18:00", "2026-11-28T18:00:00+01:00"),
        ("2026-12-01", "2026-12-01T00:00:00+01:00"),
        ("2026-12-01T10:00", "2026-12-01T10:00:00+01:00"),
        ("2026-12-01 noon", "2026-12-01T12:00:00+01:00"),
        ("2026-12-01T10:00Z", "2026-12-01T10:00:00+00:00"),
        ("2027-07-01T10:00", "2027-07-01T10:00:00+02:00"),
        ("now", "now"),
        ("now+2h", "now+2h"),
        (" NOW + 30 minutes", "now + 30 minutes"),
    ],
)
def test_a_time_to_begin_at_is_sent_with_its_zone_and_what_counts_from_now_as_it_is(text: str, sent: str) -> None:
    assert begin_text(text, AFTERNOON, BERLIN) == sent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "is not a time") for text in ("25:99", "24:00", "10:60", "soon", "", "today", "2026-13-01", "now+")),
        *((text, "is not a time") for text in ("now+2x", "now-1h", "16", "noonish", "2026-02-30", "tomorrow soon")),
        *((text, "is over") for text in ("2026-11-27", "2026-11-28", "today 15:29", "2026-11-28T15:30+02:00")),
    ],
)
def test_a_time_that_cannot_be_meant_is_one_error_with_the_forms_that_work(text: str, said: str) -> None:
    with pytest.raises(StokerError) as refused:
        begin_text(text, AFTERNOON, BERLIN)
    told = refused.value.refusal
    assert told.code == "bad_begin"
    assert said in told.message
    assert "now+30minutes" in told.hint


NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        *(("now", 0), ("now+90", 90), ("now+90s", 90), ("now+2h", 7_200), ("now + 30 minutes", 1_800)),
        *(("now+1day", 86_400), ("now+2weeks", 1_209_600), ("now+1h30m", 5_400), ("now+1 hour 30 min", 5_400)),
    ],
)
def test_what_counts_from_now_is_added_to_the_servers_clock(text: str, after_s: int) -> None:
    assert parse_begin(text, NOW_MS) == NOW_MS + after_s * SECOND_MS


def test_a_time_without_a_zone_is_meant_in_utc_by_a_server() -> None:
    assert parse_begin("1970-01-01T01:00:01+01:00", NOW_MS) == SECOND_MS
    assert parse_begin("1970-01-01T00:00:01.5Z", NOW_MS) == 1_500
    assert parse_begin("1970-01-01T00:00:01", NOW_MS) == SECOND_MS
    assert parse_begin("1970-01-02", NOW_MS) == 24 * 3_600 * SECOND_MS
    for text in ("16:00", "25:99", "2026-02-30", "tomorrow", "now+1x", "now+h", ""):
        assert code_or(lambda text=text: parse_begin(text, NOW_MS)) == "bad_begin", text  # type: ignore[misc]  # a default binds the loop's value


@given(st.text())
def test_no_text_breaks_the_reading_of_a_time_to_begin_at(text: str) -> None:
    assert code_or(lambda: begin_text(text, AFTERNOON, BERLIN)) == "bad_begin" or "now" in text.lower()
    assert code_or(lambda: parse_begin(text, NOW_MS)) == "bad_begin" or "now" in text.lower()


@pytest.mark.parametrize(
    ("text", "number", "lead_s"),
    [
        ("USR1@90", 10, 90),
        ("sigusr2@2m", 12, 120),
        ("TERM", 15, 60),
        ("@30", 10, 30),
        ("RTMIN+1 @ 1h", 35, 3_600),
        ("12@5", 12, 5),
    ],
)
def test_t8_a_warning_is_a_signal_and_seconds_before_the_end(text: str, number: int, lead_s: int) -> None:
    warning = parse_warning(text)
    assert warning == WarnSignal(number, lead_s * SECOND_MS)
    assert parse_warning(warning_text(warning)) == warning, "what is shown can be typed"


def test_t8_none_is_no_warning() -> None:
    assert parse_warning("none") is None
    assert warning_text(None) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("KILL@0", "KILL can't be caught"),
        ("STOP@90", "STOP can't be caught"),
        ("9@90", "KILL can't be caught"),
        ("FROB@90", "'FROB' is not a signal"),
        ("USR1@0", "'0' is not how long"),
        ("USR1@-5", "'-5' is not how long"),
        ("USR1@", "'' is not how long"),
        ("USR1@soon", "'soon' is not how long"),
        ("USR1@99999999999", "is not how long"),
    ],
)
def test_t8_what_warns_nobody_is_refused_with_what_would(text: str, message: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_warning(text)
    refusal = caught.value.refusal
    assert (refusal.code, message in refusal.message) == ("bad_signal", True)
    assert "@90" in refusal.hint or "USR1" in refusal.hint


@pytest.mark.parametrize(("text", "ms"), [("10", 10 * MINUTE_MS), ("90s", 90 * SECOND_MS), ("none", 0), ("never", 0)])
def test_a_checkpoint_is_as_often_as_a_duration_says_or_never(text: str, ms: int) -> None:
    assert parse_checkpoint(text) == ms


@pytest.mark.parametrize("text", ["-5", "often", "", "1h90m", "0", "0s", "00"])
def test_what_is_no_period_of_checkpoints_is_refused_with_the_word_for_none(text: str) -> None:
    with pytest.raises(StokerError, match="how often") as caught:
        parse_checkpoint(text)
    assert "`none`" in caught.value.refusal.hint
