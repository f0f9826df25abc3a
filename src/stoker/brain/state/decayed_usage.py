"""Decayed usage: what each tenant has held on average, where recent use weighs more than old use.

The decayed usage of a tenant at a time t is the mean of what it held at every time before, each time s with the weight
2^((s - t) / half-life). So its unit is that of an Amount: who has held 8 GPUs for ever has a decayed usage of 8 GPUs,
who began one half-life ago has 4. Each tenant counts with all tenants beneath it.

Naive: a number per tenant that is decayed whenever it is read or changed; each step rounds, so the number depends on
how often it was looked at. Chosen: with G(t) = 2^(t / half-life) the mean is (held * G(t) - K) / G(t), where K is the
sum of change * G(time of the change) over all changes of what is held. A change adds to K, a look changes nothing.
Price: K and G grow, so every REBASE_HALF_LIVES half-lives all are divided by G(t), once.

Rules: U1  the same changes at the same times give the same integers, on every machine and however often they are read
       U2  an allocation that is cut into pieces in time counts exactly as the whole one
       U3  a new origin or another half-life moves no usage by more than 2^-47 of a unit
       U4  time is that which time limits count: a jump of the clock is no use (`ClockMoved`)
Limits: a change costs about 2 us and 0.3 us for each level of the tree, a look 1 us per tenant.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Final

import msgspec

from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NOTHING, Amount
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import NEVER, Instant, later

FIELDS: Final = 4
"""The first fields of an Amount: GPUs, GPU memory, CPUs, memory. How many jobs there are is no resource."""
REBASE_HALF_LIVES: Final = 64
"""A change so late after the origin makes a new one, so that numbers stay below 200 bits."""
_ONE_BITS: Final = 48
"""G is 2^48 at the origin: at a half-life of a year it still grows by thousands each millisecond."""
_EXPONENT_BITS: Final = 40
"""Of the part of a half-life: finer than a millisecond of any half-life that may be set."""
_DIGIT_BITS: Final = 8
_DIGIT_MASK: Final = (1 << _DIGIT_BITS) - 1
_ROOT_BITS: Final = 62
_GONE_HALF_LIVES: Final = 512
"""What is so old is below all rounding, and G needn't grow any more for it."""
_NONE: Final = (0,) * FIELDS


def _powers() -> tuple[tuple[int, ...], ...]:
    """2^(i / 2^8), 2^(i / 2^16) ... for i below 2^8, rounded down: by square roots of integers, so that every machine
    has the same."""
    tables, power = list[tuple[int, ...]](), 2 << _ROOT_BITS
    for _ in range(_EXPONENT_BITS // _DIGIT_BITS):
        table = [1 << _ROOT_BITS]
        for _ in range(_DIGIT_BITS):
            power = isqrt(power << _ROOT_BITS)
            # The new root belongs to the lowest bit, so what is there already is of twice the index.
            table = [each for low in table for each in (low, low * power >> _ROOT_BITS)]
        tables.append(tuple(table))
    return tuple(tables)


_POWERS: Final = _powers()


def growth(elapsed_ms: int, half_life_ms: int) -> int:
    """Return 2^48 * 2^(elapsed / half-life), to one part in 2^48."""
    whole, rest = divmod(elapsed_ms, half_life_ms)
    exponent, product = (rest << _EXPONENT_BITS) // half_life_ms, 1 << _ROOT_BITS
    for table in _POWERS:
        exponent <<= _DIGIT_BITS
        product = product * table[exponent >> _EXPONENT_BITS & _DIGIT_MASK] >> _ROOT_BITS
    shift = min(whole, _GONE_HALF_LIVES) - (_ROOT_BITS - _ONE_BITS)
    return product << shift if shift >= 0 else product >> -shift


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Decayed usage as a snapshot holds it."""

    origin: Instant
    """When G was 2^48."""
    at: Instant
    """The newest time up to which it was counted."""
    tenants: tuple[tuple[TenantName, int, int, int, int], ...]
    """K of each tenant, by name: GPUs, GPU memory, CPUs, memory."""


class DecayedUsage:
    """Decayed usage of all tenants. The usage ledger says what changes, `apply` says when."""

    __slots__ = ("_known", "_rows", "counts", "half_life_ms", "now", "origin")

    def __init__(self, half_life_ms: int) -> None:
        self.half_life_ms = half_life_ms
        self.counts = False
        """False while a log is replayed that was written before usage was counted."""
        self.now: Instant = NEVER
        """Time of the event that is being applied, as time limits count it. It never goes back."""
        self.origin: Instant = NEVER
        self._rows: dict[TenantName, list[int]] = {}
        """K by tenant; none that is nothing but zeros for long."""
        self._known: tuple[int, int] = (0, 1 << _ONE_BITS)
        """Time since the origin, and G then."""

    def advance(self, now: Instant) -> None:
        """Let it be so late, but never earlier than before.

        What happened after a jump of the clock, and before that was noted, seems later than what follows: until that
        time is reached again nothing more is counted.
        """
        if now > self.now or not self.counts:
            self.now = now

    def begin(self, held: Mapping[TenantName, Amount]) -> None:
        """Count from now on, if it wasn't counted before. What is held by now counts from now."""
        if self.counts:
            return
        self.counts, self.origin = True, self.now
        for tenant, amount in held.items():
            self.change((tenant,), amount)

    def change(self, tenants: Iterable[TenantName], more: Amount) -> None:
        """So much more is held from now on by each of these tenants; less where negative."""
        if not self.counts:
            return
        if self.now - self.origin >= REBASE_HALF_LIVES * self.half_life_ms:
            self._rebase()
        weight = self._weight(self.now)
        for tenant in tenants:
            row = self._rows.get(tenant)
            if row is None:
                row = self._rows[tenant] = [0] * FIELDS
            for at in range(FIELDS):
                if more[at]:
                    row[at] += more[at] * weight

    def forget(self, tenant: TenantName) -> None:
        """Forget a tenant that is deleted; what it used stays that of those above it."""
        self._rows.pop(tenant, None)

    def set_half_life(self, half_life_ms: int) -> None:
        """Let usage decay otherwise from now on; what it is now stays."""
        if half_life_ms == self.half_life_ms:
            return
        if self.counts:
            self._rebase()
        self.half_life_ms = half_life_ms

    def _rebase(self) -> None:
        weight = self._weight(self.now)
        rows = {name: [((k << _ONE_BITS) + weight // 2) // weight for k in row] for name, row in self._rows.items()}
        self._rows = {name: row for name, row in rows.items() if any(row)}
        self.origin = self.now
        self._known = 0, 1 << _ONE_BITS

    def _weight(self, now: Instant) -> int:
        elapsed = now - self.origin
        if self._known[0] != elapsed:
            self._known = elapsed, growth(elapsed, self.half_life_ms)
        return self._known[1]

    def weighed(self, tenant: TenantName, held: Sequence[int], now: Instant) -> tuple[Sequence[int], int]:
        """Return the decayed usage of each resource as numerators of one denominator.

        The denominator is the same for all tenants at one time. `held` is what the tenant holds.
        """
        # A reader whose clock is behind the newest event would see less than nothing.
        weight = self._weight(max(now, self.now))
        row = self._rows.get(tenant, _NONE)
        return [max(0, held[at] * weight - row[at]) for at in range(FIELDS)], weight

    def knows(self, tenant: TenantName) -> bool:
        """Return whether a tenant has used anything that isn't long forgotten."""
        return tenant in self._rows

    def negative(self, held: Mapping[TenantName, Amount]) -> list[TenantName]:
        """Return the tenants that have used less than nothing by now, of which there are none."""
        weight = self._weight(self.now)
        amounts = ((name, row, held.get(name, NOTHING)) for name, row in self._rows.items())
        return [name for name, row, has in amounts if any(has[at] * weight < row[at] for at in range(FIELDS))]

    def record(self) -> UsageRecord | None:
        """Return what a snapshot holds; None = it isn't counted."""
        if not self.counts:
            return None
        rows = sorted(self._rows.items())
        tenants = tuple((name, k[0], k[1], k[2], k[3]) for name, k in rows)
        return UsageRecord(origin=self.origin, at=self.now, tenants=tenants)

    def load(self, record: UsageRecord | None) -> None:
        """Take over what a snapshot holds."""
        if record is not None:
            self.counts, self.origin, self.now = True, record.origin, record.at
            self._rows = {name: list(row) for name, *row in record.tenants}
            self._known = 0, 1 << _ONE_BITS


class TenantUse:
    """Decayed usage of tenants as parts of what the nodes in service have, of the resource of which it is most."""

    __slots__ = ("_capacity", "_decayed", "_held", "_moved_ms", "_tenants")

    def __init__(
        self,
        decayed: DecayedUsage,
        held: Mapping[TenantName, Amount],
        capacity: Amount,
        tenants: Mapping[TenantName, Tenant],
        moved_ms: int = 0,
    ) -> None:
        self._decayed, self._held, self._tenants = decayed, held, tenants
        self._capacity = capacity[:FIELDS]
        self._moved_ms = moved_ms

    def share(self, tenant: TenantName, now: Instant, whole: int) -> int:
        """Return the dominant share of a tenant with all beneath it, in parts of `whole`."""
        above, below = self._weighed(tenant, now)
        return self._largest(above, below, whole)[0]

    def own_share(self, tenant: TenantName, now: Instant, whole: int) -> int:
        """Return that of the tenant's own jobs. Costs a step for each tenant there is."""
        above, below = self._weighed(tenant, now)
        for each in self._tenants.values():
            if each.parent == tenant:
                above = [one - other for one, other in zip(above, self._weighed(each.name, now)[0], strict=True)]
        return self._largest([max(0, each) for each in above], below, whole)[0]

    def has_used(self, tenant: TenantName) -> bool:
        """Return whether there is anything to be seen of its use."""
        return self._decayed.knows(tenant)

    def resource(self, tenant: TenantName, now: Instant) -> int:
        """Return the field of an Amount of which the tenant's share is largest; the first of equals."""
        above, below = self._weighed(tenant, now)
        return self._largest(above, below, 1 << _ONE_BITS)[1]

    def _weighed(self, tenant: TenantName, now: Instant) -> tuple[Sequence[int], int]:
        held = self._held.get(tenant, NOTHING)
        return self._decayed.weighed(tenant, held, later(now, -self._moved_ms))

    def _largest(self, above: Sequence[int], below: int, whole: int) -> tuple[int, int]:
        """The largest share and its field. Of what no node in service has nothing is a share."""
        shares = [
            use * whole // (has * below) if use and has else 0 for use, has in zip(above, self._capacity, strict=True)
        ]
        most = max(shares)
        return most, shares.index(most)
