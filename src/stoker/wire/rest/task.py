"""REST shapes of jobs in the dgpu dialect.

`/api/v1/tasks` shows the same jobs under other words: `high` is class online with priority 1000, `low` is batch with
100; four states instead of eleven.
"""

import shlex
from typing import Annotated, Final, Literal

import msgspec

from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.ids import DEFAULT_TENANT, JobId, TenantName
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.lifecycle import FINAL, JOB_STATES, JobState, states_named
from stoker.brain.domain.reason import describe
from stoker.brain.domain.units import Instant
from stoker.wire.rest.decode import INTEGER_MAX, Limit
from stoker.wire.rest.job import LIST_DEFAULT, JobDetails
from stoker.wire.rest.submit import name_from
from stoker.wire.rest.view import iso, iso_or_none
from stoker.wire.text import PRIORITY_WORDS

TaskPriority = Literal["high", "low"]

CLASS_OF: Final[dict[TaskPriority, JobClass]] = {"high": JobClass.ONLINE, "low": JobClass.BATCH}
_PRIORITY_OF: Final[dict[JobClass, TaskPriority]] = {JobClass.ONLINE: "high", JobClass.BATCH: "low"}


class TaskBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submit in the dgpu dialect."""

    priority: TaskPriority
    """`high` is class online with priority 1000, `low` is batch with 100."""
    gpu_count: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
    """At least 1."""
    command: str
    """A line for the shell."""
    gpu_model: str | None = None
    """Only such GPUs: `V100` is found in `Tesla V100-SXM2-32GB`."""
    env: dict[str, str] | None = None
    """Variables of its own."""


class TaskSubmittedView(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    status: str
    created_at: str


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the dgpu dialect. `assigned_gpus` are ids as in `/api/v1/gpus`, of the newest attempt."""

    id: str
    task_id: str
    priority: TaskPriority
    gpu_count: int
    gpu_model: str
    command: str
    env: dict[str, str]
    status: str
    assigned_gpus: list[str]
    created_at: str
    started_at: str | None
    finished_at: str | None
    error: str


class TaskListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: str = ""
    """`pending`, `running`, `success` or `failed`; words of other dialects are read too."""
    priority: Literal["", "high", "low"] = ""
    """`high` = class online, `low` = batch."""
    limit: Limit = LIST_DEFAULT
    """At most 1000; a higher one is read as 1000."""


class TaskListView(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. `total` counts every match, also those beyond the limit."""

    tasks: list[TaskView]
    total: int


class MessageView(msgspec.Struct, frozen=True):
    message: str


def task_spec(body: TaskBody, home: TenantName = DEFAULT_TENANT) -> JobSpec:
    """The job that a task means, in the tenant `home`."""
    return JobSpec(
        name=name_from(body.command),
        demand=Demand(gpu_count=body.gpu_count, gpu_model=body.gpu_model or ""),
        command=body.command,
        priority=PRIORITY_WORDS[body.priority],
        time_limit_ms=0,
        tenant=home,
        job_class=CLASS_OF[body.priority],
        env=body.env or {},
    )


def task_submitted_view(shown: JobDetails) -> TaskSubmittedView:
    job, status = shown.job, JOB_STATES[shown.state].dgpu
    return TaskSubmittedView(task_id=job.label, status=status, created_at=iso(job.submitted_at))


def task_forgotten_view(job: JobId, at: Instant) -> TaskSubmittedView:
    """Of a submit that was repeated under its key after the record of its job was gone."""
    return TaskSubmittedView(task_id=str(job), status="forgotten", created_at=iso(at))


def task_view(shown: JobDetails, assigned_gpus: list[str]) -> TaskView:
    job = shown.job
    command = job.spec.command
    return TaskView(
        id=job.label,
        task_id=job.label,
        priority=_PRIORITY_OF[job.spec.job_class],
        gpu_count=job.spec.demand.total_gpus,
        gpu_model=job.spec.demand.gpu_model,
        command=command if isinstance(command, str) else shlex.join(command),
        env=job.spec.env,
        status=JOB_STATES[shown.state].dgpu,
        assigned_gpus=assigned_gpus,
        created_at=iso(job.submitted_at),
        started_at=iso_or_none(job.started_at),
        finished_at=iso_or_none(job.ended_at),
        error=_error(job),
    )


def _error(job: Job) -> str:
    failed = job.state in FINAL and job.state is not JobState.SUCCEEDED
    return describe(job.reason) if failed and job.reason else ""


def task_states_named(word: str) -> tuple[JobState, ...]:
    """The states that `word` means in this dialect, where `failed` is every end but success; else in any dialect."""
    here = tuple(state for state, words in JOB_STATES.items() if words.dgpu == word.lower())
    return here or states_named(word)
