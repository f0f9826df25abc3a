"""What nvidia-smi may print, and what is made of it. Rows cite the fault list."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.adapters.gpu_probe.devices import parse_visible
from stoker.adapters.gpu_probe.nvidia_smi_text import (
    count_migs,
    parse_figures,
    parse_processes,
    parse_query,
    parse_rows,
)
from stoker.brain.domain.gpu_telemetry import RemappedRows
from stoker.brain.domain.ids import GpuUuid

A = "0, GPU-aaaaaaaa-0000-0000-0000-000000000000, Tesla V100-SXM2-32GB, 32768, 10, 3, 35, 52.41, 00000000:06:00.0"
B = "1, GPU-bbbbbbbb-0000-0000-0000-000000000000, Tesla V100-SXM2-32GB, 32768, 20, 4, 36, 53.99, 00000000:0A:00.0"
UNKNOWN = ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "ERR!", "[Unknown Error]", "", "-", "[]"]
NAMES = ["used", "utilization", "temperature", "power"]


def line(**changed: str) -> str:
    values = {
        "index": "2",
        "uuid": "GPU-cccccccc-0000-0000-0000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "total": "81559",
        "used": "1",
        "utilization": "2",
        "temperature": "3",
        "power": "4.5",
        "bus": "00000000:0F:00.0",
    }
    return ", ".join((values | changed).values())


def test_every_column_of_a_plain_line_is_read() -> None:
    (gpu,) = parse_query(A).gpus
    assert gpu.uuid == "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    assert (gpu.index, gpu.model, gpu.memory_mb) == (0, "Tesla V100-SXM2-32GB", 32_768)
    assert (gpu.memory_used_mb, gpu.utilization_percent, gpu.temperature_c, gpu.power_w) == (10, 3, 35, 52)


def test_two_lines_are_two_gpus() -> None:
    """Row 59: the output for two GPUs was read as one number."""
    assert [gpu.index for gpu in parse_query(f"{A}\n{B}\n").gpus] == [0, 1]


def test_gpus_are_in_pci_order_whatever_order_the_lines_have() -> None:
    """Rows 47 and 48: the tool lists fastest first, the bus order is what CUDA is told to use."""
    fast = line(index="0", uuid="GPU-f", bus="00000000:C1:00.0")
    slow = line(index="1", uuid="GPU-s", bus="00000000:0A:00.0")
    domain = line(index="2", uuid="GPU-d", bus="00000001:01:00.0")
    assert [gpu.uuid for gpu in parse_query("\n".join([domain, fast, slow])).gpus] == ["GPU-s", "GPU-f", "GPU-d"]


def test_a_gpu_without_an_address_comes_last_by_its_index() -> None:
    lines = [line(index="7", uuid="GPU-x", bus="[N/A]"), line(index="3", uuid="GPU-y", bus="[N/A]"), A]
    assert [gpu.index for gpu in parse_query("\n".join(lines)).gpus] == [0, 3, 7]


@pytest.mark.parametrize("token", UNKNOWN)
@pytest.mark.parametrize("column", NAMES)
def test_what_the_driver_will_not_tell_is_unknown(column: str, token: str) -> None:
    """Rows 54 and 55."""
    reading = parse_query(f"{A}\n{line(**{column: token})}\n{B}")
    assert len(reading.gpus) == 3
    assert not reading.faults
    told = reading.gpus[2]
    seen = dict(
        zip(NAMES, (told.memory_used_mb, told.utilization_percent, told.temperature_c, told.power_w), strict=True)
    )
    assert seen[column] is None
    assert sum(value is None for value in seen.values()) == 1


@pytest.mark.parametrize("token", [token for token in UNKNOWN if token])
def test_every_numeric_column_unknown_at_once_leaves_a_gpu(token: str) -> None:
    (gpu,) = parse_query(line(used=token, utilization=token, temperature=token, power=token)).gpus
    assert gpu.memory_mb == 81_559


@pytest.mark.parametrize("token", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]"])
def test_a_gpu_whose_memory_has_no_number_of_its_own_offers_none(token: str) -> None:
    """Unified-memory parts answer so."""
    (gpu,) = parse_query(line(total=token)).gpus
    assert gpu.memory_mb == 0


@pytest.mark.parametrize("token", ["ERR!", "[Unknown Error]", "[GPU requires reset]", "", "many"])
def test_a_gpu_whose_memory_cannot_be_read_is_a_fault_and_hides_no_other(token: str) -> None:
    """Row 63: one lost GPU made the other three unusable."""
    reading = parse_query(f"{A}\n{line(total=token)}\n{B}")
    assert [gpu.index for gpu in reading.gpus] == [0, 1]
    assert [fault.where for fault in reading.faults] == ["00000000:0F:00.0"]


@pytest.mark.parametrize("column", [*NAMES, "uuid", "name"])
@pytest.mark.parametrize("token", ["[GPU requires reset]", "[GPU is lost]"])
def test_a_gpu_that_wants_a_reset_or_is_lost_is_a_fault_in_whichever_column_it_says_so(column: str, token: str) -> None:
    reading = parse_query(f"{line(**{column: token})}\n{A}")
    assert [gpu.index for gpu in reading.gpus] == [0]
    assert token in reading.faults[0].error


@pytest.mark.parametrize("token", ["[Unknown Error]", "[N/A]", "", "0", "GPU", "GPU-"])
def test_a_gpu_without_a_uuid_is_a_fault(token: str) -> None:
    reading = parse_query(f"{line(uuid=token)}\n{A}")
    assert [gpu.index for gpu in reading.gpus] == [0]
    assert "UUID" in reading.faults[0].error


def test_two_gpus_never_share_a_uuid() -> None:
    reading = parse_query(f"{A}\n{A.replace('0, GPU', '1, GPU', 1).replace('06:00', '07:00')}")
    assert [gpu.index for gpu in reading.gpus] == [0]
    assert [fault.where for fault in reading.faults] == ["00000000:07:00.0"]


@pytest.mark.parametrize(
    "message",
    [
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:0B:00.0: GPU is lost.  Reboot the system to recover it",
        "Unable to detect the device handle for GPU0000:0B:00.0: Unknown Error",
    ],
)
def test_a_gpu_that_the_driver_has_lost_is_a_fault_at_its_address(message: str) -> None:
    reading = parse_query(f"{A}\n{message}\n{B}")
    assert [gpu.index for gpu in reading.gpus] == [0, 1]
    assert reading.faults[0].where.endswith("0000:0B:00.0")


def test_messages_before_and_after_the_list_are_kept_apart_from_it() -> None:
    before = "WARNING: infoROM is corrupted at gpu 0000:06:00.0"
    after = "Failed to initialize NVML: Driver/library version mismatch"
    reading = parse_query(f"{before}\n{A}\n{B}\n{after}\n")
    assert len(reading.gpus) == 2
    assert not reading.faults
    assert reading.messages == (before, after)


@pytest.mark.parametrize("cut", ["1, GPU-bbbbbbbb, Tesla V1", "1, GPU-bbbbbbbb-0000, Tesla, 32768, 1, 2"])
def test_a_line_that_breaks_off_is_a_fault_of_its_gpu(cut: str) -> None:
    reading = parse_query(f"{A}\n{cut}")
    assert [gpu.index for gpu in reading.gpus] == [0]
    assert reading.faults[0].where == "GPU 1"


def test_a_comma_in_a_name_shifts_no_column() -> None:
    (gpu,) = parse_query(line(name="NVIDIA Odd, Name, Ltd. (rev. 2)")).gpus
    assert (gpu.model, gpu.memory_mb, gpu.power_w) == ("NVIDIA Odd, Name, Ltd. (rev. 2)", 81_559, 4)


def test_units_carriage_returns_headers_and_blank_lines_do_no_harm() -> None:
    text = f"index, uuid, name, memory.total [MiB]\r\n{line(total='81559 MiB', utilization='7 %', power='70.10 W')}\r\n"
    (gpu,) = parse_query(text + "\r\n\r\n   \n").gpus
    assert (gpu.memory_mb, gpu.utilization_percent, gpu.power_w) == (81_559, 7, 70)


def test_bytes_that_are_not_text_do_not_reach_a_name() -> None:
    name = b"Tesla\x00 \xff\x1b[31mV100".decode(errors="replace")
    (gpu,) = parse_query(line(name=name)).gpus
    assert gpu.model == "Tesla  \ufffd [31mV100"


def test_nothing_at_all_is_no_gpu_and_no_fault() -> None:
    for text in ("", "\n\n", " \r\n"):
        reading = parse_query(text)
        assert (reading.gpus, reading.faults, reading.messages) == ((), (), ())


def test_an_endless_answer_is_cut_at_a_bound() -> None:
    many = "\n".join(line(index=str(n % 9_999), uuid=f"GPU-{n}") for n in range(2_000))
    reading = parse_query(many + "\nnoise" * 500 + "\n1,2,3" * 500)
    assert (len(reading.gpus), len(reading.faults), len(reading.messages)) == (256, 256, 8)


@given(st.text(max_size=400))
@example("0,,")
@example("\u0663, GPU-a, x, 1, 1, 1, 1, 1, 00:00.0")
def test_no_text_at_all_makes_the_reading_fail_or_hides_a_gpu_beside_it(text: str) -> None:
    """Row 57: the collector survives any output."""
    alone = parse_query(f"{A}\n{text}\n{B}")
    assert {0, 1} <= {gpu.index for gpu in alone.gpus}
    assert len({gpu.uuid for gpu in alone.gpus}) == len(alone.gpus)
    count_migs(text)
    parse_visible(text)


LISTING = "\n".join(
    f"GPU {n}: NVIDIA A100-SXM4-40GB (UUID: GPU-{n}0000000-1111-2222-3333-444444444444)\n"
    f"  MIG 3g.20gb     Device  0: (UUID: MIG-{n}aaaaaaa-1111-5222-8333-444444444444)\n"
    f"  MIG 1c.3g.20gb  Device  1: (UUID: MIG-GPU-{n}0000000-1111-2222-3333-444444444444/2/0)"
    for n in range(4)
)


def test_a_listing_of_four_gpus_with_two_mig_instances_each_is_read() -> None:
    """Row 56: the indented lines made the reader fail."""
    assert count_migs(LISTING) == {f"GPU-{n}0000000-1111-2222-3333-444444444444": 2 for n in range(4)}


def test_a_listing_with_noise_and_odd_names_is_read() -> None:
    text = "WARNING: odd\r\nGPU 0: Name (rev. 2), odd (UUID: GPU-1-2)\r\n\r\n  MIG so\r\nGPU 1: B (UUID: GPU-3)"
    assert count_migs(text) == {"GPU-1-2": 0, "GPU-3": 0}


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        (None, None),
        ("all", None),
        ("", ()),
        ("-1", ()),
        ("none", ()),
        ("NoDevFiles", ()),
        ("0", (0,)),
        ("0,1,3", (0, 1, 3)),
        (" 2 , 0 ", (2, 0)),
        ("1,-1,2", (1,)),
        ("0,x,1", (0,)),
        ("GPU-3e34e62f-d88e-f448-415e-be2cbf2c6178", ("GPU-3e34e62f-d88e-f448-415e-be2cbf2c6178",)),
        ("GPU-3e34", ("GPU-3e34",)),
        ("MIG-2aaaaaaa-1111-5222-8333-444444444444,1", ("MIG-2aaaaaaa-1111-5222-8333-444444444444", 1)),
        ("MIG-GPU-3e34e62f-d88e-f448-415e-be2cbf2c6178/1/0", ("MIG-GPU-3e34e62f-d88e-f448-415e-be2cbf2c6178/1/0",)),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, visible: tuple[int | str, ...] | None) -> None:
    """Rows 50 and 51: int() of a MIG UUID ended the server."""
    assert parse_visible(text) == visible


FIGURES_TOLD = """\
0, GPU-a, 1000, 57, 55, 123.45, 4, Disabled
1, GPU-b, [N/A], [Not Supported], N/A, [N/A], [N/A], [N/A]
2, GPU-c, 0, 0, 30, 40, 0, Enabled
3, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]
"""


def test_figures_are_read_and_what_the_driver_will_not_tell_is_unknown() -> None:
    found = parse_figures(FIGURES_TOLD, {3: GpuUuid("GPU-d")})
    a, b, d = found.samples
    assert (a.memory_used_mb, a.utilization_percent, a.temperature_c, a.power_mw, a.ecc_errors) == (
        1_000,
        57,
        55,
        123_450,
        4,
    )
    assert (b.uuid, b.memory_used_mb, b.utilization_percent, b.power_mw, b.ecc_errors) == ("GPU-b", *[None] * 4)
    assert (d.uuid, d.fault) == ("GPU-d", "[GPU is lost]")
    assert found.divided == ("GPU-c",), "figures of MIG instances aren't told"


def test_an_old_driver_tells_fewer_figures() -> None:
    (only,) = parse_figures("0, GPU-a, 1000, 57, 55, 123.45", {}).samples
    assert (only.power_mw, only.ecc_errors) == (123_450, None)


def test_processes_belong_to_their_gpu_and_nonsense_to_none() -> None:
    samples = parse_figures(FIGURES_TOLD, {}).samples
    told = "GPU-a, 12, 100\nGPU-a, 13, [N/A]\nGPU-x, 14, 1\nnonsense\nGPU-b, x, 2\n"
    a, b, d = parse_processes(told, samples)
    assert [(each.pid, each.memory_mb) for each in a.processes or ()] == [(12, 100), (13, None)]
    assert (b.processes, d.processes) == ((), None)
    assert [each.processes for each in parse_processes(None, samples)] == [None] * 3


@given(st.text(), st.integers(0, 200))
def test_no_text_at_all_makes_the_reading_of_figures_fail(text: str, cut_at: int) -> None:
    parse_processes(text, parse_figures(f"{FIGURES_TOLD[:cut_at]}{text}", {}).samples)


def test_clocks_and_what_holds_them_down_are_read_where_they_are_told() -> None:
    row = "0, GPU-a, 9000, 57, 55, 123.00, 0, Disabled, 1980, 2619, {}"
    (told,) = parse_figures(row.format("0x0000000000000048"), {}).samples
    assert (told.sm_clock_mhz, told.memory_clock_mhz, told.clock_events) == (1_980, 2_619, 0x48)
    (untold,) = parse_figures(row.format("[N/A]").replace("1980", "[N/A]"), {}).samples
    assert (untold.sm_clock_mhz, untold.clock_events) == (None, None)


def test_remapped_rows_are_told_of_gpus_that_have_them() -> None:
    rows = parse_rows("GPU-a, 1, 2, Yes, 0\nGPU-b, [N/A], [N/A], [N/A], [N/A]\nwarning: x\nGPU-c, 0, 0, 0, 1\n")
    assert rows == {"GPU-a": RemappedRows(1, 2, pending=True), "GPU-c": RemappedRows(failed=True)}
