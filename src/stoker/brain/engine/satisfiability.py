"""Satisfiability: whether the nodes of a selection would hold a demand if nothing ran on them.

Asked of every node that ever registered and is selected, lost and drained ones too, as a submit is judged.

Limits: nodes of one class are judged once per demand for GPUs, and no more classes than are needed to say yes. Why
        nothing fits costs a walk over all classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.fit import slots_ever, suitable_gpus, task_demand_text, tasks_ever, tasks_perhaps
from stoker.brain.domain.ids import NodeName, account_of
from stoker.brain.domain.node import Node
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import counted, utc_text
from stoker.brain.engine.demand_cache import UNBOUNDED, DemandCache
from stoker.brain.state.view import NodeClass, View

MODELS_SHOWN_MAX: Final = 4
_READY, _PAUSED, _FORGOTTEN = "ready", "paused", "forgotten"
_UNREACHABLE, _FAULTY, _DRAINING = "unreachable", "faulty", "draining"


class ReadyCapacity(NamedTuple):
    """Capacity of the ready nodes of a class for a demand for GPUs."""

    slots: int
    """Tasks that the GPUs of each serve, no more than may share a node."""
    cpus: int
    memory_mb: int
    nodes: int


class NodeClassStatus:
    """Availability of the nodes of each class, computed once for a pass and shared by selections."""

    __slots__ = ("_counts", "_firsts", "_nodes", "_ready", "_slots", "free", "returning")

    def __init__(self, view: View) -> None:
        self._nodes = view.nodes
        self.free, self.returning = view.free, view.returning
        self._counts: dict[NodeClass, dict[str, int]] = {}
        self._firsts: dict[NodeClass, dict[str, NodeName]] = {}
        self._ready: dict[tuple[str, int, int, int, int], ReadyByClass] = {}
        """By demand for GPUs, and how many tasks may share a node."""
        self._slots: dict[tuple[NodeClass, str, int, int, int], int] = {}

    def slots(self, node_class: NodeClass, demand: Demand) -> int:
        """Return how many tasks the GPUs of each node serve."""
        if not demand.gpu_count:
            return UNBOUNDED
        key = node_class, demand.gpu_model, demand.gpu_memory_mb, demand.gpu_count, demand.gpu_share
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = slots_ever(node_class.inventory.gpus, demand)
        return slots

    def ready_capacity(self, sample: Demand, per_node: int) -> "ReadyByClass":
        """Return what ready nodes would hold of a demand for GPUs. Selections share the answer."""
        key = sample.gpu_model, sample.gpu_memory_mb, sample.gpu_count, sample.gpu_share, per_node
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = ReadyByClass(self, sample, per_node)
        return found

    def counts(self, node_class: NodeClass) -> Mapping[str, int]:
        """Return how many nodes are in service, and how many aren't for which reason."""
        counts = self._counts.get(node_class)
        if counts is None:
            counts = self._counts[node_class] = _tally()
            firsts = self._firsts[node_class] = {}
            for name in node_class.names:
                word = _READY if self._is_ready(name) else _word(self._nodes[name])
                counts[word] += 1
                firsts.setdefault(word, name)
        return counts

    def sample(self, node_class: NodeClass) -> Node:
        """Return one of the nodes, which have the same GPUs, those among them that can't be read."""
        return self._nodes[node_class.names[0]]

    def ready_nodes(self, node_class: NodeClass) -> list[Node]:
        """Return those of the nodes that are in service."""
        return [self._nodes[name] for name in node_class.names if self._is_ready(name)]

    def _is_ready(self, name: NodeName) -> bool:
        return name in self.free or name in self.returning

    def barred(self, classes: Iterable[NodeClass]) -> Facts:
        """Return facts about the first of the nodes that a person drains, else the first in a pause; empty = none."""
        firsts = [self._firsts[each] for each in classes]
        drained = min((first[_DRAINING] for first in firsts if _DRAINING in first), default=None)
        if drained is not None:
            node = self._nodes[drained]
            by = f" by {account_of('', node.drained_by)}" if node.drained_by else ""
            return {"node": node.name, "drained": f"{node.name} drained{by}{f': {node.drain}' if node.drain else ''}"}
        paused = min((first[_PAUSED] for first in firsts if _PAUSED in first), default=None)
        return {} if paused is None else {"node": paused}

    def paused(self, classes: Iterable[NodeClass]) -> Reason:
        """Return the reason of jobs that wait for those nodes of the classes that are in a pause; there are some."""
        nodes = [self._nodes[name] for each in classes for name in each.names]
        pauses = [
            (node.pause.until, node.name, node.pause.error) for node in nodes if node.pause and _word(node) == _PAUSED
        ]
        until, name, error = min(pauses)
        facts: Facts = {"node": name, "until": utc_text(until), "until_ms": until, "error": error}
        return Reason(ReasonCode.NODES_PAUSED, {"paused": len(pauses), **facts})


class ReadyByClass(dict[NodeClass, ReadyCapacity]):
    """Capacity of the ready nodes of classes for one demand for GPUs, made when a class is first asked for."""

    def __init__(self, class_status: NodeClassStatus, sample: Demand, per_node: int) -> None:
        super().__init__()
        self._class_status, self._sample, self._per_node = class_status, sample, per_node

    def __missing__(self, node_class: NodeClass) -> ReadyCapacity:
        ready, has = self._class_status.counts(node_class)[_READY], node_class.inventory
        slots = min(self._class_status.slots(node_class, self._sample), self._per_node)
        row = self[node_class] = ReadyCapacity(slots, has.cpus, has.memory_mb, ready)
        return row

    def hold(self, demand: Demand, classes: Iterable[NodeClass]) -> bool:
        """Return whether the ready nodes of these classes would hold a demand with these GPUs if nothing ran there."""
        tasks, cpus, memory_mb, found = demand.tasks, demand.cpus, demand.memory_mb, 0
        for here, has_cpus, has_memory, nodes in map(self.__getitem__, classes):
            if cpus and here * cpus > has_cpus:
                here = has_cpus // cpus
            if memory_mb and here * memory_mb > has_memory:
                here = has_memory // memory_mb
            found += here * nodes
            if found >= tasks:
                return True
        return False


class ReadyTasks(dict[NodeClass, int]):
    """Tasks of one demand that the ready nodes of each class would hold: what `hold` adds up, for all selections."""

    def __init__(self, ready: ReadyByClass, demand: Demand) -> None:
        super().__init__()
        self._ready, self._cpus, self._memory_mb = ready, demand.cpus, demand.memory_mb

    def __missing__(self, node_class: NodeClass) -> int:
        here, has_cpus, has_memory, nodes = self._ready[node_class]
        if self._cpus:
            here = min(here, has_cpus // self._cpus)
        if self._memory_mb:
            here = min(here, has_memory // self._memory_mb)
        tasks = self[node_class] = here * nodes
        return tasks

    def hold(self, tasks: int, classes: Sequence[NodeClass]) -> bool:
        """Return whether these classes would hold so many tasks. The first alone would most often."""
        return bool(classes) and (self[classes[0]] >= tasks or sum(map(self.__getitem__, classes)) >= tasks)


class Satisfiability:
    """The candidate nodes of one demand for GPUs, as if nothing ran."""

    __slots__ = ("_cache", "_class_status", "_ready")

    def __init__(self, class_status: NodeClassStatus, cache: DemandCache) -> None:
        self._class_status = class_status
        self._cache = cache
        self._ready = class_status.ready_capacity(cache.sample, cache.per_node)

    def largest(self, shapes: int) -> ReadyCapacity:
        """Return the capacity of some ready nodes, which would hold most of so many shapes if they were empty.

        Of as many nodes with equal capacity as pays for so many shapes: those that only labels tell apart count as one.
        """
        classes = self._cache.candidates.admitted.classes
        if shapes < len(classes):
            return self._ready[classes[0]]
        nodes: dict[tuple[int, int, int], int] = {}
        for slots, cpus, memory_mb, count in map(self._ready.__getitem__, classes):
            nodes[slots, cpus, memory_mb] = nodes.get((slots, cpus, memory_mb), 0) + count
        (slots, cpus, memory_mb), count = max(nodes.items(), key=lambda each: (each[1], each[0]))
        return ReadyCapacity(slots, cpus, memory_mb, count)

    def never(self, demand: Demand) -> Reason | None:
        """Return why the nodes that are ready wouldn't hold it even if they were empty; None when they would."""
        holds = self._ready.hold(demand, self._cache.candidates.admitted.classes)
        return None if holds else self._why(demand)

    def _why(self, demand: Demand) -> Reason:
        admitted = self._cache.candidates.admitted
        room, nodes, unread = _tally(), _tally(), list[Node]()
        for each in admitted.classes:
            node = self._class_status.sample(each)
            tasks = tasks_perhaps(node, demand)
            for word, count in self._class_status.counts(each).items():
                room[word] += tasks * count
                nodes[word] += count if tasks else 0
            if node.inventory.gpu_fault and tasks > tasks_ever(each.inventory, demand):
                unread += self._class_status.ready_nodes(each)
        fitting = sum(room.values())
        if fitting < demand.tasks:
            among = "that ever registered" if admitted.everywhere else "that it selects"
            largest = self._largest(demand, fitting)
            return Reason(
                ReasonCode.NO_FITTING_NODE, {"asked": task_demand_text(demand), "among": among, "largest": largest}
            )
        if unread:
            fault = unread[0].inventory.gpu_fault
            return Reason(ReasonCode.GPUS_UNREAD, {"nodes": len(unread), "node": unread[0].name, "fault": fault})
        if nodes[_PAUSED] and room[_READY] + room[_PAUSED] >= demand.tasks:
            return self._class_status.paused(
                each for each in admitted.classes if tasks_perhaps(self._class_status.sample(each), demand)
            )
        del nodes[_READY]
        named = self._class_status.barred(
            each for each in admitted.classes if tasks_perhaps(self._class_status.sample(each), demand)
        )
        return Reason(ReasonCode.NODES_UNAVAILABLE, {"fitting": sum(nodes.values()), **nodes, **named})

    def _largest(self, demand: Demand, fitting: int) -> str:
        """What the largest node has, in words that follow `the largest has`."""
        nodes = [self._class_status.sample(each) for each in self._cache.candidates.admitted.classes]
        if fitting:
            best = max(tasks_perhaps(each, demand) for each in nodes)
            most = f" (at most {demand.tasks_per_node} may share a node)" if demand.tasks_per_node else ""
            return f"room for {best} of its {counted(demand.tasks, 'task')}{most}, all nodes together for {fitting}"
        has = [(len(suitable_gpus(each.mended.gpus, demand)), each.mended) for each in nodes]
        suit, top = max(has, key=lambda one: (one[0], len(one[1].gpus), one[1].cpus, one[1].memory_mb))
        gpus, cpus = counted(len(top.gpus), "GPU"), counted(top.cpus, "CPU")
        models = ", ".join(sorted({gpu.model for gpu in top.gpus})[:MODELS_SHOWN_MAX])
        suitable = f"{suit} of them suitable" if suit or not top.gpus else f"none of them suitable ({models})"
        return f"{gpus}, {suitable}, {cpus} and {top.memory_mb} MiB memory"


def _tally() -> dict[str, int]:
    return dict.fromkeys((_READY, _UNREACHABLE, _FAULTY, _DRAINING, _PAUSED, _FORGOTTEN), 0)


def _word(node: Node) -> str:
    """Why a node isn't in service."""
    if node.forgotten:
        return _FORGOTTEN
    if not node.reachable:
        return _UNREACHABLE
    if node.inventory.fault:
        return _FAULTY
    return _PAUSED if node.drain is None else _DRAINING
