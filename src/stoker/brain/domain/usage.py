"""Usage of GPUs and CPUs by jobs and tenants over time, and the capacity that nodes offered.

Units: whole milliseconds of one GPU or one CPU; a report divides them for people. No floats, so sums are exact.
Rules: U1  a task holds its GPUs and CPUs from its placement until its end was proved or settled
       U2  members of an array are charged to the array
       U3  a span holds its beginning and not its end, so that neighbouring reports add up
       U4  what a node offers holds from one `CapacityChange` to the next of that node; before the first it
           offered nothing
       U5  a share of a GPU counts as its thousandths, rounded down to a millisecond per task
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Position, TenantName
from stoker.brain.domain.job import Job, Task
from stoker.brain.domain.tenant import NO_TENANT, Tenant, path_of
from stoker.brain.domain.units import Instant


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that one task held, and the time for which it held them."""

    job: JobId
    attempt: int
    rank: int
    array: JobId
    """The array that the job is a member of; 0 = none."""
    tenant: TenantName
    user: str
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    cpus: int
    gpu_share: int = WHOLE_GPU
    """Thousandths that it held of each of its GPUs."""
    since: Instant
    until: Instant
    position: Position
    """Position of the event that ended it."""


class CapacityChange(msgspec.Struct, frozen=True, kw_only=True):
    """Number of GPUs that a node offers to new work from `at` on."""

    node: NodeName
    at: Instant
    gpus: int
    position: Position


class UsageBy(StrEnum):
    """Kind of the lines of a usage report."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    NODE = "node"


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of the holdings that a report sums up; empty texts match all."""

    since: Instant
    until: Instant
    by: UsageBy | None
    """None = one sum over all, under the empty key."""
    tenant: str = ""
    user: str = ""
    among: frozenset[TenantName] | None = None
    """Only holdings of these tenants. None = all."""
    through: Position
    """Holdings that ended after this position aren't counted; the caller counts them itself."""

    def counts(self, holding: Holding) -> bool:
        """Return whether a holding passes the filter."""
        return (
            holding.since < self.until
            and holding.until > self.since
            and holding.position <= self.through
            and (not self.tenant or holding.tenant == self.tenant)
            and (not self.user or holding.user == self.user)
            and (self.among is None or holding.tenant in self.among)
        )

    def key(self, holding: Holding) -> str:
        """Return the key of the line to which a holding belongs."""
        match self.by:
            case None:
                return ""
            case UsageBy.TENANT:
                return holding.tenant
            case UsageBy.USER:
                return holding.user
            case UsageBy.NODE:
                return holding.node
            case UsageBy.JOB:
                return str(holding.array or holding.job)  # U2


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report; `jobs` is the number of different jobs that held something."""

    key: str
    jobs: int
    gpu_ms: int
    cpu_ms: int


class TreeSum(msgspec.Struct, frozen=True):
    """One line of a report about the tree of tenants."""

    path: str
    """Names of the tenants from the top down to this one, with `/` between."""
    own: UsageSum
    """Usage of its own jobs."""
    all: UsageSum
    """Usage of its jobs and those of all tenants beneath it."""


class NodeInterval(msgspec.Struct, frozen=True):
    """A span of time on one node."""

    node: NodeName
    since: Instant
    until: Instant


def held_by(job: Job, attempt: int, task: Task, until: Instant, position: Position) -> Holding:
    """Return the holding of one task of `job` that ended or is looked at `until` then."""
    placement = task.placement
    return Holding(
        job=job.id,
        attempt=attempt,
        rank=placement.rank,
        array=job.array_of,
        tenant=job.spec.tenant,
        user=job.account,
        node=placement.node,
        gpus=placement.gpus,
        cpus=placement.cpus,
        gpu_share=placement.gpu_share,
        since=job.attempt(attempt).placed_at,
        until=until,
        position=position,
    )


def overlap_ms(holding: Holding, since: Instant, until: Instant) -> int:
    """Return the milliseconds of a holding within a span (U3)."""
    return max(0, min(holding.until, until) - max(holding.since, since))


def gpu_ms_of(holding: Holding, ms: int) -> int:
    """Return the GPU-milliseconds that it held in `ms` (U5)."""
    return len(holding.gpus) * holding.gpu_share * ms // WHOLE_GPU


def gpu_ms_within(holdings: Iterable[Holding], spans: Iterable[NodeInterval]) -> int:
    """Return the GPU-milliseconds held on those nodes at those times."""
    by_node: dict[NodeName, list[NodeInterval]] = {}
    for span in spans:
        by_node.setdefault(span.node, []).append(span)
    return sum(
        gpu_ms_of(holding, overlap_ms(holding, span.since, span.until))
        for holding in holdings
        for span in by_node.get(holding.node, ())
    )


def offered(offers: Sequence[CapacityChange], since: Instant, until: Instant) -> tuple[int, list[NodeInterval]]:
    """Return the GPU-milliseconds offered within a span, and the nodes and times at which none was offered.

    `offers` are in order of time and hold, of each node, the newest one before the span.
    """
    by_node: dict[NodeName, list[CapacityChange]] = {}
    for offer in offers:
        by_node.setdefault(offer.node, []).append(offer)
    total, closed = 0, list[NodeInterval]()
    for node, steps in by_node.items():
        for gpus, begin, end in _steps(steps, since, until):
            total += gpus * (end - begin)
            if not gpus:
                closed.append(NodeInterval(node, begin, end))
    return total, closed


def _steps(steps: Sequence[CapacityChange], since: Instant, until: Instant) -> Iterable[tuple[int, Instant, Instant]]:
    """U4, clipped to the span."""
    gpus, begin = 0, since
    for step in steps:
        at = min(max(step.at, since), until)
        if at > begin:
            yield gpus, begin, at
        gpus, begin = step.gpus, at
    if until > begin:
        yield gpus, begin, until


def merged(sums: Iterable[UsageSum], more: Mapping[str, UsageSum]) -> list[UsageSum]:
    """Return the sums of two reports line by line, the largest first, equal ones in order of key."""
    total = {line.key: line for line in sums}
    for key, line in more.items():
        had = total.get(key)
        total[key] = line if had is None else _plus(had, line)
    return sorted(total.values(), key=_rank)


def as_tree(
    lines: Iterable[UsageSum], tenants: Mapping[TenantName, Tenant], top: TenantName = NO_TENANT
) -> list[TreeSum]:
    """Return sums by tenant, each tenant followed by those beneath it, the largest of siblings first.

    A tenant that was deleted stands at the top. With a `top` nothing above it is summed up. Tenants that used nothing
    are left out.
    """
    own = {TenantName(line.key): line for line in lines}
    total: dict[TenantName, UsageSum] = {}
    beneath: dict[TenantName, dict[TenantName, None]] = {NO_TENANT: {}}
    for name, line in own.items():
        path = [*_up_to(tenants, name, top)]
        for each, above in zip(path, (*path[1:], NO_TENANT), strict=True):
            total[each] = _plus(total.get(each) or _nothing(each), line)
            beneath.setdefault(above, {})[each] = None
    found: list[TreeSum] = []
    todo = [(name, "") for name in _largest_last(beneath[NO_TENANT], total)]
    while todo:
        name, above_it = todo.pop()
        found.append(TreeSum(f"{above_it}{name}", own.get(name) or _nothing(name), total[name]))
        todo += [(each, f"{above_it}{name}/") for each in _largest_last(beneath.get(name, {}), total)]
    return found


def _nothing(key: str) -> UsageSum:
    return UsageSum(key=key, jobs=0, gpu_ms=0, cpu_ms=0)


def _up_to(tenants: Mapping[TenantName, Tenant], name: TenantName, top: TenantName) -> Iterable[TenantName]:
    """The tenant and those above it, itself first."""
    if name not in tenants:
        yield name
    for tenant in path_of(tenants, name):
        yield tenant.name
        if tenant.name == top:
            return


def _largest_last(names: Iterable[TenantName], total: Mapping[TenantName, UsageSum]) -> list[TenantName]:
    return sorted(names, key=lambda name: _rank(total[name]), reverse=True)


def _plus(one: UsageSum, other: UsageSum) -> UsageSum:
    return UsageSum(
        key=one.key, jobs=one.jobs + other.jobs, gpu_ms=one.gpu_ms + other.gpu_ms, cpu_ms=one.cpu_ms + other.cpu_ms
    )


def _rank(line: UsageSum) -> tuple[int, int, str]:
    return -line.gpu_ms, -line.cpu_ms, line.key
