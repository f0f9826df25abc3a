"""For how many tasks is there room, whatever CPUs and memory each asks beside its GPUs?

Naive: for each shape go through all nodes and add up the tasks that each holds. With ten thousand shapes that differ
only in memory this is most of a pass. Chosen: per number of CPUs one walk over the nodes; after it a wish for memory
is a look-up. A node with memory M and slots for n tasks takes its j-th task only if each asks at most M // j; so the
sorted list of all M // j, j from 1 to n, has at its upper end one entry for each task that finds room.
Price: a sort per number of CPUs, of as many entries as there are slots; beyond FLOORS_MAX nodes are walked instead.
"""

from bisect import bisect_left
from typing import Final

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.node import Free

UNBOUNDED: Final = 1 << 40
"""More tasks than any gang has: GPUs don't limit who asks for none."""
FLOORS_MAX: Final = 1 << 14
"""Entries that are sorted for one number of CPUs."""


class Room:
    """What is free for the tasks of one lane, at one moment of the draft."""

    __slots__ = ("_beside", "_per_node", "_rows", "best", "best_cpus", "free", "slots", "spread", "version")

    def __init__(self, version: int, per_node: int) -> None:
        self.version = version
        self._per_node = per_node
        self._rows: list[tuple[int, int, int]] = []
        """Slots, CPUs and memory of each node whose GPUs serve at least one task."""
        self._beside: dict[int, Beside] = {}
        self.slots = 0
        """Tasks that the GPUs alone would serve, however many share a node."""
        self.spread = 0
        """The same, with no more on a node than may share it."""
        self.free = 0
        """Suitable GPUs on all nodes."""
        self.best = 0
        """The most on one node."""
        self.best_cpus = 0
        """The most CPUs on a node that has the GPUs."""

    def add(self, gpus: int, slots: int, free: Free) -> None:
        """One node, its suitable GPUs, and the tasks that these serve."""
        self.free += gpus
        self.best = max(self.best, gpus)
        if slots:
            here = min(slots, self._per_node)
            self.slots += slots
            self.spread += here
            self.best_cpus = max(self.best_cpus, free.cpus)
            self._rows.append((here, free.cpus, free.memory_mb))

    def holds(self, demand: Demand) -> bool:
        beside = self.beside(demand.cpus)
        if demand.tasks == 1:
            return beside.tasks > 0 and beside.best_memory >= demand.memory_mb
        return beside.tasks >= demand.tasks and beside.tasks_with(demand.memory_mb) >= demand.tasks

    def beside(self, cpus: int) -> "Beside":
        """The room of tasks that ask for so many CPUs each."""
        found = self._beside.get(cpus)
        if found is None:
            found = self._beside[cpus] = Beside(
                [
                    (min(slots, has // cpus) if cpus else slots, memory_mb)
                    for slots, has, memory_mb in self._rows
                    if has >= cpus
                ]
            )
        return found


class Beside:
    """The nodes that have GPUs and CPUs for at least one task: for how many, and their memory."""

    __slots__ = ("_floors", "_nodes", "best_memory", "tasks")

    def __init__(self, nodes: list[tuple[int, int]]) -> None:
        self._nodes = nodes
        self._floors: list[int] | None = None
        self.tasks = sum([tasks for tasks, _ in nodes])
        self.best_memory = max([memory_mb for _, memory_mb in nodes], default=0)

    def tasks_with(self, memory_mb: int) -> int:
        """The tasks that find room if each asks for so much memory too."""
        if not memory_mb:
            return self.tasks
        if memory_mb > self.best_memory:
            return 0
        if self.tasks > FLOORS_MAX:
            return sum([min(tasks, has // memory_mb) for tasks, has in self._nodes])
        if self._floors is None:
            self._floors = sorted([has // task for tasks, has in self._nodes for task in range(1, tasks + 1)])
        return len(self._floors) - bisect_left(self._floors, memory_mb)
