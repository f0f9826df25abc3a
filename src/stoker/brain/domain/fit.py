"""How many tasks of a demand does a bundle of GPUs, CPUs and memory hold?

Used on what a node *has* (can it ever run this?) and on what it has *free* (can it now?), so both give one answer.
"""

from collections.abc import Sequence

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.gpu import Gpu, model_matches
from stoker.brain.domain.node import Inventory


def suits(gpu: Gpu, demand: Demand) -> bool:
    """May this GPU serve a task of `demand`?"""
    return gpu.memory_mb >= demand.gpu_memory_mb and model_matches(demand.gpu_model, gpu.model)


def suitable_gpus(gpus: Sequence[Gpu], demand: Demand) -> list[Gpu]:
    """Those GPUs that may serve a task, in the order given."""
    if not demand.gpu_memory_mb and not demand.gpu_model:
        return list(gpus)
    return [gpu for gpu in gpus if suits(gpu, demand)]


def tasks_that_fit(suitable: int, cpus: int, memory_mb: int, demand: Demand) -> int:
    """Whole tasks that fit into `suitable` GPUs, `cpus` and `memory_mb` of one node; at most `demand.tasks`, and at
    most `demand.tasks_per_node` where that is a bound."""
    most = min(demand.tasks, demand.tasks_per_node or demand.tasks)
    if demand.gpu_count:
        most = min(most, suitable // demand.gpu_count)
    if demand.cpus:
        most = min(most, cpus // demand.cpus)
    if demand.memory_mb:
        most = min(most, memory_mb // demand.memory_mb)
    return most


def one_model_slots(suitable: Sequence[Gpu], gpu_count: int) -> int:
    """Tasks of `gpu_count` GPUs that `suitable` serves when the GPUs of one task must be of one model."""
    counts: dict[str, int] = {}
    for gpu in suitable:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return sum(count // gpu_count for count in counts.values())


def slots_ever(gpus: Sequence[Gpu], demand: Demand) -> int:
    """Tasks that all these GPUs serve, if no other runs there. The demand must ask for some.

    Who names a model gets one model per task, also where several match the name (`A100` of 40 and of 80 GB); who
    doesn't may, as a last resort, get a mix.
    """
    suitable = suitable_gpus(gpus, demand)
    return one_model_slots(suitable, demand.gpu_count) if demand.gpu_model else len(suitable) // demand.gpu_count


def tasks_ever(inventory: Inventory, demand: Demand) -> int:
    """Whole tasks that an otherwise empty node of this inventory holds; at most `demand.tasks`."""
    count = slots_ever(inventory.gpus, demand) * demand.gpu_count if demand.gpu_count else 0
    return tasks_that_fit(count, inventory.cpus, inventory.memory_mb, demand)


def task_demand_text(demand: Demand) -> str:
    """The need of one task in words: `4 x A100 with 40000 MiB each, 2 CPUs, 1024 MiB memory`."""
    gpus = f"{demand.gpu_count} GPU(s)"
    if demand.gpu_model:
        gpus = f"{demand.gpu_count} x {demand.gpu_model}"
    if demand.gpu_memory_mb:
        gpus += f" with {demand.gpu_memory_mb} MiB each"
    memory = f", {demand.memory_mb} MiB memory" if demand.memory_mb else ""
    return f"{gpus}, {demand.cpus} CPU(s){memory}"
