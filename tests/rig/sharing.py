"""What those who share a cluster ask for: tenants with their quotas, the shares of the class pools, tokens."""

from typing import Final, TypedDict

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import DEFAULT_TENANT, Principal, TenantName
from stoker.brain.domain.quota import WHOLE, Limits, Pools, Quota
from stoker.brain.domain.tenant import NO_TENANT, Tenant
from stoker.brain.state.commands import Command, CreateToken, DeleteTenant, PutTenant, RevokeToken, SetPools
from tests.rig.cast import Cast

ADMIN: Final = Principal("user:root")
LAB: Final = TenantName("lab")
PARENTS: Final = {LAB: NO_TENANT, TenantName("team"): LAB, TenantName("solo"): NO_TENANT, DEFAULT_TENANT: NO_TENANT}


class Ownership(TypedDict):
    """The fields of a spec that say whose job it is and how much it matters."""

    tenant: TenantName
    job_class: JobClass


def any_ownership(cluster: Cast) -> Ownership:
    """A tenant that may be there."""
    dice = cluster.dice
    tenant = dice.choice(list(PARENTS))
    there = _tenants(cluster)
    return {
        "tenant": tenant if tenant in there or dice.random() < 0.1 else DEFAULT_TENANT,
        "job_class": dice.choice([JobClass.BATCH, JobClass.BATCH, JobClass.ONLINE]),
    }


async def found(cluster: Cast) -> None:
    """Most of the tenants that there may be, and a token."""
    for name in PARENTS:
        if cluster.dice.random() < 0.7:
            await put_tenant(cluster, any_tenant(cluster, name))
    await create_token(cluster)


async def share(cluster: Cast) -> None:
    """One request of somebody who says who gets how much."""
    roll = cluster.dice.random()
    if roll < 0.55:
        await put_tenant(cluster, any_tenant(cluster, cluster.dice.choice(list(PARENTS))))
    elif roll < 0.62:
        await delete_tenant(cluster, cluster.dice.choice([name for name in PARENTS if name != DEFAULT_TENANT]))
    elif roll < 0.8:
        await _ask(cluster, SetPools(by=ADMIN, pools=any_pools(cluster), force=cluster.dice.random() < 0.5))
    elif roll < 0.9:
        await create_token(cluster)
    else:
        await revoke_token(cluster)


def any_tenant(cluster: Cast, name: TenantName) -> Tenant:
    dice = cluster.dice
    limits = Limits(
        gpus=dice.choice([None, None, None, 0, 2, 4, 6]),
        jobs=dice.choice([None, None, None, None, 2, 4]),
        cpus=dice.choice([None, None, None, None, 5]),
        pending=dice.choice([None, None, None, 6]),
    )
    quota = Quota(
        guaranteed=dice.choice([0, 0, 2, 4, 8]),
        limits=limits if dice.random() < 0.6 else Limits(),
        borrow=dice.random() < 0.9,
        lend=dice.random() < 0.85,
    )
    nodes = dice.choice([(), (), (), (), ("*1", "*2"), ("n?",), ("*0", "*1")])
    return Tenant(name=name, parent=PARENTS[name], quota=quota, nodes=nodes)


def any_pools(cluster: Cast) -> Pools:
    online = cluster.dice.choice([0, 300_000, 500_000, 700_000, WHOLE])
    return Pools(online=online, batch=WHOLE - online, strict=cluster.dice.random() < 0.6)


async def put_tenant(cluster: Cast, tenant: Tenant) -> None:
    create = tenant.name not in _tenants(cluster)
    if await _ask(cluster, PutTenant(by=ADMIN, tenant=tenant, create=create)):
        cluster.oracle.sharing.tenants[tenant.name] = None


async def delete_tenant(cluster: Cast, name: TenantName) -> None:
    # Before the order, since its answer may get lost.
    cluster.oracle.sharing.unwanted[name] = None
    await _ask(cluster, DeleteTenant(by=ADMIN, name=name))


async def create_token(cluster: Cast) -> None:
    uid = cluster.entropy.uid()
    role = cluster.dice.choice([Role.VIEWER, Role.USER, Role.ADMIN])
    tenant = cluster.dice.choice(list(PARENTS)) if role is Role.USER else NO_TENANT
    token = Token(id=TokenId(uid), digest=f"digest-{uid}", role=role, tenant=tenant)
    if await _ask(cluster, CreateToken(by=ADMIN, token=token)):
        cluster.oracle.sharing.tokens[token.id] = token.digest


async def revoke_token(cluster: Cast) -> None:
    tokens = cluster.oracle.sharing.tokens
    if tokens:
        token = cluster.dice.choice(list(tokens))
        digest = tokens.pop(token)
        if await _ask(cluster, RevokeToken(by=ADMIN, id=token)):
            cluster.oracle.sharing.revoked[token] = digest


async def lift_limits(cluster: Cast) -> None:
    """Nothing waits for a limit any more."""
    await _ask(cluster, SetPools(by=ADMIN, pools=Pools(), force=True))
    for tenant in list(_tenants(cluster).values()):
        open_ = Tenant(name=tenant.name, parent=tenant.parent, quota=Quota(guaranteed=tenant.quota.guaranteed))
        await _ask(cluster, PutTenant(by=ADMIN, tenant=open_, create=False))


def _tenants(cluster: Cast) -> dict[TenantName, Tenant]:
    ledger = cluster.ledger()
    return ledger.tenants if ledger else {}


async def _ask(cluster: Cast, command: Command) -> bool:
    """Was it acknowledged?"""
    return await cluster.answer(command) is not None
