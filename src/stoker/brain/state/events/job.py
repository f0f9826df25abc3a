"""Facts about jobs, attempts and tasks."""

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import Spans
from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.job import JobSpec, StopCause, TaskEnd
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.units import NEVER, Instant


class JobSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="job_submitted"):
    job: JobId
    uid: str
    spec: JobSpec


class JobPlaced(msgspec.Struct, frozen=True, kw_only=True, tag="job_placed"):
    """An attempt got its resources. It was decided on the state at `decided_at`, under the policy of that digest and
    with that seed, so that it can be decided again later."""

    job: JobId
    attempt: int
    epoch: Epoch
    tasks: tuple[TaskPlacement, ...]
    master_addr: str = ""
    master_port: int = 0
    lease_ms: int = 0
    """0 = its nodes may be silent for ever."""
    decided_at: Position = Position(0)
    policy: str = ""
    seed: int = 0


class TaskStarted(msgspec.Struct, frozen=True, kw_only=True, tag="task_started"):
    job: JobId
    attempt: int
    rank: int


class AttemptStopping(msgspec.Struct, frozen=True, kw_only=True, tag="attempt_stopping"):
    """We told an attempt to end, or saw that it is ending. `cause` None: its leader ended by itself while part of its
    tree still lives."""

    job: JobId
    attempt: int
    cause: StopCause | None = None


class TaskEnded(msgspec.Struct, frozen=True, kw_only=True, tag="task_ended"):
    """A task is proved gone, or was settled without proof (`end.cause` says so). What it held is free."""

    job: JobId
    attempt: int
    rank: int
    end: TaskEnd


class JobRequeued(msgspec.Struct, frozen=True, kw_only=True, tag="job_requeued"):
    """Every task of the live attempt has ended with `outcome`, and the job is pending again. Exactly one counter
    rose, by the kind of that outcome."""

    job: JobId
    outcome: Outcome
    exit_code: int | None = None
    reason: Reason
    not_before: Instant = NEVER
    retries_used: int = 0
    requeues_used: int = 0
    port_retries_used: int = 0


class JobsEligible(msgspec.Struct, frozen=True, kw_only=True, tag="jobs_eligible"):
    """The pause of these jobs is over; the engine may place them."""

    jobs: tuple[JobId, ...]


class JobFinished(msgspec.Struct, frozen=True, kw_only=True, tag="job_finished"):
    """The job is final. `outcome` is that of the attempt that ended with it; None when none was live."""

    job: JobId
    state: JobState
    outcome: Outcome | None = None
    reason: Reason | None = None
    exit_code: int | None = None


class JobHeld(msgspec.Struct, frozen=True, kw_only=True, tag="job_held"):
    job: JobId


class JobReleased(msgspec.Struct, frozen=True, kw_only=True, tag="job_released"):
    job: JobId


class DependenciesMet(msgspec.Struct, frozen=True, kw_only=True, tag="dependencies_met"):
    """All that these jobs waited for has happened."""

    jobs: tuple[JobId, ...]


class JobReturned(msgspec.Struct, frozen=True, kw_only=True, tag="job_returned"):
    """A person wants what had ended to run once more: it is pending again, with its history; its counters begin anew.
    Of an array: some of its members were returned."""

    job: JobId


class JobSignalled(msgspec.Struct, frozen=True, kw_only=True, tag="job_signalled"):
    """Its processes were to be sent a signal, once, on the streams that were up."""

    job: JobId
    attempt: int
    signal: int


class MemberMade(msgspec.Struct, frozen=True, kw_only=True, tag="member_made"):
    """A member of an array became a record of its own."""

    array: JobId
    index: int
    held: bool = False


class MembersCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="members_cancelled"):
    """Members that hadn't become records will never run."""

    array: JobId
    indexes: Spans


class SubmitKeyed(msgspec.Struct, frozen=True, kw_only=True, tag="submit_keyed"):
    """The jobs just submitted came under this idempotency key of this principal."""

    key: str
    digest: str
    jobs: tuple[JobId, ...]


class JobsPruned(msgspec.Struct, frozen=True, kw_only=True, tag="jobs_pruned"):
    """Ended jobs that the state no longer remembers; their ids stay used."""

    jobs: tuple[JobId, ...]


JobEvent = (
    JobSubmitted
    | JobPlaced
    | TaskStarted
    | AttemptStopping
    | TaskEnded
    | JobRequeued
    | JobsEligible
    | JobFinished
    | JobHeld
    | JobReleased
    | DependenciesMet
    | JobReturned
    | JobSignalled
    | MemberMade
    | MembersCancelled
    | SubmitKeyed
    | JobsPruned
)
