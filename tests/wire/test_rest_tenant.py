"""What a body may say of a tenant, and how one is shown."""

import json

import pytest
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NO_LIMITS, Amount, Limits, Quota
from stoker.brain.domain.tenant import Tenant, Tier
from stoker.brain.domain.units import DAY_MS, MINUTE_MS
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.tenant import NewTenantBody, TenantBody, changed, in_tree_order, tenant_of, tenant_view

FULL = Tenant(
    name=TenantName("ml"),
    parent=TenantName("org"),
    quota=Quota(
        guaranteed=2,
        limits=Limits(gpus=3, gpu_memory_mb=4, cpus=5, memory_mb=6, jobs=7, pending=8, time_ms=9 * MINUTE_MS),
        borrow=False,
        lend=False,
        weight=3,
    ),
    tier=Tier.HIGH,
    email="e",
    organization="o",
    comment="c",
    nodes=("gpu-a*", "gpu-b1"),
)
SAID = {
    "name": "ml",
    "parent": "org",
    "guaranteed_gpus": 2,
    "max_gpus": 3,
    "max_gpu_memory_mb": 4,
    "max_cpu_cores": 5,
    "max_memory_mb": 6,
    "max_concurrent_jobs": 7,
    "max_pending_jobs": 8,
    "max_runtime_minutes": 9,
    "borrow": False,
    "lend": False,
    "weight": 3,
    "priority_tier": "high",
    "email": "e",
    "organization": "o",
    "comment": "c",
    "nodes": ["gpu-b1", "gpu-a*", "gpu-b1"],
}


def made(**fields: object) -> Tenant:
    return tenant_of(decode_body(NewTenantBody, json.dumps({"name": "ml", **fields}).encode()))


def after(old: Tenant, **fields: object) -> Tenant:
    return changed(old, decode_body(TenantBody, json.dumps(fields).encode()))


def test_every_field_means_what_it_says() -> None:
    assert made(**SAID) == FULL


def test_n1_nothing_said_is_no_limit_and_null_says_nothing() -> None:
    nothing = Tenant(name=TenantName("ml"))
    assert nothing.quota.limits == NO_LIMITS
    assert made() == made(**dict.fromkeys(set(SAID) - {"name"})) == nothing


@pytest.mark.parametrize("field", sorted(set(SAID) - {"name", "parent"}))
def test_n2_a_change_of_one_field_leaves_every_other_and_null_takes_it_off(field: str) -> None:
    bare = Tenant(name=FULL.name, parent=FULL.parent)
    assert after(FULL, **{field: SAID[field]}) == FULL
    off = after(FULL, **{field: None})
    assert off != FULL
    assert after(off, **{field: SAID[field]}) == FULL
    assert after(bare, **{field: None}) == bare


def test_n2_an_empty_change_changes_nothing() -> None:
    assert after(FULL) == FULL


@pytest.mark.parametrize(("text", "ms"), [("2d", 2 * DAY_MS), (30, 30 * MINUTE_MS), ("90s", 90_000), (None, None)])
def test_the_longest_time_is_read_in_every_form_of_a_submit(text: object, ms: int | None) -> None:
    assert made(max_time=text).quota.limits.time_ms == ms


@pytest.mark.parametrize("word", ["HIGH", "High", "high"])
def test_a_tier_is_a_word_in_whatever_case(word: str) -> None:
    assert made(priority_tier=word).tier is Tier.HIGH


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"priority_tier": "urgent"}, "low, medium, high, critical"),
        ({"max_runtime_minutes": 0}, "null for no limit"),
        ({"max_time": -3}, "null for no limit"),
    ],
)
def test_what_can_not_be_read_is_refused_with_what_is_wanted(fields: dict[str, object], said: str) -> None:
    with pytest.raises(StokerError) as fault:
        made(**fields)
    assert fault.value.refusal.code == "bad_field"
    assert said in fault.value.refusal.message


def test_the_limit_that_holds_is_the_lowest_on_the_way_up_and_the_guarantee_where_it_may_not_borrow() -> None:
    def limit(gpus: int | None, *, guaranteed: int = 0, borrow: bool = True, above: int | None = None) -> int | None:
        top = Tenant(name=TenantName("org"), quota=Quota(limits=Limits(gpus=above)))
        quota = Quota(guaranteed=guaranteed, limits=Limits(gpus=gpus), borrow=borrow)
        own = Tenant(name=TenantName("ml"), parent=top.name, quota=quota)
        return tenant_view({top.name: top, own.name: own}, own, Amount(), 0).limit_gpus

    assert limit(None) is None
    assert (limit(4), limit(4, above=3), limit(None, above=3), limit(2, above=3)) == (4, 3, 3, 2)
    assert limit(4, guaranteed=1, borrow=False) == limit(None, guaranteed=1, borrow=False) == 1


def test_a_tenant_shows_what_it_uses_beyond_its_guarantee() -> None:
    top = Tenant(name=TenantName("org"))
    view = tenant_view({top.name: top, FULL.name: FULL}, FULL, Amount(5_000, 10, 6, 7, 2), 3)
    assert (view.used.gpus, view.borrowed_gpus, view.pending_jobs, view.path) == (5, 3, 3, "org/ml")
    assert tenant_view({top.name: top}, replace(FULL, quota=Quota(guaranteed=9)), Amount(5_000), 0).borrowed_gpus == 0


def test_tenants_of_any_depth_are_listed_each_before_those_beneath_it() -> None:
    names = [f"t{at}" for at in range(3_000)]
    deep = {
        TenantName(name): Tenant(name=TenantName(name), parent=TenantName(names[at - 1] if at else ""))
        for at, name in enumerate(names)
    }
    assert [tenant.name for tenant in in_tree_order(deep)] == names
