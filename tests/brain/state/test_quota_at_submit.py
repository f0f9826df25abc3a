"""Which jobs does a tenant let in, at first and once more, and with which defaults?"""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Limits, Quota
from stoker.brain.domain.tenant import NO_TENANT, UNSTATED, Tenant, Tier
from stoker.brain.domain.units import DAY_MS, HOUR_MS
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import Cancel, Hold, PutTenant, Requeue, Submit
from tests.brain.state.story import ANNA, Story, spec

LAB, TEAM = TenantName("lab"), TenantName("team")


def tenants(policy: Policy | None = None, *, lab: Tier | None = None, team: Tier | None = None) -> Story:
    """`team` beneath `lab`, and a node."""
    story = Story(policy)
    story.node("n1")
    for name, parent, tier in ((LAB, NO_TENANT, lab), (TEAM, LAB, team)):
        story.do(PutTenant(by=ANNA, tenant=Tenant(name=name, parent=parent, tier=tier), create=True))
    return story


def limited(story: Story, name: TenantName, **limits: int) -> None:
    changed = replace(story.state.tenants[name], quota=Quota(limits=Limits(**limits)))
    story.do(PutTenant(by=ANNA, tenant=changed, create=False))


def submit(story: Story, *specs: JobSpec) -> str:
    """ "" when they were taken, else the code of the refusal."""
    answer = story.ask(Submit(by=ANNA, specs=specs))
    return answer.code if isinstance(answer, Refusal) else ""


def admitted(story: Story, wanted: JobSpec) -> JobSpec:
    return story.job(story.submit(wanted)).spec


# -- V1 ----------------------------------------------------------------------------------------------------------


def test_v1_a_tenant_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    story = tenants()
    refusal = story.refused(Submit(by=ANNA, specs=(spec(tenant=TenantName("taem")),)))
    assert (refusal.code, refusal.facts["tenant"]) == ("unknown_tenant", "taem")
    assert "team" in refusal.hint


def test_v1_who_names_no_tenant_is_in_the_default_one() -> None:
    assert admitted(tenants(), spec()).tenant == DEFAULT_TENANT


def test_of_many_jobs_the_one_that_is_refused_is_named_and_none_is_taken() -> None:
    story = tenants()
    refusal = story.refused(Submit(by=ANNA, specs=(spec(), spec(tenant=TenantName("gone")))))
    assert refusal.facts["index"] == 1


# -- V2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lab", "team", "priority"),
    [
        (None, None, 500),
        (Tier.LOW, None, 100),
        (None, Tier.HIGH, 1000),
        (Tier.CRITICAL, Tier.MEDIUM, 500),
        (Tier.LOW, Tier.HIGH, 100),
    ],
)
def test_v2_a_job_that_names_no_priority_gets_what_the_tiers_above_it_allow_and_no_more(
    lab: Tier | None, team: Tier | None, priority: int
) -> None:
    assert admitted(tenants(lab=lab, team=team), spec(tenant=TEAM, priority=UNSTATED)).priority == priority


@pytest.mark.parametrize(
    ("lab", "team", "most"), [(None, Tier.HIGH, 1000), (Tier.LOW, Tier.HIGH, 100), (Tier.LOW, None, 100)]
)
def test_v2_a_priority_above_the_lowest_tier_on_the_path_is_refused_and_the_cap_itself_is_not(
    lab: Tier | None, team: Tier | None, most: int
) -> None:
    story = tenants(lab=lab, team=team)
    refusal = story.refused(Submit(by=ANNA, specs=(spec(tenant=TEAM, priority=most + 1),)))
    assert (refusal.code, refusal.facts["priority_max"]) == ("priority_above_tier", most)
    assert admitted(story, spec(tenant=TEAM, priority=most)).priority == most
    assert admitted(story, spec(tenant=TEAM, priority=-5)).priority == -5


def test_v2_without_a_tier_there_is_no_cap_but_that_of_the_policy() -> None:
    assert admitted(tenants(), spec(tenant=TEAM, priority=999_999)).priority == 999_999
    assert submit(tenants(), spec(tenant=TEAM, priority=1_000_001)) == "out_of_range"


# -- V3 ----------------------------------------------------------------------------------------------------------


def test_v3_a_time_limit_beyond_that_of_the_tenant_or_of_one_above_is_refused() -> None:
    story = tenants()
    limited(story, LAB, time_ms=2 * HOUR_MS)
    limited(story, TEAM, time_ms=3 * HOUR_MS)
    refusal = story.refused(Submit(by=ANNA, specs=(spec(tenant=TEAM, time_limit_ms=2 * HOUR_MS + 1),)))
    assert (refusal.code, refusal.facts["tenant"], refusal.facts["limit_max_ms"]) == (
        "time_limit_too_long",
        LAB,
        2 * HOUR_MS,
    )
    assert submit(story, spec(tenant=TEAM, time_limit_ms=2 * HOUR_MS)) == ""
    assert submit(story, spec(time_limit_ms=5 * HOUR_MS)) == ""


def test_v3_a_time_limit_that_nobody_named_is_cut_to_what_the_tenant_allows() -> None:
    story = tenants()
    assert admitted(story, spec(tenant=TEAM)).time_limit_ms == DAY_MS
    limited(story, LAB, time_ms=HOUR_MS)
    assert admitted(story, spec(tenant=TEAM)).time_limit_ms == HOUR_MS


# -- V4 ----------------------------------------------------------------------------------------------------------


def test_v4_where_gpu_memory_is_limited_a_job_with_gpus_says_how_much_it_needs() -> None:
    story = tenants()
    limited(story, LAB, gpu_memory_mb=100_000)
    refusal = story.refused(Submit(by=ANNA, specs=(spec(1, tenant=TEAM),)))
    assert (refusal.code, refusal.facts) == ("demand_unstated", {"tenant": LAB, "field": "gpu_memory_mb"})
    assert submit(story, spec(0, tenant=TEAM)) == ""
    assert submit(story, replace(spec(tenant=TEAM), demand=Demand(gpu_count=1, gpu_memory_mb=50_000))) == ""


def test_v4_where_memory_is_limited_every_job_says_how_much_it_needs() -> None:
    story = tenants()
    limited(story, TEAM, memory_mb=1_000)
    assert submit(story, spec(0, tenant=TEAM)) == "demand_unstated"
    assert submit(story, replace(spec(tenant=TEAM), demand=Demand(memory_mb=1_000))) == ""
    assert submit(story, spec(0, tenant=LAB)) == ""


# -- V5 ----------------------------------------------------------------------------------------------------------


def test_v5_a_gang_counts_as_a_whole_and_an_array_member_by_member() -> None:
    story = tenants()
    limited(story, TEAM, gpus=3)
    assert submit(story, spec(2, tenant=TEAM, tasks=2)) == "over_tenant_limit"
    assert submit(story, spec(1, tenant=TEAM, tasks=3)) == ""
    assert submit(story, spec(3, tenant=TEAM, array=parse_array("0-9"))) == ""


def test_v5_a_tenant_that_may_run_no_job_takes_none() -> None:
    story = tenants()
    limited(story, LAB, jobs=0)
    refusal = story.refused(Submit(by=ANNA, specs=(spec(0, tenant=TEAM),)))
    assert (refusal.code, refusal.facts) == ("over_tenant_limit", {"tenant": LAB, "asked": 1, "limit": 0})


def test_v5_who_may_not_borrow_is_let_in_up_to_the_guarantee() -> None:
    story = tenants()
    changed = Tenant(name=LAB, quota=Quota(guaranteed=2, borrow=False))
    story.do(PutTenant(by=ANNA, tenant=changed, create=False))
    assert submit(story, spec(3, tenant=TEAM)) == "over_tenant_limit"
    assert submit(story, spec(2, tenant=TEAM)) == ""


def test_v5_what_is_too_much_only_now_waits() -> None:
    story = tenants()
    limited(story, TEAM, gpus=3)
    first, second = story.submit(spec(2, tenant=TEAM)), story.submit(spec(2, tenant=TEAM))
    assert story.decide() == [f"{first}"]
    story.started(first)
    story.end(first)
    assert story.decide() == [f"{second}"]


# -- V6 ----------------------------------------------------------------------------------------------------------


def test_v6_the_bound_of_the_policy_on_one_tenant_counts_each_for_itself() -> None:
    story = tenants(Policy(tenant_pending_jobs_max=3))
    assert submit(story, *[spec(tenant=TEAM)] * 3) == ""
    assert submit(story, spec(tenant=TEAM)) == "queue_full"
    assert submit(story, spec()) == ""


def test_v6_the_bound_of_the_policy_on_all_counts_all() -> None:
    story = tenants(Policy(pending_jobs_max=2))
    assert submit(story, spec(tenant=TEAM), spec()) == ""
    refusal = story.refused(Submit(by=ANNA, specs=(spec(tenant=LAB),)))
    assert (refusal.code, refusal.facts) == ("queue_full", {"pending": 2, "pending_max": 2})


def test_v6_one_request_of_several_tenants_counts_for_those_above_them_together() -> None:
    story = tenants()
    limited(story, LAB, pending=3)
    assert submit(story, *[spec(tenant=TEAM)] * 2, *[spec(tenant=LAB)] * 2) == "queue_full"
    assert submit(story, *[spec(tenant=TEAM)] * 2, spec(tenant=LAB)) == ""


# -- V7 ----------------------------------------------------------------------------------------------------------


def ended(story: Story, *specs: JobSpec) -> list[str]:
    jobs = [story.submit(each) for each in specs]
    for job in jobs:
        story.cancel(job)
    return [str(job) for job in jobs]


def again(story: Story, target: str) -> str:
    """ "" when it waits once more, else the code of the refusal."""
    answer = story.ask(Requeue(by=ANNA, target=parse_job_ref(target)))
    return answer.code if isinstance(answer, Refusal) else ""


def test_v7_no_more_wait_once_more_than_may_wait() -> None:
    story = tenants()
    first, second, third = ended(story, *[spec(tenant=TEAM)] * 3)
    limited(story, LAB, pending=2)
    assert [again(story, each) for each in (first, second, third)] == ["", "", "queue_full"]


def test_v7_members_of_an_array_are_counted_one_by_one() -> None:
    story = tenants()
    array = story.submit(spec(tenant=TEAM, array=parse_array("0-5")))
    story.tell(Cancel, f"{array}_[0-3]")
    limited(story, TEAM, pending=4)
    assert again(story, f"{array}_[0-3]") == "queue_full", "two wait, and four more would be six"
    assert again(story, f"{array}_[0-1]") == ""
    assert again(story, f"{array}_2") == "queue_full"
    assert again(story, f"{array}_4") == "job_waits"


def test_v7_what_could_never_start_by_now_does_not_wait_once_more() -> None:
    story = tenants()
    (job,) = ended(story, spec(gpus=4, tenant=TEAM))
    limited(story, LAB, gpus=2)
    assert again(story, job) == "over_tenant_limit"
    limited(story, LAB)
    assert again(story, job) == ""


def test_v7_a_priority_above_the_tier_of_today_does_not_come_back() -> None:
    story = tenants(team=Tier.CRITICAL)
    (job,) = ended(story, spec(tenant=TEAM, priority=2000))
    story.do(PutTenant(by=ANNA, tenant=replace(story.state.tenants[TEAM], tier=Tier.LOW), create=False))
    assert again(story, job) == "priority_above_tier"


def test_v7_what_runs_may_be_told_to_wait_again_whatever_the_limits_are_by_now() -> None:
    story = tenants()
    job = story.submit(spec(gpus=4, tenant=TEAM))
    story.decide()
    story.started(job)
    limited(story, LAB, gpus=2, pending=0)
    assert again(story, str(job)) == ""


# -- V8 ----------------------------------------------------------------------------------------------------------

MIB = 1 << 20
LARGE = spec(command="echo " + "x" * 100_000, env={"A": "y" * 120_000}, hold=True)
"""220 KB."""


def large(tenant: TenantName = TEAM, **fields: object) -> JobSpec:
    return replace(LARGE, tenant=tenant, **fields)


def test_v8_the_jobs_of_a_tenant_take_no_more_memory_than_the_policy_says() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB))
    assert [submit(story, large()) for _ in range(5)] == ["", "", "", "", "job_bytes_full"]
    assert submit(story, large(DEFAULT_TENANT)) == "", "of another tenant"
    assert submit(story, spec(tenant=TEAM)) == "", "a small one still fits"
    refusal = story.refused(Submit(by=ANNA, specs=(large(),)))
    assert refusal.facts["bytes_max"] == MIB
    assert 4 * 220_000 < refusal.facts["taken_bytes"] < 4 * 225_000  # type: ignore[operator]  # a number
    assert "of tenant team that haven't ended take" in refusal.message
    assert "1024 KiB" in refusal.message
    assert "in files" in refusal.hint


def test_v8_what_ends_gives_its_memory_back_and_what_runs_once_more_takes_it_again() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB))
    jobs = [story.submit(large()) for _ in range(4)]
    assert submit(story, large()) == "job_bytes_full"
    story.cancel(jobs[0])
    assert story.state.indexes.usage_ledger.memory_of(TEAM) < 3 * 225_000
    assert submit(story, large()) == ""
    assert again(story, str(jobs[0])) == "job_bytes_full"
    story.cancel(jobs[1])
    assert again(story, str(jobs[0])) == ""
    assert submit(story, large()) == "job_bytes_full"


def test_v8_a_tenant_counts_with_those_beneath_it_and_all_tenants_together() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB, job_bytes_max=MIB + MIB // 2))
    assert submit(story, *[large(TEAM)] * 2, *[large(LAB)] * 2) == ""
    assert submit(story, large(LAB)) == "job_bytes_full"
    assert [submit(story, large(DEFAULT_TENANT)) for _ in range(4)] == ["", "", "", "job_bytes_full"]
    assert story.refused(Submit(by=ANNA, specs=(large(DEFAULT_TENANT),))).message.startswith("the jobs that haven't")


def test_v8_many_small_variables_count_with_the_memory_that_each_takes() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB))
    names = {f"{number:x}": "" for number in range(20_000)}
    assert sum(map(len, names)) < 100_000
    assert submit(story, spec(tenant=TEAM, env=names)) == "job_bytes_full", "20,000 texts of 50 bytes and more"


def test_v8_members_that_become_records_count_one_by_one() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB))
    array = story.submit(large(array=parse_array("0-9"), hold=False))
    story.tell(Hold, f"{array}_[0-2]")
    refusal = story.ask(Hold(by=ANNA, target=parse_job_ref(f"{array}_3")))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "job_bytes_full"


def test_v8_the_count_is_the_same_after_a_restart() -> None:
    story = tenants(Policy(tenant_job_bytes_max=MIB))
    first, _ = story.submit(large()), story.submit(large(LAB))
    story.cancel(first)
    loaded = load_snapshot(snapshot_chunks(story.state))
    assert loaded.indexes.usage_ledger.memory == story.state.indexes.usage_ledger.memory
    assert loaded.indexes.open_bytes == story.state.indexes.open_bytes > 220_000
    assert loaded.indexes.ended_bytes == story.state.indexes.ended_bytes > 220_000


def test_v8_of_ended_jobs_the_oldest_are_forgotten_whose_memory_is_too_much() -> None:
    story = tenants(Policy(ended_bytes_max=MIB))
    jobs = [story.submit(large()) for _ in range(8)]
    for job in jobs:
        story.cancel(job)
    story.all_due()
    assert [job for job in jobs if job in story.state.jobs] == jobs[-4:]
    assert story.state.indexes.ended_bytes < MIB
    assert story.state.indexes.next_deadline() is None
