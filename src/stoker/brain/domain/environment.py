"""Environment variables that a task gets.

Source of the rank variables: torch.distributed's `env://`
rendezvous; of the device variables: the CUDA programming guide.
"""

from collections.abc import Mapping, Sequence

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.job import Attempt, Job, Visible

DevicesByNode = Mapping[NodeName, Sequence[Gpu]]


def task_environment(
    job: Job, attempt: Attempt, rank: int, devices: DevicesByNode, opened: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one rank; those of Stoker come last and win over the job's own.

    `devices` gives each node's GPUs in PCI order, for `--visible index`; `opened` the variables of the job's secrets.
    """
    placement = attempt.tasks[rank].placement
    env = {**job.spec.env, **opened}
    env.update(_device_variables(placement.gpus, job.spec.visible, devices.get(placement.node, ())))
    env["STOKER_JOB_ID"] = job.label
    if job.array_of:
        env["STOKER_ARRAY_ID"] = str(job.array_of)
        env["STOKER_ARRAY_INDEX"] = str(job.array_index)
    env["STOKER_JOB_NAME"] = job.spec.name
    env["STOKER_ATTEMPT"] = str(attempt.number)
    env["STOKER_RESTART_COUNT"] = str(attempt.number - 1)
    env["STOKER_NODE"] = placement.node
    if attempt.master_port:
        env["MASTER_ADDR"] = attempt.master_addr
        env["MASTER_PORT"] = str(attempt.master_port)
    if len(attempt.tasks) > 1:
        env.update(_rank_variables(attempt, rank))
    return env


def _device_variables(held: Sequence[GpuUuid], visible: Visible, devices: Sequence[Gpu]) -> dict[str, str]:
    index_of = {gpu.uuid: str(gpu.index) for gpu in devices}
    names = [index_of.get(uuid, uuid) if visible is Visible.INDEX else uuid for uuid in held]
    # An empty CUDA list hides every device; NVIDIA's container runtime spells that `void`.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "NVIDIA_VISIBLE_DEVICES": ",".join(names) or "void",
    }


def _rank_variables(attempt: Attempt, rank: int) -> dict[str, str]:
    nodes = list(dict.fromkeys(task.placement.node for task in attempt.tasks))
    mine = attempt.tasks[rank].placement.node
    local = [task.placement.rank for task in attempt.tasks if task.placement.node == mine]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(attempt.tasks)),
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
        "NODE_RANK": str(nodes.index(mine)),
        "NNODES": str(len(nodes)),
    }
