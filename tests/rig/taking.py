"""What people ask for who want to have what others hold: urgent jobs, borrowed GPUs that are needed back, shares.

Such people have dice of their own, so that the histories without them go on to be what they were. They fill the cluster
with jobs that may be stopped, and come with others that may stop them.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.ids import DEFAULT_TENANT, JobId, Principal, TenantName
from stoker.brain.domain.job import JobSpec, WarnSignal
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.quota import Limits, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.commands import PutTenant, UpdateJob
from tests.rig.sharing import ADMIN, LAB, PARENTS

if TYPE_CHECKING:
    from tests.rig.cast import Cast

EVE: Final = Principal("user:eve")
LONG_S: Final = (20, 45, 90)
"""Of jobs that fill the cluster: long enough that somebody comes who needs their place."""


class TakingPeople:
    """They act beside the others of a run."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"taking back {seed}")

    def dressed(self, spec: JobSpec) -> JobSpec:
        """A job of the others', that says more of itself."""
        dice, demand = self.dice, spec.demand
        if demand.gpu_count == 1 and dice.random() < 0.3:
            demand = self._shared(demand.tasks)
        warn = WarnSignal(signal=10, lead_ms=dice.choice([1_000, 4_000, 60_000])) if dice.random() < 0.4 else None
        if warn is not None and 0 < spec.time_limit_ms <= warn.lead_ms:
            warn = None
        return replace(
            spec,
            demand=demand,
            preemptible=dice.random() < 0.5,
            checkpoint_ms=dice.choice([0, 0, 5_000]),
            warn=warn,
        )

    def _shared(self, tasks: int) -> Demand:
        share = self.dice.choice([250, 300, 500, 700])
        memory_mb = self.dice.choice([0, 0, 10_000, 40_000])
        return Demand(gpu_count=1, gpu_share=share, gpu_memory_mb=memory_mb, tasks=tasks)

    def act(self, cluster: "Cast") -> None:
        """Several requests of theirs at once, or none."""
        deeds: list[Callable[[Cast], None]] = [
            self._fill,
            self._fill,
            self._press,
            self._press,
            self._share,
            self._promise,
        ]
        if self.dice.random() < 0.7:
            self.dice.choice(deeds)(cluster)
        if self.dice.random() < 0.15:
            cluster.ask(self._change_mind(cluster))

    # --- jobs ---------------------------------------------------------------------------------------------------

    def _spec(self, demand: Demand, seconds: float, **said: object) -> JobSpec:
        made = JobSpec(
            name="taking",
            demand=demand,
            command=f"{seconds} 0 {self.dice.choice(['', '', 'trap'])}".strip(),
            priority=500,
            time_limit_ms=self.dice.choice([2, 4]) * max(5_000, int(seconds * 1_000)),
            tenant=DEFAULT_TENANT,
        )
        return replace(made, **said)

    def _fill(self, cluster: "Cast") -> None:
        """Whoever has nothing urgent takes what is free; most may be stopped."""
        dice = self.dice
        for _ in range(dice.choice([2, 4, 7])):
            gpus, tasks = dice.choice([(1, 1), (1, 1), (2, 1), (1, 3), (2, 2)])
            filling = self._spec(Demand(gpu_count=gpus, tasks=tasks), dice.choice(LONG_S), priority=100)
            filling = replace(
                filling,
                preemptible=dice.random() < 0.75,
                requeue=dice.random() < 0.9,
                tenant=self._tenant(cluster),
                warn=dice.choice([None, WarnSignal(signal=10, lead_ms=dice.choice([2_000, 30_000]))]),
                checkpoint_ms=dice.choice([0, 10_000]),
                job_class=dice.choice([JobClass.BATCH, JobClass.BATCH, JobClass.ONLINE]),
            )
            cluster.ask(_submit(cluster, filling))

    def _press(self, cluster: "Cast") -> None:
        """An urgent job, large or a gang, or one whose tenant has lent what it needs; and short ones behind it."""
        dice = self.dice
        gpus, tasks = dice.choice([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (1, 4)])
        urgent = self._spec(Demand(gpu_count=gpus, tasks=tasks), dice.choice([0.5, 3, 8]))
        urgent = replace(
            urgent,
            priority=dice.choice([300, 500, 1_000, 1_000]),
            tenant=self._tenant(cluster),
            job_class=dice.choice([JobClass.BATCH, JobClass.ONLINE]),
        )
        cluster.ask(_submit(cluster, urgent))
        for _ in range(dice.choice([0, 2, 3])):
            short = self._spec(Demand(gpu_count=1), 0.5, priority=100, time_limit_ms=5_000, preemptible=True)
            cluster.ask(_submit(cluster, short))

    def _share(self, cluster: "Cast") -> None:
        for _ in range(self.dice.choice([2, 4])):
            shared = self._spec(self._shared(self.dice.choice([1, 1, 2])), self.dice.choice([3, 20]))
            shared = replace(shared, preemptible=self.dice.random() < 0.5, tenant=self._tenant(cluster))
            cluster.ask(_submit(cluster, shared))

    def _tenant(self, cluster: "Cast") -> TenantName:
        ledger = cluster.ledger()
        return self.dice.choice([name for name in PARENTS if ledger is not None and name in ledger.tenants] or [LAB])

    # --- promises, and second thoughts ------------------------------------------------------------------------------

    def _promise(self, cluster: "Cast") -> None:
        """Somebody is guaranteed more, or counts for more."""
        dice, name = self.dice, self.dice.choice(list(PARENTS))
        limits = Limits(gpus=dice.choice([None, None, 6, 8]))
        quota = Quota(guaranteed=dice.choice([0, 2, 4, 6]), weight=dice.choice([1, 3, 10]), limits=limits)
        cluster.ask(_put(cluster, Tenant(name=name, parent=PARENTS[name], quota=quota)))

    async def _change_mind(self, cluster: "Cast") -> None:
        """Of a job that may be running, or giving way."""
        known = list(cluster.oracle.acknowledged)
        if known:
            target = JobId(self.dice.choice(known[-12:]))
            changes = JobChanges(preemptible=self.dice.random() < 0.5, priority=self.dice.choice([100, 500, 1_000]))
            await cluster.answer(UpdateJob(by=EVE, target=JobRef(target), changes=changes))


async def _submit(cluster: "Cast", spec: JobSpec) -> None:
    for job in await cluster.submitted(EVE, (spec,)):
        cluster.oracle.acknowledged[job] = None


async def _put(cluster: "Cast", tenant: Tenant) -> None:
    ledger = cluster.ledger()
    create = ledger is not None and tenant.name not in ledger.tenants
    if await cluster.answer(PutTenant(by=ADMIN, tenant=tenant, create=create)) is not None:
        cluster.oracle.sharing.tenants[tenant.name] = None
