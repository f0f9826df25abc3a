"""Scripted GPUs: what a good file gives, and what a bad one is told."""

from pathlib import Path

import pytest

from stoker.adapters.gpu_probe.scripted import scripted_devices, scripted_uuid
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import GpuLink
from stoker.brain.domain.gpu_telemetry import GpuProcess, GpuSample, RemappedRows, throttled_by
from stoker.brain.domain.units import Mono
from stoker.ports import ProbeResult

GOOD = """\
gpus:
  - {count: 3, model: NVIDIA H100 80GB HBM3, memory_mb: 81559}
  - {model: Tesla V100-SXM2-32GB, memory_mb: 32768, uuid: GPU-mine}
links:
  - {a: 0, b: 1, kind: nvlink, gbps: 450}
"""


def probed(folder: Path, text: str, node: str = "node-a") -> ProbeResult:
    path = folder / "gpus.yaml"
    path.write_text(text)
    return scripted_devices(path, node).probe()


def refused(folder: Path, text: str) -> str:
    with pytest.raises(StokerError) as caught:
        probed(folder, text)
    assert caught.value.refusal.code == "bad_settings"
    return caught.value.refusal.message.replace(str(folder) + "/", "")


def test_every_gpu_of_the_script_is_there_and_called_simulated(tmp_path: Path) -> None:
    result = probed(tmp_path, GOOD)
    assert result.simulated
    assert [(gpu.index, gpu.memory_mb) for gpu in result.gpus] == [(0, 81_559), (1, 81_559), (2, 81_559), (3, 32_768)]
    assert result.gpus[0].model == "NVIDIA H100 80GB HBM3"
    assert result.gpus[3].uuid == "GPU-mine"


def test_links_of_the_kind_nvlink_are_told_once_for_each_pair_of_whole_gpus(tmp_path: Path) -> None:
    links = "links: [{a: 2, b: 0, kind: NVLink, lanes: 18}, {a: 0, b: 1}, {a: 1, b: 2, kind: pci}]\n"
    result = probed(tmp_path, f"gpus: [{{count: 3, model: H100, memory_mb: 81559}}]\n{links}")
    assert result.links == (GpuLink(0, 1, 1), GpuLink(0, 2, 18))
    divided = (
        "gpus: [{count: 2, model: A, memory_mb: 1}, {model: A, memory_mb: 9, mig: [1g.10gb]}]\nlinks: [{a: 0, b: 2}]"
    )
    assert probed(tmp_path, divided).links == ()


def test_a_node_offers_four_cpus_and_32_gib_per_gpu_unless_told(tmp_path: Path) -> None:
    assert (probed(tmp_path, GOOD).cpus, probed(tmp_path, GOOD).memory_mb) == (16, 4 * 32 * 1024)
    told = probed(tmp_path, GOOD + "cpus: 5\nmemory_mb: 77\n")
    assert (told.cpus, told.memory_mb) == (5, 77)


def test_uuids_follow_from_node_and_index_alone(tmp_path: Path) -> None:
    first, again = probed(tmp_path, GOOD), probed(tmp_path, GOOD)
    other = probed(tmp_path, GOOD, node="node-b")
    assert first == again
    assert {gpu.uuid for gpu in first.gpus[:3]}.isdisjoint(gpu.uuid for gpu in other.gpus)
    assert scripted_uuid("node-a", 0) == first.gpus[0].uuid
    assert [len(part) for part in first.gpus[0].uuid.split("-")] == [3, 8, 4, 4, 4, 12]


MIG = """\
gpus:
  - {model: H100, memory_mb: 81559, mig: [1g.10gb, 3g.40gb]}
  - {model: H100, memory_mb: 81559}
  - {model: H100, memory_mb: 81559, mig: []}
faults:
  - {kind: xid, gpu: 0, code: 94, mig: 1}
  - {kind: ecc, gpu: 0}
  - {kind: lost, gpu: 0, mig: 0, at_s: 10, for_s: 10}
  - {kind: lost, gpu: 0, at_s: 30}
"""


def test_a_gpu_of_a_script_may_be_divided_and_its_faults_are_those_of_its_instances(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(MIG)
    devices = scripted_devices(path, "node-a")
    now = [Mono(0.0)]
    devices._mono, devices._began = (lambda: now[0]), Mono(0.0)
    found = devices.probe()
    assert [(gpu.index, gpu.model, gpu.memory_mb) for gpu in found.gpus] == [
        (1, "H100", 81_559),
        (1_000, "H100 MIG 1g.10gb", 10_240),
        (1_001, "H100 MIG 3g.40gb", 40_960),
    ]
    assert {gpu.parent for gpu in found.gpus} == {"", scripted_uuid("node-a", 0)}
    assert found.gpus[1].uuid.startswith("MIG-")
    assert [fault.where for fault in found.faults] == [scripted_uuid("node-a", 2)]
    assert found.cpus == 12
    _, first, other = devices().samples
    assert (first.xids, other.xids, first.ecc_errors, other.ecc_errors) == ((), (94,), 1, 1)
    assert (first.utilization_percent, devices().divided) == (None, (scripted_uuid("node-a", 0),))
    now[0] = Mono(15.0)
    assert [sample.index for sample in devices().samples] == [1, 1_001], "it was taken away, which is no fault"
    assert [len(devices.probe().gpus), len(devices.probe().faults)] == [2, 1]
    now[0] = Mono(31.0)
    assert [bool(sample.fault) for sample in devices().samples] == [False, True, True]
    assert [len(devices.probe().gpus), len(devices.probe().faults)] == [1, 3]


def test_a_gpu_by_script_shows_throttled_clocks_and_failing_rows(tmp_path: Path) -> None:
    kinds = "faults: [{kind: throttled, gpu: 0}, {kind: remap_pending, gpu: 1}, {kind: remap_failed, gpu: 2}]\n"
    (tmp_path / "gpus.yaml").write_text(GOOD + kinds)
    slow, pending, failed, well = scripted_devices(tmp_path / "gpus.yaml", "node-a")().samples
    assert throttled_by(slow.clock_events or 0) == ("hot",)
    assert (slow.sm_clock_mhz or 0) > (well.sm_clock_mhz or 0), "an idle one runs slower still"
    assert (pending.rows, failed.rows) == (RemappedRows(pending=True), RemappedRows(failed=True))
    assert (well.rows, throttled_by(well.clock_events or 0)) == (RemappedRows(), ())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("gpus: [{model: A, memory_mb: 1, mig: [large]}]", "mig: 'large' is no profile, such as 1g.10gb"),
        ("gpus: [{model: A, memory_mb: 1, mig: 1g.10gb}]", "mig is a list"),
        (f"gpus: [{{model: A, memory_mb: 1, mig: [{', '.join(['1g.5gb'] * 8)}]}}]", "7 instances at most"),
        ("gpus: [{model: A, memory_mb: 1}]\nfaults: [{kind: lost, gpu: 0, mig: 0}]", "GPU 0 has no instance 0"),
    ],
)
def test_a_division_that_cannot_be_is_refused(tmp_path: Path, line: str, error: str) -> None:
    assert error in refused(tmp_path, line)


def test_a_script_without_gpus_is_a_node_without_gpus(tmp_path: Path) -> None:
    assert probed(tmp_path, "gpus: []\ncpus: 2\n").gpus == ()
    assert probed(tmp_path, "gpus:\ncpus: 2\n").gpus == ()


def test_broken_yaml_is_refused_with_file_and_line(tmp_path: Path) -> None:
    message = refused(tmp_path, "gpus:\n  - {count: 3\n  - x\n")
    assert message.startswith("gpus.yaml:4: ")
    assert message.endswith("which began on line 2)")


def test_a_missing_script_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match=r"nowhere\.yaml: no such file"):
        scripted_devices(tmp_path / "nowhere.yaml", "n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "gpus.yaml:1: a script is a group of keys"),
        ("- 1\n", "gpus.yaml:1: a script is a group of keys"),
        ("gpus: 4\n", "gpus.yaml:1: gpus is a list"),
        ("gpus: [4]\n", "gpus.yaml:1: this is a group of the keys count, model, memory_mb, uuid"),
        ("gpus:\n- {model: A, memory_mb: 1, count: 0}\n", "gpus.yaml:2: count: 0 isn't between 1 and 256"),
        ("gpus:\n- {model: A, memory_mb: 1, count: -3}\n", "gpus.yaml:2: count: -3 isn't between"),
        ("gpus:\n- {model: A, memory_mb: 1, count: 1000000}\n", "gpus.yaml:2: count: 1000000 isn't between"),
        ("gpus:\n- {model: A, memory_mb: 1, count: two}\n", "gpus.yaml:2: count: 'two' isn't a whole number"),
        ("gpus:\n- {model: A}\n", "gpus.yaml:2: a GPU needs memory_mb"),
        ("gpus:\n- {memory_mb: 1}\n", "gpus.yaml:2: a GPU needs a model"),
        ("gpus:\n- {model: A, memory_mb: 1, memroy: 2}\n", "gpus.yaml:2: memroy isn't a key here (nearest: memory_mb)"),
        ("gpus: []\ngpu: []\n", "gpus.yaml:2: gpu isn't a key here (nearest: gpus)"),
        ("gpus: []\ngpus: []\n", "gpus.yaml:2: gpus was already given"),
        ("gpus:\n- {model: A, memory_mb: 1, count: 2, uuid: GPU-x}\n", "uuid GPU-x can't name 2 GPUs"),
        (
            "gpus:\n- {model: A, memory_mb: 1, uuid: GPU-x}\n- {model: A, memory_mb: 1, uuid: GPU-x}\n",
            "two GPUs have the uuid GPU-x",
        ),
        ("gpus:\n- {model: A, memory_mb: 1}\nlinks:\n- {a: 0, b: 1}\n", "gpus.yaml:4: a link needs b, the index"),
        ("gpus:\n- {model: A, memory_mb: 1}\nlinks:\n- {a: 0, b: 0}\n", "gpus.yaml:4: a link joins two different"),
        ("gpus: []\ncpus: many\n", "gpus.yaml:2: cpus: 'many' isn't a whole number"),
    ],
)
def test_a_fault_in_a_script_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_every_fault_of_a_script_is_told_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, "gpus:\n- {model: A, memory_mb: x}\n- {count: 2, memory_mb: 5}\nlinkz: []\n")
    assert [line.strip().split(": ")[0] for line in message.splitlines()] == [
        "gpus.yaml:4",
        "gpus.yaml:2",
        "gpus.yaml:3",
    ]


FAULTS = """\
gpus: [{count: 3, model: H100, memory_mb: 80000}]
faults:
  - {kind: lost, gpu: 1, at_s: 10, for_s: 5}
  - {kind: xid, gpu: 0, at_s: 10}
  - {kind: ecc, gpu: 0, at_s: 10, count: 2}
  - {kind: hot, gpu: 2, at_s: 10, for_s: 5, temperature_c: 99}
  - {kind: idle, gpu: 2, at_s: 10, for_s: 5}
  - {kind: leftover, gpu: 0, at_s: 20, for_s: 5, memory_mb: 1000}
  - {kind: process, gpu: 0, at_s: 20, for_s: 5, pid: 77, memory_mb: 500}
  - {kind: slow_kill, gpu: 1, at_s: 20, for_s: 5}
  - {kind: clock, at_s: 20, by_s: -3.5}
"""


def test_faults_come_and_go_at_their_times_and_what_happens_once_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(FAULTS)
    devices, now = scripted_devices(path, "n1"), [0.0]
    devices._mono, devices._began = lambda: Mono(now[0]), Mono(0.0)
    held = devices.probe().gpus[2].uuid

    def sample(index: int) -> GpuSample:
        return devices((index,), (held,)).samples[0]

    first = devices(None, (held,))
    assert first.simulated
    assert [each.fault for each in first.samples] == ["", "", ""]
    assert [each.utilization_percent for each in first.samples] == [0, 0, 92]
    assert [each.memory_used_mb for each in first.samples] == [0, 0, 40_000]
    now[0] = 10.0
    assert [gpu.index for gpu in devices.probe().gpus] == [0, 2]
    assert devices.probe().faults[0].where == scripted_uuid("n1", 1)
    assert sample(1).fault == "GPU is lost (by script)"
    assert (sample(0).ecc_errors, sample(0).xids) == (2, ()), "its XID was told by the look before"
    assert (sample(2).temperature_c, sample(2).utilization_percent) == (99, 0)
    now[0] = 20.0
    assert len(devices.probe().gpus) == 3
    dirty = sample(0)
    assert (dirty.memory_used_mb, dirty.processes) == (1_500, (GpuProcess(77, 500),))
    assert (sample(1).releasing, sample(2).temperature_c) == (True, 61)
    assert devices().clock_ahead_ms == -3_500
    now[0] = 25.0
    assert (sample(0).memory_used_mb, sample(1).releasing, devices().clock_ahead_ms) == (0, False, -3_500)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("{gpu: 0}", "kind: 'None' isn't one of lost, xid, ecc"),
        ("{kind: melts, gpu: 0}", "kind: 'melts' isn't one of lost, xid, ecc"),
        ("{kind: lost}", "lost needs gpu, its index"),
        ("{kind: lost, gpu: 4}", "gpu: 4 isn't the index of one of the 1 GPUs"),
        ("{kind: clock, gpu: 0}", "gpu: a clock is the node's"),
        ("{kind: lost, gpu: 0, at_s: -1}", "at_s, for_s and amounts are at least 0"),
        ("{kind: lost, gpu: 0, at: 1}", "at isn't a key here (nearest: at_s)"),
    ],
)
def test_a_fault_that_can_not_be_is_refused_with_its_line(tmp_path: Path, fault: str, words: str) -> None:
    text = f"gpus: [{{model: H100, memory_mb: 1}}]\nfaults:\n  - {fault}\n"
    assert f"gpus.yaml:3: {words}" in refused(tmp_path, text)
