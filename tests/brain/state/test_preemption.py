"""Preemption: who may be stopped for whom, what is kept meanwhile, and what becomes of the victim."""

import pytest

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, node_principal
from stoker.brain.domain.job import StopCause, WarnSignal
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import gone_by
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import Hold, ReportEnding, Requeue, Submit, UpdateJob
from stoker.brain.state.events.job import AttemptStopping, CapacityClaimed, MemberMade
from stoker.brain.state.events.union import Event
from stoker.brain.state.invariants import violations
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, settle_all, spec

LOW, HIGH = 100, 1_000


def placed_on(*gpus: int, node: str = "n1") -> tuple[TaskPlacement, ...]:
    """One task on these GPUs."""
    found = tuple(GpuUuid(f"{node}-{each}") for each in gpus)
    return (TaskPlacement(rank=0, node=NodeName(node), gpus=found, cpus=1, memory_mb=0),)


def preempt(
    story: Story, job: JobId, *victims: JobId, cause: StopCause = StopCause.PREEMPTED, gpus: tuple[int, ...] = (0, 1)
) -> tuple[Event, ...]:
    """The events of a preemption that was proposed; none when it was stale."""
    named = tuple(Victim(each, story.job(each).newest_attempt) for each in victims)
    action = Preempt(job=job, tasks=placed_on(*gpus), victims=named, cause=cause)
    done = settle_all(story, Plan(actions=(action,), reasons={}))
    return done[0] if done else ()


def busy(**victim: object) -> tuple[Story, JobId, JobId]:
    """A node of two GPUs full of one job of low priority, and a job of high priority that waits."""
    story = Story()
    story.node("n1", 2)
    settings: dict[str, object] = {"priority": LOW, "preemptible": True, **victim}
    low = story.submit(spec(2, **settings))
    story.run(low, ("n1", 0))
    return story, low, story.submit(spec(2, priority=HIGH))


def test_a_preemption_claims_the_places_and_stops_every_victim_in_one_step() -> None:
    story, low, high = busy()
    claimed, stopping = preempt(story, high, low)
    assert claimed == CapacityClaimed(job=high, tasks=placed_on(0, 1))
    assert stopping == AttemptStopping(job=low, attempt=1, cause=StopCause.PREEMPTED, for_job=high, for_label=str(high))
    assert story.state.claims[high].tasks == placed_on(0, 1)
    assert story.job(low).state is JobState.STOPPING


def test_a_victim_waits_again_at_its_priority_and_place_and_pays_neither_retry_nor_requeue() -> None:
    story, low, high = busy(retries_max=1)
    submitted = story.job(low).submitted_at
    story.wait(1_000)
    preempt(story, high, low)
    story.end(low, exit_code=143)
    job = story.job(low)
    assert (job.state, job.spec.priority, job.submitted_at) == (JobState.PENDING, LOW, submitted)
    assert (job.retries_used, job.requeues_used, job.preemptions, job.not_before) == (0, 0, 1, NEVER)
    assert job.attempts[0].outcome is Outcome.PREEMPTED
    assert job.reason is not None
    assert job.reason.code is ReasonCode.PREEMPTED
    assert describe(job.reason) == (
        f"it was preempted at 1970-01-01 00:16:41 UTC for job {high}, whose priority is higher, and waits for its turn "
        "again"
    )


def test_a_victim_that_saves_its_work_and_exits_well_is_requeued_all_the_same() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    story.end(low, exit_code=0)
    assert (story.job(low).state, story.job(low).attempts[0].outcome) == (JobState.PENDING, Outcome.PREEMPTED)


@pytest.mark.parametrize(
    "victim",
    [{"preemptible": False}, {"priority": HIGH}, {"requeue": False}],
    ids=["not preemptible", "of equal priority", "never requeued"],
)
def test_nobody_is_preempted_who_may_not_be(victim: dict[str, object]) -> None:
    story, low, high = busy(**victim)
    assert preempt(story, high, low) == ()
    assert story.state.claims == {}
    assert story.job(low).state is JobState.RUNNING


def test_a_reclaim_takes_from_whoever_borrowed_whatever_its_priority_but_never_what_is_not_requeued() -> None:
    story, low, high = busy(preemptible=False, priority=2 * HIGH)
    assert preempt(story, high, low, cause=StopCause.RECLAIMED)
    story.end(low, exit_code=143)
    assert story.job(low).attempts[0].outcome is Outcome.PREEMPTED
    story, low, high = busy(requeue=False)
    assert preempt(story, high, low, cause=StopCause.RECLAIMED) == ()


def test_a_job_is_preempted_so_often_and_no_more() -> None:
    story = Story(Policy(preemptions_max=1))
    story.node("n1", 2)
    low = story.submit(spec(2, priority=LOW, preemptible=True))
    high = story.submit(spec(2, priority=HIGH))
    story.run(low, ("n1", 0))
    assert preempt(story, high, low)
    story.end(low, exit_code=143)
    story.run(low, ("n1", 0))
    assert preempt(story, high, low) == ()


def test_what_ends_already_is_no_victim() -> None:
    story, low, high = busy()
    story.cancel(low)
    assert preempt(story, high, low) == ()
    story, low, high = busy()
    story.end(low)
    assert preempt(story, high, low) == ()


def test_a_preemption_is_stale_as_a_whole_when_a_part_of_it_is() -> None:
    story = Story()
    story.node("n1", 3)
    first, second = (story.submit(spec(1, priority=LOW, preemptible=True)) for _ in range(2))
    other = story.submit(spec(1, priority=LOW))
    for at, job in enumerate((first, second, other)):
        story.run(job, ("n1", at))
    high = story.submit(spec(2, priority=HIGH))
    assert preempt(story, high, first, other, gpus=(0, 2)) == ()
    assert preempt(story, high, first, gpus=(0, 1)) == (), "GPU 1 would not come free"
    assert preempt(story, high, first, first, gpus=(0, 1)) == (), "one victim twice"
    assert preempt(story, high, first, second, gpus=(0, 0)) == (), "one GPU twice"
    assert story.job(first).state is JobState.RUNNING
    assert preempt(story, high, first, second)


def test_a_claim_may_count_on_what_is_free_and_on_what_ends_anyway() -> None:
    story = Story()
    story.node("n1", 3)
    ending, low = (story.submit(spec(1, priority=LOW, preemptible=True)) for _ in range(2))
    story.run(ending, ("n1", 0))
    story.run(low, ("n1", 1))
    story.cancel(ending)
    high = story.submit(spec(3, priority=HIGH))
    assert preempt(story, high, low, gpus=(0, 1, 2))


def test_a_new_claim_takes_the_place_of_the_old_one() -> None:
    story = Story()
    story.node("n1", 2)
    first, second = (story.submit(spec(1, priority=LOW, preemptible=True)) for _ in range(2))
    story.run(first, ("n1", 0))
    story.run(second, ("n1", 1))
    high = story.submit(spec(1, priority=HIGH))
    preempt(story, high, first, gpus=(0,))
    story.wait(1_000)
    preempt(story, high, second, gpus=(1,))
    assert [claim.tasks for claim in story.state.claims.values()] == [placed_on(1)]
    assert story.state.claims[high].at == story.now


def placed(story: Story, low: JobId, high: JobId) -> None:
    story.end(low, exit_code=143)
    story.place(high, ("n1", 0))


def cancelled(story: Story, low: JobId, high: JobId) -> None:
    story.cancel(high)


def held(story: Story, low: JobId, high: JobId) -> None:
    story.do(Hold(by=ANNA, target=JobRef(high)))


def asking_for_less(story: Story, low: JobId, high: JobId) -> None:
    story.do(UpdateJob(by=ANNA, target=JobRef(high), changes=JobChanges(gpu_count=1)))


def waiting_for_another(story: Story, low: JobId, high: JobId) -> None:
    story.do(UpdateJob(by=ANNA, target=JobRef(high), changes=JobChanges(begin=story.now + 60_000)))  # type: ignore[arg-type]  # an instant


@pytest.mark.parametrize("then", [placed, cancelled, held, asking_for_less, waiting_for_another])
def test_a_claim_goes_once_its_job_no_longer_waits_for_it(then: object) -> None:
    story, low, high = busy()
    preempt(story, high, low)
    assert callable(then)
    then(story, low, high)
    assert story.state.claims == {}


def test_a_claim_stays_while_its_job_only_gets_another_name() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    story.do(UpdateJob(by=ANNA, target=JobRef(high), changes=JobChanges(name="other")))
    assert list(story.state.claims) == [high]


def test_a_new_claim_takes_the_place_of_those_of_others_on_its_gpus() -> None:
    """What another was to get is decided on again where its claim isn't heeded any more."""
    story, low, high = busy()
    preempt(story, high, low)
    other = story.submit(spec(1, priority=HIGH))
    story.apply(CapacityClaimed(job=other, tasks=placed_on(1)))
    assert list(story.state.claims) == [other]


def test_a_gpu_that_is_kept_for_two_is_seen_by_the_audit() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    other = story.submit(spec(1, priority=HIGH))
    story.state.claims[other] = Claim(job=other, tasks=placed_on(1), at=story.now)
    assert violations(story.state) == [f"GPU n1-1 is kept for job {high} and for job {other}"]


def test_a_job_whose_leader_has_exited_is_ending_though_nobody_told_it() -> None:
    """V4: what it holds comes free anyway, so it is counted among nobody's use."""
    story, low, _ = busy()
    key, node = story.key(low)
    assert [each.state for each in StateView(story.state).live()] == [JobState.RUNNING]
    story.do(ReportEnding(by=node_principal(node), node=node, keys=(key,)))
    assert [each.state for each in StateView(story.state).live()] == [JobState.STOPPING]


def test_claims_are_in_a_snapshot() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    loaded = load_snapshot(list(snapshot_chunks(story.state)))
    assert loaded.claims == story.state.claims
    assert violations(loaded) == []


def test_a_claim_of_what_does_not_wait_is_seen_by_the_audit() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    state: ClusterState = story.state
    state.claims[low] = state.claims[high]
    assert violations(state) == [f"GPUs are kept for what does not wait for them: {story.job(low).story()}"]


def test_a_member_of_an_array_becomes_a_record_with_its_claim() -> None:
    story, low, _ = busy()
    array = story.submit_array("0-3", gpus=2, priority=HIGH)
    member = story.named(f"{array}_2").id
    action = Preempt(
        job=member, array=array, tasks=placed_on(0, 1), victims=(Victim(low, 1),), cause=StopCause.PREEMPTED
    )
    ((made, claimed, _),) = settle_all(story, Plan(actions=(action,), reasons={}))
    assert made == MemberMade(array=array, index=2)
    assert claimed == CapacityClaimed(job=member, tasks=placed_on(0, 1))
    story.end(low, exit_code=143)
    reason = story.job(low).reason
    assert reason is not None
    assert reason.facts["job"] == f"{array}_2"


def test_a_stopped_job_is_gone_after_its_bounded_warning_and_the_grace() -> None:
    policy = Policy(preempt_notice_max_ms=60_000, stop_grace_ms=10_000)
    for lead_ms, whole in ((30_000, 40_000), (300_000, 70_000)):
        story, low, high = busy(warn=WarnSignal(10, lead_ms))
        assert gone_by(story.job(low), policy) == NEVER
        preempt(story, high, low)
        assert gone_by(story.job(low), policy) == story.now + whole
    story, low, high = busy(warn=WarnSignal(10, 30_000))
    story.cancel(low)
    assert gone_by(story.job(low), policy) == story.now + 10_000, "only what is taken back is warned"


def test_who_cancels_or_holds_a_victim_has_the_last_word() -> None:
    story, low, high = busy()
    preempt(story, high, low)
    story.do(Requeue(by=ANNA, target=JobRef(low), hold=True))
    story.end(low, exit_code=143)
    assert story.job(low).state is JobState.HELD
    story, low, high = busy()
    preempt(story, high, low)
    story.cancel(low)
    story.end(low, exit_code=143)
    assert story.job(low).state is JobState.CANCELLED


@pytest.mark.parametrize(("lead_ms", "code"), [(59_999, None), (60_000, "bad_signal"), (600_000, "bad_signal")])
def test_a_warning_comes_after_the_start_so_its_lead_is_shorter_than_the_time_limit(
    lead_ms: int, code: str | None
) -> None:
    answer = Story().ask(Submit(by=ANNA, specs=(spec(time_limit_ms=60_000, warn=WarnSignal(10, lead_ms)),)))
    assert (answer.code if isinstance(answer, Refusal) else None) == code
    if isinstance(answer, Refusal):
        assert "--signal USR1@6" in answer.hint
