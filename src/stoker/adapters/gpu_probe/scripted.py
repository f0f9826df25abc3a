"""Simulated GPUs of a node, as a script describes them.

Shape: gpus:  [{count, model, memory_mb, uuid?, device?, numa_node?, mig?}]
                                                    count is 1 unless told; a uuid, and a device node (an absolute
                                                    path), are of a single GPU; mig is a list of profiles, such as
                                                    [1g.10gb, 2g.20gb]: MIG is on, with these instances
       links: [{a, b, kind, lanes, gbps}]           a and b are indexes; those of the kind nvlink are told, with 1 lane
                                                    unless told otherwise; of others only the indexes are checked
       cpus, memory_mb                              what the node offers; 4 CPUs and 32 GiB for each of them unless told
       faults                                       as in `scripted_faults.py`
Rules: P1  UUIDs follow from the node's name and the index alone, so a restarted agent has the same GPUs
       P2  the result says that it is simulated
       P3  a file with a fault is refused whole, with every fault's file and line
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stoker.adapters.clock import SystemClock
from stoker.adapters.gpu_probe.devices import NO_INSTANCES
from stoker.adapters.gpu_probe.scripted_faults import FAULTS_MAX, KEYS, KINDS, ScriptedDevices, ScriptFault
from stoker.adapters.settings.types import Unreadable, from_node
from stoker.adapters.settings.yaml_lines import Entries, Parts, Text, YamlFault, YamlNode, read_yaml
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.gpu import MIG_SLOTS, GpuLink, index_parts, mig_index
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.node import CPUS_PER_GPU, MEMORY_MB_PER_GPU
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

GPUS_MAX: Final = 256
MEMORY_MB_MAX: Final = 16 * 1024 * 1024

_NUMA_NODES_MAX: Final = 1_024
_GPU_KEYS: Final = {
    "count": int,
    "model": str,
    "memory_mb": int,
    "uuid": str,
    "device": str,
    "numa_node": int,
    "mig": Parts,
}
_PROFILE: Final = re.compile(r"(?:[0-9]c\.)?[0-9]g\.([0-9]{1,4})gb(?:[+-][a-z.]{1,16})?")
_MIGS_MAX: Final = 7
_LINK_KEYS: Final = {"a": int, "b": int, "kind": str, "lanes": int, "gbps": float}
_LANES_MAX: Final = 64
_TOP_KEYS: Final = {"gpus": Parts, "links": Parts, "faults": Parts, "cpus": int, "memory_mb": int}


def scripted_devices(path: Path, node: str) -> ScriptedDevices:
    """Return the devices that a YAML file describes, which is read once. Raises: StokerError `bad_settings`."""
    reading = _Script(path, node)
    result = reading.read()
    if reading.faults:
        hint = (
            "a script is `gpus: [{count: 4, model: NAME, memory_mb: N}]`, with `links`, `faults`, `cpus`, `memory_mb`"
        )
        raise refusal_error("bad_settings", "\n  ".join(reading.faults), hint, faults=len(reading.faults))
    return ScriptedDevices(result, reading.planned, SystemClock().mono)


def scripted_uuid(node: str, index: int) -> GpuUuid:
    """The UUID of a simulated GPU, in the form of a real one."""
    digits = sha256(f"{node}/{index}".encode()).hexdigest()
    kind = "GPU" if index < MIG_SLOTS else "MIG"
    return GpuUuid(f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}")


class _Script:
    """One reading of one file, gathering faults."""

    def __init__(self, path: Path, node: str) -> None:
        self.faults: list[str] = []
        self._path = path
        self._node = node
        self._gpus: list[ProbedGpu] = []
        self._instances: list[ProbedGpu] = []
        self._divided: list[GpuUuid] = []
        self._links: dict[tuple[int, int], GpuLink] = {}
        self.planned: list[ScriptFault] = []

    def read(self) -> ProbeResult:
        try:
            root = read_yaml(self._path)
        except YamlFault as fault:
            self.faults.append(str(fault))
            return ProbeResult(gpus=())
        if not isinstance(root, Entries):
            self._fault(root.line if root is not None else 1, "a script is a group of keys, `gpus` first")
            return ProbeResult(gpus=())
        top = self._values(root, _TOP_KEYS) or {}
        for part in top.get("gpus") or ():
            self._add_gpus(part)
        self._check_uuids()
        for part in top.get("links") or ():
            self._add_link(part)
        for part in (top.get("faults") or ())[:FAULTS_MAX]:
            self._add_fault(part)
        whole = [gpu for gpu in self._gpus if gpu.uuid not in self._divided]
        count = len(whole) + len(self._instances)
        empty = [uuid for uuid in self._divided if all(each.parent != uuid for each in self._instances)]
        return ProbeResult(
            gpus=(*whole, *self._instances),
            faults=tuple(GpuFault(where=uuid, error=NO_INSTANCES) for uuid in empty),
            simulated=True,
            links=tuple(self._links[pair] for pair in sorted(self._links)),
            cpus=self._amount(root.line, top, "cpus", CPUS_PER_GPU * count, 4_096),
            memory_mb=self._amount(root.line, top, "memory_mb", MEMORY_MB_PER_GPU * count, MEMORY_MB_MAX),
        )

    def _add_gpus(self, part: YamlNode) -> None:
        line, values = part.line, self._values(part, _GPU_KEYS)
        if values is None:
            return
        model, uuid = str(values.get("model", "")), values.get("uuid")
        count = self._amount(line, values, "count", 1, GPUS_MAX)
        memory_mb = self._amount(line, values, "memory_mb", 0, MEMORY_MB_MAX)
        if not model.strip():
            self._fault(line, "a GPU needs a model")
        if "memory_mb" not in values:
            self._fault(line, "a GPU needs memory_mb")
        device, numa_node = str(values.get("device") or ""), values.get("numa_node")
        if uuid is not None and count != 1:
            self._fault(line, f"uuid {uuid} can't name {count} GPUs")
        if device and count != 1:
            self._fault(line, f"device {device[:80]} can't be that of {count} GPUs")
        if device and not device.startswith("/"):
            self._fault(line, f"device {device[:80]!r} isn't an absolute path")
        if isinstance(numa_node, int) and not 0 <= numa_node < _NUMA_NODES_MAX:
            self._fault(line, f"numa_node: {numa_node} isn't between 0 and {_NUMA_NODES_MAX - 1}")
        if len(self._gpus) + count > GPUS_MAX:
            self._fault(line, f"more than {GPUS_MAX} GPUs on one node")
            return
        for index in range(len(self._gpus), len(self._gpus) + count):
            own = GpuUuid(str(uuid)) if uuid is not None else scripted_uuid(self._node, index)
            gpu = ProbedGpu(uuid=own, index=index, model=model, memory_mb=memory_mb, device=device)
            self._gpus.append(replace(gpu, numa_node=numa_node) if isinstance(numa_node, int) else gpu)
            if isinstance(profiles := values.get("mig"), tuple | list):
                self._divide(self._gpus[-1], profiles)

    def _divide(self, gpu: ProbedGpu, profiles: Sequence[YamlNode]) -> None:
        """Switch MIG on, with an instance of each profile."""
        self._divided.append(gpu.uuid)
        if len(profiles) > _MIGS_MAX:
            self._fault(profiles[_MIGS_MAX].line, f"mig: a GPU has {_MIGS_MAX} instances at most")
        for slot, part in enumerate(profiles[:_MIGS_MAX]):
            profile = part.text if isinstance(part, Text) else ""
            size = _PROFILE.fullmatch(profile)
            if size is None:
                self._fault(part.line, f"mig: {profile[:40]!r} is no profile, such as 1g.10gb")
                continue
            index = mig_index(gpu.index, slot)
            self._instances.append(
                replace(
                    gpu,
                    uuid=scripted_uuid(self._node, index),
                    index=index,
                    model=f"{gpu.model} MIG {profile}",
                    memory_mb=int(size[1]) * 1_024,
                    parent=gpu.uuid,
                    gpu_instance=slot,
                    compute_instance=0,
                )
            )

    def _check_uuids(self) -> None:
        seen: set[str] = set()
        for gpu in (*self._gpus, *self._instances):
            if gpu.uuid in seen:
                self._fault(1, f"two GPUs have the uuid {gpu.uuid}")
            seen.add(gpu.uuid)

    def _add_link(self, part: YamlNode) -> None:
        values = self._values(part, _LINK_KEYS)
        if values is None:
            return
        for end in ("a", "b"):
            index = values.get(end)
            if not isinstance(index, int) or not 0 <= index < len(self._gpus):
                self._fault(part.line, f"a link needs {end}, the index of one of the {len(self._gpus)} GPUs")
        if "a" in values and values.get("a") == values.get("b"):
            self._fault(part.line, "a link joins two different GPUs")
        lanes = self._amount(part.line, values, "lanes", 1, _LANES_MAX)
        if not self.faults and str(values.get("kind", "nvlink")).lower() == "nvlink":
            first, second = sorted((int(values["a"]), int(values["b"])))
            if not {self._gpus[first].uuid, self._gpus[second].uuid} & set(self._divided):
                self._links[first, second] = GpuLink(first, second, lanes)

    def _add_fault(self, part: YamlNode) -> None:
        values = self._values(part, KEYS)
        if values is None:
            return
        kind, gpu = values.get("kind"), values.get("gpu")
        if kind not in KINDS:
            self._fault(part.line, f"kind: {str(kind)[:40]!r} isn't one of {', '.join(KINDS)}")
        elif (kind == "clock") is (gpu is not None):
            self._fault(part.line, "gpu: a clock is the node's" if gpu is not None else f"{kind} needs gpu, its index")
        elif gpu is not None and not 0 <= gpu < len(self._gpus):
            self._fault(part.line, f"gpu: {gpu} isn't the index of one of the {len(self._gpus)} GPUs")
        elif (slot := values.get("mig")) is not None and not self._has_instance(gpu, slot):
            self._fault(part.line, f"mig: GPU {gpu} has no instance {slot}")
        elif any(isinstance(value, int | float) and value < 0 for key, value in values.items() if key != "by_s"):
            self._fault(part.line, "at_s, for_s and amounts are at least 0")
        else:
            self.planned.append(ScriptFault(**{**values, "gpu": -1 if gpu is None else gpu}))

    def _has_instance(self, gpu: int | None, slot: int) -> bool:
        return any((gpu, slot) == index_parts(each.index) for each in self._instances)

    def _values(self, node: YamlNode, keys: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry's values by key; what can't be read or isn't known is a fault and left out."""
        if not isinstance(node, Entries):
            self._fault(node.line, f"this is a group of the keys {', '.join(keys)}")
            return None
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in node.entries:
            if key.text in seen:
                self._fault(key.line, f"{key.text} was already given")
            elif key.text in keys:
                values[key.text] = self._value(key, value, keys[key.text])
            else:
                near = get_close_matches(key.text, keys, n=1)
                self._fault(key.line, f"{key.text} isn't a key here" + (f" (nearest: {near[0]})" if near else ""))
            seen.add(key.text)
        return values

    def _value(self, key: Text, value: YamlNode, wanted: object) -> object:
        """None when it can't be read, or is a list that is empty."""
        if wanted is not Parts:
            try:
                return from_node(wanted, value)
            except Unreadable as fault:
                self._fault(key.line, f"{key.text}: {fault}")
        elif isinstance(value, Parts):
            return value.parts
        elif not (isinstance(value, Text) and value.null):
            self._fault(value.line, f"{key.text} is a list")
        return None

    def _amount(self, line: int, values: Mapping[str, object], key: str, default: int, most: int) -> int:
        value = values.get(key)
        if not isinstance(value, int):
            return default  # not given, or unreadable and noted as that
        if not 1 <= value <= most:
            self._fault(line, f"{key}: {value} isn't between 1 and {most}")
            return default
        return value

    def _fault(self, line: int, words: str) -> None:
        self.faults.append(f"{self._path}:{line}: {words}")
