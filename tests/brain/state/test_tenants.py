"""The tree of tenants: what may be made, changed and deleted."""

import pytest
from msgspec.structs import replace

from stoker.brain.cycle import propose
from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WEIGHT_MAX, Limits, Quota
from stoker.brain.domain.tenant import THE_DEFAULT, Tenant, Tier, is_within, path_of, priority_cap, priority_default
from stoker.brain.state.admit.plan import admit_place
from stoker.brain.state.admit.tenant import LIMIT_MAX, NODES_MAX
from stoker.brain.state.commands import CreateToken, DeleteTenant, PutTenant, Requeue, RevokeToken, Submit
from stoker.brain.state.events.tenant import TenantDefined, TenantDeleted
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, spec


def name(text: str) -> TenantName:
    return TenantName(text)


def tenant(text: str, guaranteed: int = 0, *, parent: str = "", **fields: object) -> Tenant:
    quota = Quota(guaranteed=guaranteed, limits=Limits(gpus=fields.pop("limit", None)))  # type: ignore[arg-type]  # by name
    return Tenant(name=name(text), parent=name(parent), quota=quota, **fields)  # type: ignore[arg-type]  # by name


def made(story: Story, *tenants: Tenant) -> Story:
    for each in tenants:
        assert story.do(PutTenant(by=ANNA, tenant=each, create=True)) == (TenantDefined(tenant=each),)
    return story


def put(story: Story, changed: Tenant, *, create: bool = False) -> str:
    """ "" when it was taken, else the code of the refusal."""
    answer = story.ask(PutTenant(by=ANNA, tenant=changed, create=create))
    return answer.code if isinstance(answer, Refusal) else ""


def delete(story: Story, text: str) -> Refusal | None:
    answer = story.ask(DeleteTenant(by=ANNA, name=name(text)))
    if isinstance(answer, Refusal):
        return answer
    assert answer == (TenantDeleted(name=name(text)),)
    return None


# -- T8 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [("",), ("gpu a",), ("gpu/1",), ("gpu-[ab]",), ("x" * 64,), ("n",) * (NODES_MAX + 1)])
def test_t8_what_names_no_nodes_or_too_many_is_refused(bad: tuple[str, ...]) -> None:
    assert put(Story(), tenant("ml", nodes=bad), create=True) == "bad_field"
    assert put(Story(), tenant("ml", nodes=("gpu-a*", "n?", "N.1_b")), create=True) == ""


def test_t8_a_job_that_fits_on_no_node_of_its_tenants_list_is_refused_and_names_it() -> None:
    story = made(Story(), tenant("ml", nodes=("big*",)), tenant("vision", parent="ml"), tenant("odd", nodes=("z*",)))
    story.node("n1", 8)
    story.node("big1", 2)
    assert story.submit(spec(2, tenant=name("vision"))) == 1
    for who, gpus, said in (("ml", 4, "no node that it selects could"), ("odd", 1, "tenant odd may use (z*)")):
        answer = story.ask(Submit(by=ANNA, specs=(spec(gpus, tenant=name(who)),)))
        assert isinstance(answer, Refusal)
        assert answer.code == "demand_unsatisfiable"
        assert said in answer.message


def test_t8_a_change_of_the_list_ends_nothing_that_runs_and_starts_nothing_elsewhere() -> None:
    story = made(Story(), tenant("ml", nodes=("n1",)))
    story.node("n1", 1)
    story.node("n2", 1)
    runs, waits = story.submit(spec(1, tenant=name("ml"))), story.submit(spec(1, tenant=name("ml")))
    story.decide()
    assert [task.placement.node for task in story.job(runs).attempts[-1].tasks] == ["n1"]
    assert story.job(waits).state is JobState.PENDING
    assert put(story, tenant("ml", nodes=("n2",))) == ""
    (stale,) = propose(StateView(story.state), story.state.policy, story.now, 1, 10).actions
    assert put(story, tenant("ml", nodes=("n3",))) == ""
    assert story.job(runs).state is JobState.STARTING
    assert story.decide() == []
    refusal = admit_place(story.state, stale)
    assert refusal is not None
    assert "no longer one that job 2 may run on" in refusal.message
    assert put(story, tenant("ml")) == ""
    assert story.decide() == [str(waits)]
    assert [task.placement.node for task in story.job(waits).attempts[-1].tasks] == ["n2"]


# -- T1 ----------------------------------------------------------------------------------------------------------


def test_t1_the_default_tenant_is_there_on_a_fresh_cluster_has_no_limits_and_stays() -> None:
    story = Story()
    assert story.state.tenants == {DEFAULT_TENANT: THE_DEFAULT}
    assert THE_DEFAULT.quota == Quota()
    assert put(story, THE_DEFAULT, create=True) == "tenant_exists"
    refusal = delete(story, DEFAULT_TENANT)
    assert refusal is not None
    assert refusal.code == "tenant_in_use"


def test_the_default_tenant_is_limited_like_any_other() -> None:
    story = Story()
    assert put(story, replace(THE_DEFAULT, quota=Quota(limits=Limits(gpus=0)))) == ""
    assert story.state.tenants[DEFAULT_TENANT].quota.limits.gpus == 0


@pytest.mark.parametrize("bad", ["", " ", "a b", "-a", "a-", "ä", "a/b", "a" * 64, "a\n", "\0"])
def test_t1_a_name_that_would_be_no_label_is_refused_and_says_where(bad: str) -> None:
    story = Story()
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant(bad), create=True))
    assert refusal.code == "bad_tenant_name"
    assert 1 <= int(str(refusal.facts["column"])) <= 64


@pytest.mark.parametrize("good", ["a", "ml-team", "A.b_c-9", "a" * 63, "7"])
def test_t1_a_name_that_may_be_a_label_is_taken(good: str) -> None:
    made(Story(), tenant(good))


def test_to_make_one_that_is_there_or_to_change_one_that_is_not_is_refused() -> None:
    story = made(Story(), tenant("a"))
    assert put(story, tenant("a", 1), create=True) == "tenant_exists"
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant("aa"), create=False))
    assert refusal.code == "unknown_tenant"
    assert "a" in refusal.hint
    assert story.refused(DeleteTenant(by=ANNA, name=name("b"))).code == "unknown_tenant"


def test_to_put_a_tenant_as_it_is_changes_nothing() -> None:
    story = made(Story(), tenant("a", 2))
    assert story.do(PutTenant(by=ANNA, tenant=tenant("a", 2), create=False)) == ()


def test_a_parent_that_is_not_there_is_refused_by_name() -> None:
    refusal = Story().refused(PutTenant(by=ANNA, tenant=tenant("a", parent="nobody"), create=True))
    assert (refusal.code, refusal.facts["tenant"]) == ("unknown_tenant", "nobody")


def test_no_tenant_is_its_own_parent() -> None:
    assert put(Story(), tenant("a", parent="a"), create=True) == "unknown_tenant"


# -- T2 ----------------------------------------------------------------------------------------------------------


def test_t2_guarantees_beneath_a_tenant_add_up_to_its_own_at_most() -> None:
    story = made(Story(), tenant("lab", 10), tenant("a", 6, parent="lab"))
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant("b", 5, parent="lab"), create=True))
    assert (refusal.code, refusal.facts) == (
        "guarantees_exceed_parent",
        {"tenant": "lab", "guaranteed": 10, "beneath": 11},
    )
    made(story, tenant("b", 4, parent="lab"))
    assert put(story, tenant("a", 7, parent="lab")) == "guarantees_exceed_parent"
    assert put(story, tenant("a", 5, parent="lab")) == ""
    assert put(story, tenant("b", 5, parent="lab")) == ""


def test_t2_a_guarantee_cannot_sink_below_those_beneath_it() -> None:
    story = made(Story(), tenant("lab", 10), tenant("a", 6, parent="lab"), tenant("b", 3, parent="lab"))
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant("lab", 8), create=False))
    assert (refusal.code, refusal.facts["beneath"]) == ("guarantees_exceed_parent", 9)
    assert refusal.hint == "leave it 9 at least, or lower those beneath lab first", "to raise it is no way to lower it"
    assert put(story, tenant("lab", 9)) == ""


def test_t2_at_every_level_of_the_tree() -> None:
    story = made(Story(), tenant("lab", 10), tenant("a", 6, parent="lab"), tenant("a1", 6, parent="a"))
    assert put(story, tenant("a1", 7, parent="a")) == "guarantees_exceed_parent"
    assert put(story, tenant("a", 5, parent="lab")) == "guarantees_exceed_parent"


def test_t2_beneath_a_tenant_without_a_guarantee_nobody_has_one() -> None:
    story = made(Story(), tenant("lab"))
    assert put(story, tenant("a", 1, parent="lab"), create=True) == "guarantees_exceed_parent"
    made(story, tenant("a", parent="lab"))


def test_t2_nothing_is_above_the_top_so_more_may_be_promised_than_there_is_now() -> None:
    """Nodes come and go; a guarantee says who goes first, not what there is."""
    story = Story()
    story.node("n1", 4)
    made(story, tenant("a", 100), tenant("b", 100))


# -- T3 ----------------------------------------------------------------------------------------------------------


def test_t3_a_guarantee_above_the_limit_of_the_same_tenant_is_refused_both_ways() -> None:
    story = Story()
    assert put(story, tenant("a", 5, limit=4), create=True) == "guarantee_above_limit"
    made(story, tenant("a", 4, limit=4))
    assert put(story, tenant("a", 4, limit=3)) == "guarantee_above_limit"
    assert put(story, tenant("a", 5, limit=4)) == "guarantee_above_limit"


# -- T4 ----------------------------------------------------------------------------------------------------------


def test_t4_a_tenant_stays_where_it_is_in_the_tree() -> None:
    story = made(Story(), tenant("a"), tenant("b"), tenant("c", parent="a"))
    for moved in (tenant("c", parent="b"), tenant("c"), tenant("b", parent="a")):
        assert put(story, moved) == "tenant_place"
    assert put(story, tenant("c", parent="a", comment="new")) == ""


# -- T5 ----------------------------------------------------------------------------------------------------------


def test_t5_a_tenant_with_a_job_that_has_not_ended_stays_and_the_refusal_names_the_job() -> None:
    story = made(Story(), tenant("a"))
    story.node("n1")
    job = story.submit(spec(1, tenant=name("a")))
    for _ in ("it waits", "it runs"):
        refusal = delete(story, "a")
        assert refusal is not None
        assert refusal.code == "tenant_in_use"
        assert f"job {job}" in refusal.message
        if story.job(job).live_attempt is None:
            story.run(job, ("n1", 0))
    story.cancel(job)
    assert delete(story, "a") is not None, "what is stopping holds its GPUs"
    story.end(job, exit_code=1)
    assert delete(story, "a") is None


def test_t5_a_tenant_with_another_beneath_it_stays() -> None:
    story = made(Story(), tenant("a"), tenant("b", parent="a"))
    refusal = delete(story, "a")
    assert refusal is not None
    assert "b" in refusal.message
    assert delete(story, "b") is None
    assert delete(story, "a") is None


def test_t5_a_tenant_that_a_token_names_stays_until_that_is_revoked() -> None:
    story = made(Story(), tenant("a"))
    token = Token(id=TokenId("t1"), digest="d", role=Role.USER, tenant=name("a"))
    story.do(CreateToken(by=ANNA, token=token))
    refusal = delete(story, "a")
    assert refusal is not None
    assert "t1" in refusal.message
    story.do(RevokeToken(by=ANNA, id=token.id))
    assert delete(story, "a") is None


def test_a_tenant_that_was_deleted_may_be_made_anew_elsewhere() -> None:
    story = made(Story(), tenant("a", 3), tenant("b"))
    assert delete(story, "a") is None
    made(story, tenant("a", parent="b"))
    assert [each.name for each in path_of(story.state.tenants, name("a"))] == ["a", "b"]


def test_what_a_tenant_that_was_made_anew_elsewhere_has_counts_there() -> None:
    story = made(Story(), tenant("a", parent="default"), tenant("b"))
    story.node("n1")
    ledger = story.state.indexes.usage_ledger
    first = story.submit(spec(tenant=name("a")))
    assert (ledger.pending_of(name("default")), ledger.pending_of(name("b"))) == (1, 0)
    story.cancel(first)
    assert delete(story, "a") is None
    made(story, tenant("a", parent="b"))
    again = story.submit(spec(tenant=name("a")))
    assert (ledger.pending_of(name("default")), ledger.pending_of(name("b"))) == (0, 1)
    story.place(again, ("n1", 0))
    assert ledger.used_by(name("b")).jobs == ledger.used_by(name("a")).jobs == 1
    assert ledger.used_by(name("default")).jobs == 0


def test_a_job_that_ended_in_a_tenant_that_is_gone_cannot_be_run_once_more() -> None:
    story = made(Story(), tenant("a"))
    single, array = story.submit(spec(tenant=name("a"))), story.submit(spec(tenant=name("a"), array=parse_array("0-2")))
    story.cancel(single)
    story.cancel(array)
    story.all_due()
    assert delete(story, "a") is None
    for label in (f"{single}", f"{array}_1"):
        refusal = story.refused(Requeue(by=ANNA, target=parse_job_ref(label)))
        assert (refusal.code, refusal.facts["tenant"]) == ("unknown_tenant", "a")
    made(story, tenant("a"))
    story.tell(Requeue, f"{single}")
    assert story.state.indexes.usage_ledger.pending_of(name("a")) == 1


# -- T7 and bounds -----------------------------------------------------------------------------------------------


def test_t7_a_limit_below_what_is_in_use_is_taken_and_what_runs_goes_on() -> None:
    story = made(Story(), tenant("a", limit=4))
    story.node("n1", 4)
    job = story.submit(spec(4, tenant=name("a")))
    story.run(job, ("n1", 0))
    assert put(story, tenant("a", limit=1)) == ""
    assert story.job(job).live_attempt is not None
    assert story.state.indexes.usage_ledger.used_by(name("a")).gpu_milli == 4_000


LIMITS = (
    ("gpus", "max_gpus"),
    ("gpu_memory_mb", "max_gpu_memory_mb"),
    ("cpus", "max_cpu_cores"),
    ("memory_mb", "max_memory_mb"),
    ("jobs", "max_concurrent_jobs"),
    ("pending", "max_pending_jobs"),
    ("time_ms", "max_runtime_ms"),
)


@pytest.mark.parametrize(("field", "named"), LIMITS)
@pytest.mark.parametrize("value", [-1, LIMIT_MAX + 1])
def test_a_limit_that_is_no_possible_number_is_refused_by_name(field: str, named: str, value: int) -> None:
    changed = Tenant(name=name("a"), quota=Quota(limits=Limits(**{field: value})))
    refusal = Story().refused(PutTenant(by=ANNA, tenant=changed, create=True))
    assert refusal.code == "out_of_range"
    assert (refusal.facts["field"], refusal.facts["value"]) == (named, value)


def test_each_limit_there_is_was_tried_above() -> None:
    assert tuple(field for field, _ in LIMITS) == Limits.__struct_fields__


def test_a_guarantee_that_is_no_possible_number_is_refused() -> None:
    for value in (-1, LIMIT_MAX + 1):
        assert put(Story(), tenant("a", value), create=True) == "out_of_range"


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1])
def test_t9_a_weight_of_zero_or_beyond_the_largest_is_refused_and_the_hint_says_what_to_do(weight: int) -> None:
    bad = Tenant(name=name("a"), quota=Quota(weight=weight))
    refusal = Story().refused(PutTenant(by=ANNA, tenant=bad, create=True))
    assert (refusal.code, refusal.facts["field"], refusal.facts["value"]) == ("out_of_range", "weight", weight)
    assert "--max-gpus 0" in refusal.hint


@pytest.mark.parametrize("weight", [1, WEIGHT_MAX])
def test_t9_the_least_and_the_largest_weight_are_taken(weight: int) -> None:
    made(Story(), Tenant(name=name("a"), quota=Quota(weight=weight)))


def test_the_tree_is_as_deep_as_the_policy_says_and_no_deeper() -> None:
    story = made(Story(Policy(tenant_depth_max=3)), tenant("a"), tenant("b", parent="a"), tenant("c", parent="b"))
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant("d", parent="c"), create=True))
    assert (refusal.code, refusal.facts) == ("tree_too_deep", {"depth_max": 3})


def test_there_are_as_many_tenants_as_the_policy_says_and_one_that_goes_makes_room() -> None:
    story = made(Story(Policy(tenants_max=3)), tenant("a"), tenant("b"))
    assert put(story, tenant("c"), create=True) == "too_many_tenants"
    assert put(story, tenant("a", 1)) == ""
    assert delete(story, "b") is None
    made(story, tenant("c"))


@pytest.mark.parametrize("field", ["email", "organization", "comment"])
def test_a_text_is_as_long_as_the_policy_says_and_no_longer(field: str) -> None:
    story = Story(Policy(text_bytes_max=10))
    made(story, tenant("a", **{field: "x" * 10}))
    refusal = story.refused(PutTenant(by=ANNA, tenant=tenant("a", **{field: "ä" * 6}), create=False))
    assert (refusal.code, refusal.facts["field"], refusal.facts["bytes"]) == ("text_too_long", field, 12)


# -- the tree ----------------------------------------------------------------------------------------------------


def test_a_tenant_is_within_itself_and_all_above_it() -> None:
    story = made(Story(), tenant("a"), tenant("b", parent="a"), tenant("c", parent="b"), tenant("x"))
    tenants = story.state.tenants
    assert [above for above in tenants if is_within(tenants, name("c"), above)] == ["a", "b", "c"]
    assert [above for above in tenants if is_within(tenants, name("a"), above)] == ["a"]
    assert not any(is_within(tenants, name("gone"), above) for above in (*tenants, name("gone")))


def test_default_and_cap_of_the_priority_are_those_of_the_lowest_tier_on_the_path() -> None:
    story = made(
        Story(),
        tenant("plain"),
        tenant("low", tier=Tier.LOW),
        tenant("high", parent="low", tier=Tier.HIGH),
        tenant("under", parent="high"),
    )
    tenants = story.state.tenants
    assert [priority_default(tenants, name(each)) for each in ("plain", "low", "high", "under")] == [500, 100, 100, 100]
    assert [priority_cap(tenants, name(each)) for each in ("plain", "low", "high", "under")] == [None, 100, 100, 100]


def test_each_tier_has_the_priority_of_its_word() -> None:
    assert {tier.value: tier.priority for tier in Tier} == {"low": 100, "medium": 500, "high": 1000, "critical": 2000}
