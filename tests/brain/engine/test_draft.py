"""A draft speculates without touching the view, and gives back exactly what it took."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Free, Inventory, Node, free_on
from stoker.brain.domain.where import ANYWHERE
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import DemandCache
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import Search
from stoker.brain.engine.gang import fit_gang
from stoker.brain.state.view import GpuKinds
from tests.builders import NOW, Cluster, cluster, job, node, placement, running_on


def _by_free(draft: Draft) -> dict[GpuKinds, dict[int, list[NodeName]]]:
    by_free = CandidateNodes(draft, _TWO.admitted(ANYWHERE)).by_free()
    return {kinds: {count: list(names) for count, names in by_count.items()} for kinds, by_count in by_free.items()}


class _OneIndex(Cluster):
    """A cluster whose `by_free` is one object, as in the product, so that a change to it would be seen."""

    def __init__(self, of: Cluster) -> None:
        super().__init__(of.nodes.values(), of.jobs.values())
        self._kept = super().by_free

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        return self._kept


_TWO = cluster(node("a", gpus=4), node("b", gpus=4), job(1, gpus=2))
_KINDS = next(iter(_TWO.by_free))


def test_what_is_taken_is_gone_from_the_draft_and_still_in_the_view() -> None:
    view = _OneIndex(_TWO)
    draft = Draft(view)
    draft.take(placement(0, _TWO.job(next(iter(_TWO.jobs))), "a", [0, 1]))
    assert [gpu.index for gpu in draft.free[NodeName("a")].gpus] == [2, 3]
    assert _by_free(draft) == {_KINDS: {4: ["b"], 2: ["a"]}}
    assert view.by_free == {_KINDS: {4: ["a", "b"]}}
    assert len(view.free[NodeName("a")].gpus) == 4


def test_rollback_restores_free_gpus_candidate_nodes_and_ports() -> None:
    draft = Draft(_TWO)
    waiting = job(1, gpus=2)
    draft.take(placement(0, waiting, "a", [0, 1]))
    draft.take_port("a.example", 20_000)
    kept = draft.free[NodeName("a")], _by_free(draft)
    mark = draft.checkpoint()
    draft.take(placement(0, waiting, "a", [2, 3]))
    draft.take(placement(0, waiting, "b", [0, 1]))
    draft.take_port("b.example", 20_000)
    draft.rollback(mark)
    assert (draft.free[NodeName("a")], _by_free(draft)) == kept
    assert 20_000 in draft.ports_in_use("a.example")[1]
    assert 20_000 not in draft.ports_in_use("b.example")[1]


def test_taking_a_gpu_twice_is_a_bug() -> None:
    draft = Draft(_TWO)
    draft.take(placement(0, job(1, gpus=2), "a", [0, 1]))
    with pytest.raises(AssertionError, match="promised twice"):
        draft.take(placement(0, job(2, gpus=1), "a", [1]))


def test_promising_a_port_twice_is_a_bug() -> None:
    draft = Draft(_TWO)
    draft.take_port("a.example", 20_000)
    with pytest.raises(AssertionError, match="promised twice"):
        draft.take_port("a.example", 20_000)


# -- what runs is put back -----------------------------------------------------------------------------------------

_BUSY = cluster(
    node("a", gpus=4, cpus=8, memory_mb=64),
    node("b", gpus=4, cpus=8, memory_mb=64),
    node("away", gpus=2, reachable=False),
    running_on(job(1, gpus=2, cpus=3, memory_mb=16), ("a", [0, 2])),
    running_on(job(2, gpus=1, tasks=2, cpus=2), ("a", [1]), ("b", [0])),
    running_on(job(3, gpus=3, cpus=2, memory_mb=64), ("b", [1, 2, 3])),
    running_on(job(4, gpus=1), ("away", [0])),
)


def test_what_every_running_job_holds_put_back_is_the_whole_inventory_in_device_order() -> None:
    draft = Draft(_BUSY)
    for each in [_BUSY.running(live, NOW) for live in _BUSY.live()]:
        for held in each.tasks:
            draft.put_back(held)
    for name in _BUSY.free:
        inventory = _BUSY.nodes[name].inventory
        assert draft.free[name] == Free(inventory.gpus, inventory.cpus, inventory.memory_mb)
    assert NodeName("away") not in draft.free, "nothing comes free on a node that takes no work"


class _Shrunk(Cluster):
    """A cluster of which node a lost its GPU 2 and most of its CPUs and memory under what runs there."""

    def __init__(self) -> None:
        here = _BUSY.nodes[NodeName("a")]
        inventory = msgspec.structs.replace(here.inventory, gpus=_without(here, 2), cpus=4, memory_mb=8)
        super().__init__([_BUSY.nodes[NodeName("b")], _BUSY.nodes[NodeName("away")]], _BUSY.jobs.values())
        self.nodes = {**self.nodes, here.name: msgspec.structs.replace(here, inventory=inventory)}
        self.free = {**self.free, here.name: self._left(())}

    def _left(self, put_back: Sequence[TaskPlacement]) -> Free:
        """As the state counts it once these have ended."""
        held = [each for each in self.held_on(NodeName("a")) if each not in put_back]
        return free_on(self.nodes[NodeName("a")], held)


def _without(of: Node, index: int) -> tuple[Gpu, ...]:
    inventory: Inventory = of.inventory
    return tuple(gpu for gpu in inventory.gpus if gpu.index != index)


def test_a_node_that_shrank_under_its_tasks_gets_back_no_more_than_their_end_will_free() -> None:
    view = _Shrunk()
    held = view.held_on(NodeName("a"))
    assert view.free[NodeName("a")] == Free(tuple(view.free[NodeName("a")].gpus), 0, 0), "it holds more than it has"
    for order in (held, held[::-1]):
        draft = Draft(view)
        for count, each in enumerate(order, start=1):
            draft.put_back(each)
            assert draft.free[NodeName("a")] == view._left(order[:count])
        draft.rollback(0)
        assert draft.free[NodeName("a")] == view.free[NodeName("a")]
        draft.put_back(order[0])
        assert draft.free[NodeName("a")] == view._left(order[:1]), "also after a roll back"


def test_a_free_gpu_that_is_put_back_is_a_bug() -> None:
    draft = Draft(_TWO)
    with pytest.raises(AssertionError, match="put back that is free"):
        draft.put_back(placement(0, job(1, gpus=1), "a", [1]))


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "try"]), st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("put back"), st.integers(0, 9)),
        st.tuples(st.just("mark")),
        st.tuples(st.just("roll back")),
    ),
    max_size=12,
)
_ASKED = [
    job(9, gpus=gpus, tasks=tasks, cpus=cpus).spec.demand for gpus in range(5) for tasks, cpus in ((1, 3), (3, 1))
]


class _Asked:
    """One set of tables that answers as long as a pass lasts."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tables = self._made()

    def _made(self) -> dict[int, DemandCache]:
        nodes = CandidateNodes(self._draft, _BUSY.admitted(ANYWHERE))
        return {demand.gpu_count: DemandCache(nodes, demand, mixed=False) for demand in _ASKED}

    def assert_right(self) -> None:
        """As new tables."""
        fresh = self._made()
        for demand in _ASKED:
            kept = self._tables[demand.gpu_count]
            fits = fit_gang(Search(fresh[demand.gpu_count], demand))
            assert fit_gang(Search(kept, demand)) == fits
            if fits is None:
                kept.missed()
            else:
                assert demand.tasks <= kept.at_most()
                assert not kept.foresees_no(demand)


@given(_STEPS)
def test_a_remembered_verdict_is_never_older_than_what_came_free(steps: list[tuple[str | int, ...]]) -> None:
    """Whatever was taken, put back and rolled back, one set of tables answers as a new one does."""
    draft = Draft(_BUSY)
    asked = _Asked(draft)
    held = [each for job_ in _BUSY.live() for each in _BUSY.running(job_, NOW).tasks if each.node in draft.free]
    marks: list[tuple[int, list[TaskPlacement], dict[NodeName, Free]]] = []
    for what, *numbers in steps:
        match what, numbers:
            case "take" | "try", [str(name), int(gpus), int(cpus)]:
                free, mark = draft.free[NodeName(name)], draft.checkpoint()
                if len(free.gpus) >= gpus and free.cpus >= cpus:
                    uuids: tuple[GpuUuid, ...] = tuple(gpu.uuid for gpu in free.gpus[:gpus])
                    held.append(TaskPlacement(rank=0, node=NodeName(name), gpus=uuids, cpus=cpus, memory_mb=0))
                    draft.take(held[-1])
                    if what == "try":
                        asked.assert_right()
                        draft.rollback(mark)
                        held.pop()
            case "put back", [int(at)] if held:
                draft.put_back(held.pop(at % len(held)))
            case "mark", _:
                marks.append((draft.checkpoint(), list(held), dict(draft.free)))
            case "roll back", _ if marks:
                mark, held, before = marks.pop()
                draft.rollback(mark)
                assert draft.free == before
        asked.assert_right()
