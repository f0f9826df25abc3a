"""Lease record: the active control plane and the standbys that may take over, shared by all control planes.

The record lies in a place that each of them reaches: a folder on shared storage, or a row of the database that holds
the log. It has versions; the highest one is the truth.
"""

import msgspec

from stoker.brain.domain.ids import Epoch, Position


class Member(msgspec.Struct, frozen=True, order=True):
    """One control plane of the cluster, as the lease record names it."""

    name: str
    """`failover.name`."""
    uid: str
    """Drawn once per data folder, since a folder that was lost and made anew holds no record of the old one."""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the lease record."""

    version: int
    """1, 2, ...; each write takes the next."""
    epoch: Epoch
    holder: Member | None
    """The active control plane. None = the last one gave the lease back: a member of `in_sync` may take it at once."""
    in_sync: tuple[Member, ...]
    """Members whose disks hold every acknowledged record, sorted, the holder among them. Only they may take over."""
    position: Position = Position(0)
    """End of the holder's log when this was written: a log that ends before it has lost something."""
    http: str = ""
    """Address of the holder for clients, as `http://HOST:PORT`."""
    sync: bool = True
    """Whether the holder acknowledges only what every member of `in_sync` has on disk."""
    lossy: bool = False
    """The holder may lack acknowledged records, and hasn't yet left out the ids that may have been given away."""
    lease_s: float = 0.0
    """Seconds for which the holder may act, counted from before it began to write this; 0 = as its profile says."""
    mark: str = ""
    """Random text of this write, which tells whether a write of unknown outcome was done."""
