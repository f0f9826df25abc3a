"""How far is one follower, as the active sees it?

Rules: S1  how long it has lacked something is counted from when that was shipped; of a stream that begins anew, and
           lacks what was confirmed before, from then on
       S2  it is late when it has lacked something for `standby_timeout_s`, or is away or silent for so long. A stream
           gives a sign of life each `look_s`, so it is given two of them more
Limits: OWED_MAX batches are timed; the oldest one that it lacks is always known.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from stoker.brain.domain.ids import Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.timing import Timing
from stoker.live.failover.sender import Sender

OWED_MAX: Final = 4_096
NOTHING: Final = Position(0)


class Stage(Enum):
    """How far a follower is on its way into the in-sync set and out again."""

    OUT = auto()
    """Acknowledgements don't wait for it. In all other stages they do."""
    CATCHING_UP = auto()
    """The marker knows nothing of it."""
    JOINING = auto()
    """The marker was asked to take it in, and may have."""
    IN = auto()
    LEAVING = auto()
    """The marker was asked to leave it out, and hasn't said so yet."""


class Unconfirmed(NamedTuple):
    """Something that was shipped and isn't confirmed."""

    position: Position
    at: Mono


class Lag(NamedTuple):
    """How far one follower is behind."""

    member: Member
    in_sync: bool
    records: int
    seconds: float


@dataclass(slots=True)
class Standby:
    """One follower. It is kept when its stream breaks."""

    member: Member
    heard_at: Mono
    """When its stream last said something; when it began, or ended."""
    asked_at: Mono
    """When it began to catch up, or the driver was last asked about it."""
    rests_until: Mono
    confirmed: Position = NOTHING
    """Its disk holds everything up to there."""
    stage: Stage = Stage.OUT
    sender: Sender | None = None
    """None = it isn't connected."""
    goal: Position = NOTHING
    """What had been acknowledged when it began to catch up."""
    owed: deque[Unconfirmed] = field(default_factory=deque)

    @property
    def is_waited_for(self) -> bool:
        return self.stage is not Stage.OUT

    @property
    def is_in_sync(self) -> bool:
        """As far as we know of the marker."""
        return self.stage in (Stage.IN, Stage.LEAVING)

    def ship(self, end: Position, now: Mono) -> None:
        """It owes a confirmation of what has just been shipped."""
        if len(self.owed) < OWED_MAX:
            self.owed.append(Unconfirmed(end, now))
        else:
            self.owed[-1] = self.owed[-1]._replace(position=end)

    def connect(self, sender: Sender, position: Position, now: Mono) -> None:
        """Its stream begins anew, behind what it has. S1"""
        earlier, self.sender = self.sender, sender
        if earlier is not None and earlier is not sender:
            earlier.close()
        if position < self.confirmed:
            self.owed.appendleft(Unconfirmed(self.confirmed, now))
        self.confirmed = position

    def confirm(self, position: Position, now: Mono) -> list[float]:
        """It has everything up to there. How many seconds each batch took that was owed."""
        self.heard_at, self.confirmed = now, max(self.confirmed, position)
        took: list[float] = []
        while self.owed and self.owed[0].position <= position:
            took.append(now - self.owed.popleft().at)
        return took

    def disconnect(self, now: Mono) -> None:
        self.sender, self.heard_at = None, now

    def is_late(self, now: Mono, timing: Timing) -> bool:
        """S2"""
        most = timing.standby_timeout_s
        if self.owed and now - self.owed[0].at > most:
            return True
        return now - self.heard_at > most + (2 * timing.look_s if self.sender is not None else 0.0)

    def lag(self, end: Position, now: Mono) -> Lag:
        """`end`: of the log."""
        seconds = now - self.owed[0].at if self.owed else 0.0
        return Lag(self.member, self.is_in_sync, max(0, end - self.confirmed), seconds)
