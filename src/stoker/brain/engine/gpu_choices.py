"""Ways in which one demand for GPUs may be served, and the search through them for one job."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.reason import Reason
from stoker.brain.engine import explain
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import DemandCache, GpuNumbers
from stoker.brain.engine.fit import NodeFit, Search
from stoker.brain.engine.gang import fit_gang
from stoker.brain.engine.shares import caches_for, search_of
from stoker.brain.state.view import NodeClass, SelectedNodes

NEW_ROWS_MAX: Final = 128
"""Nodes of which a table needs rows that no other selection had, up to which it costs no more than a search in vain."""
NOT_COUNTED: Final = -1
NODES_PER_SHAPE: Final = 8
"""Where a shape has no more nodes to itself, a table of what is free on them is cheaper than searches in vain."""


class GpuChoices(msgspec.Struct, eq=False, gc=False):  # nothing that it refers to refers to it
    """Ways in which one demand for GPUs may be served: one model per task, then, where that could help, a mix."""

    admitted: SelectedNodes
    numbers: GpuNumbers
    at_most: int
    """No gang of more tasks found GPUs at the start; to begin with, wherever it selects (`at_most_anywhere`)."""
    _demand: Demand
    _candidates_of: Mapping[SelectedNodes, CandidateNodes]
    waiting: explain.WaitExplanation | None = None
    _candidates: CandidateNodes | None = None
    _caches: tuple[DemandCache, ...] | None = None
    _serving: Sequence[NodeClass] | None = None
    """Classes whose free GPUs serve, all of them; None = nobody has asked, or some must be looked at."""
    _is_known: bool = False
    _counted: int = 0
    """Beyond so many tasks no gang finds GPUs, and which `grown` of the draft that was."""
    _counted_grown: int = -1
    _at_start: int | None = None
    _is_of_view: bool = False

    def may_have_held(self, tasks: int) -> bool:
        """Return whether a gang of so many tasks found GPUs at the start.

        Naive: a table for each selection, or at least its numbers. But of ten thousand selections most that are blocked
        are so on all nodes together; and of most of the others the numbers say it.
        """
        if self._at_start is None and tasks <= self.at_most:
            numbers = self.numbers
            packed = self._at_start = self.packed_now()
            self._is_of_view = not numbers.draft.moved
            self.at_most = self._counted = self._at_most(packed)
            self._counted_grown = numbers.draft.grown
        return tasks <= self.at_most

    @property
    def candidates(self) -> CandidateNodes:
        """The nodes that it selects."""
        if self._candidates is None:
            self._candidates = self._candidates_of[self.admitted]
        return self._candidates

    @property
    def caches(self) -> tuple[DemandCache, ...]:
        """A table for each way."""
        if self._caches is None:
            self._caches = caches_for(self.candidates, self._demand, self.numbers)
            if self._serving is not None:  # it needn't count them anew
                self._caches[-1].knows_at_most(self._counted, self._counted_grown)
        return self._caches

    @property
    def last(self) -> DemandCache:
        """The last way: what it can't hold, none can."""
        return self.caches[-1]

    def packed_now(self) -> int:
        """Return how many nodes have which number of GPUs free, as the draft packs it; NOT_COUNTED = that isn't all.

        Of all nodes there is a table anyway.
        """
        if not self._is_known:
            self._is_known = True
            if not self.admitted.everywhere and not self._demand.shares:
                self._serving = self.numbers.serving(self.admitted)
        return NOT_COUNTED if self._serving is None else self.numbers.draft.packed(self._serving)

    def packed_at_start(self) -> int:
        """Return the same of the view, to be asked once all was given back: what was kept at the start isn't now."""
        return self._at_start if self._at_start is not None and self._is_of_view else self.packed_now()

    def at_most_now(self) -> int:
        """Return a number of tasks beyond which no gang finds GPUs, with all that was taken."""
        return self._at_most(self.packed_now())

    def _at_most(self, packed: int) -> int:
        return self.last.at_most_now() if packed == NOT_COUNTED else self.numbers.capacity(packed).spread

    def may_hold(self, tasks: int) -> bool:
        """Return whether a gang of so many tasks may find GPUs.

        What was too much at one time is too much until something is put back (`grown` of the draft), so old numbers do:
        to count anew after each placement would cost a look at each node that is selected.
        """
        if self._serving is None:
            caches = self._caches or self.caches
            return tasks <= caches[-1].at_most()
        if self._counted_grown != self.numbers.draft.grown:
            self._counted, self._counted_grown = self.at_most_now(), self.numbers.draft.grown
            if self._caches is not None:
                self._caches[-1].knows_at_most(self._counted, self._counted_grown)
        return tasks <= self._counted

    def pays_for_table(self, shapes: int) -> bool:
        """Return whether so many shapes may fit that a table of what is free is cheaper than searches in vain."""
        most = shapes * NODES_PER_SHAPE
        if self._serving is None:
            return self.last.node_count() <= most
        return self.numbers.nodes_without_rows(self._serving) <= max(most, NEW_ROWS_MAX)


def fits_besides(searches: Sequence[Search], refusals: Sequence[tuple[NodeName, ...]]) -> list[NodeFit] | None:
    """D10. Shapes share searches, so a job that avoids nodes has its own. Those known to be in vain aren't made."""
    last = searches[-1]
    if last.cache.foresees_no(last.demand):
        return None
    if refusals:
        every = tuple(name for names in refusals for name in names)
        for avoided in dict.fromkeys((every, *refusals[:1])):
            fits = first_fits([search_of(each.cache, each.demand, {*avoided, *each.barred}) for each in searches])
            if fits:
                return fits
    fits = first_fits(searches)
    if fits is None:
        last.cache.missed()  # only now: a table of what is free would foresee no detour that is in vain
    return fits


def first_fits(searches: Sequence[Search]) -> list[NodeFit] | None:
    """Of the first search that finds any."""
    for search in searches:
        fits = fit_gang(search)
        if fits:
            return fits
    return None


def by_choices(
    blocked: Mapping[Shape, GpuChoices | Reason],
) -> tuple[Mapping[GpuChoices, Shape], Mapping[GpuChoices, Sequence[Shape]]]:
    """Return the shapes that wait for nodes by what may serve them: the first shape of each, and those after it.

    Naive: a list for each. But where each shape has a selection of its own, ten thousand lists would be made of one.
    """
    firsts, others = dict[GpuChoices, Shape](), dict[GpuChoices, list[Shape]]()
    for shape, choices in blocked.items():
        if isinstance(choices, GpuChoices) and firsts.setdefault(choices, shape) is not shape:
            shapes = others.get(choices)
            if shapes is None:
                others[choices] = [shape]
            else:
                shapes.append(shape)
    return firsts, others
