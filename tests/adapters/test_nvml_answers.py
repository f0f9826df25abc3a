"""Rules N1 to N6 of `nvml_answers.py`: what NVML may say of GPUs, and what is made of it."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.adapters.gpu_probe.devices import NO_INSTANCES
from stoker.adapters.gpu_probe.nvml_answers import NvmlReading, read_answer

MIB = 1 << 20
LOST = (15, "GPU is lost")
HANG = "no answer within 10 s"


def gpu(index: int, **changed: object) -> dict[str, object]:
    values: dict[str, object] = {
        "index": index,
        "uuid": (f"GPU-{index}aaaaaaa", ""),
        "name": ("NVIDIA H100 80GB HBM3", ""),
        "bus": (f"00000000:{index:02X}:00.0", ""),
        "memory": (81_559 * MIB, ""),
        "mig": (3, "Not Supported"),
    }
    return values | changed


def whole(*lines: dict[str, object], count: int | None = None) -> NvmlReading:
    said = [{"count": len(lines) if count is None else count}, *lines, {"done": True}]
    return read_answer("".join(f"{json.dumps(line)}\n" for line in said), "never said")


def faults(reading: NvmlReading) -> list[str]:
    return [f"{fault.where}: {fault.error}" for fault in reading.faults]


def test_every_value_of_a_plain_gpu_is_read() -> None:
    reading = whole(gpu(0))
    (found,) = reading.gpus
    assert (found.uuid, found.index, found.model) == ("GPU-0aaaaaaa", 0, "NVIDIA H100 80GB HBM3")
    assert found.memory_mb == 81_559
    assert (reading.faults, reading.divided, reading.unread) == ((), {}, ())


def test_no_gpu_is_an_answer() -> None:
    assert whole() == NvmlReading((), ())


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"name": LOST}, "the driver says 'GPU is lost'"),
        ({"mig": LOST}, "the driver says 'GPU is lost'"),
        ({"memory": (16, "GPU requires restart")}, "the driver says 'GPU requires restart'"),
        ({"handle": LOST}, "the driver says 'GPU is lost'"),
        ({"handle": (4, "Insufficient Permissions")}, "it can't be opened: Insufficient Permissions"),
        ({"uuid": (999, "Unknown Error")}, "it doesn't tell its UUID: Unknown Error"),
        ({"uuid": ("", "")}, "its UUID is ''"),
        ({"uuid": ("GPU-\x1b[2J\n", "")}, "its UUID is 'GPU- [2J'"),
        ({"uuid": ("GPU-0aaaaaaa", "")}, "its UUID GPU-0aaaaaaa was already listed for another GPU"),
        ({"memory": (999, "Unknown Error")}, "it doesn't tell its memory: Unknown Error"),
        ({"uuid": ("MIG-1aaaaaaa", "")}, "its UUID is 'MIG-1aaaaaaa'"),
        ({"mig": (999, "Unknown Error")}, "it doesn't tell whether it has MIG instances: Unknown Error"),
        ({"memory": (2**63, "")}, "its memory is 8796093022208 MiB"),
    ],
)
def test_a_gpu_that_cannot_be_read_is_a_fault_and_hides_no_other(changed: dict[str, object], error: str) -> None:
    reading = whole(gpu(0), gpu(1, **changed), gpu(2))
    assert [found.index for found in reading.gpus] == [0, 2]
    assert faults(reading) == [f"00000000:01:00.0: {error}"]


def test_a_faulty_gpu_without_an_address_is_named_by_its_index() -> None:
    assert faults(whole({"index": 3, "handle": LOST}, count=4)) == ["GPU 3: the driver says 'GPU is lost'"]


@pytest.mark.parametrize("code", [3, 4, 13])
def test_what_the_driver_will_not_tell_is_unknown(code: int) -> None:
    no = (code, "no")
    (found,) = whole(gpu(7, memory=no, mig=no, bus=no)).gpus
    assert found.memory_mb == 0


@pytest.mark.parametrize("name", [(999, "Unknown Error"), (3, "Not Supported"), ("", ""), (" \n", "")])
def test_a_gpu_without_a_name_is_still_a_gpu(name: tuple[object, str]) -> None:
    assert whole(gpu(0, name=name)).gpus[0].model == "unknown"


def test_a_name_is_cleaned_and_cut() -> None:
    assert whole(gpu(0, name=("a\tb\x1b" + "c" * 999, ""))).gpus[0].model == "a b " + "c" * 196


def test_gpus_are_in_pci_order_and_keep_their_own_index() -> None:
    """One that doesn't tell its address comes last."""
    nowhere = gpu(0, bus=(3, "Not Supported"))
    reading = whole(nowhere, gpu(1, bus=("00000000:C1:00.0", "")), gpu(2, bus=("00000000:0A:00.0", "")))
    assert [found.index for found in reading.gpus] == [2, 1, 0]


def instance(slot: int, **changed: object) -> dict[str, object]:
    values: dict[str, object] = {
        "slot": slot,
        "uuid": (f"MIG-{slot}bbbbbbb", ""),
        "name": ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""),
        "memory": (9_728 * MIB, ""),
        "gpu_instance": (slot + 7, ""),
        "compute_instance": (0, ""),
    }
    return values | changed


def test_n7_mig_instances_are_devices_with_a_parent_and_come_last() -> None:
    divided = gpu(0, mig=(1, ""), instances=[instance(0), instance(2)])
    reading = whole(divided, gpu(1, mig=(0, "")), gpu(2, mig=(1, ""), instances=[]))
    assert [found.index for found in reading.gpus] == [0, 1, 2, 1_000, 1_002]
    assert reading.divided == {"GPU-0aaaaaaa": "", "GPU-2aaaaaaa": NO_INSTANCES}
    last = reading.gpus[-1]
    assert (last.uuid, last.parent, last.bus) == ("MIG-2bbbbbbb", "GPU-0aaaaaaa", "00000000:00:00.0")
    assert (last.model, last.memory_mb) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9_728)
    assert (last.gpu_instance, last.compute_instance) == (9, 0)


@pytest.mark.parametrize(
    ("changed", "profile"),
    [
        ({"name": ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "")}, "1c.3g.20gb"),
        ({"name": ("H100", ""), "slices": ((1, 1, 9_728), "")}, "1g.10gb"),
        ({"name": (3, "Not Supported"), "slices": ((3, 3, 40_192), "")}, "3g.40gb"),
        ({"name": ("", ""), "slices": ((1, 2, 19_968), "")}, "1c.2g.20gb"),
        ({"name": ("", ""), "slices": (3, "Not Supported")}, "unknown"),
    ],
)
def test_n7_the_profile_is_the_drivers_or_made_of_its_slices(changed: dict[str, object], profile: str) -> None:
    (_, found) = whole(gpu(0, mig=(1, ""), instances=[instance(0, **changed)])).gpus
    assert found.model == f"NVIDIA H100 80GB HBM3 MIG {profile}"


def test_n7_an_instance_that_cannot_be_read_is_a_fault_and_hides_no_other() -> None:
    bad = [instance(0, uuid=(2, "Invalid Argument")), instance(1), instance(2, uuid=("MIG-1bbbbbbb", ""))]
    bad.append(instance(3, uuid=("GPU-1aaaaaaa", "")))
    reading = whole(gpu(0, mig=(1, ""), instances=bad), gpu(1))
    assert [found.index for found in reading.gpus] == [0, 1, 1_001]
    assert faults(reading) == [
        "GPU 0:0: its MIG instance can't be used: Invalid Argument",
        "GPU 0:2: its MIG instance can't be used: its UUID is 'MIG-1bbbbbbb'",
        "GPU 0:3: its MIG instance can't be used: its UUID is 'GPU-1aaaaaaa'",
    ]


def test_an_answer_that_ends_in_its_middle_is_the_fault_of_the_gpu_that_was_asked_last() -> None:
    lines = [{"count": 4}, {"asked": 0}, gpu(0), {"asked": 1}]
    text = "\n".join(map(json.dumps, lines))
    reading = read_answer(text, HANG)
    assert [found.index for found in reading.gpus] == [0]
    assert faults(reading) == [f"GPU 1: {HANG}", "2 GPUs more: not asked any more, and asked first the next time"]
    assert (reading.unread, reading.asked) == ((1, 2, 3), 1)
    assert read_answer(f'{text}\n{{"index": 1, "uuid": ["GPU', HANG) == reading, "half a line is none"


def test_an_answer_that_ends_between_two_gpus_blames_none_of_them() -> None:
    reading = read_answer("\n".join(map(json.dumps, [{"count": 2}, {"asked": 0}, gpu(0)])), HANG)
    assert faults(reading) == ["1 GPU: not asked any more, and asked first the next time"]
    assert (reading.unread, reading.asked) == ((1,), None)


def test_a_library_that_refuses_is_told_in_its_own_words() -> None:
    with pytest.raises(OSError, match=r"^Driver Not Loaded$"):
        read_answer('{"failed": [9, "Driver Not Loaded"]}', "never said")
    with pytest.raises(OSError, match=r"version mismatch \(the driver was upgraded under .*: load the new module"):
        read_answer('{"failed": [18, "RM has detected an NVML/RM version mismatch."]}', "never said")


@pytest.mark.parametrize("text", ["", "Segmentation fault", "\x00\x01", "[]", "{", '{"index": "x"}'])
def test_an_answer_about_nothing_is_told_by_how_it_ended(text: str) -> None:
    with pytest.raises(OSError, match=r"^NVML crashed$"):
        read_answer(text, "NVML crashed")


@pytest.mark.parametrize("count", [257, 4_294_967_295, -1])
def test_a_count_that_no_machine_has_is_refused_as_a_whole(count: int) -> None:
    with pytest.raises(OSError, match=f"it counts {count} GPUs, and a node has 256 at most"):
        read_answer(f'{{"count": {count}}}', "never said")


@given(st.text(), st.integers(0, 300))
def test_no_text_at_all_makes_the_reading_fail_otherwise_than_by_a_refusal(text: str, cut_at: int) -> None:
    lines = "\n".join(map(json.dumps, [{"count": 2}, gpu(0), gpu(1), {"done": True}]))
    with suppress(OSError):
        read_answer(f"{lines[:cut_at]}{text}", "cut")
