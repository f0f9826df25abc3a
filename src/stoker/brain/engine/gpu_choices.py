"""Ways in which one demand for GPUs may be served, and the search through them for one job."""

from collections.abc import Sequence

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import NodeName
from stoker.brain.engine import explain
from stoker.brain.engine.demand_cache import DemandCache
from stoker.brain.engine.fit import NodeFit, Search
from stoker.brain.engine.gang import fit_gang
from stoker.brain.engine.shares import search_of


class GpuChoices:
    """Ways in which one demand for GPUs may be served: one model per task, then, where that could help, a mix."""

    __slots__ = ("at_most", "caches", "last", "shapes", "waiting")

    def __init__(self, caches: tuple[DemandCache, ...]) -> None:
        self.caches = caches
        self.last = caches[-1]
        """What it can't hold, none can."""
        self.at_most = self.last.at_most()
        """No gang of more tasks found GPUs at the start."""
        self.shapes: list[Shape] = []
        """Those for which there are enough GPUs at the start."""
        self.waiting: explain.WaitExplanation | None = None


def fits_besides(searches: Sequence[Search], refusals: Sequence[tuple[NodeName, ...]]) -> list[NodeFit] | None:
    """D10. Shapes share searches, so a job that avoids nodes has its own. Those known to be in vain aren't made."""
    last = searches[-1]
    if last.cache.foresees_no(last.demand):
        return None
    every = tuple(name for names in refusals for name in names)
    for avoided in dict.fromkeys((every, *refusals[:1])) if refusals else ():
        fits = first_fits([search_of(each.cache, each.demand, {*avoided, *each.barred}) for each in searches])
        if fits:
            return fits
    fits = first_fits(searches)
    if fits is None:
        last.cache.missed()  # only now: a table of what is free would foresee no detour that is in vain
    return fits


def first_fits(searches: Sequence[Search]) -> list[NodeFit] | None:
    """Of the first search that finds any."""
    return next((fits for fits in map(fit_gang, searches) if fits), None)
