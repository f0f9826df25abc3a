"""REST shapes of the class pools.

Rules: P1  shares are from 0 to 1; anything else is refused, and nothing changes
       P2  where only the share of online is given, batch gets the rest
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Annotated

import msgspec

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.gpu import WHOLE_GPU, gpus_number
from stoker.brain.domain.quota import WHOLE, PoolDemand, Pools, PoolShare

Share = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1})]


class QuotaBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the class pools; fields that aren't given stay."""

    online_percent: Share | None = None
    """Share of the GPUs that online jobs are guaranteed: 0.7 is seventy per cent."""
    batch_percent: Share | None = None
    """The same of batch jobs. Left out beside `online_percent` = what that leaves."""
    strict: bool | None = None
    """True: the shares are walls, and neither class borrows what the other leaves idle."""
    force: bool = False
    """Also where the shares are walls and one would be below what is in use. What runs goes on."""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """One class pool, in GPUs. `quota` and `guaranteed` are the same: its share of `total_gpus`."""

    quota: int
    used: int | float
    """Held by its jobs now."""
    available: int | float
    """What its guarantee has left."""
    guaranteed: int
    borrowed: int | float
    """Held beyond its guarantee."""
    limit_now: int | float
    """The most that its jobs could hold now: without what the other one holds, and what is kept for jobs of it that
    wait and are within its guarantee."""
    free: int | float
    """GPUs that are idle and that its jobs may take."""
    waiting_gpus: int | float
    """Asked for by its jobs in the queue: not those that are held, or wait for a time or for other jobs."""


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs in service, held or free, and how the two classes share them."""

    total_gpus: int | float
    free_gpus: int | float
    online: PoolView
    batch: PoolView
    online_percent: float
    batch_percent: float
    strict: bool


def pools_of(body: QuotaBody, now: Pools) -> Pools:
    """The shares that a body asks for, over those that hold.

    Raises: StokerError `bad_share` or `missing_field`.
    """
    if body.online_percent is None and body.batch_percent is None and body.strict is None:
        message = "nothing to change was given: `online_percent` is missing"
        hint = "give `online_percent`, such as 0.6, or `batch_percent` or `strict`"
        raise refusal_error("missing_field", message, hint, path="online_percent")
    online = now.online if body.online_percent is None else share_of("online_percent", body.online_percent)
    batch = now.batch if body.online_percent is None else WHOLE - online
    if body.batch_percent is not None:
        batch = share_of("batch_percent", body.batch_percent)
    return Pools(online=online, batch=batch, strict=now.strict if body.strict is None else body.strict)


def parse_share(field: str, text: str) -> float:
    """A share as people type it: `0.7`, `70%` or, in whole per cent, `70`; 1 is all of it, `1%` a hundredth.

    Raises: StokerError `bad_share`.
    """
    number = text.strip().removesuffix("%").rstrip()
    try:
        share = Decimal("NaN") if "_" in text else Decimal(number)
    except InvalidOperation:
        share = Decimal("NaN")
    # Between one and two a slip of the pen is likelier than a per cent and a bit.
    per_cent = text.strip().endswith("%") or (number.isascii() and number.isdigit() and share > 1)
    if share.is_finite() and per_cent:
        share /= 100
    share_of(field, float(share), text.strip())
    return float(share)


def share_of(field: str, share: float, text: str = "") -> int:
    """A share in parts of WHOLE, by its decimal digits. Raises: StokerError `bad_share`."""
    if isfinite(share) and 0 <= share <= 1:
        return round(Decimal(repr(share)) * WHOLE)
    said = text[:40] or f"{share:.15g}"
    hint = "write 0.7 or 70% for seventy per cent; 1 is all of them"
    raise refusal_error("bad_share", f"{field} is {said}; it must be a number from 0 to 1", hint, field=field)


def quota_view(pools: Pools, free: int, demands: Mapping[JobClass, PoolDemand]) -> QuotaView:
    """Show the class pools, with `free` thousandths of GPUs idle on nodes that take work."""
    shares = pools.shares(free, demands)
    online, batch = (_pool(demands[each], shares[each]) for each in (JobClass.ONLINE, JobClass.BATCH))
    return QuotaView(
        total_gpus=gpus_number(free + sum(each.used for each in demands.values())),
        free_gpus=gpus_number(free),
        online=online,
        batch=batch,
        online_percent=pools.online / WHOLE,
        batch_percent=pools.batch / WHOLE,
        strict=pools.strict,
    )


def _pool(demand: PoolDemand, share: PoolShare) -> PoolView:
    return PoolView(
        quota=share.guaranteed // WHOLE_GPU,
        used=gpus_number(demand.used),
        available=gpus_number(max(0, share.guaranteed - demand.used)),
        guaranteed=share.guaranteed // WHOLE_GPU,
        borrowed=gpus_number(max(0, demand.used - share.guaranteed)),
        limit_now=gpus_number(demand.used + share.takes),
        free=gpus_number(share.takes),
        waiting_gpus=gpus_number(demand.waiting),
    )
