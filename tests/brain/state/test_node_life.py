"""The life of a node as facts: joining, silence, return, strays, and being forgotten."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, StopCause
from stoker.brain.domain.lifecycle import JobState, NodeState, Outcome
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.reason import describe
from stoker.brain.domain.report import Registration, Started, TaskInventory, TaskPhase, TaskStatus
from stoker.brain.state.commands import (
    CompareInventory,
    DrainNode,
    ForgetNode,
    NodeSilent,
    Register,
    ReportStarted,
    ResumeNode,
)
from stoker.brain.state.leases import silence_of
from tests.brain.state.story import ANNA, Story, inventory, spec


def test_a_task_that_had_started_and_is_absent_from_the_inventory_is_gone() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.compare("n1")
    assert story.job(job).state is JobState.PENDING
    assert story.job(job).attempts[0].outcome is Outcome.NODE_FAILED
    assert story.free_gpus("n1") == 8


def test_a_task_never_seen_to_start_is_left_for_its_start_to_be_sent_again() -> None:
    """Fault 126: killed between commit and dispatch, neither lost nor started twice."""
    story = Story()
    story.node("n1")
    job = story.submit()
    story.place(job, ("n1", 0))
    assert story.compare("n1") == ()
    assert story.job(job).state is JobState.STARTING


def test_an_inventory_tells_of_a_start_whose_report_was_lost() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.place(job, ("n1", 0))
    story.compare("n1", story.status(job))
    assert story.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("phase", [TaskPhase.ENDED, TaskPhase.ENDING, TaskPhase.STARTING])
def test_a_task_that_is_known_in_any_phase_is_not_gone(phase: TaskPhase) -> None:
    """Its `TaskFinished` says how it ended; the inventory doesn't."""
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.compare("n1", story.status(job, phase=phase))
    assert story.job(job).live_attempt is not None


def test_a_stray_is_kept_off_its_gpus_until_its_end_is_reported() -> None:
    story = Story()
    node = story.node("n1", 4)
    key = TaskKey(JobId(77), 1, 0)
    stray = TaskStatus(key=key, phase=TaskPhase.RUNNING, gpus=(GpuUuid("n1-0"), GpuUuid("n1-1")))
    story.compare("n1", stray)
    assert story.free_gpus("n1") == 2
    assert [s.job for s in story.state.nodes[node].strays] == [77]
    story.finish(node, key, cause=EndCause.STOPPED, signal=15)
    assert story.free_gpus("n1") == 4


def test_a_start_reported_for_an_attempt_that_is_over_makes_a_stray() -> None:
    story = Story()
    node = story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.forget("n1")
    story.node("n1")
    key = TaskKey(job, 1, 0)
    story.do(ReportStarted(by=ANNA, node=node, started=Started(key=key, at=story.now, pid=1)))
    assert [s.attempt for s in story.state.nodes[node].strays] == [1]


def test_forgetting_by_force_ends_attempts_as_lost_and_requeues() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    assert story.refused(ForgetNode(by=ANNA, node=NodeName("n1"), force=False)).code == "node_in_use"
    story.forget("n1")
    assert story.job(job).attempts[0].outcome is Outcome.LOST
    assert story.job(job).state is JobState.PENDING
    assert story.state.node_state(NodeName("n1")) is NodeState.FORGOTTEN
    assert NodeName("n1") not in story.state.indexes.free


def test_forgetting_one_node_of_a_gang_stops_the_ranks_elsewhere() -> None:
    story = Story()
    story.node("n1")
    story.node("n2")
    job = story.submit(spec(1, tasks=2))
    story.run(job, ("n1", 0), ("n2", 0))
    story.forget("n1")
    attempt = story.job(job).attempts[-1]
    assert attempt.stop is not None
    assert attempt.stop.cause is StopCause.MEMBER_ENDED
    story.end(job, 1, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).attempts[0].outcome is Outcome.LOST
    assert story.job(job).state is JobState.PENDING


def test_a_forgotten_node_joins_again_by_registering() -> None:
    """Fault 37: a controller that forgot a node must not answer NotFound for ever."""
    story = Story()
    story.node("n1", 4)
    story.forget("n1")
    story.node("n1", 4)
    assert story.state.node_state(NodeName("n1")) is NodeState.READY
    assert story.free_gpus("n1") == 4


@pytest.mark.parametrize("before", ["unknown", "forgotten"])
def test_a_node_gets_no_work_before_its_tasks_were_compared(before: str) -> None:
    """It may run what our ledger doesn't know: a job placed there meanwhile would find its GPUs taken and fail."""
    story = Story()
    if before == "forgotten":
        story.node("n1", 4)
        story.forget("n1")
    story.register("n1", inventory("n1", 4))
    assert NodeName("n1") not in story.state.indexes.free
    stray = TaskStatus(key=TaskKey(JobId(77), 1, 0), phase=TaskPhase.RUNNING, gpus=(GpuUuid("n1-0"),))
    story.compare("n1", stray)
    assert story.free_gpus("n1") == 3


def test_a_cluster_whose_nodes_come_and_go_always_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cloud, where every machine has a new name: the one that was forgotten first makes room."""
    monkeypatch.setattr("stoker.brain.state.admit.node.NODES_MAX", 2)
    story = Story()
    for number in range(1, 6):
        story.wait(10).node(f"n{number}")
        assert len(story.state.nodes) <= 2
        story.forget(f"n{number}")
    story.node("n6")
    story.node("n7")
    assert list(story.state.nodes) == ["n6", "n7"]
    joining = Registration(node=NodeName("n8"), inventory=inventory("n8"))
    assert story.refused(Register(by=ANNA, registration=joining)).code == "too_many_nodes"
    story.forget("n6")
    story.node("n8")


def test_a_node_that_was_renamed_under_its_work_is_refused_and_told_its_old_name() -> None:
    """Under the new name its tasks would be strays and killed, and their ends taken and lost."""
    story = Story()
    story.register("n1", inventory("n1", 0, uid="folder-1"))
    story.compare("n1")
    job = story.submit(spec(0))
    story.run(job, ("n1", 0))
    renamed = Registration(node=NodeName("n2"), inventory=inventory("n2", 0, uid="folder-1"))
    refusal = story.refused(Register(by=ANNA, registration=renamed))
    assert (refusal.code, refusal.facts["owner"]) == ("node_name_taken", "n1")
    story.end(job)
    story.do(Register(by=ANNA, registration=renamed))


def test_an_inventory_of_a_node_that_was_forgotten_meanwhile_is_refused() -> None:
    """Its stream ends, so that its agent registers anew; else it would stay connected to a node that takes no work."""
    story = Story()
    node = story.node("n1")
    story.forget("n1")
    tasks = TaskInventory(boot_id="boot-1", tasks=())
    refusal = story.refused(CompareInventory(by=node_principal(node), node=node, inventory=tasks))
    assert refusal.code == "node_forgotten"


def test_a_silent_empty_node_is_forgotten_without_force() -> None:
    story = Story()
    node = story.node("n1")
    story.do(NodeSilent(by=ANNA, node=node))
    story.forget("n1", force=False)
    assert story.state.node_state(node) is NodeState.FORGOTTEN


def test_draining_takes_no_new_work_and_becomes_drained_when_empty() -> None:
    story = Story()
    node = story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.do(DrainNode(by=ANNA, node=node, reason="new disk"))
    assert story.state.node_state(node) is NodeState.DRAINING
    assert story.job(job).state is JobState.RUNNING
    assert node not in story.state.indexes.free
    story.end(job)
    assert story.state.node_state(node) is NodeState.DRAINED
    story.do(ResumeNode(by=ANNA, node=node))
    assert story.state.node_state(node) is NodeState.READY


def test_a_faulty_node_takes_no_new_work_and_says_why_until_it_works_again() -> None:
    story = Story()
    node = story.node("n1")
    job = story.submit()
    story.run(job, ("n1", 0))
    story.register("n1", replace(inventory("n1"), fault="full"))
    assert story.state.node_state(node) is NodeState.FAULTY
    assert (node in story.state.indexes.free, story.job(job).state) == (False, JobState.RUNNING)
    reason = silence_of(story.state, story.job(job))
    assert reason is not None
    assert describe(reason) == "its node n1 can neither start nor end tasks: full"
    story.register("n1", inventory("n1"))
    assert (story.state.node_state(node), silence_of(story.state, story.job(job))) == (NodeState.READY, None)


def test_a_start_on_a_node_that_cannot_work_says_until_when_it_lasts() -> None:
    story = Story()
    story.register("n1", replace(inventory("n1"), keeps_leases=True))
    story.compare("n1")

    def said(started: int, *ranks: int, **wish: int) -> str:
        job = story.submit(spec(0, tasks=len(ranks), **wish))
        story.place(job, *(("n1", 0) for _ in ranks), port=20_000 + job)
        for rank in range(started):
            story.started(job, rank)
        story.register("n1", replace(inventory("n1"), keeps_leases=True, fault="stopped"))
        reason = silence_of(story.state, story.job(job))
        story.register("n1", replace(inventory("n1"), keeps_leases=True))
        assert reason is not None
        return describe(reason).removeprefix("its node n1 can neither start nor end tasks: stopped")

    unknown = (
        "; only its runner can say whether it has begun there, so it starts nowhere else before the runner goes on, "
    )
    assert said(0, 0) == f"{unknown}or has been killed: its attempt has no lease that would end it"
    assert said(0, 0, lost_after_ms=90_000) == f"{unknown}or before its lease of 1m 30s has ended it"
    assert said(1, 0) == ""
    assert said(1, 0, 1).startswith(unknown), "rank 1 was told to start once rank 0 had"


def test_a_drain_survives_a_new_registration() -> None:
    story = Story()
    node = story.node("n1")
    story.do(DrainNode(by=ANNA, node=node, reason="new disk"))
    story.node("n1", 4, boot="boot-2")
    assert story.state.node_state(node) is NodeState.DRAINED


def test_an_unreachable_node_is_ready_again_only_after_its_tasks_were_compared() -> None:
    story = Story()
    node = story.node("n1")
    story.do(NodeSilent(by=ANNA, node=node))
    story.register("n1", inventory("n1", boot="boot-2"))
    assert story.state.node_state(node) is NodeState.UNREACHABLE
    story.compare("n1")
    assert story.state.node_state(node) is NodeState.READY


def test_gpus_that_appear_later_are_offered() -> None:
    """Fault 45: the agent is up before the driver, with no GPU at first."""
    story = Story()
    story.node("n1", 0)
    assert story.free_gpus("n1") == 0
    story.node("n1", 4)
    assert story.free_gpus("n1") == 4


def test_a_gpu_that_vanished_is_not_offered_and_its_holder_is_not_touched() -> None:
    story = Story()
    story.node("n1", 4)
    job = story.submit(spec(2))
    story.run(job, ("n1", 2))
    story.register("n1", inventory("n1", 3))
    assert story.job(job).state is JobState.RUNNING
    assert story.free_gpus("n1") == 2


def test_two_nodes_can_not_claim_one_gpu() -> None:
    story = Story()
    story.node("n1", 2)
    claim = Inventory(
        boot_id="b",
        address="a",
        gpus=(Gpu(uuid=GpuUuid("n1-0"), index=0, model="H100", memory_mb=1),),
        cpus=1,
        memory_mb=1,
    )
    node = NodeName("n2")
    refusal = story.refused(Register(by=ANNA, registration=Registration(node=node, inventory=claim)))
    assert refusal.code == "gpu_claimed"


def test_a_second_machine_under_the_name_of_a_busy_node_is_refused() -> None:
    story = Story()
    story.node("n1", 2, uid="folder-a")
    job = story.submit()
    story.run(job, ("n1", 0))
    other = Registration(node=NodeName("n1"), inventory=inventory("n1", 2, uid="folder-b"))
    assert story.refused(Register(by=node_principal(other.node), registration=other)).code == "node_name_taken"
    story.end(job)
    story.do(Register(by=node_principal(other.node), registration=other))


@pytest.mark.parametrize("name", ["gpu", "gpu-01", "a-b-c", "rack-1-node-2", "UPPER.example.org"])
def test_a_nodes_name_means_nothing_to_its_gpus(name: str) -> None:
    """The seed took the fourth dash-separated piece of a GPU's id as its device number."""
    story = Story()
    story.node(name, 2)
    job = story.submit(spec(2))
    story.run(job, (name, 0))
    assert story.job(job).attempts[0].tasks[0].placement.gpus == (f"{name}-0", f"{name}-1")
