"""Never lost, never twice, always ended: whole clusters under random faults, from seeds.

Each seed runs the real control plane and real agents on one virtual clock; `tests.rig.faults` lists what happens to
them and `tests.rig.oracle` what is promised. Invariants are checked at every event, the world whenever a process
starts, liveness once the faults have ended. A seed that fails is kept in `tests/seeds/kept.txt` for ever.
"""

from pathlib import Path

import pytest

from tests.rig.run import simulate

SEEDS, FORGETTING = 12, 6
"""As many each time, the latter with nodes that are forgotten by force; `test-heavy` adds the rest up to `*_HEAVY`, and
`make soak` goes on with others."""
SEEDS_HEAVY, FORGETTING_HEAVY = 500, 60
CHUNKS = 12
KEPT = Path(__file__).parent.parent / "seeds" / "kept.txt"


def _kept() -> list[int]:
    lines = (line.partition("#")[0].strip() for line in KEPT.read_text(encoding="utf-8").splitlines())
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_under_every_kind_of_fault(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        _simulate(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", range(6 * CHUNKS))
def test_every_promise_holds_with_more_seeds(chunk: int) -> None:
    for seed in range(SEEDS + chunk, SEEDS_HEAVY, 6 * CHUNKS):
        _simulate(seed)
    for seed in range(FORGETTING + chunk, FORGETTING_HEAVY, 6 * CHUNKS):
        _simulate(1_000 + seed, forgetting=True)


@pytest.mark.parametrize("chunk", range(CHUNKS // 2))
def test_a_node_forgotten_by_force_loses_no_job_even_when_it_lives(chunk: int) -> None:
    for seed in range(chunk, FORGETTING, CHUNKS // 2):
        _simulate(1_000 + seed, forgetting=True)


@pytest.mark.parametrize("forgetting", [False, True])
@pytest.mark.parametrize("seed", _kept())
def test_a_seed_that_once_failed_stays_mended(seed: int, forgetting: bool) -> None:
    _simulate(seed, forgetting=forgetting)


def test_a_seed_gives_the_same_history_every_time() -> None:
    once, again, another = (simulate(seed, steps=12) for seed in (7, 7, 8))
    assert once == again
    assert once.digest != another.digest


def _simulate(seed: int, *, forgetting: bool = False) -> None:
    try:
        simulate(seed, forgetting=forgetting)
    except BaseException as error:
        flag = " --forgetting" if forgetting else ""
        error.add_note(f"seed {seed}: python -m tests.rig.soak --seed {seed}{flag}")
        raise
