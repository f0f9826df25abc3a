"""Two control planes and their nodes under random faults, from seeds: the promises of `pair_oracle` hold in each.

`make soak` goes on with other seeds for as long as one likes; one that fails is kept in `tests/seeds/kept_pairs.txt`.
"""

from pathlib import Path

import pytest

from tests.rig.pair_run import simulate_pair

OWN, SHARED, FAST, MANY = 4, 2, 1, 1
"""Seeds with a log for each, with one log for both, with the fast profile, and with twenty nodes: as many each time;
`test-heavy` adds the rest up to `*_HEAVY`."""
OWN_HEAVY, SHARED_HEAVY, FAST_HEAVY, MANY_HEAVY = 36, 18, 6, 6
CHUNKS = 4
KEPT = Path(__file__).parent.parent / "seeds" / "kept_pairs.txt"


def _kept() -> list[tuple[int, str, list[int]]]:
    lines = (line.partition("#")[0].split() for line in KEPT.read_text(encoding="utf-8").splitlines())
    return [(int(seed), kind, [int(size) for size in sizes]) for seed, kind, *sizes in filter(None, lines)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_with_a_log_for_each_every_promise_holds_under_every_kind_of_fault(chunk: int) -> None:
    for seed in range(chunk, OWN, CHUNKS):
        _simulate(seed, "pair")


@pytest.mark.parametrize("chunk", range(CHUNKS // 2))
def test_with_one_log_for_both_every_promise_holds_under_every_kind_of_fault(chunk: int) -> None:
    for seed in range(chunk, SHARED, CHUNKS // 2):
        _simulate(seed, "shared")


@pytest.mark.parametrize("seed", range(FAST))
def test_with_the_fast_profile_they_hold_too(seed: int) -> None:
    _simulate(seed, "fast", steps=15)


@pytest.mark.parametrize("seed", range(MANY))
def test_with_twenty_nodes_they_hold_too(seed: int) -> None:
    _simulate(2_000 + seed, "pair", nodes=20)


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", range(2 * CHUNKS))
def test_every_promise_holds_with_more_seeds(chunk: int) -> None:
    for seed in range(OWN + chunk, OWN_HEAVY, 2 * CHUNKS):
        _simulate(seed, "pair")
    for seed in range(SHARED + chunk, SHARED_HEAVY, 2 * CHUNKS):
        _simulate(seed, "shared")
    for seed in range(chunk, FAST_HEAVY, 2 * CHUNKS):
        _simulate(seed, "fast")
    for seed in range(MANY + chunk, MANY_HEAVY, 2 * CHUNKS):
        _simulate(2_000 + seed, "pair", nodes=20)


@pytest.mark.parametrize(("seed", "kind", "sizes"), _kept())
def test_a_seed_that_once_failed_stays_mended(seed: int, kind: str, sizes: list[int]) -> None:
    if (kind, sizes) != ("pair", []) or seed >= OWN:  # those below run above
        _simulate(seed, kind, *sizes)


def test_a_seed_gives_the_same_history_every_time() -> None:
    once, again, another = (simulate_pair(seed, steps=12) for seed in (7, 7, 8))
    assert once == again
    assert once.digest != another.digest


def _simulate(seed: int, kind: str, nodes: int = 3, steps: int = 30) -> None:
    profile = "fast" if kind == "fast" else "default"
    try:
        simulate_pair(seed, nodes=nodes, steps=steps, shared=kind == "shared", profile=profile)
    except BaseException as error:
        sizes = f"--nodes {nodes} --steps {steps}"
        error.add_note(f"seed {seed}: python -m tests.rig.soak --seed {seed} --kind {kind} {sizes}")
        raise
