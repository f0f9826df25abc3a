"""The nvidia-smi probe with real programs in its place: good, odd, failing, flooding, hanging and missing ones."""

import os
import time
from pathlib import Path

import pytest

from stoker.adapters.bounded_run import ProgramTimeout
from stoker.adapters.gpu_probe.auto import AutoProbe
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi import SmiProbe
from stoker.adapters.gpu_probe.nvidia_smi_sampler import SmiSampler
from stoker.adapters.gpu_probe.nvidia_smi_text import FIGURES, ROW_FIELDS
from stoker.ports import ProbeResult

V100 = (
    "{n}, GPU-{n}aaaaaaa-0000-0000-0000-000000000000, Tesla V100-SXM2-32GB, 32768, 0, 0, 30, 40.00, 00000000:0{n}:00.0"
)
FOUR = "\n".join(V100.format(n=n) for n in range(4))


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return tmp_path / "nvidia-smi"


def write(binary: Path, script: str) -> SmiProbe:
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    return SmiProbe(str(binary), timeout_s=5)


def answering(binary: Path, query: str, listing: str = "", status: int = 0) -> SmiProbe:
    (binary.parent / "query").write_bytes(query.encode("latin-1"))
    (binary.parent / "listing").write_text(listing)
    folder = binary.parent
    return write(binary, f'if [ "$1" = -L ]; then cat {folder}/listing; else cat {folder}/query; exit {status}; fi')


def test_four_gpus_are_found(binary: Path) -> None:
    result = answering(binary, FOUR).probe()
    assert [gpu.index for gpu in result.gpus] == [0, 1, 2, 3]
    assert (result.faults, result.simulated, result.cpus) == ((), False, 0)


def test_the_query_asks_for_the_columns_that_are_read(binary: Path) -> None:
    asked = binary.parent / "asked"
    write(binary, f'echo "$@" >> {asked}; echo "{V100.format(n=0)}"').probe()
    assert asked.read_text().splitlines()[0] == (
        "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw,pci.bus_id "
        "--format=csv,noheader,nounits"
    )


def test_gpus_stay_although_the_exit_status_tells_of_a_warning(binary: Path) -> None:
    """nvidia-smi exits 14 for a corrupted infoROM after a whole list."""
    result = answering(binary, FOUR + "\nWARNING: infoROM is corrupted at gpu 0000:06:00.0", status=14).probe()
    assert len(result.gpus) == 4


@pytest.mark.parametrize(
    ("bytes_told", "end"),
    [(FOUR.index("\n2") + 1, "exit 15"), (FOUR.index("\n2") + 6, "exit 0"), (FOUR.index("\n2"), "kill -9 $$")],
)
def test_a_list_that_ends_in_its_middle_is_a_fault_beside_what_was_read(
    binary: Path, bytes_told: int, end: str
) -> None:
    (binary.parent / "query").write_text(FOUR[:bytes_told])
    result = write(binary, f'[ "$1" = -L ] && exit 0; cat {binary.parent}/query; {end}').probe()
    assert [gpu.index for gpu in result.gpus] == [0, 1]
    assert len(result.faults) == 1


def test_one_lost_gpu_hides_no_other_although_the_program_fails(binary: Path) -> None:
    lost = "Unable to determine the device handle for GPU 0000:03:00.0: Unknown Error"
    result = answering(binary, "\n".join(FOUR.splitlines()[:3]) + f"\n{lost}", status=255).probe()
    assert len(result.gpus) == 3
    assert [fault.where for fault in result.faults] == ["0000:03:00.0"]


def test_messages_on_standard_error_do_no_harm(binary: Path) -> None:
    result = write(binary, f'echo "driver: slow" >&2; echo "{V100.format(n=0)}"; echo more >&2').probe()
    assert len(result.gpus) == 1


def test_bytes_that_are_not_utf8_do_no_harm(binary: Path) -> None:
    result = answering(binary, FOUR.replace("Tesla", "T\xe9sla\xff")).probe()
    assert result.gpus[0].model.startswith("T\ufffdsla")


def test_a_gpu_cut_into_mig_instances_is_shown_as_a_fault_and_not_offered(binary: Path) -> None:
    listing = "\n".join(
        f"GPU {n}: Tesla (UUID: GPU-{n}aaaaaaa-0000-0000-0000-000000000000)"
        + ("\n  MIG 3g.20gb Device 0: (UUID: MIG-a)\n  MIG 3g.20gb Device 1: (UUID: MIG-b)" if n == 2 else "")
        for n in range(4)
    )
    result = answering(binary, FOUR, listing).probe()
    assert [gpu.index for gpu in result.gpus] == [0, 1, 3]
    assert "2 MIG instances" in result.faults[0].error


def test_a_gpu_with_mig_switched_on_and_no_instances_is_no_whole_gpu(binary: Path) -> None:
    modes = "\n".join(f"GPU-{n}aaaaaaa-0000-0000-0000-000000000000, {word}" for n, word in MODES)
    write(binary, f'case "$*" in *mig.mode*) echo "{modes}";; *-L*) ;; *) echo "{FOUR}";; esac')
    result = SmiProbe(str(binary), timeout_s=5).probe()
    assert [gpu.index for gpu in result.gpus] == [0, 2, 3]
    assert "MIG is on, with 0 MIG instances" in result.faults[0].error


MODES = [(0, "Disabled"), (1, "Enabled"), (2, "[N/A]")]


@pytest.mark.parametrize(
    ("environ", "offered"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, [1, 3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2aaaaaaa,0"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aaaaaaaa"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, [0, 1]),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1,2"}, [1]),
        # Only these four are left of eight: the container runtime has hidden the others and numbered ours from 0.
        ({"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}, [0, 1, 2, 3]),
    ],
)
def test_an_agent_offers_only_the_gpus_that_its_environment_shows_it(
    binary: Path, environ: dict[str, str], offered: list[int]
) -> None:
    answering(binary, FOUR)
    result = SmiProbe(str(binary), timeout_s=5, environ=environ).probe()
    assert [gpu.index for gpu in result.gpus] == offered
    assert bool(result.hidden) is (not offered), "a node that offers none says why"
    for variable, value in environ.items() if not offered else ():
        assert f"{variable}={value!r} in the agent's environment: of 4 GPUs there none is offered" == result.hidden


def test_a_broken_gpu_is_our_fault_only_where_one_of_ours_is_missing(binary: Path) -> None:
    answering(binary, f"{FOUR}\nUnable to determine the device handle for GPU 0000:05:00.0: Unknown Error")
    for visible, faults in (("0,1", 0), ("0,9", 1)):
        probe = SmiProbe(str(binary), timeout_s=5, environ={"CUDA_VISIBLE_DEVICES": visible})
        assert len(probe.probe().faults) == faults


def test_no_devices_is_an_answer(binary: Path) -> None:
    assert answering(binary, "No devices were found", status=6).probe() == ProbeResult(gpus=())
    assert answering(binary, "").probe() == ProbeResult(gpus=())


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ("Failed to initialize NVML: Driver/library version mismatch", 18),
        ("hello", 0),
    ],
)
def test_a_failure_is_told_in_the_programs_own_words(binary: Path, said: str, status: int) -> None:
    with pytest.raises(OSError, match=f"exit {status}.*{said[:30]}"):
        answering(binary, said, status=status).probe()


def test_a_silent_failure_is_told_with_its_status(binary: Path) -> None:
    with pytest.raises(OSError, match=r"exit 3.*it said nothing"):
        write(binary, "exit 3").probe()
    with pytest.raises(OSError, match="exit -11"):
        write(binary, "kill -SEGV $$").probe()


def test_a_missing_program_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="there is no program nvidia-smi-nowhere on PATH"):
        SmiProbe("nvidia-smi-nowhere").probe()


def test_a_program_that_cannot_be_run_is_told(binary: Path) -> None:
    binary.write_bytes(b"\x7fELF but not really")
    binary.chmod(0o755)
    with pytest.raises(OSError, match=r"can't ask .*nvidia-smi: Exec format error"):
        SmiProbe(str(binary)).probe()


def test_a_program_that_hangs_is_given_up_with_its_children(binary: Path) -> None:
    pids = binary.parent / "pids"
    write(binary, f"sleep 600 & echo $! $$ > {pids}; wait")
    began = time.monotonic()
    with pytest.raises(OSError, match=r"didn't answer within 0\.5 s"):
        SmiProbe(str(binary), timeout_s=0.5).probe()
    assert time.monotonic() - began < 5
    child, program = (int(pid) for pid in pids.read_text().split())
    assert gone_soon(child)
    assert gone_soon(program)


def test_a_child_that_keeps_the_pipe_open_does_not_keep_us(binary: Path) -> None:
    write(binary, f'sleep 600 & echo "{V100.format(n=0)}"')
    [gpu] = SmiProbe(str(binary), timeout_s=60).probe().gpus
    assert gpu.uuid in V100.format(n=0)


def test_an_endless_answer_is_cut_off(binary: Path) -> None:
    with pytest.raises(OSError, match="bytes of answer"):
        write(binary, "while :; do echo 0123456789012345678901234567890123456789; done").probe()


def test_a_listing_that_fails_after_the_values_costs_no_gpu(binary: Path) -> None:
    write(binary, f'if [ "$1" = -L ]; then sleep 600; fi; echo "{V100.format(n=0)}"')
    assert len(SmiProbe(str(binary), timeout_s=0.5).probe().gpus) == 1


def test_auto_takes_what_nvidia_smi_finds(binary: Path) -> None:
    assert len(AutoProbe(answering(binary, FOUR)).probe().gpus) == 4


def test_auto_never_invents_gpus(binary: Path) -> None:
    assert AutoProbe(SmiProbe("nvidia-smi-nowhere")).probe() == ProbeResult(gpus=())
    failed = AutoProbe(answering(binary, "NVIDIA-SMI has failed", status=9)).probe()
    assert failed.gpus == ()
    assert "NVIDIA-SMI has failed" in failed.faults[0].error


def gone_soon(pid: int, within_s: float = 5.0) -> bool:
    """Process 1 may reap late, so a zombie counts as gone."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def asked_of(binary: Path) -> list[str]:
    return [line.partition(" ")[0] for line in (binary.parent / "asked").read_text().splitlines()]


def sampling(binary: Path, gpus: str, processes: str = "exit 6", *, is_old: bool = False) -> SmiSampler:
    refuses = (
        'case "$1" in *_reasons.active*) echo "Field is not a valid field to query."; exit 2;; esac' if is_old else ""
    )
    write(
        binary,
        f'echo "$@" >> {binary.parent}/asked\n{refuses}\n'
        f'case "$1" in --query-gpu=*) {gpus};; --query-compute-apps=*) {processes};; esac',
    )
    return SmiSampler(str(binary), timeout_s=5)


def test_figures_and_processes_come_from_two_calls_and_remapped_rows_from_a_third_now_and_then(binary: Path) -> None:
    rows = 'printf "0, GPU-a, 1000, 57, 55, 123.45, 4, Disabled\\n1, GPU-b, 3, 0, 30, 40, 0, Disabled\\n"'
    sampler = sampling(binary, rows, 'echo "GPU-a, 12, 100"')
    a, b = sampler().samples
    assert (a.utilization_percent, a.power_mw, b.memory_used_mb) == (57, 123_450, 3)
    assert ([each.pid for each in a.processes or ()], b.processes) == ([12], ())
    assert [sample.index for sample in sampler((1,)).samples] == [1]
    figures, *rest = asked_of(binary)
    processes = "--query-compute-apps=gpu_uuid,pid,used_memory"
    assert rest == [f"--query-remapped-rows={','.join(ROW_FIELDS)}", processes, figures, processes]
    assert figures == f"--query-gpu={','.join(FIGURES[0])}"
    sampling(binary, 'echo "0, [GPU is lost], 0, 0, 0, 0, 0, 0"')
    (lost,) = sampler().samples
    assert (lost.uuid, lost.fault) == ("GPU-a", "[GPU is lost]")


def test_an_old_driver_is_asked_for_less_and_one_that_lists_no_processes_tells_the_rest(binary: Path) -> None:
    sampler = sampling(binary, 'echo "0, GPU-a, 1000, 57, 55, 123.45"', is_old=True)
    for _ in range(2):
        (only,) = sampler().samples
        assert (only.memory_used_mb, only.ecc_errors, only.processes) == (1_000, None, None)
    asked = [each.removeprefix("--query-gpu=") for each in asked_of(binary) if each.startswith("--query-gpu")]
    assert asked == [",".join(each) for each in (*FIGURES, FIGURES[-1])]


def test_figures_that_cannot_be_had_are_told_in_the_programs_words(binary: Path) -> None:
    with pytest.raises(DriverMissing):
        SmiSampler(str(binary))()
    with pytest.raises(OSError, match=r"failed \(exit 9\): couldn't communicate with the driver"):
        sampling(binary, 'echo "couldn\'t communicate with the driver"; exit 9')()
    assert sampling(binary, 'echo "No devices were found"; exit 6')().samples == ()
    sampler = sampling(binary, "sleep 600")
    sampler._timeout_s = 0.5
    with pytest.raises(ProgramTimeout, match=r"didn't answer within 0\.5 s"):
        sampler()
