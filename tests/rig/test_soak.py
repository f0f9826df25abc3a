"""Soaks follow each other: the table of one says where the next begins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig.run import Report, simulate
from tests.rig.soak import FIRST, Options, read_tallies, soak


def brief(ends_at: int, fault: BaseException) -> Callable[[int, Options], Report]:
    """Runs of a single control plane that are over soon; that of one seed ends otherwise."""

    def run(seed: int, options: Options) -> Report:
        assert options.kind == "single"
        if seed == ends_at:
            raise fault
        return simulate(seed, steps=1)

    return run


def test_a_soak_goes_on_where_the_last_one_was_interrupted(tmp_path: Path) -> None:
    table = tmp_path / "soak.md"
    with pytest.raises(KeyboardInterrupt):
        soak(1, ("single",), table, brief(FIRST + 2, KeyboardInterrupt()))
    first = read_tallies(table)["single"]
    assert (first.next_seed, first.seeds, first.violations) == (FIRST + 2, 2, 0)
    with pytest.raises(KeyboardInterrupt):
        soak(1, ("single",), table, brief(FIRST + 3, KeyboardInterrupt()))
    second = read_tallies(table)["single"]
    assert (second.next_seed, second.seeds) == (FIRST + 3, 3)
    assert second.simulated_h > first.simulated_h > 0
    assert second.events > first.events > 0
    assert f"{second.simulated_h:.1f} so far, with 0 violations" in table.read_text()


def test_a_seed_that_breaks_a_promise_is_counted_and_named_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "soak.md"
    with pytest.raises(AssertionError, match="O1 "):
        soak(1, ("single",), table, brief(FIRST, AssertionError("O1 job 1 was acknowledged and is lost")))
    tally = read_tallies(table)["single"]
    assert (tally.next_seed, tally.seeds, tally.violations) == (FIRST + 1, 0, 1)
    assert f"python -m tests.rig.soak --seed {FIRST} --kind single" in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    table = tmp_path / "soak.md"
    table.write_text("| single | many | 1 | 2 | 3 | 4 | x |\n")
    with pytest.raises(ValueError, match="is no row of a soak"):
        soak(1, ("single",), table)
    assert table.read_text() == "| single | many | 1 | 2 | 3 | 4 | x |\n"
