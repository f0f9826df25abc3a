"""A history that fails by turns costs no promise, and in peace it says what the log says."""

import pytest

from tests.rig.run import simulate

SEEDS = 4
"""As many each time; `test-heavy` goes on to `SEEDS_HEAVY`."""
SEEDS_HEAVY = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_that_fails_by_turns_harms_nothing_and_is_whole_in_the_end(seed: int) -> None:
    simulate(2_000 + seed, history_fails=True)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS_HEAVY))
def test_it_harms_nothing_with_more_seeds(seed: int) -> None:
    simulate(2_000 + seed, history_fails=True)
