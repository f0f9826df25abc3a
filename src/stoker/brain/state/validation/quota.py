"""Checks of submitted jobs against the limits of their tenants.

Rules: V1  the tenant exists
       V2  a job that names no priority gets the default of its tenant's tier; above the tier is refused
       V3  its time limit is within those of its tenant and of all above; the default is cut to them
       V4  where memory or GPU memory is limited, a job must say how much it needs
       V5  what alone is more than a limit could never start, so it is refused; else it may wait
       V6  no more may wait than the bounds on pending jobs say: of the tenant, of those above it, of the policy
       V8  nor may those that haven't ended take more memory than the policy says, of one tenant and of all
       V7  an ended job that a person requeues is checked as a new one; a job that lost its node or is to be retried
           waits again by itself, whatever the limits are by now
Costs: each demand is compared with the limits once until a tenant changes, since most jobs are of few kinds: compared
       anew for each job, the tree took a third of what it costs to submit one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.notify import filled as filled_notify
from stoker.brain.domain.partition import time_default_ms
from stoker.brain.domain.quota import needs
from stoker.brain.domain.tenant import UNSTATED, Tenant
from stoker.brain.domain.units import counted
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.quota_limits import WHAT, amount_number, own_limit_broken
from stoker.brain.state.validation.fields import time_limit_fault
from stoker.brain.state.validation.lookups import tenant_fault

DEMANDS_MAX: Final = 4_096
"""Pairs of tenant and demand whose answers are remembered; beyond it all are forgotten."""
_SAY: Final = {"gpu_memory_mb": "--gpu-memory 16GiB", "memory_mb": "--memory 32GiB"}


class TenantRules:
    """Checks of the jobs of one command against the limits of their tenants."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._demands = state.demand_faults
        if len(self._demands) > DEMANDS_MAX:
            self._demands.clear()

    def filled(self, spec: JobSpec) -> JobSpec:
        """Return the job with the default priority, time limit and notifications of its tenant (V2, V3)."""
        standing = self._state.standing(spec.tenant)
        if spec.notify is not None or standing.notify is not None:
            spec = replace(spec, notify=filled_notify(spec.notify, standing.notify))
        if spec.priority != UNSTATED and spec.time_limit_ms:
            return spec
        default_ms = time_default_ms(self._state.partitions.get(spec.partition), self._state.policy)
        time_ms = spec.time_limit_ms or min([default_ms, *(most for _, most in standing.times)])
        priority = standing.priority if spec.priority == UNSTATED else spec.priority
        return replace(spec, priority=priority, time_limit_ms=time_ms)

    def fault(self, spec: JobSpec) -> Refusal | None:
        """Return the refusal of a job for its tenant, priority, time limit or demand (V1 to V5)."""
        standing = self._state.standing(spec.tenant)
        if not standing.path:
            return tenant_fault(self._state, spec.tenant)
        cap = standing.priority_max
        if cap is not None and spec.priority > cap:
            return _above_tier(spec, cap)
        for tenant, longest in standing.times:
            too_long = time_limit_fault(spec.time_limit_ms, longest, f"of tenant {tenant}", tenant=tenant)
            if too_long:
                return too_long
        asked = spec.tenant, spec.demand
        if asked not in self._demands:
            self._demands[asked] = _demand_fault(standing.path, spec.demand)
        return self._demands[asked]

    def queue_full(self, specs: Sequence[JobSpec]) -> Refusal | None:
        """Return the refusal of jobs beyond the bounds on pending jobs (V6) or on their memory (V8)."""
        more: dict[TenantName, int] = {}
        for spec in specs:
            more[spec.tenant] = more.get(spec.tenant, 0) + (spec.array.count if spec.array else 1)
        return self._full(more) or self.memory_full(specs)

    def memory_grown(self, old: JobSpec, new: JobSpec) -> Refusal | None:
        """Return the refusal of a change for the memory that the job takes more than before (V8)."""
        more = new.memory_bytes - old.memory_bytes
        indexes, policy = self._state.indexes, self._state.policy
        if more <= 0:
            return None
        taken = indexes.usage_ledger.memory_of(new.tenant)
        return _too_large(indexes.open_bytes, more, policy.job_bytes_max, "") or _too_large(
            taken, more, policy.tenant_job_bytes_max, new.tenant
        )

    def memory_full(self, specs: Iterable[JobSpec], records: int = 1) -> Refusal | None:
        """Return the refusal of so many new records of each of these jobs, for the memory that they would take (V8)."""
        more: dict[TenantName, int] = {}
        for spec in specs:
            more[spec.tenant] = more.get(spec.tenant, 0) + spec.memory_bytes * records
        policy, indexes = self._state.policy, self._state.indexes
        full = _too_large(indexes.open_bytes, sum(more.values()), policy.job_bytes_max, "")
        for name, size in more.items():
            full = full or _too_large(indexes.usage_ledger.memory_of(name), size, policy.tenant_job_bytes_max, name)
        return full

    def fault_again(self, ended: Sequence[Job], more: int) -> Refusal | None:
        """Return the refusal of ended jobs of one tenant that would wait again, `more` jobs and members in all (V7)."""
        for job in ended:
            fault = self.fault(job.spec)
            if fault is not None:
                return fault
        full = self._full({ended[0].spec.tenant: more}) if ended else None
        return full or self.memory_full([job.spec for job in ended if job.is_final])

    def _full(self, more: Mapping[TenantName, int]) -> Refusal | None:
        policy, usage_ledger = self._state.policy, self._state.indexes.usage_ledger
        full = _over(self._state.indexes.pending_count, sum(more.values()), policy.pending_jobs_max, "")
        sums: dict[tuple[TenantName, int], int] = {}
        for name, count in more.items():
            full = full or _over(usage_ledger.pending_of(name), count, policy.tenant_pending_jobs_max, name)
            for bound in self._state.standing(name).pending:
                sums[bound] = sums.get(bound, 0) + count
        for (name, most), count in sums.items():
            full = full or _over(usage_ledger.pending_of(name), count, most, name)
        return full


def _above_tier(spec: JobSpec, cap: int) -> Refusal:
    message = f"priority {spec.priority} is above {cap}, the most that the tier of tenant {spec.tenant} allows"
    hint = f"ask for at most {cap}, or leave the priority out; an admin may change the tier"
    return refuse("priority_above_tier", message, hint, priority=spec.priority, priority_max=cap, tenant=spec.tenant)


def _demand_fault(path: Sequence[Tenant], demand: Demand) -> Refusal | None:
    more = needs(demand)
    for tenant in path:
        fault = _unsaid(tenant, demand)
        over = None if fault else own_limit_broken(tenant, more)
        if over is not None:
            asked, limit = (amount_number(over.at, each) for each in (over.asked, over.limit))
            message = (
                f"it asks for {counted(asked, *WHAT[over.at])}, and tenant {tenant.name} may use at most "
                f"{limit}: it could never start"
            )
            hint = f"ask for less; `stoker tenant show {tenant.name}` tells the limits, and an admin may raise them"
            return refuse("over_tenant_limit", message, hint, tenant=tenant.name, asked=asked, limit=limit)
        if fault:
            return fault
    return None


def _unsaid(tenant: Tenant, demand: Demand) -> Refusal | None:
    # V4: where memory or GPU memory is limited, a job must say how much it needs.
    limits = tenant.quota.limits
    for field, what, limit, unsaid in (
        ("gpu_memory_mb", "GPU memory", limits.gpu_memory_mb, demand.gpu_count and not demand.gpu_memory_mb),
        ("memory_mb", "memory", limits.memory_mb, not demand.memory_mb),
    ):
        if limit is not None and unsaid:
            return refuse(
                "demand_unstated",
                f"tenant {tenant.name} may use at most {limit} MiB of {what}, so its jobs must say how much they need",
                f"say it, such as `{_SAY[field]}`",
                tenant=tenant.name,
                field=field,
            )
    return None


def _over(waiting: int, more: int, most: int, tenant: TenantName | str) -> Refusal | None:
    if waiting + more <= most:
        return None
    whose = f" of tenant {tenant}" if tenant else ""
    message = f"{waiting} jobs{whose} wait already; {more} more would exceed the bound of {most}"
    hint = "wait for jobs to start, or cancel some" if more <= most else f"at most {most} may wait: send fewer at once"
    return refuse("queue_full", message, hint, pending=waiting, pending_max=most)


def _too_large(taken: int, more: int, most: int, tenant: TenantName | str) -> Refusal | None:
    if taken + more <= most:
        return None
    whose = f" of tenant {tenant}" if tenant else ""
    message = (
        f"the jobs{whose} that haven't ended take {taken >> 10} KiB of memory; {more >> 10} KiB more would exceed the "
        f"bound of {most >> 10} KiB"
    )
    hint = "put long commands and variables in files that the jobs read, or wait for jobs to end"
    return refuse("job_bytes_full", message, hint, taken_bytes=taken, more_bytes=more, bytes_max=most)
