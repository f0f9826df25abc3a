"""Which GPUs of a node, given how many tasks go there?

Rules: U1  a task gets GPUs of one model while any model has enough of them; the mix is the last resort
       U2  of several models with enough, the one with the fewest to spare, then the least memory, then by name
       U3  within a model the first free in device order, so that what is left stays together
       U4  tasks are in device order: by the first GPU they hold
"""

from collections.abc import Sequence

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid


def choose_gpus(suitable: Sequence[Gpu], gpu_count: int, tasks: int) -> list[tuple[GpuUuid, ...]]:
    """The GPUs of each task. `suitable` are those that may serve, in device order, and enough for all `tasks`."""
    assert len(suitable) >= gpu_count * tasks, f"{len(suitable)} GPUs for {tasks} tasks of {gpu_count}"
    if not gpu_count:
        return [()] * tasks
    if len({gpu.model for gpu in suitable}) == 1:
        uuids = [gpu.uuid for gpu in suitable[: gpu_count * tasks]]
        return [tuple(uuids[at : at + gpu_count]) for at in range(0, len(uuids), gpu_count)]
    return _of_several_models(suitable, gpu_count, tasks)


def _of_several_models(suitable: Sequence[Gpu], gpu_count: int, tasks: int) -> list[tuple[GpuUuid, ...]]:
    place = {gpu.uuid: at for at, gpu in enumerate(suitable)}
    by_model: dict[str, list[Gpu]] = {}
    for gpu in suitable:
        by_model.setdefault(gpu.model, []).append(gpu)
    chosen = []
    for _ in range(tasks):
        group = _tightest(by_model, gpu_count) or sorted(
            (gpu for group in by_model.values() for gpu in group), key=lambda gpu: place[gpu.uuid]
        )
        taken = group[:gpu_count]
        chosen.append(tuple(gpu.uuid for gpu in taken))
        for gpu in taken:
            by_model[gpu.model].remove(gpu)
    return sorted(chosen, key=lambda uuids: place[uuids[0]])


def _tightest(by_model: dict[str, list[Gpu]], gpu_count: int) -> list[Gpu]:
    enough = [(len(group), group[0].memory_mb, model) for model, group in by_model.items() if len(group) >= gpu_count]
    return by_model[min(enough)[2]] if enough else []
