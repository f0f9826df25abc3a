"""Backfill: which blocked jobs come up again for what reservations keep, and which of them are over in time.

Rules: L1  a round of backfill offers what is kept until one time, the latest first; blocked shapes that have enough
           GPUs then come up again
       L2  a job that will have ended by then may start; of one that won't, others of its shape may
       L3  a pass looks at BACKFILL_LOOKS_MAX jobs in all; what would come up after them waits as before
Naive: unblock all that might fit before each round. But with ten thousand shapes in the queue the looks are spent long
before most have come up; so a shape is unblocked when it comes up.
"""

from typing import Final

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.engine.gpu_choices import GpuChoices

BACKFILL_LOOKS_MAX: Final = 256
"""Jobs of which a pass looks whether they are over in time for a reservation."""


class Backfill:
    """The rounds of backfill of one pass."""

    def __init__(self, blocked: dict[Shape, GpuChoices | Reason], fitting: dict[Shape, GpuChoices]) -> None:
        """`blocked` and `fitting` are those of the pass, and changed here."""
        self._blocked, self._fitting = blocked, fitting
        self.until: Instant = NEVER
        """When those that start must be over; NEVER = there is no backfill yet."""
        self.looks_left = BACKFILL_LOOKS_MAX
        self._unblocked: dict[Shape, None] = {}
        """Shapes that came up in this round."""
        self._at_most: dict[GpuChoices, int] = {}
        """No gang of more tasks finds GPUs in this round."""
        self._too_long: dict[Shape, None] = {}
        """Shapes of which a job came up that wouldn't be over in time."""

    def begin_round(self, until: Instant) -> None:
        """Begin the round of jobs that are over by then."""
        self.until = until
        self._unblocked, self._at_most = {}, {}

    def end_round(self) -> None:
        """Block again what wasn't over in time."""
        for shape in self._too_long:
            self._blocked.setdefault(shape, self._fitting[shape])
        self._too_long = {}

    def comes_up(self, shape: Shape) -> bool:
        """Return whether a blocked shape comes up again in this round: once, where there may be enough GPUs (L1)."""
        found = self._blocked[shape]
        if shape in self._unblocked or not isinstance(found, GpuChoices) or shape.demand.tasks > found.at_most:
            return False  # what wasn't free at the start never is
        at_most = self._at_most.get(found)
        if at_most is None:
            at_most = self._at_most[found] = found.at_most_now()
        return shape.demand.tasks <= at_most

    def comes_up_in_time(self, shape: Shape) -> bool:
        """Return the same, but no once all looks are spent (L3): where there are no quotas nothing else is found."""
        return self.looks_left > 0 and self.comes_up(shape)

    def unblock(self, shape: Shape) -> None:
        """Note that a shape comes up."""
        found = self._blocked.get(shape)
        if found is not None:
            assert isinstance(found, GpuChoices), f"a shape comes up whose reason is known: {shape}"
            self._unblocked[shape] = None
            self._fitting[shape] = found
            del self._blocked[shape]

    def may_start(self, shape: Shape, over_at: Instant) -> bool:
        """Return whether a job that ends at the latest then is over in time, and there is a look left for it (L2)."""
        self.looks_left -= 1
        if self.looks_left < 0:
            self._blocked[shape] = self._fitting[shape]
            return False
        if over_at <= self.until:
            return True
        self._too_long[shape] = None
        return False
