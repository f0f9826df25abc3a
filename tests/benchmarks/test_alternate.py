"""Figures of two checkouts are read from what the benchmarks print, and compared round by round."""

from pathlib import Path

import pytest

from benchmarks.alternate import BENCHMARKS, compared, differences, interval

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_figures_are_found_in_the_table_that_is_kept_of_a_benchmark(name: str) -> None:
    figures = BENCHMARKS[name].figures((RESULTS / f"{name}.md").read_text())
    assert figures
    assert all(value > 0 for value in figures.values())


def test_a_share_that_rises_is_better_and_a_time_that_rises_is_worse() -> None:
    assert differences([1.0], [1.1], higher_is_better=True) == pytest.approx([0.1])
    assert differences([10.0], [12.5], higher_is_better=False) == pytest.approx([-0.2])


def test_a_loss_is_told_only_where_the_whole_interval_is_beyond_what_is_tolerated() -> None:
    noisy = [{"x": value} for value in (0.8, 1.0, 1.2)]
    (row,) = compared("throughput", [{"x": 1.0}] * 3, noisy)
    assert row.endswith("| yes |")
    (row,) = compared("throughput", [{"x": 1.0}] * 3, [{"x": 0.9}] * 3)
    assert row.endswith("| NO |")


def test_the_interval_of_equal_differences_is_that_difference() -> None:
    assert interval([0.02] * 9) == (0.02, 0.02)
