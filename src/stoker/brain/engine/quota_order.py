"""Order of shapes by quota: which may take GPUs now, and which stand back for others.

Rules: W1  a limit is a limit (`state.quota_limits`), whatever the standing
       W2  class pools first, where jobs of both classes wait: a job that fits within the guarantee of its pool comes
           before one that doesn't
       W3  then tenants: a job that fits within the guarantee of its tenant comes before one that fits only within that
           of a tenant above, nearer before farther, and all of them before one that fits within none
       W4  among jobs of one standing, the usual order (`queue_order`)
       W5  a job that asks for no GPU is within no guarantee
Alternatives: one order by standing and priority together would need every waiting job's standing in each pass; so a
pass is made in rounds, one for each standing that comes up, and usually there is one.
Limits: costs 0.05 us per bucket where no tenant has a quota and one class waits; else about 1 us per placement too.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from stoker.brain.domain.demand import JobClass, QuotaGroup, Shape
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import Amount, needs
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import path_of
from stoker.brain.state.quota_limits import QuotaLimits
from stoker.brain.state.view import Bucket, View

FIRST: Final = 0
LATER: Final = Reason(ReasonCode.GUARANTEE_KEPT)
"""Of shapes whose round hasn't come."""
_UNOWED: Final = 999
"""Standing within no guarantee: more levels than any tree has."""
_OTHERS_FIRST: Final = 1_000
"""Added where the other class comes first."""

_GPUS, _CPUS, _JOBS = map(Amount._fields.index, ("gpu_milli", "cpus", "jobs"))
_NO_END: Final = 1 << 62

_Row = list[int]
"""Use of one class or tenant, with the fields of an Amount; changed in place."""


class _Account(NamedTuple):
    """All that jobs of one tenant and class are charged to."""

    pool: _Row
    owing: tuple[tuple[int, int, _Row], ...]
    """Level, guarantee and use of those tenants on the path that have a guarantee, the nearest first."""
    charged: tuple[_Row, ...]


class _Thresholds(NamedTuple):
    """The uses up to which each answer about one more job of a group holds."""

    charged: tuple[_Row, ...]
    levels: tuple[tuple[int, int, _Row], ...]
    """Level, the use up to which the job is within the guarantee there, and that use; the nearest first."""
    pool_max: int
    """The same of its class pool, of which the use comes first in `charged`; below any where it asks for no GPU."""
    limits: tuple[tuple[_Row, int, int], ...]
    """Use by a tenant, the field that is limited, and the limit."""
    cpus_max: int
    """Jobs that ask for no more CPUs reach none of these limits in this pass; -1 = they may reach one of the others."""


class OwedTo(NamedTuple):
    """Tenant and class within whose guarantees a job is."""

    tenant: TenantName | None
    """The nearest on its path; None = of no tenant."""
    job_class: JobClass | None
    """None = not of its class."""


class UsageDraft:
    """Use by class and by tenant with what a pass has placed, of those accounts that the pass asks about."""

    __slots__ = ("_accounts", "_view", "by_class", "by_tenant", "unlending")

    def __init__(self, view: View) -> None:
        self._view = view
        usage = view.usage_ledger
        self.unlending: Mapping[TenantName, None] = usage.unlending
        self._accounts: dict[tuple[TenantName, JobClass], _Account] = {}
        asked = (*usage.promised, *usage.limited)
        self.by_class: dict[JobClass, _Row] = {each: list(usage.used_by_class(each)) for each in JobClass}
        self.by_tenant: dict[TenantName, _Row] = {name: list(usage.used_by(name)) for name in asked}

    def copy(self) -> "UsageDraft":
        made = UsageDraft(self._view)
        made.by_class = {each: list(row) for each, row in self.by_class.items()}
        made.by_tenant = {name: list(row) for name, row in self.by_tenant.items()}
        return made

    def account(self, shape: Shape | QuotaGroup) -> _Account:
        key = shape.tenant, shape.job_class
        found = self._accounts.get(key)
        if found is None:
            rows, pool = self.by_tenant, self.by_class[shape.job_class]
            path = [
                (level, each.quota.guaranteed * WHOLE_GPU, rows[each.name])
                for level, each in enumerate(path_of(self._view.tenants, shape.tenant))
                if each.name in rows
            ]
            charged = (pool, *(row for _, _, row in path))
            found = self._accounts[key] = _Account(pool, tuple(each for each in path if each[1]), charged)
        return found


class QuotaOrder:
    """The order by quota in one pass: of no effect where there are no guarantees and limits."""

    def __init__(self, view: View, buckets: Sequence[Bucket]) -> None:
        self._view, usage = view, view.usage_ledger
        self._promised = bool(usage.promised)
        classes = {bucket.shape.job_class for bucket in buckets}
        self._waiting = [each for each in JobClass if each in classes]
        self._contended = len(self._waiting) > 1
        self.is_busy = bool(self._contended or self._promised or view.pools.strict or usage.limited)
        """Whether there are guarantees and limits at all."""
        self._owed: dict[tuple[TenantName, JobClass], int] = {}
        """The most that a job of a tenant and class may ask for within a guarantee, until something is taken."""
        self._buckets = buckets
        self._thresholds: dict[Shape, _Thresholds] = {}
        """Of shapes that were asked about; those of one group share them."""
        self._thresholds_of_group: dict[QuotaGroup, _Thresholds] = {}
        self._needs: dict[Shape, Amount] = {}
        self._limits = QuotaLimits(view.tenants, view.pools, usage.held_milli + view.free_milli)
        self._depends = bool(self._limits.pools.strict or usage.unlending)
        """The limits depend on what others hold."""
        self._guaranteed = view.pools.guaranteed_milli(self._limits.gpu_milli)
        self.used = UsageDraft(view)

    def limit_reached(self, shape: Shape) -> Reason | None:
        """Return the limit that one more job of this shape would break (W1)."""
        if not self.is_busy:
            return None
        if self._depends:
            return self._limits.before(shape, self.used)
        known, demand = self._thresholds.get(shape) or self._thresholds_of(shape), shape.demand
        if demand.cpus * demand.tasks > known.cpus_max:
            more = self._needs_of(shape)
            for row, at, limit in known.limits:
                if row[at] + more[at] > limit and more[at]:
                    return self._limits.before(shape, self.used)
        return None

    def _needs_of(self, shape: Shape) -> Amount:
        more = self._needs.get(shape)
        if more is None:
            more = self._needs[shape] = needs(shape.demand)
        return more

    def _thresholds_of(self, shape: Shape) -> _Thresholds:
        found = self._thresholds[shape] = self._of_group(shape.quota_group)
        return found

    def _of_group(self, group: QuotaGroup) -> _Thresholds:
        # Naive: reckon a standing when it is asked for. But each placement may change each, and is one of thousands.
        known = self._thresholds_of_group.get(group)
        if known is None:
            account, milli, rows = self.used.account(group), group.milli, self.used.by_tenant
            limits = self._limits.of_path(group.tenant)
            known = self._thresholds_of_group[group] = _Thresholds(
                account.charged,
                tuple([(level, most - milli, row) for level, most, row in account.owing]) if milli else (),
                self._guaranteed[group.job_class] - milli if milli else -1,
                tuple([(rows[name], at, limit) for name, at, limit in limits]),
                min([self._cpus_max(group, name, at, limit) for name, at, limit in limits], default=_NO_END),
            )
        return known

    def _cpus_max(self, group: QuotaGroup, tenant: TenantName, at: int, limit: int) -> int:
        """Up to how many CPUs one more job of a group doesn't reach a limit, whatever this pass places before."""
        left, view = limit - self.used.by_tenant[tenant][at], self._view
        if at == _CPUS:
            return max(-1, left - self._cpus_free)
        far = {_GPUS: view.free_milli + group.milli, _JOBS: view.usage_ledger.pending_of(tenant) + 1}
        return _NO_END if left >= far.get(at, _NO_END) else -1

    @cached_property
    def _cpus_free(self) -> int:
        return sum([each.cpus for each in self._view.free.values()])

    def guaranteed_to(self, job_class: JobClass) -> int:
        """Return the thousandths of GPUs that a class pool is guaranteed."""
        return self._guaranteed[job_class]

    @cached_property
    def groups(self) -> Collection[QuotaGroup]:
        """The groups of the shapes in the queue: few, also where ten thousand wait."""
        return dict.fromkeys([bucket.shape.quota_group for bucket in self._buckets])

    def next_standing(self, standing: int, *among: Collection[Shape]) -> int | None:
        """Return the lowest beyond this one that one of the shapes among these has; None = they have none."""
        if not any(among):
            return None
        by_standing: dict[int, dict[QuotaGroup, None]] = {}
        for group in self.groups:
            by_standing.setdefault(self.standing_of(group), {})[group] = None
        for each in sorted(each for each in by_standing if each > standing):
            groups = by_standing[each]
            if any(shape.quota_group in groups for some in among for shape in some):
                return each
        return None

    def is_within_guarantee(self, shape: Shape) -> bool:
        """Return whether one more job of this shape is within the guarantee of a tenant above it or of its class."""
        return self.is_group_within_guarantee(shape.quota_group)

    def is_group_within_guarantee(self, group: QuotaGroup) -> bool:
        """Return whether one more job of this group is."""
        key = group.tenant, group.job_class
        left = self._owed.get(key)
        if left is None:
            account = self.used.account(group)
            owing = [guaranteed - row[0] for _, guaranteed, row in account.owing]
            left = self._owed[key] = max(*owing, 0, self._guaranteed[group.job_class] - account.pool[0])
        return 0 < group.milli <= left

    @property
    def is_anyone_owed(self) -> bool:
        """Whether some tenant, or a class of which jobs wait, holds less than its guarantee."""
        rows, tenants = self.used.by_tenant, self._view.tenants
        return any(self._guaranteed[each] > self.used.by_class[each][0] for each in self._waiting) or any(
            tenants[name].quota.guaranteed * WHOLE_GPU > rows[name][0] for name in self._view.usage_ledger.promised
        )

    def owed_to(self, shape: Shape, used: UsageDraft) -> OwedTo:
        """Return within whose guarantees one more job of this shape would be, with so much used."""
        account, milli = used.account(shape), shape.demand.total_milli
        level = next((level for level, guaranteed, row in account.owing if milli <= guaranteed - row[0]), None)
        tenant = None if level is None else [*path_of(self._view.tenants, shape.tenant)][level].name
        by_class = milli <= self._guaranteed[shape.job_class] - account.pool[0]
        return OwedTo(tenant, shape.job_class if by_class else None)

    def take(self, shape: Shape) -> None:
        """Note that one job of this shape was placed."""
        self._owed.clear()
        known = self._thresholds.get(shape) or self._thresholds_of(shape)
        self._charge(known.charged, shape)

    def charge(self, shape: Shape, used: UsageDraft) -> None:
        """Add what one job of this shape needs to `used`, a copy."""
        self._charge(used.account(shape).charged, shape)

    def _charge(self, rows: Sequence[_Row], shape: Shape) -> None:
        gpu_milli, gpu_memory_mb, cpus, memory_mb, jobs = self._needs.get(shape) or self._needs_of(shape)
        for row in rows:
            row[0] += gpu_milli
            row[1] += gpu_memory_mb
            row[2] += cpus
            row[3] += memory_mb
            row[4] += jobs

    def in_the_way(self, shape: Shape, standing: int) -> Reason | None:
        """Return the limit that one more job of this shape would break, or LATER; None = nothing is in the way.

        LATER: its standing is beyond this one.
        """
        if not self.is_busy:
            return None
        known, demand = self._thresholds.get(shape) or self._thresholds_of(shape), shape.demand
        if self._depends or demand.cpus * demand.tasks > known.cpus_max:  # of thousands few come near a limit
            limit = self.limit_reached(shape)
            if limit is not None:
                return limit
        return None if self._standing_by(known) <= standing else LATER

    def standing(self, shape: Shape) -> int:
        """Return the standing: the lower number comes first. It only rises in a pass, as GPUs are taken."""
        if not self.is_busy:
            return FIRST
        return self._standing_by(self._thresholds.get(shape) or self._thresholds_of(shape))

    def _standing_by(self, known: _Thresholds) -> int:
        standing = FIRST
        if self._promised:
            standing = _UNOWED
            for level, most, row in known.levels:
                if row[0] <= most:
                    standing = level
                    break
        if self._contended and known.charged[0][0] > known.pool_max:
            standing += _OTHERS_FIRST
        return standing

    def standing_of(self, group: QuotaGroup) -> int:
        """Return the standing of all shapes of a group."""
        return self._standing_by(self._of_group(group)) if self.is_busy else FIRST

    def is_owed(self, shape: Shape, used: UsageDraft, standing: int) -> bool:
        """Return whether, with so much used, this shape comes before `standing` and within its limits."""
        return self._standing(shape.quota_group, used) < standing and self._limits.before(shape, used) is None

    def breaks_limit(self, shape: Shape, used: UsageDraft) -> bool:
        """Return whether one more job of this shape would go beyond a limit with so much used."""
        return self.is_busy and self._limits.before(shape, used) is not None

    def _standing(self, group: QuotaGroup, used: UsageDraft) -> int:
        """Return a job's place in the order of quota: pool, tenants, then itself (W2, W3, W5)."""
        account, milli = used.account(group), group.milli
        standing = FIRST
        if self._promised:
            standing = _UNOWED
            for level, guaranteed, row in account.owing:
                if 0 < milli <= guaranteed - row[0]:
                    standing = level
                    break
        if self._contended and not 0 < milli <= self._guaranteed[group.job_class] - account.pool[0]:
            standing += _OTHERS_FIRST
        return standing
