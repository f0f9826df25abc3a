"""Facts about jobs, attempts and tasks."""

from typing import ClassVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import Spans, indexes_of
from stoker.brain.domain.ids import Epoch, JobId, Position, Principal
from stoker.brain.domain.job import JobSpec, StopCause, TaskEnd
from stoker.brain.domain.job_changes import JobChanges, changes_text
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.notify import NoticeState, NotifyEvent, target_kind
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.sight import outlined_end, outlined_reason, outlined_spec
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.events.row import (
    Audience,
    Fields,
    JobMetric,
    JobNote,
    LogLine,
    MembersNote,
    Row,
    SubmitNote,
    gpus_text,
    nodes_text,
)


def _submitted_fields(event: "JobSubmitted") -> Fields:
    demand, spec = event.spec.demand, event.spec
    return {"job_name": spec.name, "gpus": demand.total_gpus, "tasks": demand.tasks, "tenant": spec.tenant}


def _finished_fields(event: "JobFinished") -> Fields:
    return {"state": event.state, "exit_code": event.exit_code, "reason": event.reason.code if event.reason else None}


def _stopping_fields(event: "AttemptStopping") -> Fields:
    fields: dict[str, object] = {"attempt": event.attempt, "cause": event.cause or "ending"}
    fields |= {"error": event.error} if event.error else {}
    return {**fields, "for_job": event.for_label} if event.for_job else fields


def _stopping_note(event: "AttemptStopping") -> JobNote | None:
    action = {StopCause.CANCELLED: "cancel", StopCause.REQUEUED: "requeue"}.get(event.cause) if event.cause else None
    return JobNote(action, event.job, "hold" if event.hold else "") if action else None


def _settled_fields(event: "NotificationSettled") -> Fields:
    # Of a URL only the kind: who reads the log may not call it.
    return {"event": event.event, "kind": target_kind(event.to), "outcome": event.state, "error": event.error}


def _without_comment(changes: JobChanges) -> JobChanges:
    return replace(changes, comment=UNSET)


class AboutJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the events about one job."""

    job: JobId


class _AboutAttempt(AboutJob, frozen=True, kw_only=True):
    """Base of the events about one attempt of a job."""

    attempt: int


class _AboutTask(_AboutAttempt, frozen=True, kw_only=True):
    """Base of the events about one task of an attempt."""

    rank: int


class JobSubmitted(AboutJob, frozen=True, kw_only=True, tag="job_submitted"):
    row: ClassVar["Row[JobSubmitted]"] = Row(
        wakes=True,
        audience=Audience.NEW_JOB,
        log=LogLine("task_submitted", _submitted_fields, counted=False),
        audit=lambda event: SubmitNote(event.job, event.spec.tenant),
        metric=JobMetric.SUBMITTED,
        outline=lambda event: replace(event, spec=outlined_spec(event.spec)),
        public=lambda event: replace(event, spec=replace(event.spec, script="")) if event.spec.script else event,
    )

    uid: str
    spec: JobSpec
    met: tuple[int, ...] = ()
    """Places in `spec.after` of conditions that forgotten jobs had met."""


class JobPlaced(_AboutAttempt, frozen=True, kw_only=True, tag="job_placed"):
    """An attempt was placed and holds its resources.

    It was decided on the state at `decided_at`, under the policy of that digest and with that seed, so that it can be
    decided again later.
    """

    row: ClassVar["Row[JobPlaced]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine(
            "task_scheduled",
            lambda event: {
                "attempt": event.attempt,
                "agent_id": nodes_text(event.tasks),
                "gpu_ids": gpus_text(event.tasks),
            },
            counted=False,
        ),
        audit=None,
        metric=JobMetric.PLACED,
        outline=lambda event: replace(event, master_addr="", master_port=0),
    )

    epoch: Epoch
    tasks: tuple[TaskPlacement, ...]
    master_addr: str = ""
    master_port: int = 0
    lease_ms: int = 0
    """0 = its nodes may be silent for ever."""
    decided_at: Position = Position(0)
    policy: str = ""
    seed: int = 0


class TaskStarted(_AboutTask, frozen=True, kw_only=True, tag="task_started"):
    row: ClassVar["Row[TaskStarted]"] = Row(wakes=False, audience=Audience.JOB, log=None, audit=None)


class AttemptStopping(_AboutAttempt, frozen=True, kw_only=True, tag="attempt_stopping"):
    """An attempt was told to end, or was seen ending.

    `cause` None: its leader ended by itself while part of its process tree still lives.
    """

    row: ClassVar["Row[AttemptStopping]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine("task_stopping", _stopping_fields),
        audit=_stopping_note,
        metric=JobMetric.STOPPING,
    )

    cause: StopCause | None = None
    hold: bool = False
    """As in `StopRequest`."""
    for_job: JobId = JobId(0)
    for_label: str = ""
    """Both as in `StopRequest`."""
    error: str = ""
    """As in `StopRequest`."""


class CapacityClaimed(AboutJob, frozen=True, kw_only=True, tag="capacity_claimed"):
    """A pending job got a claim: what others are told to give up, and what is free beside it, is kept for it.

    It takes the place of an earlier claim of the job, and of those on its GPUs, and lasts until the job is placed, or
    may not start any more.
    """

    row: ClassVar["Row[CapacityClaimed]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine(
            "capacity_claimed", lambda event: {"agent_id": nodes_text(event.tasks), "gpu_ids": gpus_text(event.tasks)}
        ),
        audit=None,
    )

    tasks: tuple[TaskPlacement, ...]


class TaskEnded(_AboutTask, frozen=True, kw_only=True, tag="task_ended"):
    """A task is proved gone, or was settled without proof (`end.cause` says so). What it held is free."""

    row: ClassVar["Row[TaskEnded]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=None,
        audit=None,
        outline=lambda event: replace(event, end=outlined_end(event.end)),
    )

    end: TaskEnd


class JobRequeued(AboutJob, frozen=True, kw_only=True, tag="job_requeued"):
    """Every task of the live attempt has ended with `outcome`, and the job is pending again, or held.

    Exactly one counter rose, by the kind of that outcome.
    """

    row: ClassVar["Row[JobRequeued]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=LogLine("task_requeued", lambda event: {"outcome": event.outcome, "not_before": event.not_before}),
        audit=None,
        metric=JobMetric.ELIGIBLE,
        outline=lambda event: replace(event, reason=outlined_reason(event.reason)),
    )

    outcome: Outcome
    exit_code: int | None = None
    reason: Reason
    not_before: Instant = NEVER
    retries_used: int = 0
    requeues_used: int = 0
    port_retries_used: int = 0
    held: bool = False
    preemptions: int = 0


class JobsEligible(msgspec.Struct, frozen=True, kw_only=True, tag="jobs_eligible"):
    """The pause of these jobs is over; the engine may place them."""

    row: ClassVar["Row[JobsEligible]"] = Row(
        wakes=True, audience=Audience.JOBS, log=None, audit=None, metric=JobMetric.ELIGIBLE
    )

    jobs: tuple[JobId, ...]


class JobFinished(AboutJob, frozen=True, kw_only=True, tag="job_finished"):
    """The job is final. `outcome` is that of the attempt that ended with it; None when none was live."""

    row: ClassVar["Row[JobFinished]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=LogLine("task_finished", _finished_fields, counted=False),
        audit=lambda event: JobNote("cancel", event.job) if event.state is JobState.CANCELLED else None,
        metric=JobMetric.FINISHED,
        outline=lambda event: replace(event, reason=event.reason and outlined_reason(event.reason)),
    )

    state: JobState
    outcome: Outcome | None = None
    reason: Reason | None = None
    exit_code: int | None = None


class JobHeld(AboutJob, frozen=True, kw_only=True, tag="job_held"):
    row: ClassVar["Row[JobHeld]"] = Row(
        wakes=False, audience=Audience.JOB, log=None, audit=lambda event: JobNote("hold", event.job, whole=True)
    )

    by: Principal = Principal("")
    """Who holds it; empty in a log from before that was told."""


class JobReleased(AboutJob, frozen=True, kw_only=True, tag="job_released"):
    row: ClassVar["Row[JobReleased]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=None,
        audit=lambda event: JobNote("release", event.job, whole=True),
        metric=JobMetric.ELIGIBLE,
    )


class DependenciesMet(msgspec.Struct, frozen=True, kw_only=True, tag="dependencies_met"):
    """All that these jobs waited for has happened."""

    row: ClassVar["Row[DependenciesMet]"] = Row(
        wakes=True, audience=Audience.JOBS, log=None, audit=None, metric=JobMetric.ELIGIBLE
    )

    jobs: tuple[JobId, ...]


class JobReturned(AboutJob, frozen=True, kw_only=True, tag="job_returned"):
    """A person wants what had ended to run once more: it is pending again, with its history; its counters begin anew.
    Of an array: some of its members were returned."""

    row: ClassVar["Row[JobReturned]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=None,
        audit=lambda event: JobNote("requeue", event.job),
        metric=JobMetric.ELIGIBLE,
    )


class JobSignalled(_AboutAttempt, frozen=True, kw_only=True, tag="job_signalled"):
    """A signal was sent to the processes of a job, once, on the streams that were up."""

    row: ClassVar["Row[JobSignalled]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=None,
        audit=lambda event: JobNote("signal", event.job, f"signal {event.signal}"),
    )

    signal: int


class TimeLimitNear(_AboutAttempt, frozen=True, kw_only=True, tag="time_limit_near"):
    """A running attempt reaches its time limit soon. Said once for each limit that the job is given."""

    row: ClassVar["Row[TimeLimitNear]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine("time_limit_near", lambda event: {"attempt": event.attempt, "ends_at": event.ends_at}),
        audit=None,
    )

    limit_ms: int
    ends_at: Instant
    """When it reaches the limit."""


class AttemptWarned(_AboutAttempt, frozen=True, kw_only=True, tag="attempt_warned"):
    """The processes of a running attempt are given notice of its time limit, as long before it as the job wished.

    Once for each limit that the job is given.
    """

    row: ClassVar["Row[AttemptWarned]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine("task_warned", lambda event: {"attempt": event.attempt, "ends_at": event.ends_at}),
        audit=None,
    )

    limit_ms: int
    ends_at: Instant
    """When it reaches the limit."""


class JobUpdated(AboutJob, frozen=True, kw_only=True, tag="job_updated"):
    """A person changed a job, an array or a member: some of what was submitted is otherwise from now on."""

    row: ClassVar["Row[JobUpdated]"] = Row(
        wakes=True,
        audience=Audience.JOB,
        log=LogLine("task_updated", lambda event: {"changes": ",".join(event.changes.given)}),
        audit=lambda event: JobNote("update", event.job, changes_text(event.before, event.changes), whole=True),
        metric=JobMetric.ELIGIBLE,
        outline=lambda event: replace(
            event, changes=_without_comment(event.changes), before=_without_comment(event.before)
        ),
    )

    changes: JobChanges
    before: JobChanges
    """The values that the changed fields had."""
    met: tuple[int, ...] = ()
    """Where `after` is changed: places of conditions that forgotten jobs had met."""


class JobForwarded(_AboutAttempt, frozen=True, kw_only=True, tag="job_forwarded"):
    """A person was let through to a port of a task. Said once an hour of each person, task and port."""

    row: ClassVar["Row[JobForwarded]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=None,
        audit=lambda event: JobNote("forward", event.job, f"port {event.port} of rank {event.rank}"),
    )

    rank: int
    port: int


class JobEntered(_AboutAttempt, frozen=True, kw_only=True, tag="job_entered"):
    """A person was let into a task, to execute a program there or to its terminal. Said once of each session."""

    row: ClassVar["Row[JobEntered]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=None,
        audit=lambda event: JobNote("exec", event.job, f"{event.program or 'its terminal'} in rank {event.rank}"),
        outline=lambda event: replace(event, program=""),
    )

    rank: int
    program: str


class MemberMade(msgspec.Struct, frozen=True, kw_only=True, tag="member_made"):
    """A member of an array became a record of its own."""

    row: ClassVar["Row[MemberMade]"] = Row(
        wakes=False,
        audience=Audience.ARRAY,
        log=None,
        audit=lambda event: MembersNote("hold" if event.held else "release", event.array, [event.index], weak=True),
    )

    array: JobId
    index: int
    held: bool = False
    by: Principal = Principal("")
    """Who holds it; empty where it isn't held, and in a log from before that was told."""


class MembersCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="members_cancelled"):
    """Members that hadn't become records will never run."""

    row: ClassVar["Row[MembersCancelled]"] = Row(
        wakes=False,
        audience=Audience.ARRAY,
        log=None,
        audit=lambda event: MembersNote("cancel", event.array, list(indexes_of(event.indexes))),
        metric=JobMetric.MEMBERS_CANCELLED,
    )

    array: JobId
    indexes: Spans


class SubmitKeyed(msgspec.Struct, frozen=True, kw_only=True, tag="submit_keyed"):
    """The jobs just submitted came under this idempotency key of this principal."""

    row: ClassVar["Row[SubmitKeyed]"] = Row(
        wakes=False,
        audience=Audience.JOBS,
        log=None,
        audit=None,
        # By the digest a guess at the whole body could be checked.
        outline=lambda event: replace(event, key="", digest=""),
    )

    key: str
    digest: str
    jobs: tuple[JobId, ...]


class NotificationTried(AboutJob, frozen=True, kw_only=True, tag="notification_tried"):
    """An event of the job is about to be told to a target: from now on it may have been."""

    row: ClassVar["Row[NotificationTried]"] = Row(
        wakes=False, audience=Audience.JOB, log=None, audit=None, outline=lambda event: replace(event, to="")
    )

    event: NotifyEvent
    to: str


class NotificationSettled(AboutJob, frozen=True, kw_only=True, tag="notification_settled"):
    """A try to tell an event of the job to a target has ended so."""

    row: ClassVar["Row[NotificationSettled]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine("notification", _settled_fields, counted=False),
        audit=None,
        outline=lambda event: replace(event, to="", error=""),
    )

    event: NotifyEvent
    to: str
    state: NoticeState
    error: str = ""
    next_at: Instant = NEVER
    """When it is tried once more."""


class JobsPruned(msgspec.Struct, frozen=True, kw_only=True, tag="jobs_pruned"):
    """Ended jobs that the state no longer remembers; their ids stay used."""

    row: ClassVar["Row[JobsPruned]"] = Row(wakes=False, audience=Audience.ALL_JOBS, log=None, audit=None)

    jobs: tuple[JobId, ...]


JobEvent = (
    JobSubmitted
    | JobPlaced
    | TaskStarted
    | AttemptStopping
    | CapacityClaimed
    | TaskEnded
    | JobRequeued
    | JobsEligible
    | JobFinished
    | JobHeld
    | JobReleased
    | DependenciesMet
    | JobReturned
    | JobSignalled
    | TimeLimitNear
    | AttemptWarned
    | JobUpdated
    | JobForwarded
    | JobEntered
    | MemberMade
    | MembersCancelled
    | SubmitKeyed
    | NotificationTried
    | NotificationSettled
    | JobsPruned
)
