"""Report of fair share: what each tenant is entitled to, what it has used, and whose job is next and why.

All of it is read from one view, by the same sums that order the queue.

Rules: S1  entitled is what the weight of a tenant gives it of the cluster among those beside it that have jobs, times
           what the tenant above is entitled to
       S2  used is the decayed usage, as a part of what the nodes in service have, of the resource of which it is most
       S3  next is the first job of the queue among those that stand first by quota and that no limit keeps; whether it
           fits now isn't asked
Limits: about 10 us per tenant and 3 us per bucket of the queue. Where there are more than LINES_MAX tenants, only those
        that have jobs or have used anything are told, LINES_MAX at most.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.gpu import gpus_number
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import NOTHING
from stoker.brain.domain.tenant import NO_TENANT, path_of
from stoker.brain.domain.units import Instant
from stoker.brain.engine.fair_share import WHOLE, FairShare
from stoker.brain.engine.queue_order import Priority, QueueOrder, tenants_of
from stoker.brain.engine.quota_order import QuotaOrder
from stoker.brain.state.usage_ledger import UsageLedger
from stoker.brain.state.view import Bucket, View

LINES_MAX: Final = 1_000
RESOURCES: Final = ("gpus", "gpu_memory", "cpus", "memory")
"""The fields of an Amount that are resources."""


class TenantShare(NamedTuple):
    """Share of one tenant with all beneath it. Parts are of WHOLE."""

    tenant: TenantName
    path: str
    """From the top: `org/ml-team`."""
    weight: int
    entitled: int
    used: int
    resource: str
    """Of which it has used most; empty = it has used nothing."""
    term: int | None
    """Points of its best placed job; None = none of its jobs is in the queue."""
    running_gpus: int | float
    running_jobs: int
    pending: int


class NextJob(NamedTuple):
    """The job that comes up first."""

    job: JobId
    tenant: TenantName
    priority: Priority


class ShareReport(NamedTuple):
    """Shares of tenants in the order of the tree, and who is next."""

    lines: Sequence[TenantShare]
    more: bool
    """There are lines beyond LINES_MAX."""
    next: NextJob | None
    why: str
    """In words why that one is next."""


def share_report(view: View, policy: Policy, now: Instant, among: Collection[TenantName] | None = None) -> ShareReport:
    """Return the shares of these tenants, None = of all, and the next job, also where it is of another tenant."""
    buckets = list(view.pending())
    order = QueueOrder(view, policy, now, tenants_of(buckets))
    names = [name for name in _shown(view) if among is None or name in among]
    shares = _Shares(view, order.fair_share, now)
    lines = [shares.of(name) for name in names[:LINES_MAX]]
    following = _next(view, order, buckets)
    return ShareReport(lines, len(names) > LINES_MAX, *following)


def _shown(view: View) -> Iterator[TenantName]:
    """The tenants to tell of, by name, each followed by those beneath it."""
    everybody, ledger = len(view.tenants) <= LINES_MAX, view.usage_ledger
    beneath: dict[TenantName, list[TenantName]] = {}
    for name in sorted(view.tenants, reverse=True):
        beneath.setdefault(view.tenants[name].parent, []).append(name)
    todo = list(beneath.get(NO_TENANT, ()))
    while todo:
        name = todo.pop()
        if everybody or _has_jobs(ledger, name) or view.tenant_use.has_used(name):
            yield name
        todo += beneath.get(name, ())


def _has_jobs(ledger: UsageLedger, name: TenantName) -> bool:
    return bool(ledger.pending_of(name)) or ledger.used_by(name) != NOTHING


class _Shares:
    """The lines of a report, with what is known of the levels of the tree."""

    def __init__(self, view: View, fair_share: FairShare, now: Instant) -> None:
        self._view, self._fair_share, self._now = view, fair_share, now
        self._ledger = view.usage_ledger
        self._weights: dict[TenantName, int] = {}
        """Sum of the weights of those that have jobs, by the tenant that they are beneath."""
        for tenant in view.tenants.values():
            if _has_jobs(self._ledger, tenant.name):
                self._weights[tenant.parent] = self._weights.get(tenant.parent, 0) + tenant.quota.weight

    def of(self, name: TenantName) -> TenantShare:
        view, ledger = self._view, self._ledger
        path = list(path_of(view.tenants, name))
        entitled = WHOLE
        for tenant in path:
            weight = tenant.quota.weight
            beside = self._weights.get(tenant.parent, 0) + (0 if _has_jobs(ledger, tenant.name) else weight)
            entitled = entitled * weight // beside
        used = view.tenant_use.share(name, self._now, WHOLE)
        held = ledger.used_by(name)
        return TenantShare(
            tenant=name,
            path="/".join(each.name for each in reversed(path)),
            weight=path[0].quota.weight,
            entitled=entitled,
            used=used,
            resource=RESOURCES[view.tenant_use.resource(name, self._now)] if used else "",
            term=self._fair_share.term_of_tree(name),
            running_gpus=gpus_number(held.gpu_milli),
            running_jobs=held.jobs,
            pending=ledger.pending_of(name),
        )


def _next(view: View, order: QueueOrder, buckets: Sequence[Bucket]) -> tuple[NextJob | None, str]:
    """The job that is next (S3), and why."""
    quota = QuotaOrder(view, buckets)
    heads = [head for head in order.heads(buckets) if quota.limit_reached(head[2].shape) is None]
    if not heads:
        limited = "all jobs in the queue wait at a limit of their tenant or class" if buckets else "nothing waits"
        return None, limited
    first = min(heads, key=lambda head: (quota.standing(head[2].shape), head))
    job_id, job = first[1], first[-1]
    found = NextJob(job_id, job.spec.tenant, order.priority(job))
    if quota.standing(first[2].shape) < quota.standing(min(heads)[2].shape):
        return (
            found,
            f"it is within a guarantee that tenant {found.tenant} or its class has, which goes before priority",
        )
    return found, _why(order, found, dict.fromkeys([head[2].shape.tenant for head in heads]))


def _why(order: QueueOrder, found: NextJob, waiting: Collection[TenantName]) -> str:
    if not order.policy.fair_share_points:
        return "fair share is off: priority, waiting and submission decide"
    if len(waiting) == 1:
        return f"tenant {found.tenant} alone has jobs in the queue: priority, waiting and submission decide"
    terms = {name: order.fair_share.term(name) for name in waiting}
    own, most = terms[found.tenant], max(terms.values())
    best = sorted(name for name, term in terms.items() if term == most)
    if len(best) == len(terms):
        return (
            "the tenants in the queue have used equally much for their weight: priority, waiting and submission decide"
        )
    if own == most and len(best) == 1:
        return f"of the tenants in the queue {found.tenant} has used least for its weight"
    if own == most:
        return f"of the tenants in the queue {' and '.join(best[:3])} have used least for their weight, equally much"
    return (
        f"tenant {best[0]} has used less for its weight and gains {most - own} points more, but this job has more "
        "priority, or has waited longer"
    )
