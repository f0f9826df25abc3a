"""The NVML probe with nvidia-ml-py, over a library in the place of the driver's: good, odd, hanging or missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from stoker.adapters.bounded_run import ProgramTimeout
from stoker.adapters.gpu_probe.auto import AutoProbe
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi import SmiProbe
from stoker.adapters.gpu_probe.nvml import READER, NvmlProbe
from stoker.agent.settings import AgentSettings, GpuSettings
from stoker.brain.domain.gpu import GpuLink
from stoker.cli.doctor import node
from stoker.cli.doctor.finding import Level
from stoker.ports import ProbeResult
from tests.real.nvml_stub import LIBRARY, MODEL, NvmlStub, mig_uuid, uuid, uuids

SHORT_S = 3.0
"""Longer than a look takes on a busy machine, and short enough to wait for."""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    stub = NvmlStub(tmp_path)
    for name, value in stub.environ.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return stub


def faults(result: ProbeResult) -> list[str]:
    return [f"{fault.where}: {fault.error}" for fault in result.faults]


def indexes(result: ProbeResult) -> list[int]:
    return [gpu.index for gpu in result.gpus]


def test_four_gpus_are_found_in_pci_order(stub: NvmlStub) -> None:
    stub.tell(gpu_0_bus="00000000:C1:00.0")
    result = NvmlProbe().probe()
    assert [gpu.uuid for gpu in result.gpus] == uuids([1, 2, 3, 0])
    assert {(gpu.model, gpu.memory_mb) for gpu in result.gpus} == {(MODEL, 81_559)}
    assert (result.faults, result.simulated, result.hidden) == ((), False, "")


def test_gpus_that_nvlink_joins_straight_or_through_switches_are_told_with_their_lanes(stub: NvmlStub) -> None:
    bus = "0:0000:{:02X}:00.0"
    stub.tell(gpu_0_links=f"{bus.format(0x11)} - {bus.format(0x11)}", gpu_1_links=" ".join([bus.format(0x10)] * 2))
    stub.tell(gpu_2_links="2:a 2:a 2:b", gpu_3_links="2:a 2:b !15")
    result = NvmlProbe().probe()
    assert result.links == (GpuLink(0, 1, 2), GpuLink(2, 3, 2))
    stub.divide(2, 0)
    assert NvmlProbe().probe().links == (GpuLink(0, 1, 2),), "an instance has no use of it"
    stub.tell(gpu_1_links="!15")
    assert len(NvmlProbe().probe().gpus) == 4, "one that is sick is a GPU as before"


def test_what_nvitop_shows_is_what_is_found(stub: NvmlStub) -> None:
    nvitop = Path(sys.executable).with_name("nvitop")
    if not nvitop.exists():
        pytest.skip("nvitop isn't installed in this environment")
    stub.tell(gpu_2_handle="!15")
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    shown = subprocess.run([nvitop, "-1", "--ascii"], env=environ, capture_output=True, text=True, timeout=60).stdout
    result = NvmlProbe().probe()
    rows = [line for line in shown.splitlines() if "H100 80GB HBM3" in line]
    assert [int(row.split()[1]) for row in rows] == indexes(result) == [0, 1, 3]
    assert "GPU is Lost" in shown
    assert faults(result) == ["GPU 2: the driver says 'GPU is lost'"]


@pytest.mark.parametrize(
    ("changed", "memory_mb"),
    [
        ({"gpu_1_memory_v1": "7"}, 81_559),
        ({"gpu_1_memory": "!13", "gpu_1_memory_v1": "40960"}, 40_960),
        ({"gpu_1_memory": "!25", "gpu_1_memory_v1": "40960"}, 40_960),
        ({"gpu_1_memory": "!3", "gpu_1_memory_v1": "40960"}, 40_960),
        ({"gpu_1_memory_v1": "!3"}, 81_559),
        ({"gpu_1_memory": "!3", "gpu_1_memory_v1": "!3"}, 0),
        ({"gpu_1_memory": "!13", "gpu_1_memory_v1": "!3"}, 0),
    ],
)
def test_memory_is_asked_by_version_2_and_by_version_1_where_that_is_not_known(
    stub: NvmlStub, changed: dict[str, str], memory_mb: int
) -> None:
    stub.tell(**changed)
    result = NvmlProbe().probe()
    assert [gpu.memory_mb for gpu in result.gpus] == [81_559, memory_mb, 81_559, 81_559]
    assert result.faults == ()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"gpu_1_handle": "!15"}, "GPU 1: the driver says 'GPU is lost'"),
        ({"gpu_1_handle": "!4"}, "GPU 1: it can't be opened: Insufficient Permissions"),
        ({"gpu_1_handle": "!777"}, "GPU 1: it can't be opened: an error that no binding knows"),
        ({"gpu_1_uuid": "!15"}, "00000000:11:00.0: the driver says 'GPU is lost'"),
        ({"gpu_1_uuid": b"\xff\xfe garbage \x07"}, "00000000:11:00.0: its UUID is '\ufffd\ufffd garbage'"),
        ({"gpu_1_name": "!16"}, "00000000:11:00.0: the driver says 'GPU requires restart'"),
        ({"gpu_1_memory": "18446744073709551615"}, "00000000:11:00.0: its memory is 17592186044415 MiB"),
        ({"gpu_1_mig": "!15"}, "00000000:11:00.0: the driver says 'GPU is lost'"),
        ({"gpu_1_mig": "1", "gpu_1_migs": "!15"}, "00000000:11:00.0: the driver says 'GPU is lost'"),
        ({"gpu_1_mig": "!999"}, "00000000:11:00.0: it doesn't tell whether it has MIG instances: Unknown Error"),
    ],
)
def test_one_gpu_that_answers_garbage_or_is_lost_between_two_calls_hides_no_other(
    stub: NvmlStub, changed: dict[str, str | bytes], error: str
) -> None:
    stub.tell(**changed)
    result = NvmlProbe().probe()
    assert indexes(result) == [0, 2, 3]
    assert faults(result) == [error]


def test_a_name_that_is_not_utf8_does_no_harm(stub: NvmlStub) -> None:
    stub.tell(gpu_0_name=b"NVIDIA \xff\xe9 H100")
    assert NvmlProbe().probe().gpus[0].model == "NVIDIA \ufffd\ufffd H100"


def test_of_a_gpu_with_mig_switched_on_its_instances_are_offered_and_without_any_it_is_a_fault(stub: NvmlStub) -> None:
    stub.tell(gpu_0_mig="0")
    stub.divide(1, 0, 3)
    stub.divide(2)
    result = NvmlProbe().probe()
    assert indexes(result) == [0, 3, 2_000, 2_003]
    last = result.gpus[-1]
    assert (last.uuid, last.parent, last.memory_mb) == (mig_uuid(1, 3), uuid(1), 9_728)
    assert (last.model, last.gpu_instance, last.compute_instance) == (f"{MODEL} MIG 1g.10gb", 10, 0)
    assert [fault.where for fault in result.faults] == [uuid(2)]
    assert "MIG is on, and it has no MIG instance to offer" in result.faults[0].error
    stub.tell(gpu_2_migs="!999")
    told = faults(NvmlProbe().probe())
    assert told == [f"GPU 2:{slot}: its MIG instance can't be used: Unknown Error" for slot in range(7)]


@pytest.mark.parametrize(
    ("environ", "offered"),
    [
        ({}, [0, 1, 3, 3_000, 3_001]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-21bbb"}, [3_001]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [3_000, 3_001]),
        ({"CUDA_VISIBLE_DEVICES": f"0,{uuid(2)}"}, [0, 3_000, 3_001]),
        ({"NVIDIA_VISIBLE_DEVICES": "1,MIG-20bbb"}, [1, 3_000]),
        ({"NVIDIA_VISIBLE_DEVICES": "2:1,3"}, [3, 3_001]),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b,MIG-c,MIG-d,MIG-e"}, [0, 1, 3, 3_000, 3_001]),
        ({"CUDA_VISIBLE_DEVICES": "2:1"}, []),
    ],
)
def test_restricted_sets_name_mig_instances_or_the_gpu_of_several(
    stub: NvmlStub, environ: dict[str, str], offered: list[int]
) -> None:
    stub.divide(2, 0, 1)
    result = NvmlProbe(environ=environ).probe()
    assert indexes(result) == offered
    assert result.hidden.endswith("in the agent's environment: of 4 GPUs there none is offered") is (not offered)


@pytest.mark.parametrize(
    ("environ", "offered"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, [1, 3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2aaaaaaa,0"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1,2"}, [1]),
        ({"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}, [0, 1, 2, 3]),
    ],
)
def test_an_agent_offers_only_the_gpus_that_its_environment_shows_it(
    stub: NvmlStub, environ: dict[str, str], offered: list[int]
) -> None:
    result = NvmlProbe(environ=environ).probe()
    assert indexes(result) == offered
    assert result.hidden.endswith("in the agent's environment: of 4 GPUs there none is offered") is (not offered)


def test_a_broken_gpu_is_our_fault_only_where_one_of_ours_is_missing(stub: NvmlStub) -> None:
    stub.tell(gpu_3_handle="!15")
    assert faults(NvmlProbe(environ={"CUDA_VISIBLE_DEVICES": "0,1"}).probe()) == []
    assert len(faults(NvmlProbe(environ={"CUDA_VISIBLE_DEVICES": "0,3"}).probe())) == 1


def test_no_devices_is_an_answer(stub: NvmlStub) -> None:
    stub.tell(count="0")
    assert NvmlProbe().probe() == ProbeResult(gpus=())


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"init": "!9"}, "Driver Not Loaded"),
        ({"init": "!18"}, "RM has detected an NVML/RM version mismatch (the driver was upgraded under its kernel "),
        ({"init": "!999"}, "Unknown Error"),
        ({"init": "!crash"}, "NVML crashed (signal 11)"),
        ({"count": "!999"}, "Unknown Error"),
        ({"count": "4294967295"}, "it counts 4294967295 GPUs, and a node has 256 at most"),
    ],
)
def test_a_library_that_refuses_as_a_whole_is_one_clear_error(
    stub: NvmlStub, changed: dict[str, str], error: str
) -> None:
    stub.tell(**changed)
    with pytest.raises(OSError) as raised:  # noqa: PT011  # compared below, to the letter
        NvmlProbe().probe()
    assert str(raised.value).startswith(error)
    assert not isinstance(raised.value, DriverMissing | ProgramTimeout)


def test_what_the_library_prints_is_no_part_of_the_answer(stub: NvmlStub) -> None:
    stub.tell(noise="NVRM: hello")
    assert indexes(NvmlProbe().probe()) == [0, 1, 2, 3]


def test_a_library_that_hangs_as_a_whole_is_given_up(stub: NvmlStub) -> None:
    stub.tell(init="!hang")
    with pytest.raises(ProgramTimeout, match=r"^NVML didn't answer within 3 s$"):
        NvmlProbe(SHORT_S).probe()


@pytest.mark.parametrize(
    ("value", "error"), [("!hang", "no answer within 3 s"), ("!crash", "NVML crashed (signal 11)")]
)
def test_a_gpu_that_hangs_or_crashes_is_named_and_asked_last_the_next_time(
    stub: NvmlStub, value: str, error: str
) -> None:
    stub.tell(gpu_2_memory=value)
    probe = NvmlProbe(SHORT_S)
    first = probe.probe()
    assert indexes(first) == [0, 1]
    assert faults(first) == [f"GPU 2: {error}", "1 GPU more: not asked any more, and asked first the next time"]
    second = probe.probe()
    assert indexes(second) == [0, 1, 3]
    assert faults(second) == [f"GPU 2: {error}"]
    stub.tell(gpu_2_memory="81559", gpu_0_uuid=value)
    assert indexes(probe.probe()) == []
    assert indexes(probe.probe()) == [1, 2, 3], "the newest trouble waits behind the older one"
    stub.tell(gpu_2_memory=value)
    assert indexes(probe.probe()) == [1]
    assert indexes(probe.probe()) == [1, 3], "two of them hide none of the others"
    stub.tell(gpu_0_uuid=uuid(0), gpu_2_memory="81559")
    assert probe.probe().faults == ()


def test_a_reader_whose_agent_was_killed_while_it_hung_ends_by_itself(stub: NvmlStub) -> None:
    stub.tell(init="!hang")
    argv = [sys.executable, "-I", "-S", str(READER), "1", str(Path(pynvml.__file__).parent)]
    assert subprocess.run(argv, timeout=60).returncode == -signal.SIGALRM


def test_a_missing_or_broken_library_is_told(tmp_path: Path, stub: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(DriverMissing, match=LIBRARY):
        NvmlProbe().probe()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / LIBRARY).write_bytes(b"\x7fELF but not really")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(broken))
    with pytest.raises(OSError, match=rf"{LIBRARY}: file too short") as raised:
        NvmlProbe().probe()
    assert not isinstance(raised.value, DriverMissing)


FAKE_SMI = Path(__file__).resolve().parents[2] / "examples" / "local" / "fake-nvidia-smi"


def test_auto_asks_nvml_first_and_nvidia_smi_where_nvml_is_missing_or_refuses(
    stub: NvmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = AutoProbe(smi=SmiProbe(str(FAKE_SMI)))
    assert [gpu.model for gpu in probe.probe().gpus] == [MODEL] * 4
    stub.tell(init="!9")
    assert [gpu.model for gpu in probe.probe().gpus] == ["Tesla V100-SXM2-32GB"] * 4
    assert probe.passed_over == "Driver Not Loaded"
    nobody = AutoProbe(smi=SmiProbe("nvidia-smi-nowhere"))
    assert faults(nobody.probe()) == ["NVML: Driver Not Loaded"]
    failing = AutoProbe(smi=SmiProbe("false"))
    assert faults(failing.probe()) == ["NVML: Driver Not Loaded"], "of two reasons the first one's"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "nowhere"))
    assert len(probe.probe().gpus) == 4
    assert probe.passed_over == ""
    assert nobody.probe() == ProbeResult(gpus=()), "without a driver nothing is wrong"
    assert faults(failing.probe())[0].startswith("nvidia-smi: false failed (exit 1)")


def test_auto_does_not_ask_nvidia_smi_when_nvml_hangs(stub: NvmlStub) -> None:
    stub.tell(init="!hang")
    probe = AutoProbe(NvmlProbe(SHORT_S), SmiProbe(str(FAKE_SMI)))
    assert faults(probe.probe()) == ["NVML: NVML didn't answer within 3 s"]


def test_the_doctor_says_what_nvml_says(stub: NvmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(detection: str) -> list[tuple[Level, str]]:
        settings = AgentSettings(gpu=GpuSettings(detection=detection))  # type: ignore[arg-type]  # parametrized
        return [(result.level, result.what) for result in node.gpus(settings)]

    assert said("nvml") == [(Level.OK, f"4 GPUs: {MODEL}")]
    stub.tell(init="!9")
    assert said("nvml") == [(Level.ERROR, "NVML: Driver Not Loaded")]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").symlink_to(FAKE_SMI)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert (Level.WARNING, "NVML is passed over, and nvidia-smi asked instead: Driver Not Loaded") in said("auto")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "nowhere"))
    ((level, what),) = said("nvml")
    assert (level, LIBRARY in what) == (Level.ERROR, True)
