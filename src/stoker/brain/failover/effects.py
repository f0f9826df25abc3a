"""What does the machine ask for?

Effects are carried out in order. Each has an answer among `inputs`, but for `Ping`, `Lead`, `InSyncChanged` and
`StepDown`.
"""

import msgspec

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member


class ReadLeaseRecord(msgspec.Struct, frozen=True):
    """Answered by MarkerSeen or MarkerFailed."""


class WriteLeaseRecord(msgspec.Struct, frozen=True):
    """Answered by MarkerPut or MarkerFailed. At most one look or write is under way at a time."""

    marker: LeaseRecord


class Ping(msgspec.Struct, frozen=True):
    """Ask every peer how it is. Whoever answers is told as PeerState."""


class Promise(msgspec.Struct, frozen=True):
    """Stop following, and let the log refuse what is older. Answered by Promised."""

    epoch: Epoch


class Follow(msgspec.Struct, frozen=True):
    """Let the log take appends of this epoch again, and follow its holder. Given when a promise came to nothing, when a
    life sees the marker first (an earlier life may have promised), and when another has begun an epoch."""

    epoch: Epoch


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The lease is ours: begin this epoch."""

    epoch: Epoch
    forced: bool = False
    """What was acknowledged may be lost, so no id that may have been given away is given again."""


class InSyncChanged(msgspec.Struct, frozen=True):
    """Acknowledgements wait for these, and for nobody else, by the marker: it has changed, or confirms what was told.
    The holder is among them; so is whoever caught up meanwhile, and will be in the next version."""

    in_sync: tuple[Member, ...]


class StepDown(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledge nothing more, instruct nobody more, and begin anew as a standby. The machine is spent."""

    code: str
    """`lease_lost`: another has taken over; `lease_ended`: it couldn't be renewed in time; `resigned`; `log_failed`."""
    why: str


Effect = ReadLeaseRecord | WriteLeaseRecord | Ping | Promise | Follow | Lead | InSyncChanged | StepDown
