"""Timing profiles of control planes that stand by for each other.

All of one cluster should have the same profile. Where they don't, a standby reckons with the longer lease of both.
"""

from typing import Final

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, on clocks that count on while a machine sleeps (CLOCK_BOOTTIME)."""

    ping_s: float
    """Between two pings of a peer."""
    silence_s: float
    """A peer that hasn't said for this long that it is active is silent."""
    lease_s: float
    """How long the holder of a lease record may act, counted from before it began to write that version."""
    renew_s: float
    """Between two renewals."""
    look_s: float
    """Between two reads of the lease record, and before a failed write is tried again."""
    drift: float
    """By which part two clocks may differ in speed."""
    slack_s: float
    """Added to the lease beside the drift: what a timer may be late."""
    standby_timeout_s: float
    """How long an acknowledgement waits for a standby before that one leaves the in-sync set."""

    @property
    def expiry_s(self) -> float:
        """Seconds for which another clock must have seen a version unchanged until its lease is surely over."""
        return self.expiry_of(self.lease_s)

    def expiry_of(self, lease_s: float) -> float:
        """Return the same where the holder has a lease of `lease_s`; never less than with our own."""
        return max(self.lease_s, lease_s) * (1 + self.drift) + self.slack_s


DEFAULT: Final = Timing(
    ping_s=2.0, silence_s=4.0, lease_s=4.0, renew_s=1.0, look_s=0.5, drift=0.02, slack_s=0.1, standby_timeout_s=2.0
)
"""Takes over within 6 s: at most half a second until the last version is seen, the lease, and half a second's read."""
FAST: Final = Timing(
    ping_s=0.1, silence_s=0.3, lease_s=0.5, renew_s=0.1, look_s=0.05, drift=0.02, slack_s=0.02, standby_timeout_s=0.3
)
"""Takes over within 1 s. For quick shared storage and machines that aren't starved."""
