"""Which records have just been shipped, or are about to be?

One ring for all followers. Each has a place of its own in the log; whoever falls behind the ring reads the log instead.
So no follower makes the writer wait, and none costs more memory for being slow.

Rules: R1  what a batch shipped before the newest one holds may leave the ring: it is in the log, for the writer has one
           append under way at a time. The newest batch stays whole, however large
Limits: RECORDS_MAX and BYTES_MAX, or the newest batch.
"""

from collections.abc import Sequence
from typing import Final

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Stored

RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20
_COMPACT: Final = 1_000
"""Slots of dropped records that are kept at least, so that dropping costs nothing each time."""


class Ring:
    """The newest records of a log that ends at `end`."""

    def __init__(self, end: Position, *, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.end = end
        self._rows: list[Stored] = []
        self._gone = 0
        """How many of `_rows`, from the left, count no more."""
        self._bytes = 0
        self._records_max, self._bytes_max = records_max, bytes_max

    @property
    def begin(self) -> Position:
        """Behind this position everything is in the ring."""
        return Position(self.end - (len(self._rows) - self._gone))

    def add(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        assert position == self.end, f"records behind {position} in a ring that ends at {self.end}"
        self._rows.extend(Stored(Position(at), epoch, record) for at, record in enumerate(records, start=position + 1))
        self._bytes += sum(map(len, records))
        self.end = Position(position + len(records))
        while self._gone < len(self._rows) - len(records) and self._is_full():
            self._bytes -= len(self._rows[self._gone].record)
            self._gone += 1
        if self._gone > _COMPACT and self._gone * 2 > len(self._rows):
            del self._rows[: self._gone]
            self._gone = 0

    def after(self, position: Position, most: int) -> list[Stored] | None:
        """At most `most` records after `position`; none = that is the end. None = the ring begins later."""
        if position < self.begin:
            return None
        at = self._gone + (position - self.begin)
        return self._rows[at : at + most]

    def _is_full(self) -> bool:
        return len(self._rows) - self._gone > self._records_max or self._bytes > self._bytes_max
