"""Why may a standby not take over now?

Rules: O1  nobody takes over while the marker is out of reach, or the log can't be written
       O2  nobody takes over from a holder whose lease may not be over yet, or that is heard as active
       O3  only a member of the in-sync set takes over, and only if its log reaches as far as the marker says, unless
           its holder acknowledged alone (mode async)
       O4  what was given back, or is our own, is taken at once
       O5  without a marker everybody must have been heard; whoever has the newest log takes the first version
       O6  where all share one log, it needs neither a set nor a position, nor to have heard anybody
       O7  a person may overrule O3 and O5, nothing else
       O8  who is active under our own name is another one, if its data folder is another: a name is given twice
"""

from typing import Final

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import LogState, PeerState
from stoker.brain.failover.lease_record_client import LeaseRecordClient
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.peers import Peers

LOG_UNFIT: Final = "the log can't be written"


def newest_epoch(marker: LeaseRecord | None, log: LogState) -> Epoch:
    """Whoever takes over takes one above."""
    return Epoch(max(marker.epoch if marker else 0, log.epoch))


def takeover_blocker(us: Membership, client: LeaseRecordClient, log: LogState | None, peers: Peers, now: Mono) -> str:
    """One sentence for people; empty = nothing is in the way."""
    marker = client.newest
    first = unready(client, log)
    if first or log is None:
        return first
    if marker is None:
        return "" if us.shared_log else _without_marker(us, log, peers, now)
    lease = _lease(us, marker, client, peers, now)
    if lease or us.shared_log:
        return lease
    if us.me not in marker.in_sync:
        namesake = any(member.name == us.me.name for member in marker.in_sync)
        known = f": the {us.me.name} that is in it has another data folder, so another log" if namesake else ""
        return f"not in the in-sync set{known}"
    if marker.sync and log.position < marker.position:
        return f"its log ends at {log.position}, before the marker's {marker.position}"
    return ""


def forced_takeover_blocker(
    us: Membership, client: LeaseRecordClient, log: LogState | None, peers: Peers, now: Mono
) -> str:
    """O7"""
    first = unready(client, log)
    if first:
        return first
    active = None if us.shared_log else peers.active(now)
    if active is not None:
        return _still_heard(active)
    return _lease(us, client.newest, client, peers, now) if client.newest is not None else ""


def unready(client: LeaseRecordClient, log: LogState | None) -> str:
    """O1"""
    if not client.fresh:
        return f"the marker can't be reached: {client.error}" if client.error else "the marker hasn't been read yet"
    if log is None:
        return "its log isn't open yet"
    return "" if log.fit else LOG_UNFIT


def _lease(us: Membership, marker: LeaseRecord, client: LeaseRecordClient, peers: Peers, now: Mono) -> str:
    """O2, O4"""
    if marker.holder is None or marker.holder == us.me:
        return ""
    if not client.lease_expired:
        return name_taken(us.me, marker) or f"{marker.holder.name} is active"
    active = None if us.shared_log else peers.active(now)
    return _still_heard(active) if active is not None else ""


def name_taken(me: Member, marker: LeaseRecord | None) -> str:
    """Is somebody else active who is called as we are? So is what we were ourselves with another data folder, until
    the lease of that is over."""
    if marker is None or marker.holder in (None, me) or marker.holder.name != me.name:
        return ""
    return f"another control plane has the name {me.name} too: give each its own failover.name"


def _still_heard(active: Member) -> str:
    """The marker doesn't say so."""
    return f"{active.name} said a moment ago that it is active still"


def _without_marker(us: Membership, log: LogState, peers: Peers, now: Mono) -> str:
    """O5"""
    active, heard = peers.active(now), peers.standbys(now)
    if active is not None:
        return f"{active.name} is active"
    if len(heard) < us.peers:
        so_far = f"{len(heard)} of {us.peers} so far"
        return f"waits until every peer has been heard ({so_far}), since there is no marker yet"
    ahead = [said for said in heard if _goes_first(said, us.me, log)]
    if ahead:
        return f"{ahead[0].member.name} goes first, since there is no marker yet"
    return ""


def _goes_first(said: PeerState, me: Member, log: LogState) -> bool:
    theirs, ours = (said.epoch, said.position), (log.epoch, log.position)
    return theirs > ours or (theirs == ours and said.member < me)
