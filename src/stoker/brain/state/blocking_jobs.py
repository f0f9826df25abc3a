"""Jobs that hold what a waiting job waits for, and until when at the latest.

Rules: B1  of a job that is short of GPUs, CPUs, memory or nodes: those that hold any of it on its candidate nodes; of
           one at a limit of a tenant, a strict pool or its array: those that count against that limit
       B2  a job ends by its time limit, and the grace time after it (`latest_end`)
       B3  the bound is when enough of them have ended so that it fits, if nothing else starts meanwhile: it is no
           reservation, and there is none where their ends would not be enough, where a node has GPUs of several
           models that a demand by model could use, or where GPUs are shared
       B4  of a job with a reservation: those on the nodes of that, whatever it waits for; of one to which others give
           way: those that hold GPUs that are kept for it
Limits: looks at `TASKS_MAX` tasks of other jobs, about 10 ms of work; beyond that there is no bound.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import suitable_gpus, tasks_that_fit
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, TenantName
from stoker.brain.domain.job import Job, tasks_on
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.quota import needs
from stoker.brain.domain.reason import SHORT, Reason, ReasonCode
from stoker.brain.domain.tenant import path_of
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.quota_limits import WHAT
from stoker.brain.state.state_view import latest_end, live_jobs

TASKS_MAX: Final = 4_096
JOBS_SHOWN_MAX: Final = 20
"""Of many, those that end first."""


class BlockingJob(NamedTuple):
    """A job that holds what another waits for."""

    ends_by: Instant
    """By its limit, at the latest."""
    job: Job
    gpu_milli: int
    """Thousandths of GPUs that the other could use."""

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end."""
        return self.job.live_attempt is not None and self.job.live_attempt.stop is not None

    def gives_way_to(self, job: JobId) -> bool:
        """Return whether it was told to end so that this job gets its GPUs."""
        attempt = self.job.live_attempt
        return attempt is not None and attempt.stop is not None and attempt.stop.for_job == job


class Blocking(NamedTuple):
    """Jobs that hold what one waits for, those that end first; how many there are; and when it fits at the latest."""

    jobs: Sequence[BlockingJob]
    total: int
    fits_by: Instant | None


class _Freed(NamedTuple):
    """Resources that the end of one job frees on one node, as far as a demand could use it."""

    at: Instant
    gpus: int
    cpus: int
    memory_mb: int
    gpu_milli: int = 0
    """Of `gpus` what it holds: of a shared one its share."""


def blocking_jobs(
    state: ClusterState, job: Job, reason: Reason | None, now: Instant, reservation: Reservation | None = None
) -> Blocking | None:
    """Return who holds what a waiting job waits for (B1, B4); None where it waits for no end of another job."""
    if reason is None or job.is_final or job.state in LIVE:
        return None
    if reservation is not None:
        return _on_nodes(state, job, now, reservation)
    if reason.code in SHORT:
        return _on_nodes(state, job, now)
    if reason.code is ReasonCode.ARRAY_LIMIT:
        array = job.array_of or job.id
        return _at_limit(state, (each for each in live_jobs(state) if each.array_of == array), now, 1, lambda _: 1)
    used, limit, asked = (reason.facts.get(name) for name in ("used", "limit", "asked"))
    if not (isinstance(used, int | float) and isinstance(limit, int | float) and isinstance(asked, int | float)):
        return None
    over = used + asked - limit
    over_milli = round(over * WHOLE_GPU)
    if reason.code is ReasonCode.POOL_LIMIT:
        mine = (each for each in live_jobs(state) if each.spec.job_class is job.spec.job_class)
        return _at_limit(state, mine, now, over_milli, lambda each: each.spec.demand.total_milli)
    if reason.code is ReasonCode.TENANT_LIMIT:
        at = next((at for at, what in enumerate(WHAT) if reason.facts.get("what") in what), 0)
        tenant = TenantName(str(reason.facts.get("tenant")))
        within = (each for each in live_jobs(state) if _is_within(state, each, tenant))
        over = over if at else over_milli
        return _at_limit(state, within, now, round(over), lambda each: needs(each.spec.demand)[at])
    return None


def _is_within(state: ClusterState, job: Job, tenant: TenantName) -> bool:
    return any(each.name == tenant for each in path_of(state.tenants, job.spec.tenant))


def _at_limit(
    state: ClusterState, jobs: Iterable[Job], now: Instant, over: int, amount: Callable[[Job], int]
) -> Blocking:
    """Of `jobs`, which count against a limit that is exceeded by `over`, each by its `amount`."""
    counted = list(islice(jobs, TASKS_MAX + 1))
    found = sorted(
        (
            BlockingJob(latest_end(each, state.policy, now, state.clock_moved_ms), each, each.spec.demand.total_milli)
            for each in counted
        ),
        key=_order,
    )
    fits_by: Instant | None = None
    for each in found if len(counted) <= TASKS_MAX else ():
        over -= amount(each.job)
        if over <= 0:
            fits_by = each.ends_by
            break
    return Blocking(found[:JOBS_SHOWN_MAX], len(found), fits_by)


def _order(blocking: BlockingJob) -> tuple[Instant, int]:
    return blocking.ends_by, blocking.job.id


def _on_nodes(state: ClusterState, job: Job, now: Instant, reservation: Reservation | None = None) -> Blocking:
    demand, looked, mixed = job.spec.demand, 0, False
    held: dict[int, BlockingJob] = {}
    slots, gains = 0, list[tuple[Instant, int]]()
    names, claim = _nodes_of(state, job, reservation), state.claims.get(job.id)
    claimed = None if claim is None else {uuid for task in claim.tasks for uuid in task.gpus}
    for name in sorted(names):
        free = state.indexes.free.get(name)
        if free is None or looked > TASKS_MAX:
            continue
        releases: list[_Freed] = []
        for other in (state.jobs[each] for each in state.indexes.on_node.get(name, ())):
            release, tasks = _released(state, other, name, demand, now, claimed)
            looked += tasks
            if release.gpus or (not demand.gpu_count and claimed is None):
                before = held.get(other.id)
                milli = release.gpu_milli + (before.gpu_milli if before else 0)
                held[other.id] = BlockingJob(release.at, other, milli)
            releases.append(release)
        models = {gpu.model for gpu in suitable_gpus(state.nodes[name].inventory.gpus, demand)}
        mixed = mixed or bool(demand.gpu_model and len(models) > 1) or bool(free.shared) or demand.shares
        here = _Freed(now, len(suitable_gpus(free.gpus, demand)), free.cpus, free.memory_mb)
        slots += _slots(here, demand)
        gains += _gains(here, sorted(releases), demand)
    found = sorted(held.values(), key=_order)
    fits_by = _when(slots, sorted(gains), demand.tasks) if looked <= TASKS_MAX and not mixed else None
    return Blocking(found[:JOBS_SHOWN_MAX], len(found), fits_by)


def _nodes_of(state: ClusterState, job: Job, reservation: Reservation | None) -> Sequence[NodeName]:
    """The nodes of its reservation, else all on which it may run."""
    if reservation is not None:
        return reservation.nodes
    wanted = selection(state.partitions, state.tenants, job.spec.shape)
    return [name for each in state.indexes.node_classes.admitted(wanted).classes for name in each.names]


def _released(
    state: ClusterState, job: Job, name: NodeName, demand: Demand, now: Instant, claimed: Set[GpuUuid] | None
) -> tuple[_Freed, int]:
    """What the end of a job frees on a node, and how many tasks of it were looked at. `claimed`: of these GPUs."""
    known = state.nodes[name].gpus_by_uuid
    tasks = [task.placement for task in tasks_on(job, name)]
    held = [(known[uuid], task.gpu_share) for task in tasks for uuid in task.gpus if uuid in known]
    if claimed is not None:
        held = [(gpu, share) for gpu, share in held if gpu.uuid in claimed]
    gpus, milli = suitable_gpus([gpu for gpu, _ in held], demand), 0
    if gpus:
        useful = {gpu.uuid for gpu in gpus}
        milli = sum(share for gpu, share in held if gpu.uuid in useful)
    cpus, memory_mb = sum(task.cpus for task in tasks), sum(task.memory_mb for task in tasks)
    return _Freed(latest_end(job, state.policy, now, state.clock_moved_ms), len(gpus), cpus, memory_mb, milli), len(
        tasks
    )


def _slots(has: _Freed, demand: Demand) -> int:
    """How many tasks of a demand fit what a node has free."""
    return tasks_that_fit(has.gpus, has.cpus, has.memory_mb, demand)


def _gains(has: _Freed, releases: Sequence[_Freed], demand: Demand) -> Iterator[tuple[Instant, int]]:
    """When a node has room for more tasks, and for how many more."""
    for each in releases:
        before = _slots(has, demand)
        has = _Freed(each.at, has.gpus + each.gpus, has.cpus + each.cpus, has.memory_mb + each.memory_mb)
        if (more := _slots(has, demand) - before) > 0:
            yield each.at, more


def _when(slots: int, gains: Sequence[tuple[Instant, int]], tasks: int) -> Instant | None:
    if slots >= tasks:
        return None  # what is free is enough by itself: something else keeps it waiting
    for at, more in gains:
        slots += more
        if slots >= tasks:
            return at
    return None
