"""Number of tasks of a demand that fit into given GPUs, CPUs and memory.

Used on the inventory of a node (can it ever run the task?) and on its free resources (can it now?), so that both give
one answer.
"""

from collections.abc import Sequence
from typing import Final

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, gpus_number, model_matches
from stoker.brain.domain.node import Inventory, Node
from stoker.brain.domain.units import counted

GPUS_PLAUSIBLE: Final = 16
"""Of a node about whose GPUs nothing is known: as many as the largest machines have that are sold as one."""


def suits(gpu: Gpu, demand: Demand) -> bool:
    """Return whether this GPU may serve a task of `demand`."""
    return gpu.memory_mb >= demand.gpu_memory_mb and model_matches(demand.gpu_model, gpu.model)


def suitable_gpus(gpus: Sequence[Gpu], demand: Demand) -> list[Gpu]:
    """Return the GPUs that may serve a task, in the order given."""
    if not demand.gpu_memory_mb and not demand.gpu_model and not (gpus and gpus[-1].parent):
        return list(gpus)  # MIG instances, which serve only who asks for them, come last
    return [gpu for gpu in gpus if suits(gpu, demand)]


def tasks_that_fit(suitable: int, cpus: int, memory_mb: int, demand: Demand) -> int:
    """Return the number of whole tasks that fit into `suitable` GPUs, `cpus` and `memory_mb` of one node.

    At most `demand.tasks`, and at most `demand.tasks_per_node` where that is a bound.
    """
    most = min(demand.tasks, demand.tasks_per_node or demand.tasks)
    if demand.gpu_count:
        most = min(most, suitable // demand.gpu_count)
    if demand.cpus:
        most = min(most, cpus // demand.cpus)
    if demand.memory_mb:
        most = min(most, memory_mb // demand.memory_mb)
    return most


def one_model_slots(suitable: Sequence[Gpu], gpu_count: int) -> int:
    """Return the number of tasks of `gpu_count` GPUs of one model each that these GPUs serve."""
    counts: dict[str, int] = {}
    for gpu in suitable:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return sum(count // gpu_count for count in counts.values())


def slots_ever(gpus: Sequence[Gpu], demand: Demand) -> int:
    """Return the number of tasks that these GPUs serve if nothing else runs there. The demand must ask for GPUs.

    A demand that names a model gets one model per task, also where several match the name (`A100` of 40 and of 80 GB);
    a demand that names none may, as a last resort, get a mix.
    """
    suitable = suitable_gpus(gpus, demand)
    if demand.shares:
        return sum([sharers_of(gpu, demand) for gpu in suitable])
    return one_model_slots(suitable, demand.gpu_count) if demand.gpu_model else len(suitable) // demand.gpu_count


def sharers_of(gpu: Gpu, demand: Demand) -> int:
    """Return how many tasks of a demand for a share an otherwise empty GPU holds, whatever a policy says of sharers."""
    by_share, bound = WHOLE_GPU // demand.gpu_share, demand.memory_bound_mb(gpu.memory_mb)
    return min(by_share, gpu.memory_mb // bound) if bound else by_share


def tasks_ever(inventory: Inventory, demand: Demand) -> int:
    """Return the number of whole tasks that an otherwise empty node holds; at most `demand.tasks`."""
    count = slots_ever(inventory.gpus, demand) * demand.gpu_count if demand.gpu_count else 0
    return tasks_that_fit(count, inventory.cpus, inventory.memory_mb, demand)


def tasks_perhaps(node: Node, demand: Demand) -> int:
    """Return the number of whole tasks that a node may hold once its GPUs can be read; at most `demand.tasks`.

    Of GPUs that could never be read whatever a demand asks for is thought possible, up to `GPUS_PLAUSIBLE`.
    """
    inventory = node.mended
    if not demand.gpu_count or not node.hides_unknown:
        return tasks_ever(inventory, demand)
    slots = max(GPUS_PLAUSIBLE, len(inventory.gpus)) * (WHOLE_GPU // demand.gpu_share)
    return tasks_that_fit(slots, inventory.cpus, inventory.memory_mb, demand)


def task_demand_text(demand: Demand) -> str:
    """Return the demand of one task in words: `4 x A100 with 40000 MiB each, 2 CPUs, 1024 MiB memory`."""
    if demand.shares:
        return _share_text(demand)
    gpus = counted(demand.gpu_count, "GPU")
    if demand.gpu_model:
        gpus = f"{demand.gpu_count} x {demand.gpu_model}"
    if demand.gpu_memory_mb:
        gpus += f" with {demand.gpu_memory_mb} MiB each"
    return f"{gpus}, {_beside_gpus(demand)}"


def _share_text(demand: Demand) -> str:
    gpu = f"{gpus_number(demand.gpu_share)} of a {demand.gpu_model or 'GPU'}"
    within = f" within {demand.gpu_memory_mb} MiB of its memory" if demand.gpu_memory_mb else ""
    return f"{gpu}{within}, {_beside_gpus(demand)}"


def _beside_gpus(demand: Demand) -> str:
    memory = f", {demand.memory_mb} MiB memory" if demand.memory_mb else ""
    return f"{counted(demand.cpus, 'CPU')}{memory}"
