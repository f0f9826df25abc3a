"""Never lost, never twice, always ended: whole clusters under random faults, from seeds.

Each seed runs the real control plane and real agents on one virtual clock, with kill -9 of the control plane at any
point of a commit, of agents, of runners, of machines; partitions, lost answers, repeated messages and taken ports.
Invariants are checked at every event, the world after every step, liveness once the faults have ended. A seed that
fails is added to KEPT for ever, with the date.
"""

import pytest

from tests.rig.run import simulate

SEEDS = 100
CHUNKS = 20
KEPT: tuple[int, ...] = ()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_under_every_kind_of_fault(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}: python -m tests.rig.soak --seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_a_node_forgotten_by_force_loses_no_job_even_when_it_lives(seed: int) -> None:
    simulate(seed, forgetting=True)


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_failed_stays_mended(seed: int) -> None:
    simulate(seed)


def test_a_seed_gives_the_same_history_every_time() -> None:
    assert simulate(7) == simulate(7)
