"""Rows into a pipe: aligned, whole, one line each."""

import io

import pytest

from stoker.brain.domain.lifecycle import JobState
from stoker.cli.display.job_details import job_columns
from stoker.cli.display.table import Column, cell_text, fit, plain_lines, show_table, table_lines
from tests.cli.views import job

COLUMNS: list[Column[tuple[str, int]]] = [
    Column("NAME", lambda row: row[0]),
    Column("N", lambda row: row[1], right=True),
    Column("LAST", lambda row: ""),
]


def lines(*rows: tuple[str, int]) -> list[str]:
    return plain_lines(COLUMNS, [[cell_text(column.cell(row)) for column in COLUMNS] for row in rows])


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    assert lines(("a", 1), ("longer", 100)) == ["NAME      N  LAST", "a         1  -", "longer  100  -"]


def test_wide_letters_keep_the_columns_aligned() -> None:
    assert lines(("训练", 1), ("ab", 2)) == ["NAME  N  LAST", "训练  1  -", "ab    2  -"]


def test_a_row_is_one_line_whatever_it_holds() -> None:
    (_, row) = lines(("a\nb\x1b[2J", 1))
    assert row == "a\\nb\\e[2J  1  -"


def test_nothing_is_cut_into_a_pipe() -> None:
    assert "x" * 500 in lines(("x" * 500, 1))[1]


def test_what_is_not_there_is_a_dash() -> None:
    assert [cell_text(value) for value in (None, "", 0, "a")] == ["-", "-", "0", "a"]


JOBS: list[Column[tuple[str, str, str]]] = [
    Column("ID", lambda row: row[0], right=True),
    Column("NAME", lambda row: row[1], elastic=True),
    Column("REASON", lambda row: row[2], elastic=True),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, columns: str, *rows: tuple[str, str, str]) -> list[str]:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    show_table(JOBS, rows, wide=False)
    return terminal.getvalue().splitlines()


def test_a_long_reason_on_a_narrow_terminal_costs_no_other_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who sees no id can't cancel."""
    (_, row) = drawn(monkeypatch, "40", ("7", "train", "it could not start on node-1: no such program"))
    assert row == " 7  train  it could not start on node-1…"


def test_a_terminal_too_narrow_for_any_shortening_folds_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, row) = drawn(monkeypatch, "20", ("123456", "n" * 30, "r" * 200))
    assert row == "123456  nnnnnnn…  rrrrrrr…"


def test_a_terminal_too_narrow_for_shortened_texts_is_shown_fewer_numbers_and_never_a_folded_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    shown = job(7, name="a-long-name-of-a-job", state=JobState.RUNNING)
    for columns in range(34, 100):
        head, row = table_lines(job_columns(0), [shown], wide=False, room=columns, paint=False)
        assert max(len(head), len(row)) <= columns
        assert {"ID", "NAME", "STATE", "REASON"} <= set(head.split())
    narrow = table_lines(job_columns(0), [shown], wide=False, room=50, paint=False)[0].split()
    assert narrow[-1] == "REASON"
    assert "GPUS" in narrow
    assert "EXIT" not in narrow
    assert "EXIT" in table_lines(job_columns(0), [shown], wide=True, room=50, paint=False)[0], "all were asked for"


STATES: list[Column[str]] = [Column("STATE", str, coloured=True)]


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **environ}.items():
        monkeypatch.setenv(name, value)
    show_table(STATES, ["running", "failed"], wide=False)
    return terminal.getvalue()


def test_a_state_has_its_colour_and_one_that_is_not_known_is_bad_news(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown_on_a_terminal(monkeypatch)
    assert "\x1b[36mrunning\x1b[0m" in said
    assert "\x1b[31mfailed\x1b[0m" in said


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=str)
def test_who_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    assert "\x1b" not in shown_on_a_terminal(monkeypatch, **environ)


def test_into_a_pipe_goes_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(STATES, ["running"], wide=False)
    assert capsys.readouterr().out == "STATE\nrunning\n"


def test_what_fits_is_not_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, row) = drawn(monkeypatch, "200", ("7", "n" * 40, "r" * 100))
    assert row.split() == ["7", "n" * 40, "r" * 100]


def test_on_a_narrow_terminal_only_texts_are_shortened() -> None:
    columns: list[Column[list[str]]] = [
        Column("ID", lambda row: row[0]),
        Column("NAME", lambda row: row[1], elastic=True),
        Column("REASON", lambda row: row[2], elastic=True),
    ]
    cells = [["12345678901", "short", "r" * 60], ["1", "n" * 30, ""]]
    shown = plain_lines(columns, fit(columns, cells, 50))
    assert max(map(len, shown)) <= 50
    assert shown[1].startswith("12345678901  short ")
    assert shown[1].endswith("…")
    assert fit(columns, cells, 200) == cells


def test_a_terminal_too_narrow_for_anything_still_gets_every_row() -> None:
    columns = [Column[list[str]]("ID", lambda row: row[0]), Column[list[str]]("A", lambda row: row[1], elastic=True)]
    assert fit(columns, [["1" * 30, "a" * 30]], 10) == [["1" * 30, "aaaaaaa…"]]
