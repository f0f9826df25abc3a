"""REST shape of why a job waits or ended: the reason, its place in the queue, and who holds what it waits for."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from stoker.brain.domain.alternative import Alternative, AlternativeKind
from stoker.brain.domain.errors import FactValue
from stoker.brain.domain.lifecycle import JOB_STATES, JobState
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.domain.units import MINUTE_MS, Instant
from stoker.wire.rest.job import JobDetails, reason_view
from stoker.wire.rest.view import iso

_OPTIONS: Final = {
    "time_limit": "--time",
    "gpu_count": "--gpus",
    "tasks": "--tasks",
    "tasks_per_node": "--tasks-per-node",
    "gpu_model": "--gpu-model",
    "cpus": "--cpus",
    "memory_mb": "--memory",
}
"""Options of the command line, by the fields of a PATCH that an alternative may change."""


class PriorityView(msgspec.Struct, frozen=True, kw_only=True):
    """The priority by which a job stands in the queue, and what it is made of."""

    effective: int
    """The sum of the others."""
    base: int
    """The job's own."""
    aging: int
    """What it has gained by waiting."""
    fair_share: int
    """What it gains because its tenant has used little for its weight; of tenants beside each other the one that has
    used least gains most."""


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a job in the order in which a pass looks."""

    position: int
    """1 is first."""
    waiting: int
    """Jobs in the queue, this one included."""
    similar_ahead: int
    """Those before it that ask for the same."""
    priority: PriorityView


class HolderView(msgspec.Struct, frozen=True, kw_only=True):
    """A class, or a tenant with all beneath it, that holds more than is guaranteed."""

    kind: Literal["class", "tenant"]
    name: str
    gpus: int
    """Beyond the guarantee."""


class LentView(msgspec.Struct, frozen=True, kw_only=True):
    """Borrowers of the GPUs of a guarantee that would cover a waiting job. The largest holders come first."""

    message: str
    guarantees: list[str]
    """Which ones cover it: `class online`, `tenant vision`."""
    holders: list[HolderView]


class BlockingJobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that holds what another waits for. `name` and `user` are empty where they are not the caller's to see."""

    id: str
    name: str
    user: str
    tenant: str
    gpus: int | float
    """That the waiting job could use; of a shared one its share."""
    ends_by: str
    """By its time limit, at the latest; of one that was told to end by its notice and grace."""
    ending: bool = False
    """Whether it was told to end."""
    gives_way: bool = False
    """Whether it was told to end so that the waiting job gets its GPUs."""


class AlternativeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a waiting job with which it would start now."""

    kind: AlternativeKind
    """What it changes: `shorter` is a shorter time limit, `spread` lifts `tasks_per_node`, `more_tasks` asks for as
    many GPUs in all, in more tasks of fewer each."""
    message: str
    """The words that follow `it would start now`."""
    options: str
    """For `stoker update` and `stoker submit`."""
    changes: dict[str, int | str]
    """The body of a PATCH of the job."""


class WhyView(msgspec.Struct, frozen=True, kw_only=True):
    """The reason that keeps a job from running, or ended it. `code` is null and the facts are few while it runs."""

    id: str
    state: JobState
    code: ReasonCode | None
    message: str
    hint: str
    facts: dict[str, FactValue]
    position: int | None
    """Its place in the queue, as in QueuePlace; null when it isn't in it."""
    waiting: int | None
    similar_ahead: int | None
    priority: PriorityView | None = None
    """By which it has that place; null when it isn't in the queue."""
    lent: LentView | None = None
    """Who holds the GPUs of a guarantee that covers it, while it waits for GPUs; null where that isn't so."""
    blocked_by: list[BlockingJobView] = []
    """Jobs that hold what it waits for, on the nodes of its reservation or else on all that it may use; of many those
    that end first."""
    blocking_jobs: int = 0
    """How many hold it in all."""
    preempted: str = ""
    """Of a job that waits again since its GPUs were taken back: for which job, and when; empty = they weren't."""
    fits_by: str | None = None
    """When enough of them have ended by their limits so that it fits, if nothing else starts meanwhile. A bound, no
    reservation; null = there is none."""
    starts_by: str | None = None
    """When it starts at the latest if every job ends by its limit: what it waits for is kept. null = it has no
    reservation, which only the first of the queue have."""
    starts_on: list[str] = []
    """The nodes of its reservation."""
    alternatives: list[AlternativeView] = []
    """Changes with which a pass over the state of this moment would start it, those first that change least; each was
    tried. Empty = none was found, or a pass of this cluster takes too long to try any."""
    warnings: list[str] = []
    """Guarantees of its tenant, or of those above, that the cluster is too small for, while it waits for GPUs."""


class PreviewView(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome that a job would have if it were submitted now. A moment later it may be another."""

    outcome: Literal["starts", "preempts", "waits", "unknown", "refused"]
    """`starts` at once; `preempts` = once others have given way; `unknown` = a pass of this cluster costs too much to
    try; `refused` = a submit would be, with `code`."""
    message: str
    hint: str = ""
    code: str = ""
    """Of the reason to wait or of the refusal."""
    nodes: list[str] = []
    """Where it would start, each once."""
    starts_by: str | None = None
    """When it would start at the latest; null = it would have no reservation."""


class WaitDetails(NamedTuple):
    """Facts that `why` says beside the reason: place in the queue, borrowers, and holders of what it waits for."""

    place: QueuePlace | None = None
    lent: LentView | None = None
    blocked_by: Sequence[BlockingJobView] = ()
    blocking_jobs: int = 0
    fits_by: Instant | None = None
    reservation: Reservation | None = None
    alternatives: Sequence[Alternative] = ()
    warnings: Sequence[str] = ()


def why_view(shown: JobDetails, waits: WaitDetails) -> WhyView:
    place = waits.place
    label = shown.job.label
    reason = reason_view(shown.reason, shown) if shown.reason else None
    return WhyView(
        id=label,
        state=shown.state,
        code=reason.code if reason else None,
        message=reason.message if reason else JOB_STATES[shown.state].meaning,
        hint=reason.hint if reason else f"`stoker status {label}` shows its attempts",
        facts=reason.facts if reason else {},
        position=place.position if place else None,
        waiting=place.waiting if place else None,
        similar_ahead=place.similar_ahead if place else None,
        preempted=_preempted(shown),
        priority=place.priority if place else None,
        lent=waits.lent,
        blocked_by=list(waits.blocked_by),
        blocking_jobs=waits.blocking_jobs,
        fits_by=None if waits.fits_by is None or waits.reservation else iso(waits.fits_by),
        starts_by=iso(waits.reservation.at) if waits.reservation else None,
        starts_on=list(waits.reservation.nodes) if waits.reservation else [],
        alternatives=[alternative_view(each) for each in waits.alternatives],
        warnings=list(waits.warnings),
    )


def alternative_view(each: Alternative) -> AlternativeView:
    import shlex  # only a control plane has to write it

    given = each.changes.given
    if "time_limit_ms" in given:
        given["time_limit"] = _minutes(given.pop("time_limit_ms"))
    given = {name: given[name] for name in _OPTIONS if name in given}
    options = [f"{_OPTIONS[name]} {shlex.quote(_text(name, value))}" for name, value in given.items()]
    return AlternativeView(kind=each.kind, message=str(each), options=" ".join(options), changes=given)


def _text(name: str, value: int | str) -> str:
    if name == "memory_mb" and isinstance(value, int):
        return f"{value // 1024}GiB" if value % 1024 == 0 else f"{value}MiB"
    return str(value)


def _minutes(ms: int) -> str:
    hours, minutes = divmod(ms // MINUTE_MS, 60)
    return f"{hours}h" if not minutes else f"{ms // MINUTE_MS}m"


def _preempted(shown: JobDetails) -> str:
    """The sentence on how a job that waits lost its GPUs; whoever sees it reduced sees no reason of its record."""
    own = shown.job.reason
    waits = shown.state is JobState.PENDING and own is not None and own.code is ReasonCode.PREEMPTED
    return describe(own) if waits and own is not None and shown.reason != own else ""
