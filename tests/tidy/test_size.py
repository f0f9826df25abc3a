"""Rule 6: files of at most 500 lines, functions of at most 60, and a ratchet that only falls."""

from tests.tidy.caught import caught_in
from tools.tidy_rules.size import RATCHET, nothing_outgrows_the_ratchet

LONG_FILE = "x = 1\n" * 501
LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 60


def test_a_file_of_501_lines_is_caught() -> None:
    assert caught_in(nothing_outgrows_the_ratchet, {"src/a.py": LONG_FILE}) == [
        "1: src/a.py has 501 lines, 500 are allowed: split it by theme"
    ]


def test_a_function_of_61_lines_is_caught() -> None:
    assert caught_in(nothing_outgrows_the_ratchet, {"src/a.py": LONG_FUNCTION}) == [
        "1: src/a.py::long has 61 lines, 60 are allowed: split it by theme"
    ]


def test_a_file_of_500_lines_with_a_function_of_60_passes() -> None:
    text = "x = 1\n" * 440 + LONG_FUNCTION.removesuffix("    x = 1\n")
    assert caught_in(nothing_outgrows_the_ratchet, {"src/a.py": text}) == []


def test_generated_code_may_be_as_long_as_it_likes() -> None:
    assert caught_in(nothing_outgrows_the_ratchet, {"src/stoker/wire/gen/agent_pb2.py": LONG_FILE}) == []


def test_the_ratchet_forgives_what_it_lists_and_not_one_line_more() -> None:
    files = {"src/a.py": LONG_FILE, RATCHET: "# why\nsrc/a.py 501\n"}
    assert caught_in(nothing_outgrows_the_ratchet, files) == []
    files["src/a.py"] += "x = 1\n"
    assert caught_in(nothing_outgrows_the_ratchet, files) == [
        "1: src/a.py has 502 lines, 501 are allowed: split it by theme"
    ]


def test_a_number_of_the_ratchet_must_fall_with_its_file() -> None:
    files = {"src/a.py": LONG_FILE, RATCHET: "src/a.py 600\n"}
    assert caught_in(nothing_outgrows_the_ratchet, files) == [
        "1: src/a.py fell to 501 lines: lower its number from 600"
    ]


def test_a_line_of_the_ratchet_that_forgives_nothing_must_go() -> None:
    files = {"src/a.py": "x = 1\n", RATCHET: "src/a.py 600\nsrc/gone.py::f 70\n"}
    assert caught_in(nothing_outgrows_the_ratchet, files) == [
        "1: src/a.py needs no forgiveness any more: delete its line",
        "1: src/gone.py::f needs no forgiveness any more: delete its line",
    ]
