"""Rules A1 to A4 of `brain/alternatives.py`: changes with which a waiting job would start now."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from stoker.brain import alternatives as module
from stoker.brain.alternatives import ALTERNATIVES_MAX, PASSES_MAX, alternatives
from stoker.brain.cycle import propose
from stoker.brain.domain.alternative import Alternative, AlternativeKind
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.job import WarnSignal
from stoker.brain.domain.plan import UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS
from stoker.brain.state.state_view import StateView
from stoker.brain.state.wait_reason import wait_reason
from tests.brain.state.story import Story, inventory, spec
from tests.brain.state.test_preemption import busy, preempt


def steps(story: Story, job: JobId) -> list[Alternative | None]:
    """What each pass of the search found."""
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    reason = wait_reason(story.state, story.job(job), plan.reasons.__getitem__)
    return list(alternatives(story.state, story.job(job), reason, plan.reservations, story.now))


def told(story: Story, job: JobId) -> list[str]:
    return [str(each) for each in steps(story, job) if each is not None]


def half_busy(nodes: Sequence[str] = ("n1", "n2"), policy: Policy | None = None) -> Story:
    """Nodes of four GPUs, two of them free, the others held for three hours."""
    story = Story(policy)
    for name in nodes:
        story.node(name, gpus=4, cpus=16)
        job = story.submit(spec(gpus=2, time_limit_ms=3 * HOUR_MS))
        story.run(job, (name, 0))
    return story


def test_gpus_of_one_task_that_are_free_on_several_nodes_are_told_as_more_tasks_with_cpus_and_memory_divided() -> None:
    story = half_busy()
    demand = Demand(gpu_count=4, cpus=6, memory_mb=1_001)
    job = story.submit(replace(spec(), demand=demand))
    more, fewer = [each for each in steps(story, job) if each is not None]
    assert (more.kind, str(more)) == (AlternativeKind.MORE_TASKS, "as 2 tasks of 2 GPUs each")
    assert more.changes.given == {"gpu_count": 2, "cpus": 3, "memory_mb": 501, "tasks": 2}
    assert (fewer.kind, str(fewer)) == (AlternativeKind.FEWER_GPUS, "with 2 GPUs")
    assert fewer.changes.given == {"gpu_count": 2}


def test_a_gang_that_does_not_fit_is_told_the_most_gpus_that_do() -> None:
    for asked in (spec(gpus=4, tasks=2), spec(gpus=2, tasks=5)):
        story = half_busy(("n1", "n2", "n3"))
        assert told(story, story.submit(asked)) == ["as 3 tasks of 2 GPUs each"]


def test_a_bound_of_tasks_per_node_is_told_where_it_alone_keeps_a_gang_waiting() -> None:
    story = half_busy()
    story.node("n3", gpus=1)
    story.run(story.submit(), ("n3", 0))
    job = story.submit(replace(spec(), demand=Demand(gpu_count=1, tasks=3, tasks_per_node=1)))
    assert told(story, job) == ["with any number of its 3 tasks on a node", "as 2 tasks of 1 GPU each"]


def test_cpus_and_memory_are_told_as_many_as_there_are() -> None:
    story = half_busy()
    for held in range(2):
        story.run(story.submit(spec(gpus=0, cpus=10)), (f"n{held + 1}", 0))
    assert told(story, story.submit(spec(cpus=9))) == ["with 5 CPUs per task"]
    story = half_busy()
    taken = replace(spec(), demand=Demand(memory_mb=(1 << 20) - 700))
    for held in range(2):
        story.run(story.submit(taken), (f"n{held + 1}", 0))
    job = story.submit(replace(spec(), demand=Demand(gpu_count=1, memory_mb=900)))
    assert told(story, job) == ["with 700 MiB of memory per task"]


def test_another_model_is_told_only_where_as_many_such_gpus_are_free() -> None:
    story = half_busy()
    old = tuple(Gpu(uuid=GpuUuid(f"old-{i}"), index=i, model="V100", memory_mb=16_384) for i in range(4))
    story.register("old", replace(inventory("old"), gpus=old))
    story.compare("old")
    story.run(story.submit(replace(spec(), demand=Demand(gpu_count=3, gpu_model="V100"))), ("old", 0))
    few, many = (
        story.submit(replace(spec(), demand=Demand(gpu_count=gpus, gpu_model="V100", cpus=1))) for gpus in (2, 3)
    )
    assert told(story, few) == ["on H100", "with 1 GPU"]
    assert told(story, many) == ["with 1 GPU"]


def test_a_shorter_limit_is_the_longest_that_ends_a_minute_before_the_reservation_and_none_below_its_warning() -> None:
    story = half_busy(policy=Policy(reserve_after_ms=0))
    story.submit(spec(gpus=4, tasks=2, time_limit_ms=HOUR_MS))
    long = story.submit(spec(gpus=2, time_limit_ms=24 * HOUR_MS))
    first, *_ = [each for each in steps(story, long) if each is not None]
    assert (first.kind, first.changes.time_limit_ms) == (AlternativeKind.SHORTER, 175 * MINUTE_MS)
    assert str(first) == "with a time limit of 2h 55m"
    warned = spec(gpus=2, time_limit_ms=24 * HOUR_MS, warn=WarnSignal(signal=10, lead_ms=3 * HOUR_MS))
    assert AlternativeKind.SHORTER not in {each.kind for each in steps(story, story.submit(warned)) if each}


def test_what_is_free_and_kept_for_others_is_never_told() -> None:
    """Two GPUs are free on each node, and one by one they are kept for those before it."""
    story = half_busy(policy=Policy(reserve_after_ms=0))
    story.submit(spec(gpus=4, tasks=2))
    job = story.submit(spec(gpus=3))
    assert told(story, job) == []
    assert [each for each in steps(story, job) if each is not None] == []
    assert len(steps(story, job)) > 1, "it was tried"


def test_arrays_members_and_jobs_to_which_others_give_way_have_none() -> None:
    story = half_busy()
    array = story.submit_array("0-3", gpus=4)
    assert steps(story, array) == []
    story, low, high = busy()
    preempt(story, high, low, gpus=(0, 1))
    assert steps(story, high) == []


def test_a_job_that_the_next_pass_starts_as_it_is_has_none() -> None:
    story = half_busy()
    job = story.submit(spec(gpus=4))
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    reason = wait_reason(story.state, story.job(job), plan.reasons.__getitem__)
    story.node("n3", gpus=8)
    assert list(alternatives(story.state, story.job(job), reason, (), story.now)) == [None]


def test_the_work_of_a_search_is_bounded_and_a_pass_that_fails_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    story = half_busy()
    job = story.submit(replace(spec(), demand=Demand(gpu_count=4, tasks=2, tasks_per_node=1, cpus=9)))
    found = steps(story, job)
    assert len(found) <= 1 + PASSES_MAX
    assert 1 <= len([each for each in found if each is not None]) <= ALTERNATIVES_MAX

    def fails(*_: object) -> None:
        raise UndecidableShape(story.job(job).spec.shape, "a defect")

    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    reason = wait_reason(story.state, story.job(job), plan.reasons.__getitem__)
    with monkeypatch.context() as patched:
        patched.setattr(module, "propose", fails)
        assert list(alternatives(story.state, story.job(job), reason, (), story.now)) == [None]
    with monkeypatch.context() as patched:
        patched.setattr(module, "PASS_US_MAX", 3)
        assert steps(story, job) == []
