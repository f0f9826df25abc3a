"""GPUs in quarantine: N3 of `admit.silence`, and what ends it."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import GpuUuid, JobId, node_principal
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState, Outcome
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.quota import NOTHING
from stoker.brain.domain.report import Registration, Started, TaskPhase
from stoker.brain.state.commands import NodeResponded, Register, ReportStarted
from stoker.brain.state.events.node import LeaseBroken, OrphanTasksFound
from stoker.brain.state.invariants import no_orphan_beside_work
from tests.brain.state.leased import LEASE_MS, N1, OVER_MS, leased, lose
from tests.brain.state.story import inventory, spec


def test_gpus_of_what_was_settled_without_proof_are_charged_to_nobody_and_not_offered() -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit(spec(2))
    story.run(job, ("n1", 1))
    lose(story, "n1")
    (stray,) = story.state.nodes[N1].strays
    assert stray == OrphanTask(
        job=job, attempt=1, rank=0, gpus=(GpuUuid("n1-1"), GpuUuid("n1-2")), settled_at=story.now
    )
    assert N1 not in story.state.indexes.held
    assert story.state.indexes.usage_ledger.used_by(story.job(job).spec.tenant) == NOTHING
    # Also where some words of the old stream arrive after all.
    story.do(NodeResponded(by=node_principal(N1), node=N1))
    assert story.free_gpus("n1") == 2
    waits = story.submit(spec(3))
    story.decide()
    assert story.job(waits).state is JobState.PENDING


@pytest.mark.parametrize("phase", [None, TaskPhase.ENDED])
def test_a_node_that_says_that_they_are_clean_ends_the_quarantine(phase: TaskPhase | None) -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit(spec(2))
    story.run(job, ("n1", 0))
    status = story.status(job, phase=phase or TaskPhase.RUNNING)
    lose(story, "n1")
    events = story.compare("n1", *((status,) if phase else ()))
    assert not any(isinstance(event, LeaseBroken) for event in events)
    assert story.state.node_state(N1) is NodeState.READY
    assert (story.free_gpus("n1"), story.state.nodes[N1].strays) == (4, ())


def test_the_late_end_of_a_lost_task_ends_its_quarantine_and_changes_nothing_else() -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    key, _ = story.key(job)
    lose(story, "n1")
    (event,) = story.finish(N1, key, cause=EndCause.LEASE_ENDED)
    assert event == OrphanTasksFound(node=N1, strays=())
    assert story.finish(N1, key, cause=EndCause.LEASE_ENDED) == ()
    assert story.job(job).attempts[0].outcome is Outcome.LOST


def test_a_lease_that_ended_before_our_own_count_is_proof() -> None:
    """Its node came back in time to say it: the GPUs are free at once."""
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.end(job, cause=EndCause.LEASE_ENDED, signal=9)
    assert story.job(job).attempts[0].outcome is Outcome.LOST
    assert story.job(job).state is JobState.PENDING
    assert story.free_gpus("n1") == 4
    assert story.state.nodes[N1].strays == ()


@pytest.mark.parametrize("phase", [TaskPhase.STARTING, TaskPhase.RUNNING, TaskPhase.ENDING])
def test_a_node_that_still_runs_what_must_be_dead_is_told_to_stop_it_and_the_broken_lease_is_told_once(
    phase: TaskPhase,
) -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    status = story.status(job, phase=phase)
    lose(story, "n1")
    events = story.compare("n1", status)
    assert events[:2] == (
        LeaseBroken(node=N1, job=job, attempt=1, rank=0),
        OrphanTasksFound(node=N1, strays=(OrphanTask(job=job, attempt=1, rank=0, gpus=status.gpus),)),
    )
    assert story.free_gpus("n1") == 3
    assert story.compare("n1", status) == ()


def test_a_start_that_is_reported_of_what_must_be_dead_is_a_broken_lease() -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.place(job, ("n1", 2))
    key, _ = story.key(job)
    lose(story, "n1")
    started = ReportStarted(by=node_principal(N1), node=N1, started=Started(key=key, at=story.now, pid=7))
    broken, found = story.do(started)
    assert broken == LeaseBroken(node=N1, job=job, attempt=1, rank=0)
    assert found == OrphanTasksFound(node=N1, strays=(OrphanTask(job=job, attempt=1, rank=0, gpus=(GpuUuid("n1-2"),)),))
    assert story.do(started) == ()


def test_what_a_person_settled_breaks_no_lease() -> None:
    """`node forget --force` needs no proof and promises none."""
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    status = story.status(job)
    story.forget("n1")
    story.register("n1", inventory("n1", 4, leases=True))
    events = story.compare("n1", status)
    assert [type(event) for event in events][:1] == [OrphanTasksFound]
    assert story.free_gpus("n1") == 3


def test_a_machine_that_was_made_anew_gets_its_old_name_although_work_was_lost_there() -> None:
    """Its old data folder is gone, and what was in it is surely dead."""
    story = leased(LEASE_MS, "n2")
    story.register("n1", inventory("n1", 4, leases=True, uid="old"))
    story.compare("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    lose(story, "n1", OVER_MS - 1)
    new = Register(
        by=node_principal(N1), registration=Registration(node=N1, inventory=inventory("n1", 4, leases=True, uid="new"))
    )
    assert story.refused(new).code == "node_name_taken"
    lose(story, "n1")
    story.do(new)
    story.compare("n1")
    assert story.free_gpus("n1") == 4


def test_the_check_of_truths_sees_a_gpu_in_quarantine_that_is_offered_or_given_away() -> None:
    story = leased(LEASE_MS, "n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    state, node = story.state, story.state.nodes[N1]
    of_another = OrphanTask(
        job=JobId(77), attempt=1, rank=0, gpus=(GpuUuid("n1-0"), GpuUuid("n1-1")), settled_at=story.now
    )
    state.nodes[N1] = replace(node, strays=(of_another,))  # behind the back of the look-ups
    offered, held = no_orphan_beside_work(state)
    assert "GPU n1-1 is offered" in offered
    assert "GPU n1-0 is in quarantine" in held
