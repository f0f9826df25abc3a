"""REST shapes of tenants.

Rules: N1  a limit that isn't given, or is null, is no limit, and never zero
       N2  a change says only what it changes: what isn't given stays, null takes a limit off
Units: `_mb` are MiB; limits hold for the tenant and all tenants beneath it together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.gpu import WHOLE_GPU, gpus_number
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.notify import NOBODY, Notify, unique_targets
from stoker.brain.domain.quota import Amount, Limits
from stoker.brain.domain.tenant import NO_TENANT, Tenant, Tier, Visibility, path_of, priority_cap, priority_default
from stoker.brain.domain.units import MINUTE_MS
from stoker.wire.rest.decode import Count, bad_value
from stoker.wire.rest.notify import events_text, notify_of, targets_text
from stoker.wire.rest.view import view_of
from stoker.wire.text import parse_duration

_Tier = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [tier.value for tier in Tier]})]
_LIMITS: Final = {
    "max_gpus": "gpus",
    "max_gpu_memory_mb": "gpu_memory_mb",
    "max_cpu_cores": "cpus",
    "max_memory_mb": "memory_mb",
    "max_concurrent_jobs": "jobs",
    "max_pending_jobs": "pending",
}
"""Field of a body -> field of the limits."""
_TEXTS: Final = ("email", "organization", "comment")


class TenantBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant but for its name. Of a change: only what it changes; null takes a limit off (N1, N2)."""

    parent: str | UnsetType | None = UNSET
    """The tenant that it is beneath. Left out = at the top. It never changes."""
    max_gpus: Count | UnsetType | None = UNSET
    """GPUs that its jobs may hold at once."""
    max_gpu_memory_mb: Count | UnsetType | None = UNSET
    """GPU memory that its jobs may ask for at once: what each asks per GPU, times its GPUs."""
    max_cpu_cores: Count | UnsetType | None = UNSET
    """CPUs that its jobs may hold at once."""
    max_memory_mb: Count | UnsetType | None = UNSET
    """Host memory that its jobs may hold at once."""
    max_concurrent_jobs: Count | UnsetType | None = UNSET
    """Jobs, and members of arrays, that may run at once."""
    max_pending_jobs: Count | UnsetType | None = UNSET
    """Jobs, and members of arrays, that may wait at once."""
    max_runtime_minutes: Count | UnsetType | None = UNSET
    """The longest time limit of a job, in minutes."""
    max_time: str | int | UnsetType | None = UNSET
    """The same as a text: `2d`, `90m`, `1-12:00:00`, `30` (minutes)."""
    guaranteed_gpus: Count | UnsetType | None = UNSET
    """GPUs that are kept for it while it has jobs that wait. Left out = 0."""
    weight: Count | UnsetType | None = UNSET
    """Its share among the tenants beside it, from 1 to 1000: 3 is to get three times what 1 gets. Left out or null =
    1."""
    priority_tier: _Tier | UnsetType | None = UNSET
    """low (100), medium (500), high (1000) or critical (2000): the priority of its jobs that name none, and the most
    they may ask for. Left out = that of its parent."""
    borrow: bool | UnsetType | None = UNSET
    """False: never more GPUs than its guarantee. Left out = true."""
    lend: bool | UnsetType | None = UNSET
    """False: nobody else may use what its guarantee leaves idle. Left out = true."""
    visibility: Visibility | UnsetType | None = UNSET
    """`owner`: a job is seen in full, and changed, by whose it is, by leads and by admins. `tenant`: by all users of
    it, and seen so by its viewers. It isn't inherited. Left out = owner."""
    nodes: tuple[str, ...] | UnsetType | None = UNSET
    """Names, or patterns with `*` and `?`, of the nodes that its jobs may run on; of those only what the tenants above
    it may use. Left out, null or empty = all that they may use. What runs elsewhere goes on."""
    notify: list[str] | UnsetType | None = UNSET
    """Events of its jobs that are told where these say nothing: `start`, `end`, `fail`, `wait>1h`. Left out or null =
    as its parent has it; `none` = nothing."""
    notify_to: list[str] | UnsetType | None = UNSET
    """Whom: `mail:ADDRESS`, `webhook:NAME` of the control plane, `https://...`, `slack:https://...`."""
    email: str | UnsetType | None = UNSET
    """For people."""
    organization: str | UnsetType | None = UNSET
    """For people."""
    comment: str | UnsetType | None = UNSET
    """For people."""


class NewTenantBody(TenantBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to make."""

    name: str
    """A word such as `ml-team`."""


class AmountView(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts that running jobs hold. Jobs that wait hold nothing."""

    gpus: int | float
    """Four jobs that hold 0.25 of a GPU each hold one."""
    gpu_memory_mb: int
    cpu_cores: int
    memory_mb: int
    jobs: int


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant, with what it and all tenants beneath it use now. A limit that is null is none.

    `limit_gpus` is the lowest limit on the way up the tree, null where there is none; `borrowed_gpus` are those held
    beyond the guarantee. `priority_default` is that of jobs that name none, `priority_max` the most they may ask for;
    null = no tier says so, and people may ask for 1000, admins for more. `email`, `organization` and `comment` are
    shown to admins and the tenant's own people; to others they are empty.
    """

    id: str
    tenant_id: str
    name: str
    parent: str
    path: str
    """From the top: `org/ml-team`."""
    email: str
    organization: str
    comment: str
    priority_tier: str | None
    priority_default: int
    priority_max: int | None
    guaranteed_gpus: int
    max_gpus: int | None
    max_gpu_memory_mb: int | None
    max_cpu_cores: int | None
    max_memory_mb: int | None
    max_concurrent_jobs: int | None
    max_pending_jobs: int | None
    max_runtime_minutes: int | None
    max_runtime_ms: int | None
    borrow: bool
    lend: bool
    weight: int = 1
    visibility: Visibility = Visibility.TENANT
    """0.2.0, which says nothing of it, lets all people of a tenant see and change its jobs."""
    nodes: tuple[str, ...] = ()
    """Empty = all that the tenants above it may use."""
    notify: list[str] = []
    """Events of its jobs that are told where these say nothing, to admins and its own people. Empty = as its parent
    has it."""
    notify_to: list[str] = []
    """Whom; of a URL the machine."""
    used: AmountView
    pending_jobs: int
    limit_gpus: int | None
    borrowed_gpus: int | float
    warnings: tuple[str, ...] = ()
    """Where one tenant is shown or changed: what was taken and can't be kept as things are, such as a guarantee of more
    GPUs than the cluster has."""


class TenantListView(msgspec.Struct, frozen=True, kw_only=True):
    """Every tenant, each followed by those beneath it."""

    tenants: list[TenantView]
    total: int


def tenant_of(body: NewTenantBody) -> Tenant:
    """The tenant that a body describes.

    Raises: StokerError `bad_field`, `bad_time` or `conflicting_fields`.
    """
    parent = TenantName(body.parent) if body.parent else NO_TENANT
    return changed(Tenant(name=TenantName(body.name), parent=parent), body)


def changed(tenant: Tenant, body: TenantBody) -> Tenant:
    """The tenant with what the body says of it (N2).

    Raises: StokerError `bad_field`, `bad_time` or `conflicting_fields`.
    """
    limits = replace(tenant.quota.limits, **dict(_limits(body)))
    quota = replace(tenant.quota, limits=limits, **dict(_shares(body)))
    return replace(tenant, quota=quota, **dict(_about(tenant, body)))


def _limits(body: TenantBody) -> Iterator[tuple[str, int | None]]:
    for field, limit in _LIMITS.items():
        given = getattr(body, field)
        if given is not UNSET:
            yield limit, given
    if body.max_runtime_minutes is not UNSET and body.max_time is not UNSET:
        message = "`max_runtime_minutes` and `max_time` both say how long a job may run"
        raise refusal_error("conflicting_fields", message, "send one of the two", path="max_time")
    if body.max_runtime_minutes is not UNSET:
        yield "time_ms", _minutes_ms(body.max_runtime_minutes)
    if body.max_time is not UNSET:
        yield "time_ms", None if body.max_time is None else _time_ms(body.max_time)


def _minutes_ms(minutes: int | None) -> int | None:
    if minutes == 0:
        raise bad_value("max_runtime_minutes", wanted="a number above zero, or null for no limit", got="0")
    return None if minutes is None else minutes * MINUTE_MS


def _time_ms(given: str | int) -> int:
    if isinstance(given, int) and given <= 0:
        raise bad_value("max_time", wanted="a time above zero, or null for no limit", got=str(given)[:40])
    return parse_duration(str(given))


def _shares(body: TenantBody) -> Iterator[tuple[str, int | bool]]:
    if body.guaranteed_gpus is not UNSET:
        yield "guaranteed", body.guaranteed_gpus or 0
    if body.weight is not UNSET:
        yield "weight", 1 if body.weight is None else body.weight
    if body.borrow is not UNSET:
        yield "borrow", body.borrow is not False
    if body.lend is not UNSET:
        yield "lend", body.lend is not False


def _about(tenant: Tenant, body: TenantBody) -> Iterator[tuple[str, Any]]:
    if body.parent is not UNSET:
        yield "parent", TenantName(body.parent or "")
    if body.priority_tier is not UNSET:
        yield "tier", None if body.priority_tier is None else _tier(body.priority_tier)
    if body.visibility is not UNSET:
        yield "visibility", body.visibility or Visibility.OWNER
    if body.nodes is not UNSET:
        yield "nodes", tuple(sorted(dict.fromkeys(body.nodes or ())))
    if body.notify is not UNSET or body.notify_to is not UNSET:
        yield "notify", _notify(tenant.notify, body)
    for field in _TEXTS:
        given = getattr(body, field)
        if given is not UNSET:
            yield field, given or ""


def _notify(before: Notify | None, body: TenantBody) -> Notify | None:
    events = notify_of(body.notify or [], []) if body.notify is not UNSET else before
    targets = unique_targets(tuple(body.notify_to or ())) if body.notify_to is not UNSET else before and before.to
    if not (events and events.on) and not targets:
        return NOBODY if body.notify else None
    return Notify(on=events.on if events else (), to=targets or (), wait_ms=events.wait_ms if events else 0)


def _tier(word: str) -> Tier:
    try:
        return Tier(word.lower())
    except ValueError as fault:
        wanted = "one of " + ", ".join(tier.value for tier in Tier)
        raise bad_value("priority_tier", wanted=wanted, got=repr(word[:80])) from fault


def tenant_view(tenants: Mapping[TenantName, Tenant], tenant: Tenant, used: Amount, pending: int) -> TenantView:
    """`used` and `pending` are of the tenant and all beneath it; it needn't be among `tenants` any more."""
    above = [tenant, *path_of(tenants, tenant.parent)]
    own, limits = tenant.quota, tenant.quota.limits
    return view_of(
        TenantView,
        tenant,
        warnings=(),
        id=tenant.name,
        tenant_id=tenant.name,
        path="/".join(each.name for each in reversed(above)),
        priority_tier=tenant.tier.value if tenant.tier else None,
        priority_default=priority_default(tenants, tenant.name),
        priority_max=priority_cap(tenants, tenant.name),
        guaranteed_gpus=own.guaranteed,
        **_limits_shown(limits),
        borrow=own.borrow,
        lend=own.lend,
        weight=own.weight,
        notify=events_text(tenant.notify),
        notify_to=targets_text(tenant.notify),
        used=view_of(AmountView, used, gpus=gpus_number(used.gpu_milli), cpu_cores=used.cpus),
        pending_jobs=pending,
        limit_gpus=min((most for each in above if (most := each.quota.gpus_max) is not None), default=None),
        borrowed_gpus=gpus_number(max(0, used.gpu_milli - own.guaranteed * WHOLE_GPU)),
    )


def _limits_shown(limits: Limits) -> dict[str, int | None]:
    shown: dict[str, int | None] = {field: getattr(limits, limit) for field, limit in _LIMITS.items()}
    shown["max_runtime_ms"] = limits.time_ms
    shown["max_runtime_minutes"] = None if limits.time_ms is None else limits.time_ms // MINUTE_MS
    return shown


def in_tree_order(tenants: Mapping[TenantName, Tenant]) -> Sequence[Tenant]:
    """By name, each followed by those beneath it."""
    beneath: dict[TenantName, list[Tenant]] = {}
    for name in sorted(tenants):
        beneath.setdefault(tenants[name].parent, []).append(tenants[name])
    found: list[Tenant] = []
    todo = list(reversed(beneath.get(NO_TENANT, [])))
    while todo:
        tenant = todo.pop()
        found.append(tenant)
        todo += reversed(beneath.get(tenant.name, []))
    return found
