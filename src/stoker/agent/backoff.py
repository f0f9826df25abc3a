"""Back-off of an agent: how long it waits before it tries the control plane again.

Pure: no clock, no ticks. The caller asks for the next pause and sleeps on the Clock port.

Rules: B1  the first pause is 1 to 2 s, each next one twice as long, up to 15 to 30 s
       B2  a pause is drawn anew from the upper half of its range, so that a thousand agents that lost one control
           plane together don't come back together
       B3  once a control plane has answered, the next pause is the first again, however long it was away before
       B4  once it has done so for a while, a run begins with short pauses too: a standby takes over within seconds, and
           a process that was restarted is back in one. One that takes us and drops us at once is not hammered
       B5  while somebody may be about to become active, no pause is longer than `SOON_S`: a standby that answers, or
           one of several control planes of which none does. A refusal is neither: somebody has to see to it first
Source: "equal jitter", M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from stoker.ports import Entropy

FIRST_S: Final = 2.0
CEILING_S: Final = 30.0
SOON_S: Final = 2.0
"""Two thousand agents then try 1,300 times a second, which costs those who are down nothing."""
QUICK_S: Final = ((0.1, 0.5), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0))
"""Of 200 agents that is 300 tries a second at most, which cost a standby a third of a core."""


class Backoff:
    """Run of failures, and the pause that the next one costs."""

    def __init__(
        self,
        entropy: Entropy,
        *,
        first_s: float = FIRST_S,
        ceiling_s: float = CEILING_S,
        quick: Sequence[tuple[float, float]] = (),
    ) -> None:
        """`quick`: ranges of the pauses after something that worked (B4), before the first of all others."""
        assert 0 < first_s <= ceiling_s, f"no pause fits: {first_s=} {ceiling_s=}"
        self._entropy = entropy
        self._first_s = first_s
        self._ceiling_s = ceiling_s
        self._range_s = first_s
        self._quick = quick
        self._ahead: Iterator[tuple[float, float]] = iter(())

    def next_s(self, at_most_s: float = CEILING_S) -> float:
        """Return the seconds to wait now, at most so many."""
        for low, high in self._ahead:
            return self._entropy.jitter(low, high)
        if at_most_s < self._range_s:
            return self._entropy.jitter(at_most_s / 2, at_most_s)
        high = self._range_s
        self._range_s = min(self._ceiling_s, high * 2)
        return self._entropy.jitter(high / 2, high)

    def answered(self) -> None:
        """Note that a control plane has answered: the next failure is the first of a new run (B3)."""
        self._range_s = self._first_s

    def worked(self) -> None:
        """Note that the connection has proved itself: the next run begins with short pauses (B4)."""
        self.answered()
        self._ahead = iter(self._quick)
