"""What may the body of a submit say, and which job does it mean?

Both seed dialects are read: aliases stand beside our own names, and a body that uses both of a pair is refused.
Whether the job is allowed is the brain's to say.
"""

from typing import Final, TypeVar

import msgspec

from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.job import Command, JobSpec, Visible
from stoker.wire.rest.decode import Count, bad_value
from stoker.wire.text import PRIORITY_WORDS, parse_duration, parse_priority

Value = TypeVar("Value")

_NAME_MAX: Final = 64
"""Of a name made from the command; a name that a person gives may be longer."""


class JobBody(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"job_class": "class"},
):
    """One job. Units: `_mb` are MiB, `gpu_memory_mb` is per GPU, `gpu_count` is per task."""

    name: str | None = None
    tenant: str | None = None
    tenant_id: str | None = None
    user: str | None = None
    job_class: JobClass | None = None
    priority: int | str | None = None
    """A whole number, or low (100), normal (500, the default), high (1000), urgent (2000)."""
    gpu_count: Count = 0
    gpu_memory_mb: Count = 0
    gpu_model: str | None = None
    cpus: Count | None = None
    cpu_cores: Count | None = None
    memory_mb: Count = 0
    tasks: Count = 1
    gang_scheduling: bool | None = None
    """Tasks of one job are always placed all or nothing."""
    image: str | None = None
    command: str | list[str] | None = None
    """Text is a line for the shell, a list is an argv."""
    args: list[str] | None = None
    """Appended to an argv."""
    script: str | None = None
    """Lines for the shell, instead of `command`."""
    env: dict[str, str] | None = None
    environment: dict[str, str] | None = None
    workdir: str | None = None
    max_runtime_minutes: Count | None = None
    time_limit: str | int | None = None
    """`30` (minutes), `2h`, `1-12:00:00` and the other forms of Slurm."""
    retries: Count = 0
    requeue: bool = True
    visible: Visible = Visible.UUID


class JobsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many jobs, accepted all or none."""

    jobs: list[JobBody]


def spec_of(body: JobBody, at: str = "") -> JobSpec:
    """The job that a body means. `at` says where the body lies in a bulk: `jobs[3]`.

    Raises: StokerError for two words for one thing, or a text that can't be read.
    """
    command = _command(body, at)
    return JobSpec(
        name=body.name or name_from(command),
        demand=_demand(body, at),
        command=command,
        priority=PRIORITY_WORDS["normal"] if body.priority is None else parse_priority(body.priority),
        time_limit_ms=_time_limit_ms(body, at),
        tenant=TenantName(_one("tenant", body.tenant, "tenant_id", body.tenant_id, at) or DEFAULT_TENANT),
        user=body.user or "",
        job_class=body.job_class or JobClass.BATCH,
        env=_one("env", body.env, "environment", body.environment, at) or {},
        workdir=body.workdir or "",
        image=body.image or "",
        retries_max=body.retries,
        requeue=body.requeue,
        visible=body.visible,
    )


def _one(name: str, value: Value | None, alias: str, other: Value | None, at: str) -> Value | None:
    if value is not None and other is not None:
        path = f"{at}.{name}" if at else name
        raise StokerError(
            refuse(
                "conflicting_fields",
                f"`{name}` and `{alias}` say the same thing, and both are given",
                f"send only one of them; `{name}` is our word",
                path=path,
                other=alias,
            )
        )
    return other if value is None else value


def _demand(body: JobBody, at: str) -> Demand:
    if body.gang_scheduling is False and body.tasks > 1:
        raise bad_value(_join(at, "gang_scheduling"), wanted="true where `tasks` is above 1", got="false")
    cpus = _one("cpus", body.cpus, "cpu_cores", body.cpu_cores, at)
    return Demand(
        gpu_count=body.gpu_count,
        gpu_memory_mb=body.gpu_memory_mb,
        gpu_model=body.gpu_model or "",
        cpus=1 if cpus is None else cpus,
        memory_mb=body.memory_mb,
        tasks=body.tasks,
    )


def _command(body: JobBody, at: str) -> Command:
    given = _one("command", body.command, "script", body.script, at)
    if body.args is not None and (isinstance(given, str) or (given is None and not body.image)):
        wanted = "left out, or `command` to be a list" if given is not None else "beside a `command` list or an `image`"
        raise bad_value(_join(at, "args"), wanted=wanted, got="given")
    if isinstance(given, str):
        return given
    # Empty: an image alone runs what its maker chose; without one the brain says that there is nothing to run.
    return (*(given or ()), *(body.args or ()))


def _time_limit_ms(body: JobBody, at: str) -> int:
    """0 = none was given: the policy's default holds."""
    if body.max_runtime_minutes is not None and body.time_limit is not None:
        _one("time_limit", 1, "max_runtime_minutes", 1, at)
    limit = body.max_runtime_minutes if body.time_limit is None else body.time_limit
    return 0 if limit is None else parse_duration(str(limit))


def name_from(command: Command) -> str:
    """A name for a job that was given none: its program's."""
    words = command.split(maxsplit=1) if isinstance(command, str) else command
    program = words[0].rsplit("/", 1)[-1] if words else ""
    return program[:_NAME_MAX] or "job"


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
