"""GPUs that a node has had and can't read now: a broken driver hides them, and doesn't make jobs impossible."""

import pytest
from msgspec.structs import replace

from stoker.brain.cycle import propose
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.reason import Reason, ReasonCode, describe
from stoker.brain.domain.where import make_where
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import Submit
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, inventory, spec

BROKEN = "nvidia-smi: failed (exit 18): Driver/library version mismatch"


def broken(story: Story, name: str, gpus: int = 0, fault: str = BROKEN) -> None:
    story.register(name, replace(inventory(name, gpus), gpu_fault=fault))
    story.compare(name)


def unread(story: Story, name: str = "n1") -> list[GpuUuid]:
    return [gpu.uuid for gpu in story.state.nodes[name].unread]  # type: ignore[index]  # a name is a text


def why(story: Story) -> Reason:
    """Of the only job that waits."""
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    (reason,) = plan.reasons.values()
    return reason


def test_a_job_that_the_hidden_gpus_would_serve_waits_with_that_reason_and_starts_once_they_can_be_read() -> None:
    story = Story()
    story.node("n1", 4)
    broken(story, "n1")
    assert unread(story) == [f"n1-{index}" for index in range(4)]
    job = story.submit(spec(gpus=4))
    assert story.decide() == []
    assert why(story).code is ReasonCode.GPUS_UNREAD
    assert describe(why(story)) == (f"1 node that could run it can't read all of its GPUs, such as n1: {BROKEN}")
    assert story.refused(Submit(by=ANNA, specs=(spec(gpus=5),))).code == "demand_unsatisfiable"
    story.node("n1", 4)
    assert unread(story) == []
    assert story.decide() == [str(job)]


def test_one_lost_gpu_of_four_is_known_too_and_the_others_are_used() -> None:
    story = Story()
    story.node("n1", 4)
    broken(story, "n1", 3, "0000:03:00.0: is lost")
    assert unread(story) == ["n1-3"]
    story.submit(spec(gpus=4))
    narrow = story.submit(spec(gpus=3))
    assert story.decide() == [str(narrow)]
    assert why(story).facts["fault"] == "0000:03:00.0: is lost"


def test_what_is_hidden_is_remembered_however_often_the_node_registers_and_over_a_restart() -> None:
    story = Story()
    story.node("n1", 4)
    broken(story, "n1", 2)
    position = story.state.position
    story.register("n1", replace(inventory("n1", 2), gpu_fault=BROKEN))
    assert story.state.position == position, "nothing new"
    broken(story, "n1", 0, "worse")
    assert len(unread(story)) == 4
    broken(story, "n1", 3)
    assert unread(story) == ["n1-3"]
    again = load_snapshot(snapshot_chunks(story.state))
    assert again.nodes == story.state.nodes


def test_gpus_that_are_gone_without_a_fault_were_taken_out() -> None:
    story = Story()
    story.node("n1", 4)
    story.node("n1", 2)
    assert unread(story) == []
    assert story.refused(Submit(by=ANNA, specs=(spec(gpus=4),))).code == "demand_unsatisfiable"


def test_a_job_that_gpus_which_were_never_read_might_serve_waits_for_them() -> None:
    """A driver that was broken before the agent's first start: nobody knows what is behind it."""
    story = Story()
    story.node("n1", 1)
    broken(story, "n2")
    broken(story, "n3", 1)
    other = replace(spec(), demand=Demand(gpu_count=2, gpu_model="H200"))
    jobs = [story.submit(spec(gpus=8)), story.submit(spec(gpus=8, tasks=4)), story.submit(other)]
    assert story.decide() == []
    reasons = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000).reasons.values()
    assert [(reason.code, reason.facts["node"]) for reason in reasons] == [(ReasonCode.GPUS_UNREAD, "n2")] * len(jobs)
    story.node("n2", 8)
    assert story.decide() == [str(jobs[0])]


@pytest.mark.parametrize(
    "wanted", [spec(gpus=17), spec(gpus=16, tasks=2), spec(gpus=8, tasks=3), spec(gpus=1, cpus=999)]
)
def test_a_job_that_no_machine_behind_a_broken_driver_could_serve_is_refused_and_the_node_named(
    wanted: JobSpec,
) -> None:
    story = Story()
    broken(story, "n1")
    refusal = story.refused(Submit(by=ANNA, specs=(wanted,)))
    assert refusal.code == "demand_unsatisfiable"
    if wanted.demand.tasks == 1:
        assert refusal.hint == (
            "the GPUs here are: none; GPUs of 1 node, n1 for one, can't be read: see `stoker node list`"
        )


def test_a_job_of_more_gpus_than_known_is_refused_where_every_driver_answers() -> None:
    story = Story()
    story.node("n1", 1)
    story.node("n2", 0)
    assert story.refused(Submit(by=ANNA, specs=(spec(gpus=2),))).code == "demand_unsatisfiable"


def test_a_job_that_waits_for_unknown_gpus_says_so_when_they_turn_out_to_be_too_few() -> None:
    story = Story()
    broken(story, "n1")
    story.submit(spec(gpus=8))
    assert why(story).code is ReasonCode.GPUS_UNREAD
    story.node("n1", 4)
    assert why(story).code is ReasonCode.NO_FITTING_NODE


def test_the_label_of_the_model_stays_while_it_cannot_be_read() -> None:
    story = Story()
    story.node("n1", 4)
    broken(story, "n1")
    where = make_where("stoker.io/gpu-model=H100")
    story.submit(spec(gpus=1, where=where))
    assert why(story).code is ReasonCode.GPUS_UNREAD


def test_a_job_that_runs_on_gpus_which_become_hidden_goes_on_and_gives_them_back() -> None:
    story = Story()
    story.node("n1", 4)
    job = story.submit(spec(gpus=4))
    story.decide()
    story.register("n1", replace(inventory("n1", 0), gpu_fault=BROKEN))
    assert len(unread(story)) == 4
    story.node("n1", 4)
    assert unread(story) == []
    assert not story.job(job).is_final
