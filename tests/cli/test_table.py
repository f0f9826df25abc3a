"""Rows into a pipe: aligned, whole, one line each."""

from stoker.cli.table import Column, cell_text, plain_lines

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
