"""Could this ever run here, if everything were empty?

Asked of every node that ever registered, lost and drained ones too, as a submit is judged.

Limits: nodes of equal GPUs, CPUs and memory are judged once. Grouping them costs about 1.5 us per node, so a pass does
        it at most once, and only when a blocked shape doesn't obviously fit the nodes that are ready.
"""

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import asked, suitable_gpus, tasks_ever
from stoker.brain.domain.node import Inventory, Node
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.state.view import View

_READY, _UNREACHABLE, _DRAINING, _FORGOTTEN = "ready", "unreachable", "draining", "forgotten"


class _Likes:
    """Nodes that have the same."""

    __slots__ = ("count", "inventory")

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.count = _tally()


class Fleet:
    """All nodes ever registered, grouped by what they have."""

    def __init__(self, view: View) -> None:
        groups: dict[object, _Likes] = {}
        for name, node in view.nodes.items():
            inventory = node.inventory
            has = tuple([(gpu.model, gpu.memory_mb) for gpu in inventory.gpus]), inventory.cpus, inventory.memory_mb
            group = groups.get(has)
            if group is None:
                group = groups[has] = _Likes(inventory)
            group.count[_READY if name in view.free else _word(node)] += 1
        self._groups = tuple(groups.values())

    def never(self, demand: Demand) -> Reason | None:
        """Why the nodes that are ready wouldn't hold it even if they were empty; None when they would."""
        room, nodes = _tally(), _tally()
        for group in self._groups:
            tasks = tasks_ever(group.inventory, demand)
            for word, count in group.count.items():
                room[word] += tasks * count
                nodes[word] += count if tasks else 0
        if room[_READY] >= demand.tasks:
            return None
        if sum(room.values()) < demand.tasks:
            largest = self._largest(demand, sum(room.values()))
            return Reason(ReasonCode.NO_FITTING_NODE, {"asked": asked(demand), "largest": largest})
        del nodes[_READY]
        return Reason(ReasonCode.NODES_UNAVAILABLE, {"fitting": sum(nodes.values()), **nodes})

    def _largest(self, demand: Demand, room: int) -> str:
        """What the largest node has, in words that follow `the largest has`."""
        if room:
            best = max(tasks_ever(group.inventory, demand) for group in self._groups)
            return f"room for {best} of its {demand.tasks} task(s), all nodes together for {room}"
        has = [(len(suitable_gpus(g.inventory.gpus, demand)), g.inventory) for g in self._groups]
        suit, most = max(has, key=lambda one: (one[0], len(one[1].gpus), one[1].cpus, one[1].memory_mb))
        return f"{len(most.gpus)} GPU(s), {suit} of them suitable, {most.cpus} CPU(s) and {most.memory_mb} MiB memory"


def _tally() -> dict[str, int]:
    return {_READY: 0, _UNREACHABLE: 0, _DRAINING: 0, _FORGOTTEN: 0}


def _word(node: Node) -> str:
    """Why a node takes no new work."""
    if node.forgotten:
        return _FORGOTTEN
    return _DRAINING if node.reachable and node.drain is not None else _UNREACHABLE
