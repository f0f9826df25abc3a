"""When is an agent silent, and how long does its work outlive that?

Heartbeats and silence are of each control plane. The lease of attempts changes what is placed where, so it becomes part
of the policy, and each attempt keeps the one that it was placed with.
"""

from dataclasses import dataclass
from typing import Final, Literal

from stoker.brain.domain.policy import LEASE_MS_MAX, LEASE_MS_MIN
from stoker.brain.domain.units import SECOND_MS

LEASE_AUTO_S: Final = 600.0
SILENCES_MIN: Final = 2
"""An attempt outlives so many times the silence that makes a node unreachable: that is more than four heartbeats, so
that neither one that gets lost nor an agent that starts again ends work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsSettings:
    heartbeat_s: float = 5.0
    """Seconds between two signs of life of an agent. Often enough to miss one and not worry; 200 agents then cost
    about 3 % of a core."""
    unreachable_after_s: float = 15.0
    """Seconds of silence after which a node gets no new work: three heartbeats. Nothing that runs there ends for it."""
    attempt_lease_s: Literal["auto"] | float = "auto"
    """Seconds of silence after which a node ends its jobs by itself, so that they can be started elsewhere. 0 = never:
    they wait for their node. auto = 600 with `failover.enabled`, else 0, since an outage of the only control plane
    would end work too. Ten minutes are enough to start a machine again, or a pair of control planes. A job may say
    another time (`--lost-after`)."""

    @property
    def lease_min_s(self) -> float:
        """No attempt has a shorter lease."""
        return max(LEASE_MS_MIN / SECOND_MS, SILENCES_MIN * self.unreachable_after_s)

    @property
    def lease_min_ms(self) -> int:
        return _ms(self.lease_min_s)

    def lease_ms(self, *, failover: bool) -> int:
        """What attempts get whose jobs say nothing. 0 = they have none."""
        if self.attempt_lease_s == "auto":
            return _ms(max(LEASE_AUTO_S, self.lease_min_s)) if failover else 0
        return _ms(self.attempt_lease_s)

    def faults(self) -> list[str]:
        found = []
        if not 0.05 <= self.heartbeat_s <= 3_600:
            found.append(f"heartbeat_s: {self.heartbeat_s} isn't between 0.05 and 3600 seconds")
        if self.unreachable_after_s <= 2 * self.heartbeat_s:
            found.append(
                f"unreachable_after_s ({self.unreachable_after_s}) must exceed two heartbeats "
                f"(heartbeat_s is {self.heartbeat_s}), or one lost message takes a node out of service"
            )
        lease_s = self.attempt_lease_s
        if lease_s != "auto" and lease_s != 0 and not self.lease_min_s <= lease_s <= LEASE_MS_MAX / SECOND_MS:
            most = LEASE_MS_MAX // SECOND_MS
            found.append(
                f"attempt_lease_s ({lease_s:g}) must be 0, or from {self.lease_min_s:g} to {most}: at least a second "
                f"and twice unreachable_after_s (which is {self.unreachable_after_s:g}), or a short silence ends work"
            )
        return found


def _ms(seconds: float) -> int:
    return round(seconds * SECOND_MS)
