"""Who is the active control plane, and who may follow it? One small record that all control planes share.

The record lies in a place that each of them reaches: a folder on shared storage, or a row of the database that holds
the log. It has versions; the highest one is the truth.
"""

import msgspec

from stoker.brain.domain.ids import Epoch, Position


class Member(msgspec.Struct, frozen=True, order=True):
    """One control plane, as the marker knows it."""

    name: str
    """`failover.name`."""
    uid: str
    """Made once per data folder: a folder that was lost and made anew holds nothing of what the old one had."""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the record."""

    version: int
    """1, 2, ...; each write takes the next."""
    epoch: Epoch
    holder: Member | None
    """Who is active. None = the last one gave the lease back, so that a member of `in_sync` may take it at once."""
    in_sync: tuple[Member, ...]
    """Whose disks hold all that was ever acknowledged, sorted; the holder is one of them. Nobody else may take over."""
    position: Position = Position(0)
    """How far the log of the holder reached when this was written: whose log ends before has lost something."""
    http: str = ""
    """Where the holder answers people, as `http://HOST:PORT`."""
    sync: bool = True
    """Does the holder acknowledge only what every member of `in_sync` has on disk?"""
    lossy: bool = False
    """It may lack what was acknowledged before, and hasn't yet left out the ids that may have been given away."""
    lease_s: float = 0.0
    """How long it may act, counted from before it began to write this; 0 = as long as everybody's profile says."""
    mark: str = ""
    """Of this very write: tells whether a write of unknown outcome was done."""
