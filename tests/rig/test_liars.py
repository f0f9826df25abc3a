"""Among agents and control planes that lie, all others keep every promise; and the rig notices when they don't."""

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import pytest

from stoker.agent.daemon import Daemon
from stoker.agent.ports import LinkSession
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Task
from stoker.brain.domain.node import Inventory
from stoker.brain.state.admit import job as admit_job
from stoker.brain.state.admit import node as admit_node
from stoker.brain.state.cluster import ClusterState
from tests.rig.liars import simulate_among_liars
from tests.rig.planted import Bugs, Plant, cases, must_be_noticed

SEEDS, SEEDS_HEAVY, CHUNKS = 4, 80, 4
"""As many each time; `test-heavy` adds the rest."""
SEEDS_MAX: Final = 60


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_among_liars(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        _simulate(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", range(8 * CHUNKS))
def test_every_promise_holds_among_liars_with_more_seeds(chunk: int) -> None:
    for seed in range(SEEDS + chunk, SEEDS_HEAVY, 8 * CHUNKS):
        _simulate(seed)


def _simulate(seed: int) -> None:
    try:
        simulate_among_liars(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: python -m tests.rig.soak --seed {seed} --kind lying")
        raise


def a_node_ends_tasks_of_others(bugs: Bugs) -> None:
    def open_task(state: ClusterState, key: TaskKey, node: NodeName) -> Task | None:
        job = state.jobs.get(key.job)
        attempt = job.live_attempt if job else None
        if attempt is None or attempt.number != key.attempt or not 0 <= key.rank < len(attempt.tasks):
            return None
        return attempt.tasks[key.rank] if attempt.tasks[key.rank].end is None else None

    bugs.setattr(admit_job, "_open_task", open_task)


def a_node_offers_gpus_of_others(bugs: Bugs) -> None:
    real = admit_node._inventory_fault

    def fault(state: ClusterState, name: NodeName, inventory: Inventory) -> object:
        said = real(state, name, inventory)
        return None if said is not None and said.code == "gpu_claimed" else said

    bugs.setattr(admit_node, "_inventory_fault", fault)


def a_control_plane_whose_epoch_is_over_is_obeyed(bugs: Bugs) -> None:
    real = Daemon._may_obey

    async def may_obey(daemon: Daemon, session: LinkSession) -> bool:
        await real(daemon, session)
        return True

    bugs.setattr(Daemon, "_may_obey", may_obey)


class Found(NamedTuple):
    plant: Plant
    promise: str
    first: int = 0
    """The seed to begin with: it noticed when this was written."""


FOUND: Final = (
    Found(a_node_ends_tasks_of_others, "O8 |O5 "),
    Found(a_node_offers_gpus_of_others, "O6 |O3 ", 3),
    Found(a_control_plane_whose_epoch_is_over_is_obeyed, "O10 |O2 ", 1),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(FOUND))
def test_it_is_noticed_when(found: Found) -> None:
    must_be_noticed(found.plant, found.promise, _histories(found.first))


def _histories(first: int) -> "Iterator[partial[object]]":
    return (partial(simulate_among_liars, seed) for seed in (first, *range(SEEDS_MAX)))
