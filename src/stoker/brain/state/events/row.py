"""The row of an event kind: everything that the rest of the system must know of events of that kind.

Each event class has one as its class attribute `row`, and so has each class of commands that people give. `row_of` in
`union` takes any event, so the type checker refuses a class without a row, and a test asks every class of the union.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.tenant import NO_TENANT

E = TypeVar("E")

Fields: TypeAlias = Mapping[str, object]
"""Fields of a log line, in the order in which they are written."""


class Audience(Enum):
    """Readers of the event stream who are shown an event. Administrators are shown every one."""

    JOB = "those who may read the job of its field `job`"
    NEW_JOB = "those who may read jobs of the tenant in its field `spec`"
    ARRAY = "those who may read the array of its field `array`"
    JOBS = "those who may read one of its field `jobs`; each is shown only those"
    ORPHANS = "everyone; of its field `strays` each is shown those of jobs that they may read"
    ALL_JOBS = "those who may read all jobs"
    EVERYONE = "all who may read"
    TENANT = "all who may read; who isn't of the tenant in its field `tenant` hears it without the contact"
    ADMINS = "administrators"


class JobMetric(Enum):
    """Kinds of change that the metrics of jobs count."""

    SUBMITTED = "jobs were submitted"
    PLACED = "an attempt was placed"
    STOPPING = "an attempt was told to end, or ends"
    FINISHED = "a job ended"
    MEMBERS_CANCELLED = "members of an array ended before they became records"
    ELIGIBLE = "jobs may be placed from now on"


@dataclass(frozen=True, slots=True)
class LogLine(Generic[E]):
    """A line in the log of the control plane for each event of a kind."""

    name: str
    fields: Callable[[E], Fields]
    warning: bool = False
    counted: bool = True
    """Whether the events are a metric of the line's name too. The metrics of jobs count theirs with labels."""


class SubmitNote(NamedTuple):
    """Audit: a job was submitted."""

    job: JobId
    tenant: TenantName


class JobNote(NamedTuple):
    """Audit: `action` was done to a job, to an array or to a member of one."""

    action: str
    job: JobId
    details: str = ""
    whole: bool = False
    """Of an array: the action was about all of it, whatever else follows."""


class MembersNote(NamedTuple):
    """Audit: `action` was done to members of an array."""

    action: str
    array: JobId
    indexes: Sequence[int]
    weak: bool = False
    """Any other event of the same command names the action better."""


class SubjectNote(NamedTuple):
    """Audit: `action` was done to a node, a partition, a tenant, a token or the whole cluster."""

    action: str
    target: str
    details: str = ""
    tenant: TenantName = NO_TENANT


AuditNote: TypeAlias = SubmitNote | JobNote | MembersNote | SubjectNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[E]):
    """Everything that the rest of the system must know of events of one kind."""

    wakes: bool
    """Whether the scheduling loop looks at the queue because of it: it may change a decision."""
    audience: Audience
    log: LogLine[E] | None
    audit: Callable[[E], AuditNote | None] | None
    """What it says of the command of a person that led to it. None = nothing."""
    metric: JobMetric | None = None
    outline: Callable[[E], E] | None = None
    """The event for those who see its job in outline (`brain/domain/sight.py`). None = it says no more than that."""
    public: Callable[[E], E] | None = None
    """The event without what no reader may see, or what is too long for a stream. None = it has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow(Generic[E]):
    """Everything that the audit trail must know of commands of one kind."""

    action: str
    """The word of the audit trail for it."""
    about: Callable[[E], Mapping[str, object]] | None = None
    """What a command that was refused or changed nothing was about: fields of an audit row. None = the job or members
    of its field `target`."""


def nodes_text(placements: Sequence[TaskPlacement]) -> str:
    """The nodes of an attempt for a log line, each once."""
    return ",".join(dict.fromkeys(placement.node for placement in placements))


def gpus_text(placements: Sequence[TaskPlacement]) -> str:
    """The GPUs of an attempt for a log line, by UUID."""
    return ",".join(uuid for placement in placements for uuid in placement.gpus)
