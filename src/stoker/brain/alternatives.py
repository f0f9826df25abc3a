"""Search for alternatives of one waiting job: changes with which the next pass would start it.

What is free says which changes are worth a try; a whole pass over the state as it is, with the job changed so, says
whether it starts. Nothing less is true: reservations, guarantees, limits, ports and those before it in the queue all
have their say there.

Rules: A1  an alternative is told only if `stoker update` takes it and a pass over the same state then starts the job
       A2  one thing is changed in each; the first of each kind that starts is told, ALTERNATIVES_MAX in all
       A3  of a shorter limit, the longest that ends a minute before a reservation, so that there is time to say so
       A4  arrays and their members have none, nor has a job to which others are giving way already
Limits: at most PASSES_MAX passes, each a step of the iterator, so that a caller does other work between two; none where
        one pass would cost more than about PASS_US_MAX, or where the next starts the job as it is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.brain.cycle import propose
from stoker.brain.domain.alternative import Alternative, AlternativeKind
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.gpu import mig_profile
from stoker.brain.domain.ids import CONTROL, JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Place, Plan, Reservation, UndecidableShape
from stoker.brain.domain.reason import SHORT, Reason, ReasonCode
from stoker.brain.domain.units import MINUTE_MS, Instant
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import Capacity
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.scheduling_pass import TRIES_PER_RESERVATION
from stoker.brain.engine.shares import caches_for
from stoker.brain.state.admit.job_update import update
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import UpdateJob
from stoker.brain.state.events.job import JobUpdated
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket

ALTERNATIVES_MAX: Final = 3
PASSES_MAX: Final = 12
PASS_US_MAX: Final = 50_000
"""Microseconds that a pass may be estimated to cost: the loop of a control plane stands still for as long."""
_SHAPE_US: Final = 5
"""Per shape that waits, of the slower ones."""
_WALK_US: Final = 3
"""Per candidate node and reservation, as `engine.reservation` says."""
TRIES_MAX: Final = 3
"""Alternatives of one kind that are tried, those first that change least."""
_MODELS_MAX: Final = 16
_EVERY: Final = 4
"""Of fewer GPUs as many are tried as fit what is free, then less and less of it, in quarters."""
_ROUND_MS: Final = 5 * MINUTE_MS
_ROUNDED_MS: Final = 60 * MINUTE_MS
"""Limits from an hour on are told in steps of five minutes, shorter ones in minutes."""
_ASKED_OF: Final = frozenset(
    {
        *SHORT,
        *(ReasonCode.RESERVED, ReasonCode.GUARANTEE_KEPT, ReasonCode.TENANT_LIMIT, ReasonCode.POOL_LIMIT),
        *(ReasonCode.NO_FITTING_NODE, ReasonCode.NODES_UNAVAILABLE, ReasonCode.NODES_PAUSED, ReasonCode.GPUS_UNREAD),
    }
)
"""Reasons that another demand or limit may get round."""


class _Tries(NamedTuple):
    """Changes of one kind, in the order in which they are tried."""

    kind: AlternativeKind
    changes: Sequence[JobChanges]


def alternatives(
    state: ClusterState, job: Job, reason: Reason | None, reservations: Sequence[Reservation], now: Instant
) -> Iterator[Alternative | None]:
    """Yield after each pass the alternative that it has found, or None.

    `reservations` are those of the last plan. The state may change between two steps; each alternative holds for the
    state at its step.
    """
    if not _may_have_any(state, job, reason):
        return
    all_tries = _tries(state, job, reason, reservations, now)
    if not all_tries:
        return
    plan = _plan(state, job, job, now)
    yield None
    if plan is None or _starts(plan, job.id):
        return
    passes = found = 0
    for tries in all_tries:
        for changes in tries.changes:
            if found == ALTERNATIVES_MAX or passes == PASSES_MAX:
                return
            changed = _updated(state, job, changes, now)
            if changed is None:
                continue
            passes += 1
            plan = _plan(state, job, changed, now)
            if plan is not None and _starts(plan, job.id):
                found += 1
                yield Alternative(kind=tries.kind, demand=changed.spec.demand, changes=changes)
                break
            yield None


def _may_have_any(state: ClusterState, job: Job, reason: Reason | None) -> bool:
    if reason is None or reason.code not in _ASKED_OF or job.state is not JobState.PENDING:
        return False
    if job.spec.array is not None or job.array_of or job.id in state.claims:
        return False
    return is_pass_cheap(state)


def is_pass_cheap(state: ClusterState) -> bool:
    """Return whether a pass over this state is estimated to cost so little that it may be tried for one person."""
    shapes = len(list(StateView(state).pending()))
    walks = min(shapes, TRIES_PER_RESERVATION * state.policy.reservations_max)
    return _SHAPE_US * shapes + _WALK_US * len(state.nodes) * walks <= PASS_US_MAX


def _updated(state: ClusterState, job: Job, changes: JobChanges, now: Instant) -> Job | None:
    """Return the job as `stoker update` would make it; None where it would refuse."""
    answer = update(state, UpdateJob(by=CONTROL, target=JobRef(job.id), changes=changes), now)
    if isinstance(answer, Refusal):
        return None
    for event in answer:
        if isinstance(event, JobUpdated):
            return replace(job, spec=event.changes.on(job.spec))
    return None


def _plan(state: ClusterState, job: Job, changed: Job, now: Instant) -> Plan | None:
    """Return what a pass would do if the job were changed so; None where it would fail."""
    view = _ChangedView(state, job, changed)
    try:
        return propose(view, state.policy, now, 0, state.policy.placements_per_pass_max)
    except UndecidableShape:
        return None


def _starts(plan: Plan, job: JobId) -> bool:
    return any(isinstance(action, Place) and action.job == job for action in plan.actions)


class _ChangedView(StateView):
    """The state as it is, but for one waiting job that asks for something else."""

    def __init__(self, state: ClusterState, job: Job, changed: Job) -> None:
        super().__init__(state)
        self._old, self._changed = job, changed

    def pending(self) -> Iterable[Bucket]:
        old, new = self._old, self._changed
        for bucket in super().pending():
            if (bucket.priority, bucket.shape) != (old.spec.priority, old.spec.shape) or old.id not in bucket.jobs:
                yield bucket
            elif len(bucket.jobs) > 1:
                yield bucket._replace(jobs=[each for each in bucket.jobs if each != old.id])
        yield Bucket(new.spec.priority, new.spec.shape, [new.id])

    def job(self, job: JobId) -> Job:
        return self._changed if job == self._changed.id else super().job(job)


# -- what is worth a try -----------------------------------------------------------------------------------------------


def _tries(
    state: ClusterState, job: Job, reason: Reason | None, reservations: Sequence[Reservation], now: Instant
) -> list[_Tries]:
    """Return what is worth a try, by kind. What is kept for others counts as free here."""
    view = StateView(state)
    demand, free = job.spec.demand, _Unheld(view, state, job)
    code = None if reason is None else reason.code
    by_kind: dict[AlternativeKind, Sequence[JobChanges]] = {}
    if code is ReasonCode.RESERVED:
        by_kind[AlternativeKind.SHORTER] = _shorter(state, job, reservations, now)
    if demand.tasks_per_node:
        by_kind[AlternativeKind.SPREAD] = free.those_that_fit([replace(demand, tasks_per_node=0)])
    if code is ReasonCode.INSUFFICIENT_CPUS:
        cpus = free.most(1, demand.cpus - 1, lambda most: replace(demand, cpus=most))
        by_kind[AlternativeKind.FEWER_CPUS] = free.those_that_fit([replace(demand, cpus=cpus)] if cpus else [])
    if code is ReasonCode.INSUFFICIENT_MEMORY:
        memory_mb = free.most(1, demand.memory_mb - 1, lambda most: replace(demand, memory_mb=most))
        asks = [replace(demand, memory_mb=memory_mb)] if memory_mb else []
        by_kind[AlternativeKind.LESS_MEMORY] = free.those_that_fit(asks)
    if demand.gpu_count and not demand.shares:
        by_kind[AlternativeKind.MORE_TASKS] = free.those_that_fit(_in_more_tasks(demand))
    if demand.gpu_model:
        models = sorted({gpu.model for each in view.nodes.values() for gpu in each.inventory.gpus})
        if demand.gpu_count > 1 or demand.shares:
            models = [model for model in models if not mig_profile(model)]
        models = models[:_MODELS_MAX]
        asks = [replace(demand, gpu_model=model) for model in models]
        by_kind[AlternativeKind.OTHER_MODEL] = free.those_that_fit(asks)
    if demand.gpu_count:
        by_kind[AlternativeKind.FEWER_GPUS] = free.those_that_fit(free.fewer_gpus(demand))
    return [_Tries(kind, by_kind[kind]) for kind in AlternativeKind if by_kind.get(kind)]


def _shorter(state: ClusterState, job: Job, reservations: Sequence[Reservation], now: Instant) -> list[JobChanges]:
    """Time limits by which it is over before reservations of others, the longest first (A3)."""
    times = sorted({each.at for each in reservations if each.job != job.id}, reverse=True)
    limits: dict[int, None] = {}
    for at in times:
        limit_ms = at - now - state.policy.stop_grace_ms - MINUTE_MS
        limit_ms -= limit_ms % (_ROUND_MS if limit_ms >= _ROUNDED_MS else MINUTE_MS)
        if 0 < limit_ms < job.spec.time_limit_ms:
            limits[limit_ms] = None
    some = list(limits)
    picked = dict.fromkeys([*some[:1], *some[len(some) // 2 :][:1], *some[-1:]])
    return [JobChanges(time_limit_ms=limit_ms) for limit_ms in picked]


def _in_more_tasks(demand: Demand) -> Iterator[Demand]:
    """Yield demands for as many GPUs in all with fewer per task, the most per task first."""
    total = demand.total_gpus
    for gpus in range(demand.gpu_count - 1, 0, -1):
        if total % gpus == 0:
            cpus, memory_mb = (-(-has * gpus // demand.gpu_count) for has in (demand.cpus, demand.memory_mb))
            yield replace(
                demand,
                gpu_count=gpus,
                tasks=total // gpus,
                cpus=max(1, cpus) if demand.cpus else 0,
                memory_mb=memory_mb,
            )


class _Unheld:
    """Resources that are free now for one job, whatever is kept for others."""

    def __init__(self, view: StateView, state: ClusterState, job: Job) -> None:
        wanted = selection(view.partitions, view.tenants, job.spec.shape)
        self._candidates = CandidateNodes(Draft(view, state.policy.gpu_sharers_max), view.admitted(wanted))
        self._demand = job.spec.demand
        self._capacities: dict[tuple[str, int, int], Capacity] = {}

    def holds(self, demand: Demand) -> bool:
        key = demand.gpu_model, demand.gpu_count, demand.tasks_per_node
        capacity = self._capacities.get(key)
        if capacity is None:
            capacity = self._capacities[key] = caches_for(self._candidates, demand)[-1].capacity()
        return capacity.holds(demand)

    def most(self, least: int, most: int, demand: Callable[[int], Demand]) -> int:
        """Return the greatest number of which the demand fits; 0 = none does. A greater one never fits better."""
        found = 0
        while least <= most:
            middle = (least + most) // 2
            if self.holds(demand(middle)):
                found, least = middle, middle + 1
            else:
                most = middle - 1
        return found

    def fewer_gpus(self, demand: Demand) -> list[Demand]:
        """Return demands for fewer GPUs: of one task, fewer; of a gang as many in all as fit, and then per task."""
        if demand.tasks == 1:
            most = 0 if demand.shares else demand.gpu_count - 1
            gpus = self.most(1, most, lambda gpus: replace(demand, gpu_count=gpus))
            return [replace(demand, gpu_count=some) for some in _less_and_less(gpus)]
        best = replace(demand, tasks=0)
        for gpus in range(demand.gpu_count, 0, -1):
            other = self._most_tasks(replace(demand, gpu_count=gpus), (demand.total_gpus - 1) // gpus)
            best = max(best, other, key=lambda each: each.total_gpus)  # of equals the first, with more per task
        return [replace(best, tasks=some) for some in _less_and_less(best.tasks)]

    def _most_tasks(self, demand: Demand, most: int) -> Demand:
        return replace(demand, tasks=self.most(1, most, lambda tasks: replace(demand, tasks=tasks)))

    def those_that_fit(self, demands: Iterable[Demand]) -> list[JobChanges]:
        """Return the changes that make these demands, of those that fit, the first few."""
        found: list[JobChanges] = []
        for demand in demands:
            if demand != self._demand and len(found) < TRIES_MAX and self.holds(demand):
                fields = ((name, getattr(demand, name)) for name in _CHANGED)
                given = {name: value for name, value in fields if value != getattr(self._demand, name)}
                found.append(JobChanges(**given))
        return found


_CHANGED: Final = ("gpu_count", "gpu_model", "cpus", "memory_mb", "tasks", "tasks_per_node")


def _less_and_less(most: int) -> list[int]:
    parts = (most * part // _EVERY for part in range(_EVERY, 0, -1))
    return [some for some in dict.fromkeys([*parts, 1]) if 0 < some <= most]
