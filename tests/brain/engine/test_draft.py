"""A draft speculates without touching the view, and gives back exactly what it took."""

from collections.abc import Mapping, Sequence

import pytest

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.where import ANYWHERE
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import GpuKinds
from tests.builders import Cluster, cluster, job, node, placement


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
