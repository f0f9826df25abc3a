"""Who may take GPUs now, and whose turn is it?

Rules: W1  a limit is a limit (`state.walls`), whoever's turn it is
       W2  class pools first, where jobs of both classes wait: who fits within the guarantee of his pool comes before
           who doesn't
       W3  then tenants: who fits within the guarantee of his tenant comes before who fits only within that of a tenant
           above, nearer before farther, and all of them before who fits within none
       W4  among those of one standing, the usual order (`order`)
       W5  who asks for no GPU is within no guarantee
Alternatives: one order by standing and priority together would need every waiting job's standing in each pass; so a
pass is made in rounds, one for each standing that comes up, and usually there is one.
Limits: costs 0.05 us per bucket where no tenant has a quota and one class waits; else about 1 us per placement too.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import needs
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.tenant import path_of
from stoker.brain.state.quota_limits import QuotaLimits
from stoker.brain.state.view import Bucket, View

FIRST: Final = 0
_UNOWED: Final = 999
"""Of who is within no guarantee: more levels than any tree has."""
_LATER: Final = 1_000
"""Added for who yields to the other class."""


_Row = list[int]


class _Account(NamedTuple):
    """All that jobs of one tenant and class are charged to."""

    pool: _Row
    owing: tuple[tuple[int, int, _Row], ...]
    """Level, guarantee and use of those tenants on the path that have a guarantee, the nearest first."""
    charged: tuple[_Row, ...]


class UsageDraft:
    """Who would use how much: rows with the fields of an Amount, of accounts that somebody asks about, changed in
    place."""

    __slots__ = ("_accounts", "_view", "by_class", "by_tenant", "unlending")

    def __init__(self, view: View) -> None:
        self._view = view
        usage_ledger = view.usage_ledger
        self.by_class: dict[JobClass, _Row] = {each: list(usage_ledger.used_by_class(each)) for each in JobClass}
        self.by_tenant: dict[TenantName, _Row] = {}
        self.unlending: Mapping[TenantName, None] = usage_ledger.unlending
        self._accounts: dict[tuple[TenantName, JobClass], _Account] = {}
        for name in (*usage_ledger.promised, *usage_ledger.limited):
            self.by_tenant[name] = list(usage_ledger.used_by(name))

    def copy(self) -> "UsageDraft":
        made = UsageDraft(self._view)
        made.by_class = {each: list(row) for each, row in self.by_class.items()}
        made.by_tenant = {name: list(row) for name, row in self.by_tenant.items()}
        return made

    def account(self, shape: Shape) -> _Account:
        key = shape.tenant, shape.job_class
        found = self._accounts.get(key)
        if found is None:
            rows, pool = self.by_tenant, self.by_class[shape.job_class]
            path = [
                (level, each.quota.guaranteed, rows[each.name])
                for level, each in enumerate(path_of(self._view.tenants, shape.tenant))
                if each.name in rows
            ]
            charged = (pool, *(row for _, _, row in path))
            found = self._accounts[key] = _Account(pool, tuple(each for each in path if each[1]), charged)
        return found

    def charge(self, shape: Shape, more: Sequence[tuple[int, int]]) -> None:
        """`more` are fields and what is added to each."""
        rows = self.account(shape).charged
        for at, amount in more:
            for row in rows:
                row[at] += amount


class QuotaOrder:
    """Of one pass."""

    __slots__ = ("_busy", "_contended", "_guaranteed", "_needs", "_promised", "_view", "_walls", "spent")

    def __init__(self, view: View, buckets: Sequence[Bucket]) -> None:
        self._view = view
        usage_ledger = view.usage_ledger
        self._promised = bool(usage_ledger.promised)
        self._contended = len({bucket.shape.job_class for bucket in buckets}) > 1
        self._busy = bool(self._contended or self._promised or view.pools.strict or usage_ledger.limited)
        self._needs: dict[Shape, tuple[tuple[int, int], ...]] = {}
        if self._busy:
            self._walls = QuotaLimits(view.tenants, view.pools, usage_ledger.held_gpus + view.free_gpus)
            self._guaranteed = view.pools.guaranteed(self._walls.gpus)
            self.spent = UsageDraft(view)

    def wall(self, shape: Shape) -> Reason | None:
        """W1"""
        return self._walls.before(shape, self.spent) if self._busy else None

    def take(self, shape: Shape) -> None:
        """One job of this shape was placed."""
        if self._busy:
            self.charge(shape, self.spent)

    def charge(self, shape: Shape, spent: UsageDraft) -> None:
        more = self._needs.get(shape)
        if more is None:
            more = self._needs[shape] = tuple((at, each) for at, each in enumerate(needs(shape.demand)) if each)
        spent.charge(shape, more)

    def standing(self, shape: Shape) -> int:
        """Lower comes first. It only rises in a pass, as GPUs are taken."""
        return self._standing(shape, self.spent) if self._busy else FIRST

    def would_wait(self, shape: Shape, spent: UsageDraft, standing: int) -> bool:
        """With so much spent, does this shape come before `standing`, within its limits?"""
        return self._standing(shape, spent) < standing and self._walls.before(shape, spent) is None

    def _standing(self, shape: Shape, spent: UsageDraft) -> int:
        """W2, W3 and W5."""
        account, gpus = spent.account(shape), shape.demand.total_gpus
        standing = FIRST
        if self._promised:
            standing = _UNOWED
            for level, guaranteed, row in account.owing:
                if 0 < gpus <= guaranteed - row[0]:
                    standing = level
                    break
        if self._contended and not 0 < gpus <= self._guaranteed[shape.job_class] - account.pool[0]:
            standing += _LATER
        return standing
