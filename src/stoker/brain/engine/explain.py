"""Why does a shape that was searched for and not found have to wait?

Rules: X1  no node ever registered: `no_nodes`; none that is selected: `no_selected_node`
       X2  not even all selected nodes ever registered would hold it: `no_fitting_node`
       X3  the selected nodes that are ready wouldn't hold it even if they were empty: `nodes_unavailable`
       X4  only rendezvous ports are missing: `no_free_port`
       X5  else what is short, in the order GPUs, nodes to spread over (`tasks_per_node`), CPUs, memory: the first that
           alone is enough to say no
       X6  numbers are those at the end of the pass: what it placed is no longer called free
       X7  before X2 to X5: with what is free on nodes that haven't returned it would fit: `nodes_returning`
"""

from typing import Final

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.where import where_text
from stoker.brain.engine.capacity import Capacity, GpuCapacity
from stoker.brain.engine.demand_cache import DemandCache
from stoker.brain.engine.satisfiability import NodeClassStatus, Satisfiability
from stoker.brain.state.view import View

_ASKED_MAX: Final = 400
"""Characters of a selection that a reason repeats."""
_UNTAINTED: Final = "nodes without taints"


def no_free_port(address: str, policy: Policy) -> Reason:
    return Reason(ReasonCode.NO_FREE_PORT, {"address": address, "ports_max": policy.port_max - policy.port_min + 1})


def budget_spent(placed: int) -> Reason:
    return Reason(ReasonCode.BUDGET_SPENT, {"placed": placed})


def guarantee_kept(free: int, kept: int, demand: Demand) -> Reason:
    return Reason(ReasonCode.GUARANTEE_KEPT, {"free": free, "kept": kept, "asked": demand.total_gpus})


def none_selected(view: View, shape: Shape) -> Reason:
    """X1"""
    if not view.nodes:
        return Reason(ReasonCode.NO_NODES)
    asked = [where_text(shape.where)]
    partition = view.partitions.get(shape.partition)
    if partition is not None:
        asked.append(f"partition {partition.name} ({where_text(partition.where) or _UNTAINTED})")
    words = ", ".join(filter(None, asked)) or _UNTAINTED
    return Reason(ReasonCode.NO_SELECTED_NODE, {"nodes": len(view.nodes), "asked": words[:_ASKED_MAX]})


class WaitExplanation:
    """Why the shapes of one lane wait. To be asked at the end of a pass (X6)."""

    __slots__ = ("_away", "_demand_cache", "_of_gpus", "_room", "_satisfiability")

    def __init__(self, class_status: NodeClassStatus, lane: DemandCache) -> None:
        self._demand_cache = lane
        self._satisfiability = Satisfiability(class_status, lane)
        self._room: Capacity = lane.room()
        self._away = _ReturningNodes(class_status, lane) if class_status.returning else None
        self._of_gpus: dict[int, Reason] = {}
        """By number of tasks: many shapes differ only in what they ask beside their GPUs."""

    def why(self, demand: Demand) -> Reason | None:
        """X2, X3, X5 and X7; None when it would fit, but for ports."""
        if self._away is not None and self._away.completes(self._room, demand):
            return Reason(ReasonCode.NODES_RETURNING, {"returning": self._away.nodes})
        return self._satisfiability.never(demand) or self._short_of(demand)

    def _short_of(self, demand: Demand) -> Reason | None:
        room, gpus, tasks = self._room, self._room.gpus, demand.tasks
        if gpus.slots < tasks:
            reason = self._of_gpus.get(tasks)
            if reason is None:
                reason = self._of_gpus[tasks] = _short_of_gpus(gpus, demand)
            return reason
        if gpus.spread < tasks:
            return Reason(
                ReasonCode.INSUFFICIENT_NODES,
                {"tasks": tasks, "per_node": demand.tasks_per_node, "room": gpus.spread},
            )
        beside = room.beside(demand.cpus)
        if beside.tasks < tasks:
            return Reason(
                ReasonCode.INSUFFICIENT_CPUS,
                {"needed": demand.cpus, "best": room.best_cpus(), "tasks": tasks, "room": beside.tasks},
            )
        with_memory = beside.tasks_with(demand.memory_mb)
        if with_memory < tasks:
            return Reason(
                ReasonCode.INSUFFICIENT_MEMORY,
                {"needed": demand.memory_mb, "best": beside.best_memory, "tasks": tasks, "room": with_memory},
            )
        return None


class _ReturningNodes:
    """The nodes of one lane that haven't returned and have GPUs free for it."""

    __slots__ = ("_together", "nodes")

    def __init__(self, class_status: NodeClassStatus, lane: DemandCache) -> None:
        names = (name for alike in lane.pool.admitted.alike for name in alike.names if name in class_status.returning)
        rows = lane.rows_of(class_status.returning[name] for name in names)
        self.nodes = len(rows)
        self._together = Capacity(0, GpuCapacity(0, 0, 0, 0), lambda: lane.rows() + rows)

    def completes(self, room: Capacity, demand: Demand) -> bool:
        """Would it fit there, or here and there together, and not here alone?"""
        return self.nodes > 0 and self._together.holds(demand) and not room.holds(demand)


def _short_of_gpus(gpus: GpuCapacity, demand: Demand) -> Reason:
    return Reason(
        ReasonCode.INSUFFICIENT_GPUS,
        {
            "needed": demand.total_gpus,
            "tasks": demand.tasks,
            "per_task": demand.gpu_count,
            "free": gpus.free,
            "best": gpus.best,
        },
    )
