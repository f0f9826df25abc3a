"""Rules B1 to B4 of `state/blocking_jobs.py`: who holds what a job waits for, and until when at the latest."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS, SECOND_MS, Instant
from stoker.brain.state.blocking_jobs import Blocking, blocking_jobs
from stoker.brain.state.commands import DrainNode
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, spec
from tests.brain.state.test_preemption import preempt

GRACE_MS = 10 * SECOND_MS


def waits(story: Story, job: JobId, code: ReasonCode = ReasonCode.INSUFFICIENT_GPUS, **facts: int | str) -> Blocking:
    found = blocking_jobs(story.state, story.state.jobs[job], Reason(code, dict(facts)), story.now)
    assert found is not None
    return found


def running(story: Story, node: str, gpus: list[int], *, limit_ms: int = HOUR_MS) -> JobId:
    job = story.submit(spec(gpus=len(gpus), time_limit_ms=limit_ms))
    story.place(job, (node, gpus[0]))
    story.started(job)
    return job


def test_those_that_hold_gpus_on_its_nodes_are_named_with_the_latest_end_of_each() -> None:
    story = Story()
    story.node("n1", gpus=4)
    long = running(story, "n1", [0, 1, 2], limit_ms=2 * HOUR_MS)
    short = running(story, "n1", [3], limit_ms=HOUR_MS)
    found = waits(story, story.submit(spec(gpus=2)))
    assert [(each.job.id, each.gpu_milli) for each in found.jobs] == [(short, 1_000), (long, 3_000)]
    assert found.total == 2
    assert found.jobs[0].ends_by == pytest.approx(story.now + HOUR_MS + GRACE_MS, abs=MINUTE_MS)


def test_one_that_shares_gpus_holds_its_shares_and_not_the_devices() -> None:
    story = Story()
    story.node("n1", gpus=2)
    asked = spec(time_limit_ms=HOUR_MS)
    few, many = (
        story.submit(replace(asked, demand=Demand(gpu_count=1, gpu_share=share, tasks=tasks)))
        for share, tasks in ((250, 1), (300, 4))
    )
    story.decide()
    found = waits(story, story.submit(spec(gpus=2)))
    assert {each.job.id: each.gpu_milli for each in found.jobs} == {few: 250, many: 1_200}
    assert found.fits_by is None


def test_a_gpu_that_an_orphan_task_keeps_does_not_come_free_with_the_end_of_who_holds_it() -> None:
    story = Story()
    story.node("n1", gpus=2)
    holder = running(story, "n1", [0, 1])
    node = story.state.nodes[NodeName("n1")]
    kept = (node.inventory.gpus[0].uuid,)
    story.state.put_node(replace(node, strays=(OrphanTask(job=JobId(99), attempt=1, rank=0, gpus=kept),)))
    assert waits(story, story.submit(spec(gpus=2))).fits_by is None
    found = waits(story, story.submit(spec(gpus=1)))
    assert [(each.job.id, each.gpu_milli) for each in found.jobs] == [(holder, 1_000)]


def test_the_bound_is_when_enough_of_them_have_ended_and_not_all() -> None:
    story = Story()
    story.node("n1", gpus=4)
    running(story, "n1", [0], limit_ms=HOUR_MS)
    running(story, "n1", [1], limit_ms=2 * HOUR_MS)
    running(story, "n1", [2, 3], limit_ms=9 * HOUR_MS)
    found = waits(story, story.submit(spec(gpus=2)))
    assert found.fits_by == found.jobs[1].ends_by


def test_gpus_of_two_nodes_do_not_add_up_for_one_task_and_do_for_a_gang() -> None:
    story = Story()
    for name in ("n1", "n2"):
        story.node(name, gpus=2)
        running(story, name, [0, 1])
    both = waits(story, story.submit(spec(gpus=1, tasks=3)))
    assert both.fits_by == both.jobs[1].ends_by
    assert waits(story, story.submit(spec(gpus=2))).fits_by == both.jobs[0].ends_by


def test_a_node_that_is_drained_frees_nothing_for_it_so_there_is_no_bound() -> None:
    story = Story()
    story.node("n1", gpus=2)
    running(story, "n1", [0, 1])
    waiting = story.submit(spec(gpus=2))
    story.do(DrainNode(by=ANNA, node=NodeName("n1"), reason="fan"))
    assert waits(story, waiting).fits_by is None


def test_a_limit_of_a_tenant_is_held_by_jobs_of_that_tenant_until_enough_have_ended() -> None:
    story = Story()
    story.node("n1", gpus=8)
    one, two = running(story, "n1", [0, 1]), running(story, "n1", [2], limit_ms=3 * HOUR_MS)
    facts = {"tenant": "default", "what": "GPUs", "limit": 3, "used": 3, "asked": 3}
    found = waits(story, story.submit(spec(gpus=3)), ReasonCode.TENANT_LIMIT, **facts)
    assert [each.job.id for each in found.jobs] == [one, two]
    assert found.fits_by == found.jobs[1].ends_by


@pytest.mark.parametrize("code", [ReasonCode.HELD, ReasonCode.BEGIN_TIME, ReasonCode.NO_NODES])
def test_a_job_that_waits_for_no_end_of_another_is_told_of_none(code: ReasonCode) -> None:
    story = Story()
    story.node("n1", gpus=1)
    running(story, "n1", [0])
    waiting = story.state.jobs[story.submit(spec(gpus=1))]
    assert blocking_jobs(story.state, waiting, Reason(code), Instant(story.now)) is None


def test_of_an_array_its_running_members_are_named_and_never_the_array() -> None:
    story = Story()
    story.node("n1", gpus=2)
    story.submit_array("0-1")
    assert story.decide() == ["1_0", "1_1"]
    story.run_named("1_0")
    waiting = story.submit(spec(gpus=1))
    facts = {"tenant": "default", "what": "GPUs", "limit": 2, "used": 2, "asked": 1}
    found = waits(story, waiting, ReasonCode.TENANT_LIMIT, **facts)
    assert sorted(each.job.label for each in found.jobs) == ["1_0", "1_1"]
    assert [each.id for each in StateView(story.state).live()] == sorted(each.job.id for each in found.jobs)


def test_of_a_job_with_a_reservation_those_on_its_nodes_are_named_whatever_it_waits_for() -> None:
    story = Story()
    for name in ("n1", "n2"):
        story.node(name, gpus=2)
    here, _ = running(story, "n1", [0, 1]), running(story, "n2", [0, 1])
    waiting = story.submit(spec(gpus=2))
    kept = Reservation(job=waiting, at=story.now, nodes=(NodeName("n1"),))
    for code in (ReasonCode.INSUFFICIENT_GPUS, ReasonCode.RESERVED):
        found = blocking_jobs(story.state, story.job(waiting), Reason(code), story.now, kept)
        assert found is not None
        assert [each.job.id for each in found.jobs] == [here]


def test_of_a_job_to_which_others_give_way_those_are_named_that_hold_its_gpus_and_that_they_go() -> None:
    story = Story()
    story.node("n1", gpus=4)
    low = story.submit(spec(2, priority=100, preemptible=True))
    story.run(low, ("n1", 0))
    running(story, "n1", [2, 3])
    high = story.submit(spec(2, priority=1_000))
    preempt(story, high, low)
    kept = Reservation(job=high, at=story.now, nodes=(NodeName("n1"),))
    found = blocking_jobs(story.state, story.job(high), Reason(ReasonCode.INSUFFICIENT_GPUS), story.now, kept)
    assert found is not None
    (victim,) = found.jobs
    assert (victim.job.id, victim.gpu_milli, victim.ends_by) == (low, 2_000, story.now + GRACE_MS)
    assert (victim.is_ending, victim.gives_way_to(high), victim.gives_way_to(low)) == (True, True, False)
