"""Placement of shares of GPUs: how many tasks fit what is left of devices, and which devices they get.

Demands for whole GPUs never come here: a GPU with sharers is none that is free to them, and so counts as held.

Rules: S1  the shares on a GPU add up to WHOLE_GPU at most, the memory bounds to its memory, and no more tasks share it
           than the policy says
       S2  best fit: the fullest shared GPU that still fits, then by node and device, so that whole GPUs stay whole
       S3  only where no shared GPU fits a whole one is opened: on the node where it leaves least over, as `fit` says
       S4  tasks of a gang are placed so one by one; a gang goes to the fewest nodes, as one of whole GPUs does
Limits: a search for one task looks at the shared GPUs with enough thousandths left, and usually takes the first; a gang
        of several looks at every candidate node, about 3 us each.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import sharers_of, suits, tasks_that_fit
from stoker.brain.domain.gpu import WHOLE_GPU, SharedGpu
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.node import Free
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import CapacityRow, DemandCache, GpuCapacity, GpuNumbers, mixing_helps
from stoker.brain.engine.fit import NodeFit, Search


def caches_for(
    candidates: CandidateNodes, demand: Demand, numbers: GpuNumbers | None = None
) -> tuple[DemandCache, ...]:
    """Return the ways in which the demand may be served: of one model per task, and where that could help, mixed.

    `numbers` are those of the demand, if selections share them.
    """
    if demand.shares:
        return (ShareCache(candidates, demand, mixed=False),)
    if not mixing_helps(candidates, demand):
        return (DemandCache(candidates, demand, mixed=False, numbers=numbers),)
    return tuple(DemandCache(candidates, demand, mixed=mixed) for mixed in (False, True))


def search_of(cache: DemandCache, demand: Demand, barred: Collection[NodeName] = ()) -> Search:
    """Return the search of the cache's nodes; `barred` ones take no part, and it is read anew at each look."""
    return (ShareSearch if isinstance(cache, ShareCache) else Search)(cache, demand, barred)


class ShareCache(DemandCache):
    """One demand for a share of a GPU per task on the candidate nodes of one selection."""

    __slots__ = ()

    def at_most(self) -> int:
        """Return a number of tasks beyond which no gang finds GPUs."""
        if self._at_most_grown != self.candidates.draft.grown:
            share = self.sample.gpu_share
            rests = self.candidates.shared_rests()
            found = sum([rest.left // share for rest in rests[bisect_left(rests, (share,)) :]])
            whole = sum(count * nodes for count, nodes in self._counts())
            self._at_most, self._at_most_grown = found + whole * (WHOLE_GPU // share), self.candidates.draft.grown
        return self._at_most

    def may_hold(self, tasks: int) -> bool:
        """Return whether there may be enough GPUs."""
        return tasks <= self.at_most()

    def gpu_capacity(self) -> GpuCapacity:
        """Return what the GPUs that are free now would allow; `free` and `best` count whole ones."""
        slots = spread = whole = best = 0
        for kinds in self.by_count:
            for free in self._free_on(kinds):
                here, count = self.slots_on(free), len(free.gpus)
                slots, spread = slots + here, spread + min(here, self.per_node)
                whole, best = whole + count, max(best, count)
        return GpuCapacity(slots, spread, whole, best)

    def rows_of(self, frees: Iterable[Free], *, by_count: bool = False) -> list[CapacityRow]:
        """Return the rows of nodes that have this free, those that serve."""
        served = ((self.slots_on(free), free) for free in frees)
        return [(min(slots, self.per_node), free.cpus, free.memory_mb) for slots, free in served if slots]

    def slots_on(self, free: Free) -> int:
        """Return how many tasks the GPUs of a node serve."""
        demand, most, found = self.sample, self.candidates.draft.gpu_sharers_max, 0
        for rest in free.shared:
            if rest.left >= demand.gpu_share and suits(rest.gpu, demand):
                here = min(rest.left // demand.gpu_share, most - rest.sharers)
                bound = demand.memory_bound_mb(rest.gpu.memory_mb)
                if bound and bound * here > rest.memory_left_mb:
                    here = rest.memory_left_mb // bound
                found += max(0, here)
        for gpu in free.gpus:
            if suits(gpu, demand):
                found += min(sharers_of(gpu, demand), most)
        return found

    def largest_rest(self) -> tuple[SharedGpu, NodeName] | None:
        """Return the suitable GPU with most left, and its node; None = no node has a suitable one."""
        best: tuple[tuple[int, int], NodeName, SharedGpu] | None = None
        free_on = self.candidates.draft.free
        for kinds in self.by_count:
            for name in sorted(name for names in self.candidates.by_free()[kinds].values() for name in names):
                for rest in _rests(free_on[name], self.sample):
                    key = -rest.left, -rest.memory_left_mb
                    if best is None or (key, name) < best[:2]:
                        best = key, name, rest
        return (best[2], best[1]) if best else None


class ShareSearch(Search):
    """One demand's search of the candidate nodes for shares."""

    __slots__ = ()

    cache: ShareCache

    def tightest(self, tasks: int, besides: Collection[NodeName] = ()) -> NodeFit | None:
        """Return the node, other than `besides`, that `tasks` tasks fill best; None when no node holds them all."""
        if tasks == 1:
            found = self._fullest(besides)
            return NodeFit(found, 1) if found is not None else super().tightest(1, besides)
        fits = [each for each in self._nodes(tasks) if each[0] == -tasks and each[-1] not in besides]
        return NodeFit(min(fits)[-1], tasks) if fits else None

    def _fullest(self, besides: Collection[NodeName]) -> NodeName | None:
        """The node of the fullest shared GPU that fits (S2)."""
        demand, free_on, most = self.demand, self._free_on, self.cache.candidates.draft.gpu_sharers_max
        rests = self.cache.candidates.shared_rests()
        for _, name, device in rests[bisect_left(rests, (demand.gpu_share,)) :]:
            free = free_on[name]
            if free.cpus < demand.cpus or free.memory_mb < demand.memory_mb or name in besides or name in self.barred:
                continue
            rest = next(each for each in free.shared if each.gpu.index == device)
            if suits(rest.gpu, demand) and _takes(rest, demand, most):
                return name
        return None

    def largest_first(self) -> Iterator[NodeFit]:
        """Yield nodes with what they hold of the demand's tasks, most first; at equal number the least left over."""
        for tasks, *_, name in sorted(self._nodes(self.demand.tasks)):
            yield NodeFit(name, -tasks)

    def _nodes(self, most: int) -> Iterator[tuple[int, int, int, NodeName]]:
        """Minus the tasks on each node that holds any, at most so many; the thousandths and CPUs then left over."""
        demand, cache = self.demand, self.cache
        for kinds in cache.by_count:
            for names in cache.candidates.by_free()[kinds].values():
                for name in names:
                    free = self._free_on[name]
                    slots = 0 if name in self.barred else cache.slots_on(free)
                    tasks = min(most, tasks_that_fit(slots, free.cpus, free.memory_mb, demand)) if slots else 0
                    if tasks:
                        left = free.gpu_milli - tasks * demand.gpu_share
                        yield -tasks, left, free.cpus - tasks * demand.cpus, name


def choose_shares(free: Free, demand: Demand, node: NodeName, tasks: int, sharers_max: int) -> list[TaskPlacement]:
    """Return what each task on a node holds, in device order, with ranks from 0. All `tasks` fit there."""
    chosen: list[tuple[int, TaskPlacement]] = []
    for _ in range(tasks):
        rests = [rest for rest in _rests(free, demand) if _takes(rest, demand, sharers_max)]
        assert rests, f"no share of {demand} is left on {node}: {free}"
        rest = min(rests, key=_fullest_first)
        placement = TaskPlacement(
            rank=0,
            node=node,
            gpus=(rest.gpu.uuid,),
            cpus=demand.cpus,
            memory_mb=demand.memory_mb,
            gpu_share=demand.gpu_share,
            gpu_memory_mb=demand.memory_bound_mb(rest.gpu.memory_mb),
        )
        free = free.take(placement)
        chosen.append((rest.gpu.index, placement))
    return [placement for _, placement in sorted(chosen, key=lambda each: each[0])]


def _fullest_first(rest: SharedGpu) -> tuple[bool, int, bool, int, int]:
    # Of whole ones, that with the least memory, as a task that asks for little needs no large device.
    return not rest.sharers, rest.left, rest.gpu.suspect, rest.gpu.memory_mb, rest.gpu.index


def _takes(rest: SharedGpu, demand: Demand, sharers_max: int) -> bool:
    return rest.fits(demand.gpu_share, demand.memory_bound_mb(rest.gpu.memory_mb), sharers_max)


def _rests(free: Free, demand: Demand) -> Iterator[SharedGpu]:
    """The suitable GPUs of a node of which something is left, those without sharers too."""
    yield from (rest for rest in free.shared if suits(rest.gpu, demand))
    yield from (SharedGpu(gpu, WHOLE_GPU, gpu.memory_mb, 0) for gpu in free.gpus if suits(gpu, demand))
