"""Whatever goes wrong: one leads, nothing that was acknowledged is lost, and soon after it ends somebody leads again.

What exactly is promised stands in `sim_world.Oracle`. Runs are shared out over several tests so that each says what it
is about; a broken promise names its setting, which with the commit reproduces it.
"""

import dataclasses
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from stoker.brain.failover.timing import DEFAULT, FAST, Timing
from tests.brain.failover.sim_cluster import Setting
from tests.brain.failover.sim_run import begin, simulate

PAIR: Final = Setting(seed=0)
QUICK: Final = dataclasses.replace(PAIR, hop_max=0.01)
WELL: Final = dataclasses.replace(PAIR, slow=0.0, fickle=0.0)
SILENT: Final = replace(DEFAULT, silence_s=0.0)
"""Nobody is ever heard as active, so that the marker alone decides."""


_SETTINGS: Final = [
    (PAIR, 300),
    (dataclasses.replace(PAIR, timing=FAST), 150),
    (dataclasses.replace(PAIR, nodes=3), 80),
    (dataclasses.replace(PAIR, shared_log=True), 150),
    (dataclasses.replace(PAIR, forced=True), 80),
    (dataclasses.replace(QUICK, timing=SILENT, kinds=("maroon", "pause", "marker_slow")), 80),
]
"""With the number of seeds: half of them each time, and the others with `make test-heavy`."""
_each_setting = pytest.mark.parametrize(
    ("setting", "seeds"),
    _SETTINGS,
    ids=["a pair", "a fast pair", "three", "a shared log", "with people who use force", "leases used to their end"],
)


@_each_setting
def test_one_leads_and_nothing_acknowledged_is_lost(setting: Setting, seeds: int) -> None:
    for seed in range(seeds // 2):
        simulate(dataclasses.replace(setting, seed=seed))


@pytest.mark.heavy
@_each_setting
def test_so_it_is_with_more_seeds(setting: Setting, seeds: int) -> None:
    for seed in range(seeds // 2, seeds):
        simulate(dataclasses.replace(setting, seed=seed))


_TIMINGS: Final = some.builds(
    lambda profile, drift, silence: replace(profile, drift=drift, silence_s=profile.silence_s * silence),
    some.sampled_from([DEFAULT, FAST]),
    some.sampled_from([0.0, 0.001, 0.02, 0.05]),
    some.sampled_from([0.0, 1.0]),
)


@given(
    seed=some.integers(0, 2**32),
    nodes=some.sampled_from([2, 2, 3]),
    timing=_TIMINGS,
    faults=some.integers(1, 20),
    hop_max=some.sampled_from([0.001, 0.01, 0.04]),
    fickle=some.sampled_from([0.0, 0.02, 0.3]),
)
def test_so_it_is_whatever_the_setting(
    seed: int, nodes: int, timing: Timing, faults: int, hop_max: float, fickle: float
) -> None:
    simulate(Setting(seed=seed, nodes=nodes, timing=timing, faults=faults, hop_max=hop_max, fickle=fickle))


def test_nothing_acknowledged_is_lost_even_if_clocks_are_wild() -> None:
    """A lease is then worth little, but whoever leads has promised its log, and nobody else may be named."""
    overlaps = 0
    for seed in range(50):
        world = simulate(
            dataclasses.replace(PAIR, seed=seed, wild=3.0, kinds=("maroon", "crash", "pause", "cut_peers"))
        )
        overlaps += world.oracle.overlaps
    assert overlaps > 0, "the clocks weren't wild enough"


@pytest.mark.parametrize(("timing", "within_s"), [(DEFAULT, 6.0), (FAST, 1.0)], ids=["default", "fast"])
@pytest.mark.parametrize("shared_log", [False, True], ids=["own logs", "a shared log"])
def test_after_a_death_another_leads_within_the_promised_time(
    timing: Timing, within_s: float, shared_log: bool
) -> None:
    for seed in range(30):
        world = begin(dataclasses.replace(WELL, seed=seed, timing=timing, shared_log=shared_log))
        world.run_until((8 + seed / 30) * world.unit)
        (active,) = [node for node in world.nodes if node.holds]
        died_at = world.now
        active.crash()
        world.run_until(died_at + within_s)
        assert [node.name for node in world.nodes if node.holds] == [each.name for each in world.others(active.name)]


def test_after_a_resignation_another_leads_at_once() -> None:
    for seed in range(30):
        world = begin(dataclasses.replace(WELL, seed=seed))
        world.run_until(8 * world.unit)
        (active,) = [node for node in world.nodes if node.holds]
        active.resign()
        world.run_until(world.now + 2 * world.setting.timing.look_s)
        assert [node.name for node in world.nodes if node.holds] == [each.name for each in world.others(active.name)]


def test_a_run_is_the_same_run_each_time() -> None:
    assert simulate(PAIR).story == simulate(PAIR).story


def test_the_simulation_is_not_idle() -> None:
    """Leases end, answers are lost, sets change, records are acknowledged: else all of the above says little."""
    worlds = [simulate(dataclasses.replace(PAIR, seed=seed)) for seed in range(40)]
    story = [line for world in worlds for line in world.story]
    assert sum("lease_ended" in line for line in story) > 10
    assert sum("cuts its log" in line for line in story) > 3
    assert sum(len(world.oracle.led) for world in worlds) > 80
    assert sum(len(world.oracle.acknowledged) for world in worlds) > 1_000
    assert sum(world.oracle.in_doubt for world in worlds) > 8
