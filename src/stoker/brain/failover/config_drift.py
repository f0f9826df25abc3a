"""Settings that must be the same on all control planes of a cluster, and aren't.

The lease record says what the active one has, whichever store the log is in. Each difference is safe: acknowledgements
are the active one's mode, and a standby reckons with the longer lease of both. What a take-over costs depends on it.
"""

from collections.abc import Iterator

from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.timing import DEFAULT, FAST, Timing


def config_drift(us: Membership, timing: Timing, record: LeaseRecord | None) -> str:
    """Return each such setting with both values, in words for people; empty = none is known."""
    holder = record.holder if record is not None else None
    if record is None or holder is None or holder == us.me:
        return ""
    named = f"on {holder.name}, which is active"
    return "; ".join(f"{key} is {ours} here and {theirs} {named}" for key, ours, theirs in _each(us, timing, record))


def _each(us: Membership, timing: Timing, record: LeaseRecord) -> Iterator[tuple[str, str, str]]:
    if record.sync != us.sync and not us.shared_log:
        yield "failover.mode", _mode(us.sync), _mode(record.sync)
    if record.lease_s and record.lease_s != timing.lease_s:
        yield "failover.profile", _profile(timing.lease_s), _profile(record.lease_s)


def _mode(sync: bool) -> str:
    return "sync" if sync else "async"


def _profile(lease_s: float) -> str:
    known = {DEFAULT.lease_s: "default", FAST.lease_s: "fast"}
    return known.get(lease_s, f"one with a lease of {lease_s:g} s")
