"""Effects that the failover machine asks for.

Effects are carried out in order. Each has an answer among `inputs`, but for `Ping`, `Lead`, `InSyncChanged` and
`StepDown`.
"""

import msgspec

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member


class ReadLeaseRecord(msgspec.Struct, frozen=True):
    """Read of the lease record; answered by LeaseRecordRead or LeaseRecordFailed."""


class WriteLeaseRecord(msgspec.Struct, frozen=True):
    """Write of a new version of the lease record; answered by LeaseRecordWritten or LeaseRecordFailed.

    At most one read or write is under way at a time.
    """

    record: LeaseRecord


class Ping(msgspec.Struct, frozen=True):
    """Question to every peer about its state; each answer is told as PeerState."""


class Promise(msgspec.Struct, frozen=True):
    """Order to stop following, and to let the log refuse older epochs than this one; answered by Promised."""

    epoch: Epoch


class Follow(msgspec.Struct, frozen=True):
    """Order to let the log take appends of this epoch again, and to follow the holder of the lease.

    It is given when a promise came to nothing, when a tenure sees the lease record first (an earlier tenure may have
    promised), and when another control plane has begun an epoch.
    """

    epoch: Epoch


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """Order to begin this epoch: the lease is ours."""

    epoch: Epoch
    forced: bool = False
    """What was acknowledged may be lost, so no id that may have been given away is given again."""


class InSyncChanged(msgspec.Struct, frozen=True):
    """New set of members whose disks an acknowledgement waits for, by the lease record: changed, or confirmed as told.

    The holder is among them. So is a member that caught up meanwhile and will be in the next version.
    """

    in_sync: tuple[Member, ...]


class StepDown(msgspec.Struct, frozen=True, kw_only=True):
    """Order to acknowledge and instruct nothing more, and to begin anew as a standby; the machine is spent."""

    code: str
    """`lease_lost`: another has taken over; `lease_ended`: it couldn't be renewed in time; `resigned`; `log_failed`."""
    why: str


Effect = ReadLeaseRecord | WriteLeaseRecord | Ping | Promise | Follow | Lead | InSyncChanged | StepDown
