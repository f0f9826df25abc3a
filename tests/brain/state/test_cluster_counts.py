"""Status of GPUs and numbers of nodes and jobs, read from the state."""

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.ids import CONTROL, NodeName
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster_counts import (
    FreeGpus,
    GpuCounts,
    count_free_gpus,
    count_gpus,
    count_nodes,
    count_running,
    gpus_offered,
    waits_since,
)
from stoker.brain.state.commands import DrainNode, NodeSilent
from tests.brain.state.story import ANNA, Story, spec

N1 = NodeName("n1")


def test_a_gpu_is_busy_while_a_job_holds_it_and_offline_while_its_node_takes_no_new_work() -> None:
    story = Story()
    story.node("n1", 4)
    story.node("n2", 2)
    story.place(story.submit(spec(1)), ("n1", 0))
    assert count_gpus(story.state) == GpuCounts(total=6, idle=5, busy=1)
    story.do(DrainNode(by=ANNA, node=N1, reason="fan"))
    assert count_gpus(story.state) == GpuCounts(total=6, idle=2, busy=1, offline=3)
    assert (gpus_offered(story.state, N1), gpus_offered(story.state, NodeName("n2"))) == (0, 2)
    story.do(NodeSilent(by=CONTROL, node=N1, silent_ms=60_000))
    assert count_gpus(story.state) == GpuCounts(total=6, idle=2, offline=4)
    assert count_nodes(story.state)["unreachable"] == 1


def test_members_of_an_array_run_and_their_array_is_no_job_of_its_own() -> None:
    story = Story()
    story.node("n1", 4)
    story.submit(spec(1, array=parse_array("0-9")))
    story.submit(spec(0))
    for label in story.decide():
        story.started(story.named(label).id)
    assert count_running(story.state) == 5
    assert story.state.indexes.running_arrays == 1


def test_room_is_what_nodes_in_service_have_free_by_model_and_the_wait_that_of_the_oldest_that_may_be_placed() -> None:
    story = Story()
    assert (count_free_gpus(story.state), waits_since(story.state)) == ([], NEVER)
    story.node("n1", 4)
    story.node("n2", 2)
    model = story.state.nodes[N1].inventory.gpus[0].model
    assert count_free_gpus(story.state) == [FreeGpus(model, 6, 4)]
    placed = story.submit(spec(3))
    story.place(placed, ("n1", 0))
    assert count_free_gpus(story.state) == [FreeGpus(model, 3, 2)]
    story.do(DrainNode(by=ANNA, node=N1, reason="fan"))
    assert count_free_gpus(story.state) == [FreeGpus(model, 2, 2)]
    assert waits_since(story.state) == NEVER, "what runs waits for nothing"
    story.submit(spec(4, hold=True))
    assert waits_since(story.state) == NEVER, "what is held isn't to be placed"
    waiting = story.submit(spec(4))
    story.submit(spec(4))
    assert waits_since(story.state) == story.state.jobs[waiting].submitted_at
