"""A follower whose confirmations are given by hand, so that it can be late, silent or gone."""

import asyncio

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.live.failover.links import Offer, Records, Welcome
from tests.live.failover.pair import CLUSTER, A, Active, B, disk_of, until


async def leading(*epochs: tuple[int, int], sync: bool = True) -> Active:
    active = Active(disk_of(*(epochs or ((1, 10),))), sync=sync)
    await active.lead(2)
    return active


def marker_says(active: Active, *members: Member) -> None:
    active.replication.in_sync_changed((A, *members))


class Hand:
    """A follower of which each confirmation is given by hand."""

    def __init__(self, active: Active, member: Member = B, *, position: int = 10) -> None:
        self._active = active
        offer = Offer(
            member=member,
            cluster_id=CLUSTER,
            position=Position(position),
            ends=((Epoch(1), Position(position)),),
        )
        self.sender = active.replication.accept(offer)
        self.has = position
        self.sent = -1
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self.sender.frames():
            if isinstance(frame, Welcome):
                self.sent = frame.position
            if isinstance(frame, Records):
                self.sent = frame.position + len(frame.records)
                if not frame.records:
                    self.say(self.has)  # it lives, though its disk may be slow

    def say(self, position: int) -> None:
        self.has = position
        self.sender.confirm(Position(position))

    async def takes(self, position: int) -> None:
        await until(lambda: self.sent >= position)
        self.say(position)

    async def hang_up(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def a_member(active: Active, member: Member = B) -> Hand:
    """One that is in the set."""
    hand = Hand(active, member)
    await until(lambda: member in active.caught_up)
    marker_says(active, *active.caught_up)
    return hand
