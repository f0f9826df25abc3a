"""Tables of free capacity, each shared by all shapes with one demand for GPUs per task and one set of candidate nodes.

A queue may hold ten thousand shapes, but they ask for few kinds of GPU, in few numbers, from few selections of nodes.
So whatever doesn't depend on CPUs, memory and the number of tasks is found once per demand for GPUs: which kinds of
node serve, how their GPUs are counted, and what capacity they have.

For how many tasks there is capacity, whatever CPUs and memory each asks beside its GPUs:
Naive: for each shape go through all nodes and add up the tasks that each holds. With ten thousand shapes that differ
only in memory this is most of a pass. Chosen: per number of CPUs one walk over the nodes; after it a demand for memory
is a look-up. A node with memory M and slots for n tasks takes its j-th task only if each asks at most M // j; so the
sorted list of all M // j, j from 1 to n, has at its upper end one entry for each task that fits.
Price: a sort of as many entries as there are slots; so nodes are walked until they were walked that often.

Rules: L1  a GPU serves when its model matches and its memory suffices (`domain.fit.suits`)
       L2  GPUs of one task are of one model, unless the cache is `mixed`
       L3  no node takes more tasks of a gang than `tasks_per_node` lets it
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import one_model_slots, suitable_gpus
from stoker.brain.domain.gpu import Gpu, model_matches
from stoker.brain.domain.node import Free
from stoker.brain.domain.reason import Reason
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import GpuKinds, NodeClass, SelectedNodes

UNBOUNDED: Final = 1 << 40
"""More tasks than any gang has: GPUs don't limit a demand for none."""
_MISSES_MAX: Final = 4
"""Searches that may fail in vain before a table is made that foresees it: a table costs about as much as two."""


class GpuCapacity(NamedTuple):
    """Capacity of nodes for tasks by their GPUs alone."""

    slots: int
    """Tasks, however many share a node."""
    spread: int
    """Tasks, with no more on a node than may share it."""
    free: int
    """Suitable GPUs free on all nodes."""
    best: int
    """The most on one node."""


CapacityRow = tuple[int, int, int]
"""Of a node whose GPUs serve at least one task: for how many, no more than may share it; free CPUs, free MiB."""


class _CpuRows(NamedTuple):
    """Nodes that have GPUs and CPUs for at least one task."""

    tasks: int
    """For how many, all together."""
    best_memory: int
    nodes: Sequence[tuple[int, int]]
    """For how many each, and its memory in MiB."""


class CapacityRows:
    """Rows of some nodes, most often of a class: of ten thousand selections each is made of a few dozen of them."""

    __slots__ = ("_by_cpus", "best_cpus", "rows")

    def __init__(self, rows: Sequence[CapacityRow]) -> None:
        self.rows = rows
        self.best_cpus = max([cpus for _, cpus, _ in rows], default=0)
        """The most CPUs on a node that has the GPUs."""
        self._by_cpus: dict[int, _CpuRows] = {}

    def with_cpus(self, cpus: int) -> _CpuRows:
        """Return what they hold of tasks that ask for so many CPUs each."""
        found = self._by_cpus.get(cpus)
        if found is None:
            nodes = [
                (min(slots, has // cpus) if cpus else slots, memory_mb)
                for slots, has, memory_mb in self.rows
                if has >= cpus
            ]
            tasks, best_memory = sum([each for each, _ in nodes]), max([has for _, has in nodes], default=0)
            found = self._by_cpus[cpus] = _CpuRows(tasks, best_memory, nodes)
        return found


class Capacity:
    """Free capacity of some nodes for tasks of one demand for GPUs."""

    __slots__ = ("_by_cpus", "_made", "_make_parts")

    def __init__(self, parts: Callable[[], Sequence[CapacityRows]]) -> None:
        self._make_parts = parts
        self._made: Sequence[CapacityRows] | None = None
        self._by_cpus: dict[int, CpuCapacity] = {}

    @property
    def _parts(self) -> Sequence[CapacityRows]:
        # Only when they are asked for, since most shapes are short of GPUs already. Later than when this was made less
        # is free, which is as good for saying no.
        if self._made is None:
            self._made = self._make_parts()
        return self._made

    @property
    def best_cpus(self) -> int:
        """The most CPUs on a node that has the GPUs."""
        return max([part.best_cpus for part in self._parts], default=0)

    def holds(self, demand: Demand) -> bool:
        """Return whether all tasks of the demand fit."""
        with_cpus = self.with_cpus(demand.cpus)
        if demand.tasks == 1:
            return with_cpus.tasks > 0 and with_cpus.best_memory >= demand.memory_mb
        return with_cpus.tasks >= demand.tasks <= with_cpus.tasks_with(demand.memory_mb, enough=demand.tasks)

    def with_cpus(self, cpus: int) -> "CpuCapacity":
        """Return the capacity for tasks that ask for so many CPUs each."""
        found = self._by_cpus.get(cpus)
        if found is None:
            found = self._by_cpus[cpus] = CpuCapacity([part.with_cpus(cpus) for part in self._parts])
        return found


class CpuCapacity:
    """The nodes that have GPUs and CPUs for at least one task: for how many, and their memory in MiB."""

    __slots__ = ("_floors", "_nodes", "_parts", "_walked", "best_memory", "tasks")

    def __init__(self, parts: Sequence[_CpuRows]) -> None:
        self._parts = parts
        self._nodes: Sequence[tuple[int, int]] | None = None
        self._walked = 0
        self._floors: list[int] | None = None
        self.tasks = sum([part.tasks for part in parts])
        self.best_memory = max([part.best_memory for part in parts], default=0)

    def tasks_with(self, memory_mb: int, enough: int = UNBOUNDED) -> int:
        """Return how many tasks fit if each asks for so much memory too.

        Any number from `enough` on may be returned when that many do.
        """
        if not memory_mb:
            return self.tasks
        if memory_mb > self.best_memory:
            return 0
        if self._floors is None:
            if self._nodes is None:
                self._nodes = [*chain.from_iterable([part.nodes for part in self._parts])]
            if self._walked <= self.tasks:
                return self._walk(self._nodes, memory_mb, enough)
            self._floors = sorted([has // task for tasks, has in self._nodes for task in range(1, tasks + 1)])
        return len(self._floors) - bisect_left(self._floors, memory_mb)

    def _walk(self, nodes: Sequence[tuple[int, int]], memory_mb: int, enough: int) -> int:
        found = 0
        for tasks, has in nodes:
            self._walked += 1
            found += min(tasks, has // memory_mb)
            if found >= enough:
                break
        return found


class GpuCounting(Enum):
    """A way to count the GPUs of a node for a demand."""

    NEVER = "none of its GPUs suits"
    BY_COUNT = "all free GPUs suit, so their number is enough to know"
    BY_GPU = "each free GPU must be looked at"


class GpuNumbers:
    """One demand for GPUs per task, and what numbers of free GPUs mean to it, whatever the selection.

    Naive: a table of what is free for each selection. But ten thousand jobs may select as many sets of nodes, of which
    most have as many nodes with as many free GPUs as others have; so what that is worth is found once for all of them.
    """

    __slots__ = (
        *("_capacities", "_how", "_newest", "_newest_serves", "_rows", "_rows_at"),
        *("at_most_anywhere", "draft", "per_node", "reasons", "sample"),
    )

    def __init__(self, draft: Draft, sample: Demand) -> None:
        self.draft = draft
        self.sample = sample
        """Any demand with the same GPUs per task."""
        self.per_node = sample.tasks_per_node or UNBOUNDED
        self._how: dict[GpuKinds, GpuCounting] = {}
        self._newest: GpuKinds | None = None
        """Kinds that were asked about last, most often the same, and whether it is enough to count their free GPUs."""
        self._newest_serves = False
        self._capacities: dict[int, GpuCapacity] = {}
        self._rows: dict[NodeClass, CapacityRows] = {}
        self._rows_at = -1
        self.reasons: dict[tuple[int, int], Reason] = {}
        """Why so many tasks wait for so many free GPUs: who explains keeps it here."""
        self.at_most_anywhere = UNBOUNDED if sample.shares else self.capacity(draft.packed_anywhere()).spread
        """No gang of more tasks found GPUs at the start, whatever it selects. Rests of shared GPUs aren't counted."""

    def how(self, kinds: GpuKinds) -> GpuCounting:
        """Return how the GPUs of nodes of these kinds are counted."""
        how = self._how.get(kinds)
        if how is None:
            how = self._how[kinds] = gpu_counting(kinds, self.sample, mixed=False)
        return how

    def serving(self, admitted: SelectedNodes) -> Sequence[NodeClass] | None:
        """Return the classes of nodes whose free GPUs serve, all of them; None = some must be looked at."""
        kinds = admitted.kinds
        if len(kinds) == 1:  # by far the most
            if kinds[0] is not self._newest:
                self._newest, self._newest_serves = kinds[0], self.how(kinds[0]) is GpuCounting.BY_COUNT
            if self._newest_serves:
                return admitted.classes
        how = [*map(self.how, kinds)]
        if GpuCounting.BY_GPU in how:
            return None
        if GpuCounting.NEVER not in how:
            return admitted.classes
        return [each for each in admitted.classes if self.how(each.kinds) is GpuCounting.BY_COUNT]

    def capacity(self, packed: int) -> GpuCapacity:
        """Return what these free GPUs would allow if all of them suited."""
        found = self._capacities.get(packed)
        if found is None:
            per_task, per_node = self.sample.gpu_count, self.per_node
            slots = spread = free = best = 0
            for gpus, nodes in self.draft.unpacked(packed).items():
                serves = gpus // per_task if per_task else UNBOUNDED
                slots += serves * nodes
                spread += min(serves, per_node) * nodes
                free, best = free + gpus * nodes, max(best, gpus)
            found = self._capacities[packed] = GpuCapacity(slots, spread, free, best)
        return found

    def nodes_without_rows(self, classes: Iterable[NodeClass]) -> int:
        """Return how many nodes of these classes must be looked at for their rows."""
        self._drop_stale_rows()
        return sum([len(each.names) for each in classes if each not in self._rows])

    def _drop_stale_rows(self) -> None:
        if self._rows_at != self.draft.version:
            self._rows.clear()
            self._rows_at = self.draft.version

    def rows(self, cache: "DemandCache") -> list[CapacityRows]:
        """Return the rows of the candidate nodes of a cache of this demand. Selections share those of a class."""
        self._drop_stale_rows()
        known, free = self._rows, self.draft.free
        found: list[CapacityRows] = []
        for kinds, by_count in cache.by_count.items():
            for node_class in cache.candidates.admitted.by_kinds[kinds]:
                rows = known.get(node_class)
                if rows is None:
                    free_on = [free[name] for name in node_class.names if name in free]
                    rows = known[node_class] = CapacityRows(cache.rows_of(free_on, by_count=by_count))
                found.append(rows)
        if cache.candidates.admitted.everywhere:  # of which there is one: then fewer parts are better
            return [CapacityRows([*chain.from_iterable([part.rows for part in found])])]
        return found


class DemandCache:
    """One demand for GPUs per task on the candidate nodes of one selection.

    What was too much at one time of a pass is too much at every later one, until something was put back (`grown` of
    the draft). So old numbers are good enough to say no.
    """

    __slots__ = (
        *("_at_most", "_at_most_grown", "_capacity", "_capacity_at", "_capacity_grown", "_misses", "by_count"),
        *("candidates", "gpu_count", "mixed", "numbers", "per_node", "sample"),
    )

    def __init__(
        self, candidates: CandidateNodes, sample: Demand, *, mixed: bool, numbers: GpuNumbers | None = None
    ) -> None:
        """`numbers` are those of the demand, shared with other selections; None = nothing is shared."""
        self.candidates = candidates
        self.numbers = numbers
        self.sample = sample
        """Any demand with the same GPUs per task."""
        self.mixed = mixed
        self.gpu_count = sample.gpu_count
        self.per_node = sample.tasks_per_node or UNBOUNDED
        self.by_count: dict[GpuKinds, bool] = {}
        """Kinds that may serve, and whether counting their free GPUs is enough."""
        for kinds in candidates.kinds:
            how = gpu_counting(kinds, sample, mixed=mixed)
            if how is not GpuCounting.NEVER:
                self.by_count[kinds] = how is GpuCounting.BY_COUNT
        self._at_most, self._at_most_grown = UNBOUNDED, -1
        self._misses = 0
        self._capacity: Capacity | None = None
        self._capacity_at = self._capacity_grown = -1

    def slots(self, gpus: int) -> int:
        """Return how many tasks so many suitable GPUs of one model serve."""
        return gpus // self.gpu_count if self.gpu_count else UNBOUNDED

    def _counts(self) -> Iterator[tuple[int, int]]:
        counts = self.candidates.counts()
        for kinds in self.by_count:
            yield from counts[kinds].items()

    def at_most(self) -> int:
        """Return a number of tasks beyond which no gang finds GPUs."""
        if self._at_most_grown != self.candidates.draft.grown:
            per_task, per_node = self.gpu_count, self.per_node
            found, counts = 0, self.candidates.counts()
            for kinds in self.by_count:
                for count, nodes in counts[kinds].items():
                    slots = count // per_task if per_task else UNBOUNDED
                    found += (slots if slots < per_node else per_node) * nodes
            self._at_most = found
            self._at_most_grown = self.candidates.draft.grown
        return self._at_most

    def knows_at_most(self, tasks: int, grown: int) -> None:
        """Be told what `at_most` is to return while `grown` of the draft is this."""
        self._at_most, self._at_most_grown = tasks, grown

    def at_most_now(self) -> int:
        """Return the same, also counting what was taken since it was last asked for."""
        self._at_most_grown = -1
        return self.at_most()

    def may_hold(self, tasks: int) -> bool:
        """Return whether there are enough free GPUs if all of them suited: a cheap no for most blocked shapes."""
        if tasks > self.at_most():
            return False
        per_task, per_node = self.gpu_count, self.per_node
        found, by_free = 0, self.candidates.by_free()
        for kinds in self.by_count:
            for count, names in by_free[kinds].items():
                slots = count // per_task if per_task else UNBOUNDED
                found += (slots if slots < per_node else per_node) * len(names)
                if found >= tasks:
                    return True
        self._at_most = found
        return False

    def node_count(self) -> int:
        """Return how many nodes take work and may serve."""
        return sum(nodes for _, nodes in self._counts())

    def foresees_no(self, demand: Demand) -> bool:
        """Return whether a table made after searches in vain already says no."""
        if self._capacity is None or self._capacity_grown != self.candidates.draft.grown:
            return False
        return not self._capacity.holds(demand)

    def missed(self) -> None:
        """Note that a search was in vain."""
        self._misses += 1
        if self._misses % _MISSES_MAX == 0:
            self.capacity()
            self._capacity_at = -1  # its rows are read later, when less may be free: good for a no, not for numbers

    def capacity(self) -> Capacity:
        """Return what is free now."""
        draft = self.candidates.draft
        if self._capacity is None or self._capacity_at != draft.version:
            self._capacity, self._capacity_at, self._capacity_grown = Capacity(self.rows), draft.version, draft.grown
        return self._capacity

    def gpu_capacity(self) -> GpuCapacity:
        """Return what the GPUs that are free now would allow."""
        if self.numbers is not None and not self.candidates.admitted.everywhere and all(self.by_count.values()):
            classes = [each for kinds in self.by_count for each in self.candidates.admitted.by_kinds[kinds]]
            return self.numbers.capacity(self.numbers.draft.packed(classes))
        slots = spread = free = best = 0
        per_task, per_node, counts = self.gpu_count, self.per_node, self.candidates.counts()
        for kinds, by_count in self.by_count.items():
            if by_count:
                serving = [
                    (count, count // per_task if per_task else UNBOUNDED, n) for count, n in counts[kinds].items()
                ]
            else:
                serving = [(*self.gpus_of(each.gpus), 1) for each in self._free_on(kinds)]
            for gpus, serves, nodes in serving:
                slots += serves * nodes
                spread += (serves if serves < per_node else per_node) * nodes
                free += gpus * nodes
                if gpus > best:
                    best = gpus
        return GpuCapacity(slots, spread, free, best)

    def rows(self) -> list[CapacityRows]:
        """Return what is free now on the candidate nodes that serve."""
        if self.numbers is not None:
            return self.numbers.rows(self)
        rows: list[CapacityRow] = []
        for kinds, by_count in self.by_count.items():
            rows += self.rows_of(self._free_on(kinds), by_count=by_count)
        return [CapacityRows(rows)]

    def rows_of(self, frees: Iterable[Free], *, by_count: bool = False) -> list[CapacityRow]:
        """Return the rows of nodes that have this free, those that serve. `by_count`: all their GPUs suit."""
        rows: list[CapacityRow] = []
        for free in frees:
            serves = self.slots(len(free.gpus)) if by_count else self.gpus_of(free.gpus)[1]
            if serves:
                rows.append((min(serves, self.per_node), free.cpus, free.memory_mb))
        return rows

    def _free_on(self, kinds: GpuKinds) -> Iterator[Free]:
        yield from self.candidates.free_on(kinds)

    def gpus_of(self, gpus: Sequence[Gpu]) -> tuple[int, int]:
        """Return the number of suitable GPUs of one node, and of the tasks that they alone would serve."""
        suitable = suitable_gpus(gpus, self.sample)
        if self.mixed or self.gpu_count < 2:
            return len(suitable), self.slots(len(suitable))
        return len(suitable), one_model_slots(suitable, self.gpu_count)


def gpu_counting(kinds: GpuKinds, demand: Demand, *, mixed: bool) -> GpuCounting:
    """Return how to count the GPUs of a node of `kinds` for `demand`."""
    if not demand.gpu_count:
        return GpuCounting.BY_COUNT
    return _gpu_counting(kinds, demand.gpu_model, demand.gpu_memory_mb, mixed or demand.gpu_count == 1)


# A cluster has few kinds of node and its users few demands, and the engine asks for each pair of them in each pass.
@lru_cache(maxsize=4_096)
def _gpu_counting(kinds: GpuKinds, wanted: str, at_least_mb: int, any_model: bool) -> GpuCounting:
    suiting = [model for model, memory_mb in kinds if memory_mb >= at_least_mb and model_matches(wanted, model)]
    if not suiting:
        return GpuCounting.NEVER
    whole = len(suiting) == len(kinds)
    return GpuCounting.BY_COUNT if whole and (any_model or len(set(suiting)) == 1) else GpuCounting.BY_GPU


def mixing_helps(candidates: CandidateNodes, demand: Demand) -> bool:
    """Return whether tasks of several models each (L2) may fit where tasks of one model don't.

    A demand that names a model is never mixed.
    """
    if demand.gpu_model or demand.gpu_count < 2:
        return False
    return any(len(kinds) > 1 and len({model for model, _ in kinds}) > 1 for kinds in candidates.kinds)
