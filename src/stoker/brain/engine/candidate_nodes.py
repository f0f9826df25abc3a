"""Candidate nodes of one selection: the nodes that it admits and that take work, by number of free GPUs.

Naive: let a search skip the nodes that aren't admitted. But a job that selects one node of a thousand would walk past
999, and GPUs that are free elsewhere would pass for free. So each selection that some waiting job makes has counts of
its own nodes alone. Once a search wants their names it has a table of names too, which catches up with what the draft
took whenever it is read.

Limits: costs about 0.1 us per node that the selection admits, and 0.2 us more once it is searched; the selection of
        every node copies what the view has.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from stoker.brain.domain.gpu import model_matches
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.node import Free
from stoker.brain.engine.draft import Draft, names_by_free
from stoker.brain.state.view import GpuKinds, SelectedNodes, SharedRest

ByFree = Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]
"""Names by kind and number of free GPUs, sorted; no list is empty."""
_FOLLOWED_MAX: Final = 8
"""Changes that are cheaper to follow than to add up."""
_NO_NAMES: Final[Set[NodeName]] = frozenset()
NO_SUCH_GPU: Final = 1 << 40
"""More memory than any GPU has, in MiB."""


class CandidateNodes:
    """The nodes of one selection in one draft."""

    __slots__ = (
        "_at",
        "_by_free",
        "_counts",
        "_kinds_of",
        "_memories",
        "_names",
        "_shared",
        "_shared_at",
        "admitted",
        "draft",
        "kinds",
    )

    def __init__(self, draft: Draft, admitted: SelectedNodes) -> None:
        self.admitted = admitted
        self.draft = draft
        self.kinds: Sequence[GpuKinds] = admitted.kinds
        """Sorted, since the order in which nodes registered must not change a plan."""
        self._memories: dict[str, list[int]] | None = None
        self._counts: dict[GpuKinds, dict[int, int]] | None = None
        self._at = 0
        """How many moves of the draft are in the counts or, once there is one, in the table of names."""
        self._by_free: dict[GpuKinds, dict[int, list[NodeName]]] | None = None
        self._kinds_of: dict[NodeName, GpuKinds] | None = None
        self._shared: list[SharedRest] | None = None
        self._shared_at = 0
        """How many changes of the draft's shared GPUs are in it."""
        self._names: Set[NodeName] = _NO_NAMES
        """Of a selection that isn't everywhere, once it was asked for shared GPUs."""

    def gpu_memory(self, model: str, at_least_mb: int) -> int:
        """Return the least memory in MiB of a GPU that serves both demands; NO_SUCH_GPU when there is none.

        All that ask for no more than that ask for the same.
        """
        if not at_least_mb:
            return 0
        if self._memories is None:
            self._memories = {}
        sizes = self._memories.get(model)
        if sizes is None:
            gpus = {gpu for kinds in self.kinds for gpu in kinds}
            sizes = self._memories[model] = sorted({size for has, size in gpus if model_matches(model, has)})
        at = bisect_left(sizes, at_least_mb)
        return sizes[at] if at < len(sizes) else NO_SUCH_GPU

    def counts(self) -> Mapping[GpuKinds, Mapping[int, int]]:
        """Return how many nodes of each kind have which number of GPUs free."""
        if self._by_free is not None or self.admitted.everywhere:
            by_free = self.by_free()
            return {kinds: {count: len(names) for count, names in by_free[kinds].items()} for kinds in self.kinds}
        if self._counts is None or self._at < len(self.draft.moved):
            self._at = len(self.draft.moved)
            draft, by_kinds = self.draft, self.admitted.by_kinds
            self._counts = {kinds: draft.unpacked(draft.packed(classes)) for kinds, classes in by_kinds.items()}
        return self._counts

    def by_free(self) -> ByFree:
        """Return the names as they are now. The next placement makes the answer stale."""
        by_free, moved = self._by_free, self.draft.moved
        if by_free is None:
            by_free = self._by_free = self._filled()
        if self._at < len(moved):
            kinds_of = self._kinds_of
            if kinds_of is None:
                kinds_of = self._kinds_of = {}
                for each in self.admitted.classes:
                    kinds_of.update(dict.fromkeys(each.names, each.kinds))
            new_moves = moved[self._at :]
            for name, old, new in new_moves if len(new_moves) == 1 else net_moves(new_moves):
                kinds = kinds_of.get(name)
                if kinds is not None:
                    _move(by_free[kinds], name, old, new)
            self._at = len(moved)
        return by_free

    def free_on(self, kinds: GpuKinds) -> Iterator[Free]:
        """Yield what is free on each node of one kind."""
        free = self.draft.free
        if self._by_free is not None or self.admitted.everywhere:
            for names in self.by_free()[kinds].values():
                yield from map(free.__getitem__, names)
            return
        for each in self.admitted.by_kinds[kinds]:
            yield from [free[name] for name in each.names if name in free]

    def shared_rests(self) -> Sequence[SharedRest]:
        """Return what is left of GPUs with sharers, the fullest first. The next placement makes the answer stale."""
        shared, moved, everywhere = self._shared, self.draft.shared_moved, self.admitted.everywhere
        if shared is None:
            shared = list(self.draft.shared)
            if not everywhere:
                self._names = frozenset(name for each in self.admitted.classes for name in each.names)
                shared = [rest for rest in shared if rest.node in self._names]
            self._shared = shared
        for node, before, after in moved[self._shared_at :]:
            if everywhere or node in self._names:
                for rest in before:
                    del shared[bisect_left(shared, SharedRest(rest.left, node, rest.gpu.index))]
                for rest in after:
                    insort(shared, SharedRest(rest.left, node, rest.gpu.index))
        self._shared_at = len(moved)
        return shared

    def _filled(self) -> dict[GpuKinds, dict[int, list[NodeName]]]:
        if self.admitted.everywhere:
            self._at = 0
            viewed = self.draft.by_free
            return {
                kinds: {count: list(names) for count, names in viewed.get(kinds, {}).items()} for kinds in self.kinds
            }
        self._at, of_class = len(self.draft.moved), self.draft.names_by_free()
        by_free: dict[GpuKinds, dict[int, list[NodeName]]] = {}
        for kinds, classes in self.admitted.by_kinds.items():
            if len(classes) == 1:  # most likely nobody else's: nodes selected by name
                by_free[kinds] = names_by_free(classes[0], self.draft.free)
                continue
            by_count = by_free[kinds] = {}
            for each in classes:
                for count, names in of_class[each].items():
                    if count in by_count:
                        by_count[count] += names
                    else:
                        by_count[count] = list(names)
            for names in by_count.values():
                names.sort()
        return by_free


def net_moves(moved: Sequence[tuple[NodeName, int, int]]) -> Sequence[tuple[NodeName, int, int]]:
    """Return changes of numbers of free GPUs as one per node.

    Naive: follow each. But most of what a search for victims and a round of backfill free is taken again.
    """
    if len(moved) <= _FOLLOWED_MAX:
        return moved
    net: dict[NodeName, tuple[int, int]] = {}
    for name, old, new in moved:
        first = net.get(name)
        net[name] = (old if first is None else first[0]), new
    return [(name, old, new) for name, (old, new) in net.items() if old != new]


def _move(by_count: dict[int, list[NodeName]], name: NodeName, old: int, new: int) -> None:
    names = by_count[old]
    del names[bisect_left(names, name)]
    if not names:
        del by_count[old]
    there = by_count.get(new)
    if there is None:
        by_count[new] = [name]
    else:
        insort(there, name)
