"""REST shapes of jobs, and the query of a list of jobs.

Answers use our words; the names of the seed dialects stand beside them (`job_id`, `tenant_id`, `cpu_cores`). Those with
several jobs leave commands and environments empty, which may be of hundreds of KiB each.
A job's record isn't all there is to show of it: what depends on others comes as a `JobDetails`.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from stoker.brain.domain.array import array_text
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import FactValue
from stoker.brain.domain.gpu import gpus_number
from stoker.brain.domain.job import Attempt, EndCause, Job, StopCause, Task, TextEncoding, Visible
from stoker.brain.domain.label import CONTAINERS, JOB_GPU_SHARES, JOB_SCRIPTS
from stoker.brain.domain.lifecycle import JOB_STATES, JobState, Outcome
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.reason import Reason, ReasonCode, describe, hint_for
from stoker.brain.domain.sight import Sight, outlined_reason, seen_job
from stoker.brain.domain.units import NEVER, later
from stoker.brain.domain.where import selector_text, toleration_text
from stoker.wire.rest.container import container_fields
from stoker.wire.rest.decode import Count, Limit
from stoker.wire.rest.gpu_figures import JobGpuView
from stoker.wire.rest.notify import NoticeView, events_text, notice_view, targets_text
from stoker.wire.rest.view import iso, iso_or_none

LIST_DEFAULT = 50
LIST_MAX = 1000
_NOT_WISHED = (JOB_SCRIPTS, JOB_GPU_SHARES, CONTAINERS)  # they keep a job off nodes that couldn't run it


class ReasonView(msgspec.Struct, frozen=True):
    """The reason why a job waits, or why it ended as it did."""

    code: ReasonCode
    message: str
    hint: str
    facts: dict[str, FactValue]


class MembersView(msgspec.Struct, frozen=True, kw_only=True):
    """Members of an array by state. `failed` are all ends but success and cancel."""

    total: int
    pending: int
    held: int
    starting: int
    running: int
    stopping: int
    succeeded: int
    failed: int
    cancelled: int


class TaskRunView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an attempt. `gpus` are UUIDs; `cause` to `error` are null or empty until it has ended."""

    rank: int
    node: str
    gpus: tuple[str, ...]
    cpus: int
    memory_mb: int
    started_at: str | None
    ended_at: str | None = None
    cause: EndCause | None = None
    exit_code: int | None = None
    signal: int = 0
    oom: bool = False
    peak_memory_mb: int = 0
    """0 = not measured."""
    error: str = ""
    gpu_share: float = 1
    """Part of its GPU that it holds; 1 = its GPUs are its own."""
    gpu_memory_mb: int = 0
    """Bound of its GPU memory where it shares the device; 0 = all of it."""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try. `outcome` is null while it is live; `stopping` says why we told it to end."""

    number: int
    epoch: int
    outcome: Outcome | None
    exit_code: int | None
    placed_at: str
    started_at: str | None
    ended_at: str | None
    stopping: StopCause | None
    master_addr: str
    master_port: int
    tasks: list[TaskRunView]
    lease_ms: int = 0
    """Silence after which its nodes end it by themselves, so that it can be started elsewhere; 0 = never."""
    for_job: str = ""
    """The job that got its GPUs, where they were taken back."""


class JobDetails(NamedTuple):
    """A job with what depends on others than its own record."""

    job: Job
    state: JobState
    """Of an array `running` while any member is live."""
    reason: Reason | None
    """The job's own or, while it waits, the loop's."""
    members: MembersView | None = None
    """Of an array."""
    sight: Sight = Sight.FULL
    """How much of the job `job` and `reason` tell (`as_seen`)."""
    forgotten: bool = False
    """Only the history knows this array: no order can be given to it."""
    reservation: Reservation | None = None
    """When and where it starts at the latest, or the next member of it that has a reservation."""


class JobView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"job_class": "class"}):
    """A job, an array or a member of one (`123_4`).

    Ids are text; times are ISO 8601 in UTC; `_mb` are MiB; the demand is of one task. What comes after `attempts` is
    left out where it is empty; `status` is only in the answer to a submit, for the MVP's clients, and
    `message` there and in the answer to a signal, where it says whom it was sent to.
    """

    id: str
    job_id: str
    uid: str
    name: str
    tenant: str
    tenant_id: str
    user: str
    submitted_by: str
    state: JobState
    reason: ReasonView | None
    exit_code: int | None
    priority: int
    job_class: JobClass
    gpu_count: int
    gpu_memory_mb: int
    gpu_model: str
    cpus: int
    cpu_cores: int
    memory_mb: int
    tasks: int
    total_gpus: int
    """Devices; several jobs may share each of those where `gpu_share` is below 1."""
    command: str | tuple[str, ...]
    image: str
    env: dict[str, str]
    workdir: str
    time_limit_ms: int
    retries: int
    requeue: bool
    visible: Visible
    retries_used: int
    requeues_used: int
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    attempts: list[AttemptView]
    reduced: bool = False
    """True = a job of a tenant that isn't the caller's: only its ids, tenant, class, priority, state, array, numbers of
    GPUs and tasks and times are its own; everything else is left empty."""
    outline: bool = False
    """True = somebody else's job: its command, variables, folder, image, files and comment are left empty."""
    gpu_share: float = 1
    """Part of one GPU that each task asks for; 1 = its GPUs are its own."""
    array: str = ""
    """Of an array: its members, such as `0-9%3`."""
    members: MembersView | None = None
    """Of an array."""
    array_of: str = ""
    array_index: int | None = None
    """Of a member: the id of its array, and its index in it."""
    after: list[str] = []
    """What it was told to wait for."""
    begin: str | None = None
    """Not before."""
    comment: str = ""
    output: str = ""
    error: str = ""
    where: str = ""
    exclude: tuple[str, ...] = ()
    tolerate: list[str] = []
    partition: str = ""
    tasks_per_node: int = 0
    lost_after_ms: int | None = None
    """As it was told: for how long its nodes may be silent; 0 = for ever. Left out = as the cluster has set."""
    encoding: TextEncoding = TextEncoding.UTF_8
    secrets: dict[str, str] = {}
    """By variable: the name of the secret whose value it gets."""
    time_limit_at: str | None = None
    time_limit_near: bool = False
    """When it reaches its time limit, while it runs; and whether that is soon, as the event of this name has said."""
    script_bytes: int = 0
    """Size of the script that was submitted with it; `GET /api/v1/jobs/{job_id}/script` shows it. 0 = it has none."""
    tty: bool = False
    """Whether its standard streams are a terminal, which `GET /api/v1/jobs/{job_id}/attach` reaches."""
    detached: bool = False
    """With `tty`: it goes on though nobody is attached."""
    notify: list[str] = []
    """Events that are told."""
    notify_to: list[str] = []
    """Whom; of a URL the machine."""
    notices: list[NoticeView] = []
    """What was told of it, the newest last."""
    labels: dict[str, str] = {}
    preemptible: bool = False
    """Whether it may be stopped for a job of a higher priority."""
    checkpoint_ms: int = 0
    """How often it writes a checkpoint, as it was told; 0 = it keeps none."""
    mounts: list[str] = []
    """Of the container: `SOURCE:TARGET`, with `:ro` behind those that it may only read."""
    shm_mb: int = 0
    network: str = ""
    """Of the container; empty = it has none."""
    entrypoint: str | None = None
    """Instead of the image's."""
    signal: str = ""
    """A warning before its end, such as `USR1@90`."""
    preemptions: int = 0
    """How often its GPUs were taken back for another job."""
    planned_start: str | None = None
    """When it starts at the latest, while it waits and has a reservation; of an array its next member that has one."""
    planned_nodes: list[str] = []
    """The nodes of its reservation."""
    gpus: list[JobGpuView] = []
    """GPUs of a job that runs, and what they do; only where one job is asked for."""
    status: Literal["submitted"] | None = None
    message: str = ""


class JobsSubmittedView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a submit of many, in the order in which they were given."""

    jobs: list[JobView]
    total: int
    forgotten: list[str] = []
    """Only where a submit was repeated under its key: ids of jobs that ended so long ago that their records are
    gone."""


class ForgottenJobView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a submit that was repeated under its key after the record of its job was gone."""

    id: str
    job_id: str
    forgotten: Literal[True] = True
    status: Literal["submitted"] = "submitted"
    message: str


class JobsView(msgspec.Struct, frozen=True, kw_only=True):
    """Members of an array. At most 1000 and about 4 MiB are shown; `total` counts all that were named."""

    jobs: list[JobView]
    total: int


class JobsToldView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order that was given to several members of an array, each as the order left it.

    At most 1000 and about 4 MiB are shown; `total` counts all that were named, `changed` those to which the order made
    a difference.
    """

    jobs: list[JobView]
    total: int
    changed: int


class JobListQuery(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"job_class": "class"}
):
    """Query of a list of jobs. Newest first unless `sort` says otherwise; `after` is the `next` of the page before."""

    state: str = ""
    """Words of any dialect, with commas between several."""
    since: str = ""
    """Only jobs that hadn't ended before this moment: `now`, `7d` ago, a date or a time."""
    until: str = ""
    """Only jobs that were submitted before this moment."""
    full: bool = False
    """True: each with its command and environment, which are else left empty. Pages then hold fewer jobs."""
    members: bool = False
    """True: one row for each member of an array instead of one for the array."""
    planned: bool = False
    """True: only jobs and members with a reservation, the earliest planned start first, on one page; not with `sort`,
    `offset` or `after`."""
    tenant: str = ""
    """Only jobs of this tenant."""
    tenant_id: str = ""
    """The same as `tenant`."""
    job_class: Literal["", "online", "batch"] = ""
    """Only jobs of this class."""
    user: str = ""
    """Only jobs of this user."""
    name: str = ""
    """Only jobs of this name; `*` stands for any letters in it and `?` for any one, as in `train-*`."""
    label: str = ""
    """Only jobs whose labels meet these conditions: `team=nlp`, `team in (nlp,cv),!draft`."""
    array: str = ""
    """Only members of the array with this id, a row for each."""
    mine: bool = False
    """True: only jobs of the caller's own account."""
    sort: str = ""
    """Left out = newest first. `live` = what runs, then what waits, then what ended, each newest first. Else a column:
    id, name, state, gpus, priority, tenant, class, user, partition, tasks, attempts, submitted, started, ended, waited,
    ran, exit_code or time_limit; with `-` before it the largest first. By a column only jobs are sorted that the state
    remembers, not those of the history."""
    limit: Limit = LIST_DEFAULT
    """At most 1000; a higher one is read as 1000."""
    offset: Count = 0
    """Rows to leave out. Jobs that come or go meanwhile move the pages; `after` doesn't. Not with `sort`."""
    after: str = ""
    """The `next` of the page before, or in the usual order the last id on it."""


class JobListView(msgspec.Struct, frozen=True, kw_only=True):
    """One page of jobs, of about 4 MiB at most, so it may hold fewer than `limit`.

    `next` is the `after` of the next page, or null at the end. `total` counts every match among the jobs that are
    remembered; pages go on beyond it, into the history of those that ended long ago.
    """

    jobs: list[JobView]
    total: int
    limit: int
    next: str | None


def reason_view(reason: Reason, shown: JobDetails) -> ReasonView:
    hint = hint_for(reason, job=shown.job.label, name=shown.job.spec.name, forgotten=shown.forgotten)
    return ReasonView(reason.code, describe(reason), hint, reason.facts)


def _reason_of(shown: JobDetails, reason: Reason) -> ReasonView:
    if shown.sight is not Sight.REDUCED:
        return reason_view(reason, shown)
    # The facts may name nodes, users and other jobs, and the sentence repeats them.
    return ReasonView(reason.code, JOB_STATES[shown.state].meaning, "", {})


def members_view(counts: Mapping[JobState, int]) -> MembersView:
    """`counts` is of all members, by state."""
    apart = (JobState.PENDING, JobState.HELD, JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
    ends = (JobState.SUCCEEDED, JobState.CANCELLED)
    total = sum(counts.values())
    return MembersView(
        total=total,
        failed=total - sum(counts.get(state, 0) for state in (*apart, *ends)),
        **{state.value: counts.get(state, 0) for state in (*apart, *ends)},
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        epoch=attempt.epoch,
        outcome=attempt.outcome,
        exit_code=attempt.exit_code,
        placed_at=iso(attempt.placed_at),
        started_at=iso_or_none(attempt.started_at),
        ended_at=iso_or_none(attempt.ended_at),
        stopping=attempt.stop.cause if attempt.stop else None,
        master_addr=attempt.master_addr,
        master_port=attempt.master_port,
        tasks=[_task_view(task) for task in attempt.tasks],
        for_job=attempt.stop.for_label if attempt.stop else "",
        lease_ms=attempt.lease_ms,
    )


def _task_view(task: Task) -> TaskRunView:
    placement, end = task.placement, task.end
    return TaskRunView(
        rank=placement.rank,
        node=placement.node,
        gpus=placement.gpus,
        cpus=placement.cpus,
        memory_mb=placement.memory_mb,
        gpu_share=gpus_number(placement.gpu_share),
        gpu_memory_mb=placement.gpu_memory_mb,
        started_at=iso_or_none(task.started_at),
        ended_at=iso(end.at) if end else None,
        cause=end.cause if end else None,
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else 0,
        oom=end.oom if end else False,
        peak_memory_mb=end.peak_memory_mb if end else 0,
        error=(end.error or end.gpu_fault) if end else "",
    )


def job_view(shown: JobDetails, *, submitted: bool = False) -> JobView:
    job = shown.job
    spec, demand, label = job.spec, job.spec.demand, job.label
    return JobView(
        id=label,
        job_id=label,
        uid=job.uid,
        name=spec.name,
        tenant=spec.tenant,
        tenant_id=spec.tenant,
        user=spec.user,
        submitted_by=job.by,
        state=shown.state,
        reason=None if shown.reason is None else _reason_of(shown, shown.reason),
        exit_code=job.exit_code,
        priority=spec.priority,
        job_class=spec.job_class,
        gpu_count=demand.gpu_count,
        gpu_memory_mb=demand.gpu_memory_mb,
        gpu_model=demand.gpu_model,
        cpus=demand.cpus,
        cpu_cores=demand.cpus,
        memory_mb=demand.memory_mb,
        tasks=demand.tasks,
        total_gpus=demand.total_gpus,
        gpu_share=gpus_number(demand.gpu_share),
        command=spec.command,
        image=spec.image,
        env=spec.env,
        workdir=spec.workdir,
        time_limit_ms=spec.time_limit_ms,
        retries=spec.retries_max,
        requeue=spec.requeue,
        visible=spec.visible,
        tty=spec.tty,
        detached=spec.detached,
        retries_used=job.retries_used,
        requeues_used=job.requeues_used,
        submitted_at=iso(job.submitted_at),
        started_at=iso_or_none(job.started_at),
        ended_at=iso_or_none(job.ended_at),
        attempts=[attempt_view(attempt) for attempt in job.attempts],
        reduced=shown.sight is Sight.REDUCED,
        outline=shown.sight is Sight.OUTLINE,
        **_often_empty(shown),
        status="submitted" if submitted else None,
        message=f"job {label} submitted" if submitted else "",
    )


def _often_empty(shown: JobDetails) -> dict[str, Any]:
    """What few jobs have, of JobView."""
    from stoker.wire.text import warning_text  # only a control plane has to write it

    job, spec, where = shown.job, shown.job.spec, shown.job.spec.where
    return {
        "array": array_text(spec.array) if spec.array and not job.array_of else "",
        "members": shown.members,
        "array_of": str(job.array_of) if job.array_of else "",
        "array_index": job.array_index if job.array_of else None,
        "after": [str(each) for each in spec.after],
        "begin": iso_or_none(spec.begin),
        "comment": spec.comment,
        "output": spec.output,
        "error": spec.error,
        "where": selector_text(tuple(each for each in where.require if each.key not in _NOT_WISHED)),
        "exclude": where.exclude,
        "tolerate": [toleration_text(each) for each in where.tolerate],
        "partition": spec.partition,
        "tasks_per_node": spec.demand.tasks_per_node,
        "lost_after_ms": spec.lost_after_ms,
        "encoding": spec.encoding,
        "secrets": spec.secrets,
        **_limit_fields(job),
        "script_bytes": len(spec.script.encode(spec.encoding)) if spec.script else 0,
        "notify": events_text(spec.notify),
        "notify_to": targets_text(spec.notify),
        "notices": [notice_view(notice) for notice in job.notices],
        "labels": spec.labels,
        "preemptible": spec.preemptible,
        "checkpoint_ms": spec.checkpoint_ms,
        "signal": warning_text(spec.warn) if spec.warn else "",
        **container_fields(spec),
        "preemptions": job.preemptions,
        "planned_start": iso_or_none(shown.reservation.at) if shown.reservation else None,
        "planned_nodes": list(shown.reservation.nodes) if shown.reservation and shown.sight > Sight.REDUCED else [],
    }


def _limit_fields(job: Job) -> dict[str, Any]:
    attempt = job.live_attempt if job.attempts else None  # whoever sees it in outline sees none of them
    if attempt is None or attempt.began_at == NEVER:
        return {}
    near = attempt.warned_limit_ms == job.spec.time_limit_ms
    return {"time_limit_at": iso(later(attempt.began_at, job.spec.time_limit_ms)), "time_limit_near": near}


def as_seen(shown: JobDetails, sight: Sight) -> JobDetails:
    """Return the job as somebody of that sight sees it."""
    if sight is Sight.FULL:
        return shown
    reason = None if shown.reason is None else outlined_reason(shown.reason)
    return shown._replace(job=seen_job(shown.job, sight), reason=reason, sight=sight)
