"""Plans: placements and preemptions that the engine proposes, and the reasons of jobs that wait.

A plan is a proposal: `cycle.settle` admits each action anew against the newest state.
"""

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.units import Instant


class Place(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Proposal to start one attempt of a job on given nodes and GPUs, all ranks or none."""

    job: JobId
    attempt: int
    array: JobId = JobId(0)
    """Set when `job` is a lazy member of this array: it becomes a record with its placement."""
    tasks: tuple[TaskPlacement, ...]
    """In rank order, never empty."""
    master_addr: str = ""
    master_port: int = 0


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The time at which a waiting job starts at the latest, and where, if every job ends within its limit."""

    job: JobId
    at: Instant
    nodes: tuple[NodeName, ...]
    """By name."""


class Victim(msgspec.Struct, frozen=True, order=True):
    """An attempt that gives way: its whole gang is stopped, and its job is requeued."""

    job: JobId
    attempt: int


class Preempt(msgspec.Struct, frozen=True, kw_only=True):
    """Proposal to stop other attempts, and to keep what they hold for one job."""

    job: JobId
    """The job that gets the resources once they are free."""
    array: JobId = JobId(0)
    """Set when `job` is a lazy member of this array: it becomes a record with its claim."""
    tasks: tuple[TaskPlacement, ...]
    """Where it will run once the victims are gone, in rank order."""
    victims: tuple[Victim, ...]
    """Never empty."""
    cause: StopCause
    """`PREEMPTED` or `RECLAIMED`."""


Action = Place | Preempt
"""Closed union of the proposals."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Actions in the order in which they were found, and a reason for each shape that waits."""

    actions: tuple[Action, ...]
    reasons: dict[Shape, Reason]
    more: bool = False
    """True when the budget ended the pass before the queue did."""
    reservations: tuple[Reservation, ...] = ()
    """Of the first blocked jobs, in the order of the queue. Each pass makes them anew."""


class UndecidableShape(Exception):
    """A fault of the scheduler while it decided on one shape. The rest of the queue can be decided on without it."""

    def __init__(self, shape: Shape, error: str) -> None:
        super().__init__(f"{error} while deciding on {shape}")
        self.shape = shape
        self.error = error
