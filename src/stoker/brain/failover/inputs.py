"""Inputs of the failover machine.

Each is handed to `Machine.step` with the time at which it is told (seconds on a clock that counts through sleep).
"""

from enum import StrEnum

import msgspec

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono


class ControlRole(StrEnum):
    """Role of a control plane among its peers."""

    STANDBY = "standby"
    ACTIVE = "active"


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; told at the latest at `Machine.next_tick`."""


class LeaseRecordRead(msgspec.Struct, frozen=True, kw_only=True):
    """A read of the lease record has succeeded."""

    record: LeaseRecord | None
    """The highest version. None = there never was one."""
    asked_at: Mono
    """Before the read began."""


class LeaseRecordFailed(msgspec.Struct, frozen=True):
    """A read or a write has failed: the place can't be reached, or not in time. A write may have been done or not."""

    error: str


class LeaseRecordWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A write has come to an end."""

    record: LeaseRecord
    won: bool
    """False = another version is at its place, or a higher one is there."""


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """Another control plane has answered a ping, or has spoken on a stream."""

    member: Member
    role: ControlRole
    """ACTIVE only while its lease holds."""
    epoch: Epoch
    """Of the newest record in its log."""
    position: Position
    """Of that record."""


class CaughtUp(msgspec.Struct, frozen=True):
    """A standby has on disk all that was acknowledged; told to the active, whose acknowledgements wait for it now.

    Answered by InSyncChanged with it once the lease record names it; telling it again does no harm.
    """

    member: Member


class FellBehind(msgspec.Struct, frozen=True):
    """A standby is gone, or hasn't confirmed in time; told to the active.

    Answered by InSyncChanged without it once no lease record can name it any more; until then acknowledgements wait.
    Telling it again does no harm.
    """

    member: Member


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """End of our own log, and whether that log can be written.

    Told to an active: `position` is what it has acknowledged, or could have, since that is what every member of the set
    holds; not what only its own disk has. It goes into the lease record, and a member that lacks it never takes over.
    """

    epoch: Epoch
    position: Position
    fit: bool = True


class Promised(msgspec.Struct, frozen=True):
    """The log refuses older epochs than this one from now on, also after a restart.

    LogState was told before, if following had moved the log's end. A promise that fails is told as LogState without
    `fit`.
    """

    epoch: Epoch


class ForcePromotion(msgspec.Struct, frozen=True):
    """A person says: take over, whatever is lost by it.

    It stands for twice `expiry_s`, since a lease may have to end first, and is forgotten once an active is heard.
    `Machine.forced_takeover_blocker` says what is in the way.
    """


class Resign(msgspec.Struct, frozen=True):
    """This process is about to stop on purpose; told to an active once nothing is acknowledged any more."""


_OfLeaseRecord = LeaseRecordRead | LeaseRecordFailed | LeaseRecordWritten
_OfOthers = PeerState | CaughtUp | FellBehind | ForcePromotion
Input = Tick | _OfLeaseRecord | _OfOthers | LogState | Promised | Resign
