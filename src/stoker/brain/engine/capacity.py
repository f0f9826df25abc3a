"""For how many tasks is there room, whatever CPUs and memory each asks beside its GPUs?

Naive: for each shape go through all nodes and add up the tasks that each holds. With ten thousand shapes that differ
only in memory this is most of a pass. Chosen: per number of CPUs one walk over the nodes; after it a wish for memory
is a look-up. A node with memory M and slots for n tasks takes its j-th task only if each asks at most M // j; so the
sorted list of all M // j, j from 1 to n, has at its upper end one entry for each task that finds room.
Price: a sort of as many entries as there are slots; so nodes are walked until they were walked that often.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand

UNBOUNDED: Final = 1 << 40
"""More tasks than any gang has: GPUs don't limit who asks for none."""


class GpuCapacity(NamedTuple):
    """What the GPUs alone would allow."""

    slots: int
    """Tasks, however many share a node."""
    spread: int
    """Tasks, with no more on a node than may share it."""
    free: int
    """Suitable GPUs free on all nodes."""
    best: int
    """The most on one node."""


CapacityRow = tuple[int, int, int]
"""Of a node whose GPUs serve at least one task: for how many, no more than may share it; free CPUs, free memory."""


class Capacity:
    """What is free for the tasks of one lane, from one moment of the draft on."""

    __slots__ = ("_beside", "_best_cpus", "_known", "_rows", "gpus", "version")

    def __init__(self, version: int, gpus: GpuCapacity, rows: Callable[[], list[CapacityRow]]) -> None:
        self.version = version
        self.gpus = gpus
        self._rows = rows
        self._known: list[CapacityRow] | None = None
        self._best_cpus = -1
        self._beside: dict[int, CpuCapacity] = {}

    def best_cpus(self) -> int:
        """The most CPUs on a node that has the GPUs."""
        if self._best_cpus < 0:
            self._best_cpus = max([cpus for _, cpus, _ in self._all()], default=0)
        return self._best_cpus

    def _all(self) -> list[CapacityRow]:
        # Only now, since most shapes are short of GPUs already. Later than at `version` less is free, which is as
        # good for saying no.
        if self._known is None:
            self._known = self._rows()
        return self._known

    def holds(self, demand: Demand) -> bool:
        beside = self.beside(demand.cpus)
        if demand.tasks == 1:
            return beside.tasks > 0 and beside.best_memory >= demand.memory_mb
        return beside.tasks >= demand.tasks <= beside.tasks_with(demand.memory_mb, enough=demand.tasks)

    def beside(self, cpus: int) -> "CpuCapacity":
        """The room of tasks that ask for so many CPUs each."""
        found = self._beside.get(cpus)
        if found is None:
            found = self._beside[cpus] = CpuCapacity(
                [
                    (min(slots, has // cpus) if cpus else slots, memory_mb)
                    for slots, has, memory_mb in self._all()
                    if has >= cpus
                ]
            )
        return found


class CpuCapacity:
    """The nodes that have GPUs and CPUs for at least one task: for how many, and their memory."""

    __slots__ = ("_floors", "_nodes", "_walked", "best_memory", "tasks")

    def __init__(self, nodes: list[tuple[int, int]]) -> None:
        self._nodes = nodes
        self._walked = 0
        self._floors: list[int] | None = None
        self.tasks = sum([tasks for tasks, _ in nodes])
        self.best_memory = max([memory_mb for _, memory_mb in nodes], default=0)

    def tasks_with(self, memory_mb: int, enough: int = UNBOUNDED) -> int:
        """The tasks that find room if each asks for so much memory too; `enough` or more when there are that many."""
        if not memory_mb:
            return self.tasks
        if memory_mb > self.best_memory:
            return 0
        if self._floors is None:
            if self._walked <= self.tasks:
                return self._walk(memory_mb, enough)
            self._floors = sorted([has // task for tasks, has in self._nodes for task in range(1, tasks + 1)])
        return len(self._floors) - bisect_left(self._floors, memory_mb)

    def _walk(self, memory_mb: int, enough: int) -> int:
        found = 0
        for tasks, has in self._nodes:
            self._walked += 1
            found += min(tasks, has // memory_mb)
            if found >= enough:
                break
        return found
