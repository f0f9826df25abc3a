"""Client of the lease record: what is known of it, and what is under way with it.

Rules: T1  one look or put at a time
       T2  a put of unknown outcome is asked about by a look, and put again as it was, until it is known what became of
           it; nothing else is put before
       T3  what a put wins counts from when it was handed out first, however often that was
       T4  versions never go back: a record that does is as good as none
"""

from typing import Final

from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono
from stoker.brain.failover.effects import ReadLeaseRecord, WriteLeaseRecord
from stoker.brain.failover.inputs import LeaseRecordRead, LeaseRecordWritten
from stoker.brain.failover.timing import Timing

NEVER: Final = Mono(float("inf"))
"""No tick is needed."""
_LONG_AGO: Final = Mono(float("-inf"))


class LeaseRecordClient:
    """Our reads and writes of the lease record, one at a time: it says what to ask for, and is told the answers."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.newest: LeaseRecord | None = None
        """The newest version that was ever seen or won."""
        self.first_seen_at = Mono(0.0)
        """When it was first seen. Its writer began before that."""
        self.asked_at = _LONG_AGO
        """Before the newest look that showed it."""
        self.fresh = False
        """Has the last look or put come back with what `newest` says?"""
        self.error = ""
        """Why the last one hasn't."""
        self._unwritten = ""
        """Why the last try of `put` came to nothing. A record that can't be written may well be read meanwhile."""
        self.put: LeaseRecord | None = None
        """Handed out, and nobody knows yet what became of it."""
        self.put_at = Mono(0.0)
        """When `put` was handed out first (T3)."""
        self._put_again_at = _LONG_AGO
        self._in_doubt = False
        self._floor = 0
        self._under_way: ReadLeaseRecord | WriteLeaseRecord | None = None
        self._looked_at = _LONG_AGO

    @property
    def busy(self) -> bool:
        return self._under_way is not None

    @property
    def idle(self) -> bool:
        """Nothing is under way, and what became of the last put is known."""
        return not self.busy and self.put is None

    @property
    def trouble(self) -> str:
        """Reason for which it can't be read or written, for people; empty = none is known."""
        if self.error and self.error != self._unwritten:
            return f"the marker can't be reached: {self.error}"
        return f"the marker can't be written: {self._unwritten}" if self._unwritten else ""

    @property
    def next_version(self) -> int:
        return self.newest.version + 1 if self.newest else 1

    @property
    def lease_expired(self) -> bool:
        """Whether the lease of the holder of `newest` is surely over, and nobody has renewed it."""
        return self.fresh and self.asked_at >= self.first_seen_at + self._expiry_s

    @property
    def _expiry_s(self) -> float:
        """The writer of `newest` may have another profile than we."""
        if self.newest is None or self.newest.lease_s <= self._timing.lease_s:
            return self._timing.expiry_s
        return self._timing.expiry_of(self.newest.lease_s)

    @property
    def look_due(self) -> Mono:
        """When the next look is due: every so often, and at once when the version has been there for long enough."""
        again, over = self._looked_at + self._timing.look_s, self.first_seen_at + self._expiry_s
        soon = self.newest is not None and self._looked_at < over
        return Mono(min(again, over) if soon else again)

    @property
    def resolve_due(self) -> Mono:
        """When to ask, or to put again, because it isn't known what became of `put`."""
        if self.busy or self.put is None:
            return NEVER
        return self.look_due if self._in_doubt else self._put_again_at

    def look(self, now: Mono) -> ReadLeaseRecord:
        assert not self.busy, "one at a time"
        self._looked_at = now
        self._under_way = ReadLeaseRecord()
        return self._under_way

    def write(self, record: LeaseRecord, now: Mono) -> WriteLeaseRecord:
        assert self.put is None, "what became of the last put isn't known"
        assert record.version == self.next_version
        self.put, self.put_at = record, now
        return self._hand_out(record, now)

    def resolve(self, now: Mono) -> ReadLeaseRecord | WriteLeaseRecord:
        """Ask, or put again, because it isn't known what became of `put` (T2)."""
        assert self.put is not None
        return self.look(now) if self._in_doubt else self._hand_out(self.put, now)

    def _hand_out(self, record: LeaseRecord, now: Mono) -> WriteLeaseRecord:
        assert not self.busy, "one at a time"
        self._in_doubt, self._put_again_at = False, Mono(now + self._timing.look_s)
        self._under_way = WriteLeaseRecord(record)
        return self._under_way

    # --- answers ------------------------------------------------------------------------------------------------

    def failed(self, error: str) -> None:
        """Note that a look or a put has come to nothing, as far as is known."""
        if self._under_way is None:
            return  # an answer that nobody waits for any more
        if isinstance(self._under_way, WriteLeaseRecord):
            self._in_doubt, self._looked_at, self._unwritten = True, _LONG_AGO, error
        self._under_way = None
        self._out_of_reach(error)

    def seen(self, told: LeaseRecordRead, now: Mono) -> bool | None:
        """Note that a look has come back; return whether `put` was won, where the look tells it."""
        if not isinstance(self._under_way, ReadLeaseRecord):
            return None  # an answer that nobody waits for any more
        self._under_way = None
        gone_back = self._gone_back(told.record)
        if gone_back:
            self._out_of_reach(gone_back)
            return None
        self.error, self.fresh = "", True
        won = self._was_won(told.record)
        self._learn(told.record, now)
        self.asked_at = told.asked_at
        return won

    def was_put(self, told: LeaseRecordWritten, now: Mono) -> bool | None:
        """Note that a put has come back; return whether it was won, or None where nobody waits for it."""
        if self.put is None or told.record.mark != self.put.mark:
            return None
        if isinstance(self._under_way, WriteLeaseRecord):
            self._under_way = None
        put, self.put, self._in_doubt, self._unwritten = self.put, None, False, ""
        if told.won:
            self.error, self.fresh = "", True
            self._learn(put, now)
            return True
        self._floor = max(self._floor, put.version)
        self.fresh, self._looked_at = False, _LONG_AGO
        return False

    def _was_won(self, seen: LeaseRecord | None) -> bool | None:
        put = self.put
        if put is None:
            return None
        if seen is None or seen.version < put.version:
            self._in_doubt = False  # not done yet: once more
            return None
        self.put, self._in_doubt, self._unwritten = None, False, ""
        return seen.mark == put.mark

    def _learn(self, record: LeaseRecord | None, now: Mono) -> None:
        if record is not None and (self.newest is None or record.version > self.newest.version):
            self.newest, self.first_seen_at, self._floor = record, now, record.version

    def _gone_back(self, seen: LeaseRecord | None) -> str:
        """Return how this version undoes what was known (T4); empty = it doesn't."""
        version = seen.version if seen else 0
        if version < self._floor:
            return f"it has gone back from version {self._floor} to {version}"
        if self.newest is not None and version == self.newest.version and seen != self.newest:
            return f"its version {version} has become another one"
        return ""

    def _out_of_reach(self, error: str) -> None:
        self.error, self.fresh = error, False
