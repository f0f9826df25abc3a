"""When was the newest beat sent that an active control plane answered?

Attempt leases are counted from that moment, by the runner. It is never named later than it was: a beat counts from when
it was put on its way, and one that isn't noted here counts as the noted one before it.

Rules: N1  an answer is for the beat of its number and for all before it
       N2  whatever comes down a stream answers the inventory that opened it: nothing comes before that was compared
       N3  an answer tells once; one that brings nothing newer tells nothing
Limits: `NOTED_MAX` beats without an answer are noted; later ones aren't, until an answer comes.
"""

from collections import deque
from typing import Final

from stoker.brain.domain.units import Mono

NOTED_MAX: Final = 64
_INVENTORY: Final = -1
"""Before any beat of the stream."""


class HeartbeatAcks:
    """Of one stream."""

    def __init__(self, opened_at: Mono) -> None:
        self._waiting = deque([(_INVENTORY, opened_at)])

    def sent(self, sequence: int, at: Mono) -> None:
        if len(self._waiting) < NOTED_MAX:
            self._waiting.append((sequence, at))

    def answered(self, sequence: int) -> Mono | None:
        """N1, N3. When the newest of the beats that this answers was sent."""
        newest: Mono | None = None
        while self._waiting and self._waiting[0][0] <= sequence:
            newest = self._waiting.popleft()[1]
        return newest

    def spoken(self) -> Mono | None:
        """N2. Something else than an answer came."""
        return self.answered(_INVENTORY)

    def waited_s(self, now: Mono) -> float:
        """For how long the oldest unanswered one has been on its way. 0 = none is."""
        return now - self._waiting[0][1] if self._waiting else 0.0
