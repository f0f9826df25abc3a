"""Rules M1 to M4 and M6 of `tools/mutants.py`."""

import re
from pathlib import Path

import pytest

from tools import mutants
from tools.mutant_places import PACKAGE, Places, drawn, places

CODE = b'''"""A docstring with 1 and True."""
from typing import Final
BOUND_MAX: Final = 17
def find(rows: "list[int] | None", *, first: int = 0) -> "int | None":
    """And one more."""
    assert first >= 0, f"{first} < 0"
    log.warning("found", rows=rows)
    if first < 3 and rows:
        rows.sort(key=len, reverse=True)
        return rows[first] + 1
    return None
'''


def test_m2_every_kind_of_change_is_made_and_none_that_no_test_could_find() -> None:
    made = {(each.kind, each.line, each.after) for each in Places(f"{PACKAGE}x.py", CODE).mutants}
    assert made == {
        ("number changed", 4, "(1)"),
        ("negated", 8, "(not (first < 3 and rows))"),
        ("and for or", 8, "(first < 3 or rows)"),
        ("comparison changed", 8, "(first <= 3)"),
        ("number changed", 8, "(4)"),
        ("statement left out", 9, "pass"),
        ("argument reverse left out", 9, "(rows.sort(key=len))"),
        ("truth changed", 9, "False"),
        ("answer changed", 10, "return None"),
        ("other sum", 10, "(rows[first] - 1)"),
        ("number changed", 10, "(2)"),
    }


def test_a_mutant_differs_from_the_code_in_one_place_and_can_be_read() -> None:
    for each in Places(f"{PACKAGE}x.py", CODE).mutants:
        changed = each.applied(CODE)
        compile(changed, "x.py", "exec")
        assert changed != CODE
        assert changed.startswith(CODE[: each.start])
        assert changed.endswith(CODE[each.end :])


def test_m1_a_seed_draws_the_same_again_and_every_room_has_some() -> None:
    found = places(mutants.ROOT, "agent/")
    once = drawn(found, 7, 20)
    assert drawn(found, 7, 20) == once
    assert len(set(once)) == 20
    assert {each.room for each in once} == {each.room for each in found} == {"agent", "agent/runner"}
    assert drawn(found, 8, 20) != once


def test_m1_code_that_moved_has_the_same_mutants_under_the_same_names() -> None:
    before, after = (Places(f"{PACKAGE}x.py", code).mutants for code in (CODE, b"import log\n\n" + CODE))
    assert [each.name for each in after] == [each.name for each in before]
    assert [each.line for each in after] == [each.line + 2 for each in before]
    assert len({each.name for each in before}) == len(before)
    assert [each.name for each in drawn(after, 7, 3)] == [each.name for each in drawn(before, 7, 3)]


@pytest.mark.heavy
def test_m3_the_tests_that_say_most_about_the_changed_code_are_tried_first() -> None:
    tests = mutants.Tests()
    (mutant,) = (
        each for each in places(mutants.ROOT, "agent/runner/journal.py") if each.before == "os.fdatasync(self._fd)"
    )
    single, files = tests.nearest(mutant)
    assert files[0] == "tests/agent/runner/test_journal.py"
    assert all(each.startswith(f"{files[0]}::test_") for each in single[:5])
    assert "tests/real/test_runner_life.py" in tests.real(mutant)


def test_m6_a_verdict_that_the_table_has_is_kept_and_what_is_equivalent_is_not_counted(tmp_path: Path) -> None:
    page = tmp_path / "mutants.md"
    page.write_text("Prose.\n\n")
    killed, lives, same, unknown = Places(f"{PACKAGE}x.py", CODE).mutants[:4]
    verdicts = [
        mutants.Verdict(killed, "killed", "tests/test_x.py::test_y[a: b]"),
        mutants.Verdict(lives, "lives", mutants.NOT_REAL),
        mutants.Verdict(same, "equivalent", "nobody reads it: it is told twice"),
    ]
    mutants.write(page, verdicts)
    assert list(mutants.known(page, [killed, lives, same, unknown]).values()) == [verdicts[1], verdicts[2], verdicts[0]]
    assert mutants.share_killed(verdicts) == 0.5
    mutants.write(page, verdicts[:1])
    assert page.read_text().startswith("Prose.\n")
    assert list(mutants.known(page, [killed, lives])) == [killed]


@pytest.mark.real
@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_m4_a_mutant_of_what_a_test_holds_dies_and_the_tree_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in (mutants.ROOT / PACKAGE / "agent").glob("*.py")}
    where = ("--only", "agent/backoff.py", "--table", str(tmp_path / "table.md"))
    mutants.main([*where, "--seed", "1", "--count", "2", "--quick"])
    said = capsys.readouterr()
    assert re.search(r"^\| all \| 2 \| [12] ", (tmp_path / "table.md").read_text(), re.MULTILINE), said.out + said.err
    assert "tests/agent/test_backoff.py::test_" in said.err
    assert {path: path.read_bytes() for path in (mutants.ROOT / PACKAGE / "agent").glob("*.py")} == before
