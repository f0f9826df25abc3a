"""Fair-share term of the effective priority: points for jobs of tenants that have used little for their weight.

Rules: F1  tenants that have jobs in the queue compete with those beside them in the tree; others take no part
       F2  a tenant's use is its decayed usage (`state.decayed_usage`) as a part of what the nodes in service have, of
           the resource of which that is most: GPUs, GPU memory, CPUs or memory (dominant resource). With all beneath it
       F3  what is compared is x = use / weight. Of the tenants of one level the one with the lowest x has the fraction
           1, each other (x_min + m) / (x + m), where m = sum of use / sum of weights of those that compete: the mean.
           So one that has used its share where another used nothing has 1/2, at twice its share 1/3
       F4  a tenant's fraction is the product of those on its path, so it is never above that of a tenant above it; and
           of each tenant that competes some job has the tenant's own fraction
       F5  jobs of a tenant itself compete with the tenants beneath it as one more, of weight 1
       F6  the term is the fraction of `fair_share_points`, rounded down: the same for all jobs of a tenant. Uses that
           differ by less than one part in ten million are equal; any other difference is one point at least between
           the lowest and the rest
       F7  nothing depends on how often it is asked for, nor by whom
Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011; level by level as in Slurm's Fair Tree.
Limits: costs about 15 us per tenant that has jobs in the queue, and next to nothing where one has; a pass works it out
        once, when a job of it first comes up. GPUs that were given out in the same pass count from the next one on.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.tenant import path_of
from stoker.brain.domain.units import Instant
from stoker.brain.state.view import View

_WHOLE_BITS: Final = 40
WHOLE: Final = 1 << _WHOLE_BITS
"""A fraction of 1."""
_EQUAL: Final = WHOLE >> 24
"""Of uses that are equal by weight the fractions differ by less, which comes of rounding."""
OWN_WEIGHT: Final = 1
"""Of jobs of a tenant itself beside those of the tenants beneath it (F5)."""


class Rival(NamedTuple):
    """One that competes at one level of the tree."""

    use: int
    """In parts of WHOLE of the cluster."""
    weight: int

    def used_less(self, other: "Rival") -> bool:
        """Return whether it has used less for its weight."""
        return self.use * other.weight < other.use * self.weight


class _Siblings:
    """Tenants beneath one, or at the top, that compete."""

    __slots__ = ("_least", "_rivals", "_use", "_weight")

    def __init__(self, rivals: dict[TenantName, Rival]) -> None:
        self._rivals = rivals
        self._use = sum(each.use for each in rivals.values())
        self._weight = sum(each.weight for each in rivals.values())
        self._least = next(iter(rivals.values()))
        for each in rivals.values():
            if each.used_less(self._least):
                self._least = each

    def fraction(self, name: TenantName) -> int:
        """Return the fraction of one, in parts of WHOLE (F3): with all denominators multiplied out, so exact."""
        rival, least = self._rivals[name], self._least
        if not self._use:
            return WHOLE
        above = rival.weight * (least.use * self._weight + self._use * least.weight)
        below = least.weight * (rival.use * self._weight + self._use * rival.weight)
        return (above << _WHOLE_BITS) // below


class FairShare:
    """The terms of all tenants that have jobs in the queue, at one time."""

    __slots__ = ("_beneath", "_fractions", "_levels", "_now", "_own", "_points", "_view", "_waiting", "terms")

    def __init__(self, view: View, policy: Policy, now: Instant, waiting: Iterable[TenantName]) -> None:
        self._view, self._now = view, now
        self._points = policy.fair_share_points
        self._waiting = dict.fromkeys(waiting)
        self.terms: dict[TenantName, int] = {}
        """Of tenants that were asked about: read here by who asks for thousands."""
        self._fractions: dict[TenantName, int] = {}
        self._levels: dict[TenantName, _Siblings] = {}
        """By the tenant that they are beneath."""
        self._beneath: dict[TenantName, dict[TenantName, None]] = {}
        """Those that compete, by the tenant that they are beneath."""
        self._own: dict[TenantName, None] = {}
        """Tenants whose own jobs compete with the tenants beneath them."""
        if self._points:
            self._gather()

    def _gather(self) -> None:
        for name in self._waiting:
            for tenant in path_of(self._view.tenants, name):
                siblings = self._beneath.setdefault(tenant.parent, {})
                if tenant.name in siblings:
                    break
                siblings[tenant.name] = None
        self._own = {name: None for name in self._waiting if name in self._beneath}

    def term(self, tenant: TenantName) -> int:
        """Return the points that jobs of this tenant gain (F6)."""
        term = self.terms.get(tenant)
        if term is None:
            fraction = self._fraction_of_jobs(tenant) + _EQUAL
            term = self.terms[tenant] = self._points * fraction >> _WHOLE_BITS
        return term

    def term_of_tree(self, name: TenantName) -> int | None:
        """Return the points of the best placed jobs of a tenant and all beneath it; None = none is in the queue."""
        if name not in self._beneath.get(self._view.tenants[name].parent, ()):
            return None
        return self._points * (self._fraction(name) + _EQUAL) >> _WHOLE_BITS

    def _fraction_of_jobs(self, tenant: TenantName) -> int:
        fraction = self._fraction(tenant)
        return fraction * self._level(tenant).fraction(tenant) >> _WHOLE_BITS if tenant in self._own else fraction

    def _fraction(self, name: TenantName) -> int:
        """Return that of a tenant with all beneath it (F4). One that doesn't compete lowers nobody's."""
        found = self._fractions.get(name)
        if found is None:
            tenant = self._view.tenants.get(name)
            found = WHOLE
            if tenant is not None:
                found = self._fraction(tenant.parent) if tenant.parent else WHOLE
                if name in self._beneath.get(tenant.parent, ()):
                    found = found * self._level(tenant.parent).fraction(name) >> _WHOLE_BITS
            self._fractions[name] = found
        return found

    def _level(self, above: TenantName) -> _Siblings:
        level = self._levels.get(above)
        if level is None:
            names = self._beneath[above]
            rivals = {}
            if len(names) + (above in self._own) > 1:
                rivals = {name: self.rival(name) for name in names}
                if above in self._own:
                    rivals[above] = Rival(self._view.tenant_use.own_share(above, self._now, WHOLE), OWN_WEIGHT)
            level = self._levels[above] = _Siblings(rivals or {name: Rival(0, 1) for name in names})
        return level

    def rival(self, name: TenantName) -> Rival:
        """Return what a tenant has used, and its weight."""
        return Rival(self._view.tenant_use.share(name, self._now, WHOLE), self._view.tenants[name].quota.weight)
