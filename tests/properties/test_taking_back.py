"""What holds for preemption and reclaim on every cluster and in every queue that chance can draw.

That victims may be ones, and are needed, is in `tests/brain/engine/test_preemption.py`.
"""

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Place, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.state.commands import PutTenant
from tests.brain.engine.test_preemption import any_cluster, turn
from tests.brain.state.story import ANNA, Story, spec
from tests.builders import Cluster, tenant

PLAIN = Policy(aging_per_hour=0, fair_share_points=0)
"""Base priority alone orders the queue."""
NAMES = ("lab", "vision", "crowd")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_job_waits_for_the_sake_of_one_of_lower_priority_of_the_same_standing(seed: int) -> None:
    """No priority inversion: without those below it, it wouldn't start either. Nobody is guaranteed anything here."""
    here = any_cluster(Random(seed)).plus(*map(tenant, NAMES))
    started = _started(here)
    for job in here.waiting():
        below = [each.id for each in here.waiting() if each.spec.priority < job.spec.priority]
        if job.id not in started and below:
            assert job.id not in _started(here.without(*below)), f"{job.id} waits for one of {below}, seed {seed}"


def _started(here: Cluster) -> set[JobId]:
    return {action.job for action in here.plan(policy=PLAIN).actions if isinstance(action, Place)}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
@example(12_481)  # what is promised to one keeps another of his tenant at its limit
@example(605_747)
def test_once_all_of_a_plan_is_done_no_limit_is_exceeded_and_nobody_who_lost_has_less_than_his_guarantee(
    seed: int,
) -> None:
    dice = Random(seed)
    here = any_cluster(dice)
    limits = {name: dice.choice((4, 6, 100)) for name in NAMES}
    guarantees = {name: here.tenants[TenantName(name)].quota.guaranteed for name in NAMES}
    here = here.plus(
        *(tenant(name, guaranteed=min(guarantees[name], limits[name]), gpus=limits[name]) for name in NAMES)
    )
    before = {name: here.usage_ledger.used_by(TenantName(name)).gpu_milli for name in NAMES}
    plan = here.plan()
    told = [each for each in plan.actions if isinstance(each, Preempt)]
    lost, own = dict[str, None](), dict.fromkeys(NAMES, 0)
    """Who lost something to others, and what each gave up for its own jobs, in thousandths of GPUs."""
    for each in told:
        for going in [here.jobs[victim.job].spec for victim in each.victims]:
            if going.tenant == here.jobs[each.job].spec.tenant:
                own[going.tenant] += going.demand.total_milli
            else:
                lost[going.tenant] = None
    gone = here.after(plan).without(*(victim.job for each in told for victim in each.victims))
    claimed = gone.plan(policy=Policy(preemptions_max=0))
    started = {each.job for each in claimed.actions}
    assert {each.job for each in told} <= started, f"others gave way to a job that doesn't start, seed {seed}"
    done = gone.after(replace(claimed, actions=tuple(each for each in claimed.actions if each.job in gone.claims)))
    for name in NAMES:
        used = done.usage_ledger.used_by(TenantName(name)).gpu_milli
        assert used <= max(before[name], limits[name] * WHOLE_GPU), f"{name} exceeds its limit, seed {seed}"
        promised = min(guarantees[name], limits[name]) * WHOLE_GPU
        assert name not in lost or used + own[name] >= min(before[name], promised), (
            f"{name} lost what is its own, seed {seed}"
        )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_among_tenants_that_lend_and_sharers_each_gives_way_so_often_at_most_and_all_end(seed: int) -> None:
    dice, story = Random(seed), Story(Policy(preemptions_max=2))
    for name in ("a", "b"):
        story.node(name, 4)
    for name in NAMES:
        story.do(PutTenant(by=ANNA, tenant=tenant(name, guaranteed=dice.choice((0, 2, 4))), create=True))
    for _ in range(50):
        if dice.random() < 0.6:
            story.submit(_any_spec(dice))
        turn(story, dice)
    for _ in range(400):
        if all(each.is_final for each in story.state.jobs.values()):
            break
        turn(story, dice)
    jobs = story.state.jobs.values()
    assert all(each.state is JobState.SUCCEEDED for each in jobs)
    assert all(each.preemptions <= 2 for each in jobs)


def _any_spec(dice: Random) -> JobSpec:
    gpus, tasks = dice.choice(((1, 1), (1, 2), (2, 1), (4, 1), (2, 2)))
    share = dice.choice((WHOLE_GPU, WHOLE_GPU, 300, 600)) if gpus == 1 else WHOLE_GPU
    made = spec(
        priority=dice.choice((100, 500, 1_000)),
        preemptible=dice.random() < 0.7,
        tenant=TenantName(dice.choice(NAMES)),
        time_limit_ms=dice.choice((1, 24)) * HOUR_MS,
    )
    return replace(made, demand=Demand(gpu_count=gpus, tasks=tasks, gpu_share=share))
