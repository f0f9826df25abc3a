"""May whoever takes over lack something that was acknowledged? Then no id may be given that may have been given away.

Rules: S1  whoever is promoted by force may lack anything
       S2  who acknowledged alone (mode async) may have acknowledged more than another has; the marker says how it did
       S3  who took over with a loss and ended before its epoch began leaves it to whoever comes next, itself too
"""

from typing import Final, NamedTuple

from stoker.brain.domain.ids import Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.failover.inputs import LogState

FORCED_EPOCHS: Final = 1_000
"""Whoever is promoted by force leaves room for what an active that wasn't heard may have begun."""


class Reached(NamedTuple):
    """What a version of the marker says of the log behind it."""

    position: Position
    sync: bool
    lossy: bool


def found(before: LeaseRecord | None) -> Reached:
    """As that version has it."""
    return Reached(before.position, before.sync, before.lossy) if before else Reached(Position(0), True, False)


def may_lack(me: Member, before: LeaseRecord | None, log: LogState) -> bool:
    """Who takes over from `before` without force."""
    if before is None:
        return False
    if before.lossy:
        return True  # S3
    if before.sync or before.holder == me:
        return False
    return before.holder is not None or log.position < before.position  # S2


def still_lossy(ours: LeaseRecord | None, log: LogState) -> bool:
    """S3. `ours`: the last version that we won. What begins an epoch is the first that is written under it."""
    return ours is not None and ours.lossy and log.position <= ours.position
