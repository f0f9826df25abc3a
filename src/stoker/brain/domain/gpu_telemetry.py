"""Figures of GPUs: what one look at the devices of a node finds, and what its heartbeat tells of them.

They are facts of a moment, never events: nothing in the log depends on them. None = the driver doesn't tell.
"""

from typing import Final

import msgspec

from stoker.brain.domain.ids import GpuUuid

CLOCK_EVENTS: Final = {0x40: "hot", 0x20: "hot", 0x80: "power_brake", 0x8: "slowed"}
"""What a bit of `clock_events` says of a GPU that is slower than it should be. Other bits are for how GPUs are meant to
run: at a power limit, at a clock that somebody set, or idle. Source: NVML, `nvmlClocksEventReasons`."""
_SLOWED: Final = "slowed"
IDLE_AFTER_MS: Final = 5 * 60 * 1_000
"""A GPU that is held and has computed nothing for so long is called idle: longer than it takes to load most data."""
QUIET_PERCENT: Final = 1
"""Utilisation up to which it counts as computing nothing."""


class GpuProcess(msgspec.Struct, frozen=True):
    """Process that has memory or a context on a GPU."""

    pid: int
    memory_mb: int | None = None


class RemappedRows(msgspec.Struct, frozen=True):
    """Rows of the memory of a GPU that spare rows stand for. Source: NVIDIA, "GPU Memory Error Management"."""

    correctable: int = 0
    uncorrectable: int = 0
    """Rows that were replaced since they had such errors."""
    pending: bool = False
    """Whether one more is replaced by the next reset of the GPU, and used until then."""
    failed: bool = False
    """Whether one couldn't be replaced, as no spare row is left."""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one GPU at one moment. Units: per cent, MiB, degrees Celsius, milliwatts."""

    uuid: GpuUuid
    """Empty = it couldn't even tell that; then `index` names it."""
    index: int
    utilization_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    ecc_errors: int | None = None
    """Uncorrected errors since the driver was loaded."""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    energy_mj: int | None = None
    """Millijoules since the driver was loaded."""
    clock_events: int | None = None
    """What bounds its clocks, as bits of NVML's `nvmlClocksEventReasons`."""
    rows: RemappedRows | None = None
    xids: tuple[int, ...] = ()
    """Errors that the driver has reported since the look before. Source: NVIDIA, "XID Errors"."""
    processes: tuple[GpuProcess, ...] | None = None
    fault: str = ""
    """Why it can't be used at all, in the driver's words. Empty = it can."""
    unanswered: str = ""
    """Why nothing is known of it now: its driver hangs where others answer. Empty = it answered."""
    parent: GpuUuid = GpuUuid("")
    """UUID of the GPU of which it is a MIG instance, whose temperature, power and memory errors these are."""
    releasing: bool = False
    """Whether processes that were killed are still leaving it. Only a script says so."""


class GpuLook(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the devices of a node to one question."""

    samples: tuple[GpuSample, ...]
    divided: tuple[GpuUuid, ...] = ()
    """GPUs with MIG switched on: none of them is a sample, each of their MIG instances is."""
    simulated: bool = False
    clock_ahead_ms: int = 0
    """By how much a script moves the clock of the node."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one GPU, as a heartbeat tells them. Units as in `GpuSample`."""

    uuid: GpuUuid
    utilization_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_events: int = 0
    """As in `GpuSample`; 0 = nothing bounds its clocks, or it isn't told."""
    quiet_ms: int = 0
    """For how long the task that holds it has computed nothing there. 0 = it does, or nothing holds it."""

    @property
    def is_idle(self) -> bool:
        """Whether a task holds it and leaves it idle."""
        return self.quiet_ms >= IDLE_AFTER_MS


class FigureWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Wish of a control plane that a node's GPUs be looked at so often, since somebody looks at them, for a while."""

    every_ms: int
    for_ms: int
    """From when it comes; a later one replaces it."""


READING_FIELDS: Final = (
    *("utilization_percent", "memory_used_mb", "temperature_c", "power_mw"),
    *("sm_clock_mhz", "memory_clock_mhz"),
)
"""Figures that a driver may not tell."""


def throttled_by(clock_events: int) -> tuple[str, ...]:
    """Return what slows a GPU down: `hot`, `power_brake`, or `slowed` where its driver says no more."""
    told = dict.fromkeys(word for bit, word in CLOCK_EVENTS.items() if clock_events & bit)
    return tuple(word for word in told if word != _SLOWED or len(told) == 1)
