"""Environment variables that a task gets.

A task is what torch calls a node: whatever starts in it, one process or one per GPU by torchrun, finds the GPUs of the
task and no others. So a program that is started by itself is local rank 0 of one, and torchrun reads from PET_* how
many such nodes there are and how many processes each wants.

Source of the rank variables: torch.distributed's `env://` rendezvous; of PET_*: torch.distributed.run, which reads the
default of each of its options from the variable of that name; of the device variables: the CUDA programming guide; of
the host file: mpirun(1) of Open MPI, which DeepSpeed's launcher follows; of CUDA_MPS_*: NVIDIA's guide to MPS.
"""

from collections.abc import Mapping, Sequence

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, gpus_number
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.job import Attempt, Job, Task, Visible

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
        env.update(rendezvous_variables(attempt.master_addr, attempt.master_port))
    env.update(_rank_variables(attempt, rank))
    return env


def rendezvous_variables(address: str, port: int) -> dict[str, str]:
    """Return the variables that say where the ranks meet, for programs and for torchrun."""
    both = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return {**both, **{f"PET_{name}": value for name, value in both.items()}}


def host_file(attempt: Attempt, addresses: Mapping[NodeName, str]) -> str:
    """Return a line `ADDRESS slots=N` for each machine of an attempt, in the order of ranks.

    A slot is a GPU of a task, or a task without GPUs. Nodes that share an address are one machine: launchers refuse to
    be told of one twice.
    """
    slots: dict[str, int] = {}
    for task in attempt.tasks:
        address = addresses[task.placement.node]
        slots[address] = slots.get(address, 0) + _processes(task)
    return "".join(f"{address} slots={count}\n" for address, count in slots.items())


def share_variables(placement: TaskPlacement, mps: str) -> dict[str, str]:
    """Return the variables of a task that shares its GPU; none where it has its GPUs for itself.

    `mps` is the pipe folder of MPS on its node; empty = there is none, and its program itself keeps to its share. MPS
    takes whole per cent, of which the share is rounded down, one at least. Without a bound, as on a device whose driver
    doesn't tell its memory, nothing is said of one: a limit of 0 would leave a program without any.
    """
    if placement.gpu_share == WHOLE_GPU:
        return {}
    bound_mb = placement.gpu_memory_mb
    env = {"STOKER_GPU_SHARE": f"{gpus_number(placement.gpu_share)}"}
    if bound_mb:
        env["STOKER_GPU_MEMORY_MB"] = str(bound_mb)
    if mps:
        env["CUDA_MPS_PIPE_DIRECTORY"] = mps
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, placement.gpu_share * 100 // WHOLE_GPU))
        if bound_mb:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={bound_mb}M"
    return env


def _device_variables(held: Sequence[GpuUuid], visible: Visible, devices: Sequence[Gpu]) -> dict[str, str]:
    index_of = {gpu.uuid: str(gpu.index) for gpu in devices if not gpu.parent}  # no program finds an instance by number
    names = [index_of.get(uuid, uuid) if visible is Visible.INDEX else uuid for uuid in held]
    # An empty CUDA list hides every device; NVIDIA's container runtime spells that `void`.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "NVIDIA_VISIBLE_DEVICES": ",".join(names) or "void",
    }


def _rank_variables(attempt: Attempt, rank: int) -> dict[str, str]:
    mine, tasks = attempt.tasks[rank], len(attempt.tasks)
    here = [task.placement.rank for task in attempt.tasks if task.placement.node == mine.placement.node]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "NNODES": str(tasks),
        "PET_NODE_RANK": str(rank),
        "PET_NNODES": str(tasks),
        "PET_NPROC_PER_NODE": str(_processes(mine)),
        "STOKER_LOCAL_RANK": str(here.index(rank)),
        "STOKER_LOCAL_SIZE": str(len(here)),
    }


def _processes(task: Task) -> int:
    """Return how many processes a launcher starts in a task: one for each of its GPUs, or one without any."""
    return max(1, len(task.placement.gpus))
