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
from typing import Final

from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NOTHING, needs
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.tenant import path_of
from stoker.brain.state.view import Bucket, View
from stoker.brain.state.walls import Walls, owed

FIRST: Final = 0
_UNOWED: Final = 999
"""Of who is within no guarantee: more levels than any tree has."""
_LATER: Final = 1_000
"""Added for who yields to the other class."""


class Draft:
    """Who would use how much: rows of accounts that somebody asks about, changed in place."""

    __slots__ = ("_paths", "_view", "by_class", "by_tenant", "unlending")

    def __init__(self, view: View) -> None:
        self._view = view
        books = view.books
        self.by_class: dict[JobClass, list[int]] = {each: list(books.used_by_class(each)) for each in JobClass}
        self.by_tenant: dict[TenantName, list[int]] = {}
        self.unlending: Mapping[TenantName, None] = books.unlending
        self._paths: dict[TenantName, tuple[list[int], ...]] = {}
        for name in (*books.promised, *books.limited):
            self.by_tenant[name] = list(books.used_by(name))

    def copy(self) -> "Draft":
        made = Draft(self._view)
        made.by_class = {each: list(row) for each, row in self.by_class.items()}
        made.by_tenant = {name: list(row) for name, row in self.by_tenant.items()}
        return made

    def charge(self, shape: Shape, more: Sequence[int]) -> None:
        rows = self._paths.get(shape.tenant)
        if rows is None:
            path = path_of(self._view.tenants, shape.tenant)
            rows = tuple(self.by_tenant[each.name] for each in path if each.name in self.by_tenant)
            self._paths[shape.tenant] = rows
        for row in (self.by_class[shape.job_class], *rows):
            for at, amount in enumerate(more):
                row[at] += amount


class Turns:
    """Of one pass."""

    __slots__ = ("_busy", "_contended", "_needs", "_view", "_walls", "spent")

    def __init__(self, view: View, buckets: Sequence[Bucket]) -> None:
        self._view = view
        books = view.books
        classes = len({bucket.shape.job_class for bucket in buckets}) if buckets else 0
        self._busy = bool(classes > 1 or view.pools.strict or books.promised or books.limited)
        self._needs: dict[Shape, Sequence[int]] = {}
        if not self._busy:
            return
        self._walls = Walls(view.tenants, view.pools, books.held_gpus + view.free_gpus)
        self.spent = Draft(view)
        self._contended = classes > 1

    def wall(self, shape: Shape) -> Reason | None:
        """W1"""
        return self._walls.before(shape, self.spent) if self._busy else None

    def take(self, shape: Shape) -> None:
        """One job of this shape was placed."""
        if self._busy:
            self.spent.charge(shape, self.needs(shape))

    def needs(self, shape: Shape) -> Sequence[int]:
        found = self._needs.get(shape)
        if found is None:
            found = self._needs[shape] = needs(shape.demand)
        return found

    def standing(self, shape: Shape, spent: Draft | None = None) -> int:
        """Lower comes first. It only rises in a pass, as GPUs are taken."""
        if not self._busy:
            return FIRST
        spent = spent or self.spent
        level = self._level(shape, spent) if self._view.books.promised else FIRST
        later = self._contended and not self._pool_owes(shape, spent)
        return level + _LATER if later else level

    def would_wait(self, shape: Shape, spent: Draft, standing: int) -> bool:
        """With so much spent, does this shape come before `standing`, within its limits?"""
        return self.standing(shape, spent) < standing and self._walls.before(shape, spent) is None

    def _level(self, shape: Shape, spent: Draft) -> int:
        """W3"""
        gpus = shape.demand.total_gpus
        for level, tenant in enumerate(path_of(self._view.tenants, shape.tenant)):
            if owed(tenant, spent, gpus):
                return level
        return _UNOWED

    def _pool_owes(self, shape: Shape, spent: Draft) -> bool:
        gpus, walls = shape.demand.total_gpus, self._walls
        guaranteed = walls.pools.guaranteed(walls.gpus)[shape.job_class]
        return 0 < gpus <= guaranteed - spent.by_class.get(shape.job_class, NOTHING)[0]
