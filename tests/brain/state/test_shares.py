"""Shares of GPUs in the state: what a node has left, what tenants are charged, and which placements are taken."""

import random

import pytest
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import DEFAULT_TENANT, GpuUuid, JobId, NodeName, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Amount, Limits, Pools, Quota
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.admit.plan import admit_place
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import PutTenant, Submit
from stoker.brain.state.invariants import no_gpu_memory_overdrawn, no_gpu_twice
from tests.brain.state.story import ANNA, Story, settle_all, spec

N1 = NodeName("n1")


def sharing(of: int, *, memory_mb: int = 0, tasks: int = 1, **fields: object) -> JobSpec:
    demand = Demand(gpu_count=1, gpu_share=of, gpu_memory_mb=memory_mb, tasks=tasks)
    return replace(spec(**fields), demand=demand)  # type: ignore[arg-type]  # a test passes fields by name


def running(story: Story, *specs: JobSpec) -> list[JobId]:
    jobs = [story.submit(each) for each in specs]
    story.decide()
    for job in jobs:
        story.started(job)
    return jobs


def test_a_gpu_is_whole_again_once_its_last_sharer_is_proved_gone() -> None:
    story = Story()
    story.node("n1", gpus=2)
    first, second = running(story, sharing(400), sharing(600))
    assert story.free_gpus("n1") == 1
    assert [(rest.left, rest.sharers) for rest in story.state.indexes.free[N1].shared] == [(0, 2)]
    story.cancel(first)
    assert story.state.indexes.free[N1].shared[0].left == 0, "cancel means gone, and it isn't yet"
    story.end(first)
    assert story.state.indexes.free[N1].shared[0].left == 400
    story.end(second)
    assert (story.free_gpus("n1"), story.state.indexes.shared) == (2, [])


def test_quota_counts_shares_as_thousandths_and_gives_them_back_once() -> None:
    story = Story()
    story.node("n1", gpus=1)
    jobs = running(story, *[sharing(250, memory_mb=1_000) for _ in range(3)])
    ledger = story.state.indexes.usage_ledger
    assert ledger.used_by(DEFAULT_TENANT) == Amount(750, 3_000, 3, 0, 3)
    assert ledger.used_by_class(JobClass.BATCH).gpu_milli == 750
    assert (story.state.indexes.free_milli, story.state.indexes.milli_in_service) == (250, WHOLE_GPU)
    for job in jobs:
        story.end(job)
    assert ledger.used_by(DEFAULT_TENANT) == Amount()
    assert story.state.indexes.free_milli == WHOLE_GPU


def test_a_limit_of_one_gpu_lets_four_quarters_run_and_says_what_the_fifth_asks_for() -> None:
    story = Story()
    story.node("n1", gpus=4)
    tenant = Tenant(name=TenantName("lab"), quota=Quota(limits=Limits(gpus=1)))
    story.do(PutTenant(by=ANNA, tenant=tenant, create=True))
    jobs = [story.submit(sharing(250, tenant=TenantName("lab"))) for _ in range(5)]
    assert len(story.decide()) == 4
    limit = story.state.wall(story.job(jobs[4]).spec.shape)
    assert limit is not None
    assert (limit.facts["limit"], limit.facts["used"], limit.facts["asked"]) == (1, 1, 0.25)


def test_pools_count_the_rests_of_shared_gpus_as_in_service() -> None:
    story = Story()
    story.node("n1", gpus=4)
    running(story, sharing(500))
    pools = Pools(online=500_000, batch=500_000)
    guaranteed = pools.guaranteed_milli(story.state.indexes.milli_in_service)
    assert guaranteed == {JobClass.ONLINE: 2 * WHOLE_GPU, JobClass.BATCH: 2 * WHOLE_GPU}


def test_a_gpu_of_an_orphan_task_is_offered_to_nobody_and_its_other_sharers_run_on() -> None:
    story = Story()
    story.node("n1", gpus=1)
    first, second = running(story, sharing(200), sharing(200))
    ghost = TaskStatus(
        key=replace(story.key(second)[0], job=JobId(77)), phase=TaskPhase.RUNNING, gpus=(GpuUuid("n1-0"),)
    )
    story.compare("n1", story.status(first), story.status(second), ghost)
    assert not story.state.indexes.free[N1].shared
    waits = story.submit(sharing(100))
    assert story.decide() == []
    story.compare("n1", story.status(first), story.status(second))
    assert story.decide() == [story.job(waits).label]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu_share": 500}, "a GPU of node n1 is no longer free"),
        ({"gpu_share": WHOLE_GPU, "gpu_memory_mb": 0}, "a GPU of node n1 is no longer free"),
        ({"gpu_memory_mb": 1}, "a GPU of node n1 is no longer free"),
        ({"gpus": (GpuUuid("n1-9"),)}, "a GPU of node n1 is no longer free"),
    ],
)
def test_a_placement_that_is_not_what_was_asked_for_or_no_longer_fits_is_stale(
    changes: dict[str, object], said: str
) -> None:
    story = Story()
    story.node("n1", gpus=1)
    job = story.submit(sharing(400))
    place = proposed(story, job)
    wrong = replace(place, tasks=(replace(place.tasks[0], **changes),))
    refusal = admit_place(story.state, wrong)
    assert refusal is not None
    assert said in refusal.message
    assert admit_place(story.state, place) is None


def test_a_share_that_another_action_took_meanwhile_is_stale() -> None:
    story = Story(Policy(gpu_sharers_max=2))
    story.node("n1", gpus=1)
    jobs = [story.submit(sharing(each)) for each in (400, 700, 100, 100)]
    places = [proposed(story, job) for job in jobs]
    settle_all(story, Plan(actions=tuple(places), reasons={}))
    assert [story.job(job).state.value for job in jobs] == ["starting", "pending", "starting", "pending"]


def proposed(story: Story, job: JobId) -> Place:
    from stoker.brain.engine.decide import decide
    from stoker.brain.state.state_view import StateView

    plan = decide(StateView(story.state), story.state.policy, story.now, 0, 1_000)
    (found,) = [replace(each) for each in plan.actions if each.job == job] or [_on_the_first_gpu(story, job)]
    return found


def _on_the_first_gpu(story: Story, job: JobId) -> Place:
    first = proposed(story, JobId(1))
    demand = story.job(job).spec.demand
    bound = demand.memory_bound_mb(81_920)
    task = replace(first.tasks[0], gpu_share=demand.gpu_share, gpu_memory_mb=bound)
    return replace(first, job=job, tasks=(task,))


def test_an_invariant_notices_more_than_a_whole_gpu_or_more_memory_than_it_has() -> None:
    story = Story()
    story.node("n1", gpus=1)
    jobs = running(story, sharing(400, memory_mb=50_000), sharing(500, memory_mb=30_000))
    assert not list(no_gpu_twice(story.state))
    attempt = story.job(jobs[0]).attempts[0]
    more = replace(attempt.tasks[0].placement, gpu_share=501, gpu_memory_mb=60_000)
    broken = replace(
        story.job(jobs[0]), attempts=(replace(attempt, tasks=(replace(attempt.tasks[0], placement=more),)),)
    )
    story.state.jobs[jobs[0]] = broken
    story.state.indexes.held[N1][jobs[0], 1, 0] = more
    assert "is held by" in next(no_gpu_twice(story.state))
    assert "has 81920 MiB, and its sharers 90000" in next(no_gpu_memory_overdrawn(story.state))


def test_a_snapshot_keeps_shares_and_a_placement_of_before_there_were_any_is_of_whole_gpus() -> None:
    story = Story()
    story.node("n1", gpus=2)
    running(story, sharing(333), spec(1))
    loaded = load_snapshot(snapshot_chunks(story.state))
    assert loaded.indexes.free == story.state.indexes.free
    assert loaded.indexes.shared == story.state.indexes.shared


@pytest.mark.parametrize("share", [0, -1, 1_001])
def test_a_share_that_is_none_is_refused_with_what_one_is(share: int) -> None:
    story = Story()
    refusal = story.refused(Submit(by=ANNA, specs=(sharing(share),)))
    assert (refusal.code, refusal.facts["field"]) == ("bad_gpu_share", "gpu_share")


def test_a_share_of_several_gpus_or_of_none_is_refused() -> None:
    story = Story()
    for count in (0, 2):
        demand = Demand(gpu_count=count, gpu_share=500)
        refusal = story.refused(Submit(by=ANNA, specs=(replace(spec(), demand=demand),)))
        assert refusal.code == "share_of_one_gpu"


def test_the_state_holds_through_any_history_of_shares_and_whole_gpus() -> None:
    """Every index is compared with one made from nothing after each event."""
    for seed in range(12):
        chance, story = random.Random(seed), Story(Policy(gpu_sharers_max=3))
        for name in ("n1", "n2"):
            story.node(name, gpus=chance.randint(1, 3))
        live: list[JobId] = []
        for _ in range(12):
            share = chance.choice([WHOLE_GPU, 100, 250, 500, 750])
            story.submit(sharing(share, memory_mb=chance.choice([0, 10_000]), tasks=chance.choice([1, 1, 2])))
            placed = set(story.decide())
            live += [job for job, record in story.state.jobs.items() if record.label in placed]
            if live and chance.random() < 0.5:
                job = live.pop(chance.randrange(len(live)))
                for rank in range(len(story.job(job).attempts[-1].tasks)):
                    if story.job(job).live_attempt is not None:
                        story.started(job, rank)
                for rank in range(len(story.job(job).attempts[-1].tasks)):
                    story.end(job, rank)
