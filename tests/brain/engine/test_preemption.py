"""Rules P1 to P5 of `engine/preemption.py`: who gives way to whom, over scenarios and random clusters."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.cycle import propose
from stoker.brain.domain.ids import JobId, Principal, TenantName
from stoker.brain.domain.job import Job, StopCause, StopRequest
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Place, Plan, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import spared_because
from stoker.brain.domain.units import Instant
from stoker.brain.domain.where import make_where
from stoker.brain.engine.preemptor import CLAIM_SLACK_MS
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import Story, settle_all, spec
from tests.builders import NOW, Cluster, Thing, cluster, job, node, running_on, tenant

POLICY = Policy()


def preempts(plan: Plan) -> list[Preempt]:
    return [each for each in plan.actions if isinstance(each, Preempt)]


def victims(plan: Plan) -> list[int]:
    return sorted(victim.job for each in preempts(plan) for victim in each.victims)


def low(id_: int, *where: tuple[str, list[int]], **fields: object) -> Job:
    tasks = {"gpus": len(where[0][1]), "tasks": len(where)}
    return running_on(job(id_, **{"priority": 100, "preemptible": True, **tasks, **fields}), *where)  # type: ignore[arg-type]  # a test passes fields by name


def ending(job: Job) -> Job:
    """`job`, which runs, told to end now since somebody cancelled it."""
    stop = StopRequest(cause=StopCause.CANCELLED, at=NOW, by=Principal("anna"))
    return replace(job, state=JobState.STOPPING, attempts=(*job.attempts[:-1], replace(job.attempts[-1], stop=stop)))


def test_victims_of_one_job_are_on_its_node_and_on_no_other() -> None:
    """MVP: victims on nodes that have nothing to do with each other, and the job started on none of them."""
    held = [low(1, ("a", [0, 1])), low(2, ("b", [0, 1])), low(3, ("a", [2, 3])), low(4, ("b", [2, 3]))]
    plan = cluster(node("a", gpus=4), node("b", gpus=4), *held, job(9, gpus=4, priority=1_000)).plan()
    (preempt,) = preempts(plan)
    assert victims(plan) in ([1, 3], [2, 4])
    assert {task.node for task in preempt.tasks} == ({"a"} if victims(plan) == [1, 3] else {"b"})


def test_a_gang_takes_what_it_needs_of_several_nodes_and_nobody_more() -> None:
    held = [low(1, ("a", [0, 1, 2, 3])), low(2, ("b", [0, 1])), low(3, ("b", [2, 3])), low(4, ("c", [0, 1, 2, 3]))]
    nodes = [node(name, gpus=4) for name in "abc"]
    plan = cluster(*nodes, *held, job(9, gpus=4, tasks=2, priority=1_000)).plan()
    assert victims(plan) == [1, 4]


def test_nobody_is_stopped_where_that_does_not_help() -> None:
    held = [low(1, ("a", [0, 1, 2, 3])), running_on(job(2, gpus=4), ("b", [0, 1, 2, 3]))]
    here = cluster(node("a", gpus=4), node("b", gpus=4), *held, job(9, gpus=4, tasks=2, priority=1_000))
    assert here.plan().actions == ()


def test_waiting_long_never_makes_a_job_preempt() -> None:
    """The base priority decides, not the aged one."""
    held = low(1, ("a", [0]), priority=500)
    assert cluster(node("a", gpus=1), held, job(9, gpus=1, priority=500, waited_h=100)).plan().actions == ()


def test_what_is_not_free_yet_is_counted_once_for_two_jobs_that_wait() -> None:
    held = [low(number, ("a", [number])) for number in range(3)]
    plan = cluster(node("a", gpus=3), *held, *(job(10 + each, gpus=1, priority=1_000) for each in range(4))).plan()
    assert victims(plan) == [0, 1, 2]
    claimed = [uuid for each in preempts(plan) for task in each.tasks for uuid in task.gpus]
    assert len(claimed) == len(set(claimed)) == 3


def test_what_was_held_for_a_guarantee_may_be_part_of_what_others_give_way_for() -> None:
    """A job that is owed four GPUs, two of which are held for it, and then one that is owed another."""
    held = [running_on(job(1, gpus=2), ("a", [2, 3])), running_on(job(2, gpus=1), ("b", [0]))]
    owed = [job(8, gpus=4, cpus=8, tenant="lab"), job(9, gpus=1, tenant="team", where=make_where("", ("a",)))]
    tenants = [tenant("lab", guaranteed=4), tenant("team", guaranteed=1)]
    here = cluster(node("a", gpus=4), node("b", gpus=1), *held, *owed, *tenants, job(10, gpus=1))
    plan = here.plan(policy=Policy(reservations_max=0))
    assert {each.job: [task.node for task in each.tasks] for each in preempts(plan)} == {8: ["a"], 9: ["b"]}


def test_a_job_starts_once_those_told_to_go_are_gone_not_when_their_time_limits_end() -> None:
    plan = cluster(node("a", gpus=2), low(1, ("a", [0, 1])), job(9, gpus=2, priority=1_000)).plan(policy=POLICY)
    assert preempts(plan)
    assert [(each.job, each.at) for each in plan.reservations] == [(9, NOW + POLICY.stop_grace_ms)]


def test_nothing_is_kept_for_a_job_on_a_node_that_has_become_too_small_for_it() -> None:
    before = cluster(node("a", gpus=2), low(1, ("a", [0, 1])), job(9, gpus=2, cpus=4, priority=1_000), job(10, gpus=1))
    gone = before.after(before.plan()).without(1)
    kept = [gone.jobs[each] for each in map(JobId, (9, 10))]
    small = Cluster([node("a", gpus=2, cpus=2)], kept, claims=gone.claims.values())
    assert [each.job for each in gone.plan().actions] == [9]
    assert [each.job for each in small.plan().actions] == [10]


def test_two_gangs_that_each_need_both_nodes_do_not_stop_each_other_halfway() -> None:
    held = [low(1, ("a", [0, 1])), low(2, ("b", [0, 1]))]
    gangs = [job(9, gpus=2, tasks=2, priority=1_000), job(10, gpus=2, tasks=2, priority=900)]
    here = cluster(node("a", gpus=2), node("b", gpus=2), *held, *gangs)
    plan = here.plan()
    assert [each.job for each in preempts(plan)] == [9]
    half = here.after(plan).without(1)
    assert not [each for each in half.plan().actions if isinstance(each, Place)], "the whole gang or nothing"
    assert [each.job for each in half.after(half.plan()).without(2).plan().actions] == [9]


def test_nobody_gives_way_for_what_comes_free_anyway() -> None:
    """One that was cancelled ends there; only once it has outstayed its grace does another have to go."""
    cancelled = ending(running_on(job(1, gpus=2), ("a", [0, 1])))
    here = cluster(node("a", gpus=2), node("b", gpus=2), cancelled, low(2, ("b", [0, 1])))
    one = here.plus(job(9, gpus=2, priority=1_000))
    assert victims(one.plan()) == []
    assert victims(one.plan(now=Instant(NOW + POLICY.stop_grace_ms + 1))) == [2]
    assert victims(one.plus(job(10, gpus=2, priority=1_000)).plan()) == [2], "it is enough for one of two"


def test_what_one_victim_gives_up_is_enough_for_a_second_job_in_later_passes_too() -> None:
    held = [low(1, ("a", [0, 1, 2, 3])), low(2, ("b", [0, 1, 2, 3]))]
    here = cluster(node("a", gpus=4), node("b", gpus=4), *held, job(8, gpus=2, priority=1_000))
    told = here.plus(job(9, gpus=2, priority=1_000)).plan()
    assert victims(told) == [1]
    later = here.plus(job(9, gpus=2, priority=1_000)).after(told)
    assert victims(later.plan()) == []
    assert victims(later.plus(job(10, gpus=2, priority=1_000)).plan()) == [2]


@pytest.mark.parametrize("limits", [{"gpus": 3}, {"cpus": 3}, {"jobs": 1}])
def test_nobody_gives_way_to_a_job_that_a_limit_will_keep_once_another_of_its_tenant_has_started(
    limits: dict[str, int],
) -> None:
    held = [low(1, ("a", [0, 1]), tenant="crowd"), low(2, ("b", [0, 1]), tenant="crowd")]
    urgent = [job(each, gpus=2, cpus=2, tenant="lab", priority=1_000) for each in (8, 9)]
    here = cluster(tenant("crowd"), tenant("lab", **limits), node("a", gpus=2), node("b", gpus=2), *held, *urgent)
    told = here.plan()
    assert [each.job for each in preempts(told)] == [8]
    assert preempts(here.after(told).plan()) == [], "nor in the next pass"


def test_with_what_is_ending_fewer_have_to_go() -> None:
    cancelled = ending(running_on(job(1, gpus=2), ("a", [0, 1])))
    held = [
        cancelled,
        low(2, ("a", [2])),
        low(3, ("a", [3])),
        low(4, ("b", [0])),
        low(5, ("b", [1])),
        low(6, ("b", [2])),
    ]
    here = cluster(node("a", gpus=4), node("b", gpus=3), *held, job(9, gpus=3, priority=1_000))
    told = here.plan()
    assert victims(told) == [2]
    assert here.after(told).without(2).without(1).plan().actions[0].job == 9


def test_a_claim_comes_before_all_else_and_lapses_when_what_it_waits_for_does_not_come_for_long() -> None:
    here = cluster(node("a", gpus=1), low(1, ("a", [0])), job(9, gpus=1, priority=1_000))
    freed = here.after(here.plan()).without(1).plus(job(10, gpus=1, priority=2_000))
    assert [each.job for each in freed.plan().actions] == [9]
    late = Instant(NOW + POLICY.preempt_notice_max_ms + POLICY.stop_grace_ms + CLAIM_SLACK_MS + 1)
    assert [each.job for each in freed.plan(now=late).actions] == [10]


def test_a_claim_on_a_node_that_the_job_may_not_run_on_any_more_is_left() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=1), low(1, ("a", [0])), low(2, ("b", [0]), preemptible=False))
    freed = here.plus(job(9, gpus=1, priority=1_000))
    freed = freed.after(freed.plan()).without(1)
    assert freed.plus(node("a", gpus=1, taints=["big:NoSchedule"])).plan().actions == ()


def test_who_gets_what_others_give_up_is_told_why_it_waits_also_after_backfill() -> None:
    held = [low(1, ("a", [0])), running_on(job(2, gpus=1), ("b", [0]))]
    waits = [job(8, gpus=2, priority=2_000), job(9, gpus=1, priority=1_000, limit_h=48)]
    plan = cluster(node("a", gpus=1), node("b", gpus=2), *held, *waits).plan()
    assert ([each.job for each in preempts(plan)], victims(plan)) == ([9], [1])
    assert all(each.spec.shape in plan.reasons for each in waits)


@pytest.mark.parametrize("off", [Policy(preemptions_max=0)])
def test_it_can_be_switched_off(off: Policy) -> None:
    assert cluster(node("a", gpus=1), low(1, ("a", [0])), job(9, gpus=1, priority=1_000)).plan(policy=off).actions == ()


def test_nobody_takes_back_from_his_own_tenant_or_within_one_class() -> None:
    for quota in (tenant("lab", guaranteed=8), tenant("lab")):
        held = [low(1, ("a", [0]), tenant="lab"), low(2, ("b", [0]), tenant="lab")]
        here = cluster(quota, node("a", gpus=2), node("b", gpus=2), *held, job(9, gpus=2, tenant="lab", priority=1))
        assert here.plan().actions == ()


def test_a_job_that_starts_elsewhere_than_others_make_place_for_it_counts_once() -> None:
    """Else its tenant would seem to hold more than it is guaranteed, and lose some of it."""
    tenants = [tenant("lab", guaranteed=2), tenant("solo", guaranteed=1), tenant("crowd")]
    own, borrows = running_on(job(1, gpus=1, tenant="lab"), ("a", [0])), low(2, ("b", [0]), tenant="crowd")
    here = cluster(*tenants, node("a", gpus=1), node("b", gpus=1), own, borrows, job(3, gpus=1, tenant="lab"))
    told = here.plan()
    assert victims(told) == [2]
    plan = here.after(told).plus(node("c", gpus=1), job(4, gpus=1, tenant="solo")).plan()
    assert [each.job for each in plan.actions] == [3]


def any_cluster(dice: Random) -> Cluster:
    """Nodes that are full of jobs of several tenants, and others that wait."""
    things: list[Thing] = [tenant(name, guaranteed=dice.choice((0, 0, 2, 4))) for name in ("lab", "vision", "crowd")]
    number = 1
    for name in "abcd"[: dice.randint(1, 4)]:
        gpus = dice.choice((2, 4, 8))
        things.append(node(name, gpus=gpus, cpus=dice.choice((8, 64))))
        free = list(range(gpus))
        while free and dice.random() < 0.95:
            here, free = free[: dice.choice((1, 1, 2, 4))], free[4:] if dice.random() < 0.1 else free[1:]
            free = [index for index in free if index not in here]
            things.append(low(number, (name, here), **any_fields(dice), tenant=dice.choice(("lab", "vision", "crowd"))))
            number += 1
    for _ in range(dice.randint(1, 5)):
        wants = {"gpus": dice.choice((1, 1, 2, 4)), "tasks": dice.choice((1, 1, 1, 2, 3))}
        whose = {"tenant": dice.choice(("lab", "vision", "crowd")), "priority": dice.choice((1, 100, 500, 1_000))}
        things.append(job(number, **wants, **whose))  # type: ignore[arg-type]  # a test passes fields by name
        number += 1
    return cluster(*things)


def any_fields(dice: Random) -> dict[str, object]:
    return {
        "preemptible": dice.random() < 0.7,
        "requeue": dice.random() < 0.9,
        "preemptions": dice.choice((0, 0, 5)),
        "priority": dice.choice((100, 500, 1_000)),
    }


@settings(max_examples=150)
@given(st.integers(0, 1 << 32))
@example(2_797)  # one that backfills
@example(4_911)
@example(108_992_935)  # what is free is kept for another
def test_whatever_the_cluster_victims_may_go_each_is_needed_and_nobody_loses_what_he_is_guaranteed(seed: int) -> None:
    here = any_cluster(Random(seed))
    plan = here.plan()
    freed: dict[str, int] = {}
    gone: list[int] = []
    for each in preempts(plan):
        waiting = here.jobs[each.job]
        for victim in each.victims:
            record = here.jobs[victim.job]
            assert not spared_because(record, each.cause, waiting.spec.priority, POLICY)
            assert victim.job not in gone
            gone.append(victim.job)
            name = record.spec.tenant
            assert each.cause is not StopCause.RECLAIMED or name != waiting.spec.tenant, "nobody reclaims from himself"
            if name != waiting.spec.tenant:
                freed[name] = freed.get(name, 0) + record.spec.demand.total_gpus
        assert each.cause is StopCause.RECLAIMED or all(
            here.jobs[victim.job].spec.priority < waiting.spec.priority for victim in each.victims
        )
    for name, gpus in freed.items():
        got = [here.jobs[each.job].spec for each in plan.actions]
        used = here.usage_ledger.used_by(TenantName(name)).gpu_milli // 1_000
        used += sum(each.demand.total_gpus for each in got if each.tenant == name)
        assert used - gpus >= min(used, here.tenants[TenantName(name)].quota.guaranteed)
    for each in preempts(plan)[:1]:  # what the first needs isn't mixed with what others give up
        alone = without_others(here, plan, each)
        assert fits(alone.without(*(victim.job for victim in each.victims)), each)
        kept = {node for other in plan.reservations if other.job != each.job for node in other.nodes}
        if not kept.isdisjoint(task.node for task in each.tasks):
            continue  # what is kept there for others isn't free to it, and is in a cluster without them
        for spared in each.victims:
            others = [victim.job for victim in each.victims if victim != spared]
            assert not fits(alone.without(*others), each), f"{spared} needn't have gone: {each}"


def without_others(here: Cluster, plan: Plan, preempt: Preempt) -> Cluster:
    """The cluster in which only that job waits, and what was placed before it runs."""
    before = plan.actions[: plan.actions.index(preempt)]
    there = here.after(Plan(actions=before, reasons={}))
    waiting = [each.id for each in there.waiting() if each.id != preempt.job]
    return there.without(*waiting)


def fits(here: Cluster, preempt: Preempt) -> bool:
    plan = here.plan(policy=Policy(preemptions_max=0))
    return any(isinstance(each, Place) and each.job == preempt.job for each in plan.actions)


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_nobody_is_stopped_more_often_than_a_job_may_be_and_all_end(seed: int) -> None:
    """No thrash: urgent jobs come again and again, and each job that gave way ends at last."""
    dice, story = Random(seed), Story(Policy(preemptions_max=2))
    for name in ("a", "b"):
        story.node(name, 4)
    urgent = 0
    for _ in range(60):
        if dice.random() < 0.4:
            gpus, tasks = dice.choice((1, 2, 4)), dice.choice((1, 1, 2))
            story.submit(spec(gpus, tasks=tasks, priority=dice.choice((100, 500)), preemptible=dice.random() < 0.8))
        elif urgent < 15 and dice.random() < 0.5:
            story.submit(spec(dice.choice((2, 4)), priority=1_000))
            urgent += 1
        turn(story, dice)
    for _ in range(400):
        if all(each.is_final for each in story.state.jobs.values()):
            break
        turn(story, dice)
    assert all(each.is_final for each in story.state.jobs.values())
    assert all(each.preemptions <= 2 for each in story.state.jobs.values())


def turn(story: Story, dice: Random) -> None:
    """A pass; then what was told to end is gone, and some others end."""
    story.wait(1_000)
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 100)
    settle_all(story, plan)
    for each in list(story.state.jobs.values()):
        attempt = each.live_attempt
        if attempt is not None and (each.state is JobState.STOPPING or dice.random() < 0.3):
            if each.state is not JobState.STOPPING:
                story.started(each.id)
            for task in attempt.open_tasks:
                story.end(each.id, task.placement.rank)
    story.all_due()
