"""Two-way ledger of one pass: a scratch copy of what is free, from which a pass takes and to which it gives back.

Rules: T1  the view is never touched
       T2  whatever changed since a checkpoint can be rolled back: what was taken, what was put back, promised ports
       T3  what a running task holds is put back as its end would free it: a GPU that its node no longer reports, or
           that an orphan task keeps, stays gone, and CPUs and memory first make up for what the tasks of the node hold
           beyond what it has
       T4  a verdict that something doesn't fit holds for as long as `grown` is what it was: until then a pass has only
           taken
Limits: made in well under a millisecond for 5,000 nodes, because the values in `free` are immutable: an undo step is a
        reference to the old one.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import GPU_SHARERS_MAX, WHOLE_GPU, Gpu, SharedGpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Free
from stoker.brain.state.view import GpuKinds, NodeClass, View

_OF_VIEW: Final = 0
"""The version of what is free in the view."""


def names_by_free(node_class: NodeClass, free_on: Mapping[NodeName, Free]) -> dict[int, list[NodeName]]:
    """Return the nodes of a class that take work by number of free GPUs, by name."""
    found: dict[int, list[NodeName]] = {}
    for name in node_class.names:
        free = free_on.get(name)
        if free is not None:
            names = found.get(len(free.gpus))
            if names is None:
                found[len(free.gpus)] = [name]
            else:
                names.append(name)
    return found


class _Counted(dict[NodeClass, int]):
    """Nodes of classes by number of free GPUs, counted when a class is first asked for."""

    def __init__(self, free: Mapping[NodeName, Free], node_bits: int) -> None:
        super().__init__()
        self._free, self._node_bits = free, node_bits

    def __missing__(self, node_class: NodeClass) -> int:
        bits, gpus = self._node_bits, [len(self._free[name].gpus) for name in node_class.names if name in self._free]
        packed = self[node_class] = sum([1 << bits * each for each in gpus])
        return packed


class _Grouped(dict[NodeClass, dict[int, list[NodeName]]]):
    """Nodes of classes by number of free GPUs, by name, found when a class is first asked for."""

    def __init__(self, free: Mapping[NodeName, Free]) -> None:
        super().__init__()
        self._free = free

    def __missing__(self, node_class: NodeClass) -> dict[int, list[NodeName]]:
        found = self[node_class] = names_by_free(node_class, self._free)
        return found


class _Overdraft(NamedTuple):
    """CPUs and memory that the tasks of a node hold beyond what it has: its inventory shrank under them."""

    cpus: int
    memory_mb: int


class _NodeUndo(msgspec.Struct, frozen=True, gc=False):
    node: NodeName
    before: Free
    overdraft: _Overdraft | None
    """None = it didn't change, and things were taken."""


class _PortUndo(NamedTuple):
    address: str
    port: int


class Draft:
    """Free resources at one point of a pass; `free` and `moved` are read elsewhere and changed here alone."""

    __slots__ = (
        *(
            "_changes",
            "_counted",
            "_counted_at",
            "_gpus",
            "_grouped",
            "_grouped_at",
            "_journal",
            "_node_bits",
            "_overdrafts",
            "_ports",
            "_view",
        ),
        *("by_free", "free", "gpu_sharers_max", "grown", "moved", "shared", "shared_moved", "version"),
    )

    def __init__(self, view: View, gpu_sharers_max: int = GPU_SHARERS_MAX) -> None:
        self._view = view
        self.gpu_sharers_max = gpu_sharers_max
        """So many tasks at most share one GPU."""
        self.free: dict[NodeName, Free] = dict(view.free)
        self.by_free: Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]] = view.by_free
        """The nodes of `free` by number of free GPUs, as the view has them: before anything was taken."""
        self._ports: dict[str, set[int]] = {}
        self._journal: list[_NodeUndo | _PortUndo] = []
        self._overdrafts: dict[NodeName, _Overdraft] = {}
        self._gpus: dict[NodeName, dict[GpuUuid, Gpu]] = {}
        """The GPUs of nodes that can come free, by those that were asked about."""
        self.version = _OF_VIEW
        """Another number whenever something else is free."""
        self._changes = _OF_VIEW
        self.grown = 0
        """Another number whenever more may be free than before (T4)."""
        self.moved: list[tuple[NodeName, int, int]] = []
        """Each change of a node's number of free GPUs, with the old and the new number; it only grows."""
        self.shared = view.shared
        """Rests of GPUs with sharers as the view has them: before anything was taken."""
        self.shared_moved: list[tuple[NodeName, tuple[SharedGpu, ...], tuple[SharedGpu, ...]]] = []
        """Each change of the shared GPUs of a node, with the old and the new rests; it only grows."""
        self._node_bits = max(1, len(self.free).bit_length())
        """For a number of nodes in a packed number: few, since ten thousand selections add up a dozen of them each."""
        self._counted = _Counted(self.free, self._node_bits)
        self._counted_at = 0
        self._grouped = _Grouped(self.free)
        self._grouped_at = 0

    def take(self, placement: TaskPlacement) -> None:
        """Give `placement` what it holds."""
        node = placement.node
        before = self.free[node]
        self._journal.append(_NodeUndo(node, before, None))
        self._set(node, before.take(placement))

    def has_like_gpus(self, node: NodeName) -> bool:
        """Return whether any GPU of a node does as well as any other."""
        return self._view.nodes[node].inventory.has_like_gpus

    def take_free(self, placement: TaskPlacement) -> TaskPlacement:
        """Take what is free of a placement of whole GPUs, and return that."""
        free, gpus = self.free[placement.node], placement.gpus
        if gpus:
            here = {gpu.uuid for gpu in free.gpus}
            gpus = tuple([uuid for uuid in gpus if uuid in here])
        cpus, memory_mb = min(free.cpus, placement.cpus), min(free.memory_mb, placement.memory_mb)
        left = replace(placement, gpus=gpus, cpus=cpus, memory_mb=memory_mb)
        if gpus or cpus or memory_mb:
            self.take(left)
        return left

    def put_back(self, placement: TaskPlacement) -> None:
        """Free what a placement holds: one that was taken here, or that of a running task as its end would (T3).

        Nothing comes free on a node that takes no work.
        """
        node = placement.node
        before = self.free.get(node)
        if before is None:
            return
        overdraft = self._overdraft(node)
        self._journal.append(_NodeUndo(node, before, overdraft))
        cpus, memory_mb = placement.cpus - overdraft.cpus, placement.memory_mb - overdraft.memory_mb
        self._overdrafts[node] = _Overdraft(max(0, -cpus), max(0, -memory_mb))
        gpus, shared = before.gpus, before.shared
        if placement.gpu_share != WHOLE_GPU:
            after = before.put_back_share(placement)
            gpus, shared = after.gpus, after.shared
        elif placement.gpus:
            known, free = self._gpus_of(node), {gpu.uuid for gpu in gpus}
            back = [known[uuid] for uuid in placement.gpus if uuid in known]
            assert free.isdisjoint(placement.gpus), f"a GPU is put back that is free: {placement} to {before}"
            gpus = tuple(sorted((*gpus, *back), key=lambda gpu: gpu.index))
        self.grown += 1
        self._set(node, Free(gpus, before.cpus + max(0, cpus), before.memory_mb + max(0, memory_mb), shared))

    def _gpus_of(self, node: NodeName) -> dict[GpuUuid, Gpu]:
        known = self._gpus.get(node)
        if known is None:
            known = self._gpus[node] = self._view.nodes[node].gpus_by_uuid
        return known

    def _overdraft(self, node: NodeName) -> _Overdraft:
        found = self._overdrafts.get(node)
        if found is None:
            inventory, held = self._view.nodes[node].inventory, self._view.held_on(node)
            found = _Overdraft(
                max(0, sum([each.cpus for each in held]) - inventory.cpus),
                max(0, sum([each.memory_mb for each in held]) - inventory.memory_mb),
            )
        return found

    def take_port(self, address: str, port: int) -> None:
        """Promise a port of an address to an attempt."""
        ports = self._ports.setdefault(address, set())
        assert port not in ports, f"port {port} of {address} is promised twice"
        ports.add(port)
        self._journal.append(_PortUndo(address, port))

    def ports_in_use(self, address: str) -> tuple[Set[int], Set[int]]:
        """Return the ports held by live attempts, and those promised in this pass."""
        return self._view.ports_in_use(address), self._ports.get(address, set())

    def packed(self, classes: Iterable[NodeClass]) -> int:
        """Return how many nodes of these classes that take work have which number of GPUs free, as one number.

        `unpacked` reads it. Selections share what is known of a class, until the next placement makes it stale.
        """
        if self._counted_at < len(self.moved):
            self._counted_at = len(self.moved)
            self._counted.clear()
        return sum(map(self._counted.__getitem__, classes))

    def packed_anywhere(self) -> int:
        """Return the same of all nodes as they are in the view."""
        counts = [(count, len(names)) for by_count in self.by_free.values() for count, names in by_count.items()]
        return sum([nodes << self._node_bits * count for count, nodes in counts])

    def unpacked(self, packed: int) -> dict[int, int]:
        """Return the numbers of nodes, none of them 0, by number of free GPUs."""
        found: dict[int, int] = {}
        gpus, bits = 0, self._node_bits
        while packed:
            nodes = packed & ((1 << bits) - 1)
            if nodes:
                found[gpus] = nodes
            packed >>= bits
            gpus += 1
        return found

    def has_numbers_of_view(self) -> bool:
        """Return whether each node has as many GPUs free as in the view: all that was taken was given back."""
        before, free = self._view.free, self.free
        return all(
            len(free[name].gpus) == len(before[name].gpus) for name in dict.fromkeys(each[0] for each in self.moved)
        )

    def recognize_view(self) -> None:
        """Let the version be that of the view where all that was taken was given back.

        What was counted at the start needn't be counted anew then.
        """
        before, free = self._view.free, self.free
        changed = dict.fromkeys([undo.node for undo in self._journal if isinstance(undo, _NodeUndo)])
        if all(free[name] == before[name] for name in changed):
            self.version = _OF_VIEW

    def names_by_free(self) -> Mapping[NodeClass, Mapping[int, Sequence[NodeName]]]:
        """Return the nodes of a class that take work by their number of free GPUs, by name. Shared likewise."""
        if self._grouped_at < len(self.moved):
            self._grouped_at = len(self.moved)
            self._grouped.clear()
        return self._grouped

    def checkpoint(self) -> int:
        """Return a mark to roll back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`, newest first (T2)."""
        if len(self._journal) > mark:
            self.grown += 1
        while len(self._journal) > mark:
            undo = self._journal.pop()
            if isinstance(undo, _PortUndo):
                self._ports[undo.address].remove(undo.port)
                continue
            if undo.overdraft is not None:
                self._overdrafts[undo.node] = undo.overdraft
            self._set(undo.node, undo.before)

    def _set(self, node: NodeName, after: Free) -> None:
        before = self.free[node]
        old, new = len(before.gpus), len(after.gpus)
        self.free[node] = after
        if before.shared is not after.shared:
            self.shared_moved.append((node, before.shared, after.shared))
        self._changes += 1
        self.version = self._changes
        if old != new:
            self.moved.append((node, old, new))
