"""What is the machine told?

Each input is handed to `Machine.step` with the time at which it is told (seconds on a clock that counts through sleep).
"""

from enum import StrEnum

import msgspec

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono


class ControlRole(StrEnum):
    """What a control plane is for others."""

    STANDBY = "standby"
    ACTIVE = "active"


class Tick(msgspec.Struct, frozen=True):
    """Time has passed. Told at the latest when `Machine.next_tick` says."""


class LeaseRecordRead(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the marker has succeeded."""

    marker: LeaseRecord | None
    """The highest version. None = there never was one."""
    asked_at: Mono
    """Before the look began."""


class LeaseRecordFailed(msgspec.Struct, frozen=True):
    """A look or a write has failed: the place can't be reached, or not in time. A write may have been done or not."""

    error: str


class LeaseRecordWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A write has come to an end."""

    marker: LeaseRecord
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
    """Told to the active: this standby has on disk all that was acknowledged, and from now on acknowledgements wait
    for it too. Answered by InSyncChanged with it once the marker names it; telling it again does no harm."""

    member: Member


class FellBehind(msgspec.Struct, frozen=True):
    """Told to the active: this standby is gone, or hasn't confirmed in time. Answered by InSyncChanged without it once
    no marker can name it any more; until then acknowledgements wait. Telling it again does no harm."""

    member: Member


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """How far our own log reaches, and whether it can be written.

    Told to an active: `position` is what it has acknowledged, or could have, since that is what every member of the set
    holds; not what only its own disk has. It goes into the marker, and whoever lacks it never takes over.
    """

    epoch: Epoch
    position: Position
    fit: bool = True


class Promised(msgspec.Struct, frozen=True):
    """The log refuses older epochs than this one from now on, also after a restart. LogState was told before, if
    following had moved the log's end. A promise that fails is told as LogState without `fit`."""

    epoch: Epoch


class ForcePromotion(msgspec.Struct, frozen=True):
    """A person says: take over, whatever is lost by it.

    It stands for twice `expiry_s`, since a lease may have to end first, and is forgotten once an active one is heard.
    `Machine.force_obstacle` says what is in the way.
    """


class Resign(msgspec.Struct, frozen=True):
    """This process is about to stop on purpose. Told to an active once nothing is acknowledged any more."""


Input = (
    Tick
    | LeaseRecordRead
    | LeaseRecordFailed
    | LeaseRecordWritten
    | PeerState
    | CaughtUp
    | FellBehind
    | LogState
    | Promised
    | ForcePromotion
    | Resign
)
