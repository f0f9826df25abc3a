"""Capacity held for jobs that are within a guarantee and can't start yet.

Rules: K1  before a round of lower standing, each job of a higher one that still waits is given nodes to wait for, in
           order, as far as its guarantee reaches; what is free there of its GPUs, with CPUs and memory, is withdrawn
           from the jobs that come later
       K2  the nodes are those of its reservation, if it has one, then those with most of its GPUs free (then by name):
           they are next to have all of them, and since no job of a lower standing gets in, they only fill up for it;
           so a large job isn't starved by small ones.
           While they have too few, as many as are missing are held elsewhere, in the same order: another node may be
           the first to have all
       K3  for a job that couldn't run on the nodes that take work even if they were empty nothing is held
Limits: at most HELD_MAX jobs and HOLD_DEMANDS_MAX demands in a pass; what comes beyond holds nothing in this pass.
        Costs about 1 us per node and demand, and only where some job would borrow while another is owed.
        On a node with GPUs of several models, CPUs and memory are held as if only the fitting ones counted.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.fit import suitable_gpus, tasks_ever
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import Bucket, View

HELD_MAX: Final = 256
HOLD_DEMANDS_MAX: Final = 16


class _HoldTarget(NamedTuple):
    """A node to wait for."""

    node: NodeName
    tasks: int
    """For how many it would have room if it were empty, beside what is held there already."""


class GuaranteeHold:
    """Capacity that one pass holds back for jobs within a guarantee."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._targets: dict[tuple[CandidateNodes, Demand], list[_HoldTarget]] = {}
        self.withdrawn: list[TaskPlacement] = []
        self._of: dict[Shape, list[TaskPlacement]] = {}
        """The same by the shape that it is held for."""
        self.jobs: dict[Shape, int] = {}
        """For how many jobs of each shape something is held."""

    @property
    def is_full(self) -> bool:
        return sum(self.jobs.values()) >= HELD_MAX

    @property
    def gpus(self) -> int:
        """The number of GPUs withdrawn in all."""
        return sum(len(placement.gpus) for placement in self.withdrawn)

    def hold(self, candidates: CandidateNodes, shape: Shape, reserved: Collection[NodeName] = ()) -> bool:
        """Hold what one job of this shape waits for, first on the nodes of its reservation.

        False when nothing can be held (K3).
        """
        demand = shape.demand
        key = candidates, demand
        targets = self._targets.get(key)
        if targets is None:
            if len(self._targets) == HOLD_DEMANDS_MAX:
                return False
            targets = self._targets[key] = sorted(
                self._found(candidates, demand),
                key=lambda target: (-self._free(target, demand), target.node),
            )
        if reserved:  # also where what is held for another job of this demand would fill them
            own = [each for each in self._found(candidates, demand) if each.node in reserved]
            targets[:] = [*own, *(each for each in targets if each.node not in reserved)]
        chosen = _chosen(targets, demand.tasks)
        if chosen is None:
            return False
        already = len(self.withdrawn)
        missing = demand.total_gpus - sum(self._withdraw(target, demand) for target in chosen)
        for target in targets:
            if missing <= 0:
                break
            # Less than a whole task's GPUs, too: they are to grow into one.
            missing -= self._withdraw(target, demand, missing)
        self.jobs[shape] = self.jobs.get(shape, 0) + 1
        self._of.setdefault(shape, []).extend(self.withdrawn[already:])
        return True

    def lend(self, shape: Shape) -> None:
        """Free what is held for jobs of a shape, until the draft is rolled back."""
        for placement in reversed(self._of.get(shape, ())):
            self._draft.put_back(placement)

    def hold_again(self, shape: Shape) -> None:
        """Take of what was lent what is still free, until the draft is rolled back."""
        for placement in self._of.get(shape, ()):
            self._draft.take_free(placement)

    def give_back(self) -> None:
        """Free what was held, once no job is placed any more: the reasons count it as free."""
        for placement in reversed(self.withdrawn):
            self._draft.put_back(placement)

    def _found(self, candidates: CandidateNodes, demand: Demand) -> Iterator[_HoldTarget]:
        free = self._draft.free
        for each in candidates.admitted.classes:
            tasks = min(tasks_ever(each.inventory, demand), demand.tasks_per_node or demand.tasks)
            if tasks:
                yield from (_HoldTarget(name, tasks) for name in each.names if name in free)

    def _free(self, target: _HoldTarget, demand: Demand) -> int:
        return len(suitable_gpus(self._draft.free[target.node].gpus, demand))

    def _withdraw(self, target: _HoldTarget, demand: Demand, gpus_max: int | None = None) -> int:
        """The GPUs that were free there and now are held."""
        free = self._draft.free[target.node]
        wanted = target.tasks * demand.gpu_count
        gpus = suitable_gpus(free.gpus, demand)[: wanted if gpus_max is None else min(wanted, gpus_max)]
        if not gpus and gpus_max is not None:
            return 0
        placement = TaskPlacement(
            rank=0,
            node=target.node,
            gpus=tuple(gpu.uuid for gpu in gpus),
            cpus=min(free.cpus, target.tasks * demand.cpus),
            memory_mb=min(free.memory_mb, target.tasks * demand.memory_mb),
        )
        self._draft.take(placement)
        self.withdrawn.append(placement)
        return len(gpus)


def _chosen(targets: list[_HoldTarget], tasks: int) -> Sequence[_HoldTarget] | None:
    """Nodes for that many tasks, the first of `targets`; what room they have left is offered again. None when there
    are too few."""
    chosen: list[_HoldTarget] = []
    for target in targets:
        chosen.append(target._replace(tasks=min(target.tasks, tasks)))
        tasks -= chosen[-1].tasks
        if not tasks:
            left = target.tasks - chosen[-1].tasks
            targets[: len(chosen)] = [target._replace(tasks=left)] if left else []
            return chosen
    return None


def waiting_in(bucket: Bucket, view: View, gone: int) -> int:
    """Return how many jobs of a bucket wait beside so many that don't any more; HELD_MAX is any greater number.

    Negative: more than all of it has gone.
    """
    found = len(bucket.jobs) - gone
    for array in bucket.arrays:
        if found >= HELD_MAX:
            break
        found += len(list(islice(view.members(array), HELD_MAX + gone)))
    return min(HELD_MAX, found)
