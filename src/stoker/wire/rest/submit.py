"""REST shapes of a submit, and the job that a body describes.

Both seed dialects are read: aliases stand beside our own names, and a body that uses both of a pair is refused.
Whether the job is allowed is the brain's to say.

Rules: B1  a text that can't be read is refused with the path of its field
       B2  what counts from now (`begin`) counts from the `now` that the server hands in
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.container import ContainerOptions, Network
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.dependency import Dependency
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.gpu import WHOLE_GPU, parse_gpu_share
from stoker.brain.domain.ids import DEFAULT_TENANT, PartitionName, TenantName
from stoker.brain.domain.job import CommandLine, Job, JobSpec, TextEncoding, Visible
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.notify import Notify
from stoker.brain.domain.secret import SecretName
from stoker.brain.domain.tenant import UNSTATED
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import ANYWHERE, Where, make_where
from stoker.wire.dependency_text import parse_dependencies
from stoker.wire.rest.container import options_of
from stoker.wire.rest.decode import Count, bad_value
from stoker.wire.rest.notify import notify_of
from stoker.wire.text import (
    parse_begin,
    parse_checkpoint,
    parse_duration,
    parse_lost_after,
    parse_priority,
    parse_warning,
)

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
    """For people. Left out = the program's."""
    tenant: str | None = None
    """Whose quota it draws on. Left out = that of the token, or `default`."""
    tenant_id: str | None = None
    """The same as `tenant`."""
    user: str | None = None
    """Account to run as. Left out = that of the token; only admins may name another."""
    job_class: JobClass | None = None
    """Its pool. Left out = `batch`."""
    priority: int | str | None = None
    """A whole number, or low (100), normal (500), high (1000), urgent (2000). Left out = that of the tenant's tier, or
    500."""
    gpu_count: Count = 0
    """Of each task."""
    gpu_share: float | None = None
    """Part of one GPU that each task needs instead, above 0 and at most 1, with three decimals at most: 0.25 shares a
    GPU with others. Left out, or 1 = its GPUs are its own."""
    gpu_memory_mb: Count = 0
    """Least memory of each GPU; of a share the bound of what it may use: left out, its part of the device's."""
    gpu_model: str | None = None
    """Only such GPUs: `V100` is found in `Tesla V100-SXM2-32GB`."""
    cpus: Count | None = None
    """Of each task. Left out, or 0, = 1: what a node can take is counted in CPUs."""
    cpu_cores: Count | None = None
    """The same as `cpus`."""
    memory_mb: Count = 0
    """Host memory of each task; 0 = no limit."""
    tasks: Count = 1
    """Members of the gang, placed all or nothing."""
    gang_scheduling: bool | None = None
    """Tasks of one job are always placed all or nothing."""
    image: str | None = None
    """Container image to run it in, such as `ghcr.io/team/train:3`. Refused while no node can run containers."""
    mounts: list[str] | None = None
    """What its container sees of the node: `/data/imagenet:/data:ro`. Each node says what it allows."""
    shm_mb: Count = 0
    """Shared memory (/dev/shm) of its container. 0 = as the node has it."""
    network: Network | None = None
    """Network of its container. Left out = `host`, as processes have it."""
    entrypoint: str | None = None
    """Program of its container instead of the image's entry point; empty = none, so that `command` itself is run."""
    command: str | list[str] | None = None
    """Text is a line for the shell, a list is an argv."""
    args: list[str] | None = None
    """Appended to an argv."""
    script: str | None = None
    """Lines for the shell, instead of `command`. Beside a `command` that is a list: the text of a script, which is kept
    with the job and run by the interpreter that its first line names, else `/bin/sh`; the list is its name and its
    arguments."""
    env: dict[str, str] | None = None
    """Variables of its own."""
    environment: dict[str, str] | None = None
    """The same as `env`."""
    secrets: dict[str, str] | None = None
    """By variable: the name of the secret whose value it gets when the job starts."""
    workdir: str | None = None
    """Where it runs, an absolute path on the node. Left out = a folder of its own."""
    max_runtime_minutes: Count | None = None
    """`time_limit` in minutes, as the MVP's clients send it."""
    time_limit: str | int | None = None
    """`30` (minutes), `2h`, `1-12:00:00` and the other forms of Slurm."""
    retries: Count = 0
    """Tries after a non-zero exit or a failed start."""
    requeue: bool = True
    """Whether it starts again when its node is lost."""
    lost_after: str | int | None = None
    """For how long its nodes may be silent before it ends there by itself and is started elsewhere: as `time_limit`;
    `0` or `never` = it waits for them. Left out = as the cluster has set."""
    preemptible: bool = False
    """Whether it may be stopped, and started again later, for a job of a higher priority."""
    checkpoint: str | int | None = None
    """How often it writes a checkpoint into its checkpoint folder, from which it goes on: as `time_limit`; `none` = it
    keeps none."""
    signal: str | None = None
    """A warning before its GPUs are taken back and before its time limit: `USR1@90` = USR1, 90 s before the terminate
    signal. `USR1` alone = 60 s, `@90` = USR1."""
    visible: Visible = Visible.UUID
    """How `CUDA_VISIBLE_DEVICES` names its GPUs."""
    tty: bool = False
    """Whether its standard streams are a terminal, which `GET /api/v1/jobs/{job_id}/attach` reaches. It gets SIGHUP
    when nobody has been attached for a minute."""
    detached: bool = False
    """With `tty`: it goes on though nobody is attached."""
    array: str | None = None
    """Its members: `0-9`, `1,3,7`, `0-98:2`, with `%3` behind them for at most 3 at once."""
    after: str | list[str] | None = None
    """What it waits for: `ok:12`, `any:7_3`, `notok:12`, `after:#0` (`#0` = the first job of the same list)."""
    hold: bool = False
    """Submitted as held: a person must release it."""
    begin: str | None = None
    """Not before: ISO 8601 (UTC where it names no zone), or from now on, such as `now+2h`."""
    comment: str | None = None
    """For people."""
    output: str | None = None
    """File on the node for what it writes; `%j` job, `%A` array, `%a` index, `%x` name, `%N` node, `%t` rank."""
    error: str | None = None
    """File of its own for stderr."""
    where: str | None = None
    """Which nodes, by their labels: `zone=a,disk!=hdd,tier in (x,y),!slow`."""
    exclude: str | list[str] | None = None
    """Names of nodes, as a list or with commas between them."""
    tolerate: str | list[str] | None = None
    """Taints that don't keep it away: `KEY`, `KEY=VALUE` or `*`."""
    partition: str | None = None
    """A named part of the cluster, with its own limits."""
    tasks_per_node: Count = 0
    """At most so many tasks on one node; 0 = no bound."""
    labels: dict[str, str] | None = None
    """To find it by: `{"team": "nlp"}`, in the syntax of Kubernetes' labels; at most 32."""
    encoding: TextEncoding = TextEncoding.UTF_8
    """How `command`, `script`, `env`, `workdir`, `output` and `error` become bytes on the node. With `latin-1`
    each letter up to U+00FF stands for the byte of that number, so that bytes which aren't UTF-8 can be sent."""
    notify: str | list[str] | None = None
    """Events to tell of: `start`, `end`, `fail`, `wait>1h`; `none` = nothing. Left out = as the tenant has it."""
    notify_to: str | list[str] | None = None
    """Whom: `mail:ADDRESS`, `webhook:NAME` of the control plane, `https://...`, `slack:https://...`. Left out = the
    tenant's."""


class RequeueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hold: bool = False
    """Hold it once it has stopped, until it is released."""


class SignalBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    signal: int | str
    """A name as `kill -l` shows it, with or without SIG, or a number."""

    def command_fields(self) -> dict[str, object]:
        """Return the fields of the command. Raises: StokerError `bad_signal`."""
        from stoker.wire.text import parse_signal  # only a control plane has to read it

        return {"signal": parse_signal(self.signal)}


class JobPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a job: what is left out stays as it is. Units and forms are those of a submit."""

    name: str | None = None
    """For people."""
    comment: str | None = None
    """For people; empty = none."""
    priority: int | str | None = None
    """A whole number, or low (100), normal (500), high (1000), urgent (2000)."""
    time_limit: str | int | None = None
    """The whole time from its start: `30` (minutes), `2h`, `1-12:00:00`; of what runs too, up to the longest."""
    retries: Count | None = None
    """Tries after a non-zero exit or a failed start."""
    requeue: bool | None = None
    """Whether it starts again when its node is lost."""
    after: str | list[str] | None = None
    """What it waits for, instead of all before; empty = nothing."""
    begin: str | None = None
    """Not before; `now` = at once."""
    lost_after: str | int | None = None
    """For how long its nodes may be silent: as in a submit."""
    preemptible: bool | None = None
    """Whether it may be stopped for a job of a higher priority."""
    checkpoint: str | int | None = None
    """How often it writes a checkpoint; `none` = it keeps none."""
    signal: str | None = None
    """A warning before its end, such as `USR1@90`; `none` = no other than the terminate signal."""
    partition: str | None = None
    """A named part of the cluster; empty = none."""
    gpu_count: Count | None = None
    """Of each task."""
    gpu_memory_mb: Count | None = None
    """Least memory of each GPU."""
    gpu_model: str | None = None
    """Only such GPUs; empty = any."""
    cpus: Count | None = None
    """Of each task; 0 = 1."""
    memory_mb: Count | None = None
    """Host memory of each task; 0 = no limit."""
    tasks: Count | None = None
    """Members of the gang."""
    tasks_per_node: Count | None = None
    """At most so many tasks on one node; 0 = no bound."""
    where: str | None = None
    """Which nodes, by their labels; empty = any."""
    exclude: str | list[str] | None = None
    """Names of nodes, instead of all before; empty = none."""
    tolerate: str | list[str] | None = None
    """Taints that don't keep it away, instead of all before; empty = none."""

    def changes(self, now: Instant) -> JobChanges:
        """Return the changes that the body means. Raises: StokerError for a text that can't be read."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        for field, name, parse in _PATCHED:
            given[name] = _read(self, field, parse, None, "")
        given["begin"] = _read(self, "begin", lambda text: _begin_of(text, now), None, "")
        where = _where(self, "")
        for field, name in (("where", "require"), ("exclude", "exclude"), ("tolerate", "tolerate")):
            given[name] = None if getattr(self, field) is None else getattr(where, name)
        changes = {name: value for name, value in given.items() if value is not None}
        if self.signal is not None:
            changes["warn"] = _read(self, "signal", parse_warning, None, "")  # None is a value: no warning
        return JobChanges(**changes)


_SAME: Final = (
    *("name", "comment", "requeue", "preemptible"),
    *("gpu_count", "gpu_memory_mb", "gpu_model", "memory_mb", "tasks", "tasks_per_node"),
)
"""Fields of a patch that are those of JobChanges."""
_PATCHED: Final[tuple[tuple[str, str, Callable[[Any], Any]], ...]] = (
    ("priority", "priority", parse_priority),
    ("time_limit", "time_limit_ms", lambda given: parse_duration(str(given))),
    ("retries", "retries_max", int),
    ("after", "after", lambda given: parse_dependencies([given] if isinstance(given, str) else given)),
    ("lost_after", "lost_after_ms", lambda given: parse_lost_after(str(given))),
    ("checkpoint", "checkpoint_ms", lambda given: parse_checkpoint(str(given))),
    ("partition", "partition", PartitionName),
    ("cpus", "cpus", lambda count: count or 1),
)
"""Fields of a patch, those of JobChanges that they are, and how each is read."""


def _begin_of(text: str, now: Instant) -> Instant:
    begin = Instant(parse_begin(text, now))
    return begin if begin > now else NEVER


class JobsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many jobs, accepted all or none."""

    jobs: list[JobBody]
    """In this order. An error names the place: `jobs[3]`."""


class ScriptView(msgspec.Struct, frozen=True, kw_only=True):
    """The script of a job, as it was when the job was submitted."""

    id: str
    name: str
    """Of its file."""
    script: str
    """Empty = the job has none."""
    encoding: TextEncoding
    """How it becomes bytes on the node."""


def script_view(job: Job) -> ScriptView:
    """Return the script of a job; it is empty where the job has none."""
    spec = job.spec
    name = "" if isinstance(spec.command, str) or not spec.script else spec.command[0]
    return ScriptView(id=job.label, name=name, script=spec.script, encoding=spec.encoding)


def spec_of(body: JobBody, now: Instant, at: str = "", home: TenantName = DEFAULT_TENANT) -> JobSpec:
    """Return the job that a body describes.

    `at` says where the body lies in a bulk: `jobs[3]`; `home` is its tenant when it names none.

    Raises: StokerError for two words for one thing, or a text that can't be read.
    """
    if body.preemptible and not body.requeue:
        # Who reads both as Slurm does expects it to be cancelled then; here it would never give way, without a word.
        message = "`preemptible` says that the job may be stopped and started again, `requeue: false` that it may not"
        hint = "leave one of the two out: a job that isn't requeued never gives way to another"
        raise refusal_error("conflicting_fields", message, hint, path=_join(at, "preemptible"), other="requeue")
    command = _command(body, at)
    return JobSpec(
        name=body.name or name_from(command),
        demand=_demand(body, at),
        command=command,
        priority=_read(body, "priority", parse_priority, UNSTATED, at),
        time_limit_ms=_time_limit_ms(body, at),
        tenant=TenantName(_one("tenant", body.tenant, "tenant_id", body.tenant_id, at) or home),
        user=body.user or "",
        job_class=body.job_class or JobClass.BATCH,
        env=_one("env", body.env, "environment", body.environment, at) or {},
        workdir=body.workdir or "",
        image=body.image or "",
        retries_max=body.retries,
        requeue=body.requeue,
        lost_after_ms=_read(body, "lost_after", lambda given: parse_lost_after(str(given)), None, at),
        visible=body.visible,
        tty=body.tty,
        detached=body.detached,
        array=_read(body, "array", parse_array, None, at),
        after=_read(body, "after", _after, (), at),
        hold=body.hold,
        begin=_read(body, "begin", lambda given: Instant(max(NEVER, parse_begin(given, now))), NEVER, at),
        comment=body.comment or "",
        output=body.output or "",
        error=body.error or "",
        where=_where(body, at),
        partition=PartitionName(body.partition or ""),
        encoding=body.encoding,
        script=body.script or "" if isinstance(body.command, list) else "",
        secrets={variable: SecretName(name) for variable, name in (body.secrets or {}).items()},
        notify=_notify(body, at),
        labels=body.labels or {},
        preemptible=body.preemptible,
        checkpoint_ms=_read(body, "checkpoint", lambda given: parse_checkpoint(str(given)), 0, at),
        warn=_read(body, "signal", parse_warning, None, at),
        container=_container(body, at),
    )


def _read(body: JobBody | JobPatch, field: str, parse: Callable[[Any], Value], unless: Value, at: str) -> Value:
    """Return what a field says, or `unless` where it was left out (B1)."""
    given = getattr(body, field)
    if given is None:
        return unless
    with _in(_join(at, field)):
        return parse(given)


def _after(given: str | list[str]) -> tuple[Dependency, ...]:
    return parse_dependencies([given] if isinstance(given, str) else given)


def _where(body: JobBody | JobPatch, at: str) -> Where:
    if not (body.where or body.exclude or body.tolerate):
        return ANYWHERE
    exclude, tolerate = names_in(body.exclude), names_in(body.tolerate)
    with _in(lambda code: _join(at, "tolerate" if code == "bad_toleration" else "where")):
        return make_where(body.where or "", exclude, tolerate)


def _notify(body: JobBody, at: str) -> Notify | None:
    if body.notify is None and body.notify_to is None:
        return None
    with _in(_join(at, "notify")):
        return notify_of(names_in(body.notify), names_in(body.notify_to))


def names_in(given: str | list[str] | None) -> list[str]:
    """Names, as a list or with commas between them; no name has a comma in it."""
    parts = [given] if isinstance(given, str) else given or ()
    return [name for part in parts for word in part.split(",") if (name := word.strip())]


@contextmanager
def _in(path: str | Callable[[str], str]) -> Iterator[None]:
    """B1: around the reading of one field. Which one it was may depend on the refusal's code."""
    try:
        yield
    except StokerError as fault:
        refusal = fault.refusal
        facts = {**refusal.facts, "path": path if isinstance(path, str) else path(refusal.code)}
        raise StokerError(msgspec.structs.replace(refusal, facts=facts)) from fault


def _one(name: str, value: Value | None, alias: str, other: Value | None, at: str) -> Value | None:
    if value is not None and other is not None:
        message = f"`{name}` and `{alias}` say the same thing, and both are given"
        hint = f"send only one of them; `{name}` is our word"
        raise refusal_error("conflicting_fields", message, hint, path=_join(at, name), other=alias)
    return other if value is None else value


def _demand(body: JobBody, at: str) -> Demand:
    if body.gang_scheduling is False and body.tasks > 1:
        raise bad_value(_join(at, "gang_scheduling"), wanted="true where `tasks` is above 1", got="false")
    cpus = _one("cpus", body.cpus, "cpu_cores", body.cpu_cores, at)
    share = WHOLE_GPU
    if body.gpu_share is not None:
        with _in(_join(at, "gpu_share")):
            share = parse_gpu_share(repr(body.gpu_share))
    return Demand(
        gpu_count=body.gpu_count if body.gpu_share is None else body.gpu_count or 1,
        gpu_share=share,
        gpu_memory_mb=body.gpu_memory_mb,
        gpu_model=body.gpu_model or "",
        cpus=cpus or 1,
        memory_mb=body.memory_mb,
        tasks=body.tasks,
        tasks_per_node=body.tasks_per_node,
    )


def _command(body: JobBody, at: str) -> CommandLine:
    if isinstance(body.command, list):  # a script beside it is its program
        given: str | list[str] | None = body.command
    else:
        given = _one("command", body.command, "script", body.script, at)
    if body.args is not None and (isinstance(given, str) or (given is None and not body.image)):
        wanted = "left out, or `command` to be a list" if given is not None else "beside a `command` list or an `image`"
        raise bad_value(_join(at, "args"), wanted=wanted, got="given")
    if isinstance(given, str):
        return given
    # Empty: an image alone runs what its maker chose; without one the brain says that there is nothing to run.
    return (*(given or ()), *(body.args or ()))


def _container(body: JobBody, at: str) -> ContainerOptions | None:
    with _in(_join(at, "mounts")):
        return options_of(body.mounts or (), body.shm_mb, body.network, body.entrypoint)


def _time_limit_ms(body: JobBody, at: str) -> int:
    """0 = none was given: the policy's default holds."""
    if body.max_runtime_minutes is not None and body.time_limit is not None:
        _one("time_limit", 1, "max_runtime_minutes", 1, at)
    field = "max_runtime_minutes" if body.time_limit is None else "time_limit"
    return _read(body, field, lambda given: parse_duration(str(given)), 0, at)


def name_from(command: CommandLine) -> str:
    """A name for a job that was given none: its program's."""
    words = command.split(maxsplit=1) if isinstance(command, str) else command
    program = words[0].rsplit("/", 1)[-1] if words else ""
    return program[:_NAME_MAX] or "job"


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
