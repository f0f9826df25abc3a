"""Admission of commands that make, change and delete tenants, and that set the shares of the class pools.

Rules: T1  a name is that of a label's value, and not empty; `default` always exists
       T2  the guarantees of the tenants beneath one add up to at most its own. At the top nothing is above: more than
           the cluster has is taken, since nodes come and go, and who sets or looks at such a guarantee is warned
       T3  a guarantee is no higher than the limit of the same tenant
       T4  a tenant's place in the tree never changes
       T5  a tenant that a job which hasn't ended, a token or another tenant names can't be deleted; its secrets go
           with it
       T6  shares are from 0 to 1, and add up to at most 1
       T7  a limit below what is in use is taken: what runs goes on, and nothing new starts. Only where the class pools
           are strict a share below what is in use is refused, unless it is forced
       T8  the nodes of a tenant are named by at most NODES_MAX names and patterns. A change ends nothing that runs
       T9  a weight is from 1 to WEIGHT_MAX
"""

from collections.abc import Iterable

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.gpu import gpus_number
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.node import NODE_GLOB
from stoker.brain.domain.notify import nobody_fault
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WEIGHT_MAX, WHOLE, Pools, share_text
from stoker.brain.domain.tenant import Tenant, path_of
from stoker.brain.domain.units import Instant, counted
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, DeleteTenant, PutTenant, SetPools
from stoker.brain.state.events.access import TokenRevoked
from stoker.brain.state.events.secret import SecretDeleted
from stoker.brain.state.events.tenant import PoolsSet, TenantDefined, TenantDeleted
from stoker.brain.state.validation.fields import name_fault, refuse_out_of_range, text_fault
from stoker.brain.state.validation.lookups import find_tenant, tenant_fault

NODES_MAX = 100
LIMIT_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


def put(state: ClusterState, command: PutTenant) -> Answer:
    """Admit a new tenant, or new values of one that exists."""
    tenant = command.tenant
    old = state.tenants.get(tenant.name)
    fault = (
        (_exists(tenant.name) if command.create else None)
        if old is not None
        else _new_fault(state, tenant)
        if command.create
        else tenant_fault(state, tenant.name)
    )
    fault = (
        fault
        or _place_fault(old, tenant)
        or _number_fault(tenant)
        or _weight_fault(tenant.quota.weight)
        or _own_fault(tenant)
        or _nodes_fault(tenant)
        or (nobody_fault(tenant.notify) if tenant.notify is not None else None)
        or _tree_fault(state, tenant)
        or _text_fault(tenant, state.policy)
    )
    if fault:
        return fault
    return () if old == tenant else (TenantDefined(tenant=tenant),)


def _exists(name: TenantName) -> Refusal:
    hint = f"change it with `stoker tenant set {name}`, or choose another name"
    return refuse("tenant_exists", f"there is a tenant {name} already", hint, tenant=name)


def _new_fault(state: ClusterState, tenant: Tenant) -> Refusal | None:
    bad_name = name_fault("bad_tenant_name", "tenant", tenant.name, "`ml-team`")
    if bad_name:
        return bad_name
    if tenant.parent and tenant.parent not in state.tenants:
        return tenant_fault(state, tenant.parent)
    most, deepest = state.policy.tenants_max, state.policy.tenant_depth_max
    if len(state.tenants) >= most:
        hint = "delete one that nobody uses: `stoker tenant list`"
        message = f"there are {most} tenants already, as many as are taken"
        return refuse("too_many_tenants", message, hint, tenants_max=most)
    if tenant.parent and len(list(path_of(state.tenants, tenant.parent))) >= deepest:
        message = f"tenant {tenant.parent} is {deepest} levels deep already, as deep as the tree may be"
        return refuse("tree_too_deep", message, "put it higher up (`--parent`)", depth_max=deepest)
    return None


def _place_fault(old: Tenant | None, tenant: Tenant) -> Refusal | None:
    # T4: a tenant's place in the tree never changes.
    if old is None or old.parent == tenant.parent:
        return None
    where = f"beneath {old.parent}" if old.parent else "at the top"
    message = f"tenant {tenant.name} is {where}, and can't be moved"
    hint = "leave the parent as it is; to move a team, make a new tenant for it and delete the old one"
    return refuse("tenant_place", message, hint, tenant=tenant.name, parent=old.parent)


def _number_fault(tenant: Tenant) -> Refusal | None:
    limits = tenant.quota.limits
    for field, value in (
        ("guaranteed_gpus", tenant.quota.guaranteed),
        ("max_gpus", limits.gpus),
        ("max_gpu_memory_mb", limits.gpu_memory_mb),
        ("max_cpu_cores", limits.cpus),
        ("max_memory_mb", limits.memory_mb),
        ("max_concurrent_jobs", limits.jobs),
        ("max_pending_jobs", limits.pending),
        ("max_runtime_ms", limits.time_ms),
    ):
        if value is not None and not 0 <= value <= LIMIT_MAX:
            hint = "give a number in that range, or leave the limit out: then there is none"
            return refuse_out_of_range(field, value, 0, LIMIT_MAX, hint)
    return None


def _weight_fault(weight: int) -> Refusal | None:
    # T9: nobody has no share at all.
    if 1 <= weight <= WEIGHT_MAX:
        return None
    hint = (
        "weights compare tenants beside each other: 3 gets three times what 1 gets; a tenant that is to run nothing "
        "has a limit of 0 GPUs instead (`--max-gpus 0`)"
    )
    return refuse_out_of_range("weight", weight, 1, WEIGHT_MAX, hint)


def _own_fault(tenant: Tenant) -> Refusal | None:
    # T3: a guarantee is no higher than the limit of the same tenant.
    most, promised = tenant.quota.limits.gpus, tenant.quota.guaranteed
    if most is None or promised <= most:
        return None
    message = f"tenant {tenant.name} would be guaranteed {promised} GPUs and limited to {most}"
    hint = "lower the guarantee, or raise or drop the limit"
    return refuse("guarantee_above_limit", message, hint, tenant=tenant.name, guaranteed=promised, limit=most)


def _nodes_fault(tenant: Tenant) -> Refusal | None:
    # T8: names and patterns of nodes are such, and not too many.
    wrong = next((each for each in tenant.nodes if not NODE_GLOB.fullmatch(each)), None)
    if wrong is not None:
        hint = "name nodes or patterns with `*` and `?`: `--nodes gpu01,gpu-a*`; `--nodes none` allows all"
        return refuse("bad_field", f"{wrong[:80]!r} is no name of nodes", hint, path="nodes")
    if len(tenant.nodes) > NODES_MAX:
        hint = "use patterns, such as `gpu-a*`, in place of names"
        return refuse("bad_field", f"{len(tenant.nodes)} names of nodes are more than {NODES_MAX}", hint, path="nodes")
    return None


def _tree_fault(state: ClusterState, tenant: Tenant) -> Refusal | None:
    # T2, with the siblings under its parent and with the tenants beneath it.
    parent = state.tenants.get(tenant.parent)
    if parent is not None:
        siblings = (each for each in _beneath(state, parent.name) if each.name != tenant.name)
        sums = tenant.quota.guaranteed + sum(each.quota.guaranteed for each in siblings)
        if tenant.quota.guaranteed and sums > parent.quota.guaranteed:
            hint = (
                f"raise that of {parent.name} first (`stoker tenant set {parent.name} --guaranteed-gpus {sums}`), or "
                "lower one beneath it"
            )
            return _over_promised(parent, sums, hint)
    sums = sum(each.quota.guaranteed for each in _beneath(state, tenant.name))
    hint = f"leave it {sums} at least, or lower those beneath {tenant.name} first"
    return _over_promised(tenant, sums, hint) if sums > tenant.quota.guaranteed else None


def _beneath(state: ClusterState, name: TenantName) -> Iterable[Tenant]:
    return (each for each in state.tenants.values() if each.parent == name)


def _over_promised(parent: Tenant, sums: int, hint: str) -> Refusal:
    guaranteed = parent.quota.guaranteed
    message = (
        f"the tenants beneath {parent.name} would be guaranteed {sums} GPUs together, and {parent.name} itself has a "
        f"guarantee of {guaranteed}"
    )
    return refuse("guarantees_exceed_parent", message, hint, tenant=parent.name, guaranteed=guaranteed, beneath=sums)


def _text_fault(tenant: Tenant, policy: Policy) -> Refusal | None:
    for field, text in (("email", tenant.email), ("organization", tenant.organization), ("comment", tenant.comment)):
        fault = text_fault(field, text, policy.text_bytes_max)
        if fault:
            return fault
    return None


def delete(state: ClusterState, command: DeleteTenant, now: Instant) -> Answer:
    """Admit the end of a tenant, with its expired tokens. Costs a look at every job in the state."""
    tenant = find_tenant(state, command.name)
    if isinstance(tenant, Refusal):
        return tenant
    name = tenant.name
    if name == DEFAULT_TENANT:
        hint = "jobs that name no tenant belong to it; limit it instead: `stoker tenant set default --max-gpus 0`"
        return refuse("tenant_in_use", "the tenant default can't be deleted", hint, tenant=name)
    beneath = sorted(each.name for each in _beneath(state, name))
    if beneath:
        return _in_use(
            name, f"{counted(len(beneath), 'tenant')} beneath it, such as {beneath[0]}", "delete those first"
        )
    jobs = [job.id for job in state.jobs.values() if job.spec.tenant == name and not job.is_final]
    if jobs:
        message = f"{counted(len(jobs), 'job')} yet to end, such as job {min(jobs)}"
        return _in_use(name, message, f"wait for them to end, or cancel them: `stoker list --tenant {name}`")
    tokens = [token for token in state.tokens.values() if token.tenant == name]
    valid = sorted(token.id for token in tokens if not token.is_expired(now))
    if valid:
        hint = "revoke them first: `stoker token list`, `stoker token revoke ID`"
        return _in_use(name, f"{counted(len(valid), 'token')}, such as {valid[0]}", hint)
    of_tenant = [each for each in state.secrets if each.tenant == name]
    return (
        *(TokenRevoked(id=token.id) for token in tokens),
        *(SecretDeleted(tenant=name, owner=each.owner, name=each.name) for each in of_tenant),
        TenantDeleted(name=name),
    )


def _in_use(name: TenantName, what: str, hint: str) -> Refusal:
    return refuse("tenant_in_use", f"tenant {name} still has {what}", hint, tenant=name)


def set_pools(state: ClusterState, command: SetPools) -> Answer:
    """Admit new shares of the class pools."""
    pools = command.pools
    fault = _pools_fault(pools) or (None if command.force else _below_use(state, pools))
    if fault:
        return fault
    return () if pools == state.pools else (PoolsSet(pools=pools),)


def _pools_fault(pools: Pools) -> Refusal | None:
    # T6: shares are from 0 to 1, and add up to at most 1.
    for field, share in (("online_percent", pools.online), ("batch_percent", pools.batch)):
        if not 0 <= share <= WHOLE:
            message = f"{field} is {share_text(share)}; it must be from 0 to 1"
            return refuse("bad_share", message, "write 0.7 for seventy per cent", field=field, value=share_text(share))
    if pools.online + pools.batch > WHOLE:
        message = (
            f"online_percent {share_text(pools.online)} and batch_percent {share_text(pools.batch)} are more than 1 "
            "together"
        )
        return refuse("bad_share", message, "lower one of them; left out, batch_percent is what online_percent leaves")
    return None


def _below_use(state: ClusterState, pools: Pools) -> Refusal | None:
    # T7: only strict shares below what is in use are refused.
    if not pools.strict:
        return None
    usage_ledger = state.indexes.usage_ledger
    for job_class, guaranteed in pools.guaranteed_milli(state.indexes.milli_in_service).items():
        used = usage_ledger.used_by_class(job_class).gpu_milli
        if used > guaranteed:
            uses, would_be = gpus_number(used), gpus_number(guaranteed)
            message = f"{job_class} jobs hold {uses} GPUs, and this share would be {would_be} of them"
            hint = (
                "wait for jobs to end, or force it (`--force`): what runs goes on, and nothing new of that class "
                "starts until it is below its share"
            )
            return refuse("share_below_use", message, hint, used=uses, guaranteed=would_be)
    return None
