"""A task is kept from the device nodes of other tasks' GPUs and put beside its own, by what the kernel says."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.gpu_locality import MachineLocality, parse_cpu_list
from stoker.agent.gpu_ports import Placement
from stoker.brain.domain.ids import GpuUuid
from stoker.ports import ProbedGpu, ProbeResult

A, B, C = map(GpuUuid, ("GPU-a", "GPU-b", "GPU-c"))
NULL, ZERO, FULL = (1, 3), (1, 5), (1, 7)
HERE = sorted(os.sched_getaffinity(0))


def machine(root: Path) -> Path:
    """Two GPUs of NVIDIA's, each on a NUMA node of its own, and a third that the agent isn't shown.

    Their device nodes are links to devices that every machine has.
    """
    (root / "dev").mkdir()
    for minor, device in ((0, "null"), (1, "zero"), (2, "full")):
        (root / f"dev/nvidia{minor}").symlink_to(f"/dev/{device}")
    (root / "dev/nvidiactl").symlink_to("/dev/random")
    for slot, minor, node in ((0x10, 1, 0), (0x11, 0, 1)):
        told = root / f"proc/driver/nvidia/gpus/0000:{slot:x}:00.0"
        told.mkdir(parents=True)
        (told / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n")
        bus = root / f"sys/bus/pci/devices/0000:{slot:x}:00.0"
        bus.mkdir(parents=True)
        (bus / "numa_node").write_text(f"{node}\n")
    for node, cpus in enumerate((f"{HERE[0]}", f"{HERE[-1]}")):
        beside = root / f"sys/devices/system/node/node{node}"
        beside.mkdir(parents=True)
        (beside / "cpulist").write_text(f"{cpus},90000\n")
    return root


def gpu(uuid: GpuUuid, slot: int = 0, **known: object) -> ProbedGpu:
    bus = f"00000000:{slot:X}:00.0" if slot else ""
    return ProbedGpu(uuid=uuid, index=0, model="H100", memory_mb=1, bus=bus, **known)  # type: ignore[arg-type]  # by name


def locality(root: Path, *gpus: ProbedGpu, confine: bool = True, bind: bool = True) -> MachineLocality:
    known = MachineLocality(confine=confine, bind=bind, root=root)
    known.learn(gpus)
    return known


def test_g1_a_task_may_open_its_own_device_nodes_and_those_of_no_other_gpu(tmp_path: Path) -> None:
    known = locality(machine(tmp_path), gpu(A, 0x10), gpu(B, 0x11))
    assert known.placement([A], 1).denied == (NULL, FULL)
    assert known.placement([B], 1).denied == (ZERO, FULL)
    assert known.placement([A, B], 1).denied == (FULL,)
    assert known.placement([], 1).denied == (NULL, ZERO, FULL), "a job without GPUs has no business with any"


def test_g2_while_its_own_device_node_is_not_known_only_what_is_known_to_be_others_is_denied(tmp_path: Path) -> None:
    known = locality(machine(tmp_path), gpu(A, 0x10), gpu(B))
    assert known.placement([B], 1).denied == (ZERO,)


def divided(root: Path) -> Path:
    """`GPU-a`, whose device is nvidia1 (zero), in two instances. Capability 0 divides, 1 watches, 2 to 5 are theirs."""
    told, caps = machine(root) / "proc/driver/nvidia/capabilities", root / "dev/nvidia-caps"
    if len(MORE) < 2:
        pytest.skip("this machine lacks devices to stand for capabilities")
    caps.mkdir()
    files = ["mig/config", "mig/monitor", *(f"gpu1/mig/gi{gi}/{each}access" for gi in (7, 8) for each in ("", "ci0/"))]
    for minor, (name, device) in enumerate(zip(files, DEVICES, strict=True)):
        (told / name).parent.mkdir(parents=True, exist_ok=True)
        (told / name).write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        (caps / f"nvidia-cap{minor}").symlink_to(f"/dev/{device}")
    return root


MORE = [name for name in ("kmsg", "console", "net/tun", "hwrng", "fuse") if Path(f"/dev/{name}").exists()]
DEVICES = ("random", "urandom", "tty", "ptmx", *MORE[:2])


def numbers(*names: str) -> set[tuple[int, int]]:
    seen = [os.stat(f"/dev/{name}").st_rdev for name in names]
    return {(os.major(each), os.minor(each)) for each in seen}


def test_g5_a_task_with_a_mig_instance_opens_its_gpu_and_its_own_capabilities_and_no_others(tmp_path: Path) -> None:
    first, second = (gpu(GpuUuid(f"MIG-{gi}"), 0x10, parent=A, gpu_instance=gi, compute_instance=0) for gi in (7, 8))
    known = locality(divided(tmp_path), first, second, gpu(B, 0x11))
    assert set(known.placement([first.uuid], 1).denied) == {NULL, FULL, *numbers("random", *MORE[:2])}
    assert set(known.placement([second.uuid], 1).denied) == {NULL, FULL, *numbers("random", "tty", "ptmx")}
    assert set(known.placement([B], 1).denied) == {ZERO, FULL, *numbers("random", "tty", "ptmx", *MORE[:2])}
    assert known.placement([first.uuid], 1).cpus == (HERE[0],), "it is beside the CPUs of its GPU"


def test_g5_an_instance_whose_capabilities_are_not_known_is_kept_from_nothing_that_could_be_its_own(
    tmp_path: Path,
) -> None:
    one = gpu(GpuUuid("MIG-9"), 0x10, parent=A, gpu_instance=9, compute_instance=0)
    known = locality(divided(tmp_path), one, gpu(B, 0x11))
    assert known.placement([one.uuid], 1).denied == (NULL,)


def test_a_gpu_that_is_lost_is_still_denied_to_others(tmp_path: Path) -> None:
    known = locality(machine(tmp_path), gpu(A, 0x10), gpu(B, 0x11))
    known.learn([gpu(A, 0x10)])
    assert NULL in known.placement([A], 1).denied


def test_a_script_names_devices_and_nodes_itself(tmp_path: Path) -> None:
    (tmp_path / "gpu0").symlink_to("/dev/null")
    (tmp_path / "file").touch()
    scripted = [gpu(A, device="/gpu0"), gpu(B, device="/file"), gpu(C, device="/missing", numa_node=0)]
    known = locality(tmp_path, *scripted)
    assert known.placement([], 1) == Placement(denied=(NULL,))
    assert known.placement([C], 1).cpus == (), "a node of which the machine says nothing"


def test_g3_a_task_runs_beside_its_gpus_where_these_are_together_and_there_are_cpus_enough(tmp_path: Path) -> None:
    known = locality(machine(tmp_path), gpu(A, 0x10), gpu(B, 0x11))
    assert known.placement([A], 1).cpus == (HERE[0],), "not on the CPU that the agent may not use"
    assert known.placement([B], 0).cpus == (HERE[-1],)
    assert known.placement([A], 2).cpus == ()
    assert known.placement([A, B], 1).cpus == ()
    assert known.placement([C], 1).cpus == known.placement([], 1).cpus == ()
    found = known.located(ProbeResult(gpus=(gpu(A), gpu(B), gpu(C))))
    assert [each.numa_node for each in found.gpus] == [0, 1, -1], "and the node says beside which it is"


def test_a_setting_leaves_each_of_the_two_alone(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert locality(root, gpu(A, 0x10), confine=False).placement([A], 1) == Placement(cpus=(HERE[0],))
    assert locality(root, gpu(A, 0x10), bind=False).placement([A], 1) == Placement(denied=(NULL, FULL))


def test_g4_on_a_machine_that_tells_nothing_a_task_is_held_to_nothing(tmp_path: Path) -> None:
    assert locality(tmp_path, gpu(A, 0x10), gpu(B)).placement([A], 1) == Placement()


@pytest.mark.parametrize("text", ["", "\n", "a", "0-", "-3", "1,,2", "0-3;5", "0x1"])
def test_what_is_no_list_of_cpus_names_none(text: str) -> None:
    assert parse_cpu_list(text) == ()


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), min_size=1, max_size=9))
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" if more else f"{first}" for first, more in ranges)
    wanted = [cpu for first, more in ranges for cpu in range(first, first + more + 1)]
    assert list(parse_cpu_list(f"{text}\n")) == wanted
