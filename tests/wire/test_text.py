"""Durations, sizes and priorities, as people type them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from stoker.wire.text import parse_duration, parse_memory_mb, parse_priority


def code_or(read: Callable[[], int]) -> int | str:
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
