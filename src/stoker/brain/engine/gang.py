"""On which nodes does a whole gang go, and who gets which rank?

Rules: G1  all tasks or none
       G2  one node if any holds them all (the tightest such node)
       G3  else the fewest nodes: those that hold most come first, and the rest of the gang goes to its tightest fit
       G4  several tasks may share a node, unless the job says how many at most (`tasks_per_node`)
       G5  ranks count from 0 in (node name, device order)
"""

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import suitable_gpus
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine.choose_gpus import choose_gpus
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import NodeFit, Search


def fit_gang(search: Search) -> list[NodeFit] | None:
    """Seats for every task of the demand that is searched for; None when it doesn't fit whole."""
    tasks = search.demand.tasks
    if not search.lane.may_hold(tasks):
        return None
    if tasks == 1:
        seat = search.tightest(1)
        return [seat] if seat is not None else None
    return _spread(search, tasks)


def _spread(search: Search, tasks: int) -> list[NodeFit] | None:
    seats: dict[NodeName, NodeFit] = {}
    for seat in search.largest_first():
        if seat.tasks >= tasks:
            # This node would do; a tighter one may. When the very first does, one node holds the whole gang (G2).
            tail = search.tightest(tasks, besides=seats)
            assert tail is not None, f"{seat.node} holds {tasks} tasks and was not found"
            return [*seats.values(), tail]
        seats[seat.node] = seat
        tasks -= seat.tasks
    return None


def number_ranks(draft: Draft, seats: list[NodeFit], demand: Demand) -> list[TaskPlacement]:
    """What each rank holds, in rank order. Nothing is taken from the draft yet."""
    placements: list[TaskPlacement] = []
    for seat in sorted(seats, key=lambda seat: seat.node):
        gpus = suitable_gpus(draft.free[seat.node].gpus, demand)
        chosen = choose_gpus(gpus, demand.gpu_count, seat.tasks)
        placements.extend(
            TaskPlacement(rank=rank, node=seat.node, gpus=uuids, cpus=demand.cpus, memory_mb=demand.memory_mb)
            for rank, uuids in enumerate(chosen, start=len(placements))
        )
    return placements
