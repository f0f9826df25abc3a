"""Two control planes that break a promise are noticed: each bug of `pair_mutants` within a minute of one core.

`python -m tests.rig.soak --mutant NAME` says which seed it takes now.
"""

from functools import partial

import pytest

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.commands import Submit
from tests.rig.pair_cluster import PairCluster
from tests.rig.pair_control import PairControl
from tests.rig.pair_mutants import (
    FOUND,
    Found,
    agents_obey_whoever_lets_them_in,
    an_active_goes_on_when_its_lease_is_over,
    an_epoch_is_led_twice,
    what_follows_behind_another_log_is_kept,
)
from tests.rig.pair_run import simulate_pair, watched
from tests.rig.people import BOB, FOR_EVER_S
from tests.rig.planted import Bugs, cases, must_be_noticed
from tests.rig.process import within
from tests.rig.test_pair_stories import both
from tests.rig.virtual_loop import run_virtual

SEEDS_MAX = 80
SLOW = an_epoch_is_led_twice, what_follows_behind_another_log_is_kept


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(FOUND, *SLOW))
def test_it_is_noticed_when(found: Found) -> None:
    seeds = (found.seed, *(seed for seed in range(SEEDS_MAX) if seed != found.seed))
    run = partial(simulate_pair, shared=found.shared, faults=found.faults)
    must_be_noticed(found.mutant, found.promise, (partial(run, seed) for seed in seeds))


@pytest.mark.parametrize("obedient", [True, False])
def test_an_old_active_is_obeyed_only_by_agents_that_let_anybody_in(
    obedient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control planes are broken in both cases, so that the agents' memory is the last line of defence."""
    bugs = Bugs(monkeypatch)
    an_active_goes_on_when_its_lease_is_over(bugs)
    if obedient:
        agents_obey_whoever_lets_them_in(bugs)
    broken = run_virtual(_with_two_actives)
    assert any(fault.startswith(("P1 ", "P2 ")) for fault in broken)
    assert any(fault.startswith("P7 ") for fault in broken) is obedient


async def _with_two_actives() -> list[str]:
    """A node leaves the old active for the new one, and comes back."""
    cluster = PairCluster(1, 1)
    try:
        with watched(cluster):
            await cluster.start()
            old, new = both(cluster)
            cluster.place.cut.add(old.name)
            for way in ((old.name, new.name), (new.name, old.name)):
                cluster.cut(*way)
            await cluster.until(lambda: new.leads, 20, "nobody took over")
            node = cluster.agents[0].node
            cluster.cut(node, old.name)
            await cluster.clock.sleep(40)
            _submit_to(new)
            await cluster.until(lambda: cluster.pair.obeyed.get(node, 0) == 2, 60, "it obeys nobody")
            cluster.network.mend(node, old.name)
            cluster.cut(node, new.name)
            await cluster.clock.sleep(60)
            _submit_to(old)
            await cluster.clock.sleep(30)
            return cluster.oracle.broken
    finally:
        await cluster.close()


def _submit_to(control: PairControl) -> None:
    spec = JobSpec(name="j", demand=Demand(), command=f"{FOR_EVER_S} 0", priority=500, time_limit_ms=0)
    assert control.life is not None, f"{control.name} doesn't run"
    within(control.process, control.life.control.committer.ask(Submit(by=BOB, specs=(spec,))))
