"""Which of the nodes that take work does a selection admit, by what is free on them?

Naive: let a search skip the others. But a job that selects one node of a thousand would walk past 999, and GPUs that
are free elsewhere would pass for free. So each selection that some waiting job makes has counts of its own nodes
alone. Once a search wants their names it has buckets too, and catches up with what the draft took whenever it is
looked at.

Limits: costs about 0.1 us per node that it admits, and 0.3 us more once it is searched; the selection of every node
        costs nothing.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from stoker.brain.domain.gpu import model_matches
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import GpuKinds, SelectedNodes

ByFree = Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]
"""Names by kind and number of free GPUs, sorted; no list is empty."""
NO_SUCH_GPU: Final = 1 << 40
"""More memory than any GPU has."""


class CandidateNodes:
    """The nodes of one selection in one draft."""

    __slots__ = ("_at", "_counts", "_memories", "_own", "_slots", "admitted", "draft", "kinds")

    def __init__(self, draft: Draft, admitted: SelectedNodes) -> None:
        self.admitted = admitted
        self.draft = draft
        self.kinds: Sequence[GpuKinds] = (
            tuple(draft.buckets) if admitted.everywhere else sorted({each.kinds for each in admitted.alike})
        )
        self._memories: dict[str, list[int]] = {}
        self._counts: dict[GpuKinds, dict[int, int]] | None = None
        self._at = 0
        """How far it has followed the draft."""
        self._slots: dict[NodeName, tuple[GpuKinds, int]] = {}
        self._own: dict[GpuKinds, dict[int, list[NodeName]]] | None = None

    def gpu_memory(self, model: str, at_least_mb: int) -> int:
        """The least memory that a GPU has which serves both wishes: all that ask for no more than that ask for the
        same. NO_SUCH_GPU when there is none."""
        if not at_least_mb:
            return 0
        sizes = self._memories.get(model)
        if sizes is None:
            kinds = {kind for alike in self.admitted.alike for kind in alike.kinds}
            sizes = self._memories[model] = sorted({size for has, size in kinds if model_matches(model, has)})
        at = bisect_left(sizes, at_least_mb)
        return sizes[at] if at < len(sizes) else NO_SUCH_GPU

    def counts(self) -> Mapping[GpuKinds, Mapping[int, int]]:
        """How many nodes of each kind have so many GPUs free."""
        if self._own is not None or self.admitted.everywhere:
            by_free = self.by_free()
            return {kinds: {count: len(names) for count, names in by_free[kinds].items()} for kinds in self.kinds}
        if self._counts is None or self._at < len(self.draft.moved):
            self._at = len(self.draft.moved)
            self._counts = self._counted()
        return self._counts

    def _counted(self) -> dict[GpuKinds, dict[int, int]]:
        found: dict[GpuKinds, list[int]] = {}
        for alike in self.admitted.alike:
            found.setdefault(alike.kinds, []).extend(self.draft.free_gpus(alike))
        return {kinds: Counter(numbers) for kinds, numbers in found.items()}

    def by_free(self) -> ByFree:
        """As it is now. Not to be kept past the next placement."""
        if self.admitted.everywhere:
            return self.draft.buckets
        if self._own is None:
            self._at = len(self.draft.moved)
            self._own = self._filled()
        moved = self.draft.moved
        while self._at < len(moved):
            self._follow(self._own, moved[self._at])
            self._at += 1
        return self._own

    def _filled(self) -> dict[GpuKinds, dict[int, list[NodeName]]]:
        free_on = self.draft.free
        own: dict[GpuKinds, dict[int, list[NodeName]]] = {kinds: {} for kinds in self.kinds}
        for alike in self.admitted.alike:
            by_count = own[alike.kinds]
            for name in alike.names:
                free = free_on.get(name)
                if free is not None:
                    count = len(free.gpus)
                    by_count.setdefault(count, []).append(name)
                    self._slots[name] = alike.kinds, count
        for by_count in own.values():
            for each in by_count.values():
                each.sort()
        return own

    def _follow(self, own: dict[GpuKinds, dict[int, list[NodeName]]], name: NodeName) -> None:
        slot = self._slots.get(name)
        if slot is None:
            return
        kinds, old = slot
        new = len(self.draft.free[name].gpus)
        by_count = own[kinds]
        names = by_count[old]
        del names[bisect_left(names, name)]
        if not names:
            del by_count[old]
        insort(by_count.setdefault(new, []), name)
        self._slots[name] = kinds, new
