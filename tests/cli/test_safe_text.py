"""What a stranger wrote must not act on a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.display.safe_text import cut, visible, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\e[31mred"),
        ("two\nlines\r\tand a tab", "two\\nlines\\r\\tand a tab"),
        ("null\x00 bell\x07 del\x7f c1\x9b", "null\\x00 bell\\x07 del\\x7f c1\\x9b"),
        ("turned\u202eround", "turned\\u202eround"),
        ("lone\ud800surrogate", "lone\\ud800surrogate"),
        ("line\u2028separator", "line\\u2028separator"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("text", ["plain", "Größe naïve", "训练", "👩‍🚀 go ✈️", "a|b 'c' \"d\""])
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_a_line_stays_a_line_without_control_characters(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cs", "Zl", "Zp"}


def test_width_counts_cells() -> None:
    assert [width(text) for text in ("abc", "训练", "e\u0301", "😀")] == [3, 4, 1, 2]


@given(st.text(), st.integers(1, 30))
def test_a_cut_text_fits_and_says_that_it_was_cut(text: str, cells: int) -> None:
    kept = cut(visible(text), cells)
    assert width(kept) <= cells
    assert kept == visible(text) or kept.endswith("…")
