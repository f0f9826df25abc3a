"""Who was heard lately, and what did they say?"""

from typing import Final

from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.brain.failover.timing import Timing

PEERS_MAX: Final = 64
"""Of more, those that were heard longest ago are forgotten."""
_PINGS: Final = 3
"""Whoever answered none of so many pings isn't there."""


class Peers:
    """The other control planes, by what each of them said last."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._said: dict[Member, tuple[Mono, PeerState]] = {}

    def hear(self, said: PeerState, now: Mono) -> None:
        self._said.pop(said.member, None)
        self._said[said.member] = (now, said)
        while len(self._said) > PEERS_MAX:
            del self._said[next(iter(self._said))]

    def active(self, now: Mono) -> Member | None:
        """Who said within the time of silence that it is active?"""
        for at, said in self._said.values():
            if said.role is ControlRole.ACTIVE and now < at + self._timing.silence_s:
                return said.member
        return None

    def standbys(self, now: Mono) -> list[PeerState]:
        """Who is there, and a standby?"""
        lately = now - _PINGS * self._timing.ping_s
        return [said for at, said in self._said.values() if said.role is ControlRole.STANDBY and at >= lately]
