"""A history that fails by turns costs no promise, and in peace it says what the log says."""

import pytest

from tests.rig.run import simulate


@pytest.mark.parametrize("chunk", range(5))
def test_a_history_that_fails_by_turns_harms_nothing_and_is_whole_in_the_end(chunk: int) -> None:
    for seed in range(2_000 + chunk, 2_020, 5):
        simulate(seed, history_fails=True)
