"""Why does a shape that was searched for and not found have to wait?

Rules: X1  no node ever registered: `no_nodes`
       X2  not even all nodes ever registered would hold it: `no_fitting_node`
       X3  the nodes that are ready wouldn't hold it even if they were empty: `nodes_unavailable`
       X4  only rendezvous ports are missing: `no_free_port`
       X5  else what is short now, in the order GPUs, CPUs, memory: the first that alone is enough to say no
"""

from itertools import islice
from typing import Final

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import tasks_ever, tasks_that_fit
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.engine.fit import Search
from stoker.brain.engine.fleet import Fleet
from stoker.brain.state.view import View

_GLANCE_MAX: Final = 64
"""Ready nodes judged one by one before all nodes are grouped, which costs more. Most shapes fit one of the first."""


def no_nodes(view: View) -> Reason | None:
    return None if view.nodes else Reason(ReasonCode.NO_NODES)


def no_free_port(address: str, policy: Policy) -> Reason:
    return Reason(ReasonCode.NO_FREE_PORT, {"address": address, "ports_max": policy.port_max - policy.port_min + 1})


def budget_spent(placed: int) -> Reason:
    return Reason(ReasonCode.BUDGET_SPENT, {"placed": placed})


def fits_first_nodes(view: View, search: Search) -> bool:
    """Would some nodes that are ready hold it if they were empty? A no only means: these few wouldn't."""
    missing = search.demand.tasks
    for name in islice(search.nodes(), _GLANCE_MAX):
        missing -= tasks_ever(view.nodes[name].inventory, search.demand)
        if missing <= 0:
            return True
    return False


def never(view: View, fleet: Fleet, demand: Demand) -> Reason | None:
    return no_nodes(view) or fleet.never(demand)


def short_of(search: Search) -> Reason:
    """What is short now, given that the demand fits the ready nodes when they are empty."""
    demand, room = search.demand, search.gpu_room()
    if room.slots < demand.tasks:
        return Reason(
            ReasonCode.INSUFFICIENT_GPUS,
            {
                "needed": demand.total_gpus,
                "tasks": demand.tasks,
                "per_task": demand.gpu_count,
                "free": room.free,
                "best": room.best,
            },
        )
    return _short_beside_gpus(search)


def _short_beside_gpus(search: Search) -> Reason:
    demand, tasks = search.demand, 0
    best_cpus = best_memory = 0
    for slots, free in search.gpu_slots():
        on_node = tasks_that_fit(slots * demand.gpu_count, free.cpus, demand.memory_mb * demand.tasks, demand)
        tasks += on_node
        best_cpus = max(best_cpus, free.cpus)
        best_memory = max(best_memory, free.memory_mb if on_node else 0)
    if tasks < demand.tasks:
        return Reason(
            ReasonCode.INSUFFICIENT_CPUS,
            {"needed": demand.cpus, "best": best_cpus, "tasks": demand.tasks, "room": tasks},
        )
    room = sum(
        tasks_that_fit(slots * demand.gpu_count, free.cpus, free.memory_mb, demand)
        for slots, free in search.gpu_slots()
    )
    return Reason(
        ReasonCode.INSUFFICIENT_MEMORY,
        {"needed": demand.memory_mb, "best": best_memory, "tasks": demand.tasks, "room": room},
    )
