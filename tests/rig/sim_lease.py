"""A folder on shared storage that outlives all processes, and the Lease port on it.

Each version of the marker is there whole or not at all, as link(2) makes it. What can go wrong is on the way: it takes
long, can't be reached, is carried out after the caller has given up or died, or its answer gets lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.ports import Clock, Entropy, LeaseUnreachable

KEPT_MAX: Final = 64
"""Versions of the marker that are kept behind the newest; older ones are pruned."""
TIMEOUT_S: Final = 1.0


class SharedPlace:
    """What is on the shared storage, and how it is reached."""

    def __init__(self) -> None:
        self.newest: LeaseRecord | None = None
        self.kept: dict[int, LeaseRecord] = {}
        self.cut: set[str] = set()
        """Who can't reach it."""
        self.down = False
        """Nobody reaches it."""
        self.stall_s = 0.0
        """How much longer than usual everything takes."""
        self.lossy = 0.0
        """Chance that the answer to a write that was carried out gets lost."""
        self.late = 0.0
        """Chance that a write is carried out only after the caller has given up."""
        self.damaged: LeaseRecord | None = None
        """The version that nobody can read any more."""
        self.on_put: Callable[[LeaseRecord], None] | None = None
        """Told of each version as soon as it is there."""
        self._errands: set[asyncio.Task[None]] = set()

    def reaches(self, who: str) -> bool:
        return not self.down and who not in self.cut

    def link(self, marker: LeaseRecord) -> bool:
        """Is it there with this content now? Raises: LeaseUnreachable when there is a gap before it."""
        if marker.version > (self.newest.version if self.newest else 0) + 1:
            raise LeaseUnreachable(f"version {marker.version} isn't the next one")
        there = self.kept.get(marker.version)
        if there is not None:
            return there.mark == marker.mark
        self.kept[marker.version] = marker
        while len(self.kept) > KEPT_MAX:
            del self.kept[min(self.kept)]
        if self.newest is None or marker.version > self.newest.version:
            self.newest = marker
        if self.on_put is not None:
            self.on_put(marker)
        return True

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that goes on without whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def close(self) -> None:
        for errand in tuple(self._errands):
            errand.cancel()


class SimLease:
    """The Lease port of the process `who` on a place; its clock waits while the process is stopped."""

    def __init__(
        self, place: SharedPlace, clock: Clock, entropy: Entropy, *, who: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._place, self._clock, self._entropy, self._who = place, clock, entropy, who
        self._timeout_s = timeout_s
        self._closed = False

    async def read(self) -> LeaseRecord | None:
        await self._pass()
        newest = self._place.newest
        if newest is not None and newest is self._place.damaged:
            hint = "stop every control plane, then restore the folder"
            raise StokerError(refuse("marker_damaged", "the newest marker can't be read", hint))
        return newest

    async def put(self, marker: LeaseRecord) -> bool:
        place = self._place
        if place.late and self._entropy.jitter(0, 1) < place.late:
            place.later(self._carry_out_late(marker))
            await self._give_up("it hangs")
        try:
            await self._pass()
        except asyncio.CancelledError:
            if self._entropy.jitter(0, 1) < 0.5:  # the process dies, and the storage has the request already
                with suppress(LeaseUnreachable):
                    place.link(marker)
            raise
        linked = place.link(marker)
        if place.lossy and self._entropy.jitter(0, 1) < place.lossy:
            await self._give_up("the answer was lost")
        await self._pass()
        return linked and place.newest == marker

    async def _pass(self) -> None:
        """Once to the storage or back."""
        if self._closed:
            raise LeaseUnreachable("it was closed")
        if not self._place.reaches(self._who) or self._place.stall_s >= self._timeout_s:
            await self._give_up("it can't be reached")
        await self._clock.sleep(self._entropy.jitter(0.0005, 0.01) + self._place.stall_s / 2)
        if not self._place.reaches(self._who):
            await self._give_up("it can't be reached any more")

    async def _give_up(self, why: str) -> None:
        """Sometimes at once, mostly after the longest wait (Z5)."""
        await self._clock.sleep(self._entropy.jitter(0, 1) * self._timeout_s)
        raise LeaseUnreachable(why)

    async def _carry_out_late(self, marker: LeaseRecord) -> None:
        await asyncio.sleep(self._entropy.jitter(0, 8))
        with suppress(LeaseUnreachable):
            self._place.link(marker)

    async def close(self) -> None:
        self._closed = True


__all__ = ["KEPT_MAX", "TIMEOUT_S", "SharedPlace", "SimLease"]
