"""What may be changed of a job after its submit, and what follows from it?"""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, PartitionName
from stoker.brain.domain.job import EndCause, Job, WarnSignal
from stoker.brain.domain.job_changes import JobChanges, changes_text
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Instant
from stoker.brain.domain.where import make_where
from stoker.brain.state.commands import Hold, PutPartition, UpdateJob
from stoker.brain.state.events.job import AttemptStopping, JobUpdated, TimeLimitNear
from stoker.brain.state.events.union import Event
from tests.brain.state.story import ANNA, Story, spec


def order(label: str, **changes: object) -> UpdateJob:
    return UpdateJob(by=ANNA, target=parse_job_ref(label), changes=JobChanges(**changes))  # type: ignore[arg-type]  # by name


def update(story: Story, label: str, **changes: object) -> tuple[Event, ...]:
    return story.do(order(label, **changes))


def refused(story: Story, label: str, **changes: object) -> Refusal:
    return story.refused(order(label, **changes))


def after(*jobs: int) -> tuple[Dependency, ...]:
    return tuple(Dependency(kind=DependencyKind.OK, job=JobId(job)) for job in jobs)


def ran(minutes: int) -> tuple[Story, Job]:
    story = Story()
    story.node("n1")
    job = story.submit(spec(time_limit_ms=HOUR_MS))
    story.run(job, ("n1", 0))
    story.wait(minutes * MINUTE_MS)
    return story, story.job(job)


def test_p1_what_waits_may_change_in_all_and_keeps_its_place_of_submit() -> None:
    story = Story()
    story.node("n1", 2)
    job = story.submit(spec(2, requeue=False))
    before = story.job(job)
    changes: dict[str, object] = {
        "name": "new", "comment": "c", "priority": 600, "time_limit_ms": HOUR_MS, "retries_max": 2, "requeue": True,
        "gpu_count": 1, "cpus": 3, "memory_mb": 64, "tasks": 2, "tasks_per_node": 2, "lost_after_ms": 0,
        "preemptible": True, "checkpoint_ms": 60_000, "warn": WarnSignal(10, 5_000),
        "begin": Instant(story.now + HOUR_MS),
    }  # fmt: skip
    (event,) = update(story, str(job), **changes)
    assert isinstance(event, JobUpdated)
    assert event.changes.given == changes
    now = story.job(job)
    assert (now.submitted_at, now.id) == (before.submitted_at, before.id)
    assert now.spec == event.changes.on(before.spec)
    assert story.decide() == [], "it begins in an hour"
    update(story, str(job), begin=Instant(0))
    assert story.decide() == [str(job)]
    assert [task.placement.cpus for task in story.job(job).attempts[-1].tasks] == [3, 3]


def test_p2_no_change_makes_a_job_preemptible_that_is_not_requeued_as_no_submit_does() -> None:
    story, _ = ran(1)
    for changes in ({"preemptible": True, "requeue": False}, {"requeue": False}):
        refusal = refused(story, "1", **changes)
        assert (refusal.code, refusal.facts["other"]) == ("conflicting_fields", "requeue")
        update(story, "1", preemptible=True)
    update(story, "1", preemptible=False, requeue=False)
    assert refused(story, "1", preemptible=True).code == "conflicting_fields"
    old = story.submit(spec(preemptible=True, requeue=False, hold=True))
    update(story, str(old), name="taken before this was refused")


def test_p1_a_part_of_the_demand_or_of_the_selection_leaves_the_other_parts_as_they_were() -> None:
    story = Story()
    story.node("n1")
    story.node("n2")
    job = story.submit(spec(2, cpus=4, where=make_where("", ["n2"], ["*"]), hold=True))
    update(story, str(job), gpu_count=1)
    assert (story.job(job).spec.demand.gpu_count, story.job(job).spec.demand.cpus) == (1, 4)
    update(story, str(job), exclude=())
    assert story.job(job).spec.where == make_where("", [], ["*"])


def test_p1_what_runs_may_change_in_its_limit_and_in_what_counts_later() -> None:
    story, job = ran(30)
    update(story, "1", time_limit_ms=2 * HOUR_MS, name="n", comment="c", priority=7, retries_max=1, requeue=False)
    story.wait(89 * MINUTE_MS)
    assert [type(event) for event in story.deadlines()] == [TimeLimitNear]
    story.wait(2 * MINUTE_MS)
    assert [type(event) for event in story.deadlines()] == [AttemptStopping]
    fault = refused(story, "1", gpu_count=2, name="x")
    assert (fault.code, "GPUs of each task can't be changed" in fault.message) == ("job_live", True)
    assert job.spec.time_limit_ms == HOUR_MS


def test_p1_a_limit_that_is_lowered_holds_at_once() -> None:
    story, _ = ran(30)
    update(story, "1", time_limit_ms=31 * MINUTE_MS)
    assert story.state.indexes.limits.head() == story.now + MINUTE_MS


def test_p1_what_has_ended_is_changed_no_more() -> None:
    """Comfort 3."""
    story, job = ran(1)
    story.end(job.id)
    fault = refused(story, "1", time_limit_ms=2 * HOUR_MS)
    assert (fault.code, fault.facts["state"]) == ("job_ended", "succeeded")
    assert "stoker requeue 1" in fault.hint
    assert refused(story, "9", name="x").code == "job_unknown"


def test_a_change_of_nothing_is_refused_and_one_that_is_so_already_is_taken() -> None:
    story = Story()
    job = story.submit(spec(name="same", hold=True))
    assert refused(story, str(job)).code == "no_changes"
    assert update(story, str(job), name="same") == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"time_limit_ms": 31 * DAY_MS}, "time_limit_too_long"),
        ({"priority": 10**9}, "out_of_range"),
        ({"tasks": 0}, "out_of_range"),
        ({"gpu_count": 9}, "demand_unsatisfiable"),
        ({"gpu_count": 0, "gpu_model": "H100"}, "gpu_wish_without_gpus"),
        ({"require": make_where("zone=a").require}, "demand_unsatisfiable"),
        ({"exclude": ("n7",)}, "unknown_node"),
        ({"partition": "night"}, "unknown_partition"),
        ({"comment": "x" * 5_000}, "text_too_long"),
        ({"begin": Instant(10**15)}, "begin_too_late"),
        ({"after": after(7)}, "bad_dependency"),
        ({"lost_after_ms": 1}, "bad_lost_after"),
        ({"warn": WarnSignal(10, 86_400_000)}, "bad_signal"),
    ],
)
def test_p2_a_changed_job_is_checked_as_a_new_one(changes: dict[str, object], code: str) -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(hold=True))
    assert refused(story, str(job), **changes).code == code


def test_p2_a_fault_that_it_had_before_is_no_fault_of_the_change() -> None:
    story = Story()
    story.node("n1")
    night = Partition(name=PartitionName("night"), time_max_ms=HOUR_MS)
    story.do(PutPartition(by=ANNA, partition=night, create=True))
    job = story.submit(spec(partition=night.name, time_limit_ms=HOUR_MS))
    story.run(job, ("n1", 0))
    story.do(PutPartition(by=ANNA, partition=replace(night, time_max_ms=MINUTE_MS), create=False))
    update(story, str(job), comment="still mine")
    assert refused(story, str(job), time_limit_ms=2 * HOUR_MS).code == "time_limit_too_long"


def test_p3_a_member_that_is_changed_becomes_a_record_and_a_change_of_the_array_reaches_all() -> None:
    story = Story()
    story.node("n1", 1)
    array = story.submit_array("0-9", hold=True)
    update(story, f"{array}_[3-4]", priority=600, time_limit_ms=MINUTE_MS)
    named = [story.named(f"{array}_{index}") for index in (2, 3, 4)]
    assert [(job.state, job.spec.priority) for job in named] == [
        (JobState.HELD, 500), (JobState.HELD, 600), (JobState.HELD, 600)
    ]  # fmt: skip
    update(story, str(array), time_limit_ms=HOUR_MS)
    limits = {story.named(f"{array}_{index}").spec.time_limit_ms for index in range(10)}
    assert (limits, story.named(f"{array}_3").spec.priority) == ({HOUR_MS}, 600)


def test_p3_members_that_run_are_passed_over_by_a_change_that_is_too_late_for_them() -> None:
    story = Story()
    story.node("n1", 1)
    array = story.submit_array("0-2")
    assert story.decide() == [f"{array}_0"]
    update(story, str(array), cpus=2)
    assert [story.named(f"{array}_{index}").spec.demand.cpus for index in range(3)] == [1, 2, 2]
    update(story, str(array), comment="for all")
    assert {story.named(f"{array}_{index}").spec.comment for index in range(3)} == {"for all"}
    assert refused(story, f"{array}_0", cpus=2).code == "job_live"


def test_p4_members_wait_for_others_as_their_array_does() -> None:
    story = Story()
    story.node("n1")
    first, array = story.submit(spec(hold=True)), story.submit(spec(array=parse_array("0-2")))
    assert refused(story, f"{array}_1", after=after(first)).code == "not_of_members"
    update(story, str(array), after=after(first))
    assert story.decide() == []
    update(story, str(array), after=())
    story.all_due()
    assert len(story.decide()) == 3


def test_p5_a_job_may_be_told_to_wait_for_another_one_and_not_to() -> None:
    story = Story()
    story.node("n1")
    first, second = story.submit(spec(hold=True)), story.submit()
    update(story, str(second), after=after(first))
    assert (story.job(second).blocked, story.decide()) == (True, [])
    update(story, str(second), after=())
    assert (story.job(second).blocked, story.decide()) == (False, [str(second)])


def test_p5_no_change_closes_a_circle_or_waits_for_what_can_not_be() -> None:
    story = Story()
    story.node("n1")
    first = story.submit(spec(hold=True))
    second = story.submit(spec(after=after(first)))
    third = story.submit(spec(after=after(second)))
    assert refused(story, str(first), after=after(third)).code == "dependency_cycle"
    assert refused(story, str(first), after=after(first)).code == "dependency_cycle"
    array = story.submit_array("0-2", hold=True)
    own = (Dependency(kind=DependencyKind.OK, job=array, index=1),)
    assert refused(story, str(array), after=own).code == "dependency_cycle"
    story.cancel(second)
    fault = refused(story, str(first), after=after(second))
    assert (fault.code, "in vain" in fault.message) == ("dependency_never_satisfied", True)


def test_p6_a_limit_that_has_passed_is_refused_and_so_is_one_for_what_is_ending() -> None:
    story, job = ran(30)
    fault = refused(story, "1", time_limit_ms=20 * MINUTE_MS)
    assert (fault.code, fault.message) == ("bad_time", "job 1 has run for 30m, so a limit of 20m has passed")
    story.wait(31 * MINUTE_MS).deadlines()
    assert story.job(job.id).state is JobState.STOPPING
    assert refused(story, "1", time_limit_ms=5 * HOUR_MS).code == "job_ended"


def test_a_pause_after_a_failed_try_is_not_cut_short_by_another_begin() -> None:
    story = Story(Policy(backoff_first_ms=60 * SECOND_MS))
    story.node("n1")
    job = story.submit(spec(retries_max=1))
    story.run(job, ("n1", 0))
    story.end(job, exit_code=1, cause=EndCause.EXITED)
    paused = story.job(job).not_before
    update(story, str(job), begin=Instant(story.now + SECOND_MS))
    assert story.job(job).not_before == paused
    update(story, str(job), begin=Instant(story.now + HOUR_MS))
    update(story, str(job), begin=Instant(0))
    assert story.job(job).state is JobState.PENDING


def test_what_changed_is_told_with_old_and_new_and_a_comment_is_nobody_elses() -> None:
    before = JobChanges(time_limit_ms=HOUR_MS, comment="a", after=(), require=(), requeue=True, lost_after_ms=None)
    now = JobChanges(time_limit_ms=2 * HOUR_MS, comment="b", after=after(7), require=make_where("z=a").require,
                     requeue=False, lost_after_ms=0, warn=WarnSignal(10, 90_000))  # fmt: skip
    before = replace(before, warn=None)
    assert changes_text(before, now) == (
        "comment changed, time limit 1h -> 2h, requeue yes -> no, signal none -> 10@90, after none -> ok:7, "
        "lost after as set here -> never, where none -> z=a"
    )


def test_a_held_job_that_is_changed_stays_held() -> None:
    story = Story()
    job = story.submit()
    story.tell(Hold, str(job))
    update(story, str(job), priority=900)
    assert (story.job(job).state, story.job(job).spec.priority) == (JobState.HELD, 900)
