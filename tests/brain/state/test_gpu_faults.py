"""GPUs that fail under jobs: R1 of `admit.node`, E11 of `attempt_outcome`; faults 60, 61, 66 and 72."""

from msgspec.structs import replace

from stoker.brain.domain.health import GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import describe
from stoker.brain.state.cluster_counts import count_gpus, gpu_statuses
from tests.brain.state.story import Story, inventory, spec

SICK = GpuCondition(
    uuid=GpuUuid("n1-0"), index=0, state=HealthState.DRAINED, kind=HealthKind.LOST, reason="GPU is lost"
)


def fails(story: Story, condition: GpuCondition = SICK) -> None:
    """The node says so, and no longer offers it."""
    whole = inventory("n1", 4)
    gpus = tuple(gpu for gpu in whole.gpus if gpu.uuid != condition.uuid)
    fault = f"{condition.uuid}: {condition.state}: {condition.reason}"
    if condition.offered:
        gpus, fault = whole.gpus, ""
    story.register("n1", replace(whole, gpus=gpus, gpu_fault=fault, conditions=(condition,)))


def on_n1(policy: Policy | None = None) -> tuple[Story, JobId, JobId]:
    """A job on the first two GPUs, and one on the third."""
    story = Story() if policy is None else Story(policy=policy)
    story.node("n1", 4)
    both, other = story.submit(spec(gpus=2)), story.submit(spec(gpus=1))
    story.run(both, ("n1", 0))
    story.run(other, ("n1", 2))
    return story, both, other


def test_a_job_on_a_gpu_that_fails_is_stopped_and_starts_again_at_the_cost_of_a_requeue() -> None:
    story, both, other = on_n1()
    fails(story)
    attempt = story.job(both).live_attempt
    assert attempt is not None
    assert attempt.stop is not None
    assert (attempt.stop.cause, story.job(other).state) == (StopCause.GPU_FAILED, JobState.RUNNING)
    assert attempt.stop.error == "GPU 0 of node n1 (n1-0): GPU is lost"
    fails(story)
    story.end(both, signal=15)
    ended = story.job(both)
    assert (ended.state, ended.attempts[0].outcome, ended.requeues_used) == (
        JobState.PENDING,
        Outcome.NODE_FAILED,
        1,
    )
    assert ended.reason is not None
    assert "GPU 0 of node n1 (n1-0): GPU is lost" in describe(ended.reason)


def test_what_makes_a_gpu_hot_or_dirty_or_suspect_stops_no_job() -> None:
    for kind in (HealthKind.HOT, HealthKind.MEMORY, HealthKind.PROCESS, HealthKind.UNANSWERED):
        story, both, _ = on_n1()
        fails(story, replace(SICK, kind=kind))
        assert story.job(both).state is JobState.RUNNING
    story, both, _ = on_n1()
    fails(story, replace(SICK, kind=HealthKind.XID, state=HealthState.SUSPECT))
    assert story.job(both).state is JobState.RUNNING


def test_the_policy_may_let_jobs_on_failing_gpus_go_on() -> None:
    story, both, _ = on_n1(Policy(gpu_faults_stop_jobs=0))
    fails(story)
    assert story.job(both).state is JobState.RUNNING
    story.end(both, exit_code=1, gpu_fault="GPU 0 (n1-0): GPU is lost")
    assert story.job(both).state is JobState.FAILED


def test_a_job_that_failed_with_a_sick_gpu_was_lost_by_its_node_and_one_that_did_well_did_well() -> None:
    story, both, other = on_n1()
    story.end(both, exit_code=1, gpu_fault="GPU 0 (n1-0): 1 more uncorrected memory errors")
    assert story.job(both).attempts[0].outcome is Outcome.NODE_FAILED
    assert "1 more uncorrected memory errors" in describe(story.job(both).reason)  # type: ignore[arg-type]  # it waits
    story.end(other, gpu_fault="GPU 2 (n1-2): GPU is lost")
    assert story.job(other).state is JobState.SUCCEEDED


def test_a_lost_gpu_is_counted_and_one_that_is_drained_is_offline() -> None:
    story, _, _ = on_n1()
    fails(story)
    node = story.state.nodes[story.node("n2", 1)]
    assert count_gpus(story.state)._asdict() == {
        "total": 5,
        "idle": 2,
        "busy": 2,
        "offline": 0,
        "quarantined": 0,
        "lost": 1,
    }
    fails(story, replace(SICK, kind=HealthKind.HOT))
    sick = next(each for each in story.state.nodes.values() if each.name != node.name)
    assert gpu_statuses(story.state, sick)[GpuUuid("n1-0")] in ("busy", "offline")


def test_a_gpu_that_was_suspect_and_can_not_be_read_any_more_is_lost() -> None:
    story, _, _ = on_n1()
    odd = replace(SICK, state=HealthState.SUSPECT, kind=HealthKind.XID, reason="the driver reports XID 999")
    fails(story, odd)
    node = story.state.nodes[NodeName("n1")]
    assert gpu_statuses(story.state, node)[odd.uuid] == "busy"
    story.register("n1", replace(node.inventory, gpus=(), gpu_fault="NVML: Driver Not Loaded"))
    assert gpu_statuses(story.state, story.state.nodes[node.name])[odd.uuid] == "lost"


def test_a_gpu_that_was_never_offered_is_known_all_the_same() -> None:
    story, whole = Story(), inventory("n1", 4)
    story.register(
        "n1",
        replace(whole, gpus=whole.gpus[1:], withheld=whole.gpus[:1], gpu_fault="hot", conditions=(SICK,)),
    )
    story.compare("n1")
    story.submit(spec(gpus=4))
    assert (story.decide(), count_gpus(story.state).total) == ([], 4)


def test_no_new_work_comes_to_a_gpu_that_is_drained_and_it_does_once_it_is_healthy() -> None:
    story = Story()
    story.node("n1", 4)
    fails(story, replace(SICK, kind=HealthKind.MEMORY))
    waits = story.submit(spec(gpus=4))
    assert story.decide() == []
    story.node("n1", 4)
    assert story.decide() == [str(waits)]
