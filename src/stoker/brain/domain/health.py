"""Health of GPUs and nodes: states, causes, and the conditions that an agent reports.

A condition is a transition that an agent has seen, so it is part of the node's inventory, and thereby of the log. What
moves from second to second (a temperature, a utilisation) is told by heartbeats and is none.
"""

from enum import StrEnum
from typing import Final

import msgspec

from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import NEVER, Instant


class HealthState(StrEnum):
    """State of the health of a GPU or of a node."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Something odd was seen; it is offered."""
    DRAINED = "drained"
    """It gets no new work, by itself: until its cause is gone, or a person mends it."""
    REPAIRING = "repairing"
    """The cause isn't seen any more, and it is watched for a while before it is offered again."""


class HealthKind(StrEnum):
    """Cause of a condition."""

    LOST = "lost"
    ECC = "ecc"
    XID = "xid"
    HOT = "hot"
    WARM = "warm"
    """Near the temperature from which on it gets no new work."""
    THROTTLED = "throttled"
    """Its driver holds its clocks down: it is too hot, or gets too little power."""
    ROWS = "rows"
    """Rows of its memory fail: some are replaced by a reset only, or can't be replaced."""
    PROCESS = "process"
    """A process that is no task of this node is on it."""
    MEMORY = "memory"
    """Memory is in use there, and no task holds it."""
    UNANSWERED = "unanswered"
    """Nothing says whether it is clean."""


STOPS_JOBS: Final = (HealthKind.LOST, HealthKind.ECC, HealthKind.XID)
"""Causes for which a job that holds the GPU is stopped and started elsewhere, unless the policy lets it go on."""
XIDS_DRAIN: Final = (46, 48, 61, 62, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 140, 143)
"""Error codes of NVIDIA's driver that speak of the device, its memory, its bus, its links or its firmware."""
REASON_MAX: Final = 200


class GpuCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Condition of one GPU that isn't healthy. At most one of each GPU: the gravest."""

    uuid: GpuUuid
    index: int
    state: HealthState
    kind: HealthKind
    reason: str = ""
    """For people."""
    since: Instant = NEVER
    """By the node's clock."""

    @property
    def offered(self) -> bool:
        """Whether new work may have the GPU."""
        return self.state in (HealthState.HEALTHY, HealthState.SUSPECT)

    @property
    def ends_work(self) -> bool:
        """Whether a job that holds the GPU can't be trusted to go on."""
        return self.state is HealthState.DRAINED and self.kind in STOPS_JOBS
