"""Judgement of what NVML says of GPUs, line by line as `nvml_reader.py` prints it.

Rules: N1  one GPU that can't be read is a fault of that GPU; it never hides the others
       N2  a value that the driver won't tell is unknown, never an error
       N3  a GPU is broken if any answer about it says that it is lost or wants a reset, if it can't be opened, has no
           UUID or another's, or can't tell its memory, or whether MIG is on, for any reason but that the driver has no
           such number (unified memory: 0; no MIG)
       N4  the order is that of PCI addresses; `index` stays NVML's own
       N5  an answer that ends too early is the fault of the GPU that was asked last; those that weren't asked yet are
           one fault more
       N7  a MIG instance is a device with its GPU as parent and a number of its own there; its model is its GPU's with
           ` MIG PROFILE` behind it, in the driver's words, else made of its slices and its memory. One that can't be
           read is a fault of that instance
       N8  two GPUs are joined by as many lanes as one says lead to the other; where switches are between them, by as
           many as the one with fewer has to switches
       N6  a library that refuses as a whole is told in its own words
Source: NVML API Reference, "Device Queries"; `nvmlReturn_t` for the codes; NVIDIA, "MIG User Guide", "Device Names".
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.adapters.gpu_probe.devices import (
    GPU_UUID,
    GPUS_MAX,
    MIG_UUID,
    NO_INSTANCES,
    PCI_ADDRESS,
    TEXT_MAX,
    cleaned,
    pci_order,
)
from stoker.brain.domain.gpu import GpuLink, index_text, mig_index, mig_profile
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import counted
from stoker.ports import GpuFault, ProbedGpu

MEMORY_MB_MAX: Final = 16 * 1024 * 1024
_MIB: Final = 1 << 20
_UNKNOWN_MODEL: Final = "unknown"
NEVER_TOLD: Final = (3, 4, 13)
"""Not supported, no permission, no such function."""
_BROKEN: Final = (15, 16)
"""The GPU is lost, or wants a reset."""
_VERSION_MISMATCH: Final = 18
_SWITCH: Final = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_UPGRADED: Final = "the driver was upgraded under its kernel module: load the new module, or reboot"

_Text = tuple[str | int, str]
_Number = tuple[int, str]


class _InstanceLine(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    uuid: _Text = ("", "")
    name: _Text = ("", "")
    memory: _Number = (0, "")
    gpu_instance: _Number = (0, "unknown")
    compute_instance: _Number = (0, "unknown")
    slices: tuple[tuple[int, int, int] | int, str] = (0, "unknown")


class _NvmlLine(msgspec.Struct, frozen=True, kw_only=True):
    failed: _Number | None = None
    count: int | None = None
    asked: int | None = None
    index: int | None = None
    handle: _Number | None = None
    uuid: _Text = ("", "")
    name: _Text = ("", "")
    bus: _Text = ("", "")
    memory: _Number = (0, "")
    mig: _Number = (0, "")
    links: tuple[tuple[str, int], ...] = ()
    instances: tuple[_InstanceLine, ...] | None = None
    done: bool = False


class NvmlReading(NamedTuple):
    """GPUs, their MIG instances and faults that NVML reported."""

    gpus: tuple[ProbedGpu, ...]
    """Instances come last."""
    faults: tuple[GpuFault, ...]
    divided: Mapping[GpuUuid, str] = {}
    """GPUs with MIG switched on, which are among `gpus`, and why there is nothing to offer of one without instances."""
    unread: tuple[int, ...] = ()
    """Indexes."""
    asked: int | None = None
    """The one of the unread at which the answer ended."""
    links: tuple[GpuLink, ...] = ()


def read_answer(text: str, ended: str) -> NvmlReading:
    """Read what the reader printed. `ended`: why it says no more, if it didn't come to its end.

    Raises: OSError, in NVML's words, if it refuses as a whole; with `ended` if the answer has nothing about any GPU.
    """
    lines = _lines(text)
    if not lines:
        raise OSError(ended)
    first = lines[0]
    if first.failed:
        raise OSError(_words(*first.failed))
    if first.count is None or not 0 <= first.count <= GPUS_MAX:
        raise OSError(f"it counts {first.count} GPUs, and a node has {GPUS_MAX} at most")
    found: list[tuple[tuple[int, ...], ProbedGpu]] = []
    faults: list[GpuFault] = []
    instances: list[ProbedGpu] = []
    divided: dict[GpuUuid, str] = {}
    for line in lines:
        if line.index is None:
            continue
        gpu = _gpu(line, line.index, {seen.uuid for _, seen in found})
        if isinstance(gpu, GpuFault):
            faults.append(gpu)
            continue
        found.append((pci_order(_told(line.bus), line.index), gpu))
        if line.instances is not None:
            divided[gpu.uuid] = NO_INSTANCES if not line.instances else ""  # else each has a fault of its own
            for told in line.instances:
                instance = _instance(told, gpu, {seen.uuid for seen in instances})
                (faults if isinstance(instance, GpuFault) else instances).append(instance)  # type: ignore[arg-type]  # each to its own
    found.sort(key=lambda pair: (pair[0], pair[1].index, pair[1].uuid))
    instances.sort(key=lambda each: (each.index, each.uuid))
    gpus = (*(gpu for _, gpu in found), *instances)
    links = _links([gpu for _, gpu in found], {line.index: line.links for line in lines if line.index is not None})
    if lines[-1].done:
        return NvmlReading(gpus, tuple(faults), divided, links=links)
    read = {line.index for line in lines}
    unread = tuple(index for index in range(first.count) if index not in read)
    asked = next((line.asked for line in reversed(lines) if line.asked in unread), None)
    return NvmlReading(gpus, (*faults, *_unread_faults(unread, asked, ended)), divided, unread, asked, links)


def _lines(text: str) -> list[_NvmlLine]:
    """All up to the first that can't be read, since the last may be cut off in its middle."""
    lines: list[_NvmlLine] = []
    for line in text.splitlines():
        try:
            lines.append(msgspec.json.decode(line, type=_NvmlLine))
        except msgspec.MsgspecError:
            break
    return lines


def _unread_faults(unread: Sequence[int], asked: int | None, ended: str) -> list[GpuFault]:
    """The GPU that was asked when the answer ended, and how many weren't asked any more (N5)."""
    faults = [] if asked is None else [GpuFault(where=f"GPU {asked}", error=ended)]
    if len(unread) > len(faults):
        more = f"{counted(len(unread) - len(faults), 'GPU')}{' more' if faults else ''}"
        faults.append(GpuFault(where=more, error="not asked any more, and asked first the next time"))
    return faults


def _gpu(line: _NvmlLine, index: int, known: set[str]) -> ProbedGpu | GpuFault:
    bus, uuid = _told(line.bus), _told(line.uuid)
    where = bus if PCI_ADDRESS.fullmatch(bus) else f"GPU {index}"
    broken = _why_broken(line, uuid, known)
    if broken is not None:
        return GpuFault(where=where, error=broken)
    memory, why = line.memory
    model = _told(line.name)
    return ProbedGpu(
        uuid=GpuUuid(uuid),
        index=index,
        model=model or _UNKNOWN_MODEL,
        memory_mb=0 if why else memory // _MIB,
        bus=bus if PCI_ADDRESS.fullmatch(bus) else "",
    )


def _links(gpus: Sequence[ProbedGpu], told: Mapping[int, Sequence[tuple[str, int]]]) -> tuple[GpuLink, ...]:
    """Return the pairs of GPUs that NVLink joins (N8)."""
    found: list[GpuLink] = []
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    for place, one in enumerate(ordered):
        mine = told[one.index]
        for other in ordered[place + 1 :]:
            theirs = told[other.index]
            straight = sum(bool(other.bus) and _same_bus(bus, other.bus) for bus, _ in mine)
            switched = min(sum(kind == _SWITCH for _, kind in each) for each in (mine, theirs))
            if straight or switched:
                found.append(GpuLink(one.index, other.index, straight or switched))
    return tuple(found)


def _same_bus(one: str, other: str) -> bool:
    """Whether two PCI addresses are one: a domain has four digits or eight."""
    return one.lower().lstrip("0") == other.lower().lstrip("0")


def _instance(line: _InstanceLine, gpu: ProbedGpu, known: set[str]) -> ProbedGpu | GpuFault:
    """Return a MIG instance of a GPU, or why it can't be used (N7)."""
    uuid, (memory, why) = _told(line.uuid), line.memory
    index = mig_index(gpu.index, line.slot)
    if not MIG_UUID.fullmatch(uuid) or uuid in known:
        words = cleaned(line.uuid[1])[:TEXT_MAX] or f"its UUID is {uuid!r}"
        return GpuFault(where=f"GPU {index_text(index)}", error=f"its MIG instance can't be used: {words}")
    memory_mb = 0 if why or not 0 <= memory // _MIB <= MEMORY_MB_MAX else memory // _MIB
    return replace(
        gpu,
        uuid=GpuUuid(uuid),
        index=index,
        model=f"{gpu.model} MIG {_profile(line, gpu, memory_mb)}",
        memory_mb=memory_mb,
        parent=gpu.uuid,
        gpu_instance=_id(line.gpu_instance),
        compute_instance=_id(line.compute_instance),
    )


def _profile(line: _InstanceLine, gpu: ProbedGpu, memory_mb: int) -> str:
    """Return `2g.20gb`, or `1c.2g.20gb` for one that has a part of its GPU instance's compute slices.

    A GPU's memory comes in eight parts, of which an instance has some, less what the driver keeps.
    """
    if named := mig_profile(_told(line.name)):
        return named
    if not isinstance(line.slices[0], tuple):
        return _UNKNOWN_MODEL
    of_compute, of_gpu, size_mb = line.slices[0]
    gib = -(-gpu.memory_mb // 1_024)
    eighths = -(-8 * (size_mb or memory_mb) // max(gpu.memory_mb, 1))
    part = f"{of_compute}c." if of_compute != of_gpu else ""
    return f"{part}{of_gpu}g.{round(gib * eighths / 8)}gb"


def _id(said: _Number) -> int:
    return -1 if said[1] else said[0]


def _why_broken(line: _NvmlLine, uuid: str, known: set[str]) -> str | None:
    for code, words in (line.handle or (0, ""), line.uuid, line.name, line.bus, line.memory, line.mig):
        if words and code in _BROKEN:
            return f"the driver says {words[:TEXT_MAX]!r}"
    if line.handle is not None:
        return f"it can't be opened: {_words(*line.handle)}"
    if line.uuid[1]:
        return f"it doesn't tell its UUID: {line.uuid[1][:TEXT_MAX]}"
    if not GPU_UUID.fullmatch(uuid):
        return f"its UUID is {uuid!r}"
    if uuid in known:
        return f"its UUID {uuid} was already listed for another GPU"
    memory, words = line.memory
    if words and memory not in NEVER_TOLD:
        return f"it doesn't tell its memory: {words[:TEXT_MAX]}"
    if not words and not 0 <= memory // _MIB <= MEMORY_MB_MAX:
        return f"its memory is {memory // _MIB} MiB"
    mode, words = line.mig
    if words and mode not in NEVER_TOLD:
        return f"it doesn't tell whether it has MIG instances: {words[:TEXT_MAX]}"
    return None


def _told(value: _Text) -> str:
    """The text, cleaned; empty if it is an error instead."""
    said, why = value
    return "" if why else cleaned(str(said))[:TEXT_MAX]


def _words(code: int, words: str) -> str:
    words = cleaned(words)[:TEXT_MAX].rstrip(".")
    return f"{words} ({_UPGRADED})" if code == _VERSION_MISMATCH else words
