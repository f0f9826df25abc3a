"""MIG instances in the state: given to who asks for one, one per task, and never instead of a whole GPU."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.environment import task_environment
from stoker.brain.domain.gpu import Gpu, mig_index
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.job import JobSpec, Visible
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.commands import Submit
from tests.brain.state.story import ANNA, Story, inventory, spec

N1 = NodeName("n1")
WHOLE = GpuUuid("n1-0")
SMALL = [GpuUuid(f"MIG-{slot}") for slot in range(3)]
LARGE = GpuUuid("MIG-3")


def divided(story: Story, *, whole: int = 1) -> None:
    """Whole GPUs, and one in four instances."""
    profiles = ["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"]
    instances = tuple(
        Gpu(
            uuid=GpuUuid(f"MIG-{slot}"),
            index=mig_index(7, slot),
            model=f"H100 MIG {profile}",
            memory_mb=int(profile[3:5]) << 10,
            parent=GpuUuid("n1-7"),
        )
        for slot, profile in enumerate(profiles)
    )
    found = inventory("n1", whole)
    story.register("n1", replace(found, gpus=(*found.gpus, *instances)))
    story.compare("n1")


def asking(model: str, *, gpus: int = 1, **fields: int) -> JobSpec:
    return replace(spec(), demand=Demand(gpu_count=gpus, gpu_model=model, **fields))


def placed(story: Story, asked: JobSpec) -> tuple[GpuUuid, ...] | None:
    """GPUs of its first task; None = it waits."""
    job = story.submit(asked)
    story.decide()
    record = story.state.jobs[job]
    return None if record.state is JobState.PENDING else record.attempts[-1].tasks[0].placement.gpus


def test_who_asks_for_a_profile_gets_an_instance_of_it() -> None:
    story = Story()
    divided(story)
    assert placed(story, asking("4g.40gb")) == (LARGE,)
    assert placed(story, asking("H100 mig", gpu_memory_mb=8_000)) == (SMALL[0],)
    assert placed(story, asking("1g.10gb")) == (SMALL[1],)
    assert placed(story, asking("4g.40gb")) is None
    assert story.refused(Submit(by=ANNA, specs=(asking("2g.20gb"),))).code == "demand_unsatisfiable"


def test_who_asks_for_none_waits_for_a_whole_gpu_also_where_instances_are_free() -> None:
    story = Story()
    divided(story)
    assert placed(story, asking("")) == (WHOLE,)
    assert placed(story, asking("H100")) is None
    assert placed(story, asking("", gpu_memory_mb=8_000)) is None
    assert placed(story, replace(spec(), demand=Demand(gpu_count=1, gpu_share=250))) is None
    assert placed(story, replace(spec(), demand=Demand())) == ()


def test_where_there_are_only_instances_who_asks_for_a_gpu_is_told_how_to_ask() -> None:
    story = Story()
    divided(story, whole=0)
    refusal = story.refused(Submit(by=ANNA, specs=(asking(""),)))
    assert refusal.code == "demand_unsatisfiable"
    assert "`--gpu-model mig`" in refusal.hint


@pytest.mark.parametrize(("gpus", "share"), [(2, 1_000), (1, 500)])
def test_several_instances_for_one_task_or_a_part_of_one_are_refused(gpus: int, share: int) -> None:
    """A program sees one of them, whatever it is given."""
    story = Story()
    divided(story)
    refusal = story.refused(Submit(by=ANNA, specs=(asking("1g.10gb", gpus=gpus, gpu_share=share),)))
    assert refusal.code == "mig_not_whole"
    assert "--tasks" in refusal.hint


def test_a_gang_has_an_instance_for_each_task_and_each_sees_its_own_by_its_uuid() -> None:
    story = Story()
    divided(story)
    gang = asking("1g.10gb", tasks=3)
    assert placed(story, replace(gang, visible=Visible.INDEX)) == (SMALL[0],)
    job = story.state.jobs[max(story.state.jobs)]
    devices = {N1: story.state.nodes[N1].inventory.gpus}
    seen = [task_environment(job, job.attempts[-1], rank, devices, {})["CUDA_VISIBLE_DEVICES"] for rank in range(3)]
    assert seen == SMALL, "no program finds an instance by a number"
    assert story.free_gpus("n1") == 2


def test_instances_that_are_made_anew_are_offered_and_what_is_gone_is_not_waited_for() -> None:
    story = Story()
    divided(story)
    story.node("n1", gpus=8)
    assert {gpu.uuid for gpu in story.state.nodes[N1].mended.gpus}.isdisjoint(SMALL)
    assert placed(story, asking("", gpus=8)) is not None
