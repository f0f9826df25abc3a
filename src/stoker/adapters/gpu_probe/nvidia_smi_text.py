"""Parsing of what `nvidia-smi` prints, with all its oddities.

Rules: S1  one GPU that can't be read is a fault of that GPU; it never hides the others
       S2  a value that the driver won't tell is unknown, never an error: `[N/A]`, `N/A`, `[Not Supported]`,
           `[Insufficient Permissions]`, `ERR!`, `[Unknown Error]`
       S3  a GPU is broken if it has no UUID, says that it is lost or wants a reset, or can't tell its memory for any
           reason but that the driver has no such number (unified memory: 0)
       S4  what isn't about one GPU (warnings before or after the list) is kept as messages, for when nothing else is
       S5  the order is that of PCI addresses, whatever order the lines have; `index` stays nvidia-smi's own
       S6  a list that ended too early is a fault too: a row that is cut off, or a program that failed and named no
           GPU that it couldn't read
Source: rows 47, 51, 54, 55, 56, 59 and 63 of the fault list, and threads that quote such output.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.adapters.gpu_probe.devices import (
    FAULTS_MAX,
    GPU_UUID,
    GPUS_MAX,
    PCI_ADDRESS,
    TEXT_MAX,
    cleaned,
    pci_order,
)
from stoker.brain.domain.gpu_telemetry import GpuProcess, GpuSample, RemappedRows
from stoker.brain.domain.ids import GpuUuid
from stoker.ports import GpuFault, ProbedGpu

FIELDS: Final = (
    *("index", "uuid", "name", "memory.total", "memory.used"),
    *("utilization.gpu", "temperature.gpu", "power.draw", "pci.bus_id"),
)
FIGURES_OF_OLD: Final = ("index", "uuid", "memory.used", "utilization.gpu", "temperature.gpu", "power.draw")
_CLOCKS: Final = ("ecc.errors.uncorrected.volatile.total", "mig.mode.current", "clocks.sm", "clocks.mem")
FIGURES: Final = (
    (*FIGURES_OF_OLD, *_CLOCKS, "clocks_event_reasons.active"),
    (*FIGURES_OF_OLD, *_CLOCKS, "clocks_throttle_reasons.active"),
    FIGURES_OF_OLD,
)
"""Fields of a look at figures; those that drivers before 535 know; those that any knows."""
ROW_FIELDS: Final = (
    "gpu_uuid",
    *(f"remapped_rows.{each}" for each in ("correctable", "uncorrectable", "pending", "failure")),
)
PROCESS_FIELDS: Final = ("gpu_uuid", "pid", "used_memory")
MESSAGES_MAX: Final = 8
PROCESSES_MAX: Final = 64
"""Of one GPU."""

_BEFORE_NAME: Final = 2
_AFTER_NAME: Final = len(FIELDS) - _BEFORE_NAME - 1
_LISTS: Final = re.compile(r"\d[^,]*,[^,]*,|\d{1,4}(, *[^ ,]*)?$")
"""The beginning of a row, also of one that is cut off."""
_NUMBER: Final = re.compile(r"([0-9]{1,9})(\.[0-9]{1,9})?( ?[A-Za-z%]{1,4})?")
_BITS: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")
_YES: Final = ("1", "yes")
_NEVER_TOLD: Final = re.compile(r"\[?(n/a|not supported|insufficient permissions)\]?", re.IGNORECASE)
_BROKEN: Final = re.compile(r"requires reset|is lost|fallen off the bus", re.IGNORECASE)
_NO_HANDLE: Final = re.compile(r"unable to (determine|detect) the device handle", re.IGNORECASE)

_LISTED: Final = re.compile(r"GPU \d{1,4}: .*? \(UUID: ([^)\s]*)\)?")
_LISTED_MIG: Final = re.compile(r"\s+MIG \S+\s+Device\s+\d{1,4}: \(UUID: [^)\s]*\)?")


class SmiReading(NamedTuple):
    """GPUs and faults that one query of `nvidia-smi` reported."""

    gpus: tuple[ProbedGpu, ...]
    faults: tuple[GpuFault, ...]
    messages: tuple[str, ...]


def parse_query(text: str) -> SmiReading:
    """Read the answer to `--query-gpu=FIELDS --format=csv,noheader,nounits`."""
    found: list[tuple[tuple[int, ...], ProbedGpu]] = []
    faults: list[GpuFault] = []
    messages: list[str] = []
    for line in map(_clean, text.splitlines()):
        if not line or line.startswith("index,"):
            continue
        if not _LISTS.match(line):
            _sort_message(line, faults, messages)
            continue
        gpu = _gpu(line, {seen.uuid for _, seen in found})
        if isinstance(gpu, GpuFault):
            faults.append(gpu)
        else:
            found.append((pci_order(line.rpartition(",")[2].strip(), gpu.index), gpu))
    found.sort(key=lambda pair: (pair[0], pair[1].index, pair[1].uuid))
    gpus = tuple(gpu for _, gpu in found[:GPUS_MAX])
    return SmiReading(gpus, tuple(faults[:FAULTS_MAX]), tuple(messages[:MESSAGES_MAX]))


class SmiFigures(NamedTuple):
    """Samples of one look, and the GPUs with MIG switched on, which aren't among them."""

    samples: tuple[GpuSample, ...]
    divided: tuple[GpuUuid, ...]


def parse_figures(text: str, known: Mapping[int, GpuUuid]) -> SmiFigures:
    """Read the answer to `--query-gpu` with one of FIGURES. `known`: UUIDs of GPUs by their index."""
    samples: dict[int, GpuSample] = {}
    divided: list[GpuUuid] = []
    for line in map(_clean, text.splitlines()):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < len(FIGURES_OF_OLD) or not _number_like(parts[0]) or int(parts[0]) in samples:
            continue
        index, uuid = int(parts[0]), GpuUuid(parts[1] if GPU_UUID.fullmatch(parts[1]) else "")
        broken = next((part for part in parts if _BROKEN.search(part)), "")
        ecc, mig, sm_clock, memory_clock, events = (*parts[len(FIGURES_OF_OLD) :], *("",) * 5)[:5]
        if mig.lower() == "enabled" and uuid:
            divided.append(uuid)
        elif broken or not uuid:
            fault = (broken or f"its UUID is {parts[1]!r}")[:TEXT_MAX]
            samples[index] = GpuSample(uuid=known.get(index, uuid), index=index, fault=fault)
        elif len(samples) < GPUS_MAX:
            used, utilization, temperature, power = parts[2 : len(FIGURES_OF_OLD)]
            samples[index] = GpuSample(
                uuid=uuid,
                index=index,
                utilization_percent=_number(utilization),
                memory_used_mb=_number(used),
                temperature_c=_number(temperature),
                power_mw=_milli(power),
                ecc_errors=_number(ecc),
                sm_clock_mhz=_number(sm_clock),
                memory_clock_mhz=_number(memory_clock),
                clock_events=int(events, 16) if _BITS.fullmatch(events) else None,
            )
    return SmiFigures(tuple(samples[index] for index in sorted(samples)), tuple(divided))


def parse_processes(text: str | None, samples: Iterable[GpuSample]) -> list[GpuSample]:
    """Return samples with their processes, of the answer to `--query-compute-apps=PROCESS_FIELDS`; None = unknown."""
    if text is None:
        return list(samples)
    found: dict[str, list[GpuProcess]] = {}
    for line in map(_clean, text.splitlines()):
        uuid, _, rest = line.partition(",")
        pid, _, used = rest.partition(",")
        if GPU_UUID.fullmatch(uuid.strip()) and (number := _number(pid.strip())):
            found.setdefault(uuid.strip(), []).append(GpuProcess(number, _number(used.strip())))
    return [
        sample if sample.fault else replace(sample, processes=tuple(found.get(sample.uuid, ())[:PROCESSES_MAX]))
        for sample in samples
    ]


def parse_rows(text: str) -> dict[str, RemappedRows]:
    """Read the answer to `--query-remapped-rows=ROW_FIELDS`, by UUID; GPUs without row remapping aren't in it."""
    found: dict[str, RemappedRows] = {}
    for line in map(_clean, text.splitlines()):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(ROW_FIELDS) or not GPU_UUID.fullmatch(parts[0]):
            continue
        correctable, uncorrectable = _number(parts[1]), _number(parts[2])
        if correctable is not None and uncorrectable is not None:
            pending, failed = (part.lower() in _YES for part in parts[3:])
            found[parts[0]] = RemappedRows(correctable, uncorrectable, pending, failed)
    return found


def count_migs(text: str) -> dict[str, int]:
    """Count the MIG instances of each GPU, by its UUID, in the output of `nvidia-smi -L`.

    They are indented below their GPU; lines of other kinds are passed over.
    """
    counts: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines():
        if found := _LISTED.match(line):
            uuid = found[1]
            counts[uuid] = 0
        elif uuid and _LISTED_MIG.match(line):
            counts[uuid] += 1
    return counts


def mig_enabled(text: str) -> list[str]:
    """Return the UUIDs of GPUs whose MIG mode is on, in the answer to `--query-gpu=uuid,mig.mode.current`."""
    pairs = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    return [pair[0] for pair in pairs if len(pair) == 2 and pair[1].lower() == "enabled"]


def _clean(line: str) -> str:
    return cleaned(line)[: 4 * TEXT_MAX]


def _sort_message(line: str, faults: list[GpuFault], messages: list[str]) -> None:
    bus = PCI_ADDRESS.search(line)
    if bus is not None and (_NO_HANDLE.search(line) or _BROKEN.search(line)):
        faults.append(GpuFault(where=bus[0], error=line[:TEXT_MAX]))
    else:
        messages.append(line[:TEXT_MAX])


def _gpu(line: str, known: Iterable[str]) -> ProbedGpu | GpuFault:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) < len(FIELDS):
        return GpuFault(where=f"GPU {parts[0][:8]}", error=f"can't read the line {line[:TEXT_MAX]!r}")
    # A comma in a name would shift every column after it, so the name is whatever stands between the outer ones.
    index, uuid = parts[:_BEFORE_NAME]
    name = ", ".join(parts[_BEFORE_NAME : len(parts) - _AFTER_NAME])
    total, used, utilization, temperature, power, bus = parts[-_AFTER_NAME:]
    where = bus if PCI_ADDRESS.fullmatch(bus) else f"GPU {index[:8]}"
    broken = _why_broken(parts, uuid, total, known)
    if broken is not None:
        return GpuFault(where=where, error=broken)
    if not _number_like(index):
        return GpuFault(where=where, error=f"its index is {index[:TEXT_MAX]!r}")
    return ProbedGpu(
        uuid=GpuUuid(uuid),
        index=int(index),
        model=name[:TEXT_MAX],
        memory_mb=_number(total) or 0,
        memory_used_mb=_number(used),
        utilization_percent=_number(utilization),
        temperature_c=_number(temperature),
        power_w=_number(power),
        bus=bus if PCI_ADDRESS.fullmatch(bus) else "",
    )


def _number_like(index: str) -> bool:
    return index.isascii() and index.isdigit() and len(index) <= 4


def _why_broken(parts: Sequence[str], uuid: str, total: str, known: Iterable[str]) -> str | None:
    for part in parts:
        if _BROKEN.search(part):
            return f"the driver says {part[:TEXT_MAX]!r}"
    if not GPU_UUID.fullmatch(uuid):
        return f"its UUID is {uuid[:TEXT_MAX]!r}"
    if uuid in known:
        return f"its UUID {uuid} was already listed for another GPU"
    if _number(total) is None and not _NEVER_TOLD.fullmatch(total):
        return f"its memory is {total[:TEXT_MAX]!r}"
    return None


def _number(text: str) -> int | None:
    """A count, rounded down. None for whatever stands there instead."""
    match = _NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def _milli(text: str) -> int | None:
    """A number with decimals, in thousandths."""
    match = _NUMBER.fullmatch(text)
    return round(float(f"{match[1]}{match[2] or ''}") * 1_000) if match else None
