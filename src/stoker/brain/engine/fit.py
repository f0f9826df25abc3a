"""Where is there room for tasks of one demand, and where is it tightest?

Rules: F1  a GPU serves when its model matches and its memory suffices (`domain.fit.suits`)
       F2  tightest: fewest suitable GPUs left over, then (when no GPU is asked) nodes that own none, then fewest CPUs
           and least memory left over, then by name
       F3  without a GPU in the demand every free GPU is left over, so it goes where fewest are free
       F4  GPUs of one task are of one model, unless the search is `mixed`
Limits: per bucket of equally free nodes at most CANDIDATES_MAX that fit are compared: the first by name. So the fit is
        best in GPUs, and only good in CPUs and memory. Nodes that don't fit are all looked at before it says no.
"""

from collections.abc import Container, Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import one_model_slots, suitable_gpus, suits, tasks_that_fit
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Free
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import GpuKinds

CANDIDATES_MAX: Final = 32
"""Fitting nodes compared per bucket. More would cost more than the better fit is worth: a bucket's nodes have the same
number of free GPUs already."""


class Seat(NamedTuple):
    """Room for so many tasks on one node."""

    node: NodeName
    kinds: GpuKinds
    tasks: int


class Judged(Enum):
    """How the GPUs of a node are counted for a demand."""

    NEVER = "none of its GPUs suits"
    BY_COUNT = "all free GPUs suit, so their number is enough to know"
    BY_GPU = "each free GPU must be looked at"


class GpuRoom(NamedTuple):
    """What the GPUs alone would allow."""

    slots: int
    """Tasks."""
    free: int
    """Suitable GPUs free on all nodes."""
    best: int
    """The most on one node."""


_Tightness = tuple[int, bool, int, int, NodeName]


class Search:
    """One demand's look at one draft. It keeps what doesn't change during a pass: which kinds of node suit."""

    __slots__ = ("_barred", "_by_count", "_draft", "_mixed", "demand")

    def __init__(self, draft: Draft, demand: Demand, *, mixed: bool, barred: Container[NodeName] = ()) -> None:
        """`barred` nodes take no part; it is read anew at each look."""
        self.demand = demand
        self._draft = draft
        self._mixed = mixed
        self._barred = barred
        judged = {kinds: judge(kinds, demand, mixed=mixed) for kinds in draft.buckets}
        self._by_count = {kinds: how is Judged.BY_COUNT for kinds, how in judged.items() if how is not Judged.NEVER}
        """Kinds that may serve, and whether counting their free GPUs is enough."""

    def may_fit(self) -> bool:
        """A cheap no for most blocked shapes: are there enough free GPUs if all of them suited?"""
        per_task, missing = self.demand.gpu_count, self.demand.tasks
        for kinds in self._by_count:
            for count, names in self._draft.buckets[kinds].items():
                missing -= (count // per_task if per_task else missing) * len(names)
                if missing <= 0:
                    return True
        return False

    def tightest(self, tasks: int, besides: Container[NodeName] = ()) -> Seat | None:
        """The node, other than `besides`, that `tasks` tasks fill best; None when no node holds them all."""
        gpus = self.demand.gpu_count * tasks
        best: tuple[_Tightness, GpuKinds] | None = None
        for kinds, by_count in self._by_count.items():
            buckets = self._draft.buckets[kinds]
            for count in sorted(buckets):
                if count < gpus:
                    continue
                if by_count and best is not None and count - gpus > best[0][0]:
                    break
                found = self._tightest_in(kinds, count, tasks, besides)
                if found is not None and (best is None or found < best[0]):
                    best = found, kinds
                if found is not None and by_count:
                    break
        return Seat(best[0][-1], best[1], tasks) if best is not None else None

    def _tightest_in(self, kinds: GpuKinds, count: int, tasks: int, besides: Container[NodeName]) -> _Tightness | None:
        gpus, cpus, memory_mb = (n * tasks for n in (self.demand.gpu_count, self.demand.cpus, self.demand.memory_mb))
        by_count, free_on, barred = self._by_count[kinds], self._draft.free, self._barred
        best: _Tightness | None = None
        compared = 0
        for name in self._draft.buckets[kinds][count]:
            free = free_on[name]
            if free.cpus < cpus or free.memory_mb < memory_mb or name in besides or name in barred:
                continue
            suitable = count
            if not by_count:
                suitable, slots = self._gpus_of(free)
                if slots < tasks:
                    continue
            key = (suitable - gpus, bool(kinds), free.cpus - cpus, free.memory_mb - memory_mb, name)
            if best is None or key < best:
                best = key
            compared += 1
            if compared == CANDIDATES_MAX:
                break
        return best

    def largest_first(self) -> Iterator[Seat]:
        """Nodes with what they hold of the demand's tasks, most first; at equal number the fewest GPUs left over.

        Naive: judge every node, then sort. But a large gang usually fills nodes that are free altogether, so buckets
        come by the most that a node in them could hold; nodes that hold less (for want of CPUs or memory) wait in a
        heap until the buckets have come down to them.
        """
        waiting: list[tuple[int, int, NodeName, Seat]] = []
        for bound, left_over, kinds, count in self._by_bound():
            while waiting and -waiting[0][0] > bound:
                yield heappop(waiting)[-1]
            for name in self._draft.buckets[kinds][count]:
                tasks = self._tasks_on(name, count, self._by_count[kinds])
                if tasks == bound:
                    yield Seat(name, kinds, tasks)
                elif tasks:
                    heappush(waiting, (-tasks, left_over, name, Seat(name, kinds, tasks)))
        while waiting:
            yield heappop(waiting)[-1]

    def _by_bound(self) -> list[tuple[int, int, GpuKinds, int]]:
        """The most tasks a node of each bucket could hold, GPUs then left over, kinds, free GPUs; most tasks first."""
        per_task, most = self.demand.gpu_count, self.demand.tasks
        bounds = []
        for kinds in self._by_count:
            for count in self._draft.buckets[kinds]:
                bound = min(most, count // per_task) if per_task else most
                if bound:
                    bounds.append((bound, count - bound * per_task, kinds, count))
        return sorted(bounds, key=lambda entry: (-entry[0], *entry[1:]))

    def _tasks_on(self, name: NodeName, count: int, by_count: bool) -> int:
        if name in self._barred:
            return 0
        free, per_task = self._draft.free[name], self.demand.gpu_count
        suitable = count if by_count else self._gpus_of(free)[1] * per_task
        return tasks_that_fit(suitable, free.cpus, free.memory_mb, self.demand)

    def _gpus_of(self, free: Free) -> tuple[int, int]:
        """Suitable GPUs, and the tasks that they alone would serve."""
        suitable, per_task = suitable_gpus(free.gpus, self.demand), self.demand.gpu_count
        slots = len(suitable) // per_task if self._mixed else one_model_slots(suitable, per_task)
        return len(suitable), slots

    def nodes(self) -> Iterator[NodeName]:
        """Ready nodes of the kinds that may serve."""
        for kinds in self._by_count:
            for names in self._draft.buckets[kinds].values():
                yield from names

    def gpu_room(self) -> GpuRoom:
        """What the free GPUs alone would allow, barred nodes included."""
        slots = free = best = 0
        per_task, most = self.demand.gpu_count, self.demand.tasks
        for kinds, by_count in self._by_count.items():
            for count, names in self._draft.buckets[kinds].items():
                if by_count:
                    on_each = [(count, count // per_task if per_task else most)]
                    times = len(names)
                else:
                    on_each = [self._gpus_of(self._draft.free[name]) for name in names]
                    times = 1
                for suitable, on_one in on_each:
                    slots, free, best = slots + on_one * times, free + suitable * times, max(best, suitable)
        return GpuRoom(slots, free, best)

    def gpu_slots(self) -> Iterator[tuple[int, Free]]:
        """For each node with GPUs for at least one task: for how many, and all that is free there."""
        per_task, most = self.demand.gpu_count, self.demand.tasks
        for kinds, by_count in self._by_count.items():
            for count, names in self._draft.buckets[kinds].items():
                for name in names:
                    free = self._draft.free[name]
                    by_number = count // per_task if per_task else most
                    slots = by_number if by_count else self._gpus_of(free)[1]
                    if slots:
                        yield slots, free


def judge(kinds: GpuKinds, demand: Demand, *, mixed: bool) -> Judged:
    """How to count the GPUs of a node of `kinds` for `demand`."""
    if not demand.gpu_count:
        return Judged.BY_COUNT
    suiting = [model for model, memory_mb in kinds if suits(_sample(model, memory_mb), demand)]
    if not suiting:
        return Judged.NEVER
    whole = len(suiting) == len(kinds)
    one_model = mixed or demand.gpu_count == 1 or len(set(suiting)) == 1
    return Judged.BY_COUNT if whole and one_model else Judged.BY_GPU


def mixing_helps(draft: Draft, demand: Demand) -> bool:
    """Could tasks of several models each (F4) fit where tasks of one model don't? Nobody who named a model is asked."""
    if demand.gpu_model or demand.gpu_count < 2:
        return False
    return any(len({model for model, _ in kinds}) > 1 for kinds in draft.buckets)


def _sample(model: str, memory_mb: int) -> Gpu:
    return Gpu(uuid=GpuUuid(""), index=0, model=model, memory_mb=memory_mb)
