"""A runner's records say how much of its GPU a task holds, so that the next agent lets others beside it."""

from stoker.agent.runner.process.cgroup import TaskCgroup
from stoker.agent.runner.task import WHOLE_GPU, RunnerTask


def test_a_start_record_has_the_share_of_a_sharer_and_none_of_a_task_with_gpus_of_its_own() -> None:
    task = RunnerTask("1.1.0", "1.1.0.aa", ["GPU-0"], TaskCgroup([]))
    assert "gpu_share" not in task.start_record("boot")
    assert task.gpu_share == WHOLE_GPU
    task.gpu_share = 250
    assert task.start_record("boot")["gpu_share"] == 250
