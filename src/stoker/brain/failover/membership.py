"""The control planes of a cluster: which one this is, what its peers said last, and whose disks are in sync.

Rules: S1  acknowledgements wait for all members that any lease record of ours may name: a member is waited for before
           it is put in, and until it is known that a record without it is there
       S2  a member that is asked in and falls behind before anything was put needn't be waited for any more
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.brain.failover.timing import DEFAULT, FAST, Timing

MEMBERS_MAX: Final = 32
"""Of more, the lease record names none: nobody asks in so many."""
PEERS_MAX: Final = 64
"""Of more, those that were heard longest ago are forgotten."""
_PINGS: Final = 3
"""A peer that answered none of so many pings isn't there."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """One of several control planes; it never changes in a tenure."""

    me: Member
    peers: int
    """How many others there are."""
    shared_log: bool = False
    """All of them reach one log; else each has one of its own."""
    sync: bool = True
    """Is acknowledged only what everybody in sync has on disk?"""


def config_drift(us: Membership, timing: Timing, record: LeaseRecord | None) -> str:
    """Return each setting that must be the same on all control planes and isn't, with both values, in words for people.

    The lease record says what the active one has, whichever store the log is in; empty = no difference is known. Each
    is safe: acknowledgements are the active one's mode, and a standby reckons with the longer lease of both. What a
    take-over costs depends on it.
    """
    holder = record.holder if record is not None else None
    if record is None or holder is None or holder == us.me:
        return ""
    named = f"on {holder.name}, which is active"
    return "; ".join(f"{key} is {ours} here and {theirs} {named}" for key, ours, theirs in _drift(us, timing, record))


def _drift(us: Membership, timing: Timing, record: LeaseRecord) -> Iterator[tuple[str, str, str]]:
    if record.sync != us.sync and not us.shared_log:
        yield "failover.mode", _mode(us.sync), _mode(record.sync)
    if record.lease_s and record.lease_s != timing.lease_s:
        yield "failover.profile", _profile(timing.lease_s), _profile(record.lease_s)


def _mode(sync: bool) -> str:
    return "sync" if sync else "async"


def _profile(lease_s: float) -> str:
    known = {DEFAULT.lease_s: "default", FAST.lease_s: "fast"}
    return known.get(lease_s, f"one with a lease of {lease_s:g} s")


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
        """Return the peer that said within the time of silence that it is active; None = no peer did."""
        for at, said in self._said.values():
            if said.role is ControlRole.ACTIVE and now < at + self._timing.silence_s:
                return said.member
        return None

    def standbys(self, now: Mono) -> list[PeerState]:
        """Return what the standbys said that were heard lately."""
        lately = now - _PINGS * self._timing.ping_s
        return [said for at, said in self._said.values() if said.role is ControlRole.STANDBY and at >= lately]


class InSync:
    """The in-sync set of one epoch, which begins with the active alone."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self.wanted: tuple[Member, ...] = (me,)
        """Members that the lease record should name."""
        self._named: tuple[Member, ...] = (me,)

    @property
    def as_wanted(self) -> bool:
        """Whether the lease record, as far as we know, names the members that it should."""
        return self.wanted == self._named

    def waits_for(self, put: LeaseRecord | None) -> tuple[Member, ...]:
        """Return the members that acknowledgements wait for (S1). `put`: a record that may or may not be there."""
        return tuple(sorted({*self._named, *self.wanted, *(put.in_sync if put else ())}))

    def caught_up(self, member: Member) -> None:
        wanted = tuple(sorted({*self.wanted, member}))
        if len(wanted) <= MEMBERS_MAX:
            self.wanted = wanted

    def fell_behind(self, member: Member) -> None:
        """Leave this member out of the next version (S2)."""
        if member != self._me:
            self.wanted = tuple(each for each in self.wanted if each != member)

    def named(self, record: LeaseRecord) -> bool:
        """Note that this lease record is there; return whether that changed anything."""
        changed = record.in_sync != self._named
        self._named = record.in_sync
        return changed
