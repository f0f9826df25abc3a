"""Where the GPUs of this machine are: their device nodes, which other tasks are kept from, and the CPUs beside them.

Rules: G1  a task may open the device nodes of its own GPUs and of no other: all that this machine has of them, also
           those that the agent doesn't offer, are denied to it by number
       G2  as long as the device node of one of its own GPUs isn't known, nothing is denied that could be it: only those
           of GPUs that are known to be others'
       G3  a task whose GPUs are all beside one NUMA node, which has as many CPUs as the task asked for, runs on the
           CPUs of that node, as far as the agent may use them; any other task runs on all of them
       G5  a task with a MIG instance may open the device node of its GPU, and of the driver's capabilities those of its
           GPU instance and its compute instance; those of other instances, and the one by which GPUs are divided, are
           denied to every task
       G4  what can't be read isn't known; nothing is guessed
Source: `/proc/driver/nvidia/gpus/BUS/information` for the minor number, and the README of NVIDIA's driver for the names
        of device nodes; NVIDIA, "MIG User Guide", "Device Nodes and Capabilities", for what stands in
        `/proc/driver/nvidia/capabilities` and `/dev/nvidia-caps`; Documentation/ABI/testing/sysfs-bus-pci (`numa_node`)
        and sysfs-devices-node (`cpulist`).
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from stoker.agent.gpu_ports import Placement
from stoker.brain.domain.ids import GpuUuid
from stoker.ports import ProbedGpu, ProbeResult

_ROOT: Final = Path("/")
_DEVICE_NAME: Final = re.compile(r"nvidia[0-9]{1,3}")
_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]{1,3})\s*$", re.MULTILINE)
_CPU_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_CAPABILITIES: Final = "proc/driver/nvidia/capabilities"
_CAPABILITY: Final = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,6})\s*$", re.MULTILINE)
_CAPABILITY_FILES: Final = ("mig/config", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")
"""That by which GPUs are divided, and those of instances. `mig/monitor`, by which they are watched, is left to its
mode."""
DEVICES_MAX: Final = 512
"""Device nodes that a task is kept from; a machine has tens. What lies beyond is kept by its mode alone."""

_Device = tuple[int, int]


class MachineLocality:
    """Knows what the kernel and the driver of this machine say."""

    def __init__(self, *, confine: bool, bind: bool, root: Path = _ROOT) -> None:
        """`confine`: keep tasks from others' devices. `bind`: to the CPUs beside their GPUs."""
        self._confine = confine
        self._bind = bind
        self._root = root
        self._devices: dict[GpuUuid, tuple[_Device, ...]] = {}
        self._unsure: set[GpuUuid] = set()
        # Those of which not every device is known.
        self._numa_nodes: dict[GpuUuid, int] = {}
        self._every: tuple[_Device, ...] = ()
        self._cpus: dict[int, tuple[int, ...]] = {}

    def learn(self, gpus: Iterable[ProbedGpu]) -> None:
        """Take in what a probe found now. What was known of a GPU that isn't listed any more stays."""
        for gpu in gpus:
            own = [_number_of(self._root / gpu.device.lstrip("/"))] if gpu.device else self._by(gpu)
            self._devices[gpu.uuid] = tuple(device for device in own if device is not None)
            (self._unsure.add if None in own else self._unsure.discard)(gpu.uuid)
            node = gpu.numa_node if gpu.numa_node >= 0 else self._numa_of(gpu.bus)
            self._numa_nodes[gpu.uuid] = node
            if node >= 0 and node not in self._cpus:
                self._cpus[node] = self._cpus_beside(node)
        known = [device for devices in self._devices.values() for device in devices]
        self._every = tuple(sorted({*known, *self._nodes_there(), *self._capabilities()}))[:DEVICES_MAX]

    def located(self, found: ProbeResult) -> ProbeResult:
        """Return what a probe found with the NUMA nodes that the kernel tells."""
        gpus = tuple(replace(gpu, numa_node=self._numa_nodes.get(gpu.uuid, gpu.numa_node)) for gpu in found.gpus)
        return replace(found, gpus=gpus)

    def placement(self, gpus: Sequence[GpuUuid], cpus: int) -> Placement:
        return Placement(
            denied=self._denied(gpus) if self._confine else (), cpus=self._beside(gpus, cpus) if self._bind else ()
        )

    def _denied(self, gpus: Sequence[GpuUuid]) -> tuple[_Device, ...]:
        own = {device for uuid in gpus for device in self._devices.get(uuid, ())}
        if all(uuid in self._devices and uuid not in self._unsure for uuid in gpus):
            return tuple(device for device in self._every if device not in own)  # G1
        others = {device for uuid, devices in self._devices.items() if uuid not in gpus for device in devices}  # G2
        return tuple(device for device in self._every if device in others and device not in own)

    def _beside(self, gpus: Sequence[GpuUuid], cpus: int) -> tuple[int, ...]:
        """Return the CPUs beside these GPUs; empty = all, since they lie apart or their CPUs are too few (G3)."""
        nodes = sorted({self._numa_nodes.get(uuid, -1) for uuid in gpus})
        if len(nodes) != 1:
            return ()
        near = self._cpus.get(nodes[0], ())
        return near if len(near) >= max(1, cpus) else ()

    def _by(self, gpu: ProbedGpu) -> list[_Device | None]:
        """The device nodes of an NVIDIA GPU or MIG instance, by its PCI address; None = one that isn't known."""
        text = _text(self._root / f"proc/driver/nvidia/gpus/{_kernels(gpu.bus)}/information") if gpu.bus else ""
        found = _MINOR.search(text)
        if found is None:
            return [None]
        whole = _number_of(self._root / f"dev/nvidia{found[1]}")
        if not gpu.parent:
            return [whole]
        instance = self._root / _CAPABILITIES / f"gpu{found[1]}/mig/gi{gpu.gpu_instance}"
        return [
            whole,
            self._capability(instance / "access"),
            self._capability(instance / f"ci{gpu.compute_instance}/access"),
        ]

    def _capability(self, file: Path) -> _Device | None:
        """The device node that a capability of the driver is opened by (G5)."""
        minor = _CAPABILITY.search(_text(file))
        return _number_of(self._root / f"dev/nvidia-caps/nvidia-cap{minor[1]}") if minor else None

    def _capabilities(self) -> list[_Device]:
        """Every capability that isn't for every task (G5)."""
        folder = self._root / _CAPABILITIES
        files = (file for pattern in _CAPABILITY_FILES for file in islice(folder.glob(pattern), DEVICES_MAX))
        return [device for file in files if (device := self._capability(file)) is not None]

    def _nodes_there(self) -> list[_Device]:
        try:
            names = sorted(name for name in os.listdir(self._root / "dev") if _DEVICE_NAME.fullmatch(name))
        except OSError:
            return []
        return [device for name in names if (device := _number_of(self._root / "dev" / name)) is not None]

    def _numa_of(self, bus: str) -> int:
        """-1 = it isn't told, which is also what the kernel says of a machine with a single node."""
        text = _text(self._root / f"sys/bus/pci/devices/{_kernels(bus)}/numa_node") if bus else ""
        return int(text) if text.strip().isdigit() else -1

    def _cpus_beside(self, node: int) -> tuple[int, ...]:
        allowed = os.sched_getaffinity(0)
        near = parse_cpu_list(_text(self._root / f"sys/devices/system/node/node{node}/cpulist"))
        return tuple(cpu for cpu in near if cpu in allowed)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of CPUs as the kernel writes it, such as `0-3,8`. Empty = it is none."""
    found: list[int] = []
    for word in text.strip().split(","):
        part = _CPU_RANGE.fullmatch(word)
        if part is None:
            return ()
        found += range(int(part[1]), int(part[2] or part[1]) + 1)
    return tuple(found)


def _kernels(bus: str) -> str:
    """Return a PCI address as the kernel writes it: NVIDIA's has a domain of eight digits, in upper case."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _number_of(path: Path) -> _Device | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (os.major(seen.st_rdev), os.minor(seen.st_rdev)) if stat.S_ISCHR(seen.st_mode) else None


def _text(path: Path) -> str:
    """Empty when it can't be read (G4)."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
