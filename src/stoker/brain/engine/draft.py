"""What would be free if we placed this?

A scratch copy of what the view says is free, with checkpoint and rollback. The view is never touched.

Limits: made in well under a millisecond for 5,000 nodes, because the lists of names stay the view's own until one of
        them changes; and the values in `free` are immutable, so an undo step is a reference to the old one.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence, Set
from typing import NamedTuple

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.node import Free
from stoker.brain.state.view import GpuKinds, NodeClass, View

Buckets = dict[GpuKinds, dict[int, Sequence[NodeName]]]


class _NodeUndo(NamedTuple):
    kinds: GpuKinds
    node: NodeName
    before: Free


class _PortUndo(NamedTuple):
    address: str
    port: int


class Draft:
    """What is left at this point of a pass.

    `free` and `buckets` may be read by anyone and are changed here alone.
    """

    __slots__ = (
        "_counted",
        "_counted_at",
        "_journal",
        "_own",
        "_ports",
        "_view",
        "buckets",
        "free",
        "moved",
        "version",
    )

    def __init__(self, view: View) -> None:
        self._view = view
        self.free: dict[NodeName, Free] = dict(view.free)
        # Sorted, since the order in which the view met its kinds depends on its history, and a plan must not.
        self.buckets: Buckets = {kinds: dict(view.by_free[kinds]) for kinds in sorted(view.by_free)}
        self._own: dict[tuple[GpuKinds, int], list[NodeName]] = {}
        self._ports: dict[str, set[int]] = {}
        self._journal: list[_NodeUndo | _PortUndo] = []
        self.version = 0
        """Another number whenever something else is free."""
        self.moved: list[NodeName] = []
        """Each node whose number of free GPUs changed, each time; it only grows."""
        self._counted: dict[NodeClass, list[int]] = {}
        self._counted_at = 0

    def take(self, kinds: GpuKinds, placement: TaskPlacement) -> None:
        """Give `placement` what it holds; its node must be of `kinds`."""
        before = self.free[placement.node]
        self._journal.append(_NodeUndo(kinds, placement.node, before))
        self._set(kinds, placement.node, before.take(placement))

    def put_back(self, kinds: GpuKinds, placement: TaskPlacement, gpus: Sequence[Gpu]) -> None:
        """Undo one `take`, whatever was taken since. Not to be rolled back."""
        free = self.free[placement.node]
        merged = tuple(sorted((*free.gpus, *gpus), key=lambda gpu: gpu.index))
        after = Free(merged, free.cpus + placement.cpus, free.memory_mb + placement.memory_mb)
        self._set(kinds, placement.node, after)

    def take_port(self, address: str, port: int) -> None:
        ports = self._ports.setdefault(address, set())
        assert port not in ports, f"port {port} of {address} is promised twice"
        ports.add(port)
        self._journal.append(_PortUndo(address, port))

    def ports_in_use(self, address: str) -> tuple[Set[int], Set[int]]:
        """Held by live attempts, and promised in this pass."""
        return self._view.ports_in_use(address), self._ports.get(address, set())

    def free_gpus(self, alike: NodeClass) -> Sequence[int]:
        """How many GPUs are free on each of these nodes that takes work. Selections share the answer."""
        if self._counted_at < len(self.moved):
            self._counted_at = len(self.moved)
            self._counted.clear()
        found = self._counted.get(alike)
        if found is None:
            free_on = self.free
            found = self._counted[alike] = [len(free_on[name].gpus) for name in alike.names if name in free_on]
        return found

    def checkpoint(self) -> int:
        """A mark to roll back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo everything that was taken since `mark`, newest first."""
        while len(self._journal) > mark:
            undo = self._journal.pop()
            if isinstance(undo, _PortUndo):
                self._ports[undo.address].remove(undo.port)
            else:
                self._set(undo.kinds, undo.node, undo.before)

    def _set(self, kinds: GpuKinds, node: NodeName, after: Free) -> None:
        old, new = len(self.free[node].gpus), len(after.gpus)
        self.free[node] = after
        self.version += 1
        if old != new:
            self.moved.append(node)
            names = self._owned(kinds, old)
            del names[bisect_left(names, node)]
            if not names:
                del self.buckets[kinds][old], self._own[kinds, old]
            insort(self._owned(kinds, new), node)

    def _owned(self, kinds: GpuKinds, count: int) -> list[NodeName]:
        """The names with `count` GPUs free, in a list of our own: copied from the view's at the first change."""
        names = self._own.get((kinds, count))
        if names is None:
            names = self._own[kinds, count] = list(self.buckets[kinds].get(count, ()))
            self.buckets[kinds][count] = names
        return names
