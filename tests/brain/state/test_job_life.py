"""The life of a job as facts: who holds what when, and what an end leads to."""

import pytest

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, StopCause, TaskEnd
from stoker.brain.domain.lifecycle import FINAL, JobState, Outcome
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode, describe, hint_for
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.attempt_outcome import FINAL_STATES, backoff_ms, end_tasks
from stoker.brain.state.commands import Cancel, NodeResponded, NodeSilent, ReportEnding
from stoker.brain.state.events.job import AttemptStopping, JobFinished
from tests.brain.state.story import ANNA, Story, inventory, settle_all, spec


def test_gpus_are_held_from_placement_until_the_end_is_reported() -> None:
    story = Story()
    story.node("n1", 8)
    job = story.submit(spec(3))
    assert story.free_gpus("n1") == 8, "a queued job holds nothing"
    story.place(job, ("n1", 0))
    assert (story.job(job).state, story.free_gpus("n1")) == (JobState.STARTING, 5)
    story.started(job)
    story.cancel(job)
    assert (story.job(job).state, story.free_gpus("n1")) == (JobState.STOPPING, 5)
    story.end(job, cause=EndCause.STOPPED, signal=15)
    assert (story.job(job).state, story.free_gpus("n1")) == (JobState.CANCELLED, 8)


def test_a_gang_runs_only_when_every_rank_has_started() -> None:
    story = Story()
    story.node("n1", 8)
    job = story.submit(spec(2, tasks=2))
    story.place(job, ("n1", 0), ("n1", 2))
    story.started(job, 1)
    assert story.job(job).state is JobState.STARTING
    story.started(job, 0)
    assert story.job(job).state is JobState.RUNNING


def test_exit_zero_succeeds_and_keeps_the_code() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.end(job, exit_code=0)
    done = story.job(job)
    assert (done.state, done.exit_code, done.attempts[0].outcome) == (JobState.SUCCEEDED, 0, Outcome.SUCCEEDED)


def test_a_failed_member_ends_the_gang_and_its_code_is_the_jobs() -> None:
    """Fault 78: one rank dies, the others wait for it and hold their GPUs."""
    story = Story()
    story.node("n1", 8)
    job = story.submit(spec(1, tasks=3))
    story.run(job, ("n1", 0), ("n1", 1), ("n1", 2))
    story.wait(10).end(job, 1, exit_code=7)
    attempt = story.job(job).attempts[-1]
    assert attempt.stop is not None
    assert attempt.stop.cause is StopCause.MEMBER_ENDED
    assert story.free_gpus("n1") == 6, "the ended rank's GPU is free, the others are held"
    story.wait(10).end(job, 0, cause=EndCause.STOPPED, signal=15)
    story.wait(10).end(job, 2, cause=EndCause.STOPPED, signal=9)
    assert (story.job(job).state, story.job(job).exit_code) == (JobState.FAILED, 7)


@pytest.mark.parametrize(
    ("started", "end"),
    [((1,), {"cause": EndCause.GONE}), ((0, 1), {"cause": EndCause.EXITED, "exit_code": 1})],
    ids=["told to stop before it had begun", "failed because its peer had"],
)
def test_who_ended_first_is_not_for_a_node_to_say_whose_clock_is_behind(
    started: tuple[int, ...], end: dict[str, object]
) -> None:
    """Else a gang that failed would be requeued as if its node had, or blame the wrong rank."""
    story = Story()
    story.node("n1")
    story.node("n2")
    job = story.submit(spec(1, tasks=2))
    story.place(job, ("n2", 0), ("n1", 0))
    story.wait(5_000)
    story.started(job, *started)
    story.wait(5_000)
    story.end(job, 1, exit_code=3)
    story.wait(10)
    story.end(job, 0, at=Instant(1), **end)
    reason = story.job(job).reason
    assert reason is not None
    assert (story.job(job).state, story.job(job).exit_code, reason.facts["rank"]) == (JobState.FAILED, 3, 1)


def test_a_retry_follows_a_failure_after_a_pause_and_only_as_often_as_asked() -> None:
    story = Story(Policy(backoff_first_ms=1_000))
    story.node("n1")
    job = story.submit(spec(retries_max=1))
    story.run(job, ("n1", 0))
    story.end(job, exit_code=3)
    waiting = story.job(job)
    assert (waiting.state, waiting.not_before) == (JobState.PENDING, story.now + 1_000)
    assert waiting.reason is not None
    assert waiting.reason.code is ReasonCode.RETRY_BACKOFF
    assert not story.state.indexes.waiting, "the engine isn't offered a job in its pause"
    assert story.state.indexes.next_deadline() == story.now + 1_000
    assert story.deadlines() == ()
    story.wait(1_000).deadlines()
    assert story.job(job).not_before == NEVER
    assert len(story.state.indexes.waiting) == 1
    story.run(job, ("n1", 0))
    story.end(job, exit_code=4)
    assert (story.job(job).state, story.job(job).exit_code) == (JobState.FAILED, 4)
    assert [attempt.exit_code for attempt in story.job(job).attempts] == [3, 4]


@pytest.mark.parametrize("cause", [EndCause.RUNNER_LOST, EndCause.NODE_REBOOTED, EndCause.GONE])
def test_a_lost_node_requeues_without_costing_a_retry(cause: EndCause) -> None:
    """Fault 43: a machine's restart must not look like exit code 1 of the user's program."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(retries_max=0))
    story.run(job, ("n1", 0))
    story.end(job, cause=cause)
    again = story.job(job)
    assert (again.state, again.requeues_used, again.retries_used) == (JobState.PENDING, 1, 0)
    assert again.attempts[0].outcome is Outcome.NODE_FAILED


def test_a_start_that_the_node_could_not_make_costs_nothing_and_is_tried_again_after_growing_pauses() -> None:
    story = Story(Policy(requeues_max=2, attempts_max=8))
    story.node("n1")
    job, pauses = story.submit(), []
    for _ in range(7):
        story.place(job, ("n1", 0))
        story.end(job, cause=EndCause.NEVER_STARTED, error="disk full")
        again = story.job(job)
        assert (again.state, again.requeues_used) == (JobState.PENDING, 0)
        pauses.append(again.not_before - story.now if again.not_before != NEVER else 0)
        story.wait(60_000).deadlines()
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    story.place(job, ("n1", 0))
    story.end(job, cause=EndCause.NEVER_STARTED, error="disk full")
    assert story.job(job).requeues_used == 1, "a bound there is: the attempts that a job may have"


def test_a_job_that_forbids_requeues_starts_again_only_where_no_part_of_it_ran() -> None:
    """Rank 1 of a gang is told to start once rank 0 has; one without a rendezvous port may have begun before."""
    story = Story(Policy(failed_starts_max=100))
    story.node("n1")

    def after(port: int, *ends: tuple[int, EndCause]) -> JobState:
        job = story.submit(spec(0, tasks=len(ends), requeue=False))
        story.place(job, *(("n1", 0) for _ in ends), port=port)
        for rank, cause in ends:
            story.end(job, rank, cause=cause, error="full")
        return story.job(job).state

    refused, stopped, gone = EndCause.NEVER_STARTED, EndCause.STOPPED, EndCause.GONE
    assert after(0, (0, refused)) is JobState.PENDING
    assert after(20_001, (0, refused), (1, gone)) is JobState.PENDING
    assert after(20_002, (1, refused), (0, stopped)) is JobState.NODE_FAILED
    assert after(0, (0, refused), (1, stopped)) is JobState.NODE_FAILED
    assert after(0, (0, refused), (1, refused)) is JobState.PENDING
    assert after(20_003, (0, gone)) is JobState.NODE_FAILED, "it may have run"


def test_requeues_are_bounded_and_then_the_job_ends_node_failed() -> None:
    story = Story(Policy(requeues_max=2))
    story.node("n1")
    job = story.submit()
    for _ in range(3):
        story.wait(60_000).deadlines()
        story.run(job, ("n1", 0))
        story.end(job, cause=EndCause.RUNNER_LOST, error="killed")
    done = story.job(job)
    assert done.state is JobState.NODE_FAILED
    assert done.reason is not None
    assert done.reason.code is ReasonCode.REQUEUES_SPENT
    assert "2 times" in describe(done.reason)


def test_a_lost_job_is_requeued_at_once_and_when_it_is_lost_again_after_pauses_that_grow_to_a_bound() -> None:
    story = Story(Policy(requeues_max=9, backoff_first_ms=1_000, backoff_max_ms=10_000))
    story.node("n1")
    job, pauses = story.submit(), []
    for _ in range(7):
        story.run(job, ("n1", 0))
        story.end(job, cause=EndCause.RUNNER_LOST)
        again = story.job(job)
        pauses.append(again.not_before - story.now if again.not_before != NEVER else 0)
        story.wait(10_000).deadlines()
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


def test_the_longest_pause_holds_however_often_a_job_was_tried() -> None:
    policy = Policy(backoff_first_ms=1, backoff_max_ms=2**40)
    assert [backoff_ms(tries, policy) for tries in (0, 1, 31, 32, 33, 1_000)] == [1, 2, 2**31, 2**32, 2**32, 2**32]
    assert backoff_ms(1_000, Policy(backoff_first_ms=1_000, backoff_max_ms=60_000)) == 60_000


@pytest.mark.parametrize(
    ("ends", "decides"),
    [
        ([(2, 10, 0), (1, 11, 0), (0, 12, 0)], 0),  # where none failed
        ([(0, 10, 0), (2, 11, 4), (1, 12, 3)], 2),  # the first that failed, not the first that ended
        ([(0, 10, 0), (2, 11, 4), (1, 11, 3)], 1),  # the lowest rank of several at the same time
        ([(0, 10, None), (1, 11, 3), (2, 12, 0)], 1),  # one that failed by itself before one that its node ended
    ],
)
def test_one_rank_says_how_a_gang_ended(ends: list[tuple[int, int, int | None]], decides: int) -> None:
    """All are told of in one report, as after a time without a control plane."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(tasks=3))
    story.run(job, *(("n1", rank) for rank in range(3)))
    story.wait(60_000)
    begun = story.now - 60_000
    reported = {
        rank: TaskEnd(
            cause=EndCause.STOPPED if code is None else EndCause.EXITED,
            at=Instant(begun + at),
            exit_code=code,
            error="",
        )
        for rank, at, code in ends
    }
    *_, last = end_tasks(story.job(job), reported, story.now, story.state.policy)
    assert isinstance(last, JobFinished)
    assert last.exit_code == reported[decides].exit_code
    assert last.reason.facts.get("rank", 0) == decides


def test_a_job_that_forbids_requeues_ends_node_failed_at_once() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(requeue=False))
    story.run(job, ("n1", 0))
    story.end(job, cause=EndCause.GONE)
    assert story.job(job).state is JobState.NODE_FAILED


def test_a_taken_port_is_requeued_at_no_cost_and_with_a_bound() -> None:
    story = Story(Policy(port_retries_max=1))
    story.node("n1")
    job = story.submit(spec(2))
    story.place(job, ("n1", 0), port=20_001)
    story.end(job, cause=EndCause.PORT_TAKEN)
    again = story.job(job)
    assert (again.state, again.retries_used, again.requeues_used, again.not_before) == (JobState.PENDING, 0, 0, NEVER)
    story.place(job, ("n1", 0), port=20_002)
    story.end(job, cause=EndCause.PORT_TAKEN)
    assert story.job(job).state is JobState.FAILED
    assert story.job(job).reason.code is ReasonCode.PORT_TAKEN  # type: ignore[union-attr]  # ended, so there is one


def test_out_of_memory_outranks_a_parent_that_exited_zero() -> None:
    """Faults 108 and 111: out of memory recorded as success, or as a bare 137."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(retries_max=3))
    story.run(job, ("n1", 0))
    story.end(job, exit_code=0, oom=True, peak_memory_mb=512)
    done = story.job(job)
    assert done.state is JobState.OUT_OF_MEMORY, "and it isn't retried"
    assert done.reason is not None
    assert "512 MiB" in describe(done.reason)
    assert "--memory" in hint_for(done.reason)


def test_a_signal_that_stoker_did_not_send_is_named() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.end(job, signal=9)
    done = story.job(job)
    assert (done.state, done.exit_code) == (JobState.FAILED, None)
    assert done.reason is not None
    assert done.reason.code is ReasonCode.KILLED_BY_SIGNAL


def test_the_time_limit_counts_from_the_start_and_ends_as_timeout() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(time_limit_ms=5_000, retries_max=3))
    story.place(job, ("n1", 0))
    story.wait(60_000)
    assert story.deadlines() == (), "waiting for the agent isn't running"
    story.started(job)
    assert story.wait(4_999).deadlines() == ()
    (stop,) = story.wait(1).deadlines()
    assert isinstance(stop, AttemptStopping)
    assert stop.cause is StopCause.TIMEOUT
    assert story.deadlines() == (), "it is told once"
    story.end(job, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).state is JobState.TIMEOUT, "and it isn't retried"


def test_a_job_without_a_limit_gets_the_default_one() -> None:
    story = Story(Policy(time_limit_default_ms=77_000))
    assert story.job(story.submit(spec(time_limit_ms=0))).spec.time_limit_ms == 77_000


def test_a_pending_job_is_cancelled_at_once_and_is_never_offered_again() -> None:
    """Fault 32, and the seed whose cancelled pending task still ran."""
    story = Story()
    story.node("n1")
    job = story.submit()
    story.cancel(job)
    assert story.job(job).state is JobState.CANCELLED
    assert not story.state.indexes.waiting


def test_a_job_in_its_pause_can_be_cancelled() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(retries_max=5))
    story.run(job, ("n1", 0))
    story.end(job, exit_code=1)
    story.cancel(job)
    assert story.job(job).state is JobState.CANCELLED
    assert story.state.indexes.next_deadline() is None


def test_cancel_between_placement_and_the_agents_answer_gives_the_gpus_back() -> None:
    """Fault 7: cancel during provisioning leaves the instance busy with no run."""
    story = Story()
    story.node("n1", 4)
    job = story.submit(spec(4))
    story.place(job, ("n1", 0))
    story.cancel(job)
    assert story.free_gpus("n1") == 0, "held until the node says that nothing runs"
    story.end(job, cause=EndCause.GONE)
    assert (story.job(job).state, story.free_gpus("n1")) == (JobState.CANCELLED, 4)


def test_cancel_wins_over_a_failing_member_so_that_nothing_is_retried() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(1, tasks=2, retries_max=9))
    story.run(job, ("n1", 0), ("n1", 1))
    story.end(job, 0, exit_code=1)
    story.cancel(job)
    story.end(job, 1, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).state is JobState.CANCELLED


def test_cancelling_twice_is_answered_again_and_cancelling_an_ended_job_is_refused() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    assert len(story.cancel(job)) == 1
    assert story.cancel(job) == ()
    story.end(job, cause=EndCause.STOPPED, signal=15)
    assert story.refused(Cancel(by=ANNA, target=JobRef(job))).code == "job_ended"
    assert story.refused(Cancel(by=ANNA, target=JobRef(JobId(99)))).code == "job_unknown"


def test_late_and_repeated_ends_change_nothing() -> None:
    """The seed decremented its quota again for each."""
    story = Story()
    node = story.node("n1", 4)
    job = story.submit(spec(4, retries_max=1))
    story.run(job, ("n1", 0))
    key, _ = story.key(job)
    story.end(job, exit_code=1)
    assert story.finish(node, key, exit_code=1) == ()
    story.wait(60_000).deadlines()
    story.run(job, ("n1", 0))
    assert story.finish(node, key, exit_code=1) == (), "attempt 1 says nothing about attempt 2"
    assert story.job(job).state is JobState.RUNNING
    assert story.finish(node, TaskKey(JobId(4711), 1, 0), exit_code=0) == ()


def test_a_node_can_not_end_a_task_of_another() -> None:
    story = Story()
    story.node("n1")
    other = story.node("n2")
    job = story.submit()
    story.run(job, ("n1", 0))
    assert story.finish(other, story.key(job)[0], exit_code=0) == ()
    assert story.job(job).state is JobState.RUNNING


def test_silence_ends_nothing_and_holds_everything() -> None:
    story = Story()
    node = story.node("n1", 4)
    job = story.submit(spec(2))
    story.run(job, ("n1", 0))
    story.do(NodeSilent(by=ANNA, node=node))
    assert story.job(job).state is JobState.RUNNING
    assert node not in story.state.indexes.free, "it gets no new work"
    story.do(NodeResponded(by=ANNA, node=node))
    assert story.free_gpus("n1") == 2


def test_a_leader_that_ended_before_its_children_makes_the_job_stopping() -> None:
    story = Story()
    node = story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.do(ReportEnding(by=ANNA, node=node, keys=(story.key(job)[0],)))
    assert story.job(job).state is JobState.STOPPING
    assert story.state.indexes.next_deadline() is None, "no time limit on what has ended"
    story.end(job, exit_code=0)
    assert story.job(job).state is JobState.SUCCEEDED


def test_ended_jobs_beyond_the_bound_are_pruned_oldest_end_first_and_ids_stay_used() -> None:
    story = Story(Policy(ended_jobs_max=10))
    story.node("n1")
    old = story.submit()
    story.run(old, ("n1", 0))
    for _ in range(12):
        story.wait(1).cancel(story.submit())
    story.wait(1).end(old, exit_code=0)
    story.deadlines()
    assert old in story.state.jobs, "it ended last"
    assert len(story.state.jobs) == 10
    assert story.refused(Cancel(by=ANNA, target=JobRef(JobId(2)))).code == "job_forgotten"
    assert story.submit() == 14


def test_a_plan_that_no_longer_holds_is_dropped_action_by_action() -> None:
    story = Story()
    node = story.node("n1", 4)
    first, second = story.submit(spec(4)), story.submit(spec(4))
    story.place(first, ("n1", 0))
    held = story.job(first).attempts[-1].tasks[0].placement
    plan = Plan(
        actions=(Place(job=second, attempt=1, tasks=(held,)), Place(job=first, attempt=1, tasks=(held,))), reasons={}
    )
    assert settle_all(story, plan) == []
    assert story.job(second).state is JobState.PENDING
    assert node in story.state.nodes


def test_two_actions_of_one_plan_never_take_one_gpu() -> None:
    """Fault 106: tasks just assigned were not counted."""
    story = Story()
    story.node("n1", 4)
    first, second = story.submit(spec(3)), story.submit(spec(3))
    other = Story()
    other.node("n1", 4)
    other.place(other.submit(spec(3)), ("n1", 0))
    tasks = (other.job(JobId(1)).attempts[-1].tasks[0].placement,)
    plan = Plan(actions=tuple(Place(job=j, attempt=1, tasks=tasks) for j in (first, second)), reasons={})
    assert len(settle_all(story, plan)) == 1
    assert story.job(second).state is JobState.PENDING


def test_a_port_is_held_by_one_live_attempt_of_an_address() -> None:
    story = Story()
    story.node("n1", 4)
    first, second = story.submit(spec(2)), story.submit(spec(2))
    story.place(first, ("n1", 0), port=20_000)
    with pytest.raises(AssertionError, match="refused"):
        story.place(second, ("n1", 2), port=20_000)
    story.place(second, ("n1", 2), port=20_001)
    story.started(first)
    story.end(first, exit_code=0)
    assert dict(story.state.indexes.ports) == {"addr-n1": {20_001: second}}


def test_re_registration_keeps_what_runs_and_adds_no_gpu() -> None:
    """The seed added the node's GPUs again and marked them idle."""
    story = Story()
    story.node("n1", 4)
    job = story.submit(spec(3))
    story.run(job, ("n1", 0))
    assert story.register("n1", inventory("n1", 4)) == ()
    story.compare("n1", story.status(job))
    assert (story.free_gpus("n1"), story.job(job).state) == (1, JobState.RUNNING)


def test_an_end_that_overtakes_its_start_still_tells_the_other_ranks_that_rank_zero_has_started() -> None:
    """Found by the rig: the other ranks of a gang waited for ever for a report that came too late to count."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(1, tasks=2))
    story.place(job, ("n1", 0), ("n1", 1), port=20_000)
    story.end(job, 0, exit_code=0)
    assert story.job(job).attempts[-1].tasks[0].started_at == story.now
    story.started(job, 1)
    assert story.job(job).attempts[-1].all_started
    story.end(job, 1, exit_code=0)
    assert story.job(job).state is JobState.SUCCEEDED


def test_each_outcome_but_a_requeue_leaves_a_job_in_a_final_state() -> None:
    assert set(FINAL_STATES) == set(Outcome) - {Outcome.REQUEUED, Outcome.PREEMPTED}
    assert set(FINAL_STATES.values()) <= FINAL
