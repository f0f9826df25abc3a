"""Rules U1 to U5 of `engine/choose_gpus.py`: which GPUs of a node."""

from collections.abc import Sequence

from msgspec.structs import replace

from stoker.brain.domain.gpu import Gpu
from stoker.brain.engine.gang import choose_gpus, without_suspects
from tests.builders import A100, H100, V100, node


def _chosen(models: Sequence[str], gpu_count: int, tasks: int) -> list[list[int]]:
    gpus = node("a", models=models).inventory.gpus
    return _indexes(gpus, gpu_count, tasks)


def _indexes(gpus: Sequence[Gpu], gpu_count: int, tasks: int) -> list[list[int]]:
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    return [[index_of[uuid] for uuid in uuids] for uuids in choose_gpus(gpus, gpu_count, tasks)]


def test_the_first_free_in_device_order_are_taken() -> None:
    gpus = [gpu for gpu in node("a", gpus=6).inventory.gpus if gpu.index not in (0, 2)]
    assert _indexes(gpus, 2, 1) == [[1, 3]]


def test_tasks_of_a_gang_take_their_gpus_side_by_side() -> None:
    assert _chosen([A100] * 8, 3, 2) == [[0, 1, 2], [3, 4, 5]]


def test_a_task_gets_gpus_of_one_model() -> None:
    assert _chosen([A100, V100, A100, V100], 2, 2) == [[0, 2], [1, 3]]


def test_of_two_models_the_one_with_fewer_to_spare_is_taken() -> None:
    assert _chosen([V100, V100, V100, A100, A100], 2, 1) == [[3, 4]]


def test_of_two_models_with_as_many_to_spare_the_smaller_memory_is_taken() -> None:
    assert _chosen([A100, A100, V100, V100], 2, 1) == [[2, 3]]


def test_what_no_model_can_serve_alone_is_mixed_after_all_others_were_served() -> None:
    assert _chosen([A100, V100, V100, H100], 2, 2) == [[0, 3], [1, 2]]


def test_tasks_are_in_the_order_of_their_first_device() -> None:
    """V100s are the tighter group and are given out first, and yet rank 0 gets the first device."""
    assert _chosen([A100, A100, A100, V100, V100], 2, 2) == [[0, 1], [3, 4]]


def test_tasks_without_gpus_hold_none() -> None:
    assert choose_gpus([], 0, 3) == [(), (), ()]


def _trusted(models: Sequence[str], suspects: Sequence[int], gpu_count: int, tasks: int) -> list[list[int]]:
    found = node("a", models=models).inventory.gpus
    gpus = [replace(gpu, suspect=gpu.index in suspects) for gpu in found]
    return _indexes(without_suspects(gpus, gpu_count, tasks), gpu_count, tasks)


def test_u5_a_warm_gpu_is_left_where_others_suffice_and_taken_where_they_do_not() -> None:
    assert _trusted([A100] * 4, [0], 2, 1) == [[1, 2]]
    assert _trusted([A100] * 4, [0, 1], 3, 1) == [[0, 2, 3]], "in device order, with as few of them as can be"
    assert _trusted([A100] * 4, [0, 1, 2, 3], 1, 2) == [[0], [1]]


def test_u5_a_warm_gpu_is_no_reason_to_mix_models() -> None:
    assert _trusted([A100, A100, V100], [0], 2, 1) == [[0, 1]]
    assert _trusted([A100, A100, V100, V100], [0], 2, 1) == [[2, 3]]
