"""Conditions under which a standby may take over, and what its log may lack when it does.

Rules: O1  nobody takes over while the lease record is out of reach, or the log can't be written
       O2  nobody takes over from a holder whose lease may not be over yet, or that is heard as active
       O3  only a member of the in-sync set takes over, and only if its log reaches as far as the lease record says,
           unless the holder acknowledged alone (mode async)
       O4  a lease that was given back, or is our own, is taken at once
       O5  without a lease record everybody must have been heard; the member with the newest log takes the first version
       O6  where all share one log, it needs neither a set nor a position, nor to have heard anybody
       O7  a person may overrule O3 and O5, nothing else
       O8  a control plane that is active under our own name is another one, if its data folder is another: a name is
           given twice
       S1  a standby that is promoted by force may lack anything
       S2  a holder that acknowledged alone (mode async) may have acknowledged more than another has; the lease record
           says how it did
       S3  one that took over with a loss and ended before its epoch began leaves it to the next one, itself too
"""

from typing import Final

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import LogState
from stoker.brain.failover.lease_record_client import LeaseRecordClient
from stoker.brain.failover.membership import Membership, Peers

FORCED_EPOCHS: Final = 1_000
"""A standby that is promoted by force leaves room for what an active that wasn't heard may have begun."""
LOG_UNFIT: Final = "the log can't be written"


def newest_epoch(record: LeaseRecord | None, log: LogState) -> Epoch:
    """Return the newest epoch known; the next active takes one above."""
    return Epoch(max(record.epoch if record else 0, log.epoch))


def takeover_blocker(us: Membership, client: LeaseRecordClient, log: LogState | None, peers: Peers, now: Mono) -> str:
    """Return why we may not take over now, one sentence for people; empty = nothing is in the way."""
    record = client.newest
    first = _unready(client, log)
    if first or log is None:
        return first
    if record is None:
        return "" if us.shared_log else _without_record(us, log, peers, now)
    lease = _held(us, record, client, peers, now)
    if lease or us.shared_log:
        return lease
    if us.me not in record.in_sync:
        namesake = any(member.name == us.me.name for member in record.in_sync)
        known = f": the {us.me.name} that is in it has another data folder, so another log" if namesake else ""
        return f"not in the in-sync set{known}"
    if record.sync and log.position < record.position:
        return f"its log ends at {log.position}, before the marker's {record.position}"
    return ""


def forced_takeover_blocker(
    us: Membership, client: LeaseRecordClient, log: LogState | None, peers: Peers, now: Mono
) -> str:
    """Return why not even a person can promote us now (O7); empty = nothing is in the way."""
    first = _unready(client, log) or _heard_active(us, peers, now)
    if first or client.newest is None:
        return first
    return _held(us, client.newest, client, peers, now)


def name_taken(me: Member, record: LeaseRecord | None) -> str:
    """Return that another control plane is active under our name, in words; empty = none is (O8).

    So is what we were ourselves with another data folder, until the lease of that is over.
    """
    if record is None or record.holder in (None, me) or record.holder.name != me.name:
        return ""
    return f"another control plane has the name {me.name} too: give each its own failover.name"


def _unready(client: LeaseRecordClient, log: LogState | None) -> str:
    """Return why the lease record or the log is not ready for a take-over (O1)."""
    if not client.fresh:
        return f"the marker can't be reached: {client.error}" if client.error else "the marker hasn't been read yet"
    if log is None:
        return "its log isn't open yet"
    return "" if log.fit else LOG_UNFIT


def _held(us: Membership, record: LeaseRecord, client: LeaseRecordClient, peers: Peers, now: Mono) -> str:
    """Return why the lease of that record can't be taken (O2, O4)."""
    if record.holder is None or record.holder == us.me:
        return ""
    if not client.lease_expired:
        return name_taken(us.me, record) or f"{record.holder.name} is active"
    return _heard_active(us, peers, now)


def _heard_active(us: Membership, peers: Peers, now: Mono) -> str:
    """Return which peer says that it is active, though the lease record doesn't; empty = none does."""
    active = None if us.shared_log else peers.active(now)
    return f"{active.name} said a moment ago that it is active still" if active is not None else ""


def _without_record(us: Membership, log: LogState, peers: Peers, now: Mono) -> str:
    """Return why we may not write the first version (O5)."""
    active, heard = peers.active(now), peers.standbys(now)
    if active is not None:
        return f"{active.name} is active"
    if len(heard) < us.peers:
        so_far = f"{len(heard)} of {us.peers} so far"
        return f"waits until every peer has been heard ({so_far}), since there is no marker yet"
    ours = (log.epoch, log.position)
    for said in heard:
        theirs = (said.epoch, said.position)
        if theirs > ours or (theirs == ours and said.member < us.me):
            return f"{said.member.name} goes first, since there is no marker yet"
    return ""


def may_lack(me: Member, before: LeaseRecord | None, log: LogState) -> bool:
    """Return whether `me`, taking over from `before` without force, may lack what was acknowledged (S2, S3)."""
    if before is None:
        return False
    if before.lossy:
        return True
    if before.sync or before.holder == me:
        return False
    return before.holder is not None or log.position < before.position


def still_lossy(ours: LeaseRecord | None, log: LogState) -> bool:
    """Return whether our epoch hasn't begun since a take-over with a loss (S3).

    `ours`: the last version that we won. What begins an epoch is the first record that is written under it.
    """
    return ours is not None and ours.lossy and log.position <= ours.position
