"""Reasons why shapes wait for which a pass found no place.

Rules: X1  no node ever registered: `no_nodes`; none that is selected: `no_selected_node`
       X9  none that is selected, since no node runs containers now: `no_container_node`
       X2  not even all selected nodes ever registered would hold it: `no_fitting_node`
       X3  the selected nodes that are ready wouldn't hold it even if they were empty: `gpus_unread` where GPUs would
           help that they have and can't read, `nodes_paused` where they would together with those in a pause, else
           `nodes_unavailable`
       X4  only rendezvous ports are missing: `no_free_port`
       X5  else what is short, in the order GPUs, nodes to spread over (`tasks_per_node`), CPUs, memory: the first that
           alone is enough to say no
       X6  numbers are those at the end of the pass: what it placed is no longer called free
       X8  else it would fit beside what is kept for jobs before it: `guarantee_kept` or `reserved`
       X7  before X2 to X5: with what is free on nodes that haven't returned it would fit: `nodes_returning`
"""

from collections.abc import Mapping, Sequence
from typing import Final

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.gpu import gpus_number
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import CONTAINERS, label_of
from stoker.brain.domain.node import Free
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import nodes_text
from stoker.brain.domain.where import where_text
from stoker.brain.engine.demand_cache import Capacity, CapacityRows, DemandCache, GpuCapacity, GpuNumbers
from stoker.brain.engine.satisfiability import NodeClassStatus, ReadyTasks, Satisfiability
from stoker.brain.engine.shares import ShareCache
from stoker.brain.state.view import NodeClass, View

_ASKED_MAX: Final = 400
"""Characters of a selection that a reason repeats."""
_UNTAINTED: Final = "nodes without taints"


def no_free_port(address: str, policy: Policy) -> Reason:
    return Reason(ReasonCode.NO_FREE_PORT, {"address": address, "ports_max": policy.port_max - policy.port_min + 1})


def budget_spent(placed: int) -> Reason:
    return Reason(ReasonCode.BUDGET_SPENT, {"placed": placed})


def guarantee_kept(free: int, kept: int, demand: Demand) -> Reason:
    asked = gpus_number(demand.total_milli)
    return Reason(ReasonCode.GUARANTEE_KEPT, {"free": free, "kept": kept, "asked": asked})


def reserved(kept: int, reservations: Sequence[Reservation]) -> Reason:
    first = reservations[0]
    facts = {"kept": kept, "jobs": len(reservations), "job": first.job, "until": first.at}
    return Reason(ReasonCode.RESERVED, {**facts})


def none_selected(view: View, shape: Shape) -> Reason:
    """Return why no node is selected (X1)."""
    if not view.nodes:
        return Reason(ReasonCode.NO_NODES)
    wants_container = any(each.key == CONTAINERS for each in shape.where.require)
    if wants_container and not any(label_of(node, CONTAINERS) for node in view.nodes.values()):
        return _no_container_node(view)
    asked = [where_text(shape.where)]
    partition = view.partitions.get(shape.partition)
    if partition is not None:
        asked.append(f"partition {partition.name} ({where_text(partition.where) or _UNTAINTED})")
    nodes = nodes_text(view.tenants, shape.tenant)
    asked += [f"tenant {shape.tenant} (nodes {nodes})"] * bool(nodes)
    words = ", ".join(filter(None, asked)) or _UNTAINTED
    return Reason(ReasonCode.NO_SELECTED_NODE, {"nodes": len(view.nodes), "asked": words[:_ASKED_MAX]})


class GpuShortage:
    """Shapes that are short of GPUs by numbers of free GPUs alone, asked at the end of a pass (X6)."""

    def __init__(self, class_status: NodeClassStatus) -> None:
        self._class_status = class_status
        self._ready_tasks: dict[tuple[GpuNumbers, int, int], ReadyTasks] = {}
        """By demand for GPUs, and CPUs and memory of a task."""
        self._is_said_elsewhere = bool(class_status.returning)
        """Nodes that haven't returned may be what is missing."""

    def why(self, numbers: GpuNumbers, packed: int, classes: Sequence[NodeClass], demand: Demand) -> Reason | None:
        """Return that GPUs are short, where so many nodes with so many free GPUs say so (X5); None = look closer."""
        if self._is_said_elsewhere:
            return None
        key = packed, demand.tasks
        reason = numbers.reasons.get(key)
        if reason is None:
            capacity = numbers.capacity(packed)
            if capacity.slots >= demand.tasks:
                return None
            reason = numbers.reasons[key] = _too_few_gpus(demand, capacity)
        beside = numbers, demand.cpus, demand.memory_mb
        ready = self._ready_tasks.get(beside)
        if ready is None:
            capacity_of = self._class_status.ready_capacity(numbers.sample, numbers.per_node)
            ready = self._ready_tasks[beside] = ReadyTasks(capacity_of, demand)
        return reason if ready.hold(demand.tasks, classes) else None


def _too_few_gpus(demand: Demand, gpus: GpuCapacity) -> Reason:
    asked = {"needed": demand.total_gpus, "tasks": demand.tasks, "per_task": demand.gpu_count}
    return Reason(ReasonCode.INSUFFICIENT_GPUS, {**asked, "free": gpus.free, "best": gpus.best})


class Deciding:
    """The shape that is being decided on, which a fault is blamed on (D9); None = none in particular."""

    __slots__ = ("shape",)

    def __init__(self) -> None:
        self.shape: Shape | None = None


def _no_container_node(view: View) -> Reason:
    """Return why no node runs containers, with the words of the first that would (X9)."""
    names = sorted(name for name, node in view.nodes.items() if node.inventory.containers_fault)
    if not names:
        return Reason(ReasonCode.NO_CONTAINER_NODE, {"fault": ""})
    words = f": node {names[0]} would, but {view.nodes[names[0]].inventory.containers_fault[:_ASKED_MAX]}"
    return Reason(ReasonCode.NO_CONTAINER_NODE, {"fault": words, "node": names[0], "nodes": len(names)})


class WaitExplanation:
    """Explanation of why shapes with one demand for GPUs wait, asked at the end of a pass (X6)."""

    __slots__ = ("_cache", "_gpus", "_of_cpus", "_of_gpus", "_returning", "_satisfiability", "_together")

    def __init__(self, class_status: NodeClassStatus, cache: DemandCache) -> None:
        self._cache = cache
        self._satisfiability = Satisfiability(class_status, cache)
        self._gpus = cache.gpu_capacity()
        self._returning = 0
        self._together: Capacity | None = None
        """Nodes that haven't returned and have GPUs free for it, and the capacity of them and all others."""
        if class_status.returning:
            self._count_returning(class_status.returning)
        self._of_gpus: dict[int, Reason] = {}
        """By number of tasks: many shapes differ only in what they ask beside their GPUs."""
        self._of_cpus: dict[tuple[int, int], Reason] = {}
        """By CPUs of a task and number of tasks."""

    @property
    def gpus_free(self) -> int:
        """Suitable GPUs free on all nodes."""
        return self._gpus.free

    def _count_returning(self, away: Mapping[NodeName, Free]) -> None:
        cache = self._cache
        names = (name for each in cache.candidates.admitted.classes for name in each.names if name in away)
        rows = cache.rows_of(away[name] for name in names)
        self._returning, self._together = len(rows), Capacity(lambda: [*cache.rows(), CapacityRows(rows)])

    def whys(self, shapes: Sequence[Shape], deciding: Deciding) -> list[Reason | None]:
        """Return the reason of each shape by X2, X3, X5 and X7; None when it would fit, but for ports.

        Naive: ask one after the other. But of ten thousand shapes most would fit if nothing ran, and are short of GPUs:
        that is found here without a call for each, in half the time.
        """
        slots, cpus, memory_mb, nodes = self._satisfiability.largest(len(shapes))
        free, of_gpus, found = self._gpus.slots, self._of_gpus, list[Reason | None]()
        for shape in shapes:
            deciding.shape = shape
            demand = shape.demand
            tasks, here, reason = demand.tasks, slots, None
            if here * demand.cpus > cpus:
                here = cpus // demand.cpus
            if here * demand.memory_mb > memory_mb:
                here = memory_mb // demand.memory_mb
            fits_empty = here * nodes >= tasks
            if fits_empty and tasks > free:
                reason = of_gpus.get(tasks)
            if reason is None:
                reason = self._short_of(demand) if fits_empty and not self._together else self._why(demand)
            found.append(reason)
        return found

    def _why(self, demand: Demand) -> Reason | None:
        together = self._together
        if together and self._returning and together.holds(demand) and not self._cache.capacity().holds(demand):
            return Reason(ReasonCode.NODES_RETURNING, {"returning": self._returning})
        return self._satisfiability.never(demand) or self._short_of(demand)

    def _short_share(self, demand: Demand) -> Reason:
        asked: Facts = {"share": gpus_number(demand.gpu_share), "tasks": demand.tasks, "room": self._gpus.slots}
        found = self._cache.largest_rest() if isinstance(self._cache, ShareCache) else None
        facts: Facts = {**asked, "memory_mb": demand.gpu_memory_mb}
        if found is not None:
            rest, node = found
            left: Facts = {"best": gpus_number(rest.left), "best_memory_mb": rest.memory_left_mb}
            most = self._cache.candidates.draft.gpu_sharers_max
            facts |= {**left, "sharers": rest.sharers, "sharers_max": most, "node": node}
        return Reason(ReasonCode.INSUFFICIENT_SHARE, facts)

    def _short_of(self, demand: Demand) -> Reason | None:
        gpus, tasks = self._gpus, demand.tasks
        if gpus.slots < tasks and demand.shares:
            return self._short_share(demand)
        if gpus.slots < tasks:
            reason = _too_few_gpus(demand, gpus)
            if self._together is None:
                self._of_gpus[tasks] = reason
            return reason
        if gpus.spread < tasks:
            spread: Facts = {"tasks": tasks, "per_node": demand.tasks_per_node, "room": gpus.spread}
            return Reason(ReasonCode.INSUFFICIENT_NODES, spread)
        capacity = self._cache.capacity()
        with_cpus = capacity.with_cpus(demand.cpus)
        if with_cpus.tasks < tasks:
            key = demand.cpus, tasks
            if key not in self._of_cpus:
                room = {"best": capacity.best_cpus, "tasks": tasks, "room": with_cpus.tasks}
                self._of_cpus[key] = Reason(ReasonCode.INSUFFICIENT_CPUS, {"needed": demand.cpus, **room})
            return self._of_cpus[key]
        with_memory = with_cpus.tasks_with(demand.memory_mb)
        if with_memory < tasks:
            return Reason(
                ReasonCode.INSUFFICIENT_MEMORY,
                {"needed": demand.memory_mb, "best": with_cpus.best_memory, "tasks": tasks, "room": with_memory},
            )
        return None
