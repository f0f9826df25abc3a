"""Search for nodes with room for tasks of one demand, the tightest first.

Rules: F1  a node takes part when the demand cache counts its GPUs and it isn't barred
       F2  tightest: fewest suitable GPUs left over, then (when no GPU is asked) nodes that own none, then fewest CPUs
           and least memory left over, then by name
       F3  without a GPU in the demand every free GPU is left over, so it goes where fewest are free
       F4  before fewest CPUs are compared: a node with enough GPUs of which nothing odd is seen (thermal headroom)
Limits: per bucket of equally free nodes at most CANDIDATES_MAX that fit are compared: the first by name. So the fit is
        best in GPUs, and only good in CPUs and memory. Nodes that don't fit are all looked at before it says no. F4
        costs nothing until a node is chosen for its odd GPUs; then at most SUSPECTS_MAX nodes are looked at for it, and
        a gang that no node holds whole knows it of the node alone that takes its rest.
"""

from collections.abc import Collection, Container, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import tasks_that_fit
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine.demand_cache import UNBOUNDED, DemandCache
from stoker.brain.state.view import GpuKinds

CANDIDATES_MAX: Final = 32
"""Fitting nodes compared per bucket. More would cost more than the better fit is worth: a bucket's nodes have the same
number of free GPUs already."""
SUSPECTS_MAX: Final = 256
"""Nodes that one search passes over since tasks would get odd GPUs there; any more count as such nodes unseen."""


class NodeFit(NamedTuple):
    """A node with room for so many tasks."""

    node: NodeName
    tasks: int


_Tightness = tuple[int, bool, int, int, NodeName]


class Search:
    """One demand's search of the candidate nodes."""

    __slots__ = ("_draft", "_free_on", "barred", "cache", "demand")

    def __init__(self, cache: DemandCache, demand: Demand, barred: Collection[NodeName] = ()) -> None:
        """`barred` nodes take no part; it is read anew at each look."""
        self.cache = cache
        self.demand = demand
        self._draft = cache.candidates.draft
        self._free_on = self._draft.free
        self.barred = barred

    def tightest(self, tasks: int, besides: Collection[NodeName] = ()) -> NodeFit | None:
        """Return the node, other than `besides`, that `tasks` tasks fill best; None when no node holds them all.

        `tasks` must not be more than may share a node.
        """
        best = self._best(tasks, besides, UNBOUNDED)
        if best is None:
            return None
        if not self._draft.has_like_gpus(best[-1]) and self.takes_suspects(best[-1], tasks):
            trusted = self._best(tasks, _WithSuspects(self, tasks, besides), best[0])
            best = trusted if trusted is not None and trusted[0] == best[0] else best
        return NodeFit(best[-1], tasks)

    def takes_suspects(self, name: NodeName, tasks: int) -> bool:
        """Return whether tasks on this node would get GPUs of which something odd is seen."""
        gpus = self._free_on[name].gpus
        if not self.demand.gpu_count or not any(gpu.suspect for gpu in gpus):
            return False
        trusted = [gpu for gpu in gpus if not gpu.suspect]
        return self.cache.gpus_of(trusted)[1] < tasks

    def _best(self, tasks: int, besides: Container[NodeName], left_over_max: int) -> _Tightness | None:
        """Return the tightest node; one with more GPUs left over than so many may be missed."""
        gpus = self.demand.gpu_count * tasks
        best: _Tightness | None = None
        by_free = self.cache.candidates.by_free()
        for kinds, by_count in self.cache.by_count.items():
            buckets, owns_gpus = by_free[kinds], bool(kinds)
            for count in sorted(buckets):
                if count < gpus:
                    continue
                if not by_count:
                    found = self._tightest_by_gpu(buckets[count], owns_gpus, tasks, besides)
                elif count - gpus > (left_over_max if best is None else best[0]):
                    break
                else:
                    found = self._tightest_of(buckets[count], owns_gpus, count - gpus, tasks, besides)
                if found is None:
                    continue
                if best is None or found < best:
                    best = found
                if by_count:
                    break
        return best

    def _tightest_of(
        self, names: Sequence[NodeName], owns_gpus: bool, left_over: int, tasks: int, besides: Container[NodeName]
    ) -> _Tightness | None:
        """Of nodes of one kind with one number of GPUs free, all of which suit."""
        demand, free_on, barred = self.demand, self._free_on, self.barred
        cpus, memory_mb = demand.cpus * tasks, demand.memory_mb * tasks
        any_barred = besides != () or bool(barred)  # else a look at each of them is a quarter of all
        best: NodeName | None = None
        compared = best_cpus = best_memory_mb = 0
        for name in names:
            free = free_on[name]
            has_cpus, has_memory_mb = free.cpus, free.memory_mb
            if has_cpus < cpus or has_memory_mb < memory_mb or (any_barred and (name in besides or name in barred)):
                continue
            # Names ascend, so that of equal ones the first stays.
            if best is None or has_cpus < best_cpus or (has_cpus == best_cpus and has_memory_mb < best_memory_mb):
                best, best_cpus, best_memory_mb = name, has_cpus, has_memory_mb
            compared += 1
            if compared == CANDIDATES_MAX:
                break
        return None if best is None else (left_over, owns_gpus, best_cpus - cpus, best_memory_mb - memory_mb, best)

    def _tightest_by_gpu(
        self, names: Sequence[NodeName], owns_gpus: bool, tasks: int, besides: Container[NodeName]
    ) -> _Tightness | None:
        """The same where each GPU must be looked at."""
        demand = self.demand
        gpus, cpus, memory_mb = demand.gpu_count * tasks, demand.cpus * tasks, demand.memory_mb * tasks
        best: _Tightness | None = None
        compared = 0
        for name in names:
            free = self._free_on[name]
            if free.cpus < cpus or free.memory_mb < memory_mb or name in besides or name in self.barred:
                continue
            suitable, slots = self.cache.gpus_of(free.gpus)
            if slots < tasks:
                continue
            key = (suitable - gpus, owns_gpus, free.cpus - cpus, free.memory_mb - memory_mb, name)
            if best is None or key < best:
                best = key
            compared += 1
            if compared == CANDIDATES_MAX:
                break
        return best

    def largest_first(self) -> Iterator[NodeFit]:
        """Yield nodes with what they hold of the demand's tasks, most first; at equal number the fewest GPUs left over.

        Naive: judge every node, then sort. But a large gang usually fills nodes that are free altogether, so buckets
        come by the most that a node in them could hold; nodes that hold less (for want of CPUs or memory) wait in a
        heap until the buckets have come down to them.
        """
        waiting: list[tuple[int, int, NodeName]] = []
        by_free = self.cache.candidates.by_free()
        for bound, left_over, kinds, count in self._by_bound():
            while waiting and -waiting[0][0] > bound:
                yield _popped(waiting)
            for name in by_free[kinds][count]:
                tasks = self._tasks_on(name, count, self.cache.by_count[kinds])
                if tasks == bound:
                    yield NodeFit(name, tasks)
                elif tasks:
                    heappush(waiting, (-tasks, left_over, name))
        while waiting:
            yield _popped(waiting)

    def _by_bound(self) -> list[tuple[int, int, GpuKinds, int]]:
        """The most tasks a node of each bucket could hold, GPUs then left over, kinds, free GPUs; most tasks first."""
        cache, per_task = self.cache, self.demand.gpu_count
        most = min(self.demand.tasks, cache.per_node)
        by_free = cache.candidates.by_free()
        bounds = []
        for kinds in cache.by_count:
            for count in by_free[kinds]:
                bound = min(most, cache.slots(count))
                if bound:
                    bounds.append((bound, count - bound * per_task, kinds, count))
        return sorted(bounds, key=lambda entry: (-entry[0], *entry[1:]))

    def _tasks_on(self, name: NodeName, count: int, by_count: bool) -> int:
        if name in self.barred:
            return 0
        free = self._free_on[name]
        suitable = count if by_count else self.cache.gpus_of(free.gpus)[1] * self.demand.gpu_count
        return tasks_that_fit(suitable, free.cpus, free.memory_mb, self.demand)


class _WithSuspects(Container[NodeName]):
    """`besides`, and the nodes on which tasks would get GPUs of which something odd is seen (F4)."""

    def __init__(self, search: Search, tasks: int, besides: Container[NodeName]) -> None:
        self._search = search
        self._tasks = tasks
        self._besides = besides
        self._suspects = 0

    def __contains__(self, name: object) -> bool:
        if name in self._besides or self._suspects > SUSPECTS_MAX:
            return True
        assert isinstance(name, str), f"no name of a node: {name!r}"
        takes = self._search.takes_suspects(NodeName(name), self._tasks)
        self._suspects += takes
        return takes


def _popped(waiting: list[tuple[int, int, NodeName]]) -> NodeFit:
    tasks, _, name = heappop(waiting)
    return NodeFit(name, -tasks)
