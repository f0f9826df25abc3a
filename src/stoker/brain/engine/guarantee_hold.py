"""What is kept for those who are within a guarantee and can't start yet?

Rules: K1  before a round of lower standing, each job of a higher one that still waits is given nodes to wait for, in
           order, as far as its guarantee reaches; what is free there of its GPUs, with CPUs and memory, is withdrawn
           from those who come later
       K2  the nodes are those with most of its GPUs free (then by name): they are next to have all of them, and since
           nobody of a lower standing gets in, they only fill up for it; so a large job isn't starved by small ones.
           While they have too few, as many as are missing are kept elsewhere, in the same order: another node may be
           the first to have all
       K3  who couldn't run on the nodes that take work even if they were empty keeps nothing
Limits: at most KEPT_MAX jobs and LANES_MAX wishes for GPUs in a pass; what comes beyond keeps nothing in this pass.
        Costs about 1 us per node and wish, and only where somebody would borrow while another is owed.
        On a node with GPUs of several models, CPUs and memory are kept as if only the fitting ones counted.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.fit import suitable_gpus, tasks_ever
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import GpuKinds

KEPT_MAX: Final = 256
HOLD_DEMANDS_MAX: Final = 16


class _HoldTarget(NamedTuple):
    """A node to wait for."""

    node: NodeName
    kinds: GpuKinds
    tasks: int
    """For how many it would have room if it were empty, beside what is kept there already."""


class HeldCapacity(NamedTuple):
    kinds: GpuKinds
    placement: TaskPlacement
    gpus: tuple[Gpu, ...]


class GuaranteeHold:
    """Of one pass."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._targets: dict[tuple[CandidateNodes, Demand], list[_HoldTarget]] = {}
        self.withdrawn: list[HeldCapacity] = []
        self.kept: dict[Shape, int] = {}
        """For how many jobs of each shape."""

    @property
    def is_full(self) -> bool:
        return sum(self.kept.values()) >= KEPT_MAX

    @property
    def gpus(self) -> int:
        """Withdrawn in all."""
        return sum(len(each.gpus) for each in self.withdrawn)

    def keep(self, pool: CandidateNodes, shape: Shape) -> bool:
        """Keep what one job of this shape waits for. False when nothing could be (K3)."""
        demand = shape.demand
        targets = self._targets.get((pool, demand))
        if targets is None:
            if len(self._targets) == HOLD_DEMANDS_MAX:
                return False
            targets = self._targets[pool, demand] = sorted(
                self._found(pool, demand), key=lambda target: (-self._free(target, demand), target.node)
            )
        chosen = _chosen(targets, demand.tasks)
        if chosen is None:
            return False
        missing = demand.total_gpus - sum(self._withdraw(target, demand) for target in chosen)
        for target in targets:
            if missing <= 0:
                break
            # Less than a whole task's GPUs, too: they are to grow into one.
            missing -= self._withdraw(target, demand, missing)
        self.kept[shape] = self.kept.get(shape, 0) + 1
        return True

    def give_back(self) -> None:
        """Once nobody is placed any more: what was kept is free, for whoever says how much is."""
        for kinds, placement, gpus in reversed(self.withdrawn):
            self._draft.put_back(kinds, placement, gpus)

    def _found(self, pool: CandidateNodes, demand: Demand) -> Iterator[_HoldTarget]:
        free = self._draft.free
        for alike in pool.admitted.alike:
            tasks = min(tasks_ever(alike.inventory, demand), demand.tasks_per_node or demand.tasks)
            if tasks:
                yield from (_HoldTarget(name, alike.kinds, tasks) for name in alike.names if name in free)

    def _free(self, target: _HoldTarget, demand: Demand) -> int:
        return len(suitable_gpus(self._draft.free[target.node].gpus, demand))

    def _withdraw(self, target: _HoldTarget, demand: Demand, gpus_max: int | None = None) -> int:
        """The GPUs that were free there and now are kept."""
        free = self._draft.free[target.node]
        wanted = target.tasks * demand.gpu_count
        gpus = tuple(suitable_gpus(free.gpus, demand)[: wanted if gpus_max is None else min(wanted, gpus_max)])
        if not gpus and gpus_max is not None:
            return 0
        placement = TaskPlacement(
            rank=0,
            node=target.node,
            gpus=tuple(gpu.uuid for gpu in gpus),
            cpus=min(free.cpus, target.tasks * demand.cpus),
            memory_mb=min(free.memory_mb, target.tasks * demand.memory_mb),
        )
        self._draft.take(target.kinds, placement)
        self.withdrawn.append(HeldCapacity(target.kinds, placement, gpus))
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
