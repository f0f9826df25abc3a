"""Does the tenant of a job let it in?

Rules: V1  the tenant exists
       V2  a job that names no priority gets the default of its tenant's tier; above the tier is refused
       V3  its time limit is within those of its tenant and of all above; the default is cut to them
       V4  where memory or GPU memory is limited, a job must say how much it needs
       V5  what alone is more than a limit could never start, so it isn't let in; else it may wait
       V6  no more may wait than the bounds on pending jobs say: of the tenant, of those above it, of the policy
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.quota import needs
from stoker.brain.domain.tenant import UNSTATED, Tenant, path_of, priority_cap, priority_default
from stoker.brain.domain.units import human_duration
from stoker.brain.state.admit.tenant import find_tenant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.walls import WHAT, alone

_SAY = {"gpu_memory_mb": "--gpu-memory 16GiB", "memory_mb": "--memory 32GiB"}


def with_priority(state: ClusterState, spec: JobSpec) -> JobSpec:
    """V2"""
    if spec.priority != UNSTATED:
        return spec
    return replace(spec, priority=priority_default(state.tenants, spec.tenant))


def time_cut(state: ClusterState, spec: JobSpec, time_ms: int) -> int:
    """A default time limit, cut to what the tenant allows (V3)."""
    return min([time_ms, *(limit for _, limit in _time_limits(state, spec.tenant))])


def _time_limits(state: ClusterState, name: TenantName) -> Iterator[tuple[TenantName, int]]:
    for tenant in path_of(state.tenants, name):
        if tenant.quota.limits.time_ms is not None:
            yield tenant.name, tenant.quota.limits.time_ms


def tenant_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    """V1 to V5."""
    found = find_tenant(state, spec.tenant)
    if isinstance(found, Refusal):
        return found
    cap = priority_cap(state.tenants, spec.tenant)
    if cap is not None and spec.priority > cap:
        return refuse(
            "priority_above_tier",
            f"priority {spec.priority} is above {cap}, the most that the tier of tenant {spec.tenant} allows",
            f"ask for at most {cap}, or leave the priority out; an admin may change the tier",
            priority=spec.priority,
            priority_max=cap,
            tenant=spec.tenant,
        )
    for tenant in path_of(state.tenants, spec.tenant):
        fault = _time_fault(tenant, spec) or _demand_fault(tenant, spec)
        if fault:
            return fault
    return None


def _time_fault(tenant: Tenant, spec: JobSpec) -> Refusal | None:
    longest = tenant.quota.limits.time_ms
    if longest is None or spec.time_limit_ms <= longest:
        return None
    return refuse(
        "time_limit_too_long",
        f"a time limit of {human_duration(spec.time_limit_ms)} was asked for; the longest of tenant {tenant.name} is "
        f"{human_duration(longest)}",
        f"ask for at most {human_duration(longest)}, or let the job resume from a checkpoint",
        limit_ms=spec.time_limit_ms,
        limit_max_ms=longest,
        tenant=tenant.name,
    )


def _demand_fault(tenant: Tenant, spec: JobSpec) -> Refusal | None:
    demand, limits = spec.demand, tenant.quota.limits
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
    over = alone(tenant, needs(demand))
    if over is None:
        return None
    return refuse(
        "over_tenant_limit",
        f"it asks for {over.asked} {WHAT[over.at]}, and tenant {tenant.name} may use at most {over.limit}: it could "
        "never start",
        f"ask for less; `stoker tenant show {tenant.name}` tells the limits, and an admin may raise them",
        tenant=tenant.name,
        asked=over.asked,
        limit=over.limit,
    )


def queue_full(state: ClusterState, specs: Sequence[JobSpec]) -> Refusal | None:
    """V6"""
    more: dict[TenantName, int] = {}
    for spec in specs:
        more[spec.tenant] = more.get(spec.tenant, 0) + (spec.array.count if spec.array else 1)
    policy = state.policy
    full = _over(state.indexes.pending_count, sum(more.values()), policy.pending_jobs_max, "")
    sums: dict[TenantName, int] = {}
    for name, count in more.items():
        full = full or _over(state.indexes.books.pending_of(name), count, policy.tenant_pending_jobs_max, name)
        for tenant in path_of(state.tenants, name):
            sums[tenant.name] = sums.get(tenant.name, 0) + count
    for name, count in sums.items():
        most = state.tenants[name].quota.limits.pending
        if most is not None:
            full = full or _over(state.indexes.books.pending_of(name), count, most, name)
    return full


def _over(waiting: int, more: int, most: int, tenant: TenantName | str) -> Refusal | None:
    if waiting + more <= most:
        return None
    whose = f" of tenant {tenant}" if tenant else ""
    return refuse(
        "queue_full",
        f"{waiting} jobs{whose} wait already; {more} more would exceed the bound of {most}",
        "wait for jobs to start, or cancel some",
        pending=waiting,
        pending_max=most,
    )
