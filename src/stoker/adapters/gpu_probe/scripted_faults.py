"""Faults by time of simulated GPUs, and the figures that these GPUs show.

Shape: faults: [{kind, gpu, at_s, for_s, ...}]   `gpu` is an index; `at_s` counts from the start of the agent, 0 unless
                                                 told; `for_s` 0 or not told = for good. Where MIG is on it is a fault
                                                 of each instance, or with `mig`, from 0, of one
       lost       it can't be opened; of one MIG instance: it is taken away
       xid        the driver reports error `code` (79 unless told), once
       ecc        `count` more uncorrected errors (1 unless told), once
       hot        it has `temperature_c` (97 unless told)
       throttled  its driver holds its clocks down: it's hot
       remap_pending, remap_failed   a row of its memory is replaced by a reset only, or can't be replaced
       idle       what holds it computes nothing
       leftover   `memory_mb` (4096 unless told) are in use, and no process has them
       process    a process that is no job, `pid`, has `memory_mb` there
       slow_kill  what was killed is still leaving it
       clock      the node's clock is `by_s` seconds ahead, below 0 behind; without `gpu`
Rules: F1  the figures follow from the script, the time since the start and what tasks hold, and from nothing else
       F2  what happens once is told by the first look after it
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from stoker.brain.domain.gpu import index_parts
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuProcess, GpuSample, RemappedRows
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import Mono
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

FaultKind = Literal[
    "lost",
    "xid",
    "ecc",
    "hot",
    "throttled",
    "remap_pending",
    "remap_failed",
    "idle",
    "leftover",
    "process",
    "slow_kill",
    "clock",
]
KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
KEYS: Final[Mapping[str, object]] = {
    "kind": str,
    "gpu": int,
    "mig": int,
    "at_s": float,
    "for_s": float,
    "code": int,
    "count": int,
    "temperature_c": int,
    "memory_mb": int,
    "pid": int,
    "by_s": float,
}
FAULTS_MAX: Final = 1_000
_LOST: Final = "GPU is lost (by script)"
_IDLE_C, _BUSY_C, _IDLE_MW, _BUSY_MW, _BUSY_PERCENT = 34, 61, 70_000, 480_000, 92
_IDLE_MHZ, _BUSY_MHZ, _THROTTLED_MHZ, _MEMORY_MHZ = 345, 1_980, 810, 2_619
_IDLE_BIT, _HOT_BITS = 0x1, 0x48
"""Figures of a GPU without a fault, round about those of a large one. Simulated, as the node says of all its GPUs."""


class ScriptFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a script. Units: seconds, MiB, degrees Celsius."""

    kind: FaultKind
    gpu: int = 0
    mig: int = -1
    """-1 = the whole GPU."""
    at_s: float = 0.0
    for_s: float = 0.0
    """0 = for good."""
    code: int = 79
    count: int = 1
    temperature_c: int = 97
    memory_mb: int = 4_096
    pid: int = 4_000_000
    by_s: float = 0.0

    def hits(self, gpu: ProbedGpu) -> bool:
        """Whether it is a fault of this GPU or MIG instance."""
        whole, slot = index_parts(gpu.index)
        return self.gpu == whole and self.mig in (-1, slot)

    def active(self, now_s: float) -> bool:
        """Whether it has begun and isn't over."""
        return self.at_s <= now_s and (self.for_s <= 0 or now_s < self.at_s + self.for_s)


class ScriptedDevices:
    """Probe and sampler of simulated GPUs under their faults. Its time begins when it is made."""

    def __init__(self, found: ProbeResult, faults: Sequence[ScriptFault], mono: Callable[[], Mono]) -> None:
        self._found = found
        self._faults = tuple(faults)
        self._mono = mono
        self._began = mono()
        self._told: dict[tuple[int, int], None] = {}
        # Numbers of the faults of F2 that were told, and of which device.

    @property
    def has_faults(self) -> bool:
        """Whether anything is ever wrong with them."""
        return bool(self._faults)

    def probe(self) -> ProbeResult:
        """Return the GPUs that can be opened now; a lost one is a fault."""
        now_s = self._mono() - self._began
        lost = [fault for fault in self._faults if fault.kind == "lost" and fault.active(now_s)]
        gone = {gpu.uuid: gpu for gpu in self._found.gpus if any(fault.hits(gpu) for fault in lost)}
        if not gone:
            return self._found
        told = [gpu for gpu in gone.values() if any(fault.hits(gpu) and fault.mig < 0 for fault in lost)]
        faults = tuple(GpuFault(where=gpu.uuid, error=_LOST) for gpu in told)
        gpus = tuple(gpu for gpu in self._found.gpus if gpu.uuid not in gone)
        return msgspec.structs.replace(self._found, gpus=gpus, faults=(*self._found.faults, *faults))

    def __call__(self, indexes: Sequence[int] | None = None, held: Collection[GpuUuid] = ()) -> GpuLook:
        """Look at these GPUs; None = at all."""
        now_s = self._mono() - self._began
        ahead = sum(fault.by_s for fault in self._faults if fault.kind == "clock" and fault.active(now_s))
        wanted = [gpu for gpu in self._found.gpus if indexes is None or gpu.index in indexes]
        samples = tuple(self._sample(gpu, gpu.uuid in held, now_s) for gpu in wanted if not self._is_away(gpu, now_s))
        divided = tuple(dict.fromkeys(gpu.parent for gpu in self._found.gpus if gpu.parent))
        return GpuLook(samples=samples, divided=divided, simulated=True, clock_ahead_ms=round(ahead * 1_000))

    def close(self) -> None:
        """Nothing is open."""

    def _is_away(self, gpu: ProbedGpu, now_s: float) -> bool:
        """Whether this MIG instance was taken away."""
        return any(
            each.kind == "lost" and each.mig >= 0 and each.hits(gpu) and each.active(now_s) for each in self._faults
        )

    def _sample(self, gpu: ProbedGpu, held: bool, now_s: float) -> GpuSample:
        here = [(number, fault) for number, fault in enumerate(self._faults) if fault.hits(gpu)]
        active = {fault.kind: fault for _, fault in here if fault.active(now_s)}
        if "lost" in active:
            return GpuSample(uuid=gpu.uuid, index=gpu.index, parent=gpu.parent, fault=_LOST)
        xids = []
        for number, fault in here:
            if fault.kind == "xid" and fault.at_s <= now_s and (number, gpu.index) not in self._told:  # F2
                self._told[number, gpu.index] = None
                xids.append(fault.code)
        extra = [active[kind] for kind in ("leftover", "process") if kind in active]
        computes = held and "idle" not in active
        own_mb = gpu.memory_mb // 2 if held else 0
        return GpuSample(
            uuid=gpu.uuid,
            index=gpu.index,
            parent=gpu.parent,
            utilization_percent=None if gpu.parent else _BUSY_PERCENT if computes else 0,
            memory_used_mb=min(gpu.memory_mb, own_mb + sum(fault.memory_mb for fault in extra)),
            temperature_c=active["hot"].temperature_c if "hot" in active else _BUSY_C if computes else _IDLE_C,
            power_mw=_BUSY_MW if computes else _IDLE_MW,
            sm_clock_mhz=_THROTTLED_MHZ if "throttled" in active else _BUSY_MHZ if computes else _IDLE_MHZ,
            memory_clock_mhz=_MEMORY_MHZ,
            clock_events=_HOT_BITS if "throttled" in active else 0 if computes else _IDLE_BIT,
            rows=RemappedRows(pending="remap_pending" in active, failed="remap_failed" in active),
            ecc_errors=sum(fault.count for _, fault in here if fault.kind == "ecc" and fault.at_s <= now_s),
            xids=tuple(xids),
            processes=tuple(GpuProcess(fault.pid, fault.memory_mb) for fault in extra if fault.kind == "process"),
            releasing="slow_kill" in active,
        )
