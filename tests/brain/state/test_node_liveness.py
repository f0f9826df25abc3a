"""Leases of attempts: L1 to L3 of `state.leases`, and N1, N2 and N4 of `admit.silence`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.ids import CONTROL, Epoch, JobId, node_principal
from stoker.brain.domain.job import EndCause, StopCause
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.policy import LEASE_KILL_MS, LEASE_MS_MAX, Policy, surely_over_ms
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.state.codec import decode_fact, encode_fact
from stoker.brain.state.commands import BeginEpoch, LoseSilent, NodeResponded, NodeSilent, Submit
from stoker.brain.state.events.job import JobPlaced
from stoker.brain.state.events.node import NodeLost, NodeUnreachable, OrphanTasksFound
from stoker.brain.state.leases import silence_of
from tests.brain.state.leased import LEASE_MS, N1, N2, OVER_MS, leased, lose
from tests.brain.state.story import ANNA, Story, inventory, spec


def lease_of(story: Story, job: JobId) -> int:
    return story.job(job).attempts[-1].lease_ms


# --- which lease an attempt has -------------------------------------------------------------------------------------


def test_an_attempt_gets_the_lease_of_the_policy_when_it_is_placed() -> None:
    story = leased()
    job = story.submit()
    story.place(job, ("n1", 0))
    assert lease_of(story, job) == LEASE_MS


@pytest.mark.parametrize(
    ("wish", "policy", "lease"), [(0, LEASE_MS, 0), (60_000, LEASE_MS, 60_000), (60_000, 0, 60_000)]
)
def test_a_jobs_own_wish_comes_before_the_policy(wish: int, policy: int, lease: int) -> None:
    story = leased(policy)
    job = story.submit(spec(lost_after_ms=wish))
    story.place(job, ("n1", 0))
    assert lease_of(story, job) == lease


def test_an_attempt_has_no_lease_where_one_of_its_nodes_keeps_none() -> None:
    """Where the runner's own death wouldn't end its tasks, silence never requeues."""
    story = leased(LEASE_MS, "n1")
    story.node("n2", 4, leases=False)
    gang = story.submit(spec(tasks=2))
    story.place(gang, ("n1", 0), ("n2", 0))
    alone = story.submit()
    story.place(alone, ("n1", 1))
    assert (lease_of(story, gang), lease_of(story, alone)) == (0, LEASE_MS)


def test_members_of_an_array_have_its_lease() -> None:
    story = leased(0)
    array = story.submit(spec(array=parse_array("0-1"), lost_after_ms=60_000))
    story.decide()
    attempts = [story.named(f"{array}_{index}").attempts[-1] for index in (0, 1)]
    assert [attempt.lease_ms for attempt in attempts] == [60_000, 60_000]


def test_a_change_of_the_policy_is_for_attempts_to_come() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(2), policy=Policy(attempt_lease_ms=0)))
    story.compare("n2")
    assert lease_of(story, job) == LEASE_MS
    lose(story, "n1")
    story.place(job, ("n2", 0))
    assert lease_of(story, job) == 0


@pytest.mark.parametrize("wish_ms", [1, 29_999, LEASE_MS_MAX + 1, -5])
def test_a_wish_that_heartbeats_can_not_keep_is_refused_with_the_range(wish_ms: int) -> None:
    story = leased()
    refusal = story.refused(Submit(by=ANNA, specs=(spec(lost_after_ms=wish_ms),)))
    assert refusal.code == "bad_lost_after"
    assert "from 30s to 30d" in refusal.message
    assert "10m" in refusal.hint


def test_a_cluster_without_leases_says_so_to_who_wishes_a_bad_one() -> None:
    refusal = leased(0).refused(Submit(by=ANNA, specs=(spec(lost_after_ms=5),)))
    assert "never: it waits for its node" in refusal.hint


# --- when it is over ------------------------------------------------------------------------------------------------


def test_silence_as_long_as_lease_and_bounds_ends_the_attempt_as_lost_and_requeues_it() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    lost, strays, *_ = lose(story, "n1")
    assert (lost, type(strays)) == (NodeLost(node=N1, silent_ms=OVER_MS), OrphanTasksFound)
    assert story.job(job).state is JobState.PENDING
    (attempt,) = story.job(job).attempts
    (task,) = attempt.tasks
    assert (attempt.outcome, task.end and task.end.cause) == (Outcome.LOST, EndCause.SILENT)
    assert task.end is not None
    assert not task.end.proved
    assert task.end.error == "node n1 was not heard of for 10m 27s, and after 10m it ends its work by itself"
    assert story.decide() == [str(job)]
    assert story.job(job).attempts[-1].tasks[0].placement.node == N2


def test_a_moment_before_that_nothing_ends() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    assert lose(story, "n1", OVER_MS - 1) == ()
    assert story.job(job).state is JobState.RUNNING


@given(lease_ms=st.integers(1_000, LEASE_MS_MAX), silent_ms=st.integers(0, 2 * LEASE_MS_MAX))
def test_no_attempt_is_requeued_before_its_runner_must_have_killed_it_on_the_slowest_clock(
    lease_ms: int, silent_ms: int
) -> None:
    """In the order of DESIGN: lease, drift bound, kill bound."""
    story = leased(lease_ms, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    lose(story, "n1", silent_ms)
    if story.job(job).state is not JobState.RUNNING:
        # A clock that is slow by 2 % shows `lease_ms` after 102 % of it, to the millisecond that it may be off.
        assert silent_ms > lease_ms * 102 // 100 + LEASE_KILL_MS
    else:
        assert silent_ms < lease_ms * 1.02 + LEASE_KILL_MS + 5_001


def test_what_has_no_lease_waits_for_its_node_beside_what_has() -> None:
    story = leased()
    stays = story.submit(spec(lost_after_ms=0))
    goes = story.submit()
    story.run(stays, ("n1", 0))
    story.run(goes, ("n1", 1))
    lose(story, "n1", 10 * OVER_MS)
    assert story.job(stays).state is JobState.RUNNING
    assert story.job(goes).state is JobState.PENDING


def test_attempts_of_one_node_are_settled_each_when_its_own_lease_has_run_out() -> None:
    story = leased()
    soon, late = story.submit(spec(lost_after_ms=60_000)), story.submit()
    story.run(soon, ("n1", 0))
    story.run(late, ("n1", 1))
    lose(story, "n1", surely_over_ms(60_000))
    assert (story.job(soon).state, story.job(late).state) == (JobState.PENDING, JobState.RUNNING)
    lose(story, "n1")
    assert story.job(late).state is JobState.PENDING
    assert [stray.job for stray in story.state.nodes[N1].strays] == [soon, late]


def test_a_node_that_is_reachable_has_lost_nothing() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    assert story.do(LoseSilent(by=CONTROL, node=N1, silent_ms=OVER_MS)) == ()
    lose(story, "n1", OVER_MS - 1)
    story.do(NodeResponded(by=node_principal(N1), node=N1))
    assert story.do(LoseSilent(by=CONTROL, node=N1, silent_ms=OVER_MS)) == ()


def test_an_agent_that_was_exchanged_for_one_that_keeps_no_leases_ends_nothing_by_silence() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    story.register("n1", inventory("n1", 4, leases=False))
    assert lose(story, "n1") == ()
    assert story.job(job).state is JobState.RUNNING


def test_a_job_that_may_not_be_requeued_ends_node_failed_and_says_why() -> None:
    story = leased()
    job = story.submit(spec(requeue=False))
    story.run(job, ("n1", 0))
    lose(story, "n1")
    ended = story.job(job)
    assert (ended.state, ended.attempts[-1].outcome) == (JobState.NODE_FAILED, Outcome.LOST)
    assert ended.reason is not None
    assert ended.reason.code is ReasonCode.NODE_FAILED
    assert "was not heard of for 10m 27s" in describe(ended.reason)


def test_a_job_that_is_lost_again_and_again_ends_when_its_requeues_are_spent() -> None:
    story = leased(requeues_max=1)
    job = story.submit()
    for node in ("n1", "n2"):
        story.run(job, (node, 0))
        lose(story, node)
    assert story.job(job).state is JobState.NODE_FAILED


def test_a_start_that_was_never_confirmed_is_settled_as_well() -> None:
    """Its node may have got it with its last breath."""
    story = leased()
    job = story.submit()
    story.place(job, ("n1", 0))
    lose(story, "n1")
    assert story.job(job).attempts[0].outcome is Outcome.LOST


@pytest.mark.parametrize("order", ["cancel", "time"])
def test_an_order_under_way_is_settled_by_the_lease_and_decides_how_the_job_ends(order: str) -> None:
    story = leased()
    job = story.submit(spec(time_limit_ms=1_000))
    story.run(job, ("n1", 0))
    story.do(NodeSilent(by=CONTROL, node=N1))
    if order == "cancel":
        story.cancel(job)
    else:
        story.wait(1_000).deadlines()
    assert story.job(job).state is JobState.STOPPING
    lose(story, "n1")
    assert story.job(job).state is (JobState.CANCELLED if order == "cancel" else JobState.TIMEOUT)
    end = story.job(job).attempts[-1].tasks[0].end
    assert end is not None
    assert end.cause is EndCause.SILENT
    assert story.state.nodes[N1].strays


# --- gangs ----------------------------------------------------------------------------------------------------------


def test_ranks_elsewhere_are_told_to_stop_and_proved_gone_before_a_gang_is_requeued() -> None:
    story = leased()
    job = story.submit(spec(tasks=2))
    story.run(job, ("n1", 0), ("n2", 0))
    lose(story, "n1")
    attempt = story.job(job).attempts[-1]
    assert story.job(job).state is JobState.STOPPING
    assert attempt.stop is not None
    assert attempt.stop.cause is StopCause.MEMBER_ENDED
    assert [task.placement.node for task in attempt.open_tasks] == [N2]
    story.end(job, 1, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).state is JobState.PENDING
    assert story.job(job).attempts[0].outcome is Outcome.LOST


def test_a_gang_on_two_silent_nodes_is_requeued_when_the_second_lease_has_run_out() -> None:
    story = leased()
    job = story.submit(spec(tasks=2))
    story.run(job, ("n1", 0), ("n2", 0))
    lose(story, "n1")
    story.wait(5_000)
    lose(story, "n2")
    assert story.job(job).state is JobState.PENDING
    assert story.job(job).attempts[0].outcome is Outcome.LOST
    assert story.state.nodes[N1].strays
    assert story.state.nodes[N2].strays


# --- what is said meanwhile -------------------------------------------------------------------------------------------


def said_of(story: Story, job: JobId) -> str:
    reason = silence_of(story.state, story.job(job))
    return describe(reason) if reason else ""


def test_a_job_on_a_silent_node_says_since_when_and_what_becomes_of_it() -> None:
    story = leased()
    moves, stays, waits = story.submit(), story.submit(spec(requeue=False)), story.submit(spec(lost_after_ms=0))
    for gpu, job in enumerate((moves, stays, waits)):
        story.run(job, ("n1", gpu))
    assert silence_of(story.state, story.job(moves)) is None
    story.do(NodeSilent(by=CONTROL, node=N1))
    assert "its node n1 has not been heard of since 1970-01-01 00:16:40 UTC; if that lasts 10m 27s" in said_of(
        story, moves
    )
    assert said_of(story, moves).endswith("and the job is started elsewhere")
    assert said_of(story, stays).endswith("and the job ends")
    assert said_of(story, waits).endswith("and the job waits for it: it has no lease")
    story.cancel(moves)
    assert said_of(story, moves).endswith("and the job ends")
    lose(story, "n1")
    assert said_of(story, moves) == said_of(story, stays) == ""


def test_a_job_on_a_silent_node_tells_the_last_fault_that_the_node_has_told() -> None:
    story = leased()
    moves, waits = story.submit(), story.submit(spec(lost_after_ms=0))
    for gpu, job in enumerate((moves, waits)):
        story.run(job, ("n1", gpu))
    story.register(
        "n1", replace(story.state.nodes[N1].inventory, fault="it has no runner that works: Read-only file system")
    )
    story.do(NodeSilent(by=CONTROL, node=N1))
    for job in (moves, waits):
        assert said_of(story, job).endswith(
            "; what its agent said last: it has no runner that works: Read-only file system"
        )


def test_silence_counts_from_when_a_node_was_last_heard_of() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    story.wait(15_250).do(NodeSilent(by=CONTROL, node=N1, silent_ms=15_250))
    assert story.state.nodes[N1].silent_since == story.now - 15_250
    assert "has not been heard of since 1970-01-01 00:16:40 UTC" in said_of(story, job)


def test_in_a_log_that_does_not_say_when_it_was_heard_of_the_fact_itself_is_when_it_fell_silent() -> None:
    story = leased()
    story.wait(5_000).apply(NodeUnreachable(node=N1))
    assert story.state.nodes[N1].silent_since == story.now


def test_a_node_that_keeps_no_leases_any_more_is_waited_for() -> None:
    story = leased()
    job = story.submit()
    story.run(job, ("n1", 0))
    story.register("n1", inventory("n1", 4, leases=False))
    story.do(NodeSilent(by=CONTROL, node=N1))
    assert said_of(story, job).endswith("and the job waits for it: it has no lease")


# --- what is written down -------------------------------------------------------------------------------------------


def test_a_placement_of_an_earlier_version_has_no_lease() -> None:
    story = leased()
    job = story.submit()
    story.place(job, ("n1", 0))
    record = next(record for record in story.log if b'"job_placed"' in record)
    fact = decode_fact(record)
    assert isinstance(fact.event, JobPlaced)
    assert fact.event.lease_ms == LEASE_MS
    old = decode_fact(record.replace(b'"lease_ms":600000,', b""))
    assert isinstance(old.event, JobPlaced)
    assert old.event.lease_ms == 0
    assert encode_fact(fact) == record
