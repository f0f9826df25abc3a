"""Could this ever run here, if everything were empty?

Asked of every node that ever registered and is selected, lost and drained ones too, as a submit is judged.

Limits: nodes that are alike are judged once per lane, and no more of them than are needed to say yes. Most shapes are
        judged by their share alone: whoever asks for no more CPUs and memory per slot than each node of its lane has,
        fits if the slots suffice. Why nothing fits costs a walk over all that are alike.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import slots_ever, suitable_gpus, task_demand_text, tasks_ever
from stoker.brain.domain.node import Node
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.engine.capacity import UNBOUNDED
from stoker.brain.engine.demand_cache import DemandCache
from stoker.brain.state.view import NodeClass, View

_READY, _UNREACHABLE, _DRAINING, _FORGOTTEN = "ready", "unreachable", "draining", "forgotten"


class NodeClassStatus:
    """What is known of nodes that are alike. One for a pass: selections share it."""

    __slots__ = ("_nodes", "_of", "_slots", "free", "returning")

    def __init__(self, view: View) -> None:
        self._nodes = view.nodes
        self.free, self.returning = view.free, view.returning
        self._of: dict[NodeClass, dict[str, int]] = {}
        self._slots: dict[tuple[NodeClass, str, int, int], int] = {}

    def slots(self, alike: NodeClass, demand: Demand) -> int:
        """Tasks that the GPUs of each serve."""
        if not demand.gpu_count:
            return UNBOUNDED
        wish = alike, demand.gpu_model, demand.gpu_memory_mb, demand.gpu_count
        slots = self._slots.get(wish)
        if slots is None:
            slots = self._slots[wish] = slots_ever(alike.inventory.gpus, demand)
        return slots

    def of(self, alike: NodeClass) -> Mapping[str, int]:
        """How many are in service, and why the others aren't."""
        count = self._of.get(alike)
        if count is None:
            count = self._of[alike] = _tally()
            free, returning = self.free, self.returning
            for name in alike.names:
                count[_READY if name in free or name in returning else _word(self._nodes[name])] += 1
        return count


class _Row(NamedTuple):
    """What ready nodes that are alike have for a lane."""

    slots: int
    """Tasks that the GPUs of each serve, no more than may share a node."""
    cpus: int
    memory_mb: int
    nodes: int


class _Share(NamedTuple):
    """What the first rows together have."""

    tasks: int
    """Slots of all their nodes."""
    cpus: int
    """For each slot, on the node that has least."""
    memory_mb: int


class Satisfiability:
    """The nodes of one lane, as if nothing ran."""

    __slots__ = ("_class_status", "_demand_cache", "_more", "_rows", "_shares")

    def __init__(self, class_status: NodeClassStatus, lane: DemandCache) -> None:
        self._class_status = class_status
        self._demand_cache = lane
        self._rows: list[_Row] = []
        self._shares: list[_Share] = []
        self._more = self._make_rows()

    def never(self, demand: Demand) -> Reason | None:
        """Why the nodes that are ready wouldn't hold it even if they were empty; None when they would."""
        if self._within_share(demand):
            return None
        tasks, cpus, memory_mb, room = demand.tasks, demand.cpus, demand.memory_mb, 0
        rows, at = self._rows, 0
        while at < len(rows) or next(self._more, None) is not None:
            here, has_cpus, has_memory, nodes = rows[at]
            if cpus and here * cpus > has_cpus:
                here = has_cpus // cpus
            if memory_mb and here * memory_mb > has_memory:
                here = has_memory // memory_mb
            room += here * nodes
            if room >= tasks:
                return None
            at += 1
        return self._why(demand)

    def _within_share(self, demand: Demand) -> bool:
        while not self._shares or self._shares[-1].tasks < demand.tasks:
            if next(self._more, None) is None:
                return False
        share = self._shares[bisect_left(self._shares, demand.tasks, key=_tasks)]
        return demand.cpus <= share.cpus and demand.memory_mb <= share.memory_mb

    def _make_rows(self) -> Iterator[_Row]:
        """Makes one more with each step."""
        sample, per_node = self._demand_cache.sample, self._demand_cache.per_node
        all_tasks, least_cpus, least_memory = 0, UNBOUNDED, UNBOUNDED
        for alike in self._demand_cache.pool.admitted.alike:
            ready = self._class_status.of(alike)[_READY]
            has = alike.inventory
            slots = min(self._class_status.slots(alike, sample), per_node)
            if ready and slots:
                row = _Row(slots, has.cpus, has.memory_mb, ready)
                self._rows.append(row)
                shared = min(slots, max(has.cpus, 1))  # who asks for no GPU asks for a CPU
                all_tasks += shared * ready
                least_cpus = min(least_cpus, has.cpus // shared)
                least_memory = min(least_memory, has.memory_mb // shared)
                self._shares.append(_Share(all_tasks, least_cpus, least_memory))
                yield row

    def _why(self, demand: Demand) -> Reason:
        room, nodes = _tally(), _tally()
        for alike in self._demand_cache.pool.admitted.alike:
            tasks = tasks_ever(alike.inventory, demand)
            for word, count in self._class_status.of(alike).items():
                room[word] += tasks * count
                nodes[word] += count if tasks else 0
        if sum(room.values()) < demand.tasks:
            among = "that ever registered" if self._demand_cache.pool.admitted.everywhere else "that it selects"
            largest = self._largest(demand, sum(room.values()))
            return Reason(
                ReasonCode.NO_FITTING_NODE, {"asked": task_demand_text(demand), "among": among, "largest": largest}
            )
        del nodes[_READY]
        return Reason(ReasonCode.NODES_UNAVAILABLE, {"fitting": sum(nodes.values()), **nodes})

    def _largest(self, demand: Demand, room: int) -> str:
        """What the largest node has, in words that follow `the largest has`."""
        inventories = [alike.inventory for alike in self._demand_cache.pool.admitted.alike]
        if room:
            best = max(tasks_ever(each, demand) for each in inventories)
            most = f" (at most {demand.tasks_per_node} may share a node)" if demand.tasks_per_node else ""
            return f"room for {best} of its {demand.tasks} task(s){most}, all nodes together for {room}"
        has = [(len(suitable_gpus(each.gpus, demand)), each) for each in inventories]
        suit, top = max(has, key=lambda one: (one[0], len(one[1].gpus), one[1].cpus, one[1].memory_mb))
        return f"{len(top.gpus)} GPU(s), {suit} of them suitable, {top.cpus} CPU(s) and {top.memory_mb} MiB memory"


def _tasks(share: _Share) -> int:
    return share.tasks


def _tally() -> dict[str, int]:
    return {_READY: 0, _UNREACHABLE: 0, _DRAINING: 0, _FORGOTTEN: 0}


def _word(node: Node) -> str:
    """Why a node isn't in service."""
    if node.forgotten:
        return _FORGOTTEN
    return _DRAINING if node.reachable and node.drain is not None else _UNREACHABLE
