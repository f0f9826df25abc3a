"""Quota: limits and guarantees of tenants and class pools, and the amounts that jobs hold.

Tenants and class pools share one record and one check. Units: guarantees and limits are whole GPUs, what is held is
thousandths of GPUs (`gpu_milli`); MiB, whole CPUs, jobs, milliseconds.

Rules: Q1  a limit that is left out (None) is no limit, never zero
       Q2  usage is what open tasks hold; a waiting job uses nothing
       Q3  GPU memory counts as requested (`gpu_memory_mb` of each GPU), since that is known before a GPU is chosen
       Q4  the guarantees of the class pools are shares of the GPUs in service, held or free, so they are right on a
           fresh cluster and follow each node that comes and goes; rounding loses no GPU: where the shares add up to
           one, the guarantees add up to all GPUs
       Q5  a share of a GPU counts as its thousandths: four jobs of 0.25 use one GPU of a quota
"""

from collections.abc import Iterator, Mapping
from operator import add, sub
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.job import Job

WHOLE: Final = 1_000_000
"""Parts per million that make one: shares are integers, so that sums are exact and a log has no floats."""


class Amount(NamedTuple):
    """Resources that live attempts hold."""

    gpu_milli: int = 0
    """Thousandths of GPUs (Q5)."""
    gpu_memory_mb: int = 0
    cpus: int = 0
    memory_mb: int = 0
    jobs: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum, field by field."""
        return Amount(*map(add, self, other))

    def minus(self, other: "Amount") -> "Amount":
        """Return the difference, field by field."""
        return Amount(*map(sub, self, other))


NOTHING: Final = Amount()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on usage, on the queue and on time limits; None = no limit (Q1)."""

    gpus: int | None = None
    gpu_memory_mb: int | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    jobs: int | None = None
    """Jobs, and members of arrays, that run at once."""
    pending: int | None = None
    """Jobs and members that wait."""
    time_ms: int | None = None
    """The longest time limit of a job."""


NO_LIMITS: Final = Limits()


WEIGHT_MAX: Final = 1_000
"""The largest weight beside the smallest, 1: finer parts of a cluster are no shares that anybody could tell apart."""


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Guarantee, limits and weight of one tenant, for itself and all tenants beneath it together."""

    guaranteed: int = 0
    """GPUs. Idle GPUs of other tenants may be used beyond it."""
    limits: Limits = NO_LIMITS
    borrow: bool = True
    """False: never more GPUs than the guarantee."""
    lend: bool = True
    """False: no other tenant may use what the guarantee leaves idle."""
    weight: int = 1
    """Its share among the tenants beside it, from 1 to WEIGHT_MAX: one of weight 3 is to get three times what one of
    weight 1 gets."""

    @property
    def gpus_max(self) -> int | None:
        """The limit on GPUs, with that of a tenant which may not borrow; None = there is none."""
        most = self.limits.gpus
        if self.borrow:
            return most
        return self.guaranteed if most is None else min(most, self.guaranteed)


class PoolDemand(NamedTuple):
    """Thousandths of GPUs that the jobs of one class use and ask for."""

    used: int
    waiting: int
    """Asked for by jobs in the queue."""
    covered: int
    """Of `waiting`, those for which no limit keeps the jobs waiting, and which fit into the rest of the guarantee."""


class PoolShare(NamedTuple):
    """Thousandths of GPUs that one class is guaranteed, and idle ones that its jobs may take."""

    guaranteed: int
    takes: int


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the class pools, in parts of WHOLE."""

    online: int = 700_000
    batch: int = 300_000
    strict: bool = False
    """True: no class may use the guarantee of the other. Only GPUs that neither share covers may be borrowed."""

    def guaranteed(self, gpus: int) -> dict[JobClass, int]:
        """Return the GPUs that each class is guaranteed of `gpus` GPUs in service (Q4)."""
        online = (gpus * self.online + WHOLE // 2) // WHOLE
        batch = min((gpus * self.batch + WHOLE // 2) // WHOLE, gpus - online)
        return {JobClass.ONLINE: online, JobClass.BATCH: batch}

    def guaranteed_milli(self, gpu_milli: int) -> dict[JobClass, int]:
        """Return the same in thousandths of GPUs: whole GPUs, as if what is in service beyond were none."""
        return {each: gpus * WHOLE_GPU for each, gpus in self.guaranteed(gpu_milli // WHOLE_GPU).items()}

    def shares(self, free: int, demands: Mapping[JobClass, PoolDemand]) -> dict[JobClass, PoolShare]:
        """Return the share of each class, with `free` thousandths of GPUs idle on nodes that take work."""
        guaranteed = self.guaranteed_milli(free + sum(each.used for each in demands.values()))
        kept: dict[JobClass, int] = {}
        """Idle GPUs that a class alone may take."""
        for each, demand in demands.items():
            left = max(0, guaranteed[each] - demand.used)
            kept[each] = left if self.strict else min(left, demand.covered)
        all_kept = sum(kept.values())
        return {each: PoolShare(guaranteed[each], max(0, free - (all_kept - kept[each]))) for each in demands}


def share_text(share: int) -> str:
    """Return a share in parts of WHOLE as people write it: `0.7`."""
    sign, size = ("-", -share) if share < 0 else ("", share)
    return f"{sign}{size // WHOLE}.{size % WHOLE:06}".rstrip("0").rstrip(".")


def limits_of(quota: Quota) -> Iterator[tuple[int, int]]:
    """Return the limits on usage, each with the index of its field in an Amount, and in its unit."""
    limits, gpus = quota.limits, quota.gpus_max
    values = (
        None if gpus is None else gpus * WHOLE_GPU,
        limits.gpu_memory_mb,
        limits.cpus,
        limits.memory_mb,
        limits.jobs,
    )
    return ((at, limit) for at, limit in enumerate(values) if limit is not None)


def needs(demand: Demand) -> Amount:
    """Return the amount that a job of this demand will hold (Q3)."""
    gpus, tasks = demand.gpu_count * demand.tasks, demand.tasks
    return Amount(
        gpus * demand.gpu_share, gpus * demand.gpu_memory_mb, demand.cpus * tasks, demand.memory_mb * tasks, 1
    )


def held(job: Job | None) -> Amount:
    """Return the amount that a job holds now (Q2): that of the tasks whose end isn't proved yet."""
    attempt = job.live_attempt if job else None
    tasks = attempt.open_tasks if attempt else ()
    if job is None or not tasks:
        return NOTHING
    if len(tasks) == 1:  # by far the most, and this is asked at each start and end
        placement = tasks[0].placement
        count = len(placement.gpus)
        return Amount(
            count * placement.gpu_share, count * job.spec.demand.gpu_memory_mb, placement.cpus, placement.memory_mb, 1
        )
    gpus = sum([len(task.placement.gpus) for task in tasks])
    return Amount(
        sum([task.placement.gpu_milli for task in tasks]),
        gpus * job.spec.demand.gpu_memory_mb,
        sum([task.placement.cpus for task in tasks]),
        sum([task.placement.memory_mb for task in tasks]),
        1,
    )
