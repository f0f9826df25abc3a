"""What do all shapes share that wish for the same GPUs per task, from the same nodes?

A queue may hold ten thousand shapes, but they wish for few kinds of GPU, in few numbers, from few selections of nodes.
So whatever doesn't depend on CPUs, memory and the number of tasks is found once per lane: which kinds of node serve,
how their GPUs are counted, and for how many tasks there is room.

Rules: L1  a GPU serves when its model matches and its memory suffices (`domain.fit.suits`)
       L2  GPUs of one task are of one model, unless the lane is `mixed`
       L3  no node takes more tasks of a gang than `tasks_per_node` lets it
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Final

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import one_model_slots, slots_ever, suitable_gpus
from stoker.brain.domain.gpu import model_matches
from stoker.brain.domain.node import Free
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.capacity import UNBOUNDED, Capacity, CapacityRow, GpuCapacity
from stoker.brain.state.view import GpuKinds

_MISSES_MAX: Final = 4
"""Searches that may fail in vain before a table is made that foresees it: a table costs about as much as two."""


class GpuCounting(Enum):
    """How the GPUs of a node are counted for a demand."""

    NEVER = "none of its GPUs suits"
    BY_COUNT = "all free GPUs suit, so their number is enough to know"
    BY_GPU = "each free GPU must be looked at"


class DemandCache:
    """All demands of one wish for GPUs, on the nodes of one pool.

    What was too much at one moment of a pass is too much at every later one, since a pass only takes. So old numbers
    are good enough to say no.
    """

    __slots__ = ("_misses", "_room", "at_most", "by_count", "gpu_count", "mixed", "per_node", "pool", "sample")

    def __init__(self, pool: CandidateNodes, sample: Demand, *, mixed: bool) -> None:
        self.pool = pool
        self.sample = sample
        """Any demand of this lane."""
        self.mixed = mixed
        self.gpu_count = sample.gpu_count
        self.per_node = sample.tasks_per_node or UNBOUNDED
        judged = {kinds: gpu_counting(kinds, sample, mixed=mixed) for kinds in pool.kinds}
        self.by_count = {
            kinds: how is GpuCounting.BY_COUNT for kinds, how in judged.items() if how is not GpuCounting.NEVER
        }
        """Kinds that may serve, and whether counting their free GPUs is enough."""
        self.at_most = self._most()
        """No gang of more tasks finds GPUs."""
        self._misses = 0
        self._room: Capacity | None = None

    def slots(self, gpus: int) -> int:
        """Tasks that so many suitable GPUs of one model serve."""
        return gpus // self.gpu_count if self.gpu_count else UNBOUNDED

    def _most(self) -> int:
        counts, found = self.pool.counts(), 0
        for kinds in self.by_count:
            for count, nodes in counts[kinds].items():
                found += min(self.slots(count), self.per_node) * nodes
        return found

    def may_hold(self, tasks: int) -> bool:
        """A cheap no for most blocked shapes: are there enough free GPUs, if all of them suited?"""
        if tasks > self.at_most:
            return False
        per_task, per_node = self.gpu_count, self.per_node
        found, by_free = 0, self.pool.by_free()
        for kinds in self.by_count:
            for count, names in by_free[kinds].items():
                slots = count // per_task if per_task else UNBOUNDED
                found += (slots if slots < per_node else per_node) * len(names)
                if found >= tasks:
                    return True
        self.at_most = found
        return False

    def nodes(self) -> int:
        """How many take work and may serve."""
        counts = self.pool.counts()
        return sum(nodes for kinds in self.by_count for nodes in counts[kinds].values())

    def foresees_no(self, demand: Demand) -> bool:
        """Does a table of what is free beside the GPUs already say no? Only where searches failed before."""
        return self._room is not None and not self._room.holds(demand)

    def missed(self) -> None:
        """A search was in vain."""
        self._misses += 1
        if self._misses % _MISSES_MAX == 0:
            self.room()

    def room(self) -> Capacity:
        """What is free now."""
        if self._room is None or self._room.version != self.pool.draft.version:
            self._room = Capacity(self.pool.draft.version, self._gpu_room(), self.rows)
        return self._room

    def _gpu_room(self) -> GpuCapacity:
        slots = spread = free = best = 0
        for gpus, serves, nodes in self._serving():
            slots, free, best = slots + serves * nodes, free + gpus * nodes, max(best, gpus)
            spread += min(serves, self.per_node) * nodes
        return GpuCapacity(slots, spread, free, best)

    def _serving(self) -> Iterator[tuple[int, int, int]]:
        """Suitable GPUs, the tasks that they serve, and the number of nodes of which that is true."""
        counts = self.pool.counts()
        for kinds, by_count in self.by_count.items():
            if by_count:
                yield from ((count, self.slots(count), nodes) for count, nodes in counts[kinds].items())
            else:
                yield from ((*self.gpus_of(free), 1) for free in self._frees(kinds))

    def rows(self) -> list[CapacityRow]:
        rows: list[CapacityRow] = []
        for kinds, by_count in self.by_count.items():
            for free in self._frees(kinds):
                serves = self.slots(len(free.gpus)) if by_count else self.gpus_of(free)[1]
                if serves:
                    rows.append((min(serves, self.per_node), free.cpus, free.memory_mb))
        return rows

    def rows_of(self, frees: Iterable[Free]) -> list[CapacityRow]:
        """The same of nodes elsewhere, which have this free; with a mix of models where that may be."""
        rows: list[CapacityRow] = []
        for free in frees:
            serves = slots_ever(free.gpus, self.sample) if self.gpu_count else UNBOUNDED
            if serves:
                rows.append((min(serves, self.per_node), free.cpus, free.memory_mb))
        return rows

    def _frees(self, kinds: GpuKinds) -> Iterator[Free]:
        """What is free on each node of a kind."""
        free_on = self.pool.draft.free
        for names in self.pool.by_free()[kinds].values():
            yield from map(free_on.__getitem__, names)

    def gpus_of(self, free: Free) -> tuple[int, int]:
        """Suitable GPUs, and the tasks that they alone would serve."""
        suitable = suitable_gpus(free.gpus, self.sample)
        if self.mixed:
            return len(suitable), self.slots(len(suitable))
        return len(suitable), one_model_slots(suitable, self.gpu_count)


def gpu_counting(kinds: GpuKinds, demand: Demand, *, mixed: bool) -> GpuCounting:
    """How to count the GPUs of a node of `kinds` for `demand`."""
    if not demand.gpu_count:
        return GpuCounting.BY_COUNT
    return _gpu_counting(kinds, demand.gpu_model, demand.gpu_memory_mb, mixed or demand.gpu_count == 1)


# A cluster has few kinds of node and its users few wishes, and the engine asks for each pair of them in each pass.
@lru_cache(maxsize=4_096)
def _gpu_counting(kinds: GpuKinds, wanted: str, at_least_mb: int, any_model: bool) -> GpuCounting:
    suiting = [model for model, memory_mb in kinds if memory_mb >= at_least_mb and model_matches(wanted, model)]
    if not suiting:
        return GpuCounting.NEVER
    whole = len(suiting) == len(kinds)
    return GpuCounting.BY_COUNT if whole and (any_model or len(set(suiting)) == 1) else GpuCounting.BY_GPU


def mixing_helps(pool: CandidateNodes, demand: Demand) -> bool:
    """Could tasks of several models each (L2) fit where tasks of one model don't? Nobody who named a model is asked."""
    if demand.gpu_model or demand.gpu_count < 2:
        return False
    return any(len({model for model, _ in kinds}) > 1 for kinds in pool.kinds)
