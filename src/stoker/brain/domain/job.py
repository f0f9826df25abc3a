"""Job, attempt and task records of the cluster state.

All records are frozen: `apply` replaces them whole, so every reader holds a consistent value, and a snapshot is taken
by copying a dictionary of references. Frozen records can't hold each other in a circle, so the garbage collector
needn't traverse them (`gc=False`): with 100,000 jobs a traversal took 80 ms, in which no request was answered.
"""

from collections.abc import Mapping
from enum import StrEnum
from itertools import takewhile
from typing import Final

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import ArraySpec, Members, contains, member_id
from stoker.brain.domain.container import ContainerOptions
from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.dependency import Dependency
from stoker.brain.domain.ids import (
    DEFAULT_TENANT,
    Epoch,
    JobId,
    NodeName,
    PartitionName,
    Principal,
    TenantName,
    account_of,
)
from stoker.brain.domain.lifecycle import FINAL, LIVE, JobState, Outcome
from stoker.brain.domain.notify import Notice, Notify
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.secret import SecretName
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import ANYWHERE, Where

CommandLine = str | tuple[str, ...]
"""A shell line (run by `/bin/sh -c`) or an argv."""


class Visible(StrEnum):
    """Naming of the GPUs of a task in `CUDA_VISIBLE_DEVICES`."""

    UUID = "uuid"
    INDEX = "index"


class TextEncoding(StrEnum):
    """Encoding of the texts of a job that become bytes on its node: command, script, variables, folder, output files.

    In Latin-1 the letters U+0000 to U+00FF stand for the bytes 0 to 255, so any bytes can be sent as text.
    """

    UTF_8 = "utf-8"
    LATIN_1 = "latin-1"

    def native(self, text: str) -> str:
        """Return the text as Python has it of names of the system, bytes that aren't UTF-8 as half surrogates.

        Letters that the encoding lacks, which only a name of the job's may have, become `?`.
        """
        return text if self is TextEncoding.UTF_8 else text.encode(self, "replace").decode("utf-8", "surrogateescape")


RECORD_BYTES: Final = 512
"""Memory of a job's record beside its texts."""
TEXT_BYTES: Final = 64
"""Memory of one text beside its letters, with its place in what holds it."""


class WarnSignal(msgspec.Struct, frozen=True, gc=False):
    """A signal that warns a job's processes before they are told to end, so that they can save their work."""

    signal: int
    """1 to 64, as Linux numbers them."""
    lead_ms: int
    """How long before the terminate signal it is sent."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The job as it was submitted, with defaults filled in; it never changes."""

    name: str
    demand: Demand
    command: CommandLine
    priority: int
    time_limit_ms: int
    tenant: TenantName = DEFAULT_TENANT
    user: str = ""
    """The Unix account the job runs as. Empty = the agent's own account."""
    job_class: JobClass = JobClass.BATCH
    env: dict[str, str] = msgspec.field(default_factory=dict)
    workdir: str = ""
    """Absolute path on the node. Empty = a folder of the attempt's own."""
    image: str = ""
    retries_max: int = 0
    requeue: bool = True
    visible: Visible = Visible.UUID
    owner: str = "person"
    """Why the job exists: `person` for now; a workflow step, replica or claim later."""
    array: ArraySpec | None = None
    after: tuple[Dependency, ...] = ()
    """All must be met before it may start."""
    hold: bool = False
    """Submitted as held."""
    begin: Instant = NEVER
    """Not before this. NEVER = at once."""
    comment: str = ""
    output: str = ""
    """File on the node for its output, with `%j %A %a %x %N %t %%`. Empty = only kept for `stoker logs`."""
    error: str = ""
    """File of its own for stderr. Empty = the same as `output`."""
    where: Where = ANYWHERE
    partition: PartitionName = PartitionName("")
    lost_after_ms: int | None = None
    """How long its nodes may be silent before it is started elsewhere. None = as the policy says, 0 = for ever."""
    encoding: TextEncoding = TextEncoding.UTF_8
    secrets: dict[str, SecretName] = msgspec.field(default_factory=dict)
    """By variable: the secret whose value it gets when the job starts."""
    script: str = ""
    """Text of a script, as it was at submit; `command` is its name and what it is given. Empty = one of the node's."""
    notify: Notify | None = None
    """Who is told of which of its events. None = nobody has said: that of its tenant holds."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """For people and programs to find it by; they change nothing of where or when it runs."""
    preemptible: bool = False
    """Whether it may be stopped and requeued for a job of strictly higher base priority."""
    checkpoint_ms: int = 0
    """How often it writes a checkpoint into its checkpoint folder, from which it goes on. 0 = it keeps none."""
    container: ContainerOptions | None = None
    """Of a job with an image; None = it says nothing, or has none."""
    warn: WarnSignal | None = None
    """The signal before its GPUs are taken back and before its time limit. None = the terminate signal alone."""
    tty: bool = False
    """Its standard streams are a terminal, to which people attach."""
    detached: bool = False
    """With a terminal: it goes on though nobody is attached."""

    @property
    def shape(self) -> Shape:
        """The shape of the job, which the engine judges it by."""
        return Shape(self.tenant, self.job_class, self.demand, self.where, self.partition)

    @property
    def memory_bytes(self) -> int:
        """The memory that a record of this job takes, rounded up: the same on every machine and after every restart.

        Costs: two microseconds, and one more for each dozen of variables and arguments.
        """
        texts = [self.name, self.workdir, self.image, self.comment, self.output, self.error, self.script]
        if self.container is not None:
            for mount in self.container.mounts:
                texts += (mount.source, mount.target)
        texts += self.env
        texts += self.env.values()
        if self.labels:
            texts += (*self.labels, *self.labels.values())
        texts += (self.command,) if isinstance(self.command, str) else self.command
        if self.notify is not None:  # each event is noted for each target
            texts += self.notify.to * (1 + len(self.notify.on))
        letters = sum(map(len, texts))
        if not all(map(str.isascii, texts)):  # of those that aren't, a letter takes up to four bytes
            letters += sum([3 * len(text) for text in texts if not text.isascii()])
        small = len(self.after) + (0 if self.where is ANYWHERE else self.where.terms)
        return RECORD_BYTES + letters + TEXT_BYTES * (len(texts) + 2 * small)


class EndCause(StrEnum):
    """The cause of the end of one task, as its agent saw it."""

    EXITED = "exited"
    """The leader ended by itself; `exit_code` or `signal` says how."""
    STOPPED = "stopped"
    """An instruction to stop ended it."""
    START_FAILED = "start_failed"
    PORT_TAKEN = "port_taken"
    NEVER_STARTED = "never_started"
    """It never had a process, and that isn't the job's fault: its runner died too early, or GPUs weren't free."""
    ACCOUNT_REFUSED = "account_refused"
    """It never had a process: its node can't keep accounts apart, and takes no jobs of this one."""
    RUNNER_LOST = "runner_lost"
    """The runner was killed; the task's processes were swept."""
    NODE_REBOOTED = "node_rebooted"
    GONE = "gone"
    """The node searched and has no trace of it."""
    FORGOTTEN = "forgotten"
    """Settled without proof by `node forget --force`."""
    LEASE_ENDED = "lease_ended"
    """The runner killed it: its node had not been answered by an active control plane for as long as its lease."""
    SILENT = "silent"
    """Settled without proof: its node was silent for so long that its runner must have killed it."""


REFUSALS: Final = (EndCause.NEVER_STARTED, EndCause.ACCOUNT_REFUSED)
"""Causes of the end of a task whose node wouldn't or couldn't start it."""


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of one task. `exit_code` is None when something else ended it; `signal` is 0 when none did."""

    cause: EndCause
    at: Instant
    exit_code: int | None = None
    signal: int = 0
    oom: bool = False
    peak_memory_mb: int = 0
    """0 = not measured."""
    error: str = ""
    """For people: why it could not start, or what was lost."""
    node_fault: str = ""
    """What the site's prolog or epilog says is wrong with the node; empty = nothing."""
    gpu_fault: str = ""
    """The fault of a GPU of its node's that may have ended it, since it was found with its end; empty = none."""
    hung_up: bool = False
    """Its own terminal was closed shortly before, which sent it SIGHUP."""

    @property
    def proved(self) -> bool:
        """Whether the node itself said that the task is gone."""
        return self.cause not in (EndCause.FORGOTTEN, EndCause.SILENT)

    @property
    def was_refused(self) -> bool:
        """Whether the task never had a process because its node wouldn't or couldn't start it."""
        return self.cause in REFUSALS

    @property
    def failed_start(self) -> bool:
        """Whether the task never had a process, by a fault of the job or of its node."""
        return self.cause is EndCause.START_FAILED or self.was_refused

    @property
    def clean(self) -> bool:
        """Whether the task exited by itself with status 0."""
        return self.cause is EndCause.EXITED and self.exit_code == 0 and not self.oom


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One member of an attempt's gang."""

    placement: TaskPlacement
    started_at: Instant = NEVER
    end: TaskEnd | None = None


class StopCause(StrEnum):
    """The reason of a request that an attempt end."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REQUEUED = "requeued"
    """A person wants another try."""
    MEMBER_ENDED = "member_ended"
    """A task of the gang failed, so its other tasks must not hang."""
    PREEMPTED = "preempted"
    """A job of a higher priority gets its GPUs."""
    RECLAIMED = "reclaimed"
    """It had borrowed its GPUs, and whoever is guaranteed them needs them back."""
    GPU_FAILED = "gpu_failed"
    """A GPU that it holds is lost or has errors."""


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The request that an attempt end: its cause, its time and its author."""

    cause: StopCause
    at: Instant
    by: Principal
    hold: bool = False
    """Of `REQUEUED`: whether the job is held after it, instead of waiting for its turn."""
    for_job: JobId = JobId(0)
    """Of `PREEMPTED` and `RECLAIMED`: the job that gets the GPUs. 0 = none."""
    for_label: str = ""
    """The id of that job as people write it: it may be forgotten before the one that gave way."""
    error: str = ""
    """Of `GPU_FAILED`: which GPU, and its fault."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One try at running a job. It is live until `outcome` is set."""

    number: int
    epoch: Epoch
    tasks: tuple[Task, ...]
    """In rank order."""
    placed_at: Instant
    master_addr: str = ""
    master_port: int = 0
    """0 = none was asked for."""
    lease_ms: int = 0
    """How long its nodes may be unheard of before their runners end it. 0 = for ever: silence never ends it."""
    started_at: Instant = NEVER
    """When the last rank had started."""
    clock_moved_ms: int = 0
    """`ClusterState.clock_moved_ms` when its first task started."""
    warned_limit_ms: int = 0
    """The time limit whose end was said to be near. 0 = none."""
    signalled_limit_ms: int = 0
    """The time limit before which its processes were given notice. 0 = none."""
    stop: StopRequest | None = None
    outcome: Outcome | None = None
    ended_at: Instant = NEVER
    exit_code: int | None = None
    """Of the first task that failed, else of rank 0."""

    @property
    def open_tasks(self) -> tuple[Task, ...]:
        """Tasks that still hold their GPUs."""
        return tuple(task for task in self.tasks if task.end is None)

    @property
    def began_at(self) -> Instant:
        """Start of its first task, from which the time limit counts; NEVER = none has started."""
        return min((task.started_at for task in self.tasks if task.started_at != NEVER), default=NEVER)

    @property
    def refused_by(self) -> tuple[NodeName, ...]:
        """Nodes where one of its tasks failed to start."""
        return tuple({task.placement.node: None for task in self.tasks if task.end and task.end.failed_start})

    @property
    def all_started(self) -> bool:
        """Whether every rank has started."""
        return all(task.started_at != NEVER for task in self.tasks)


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job and its history of attempts, newest last."""

    id: JobId
    uid: str
    spec: JobSpec
    by: Principal
    submitted_at: Instant
    state: JobState = JobState.PENDING
    reason: Reason | None = None
    """Why it ended or is delayed. Why it waits for GPUs is kept by the loop, by shape."""
    attempts: tuple[Attempt, ...] = ()
    attempts_before: int = 0
    """Number of the last attempt that an earlier record of this member may have had: its own go on from there."""
    retries_used: int = 0
    requeues_used: int = 0
    port_retries_used: int = 0
    preemptions: int = 0
    """How often its GPUs were taken back for another job, since a person last returned it to the queue."""
    not_before: Instant = NEVER
    """A pending job is not offered to the engine until a `JobsEligible` event clears this."""
    started_at: Instant = NEVER
    """Of the first attempt that ran."""
    ended_at: Instant = NEVER
    exit_code: int | None = None
    blocked: bool = False
    """Some dependency isn't met yet; a `DependenciesMet` event clears this."""
    met: tuple[int, ...] = ()
    """Places in `spec.after` of conditions that were met by a job whose record has gone since, or which runs again."""
    array_of: JobId = JobId(0)
    """The array of which it is a member. 0 = none."""
    array_index: int = 0
    held_by: Principal = Principal("")
    """Who holds it; empty while nobody does, where its submitter told it to wait, and where that wasn't noted yet."""
    held_at: Instant = NEVER
    members: Members | None = None
    """Of an array: its members that are no records. Its state is `pending` or `held` until all members have ended;
    people are shown `ClusterState.shown_state`."""
    notices: tuple[Notice, ...] = ()
    """What was told of it, and to whom; at most one for each event and target."""

    @property
    def label(self) -> str:
        """The id as people write it: `123`, or `123_4` of a member."""
        return f"{self.array_of}_{self.array_index}" if self.array_of else str(self.id)

    @property
    def account(self) -> str:
        """The user of the job for people, whose it is: its Unix account, else its submitter."""
        return account_of(self.spec.user, self.by)

    @property
    def as_array(self) -> tuple[ArraySpec, Members]:
        """The array's spec and its members that are no records; an AssertionError for a job that is no array."""
        assert self.spec.array is not None, f"no array: {self.story()}"
        assert self.members is not None, f"a member of an array: {self.story()}"
        return self.spec.array, self.members

    @property
    def live_attempt(self) -> Attempt | None:
        """The attempt that holds resources now, if any does."""
        return self.attempts[-1] if self.state in LIVE else None

    @property
    def newest_attempt(self) -> int:
        """Number of the newest attempt, after which the next one is counted."""
        return self.attempts_before + len(self.attempts)

    def attempt(self, number: int) -> Attempt:
        """Return the attempt of this number, which the record must have."""
        assert number > self.attempts_before, f"attempt {number} was of an earlier record: {self.story()}"
        return self.attempts[number - self.attempts_before - 1]

    @property
    def refusals(self) -> tuple[tuple[NodeName, ...], ...]:
        """The nodes where each of its last attempts failed to start, newest first, up to one that didn't fail so."""
        if not self.attempts:
            return ()  # most that are asked about: a pass asks for each job that it places
        return tuple(takewhile(bool, (attempt.refused_by for attempt in reversed(self.attempts))))

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL

    def story(self) -> str:
        """Return the state and attempts of the job in one line, for the message of an assertion."""
        tries = ", ".join(f"#{a.number}@{a.epoch} {a.outcome or 'live'}" for a in self.attempts)
        return f"job {self.id} {self.state} [{tries}] not_before={self.not_before}"


class SubmitKey(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the jobs that were submitted under one idempotency key."""

    digest: str
    """Of the request's body: another body under the same key is refused."""
    jobs: tuple[JobId, ...]
    at: Instant


def key_name(by: Principal, key: str) -> str:
    """Return the dictionary key of an idempotency key, since two principals may draw the same one."""
    return f"{by} {key}"


def member_of(array: Job, index: int, records: Mapping[JobId, Job]) -> Job | None:
    """Return a member by its record or, when it has none, as its array has it.

    None = `array` has no such member or is no array, or the record is gone.
    """
    spec = array.spec.array
    if spec is None or array.array_of or not contains(spec.indexes, index):
        return None
    return records.get(member_id(array.id, spec, index)) or lazy_member(array, index)


def _member_like(array: Job, index: int) -> Job:
    spec, _ = array.as_array
    return Job(
        id=member_id(array.id, spec, index),
        uid=f"{array.uid}_{index}",
        spec=array.spec,
        by=array.by,
        submitted_at=array.submitted_at,
        state=array.state,
        reason=array.reason,
        not_before=array.not_before,
        blocked=array.blocked,
        met=array.met,
        array_of=array.id,
        array_index=index,
        ended_at=array.ended_at,
        held_by=array.held_by,
        held_at=array.held_at,
    )


def forgotten_member(array: Job, index: int, at: Instant, by: Principal) -> Job:
    """Return the new record of a member that ended and whose record is gone, for another try that `by` wants."""
    _, members = array.as_array
    ended = members.pruned_state(index)
    assert ended is not None, f"member {index} has no record that is gone: {array.story()}"
    return msgspec.structs.replace(
        _member_like(array, index),
        state=ended,
        reason=Reason(ReasonCode.REQUEUED, {"by": by}),
        not_before=NEVER,
        ended_at=at,
        attempts_before=members.pruned_attempts,
    )


def lazy_member(array: Job, index: int) -> Job | None:
    """Return a member that is no record, as its array has it; None = it was one, and its record is gone."""
    _, members = array.as_array
    as_array = _member_like(array, index)
    if contains(members.lazy, index):
        return as_array
    gone = members.cancelled_with(index)
    if gone is None:
        return None
    reason = Reason(ReasonCode.CANCELLED, {"by": gone.by})
    # It stays blocked as its array is: a person who runs it once more must not get it past a dependency.
    return msgspec.structs.replace(
        as_array, state=JobState.CANCELLED, reason=reason, not_before=NEVER, ended_at=gone.at
    )


def tasks_on(job: Job, node: NodeName) -> tuple[Task, ...]:
    """Return the tasks of the live attempt that hold resources on `node`, in rank order."""
    attempt = job.live_attempt
    if attempt is None:
        return ()
    return tuple(task for task in attempt.open_tasks if task.placement.node == node)
