"""How long does an agent wait before it tries the control plane again?

Pure: no clock, no ticks. Whoever waits asks for the next pause and sleeps on the Clock port.

Rules: B1  the first pause is 1 to 2 s, each next one twice as long, up to 15 to 30 s
       B2  a pause is drawn anew from the upper half of its range, so that a thousand agents that lost one control
           plane together don't come back together
       B3  only `worked` starts over: a control plane that accepts streams and drops them at once is not hammered
Source: "equal jitter", M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
"""

from typing import Final

from stoker.ports import Entropy

FIRST_S: Final = 2.0
CEILING_S: Final = 30.0


class Backoff:
    """A run of failures and the pause that the next one costs."""

    def __init__(self, entropy: Entropy, *, first_s: float = FIRST_S, ceiling_s: float = CEILING_S) -> None:
        assert 0 < first_s <= ceiling_s, f"no pause fits: {first_s=} {ceiling_s=}"
        self._entropy = entropy
        self._first_s = first_s
        self._ceiling_s = ceiling_s
        self._range_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        high = self._range_s
        self._range_s = min(self._ceiling_s, high * 2)
        return self._entropy.jitter(high / 2, high)

    def worked(self) -> None:
        """The connection has proved itself; the next failure is the first of a new run."""
        self._range_s = self._first_s
