"""REST shapes of usage reports and their query.

Sums are whole milliseconds (`_ms`), exact; hours stand beside them for people, rounded.
"""

from typing import Annotated, Final

import msgspec

from stoker.brain.domain.units import HOUR_MS
from stoker.brain.domain.usage import TreeSum, UsageBy, UsageSum
from stoker.wire.rest.decode import bad_value
from stoker.wire.rest.view import view_of
from stoker.wire.rest.why import PriorityView

FROM_DEFAULT: Final = "7d"
TO_DEFAULT: Final = "now"
_DIGITS: Final = 3
_By = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [each.value for each in UsageBy]})]


class UsageReportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """A span and what to have a line for. Moments are `now`, `7d` ago, a date, or ISO 8601 (UTC without a zone)."""

    since: str = FROM_DEFAULT
    """Where the span begins: `7d` ago, a date, a time."""
    to: str = TO_DEFAULT
    """Where it ends."""
    by: _By = UsageBy.TENANT.value
    """What to have a line for."""
    tenant: str = ""
    """Only what this tenant used."""
    user: str = ""
    """Only what this user used."""
    tree: bool = False
    """Beside `by=tenant`: each tenant with all beneath it, and `tenant` means that one and those beneath it."""
    shares: bool = False
    """With the fair shares of tenants as they are now, whatever the span: of `tenant` and those beneath it."""

    @property
    def what(self) -> UsageBy:
        """Raises: StokerError `bad_parameter`."""
        try:
            return UsageBy(self.by)
        except ValueError as fault:
            wanted = "one of " + ", ".join(each.value for each in UsageBy)
            raise bad_value("by", wanted=wanted, got=repr(self.by[:80]), kind="parameter") from fault


class UsageOwnView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage by a tenant's own jobs, without those of the tenants beneath it."""

    jobs: int
    gpu_ms: int
    cpu_ms: int
    gpu_hours: float
    cpu_hours: float


class UsageLineView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage by one tenant, user, job (an array is one) or node. `jobs` are those that held something.

    In a tree the sums hold what all tenants beneath it used too; `path` and `own` are null elsewhere.
    """

    key: str
    jobs: int
    gpu_ms: int
    cpu_ms: int
    gpu_hours: float
    cpu_hours: float
    path: str | None = None
    """From the top: `org/ml-team`."""
    own: UsageOwnView | None = None


class ClusterUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time of the whole cluster, whatever the lines were narrowed to.

    It counts what there was to be used, what jobs held, and what nobody did. `used_percent` is null where there was
    nothing.
    """

    capacity_gpu_ms: int
    allocated_gpu_ms: int
    idle_gpu_ms: int
    capacity_gpu_hours: float
    allocated_gpu_hours: float
    idle_gpu_hours: float
    used_percent: float | None


class ShareLineView(msgspec.Struct, frozen=True, kw_only=True):
    """Fair share of one tenant with all beneath it.

    `entitled_percent` is what its weight gives it of the cluster among the tenants beside it that have jobs;
    `used_percent` its decayed usage as a part of what the nodes in service have, of `resource`, of which it is most.
    """

    tenant: str
    path: str
    """From the top: `org/ml-team`."""
    weight: int
    entitled_percent: float
    used_percent: float
    resource: str
    """`gpus`, `gpu_memory`, `cpus` or `memory`; empty = it has used nothing."""
    fair_share: int | None
    """Points that its best placed job gains; null = none of its jobs is in the queue."""
    running_gpus: int | float
    running_jobs: int
    pending_jobs: int


class NextJobView(msgspec.Struct, frozen=True, kw_only=True):
    """The job that comes up first, if it fits: by quota, then by priority."""

    job_id: str
    tenant: str
    priority: PriorityView


class SharesView(msgspec.Struct, frozen=True, kw_only=True):
    """Fair shares at one instant, in the order of the tree; `more` says that there are further lines.

    `next` is null where nothing may start, and where the job is none of the caller's.
    """

    points: int
    """The most that fair share adds to a priority; 0 = it is off."""
    half_life_s: int
    """After so long use counts half."""
    lines: list[ShareLineView]
    more: bool
    next: NextJobView | None
    message: str
    """In words why that job is next."""


class UsageView(msgspec.Struct, frozen=True, kw_only=True, rename={"since": "from"}):
    """A usage report, in which what still runs counts up to `to`.

    The largest lines come first, in a tree among those beside each other; `more` says that smaller ones were left out,
    and `total` is of all.
    """

    since: str
    to: str
    by: UsageBy
    tenant: str
    user: str
    tree: bool
    lines: list[UsageLineView]
    more: bool
    total: UsageLineView
    cluster: ClusterUsageView
    shares: SharesView | None = None
    """Null unless it was asked for."""


def line_view(line: UsageSum, path: str | None = None, own: UsageOwnView | None = None) -> UsageLineView:
    return view_of(UsageLineView, line, path=path, own=own, **_hours(line))


def tree_line_view(line: TreeSum) -> UsageLineView:
    return line_view(line.all, line.path, view_of(UsageOwnView, line.own, **_hours(line.own)))


def _hours(line: UsageSum) -> dict[str, float]:
    return {"gpu_hours": hours(line.gpu_ms), "cpu_hours": hours(line.cpu_ms)}


def cluster_usage_view(capacity_ms: int, allocated_ms: int) -> ClusterUsageView:
    idle_ms = capacity_ms - allocated_ms
    return ClusterUsageView(
        capacity_gpu_ms=capacity_ms,
        allocated_gpu_ms=allocated_ms,
        idle_gpu_ms=idle_ms,
        capacity_gpu_hours=hours(capacity_ms),
        allocated_gpu_hours=hours(allocated_ms),
        idle_gpu_hours=hours(idle_ms),
        used_percent=round(100 * allocated_ms / capacity_ms, _DIGITS) if capacity_ms else None,
    )


def hours(ms: int) -> float:
    """For people: the milliseconds beside it are exact."""
    return round(ms / HOUR_MS, _DIGITS)
