"""REST shapes of what GPUs do at the moment, beside the node or the job that has them."""

from typing import Final

import msgspec

from stoker.brain.domain.gpu_telemetry import GpuReading, throttled_by

STALE_S: Final = 20
"""Figures that are older are called stale: four heartbeats."""


class GpuFiguresView(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a GPU, as the newest heartbeat of its node that had some told them. Null = the driver doesn't tell.

    Of a simulated GPU they are simulated too.
    """

    utilization_percent: int | None
    memory_used_mb: int | None
    temperature_c: int | None
    power_w: float | None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()
    """What slows it down: `hot`, `power_brake`, or `slowed` where its driver says no more. Empty: nothing."""
    of_whole_gpu: tuple[str, ...] = ()
    """Names of figures here that are those of the whole GPU: of a MIG instance the driver tells no temperature, power
    and clocks of its own."""
    age_s: float
    """How old they are."""
    stale: bool = False
    """True = so old that they may say nothing of now: its node is silent, or its driver doesn't answer."""
    idle_s: int = 0
    """For how long the job that holds it has computed nothing there."""
    held_idle: bool = False
    """True = that is so long that the GPU is held for nothing."""


class JobGpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a live job, and what it does."""

    rank: int
    node: str
    uuid: str
    figures: GpuFiguresView | None
    """Null = its node has told none."""


class GpuHourView(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a GPU in the last hour, as columns of equal length, the oldest first. Null = the driver told none."""

    uuid: str
    device_index: int
    memory_mb: int
    age_s: list[int]
    """How long ago each point was."""
    utilization_percent: list[int | None]
    memory_used_mb: list[int | None]
    temperature_c: list[int | None]
    power_w: list[float | None]


class NodeHourView(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour of a node's GPUs, as far as this control plane has heard of it; a new one begins anew."""

    node: str
    simulated: bool
    """True = its GPUs are simulated, and so these figures."""
    step_s: int
    """Seconds between two points, at least."""
    gpus: list[GpuHourView]


def gpu_figures_view(reading: GpuReading, age_s: float, *, is_mig: bool = False) -> GpuFiguresView:
    """Return the shape of a reading that is so old. `is_mig`: it is of a MIG instance."""
    clocks = {"sm_clock_mhz": reading.sm_clock_mhz, "memory_clock_mhz": reading.memory_clock_mhz}
    told = {"temperature_c": reading.temperature_c, "power_w": reading.power_mw, **clocks} if is_mig else {}
    return GpuFiguresView(
        of_whole_gpu=tuple(name for name, value in told.items() if value is not None),
        utilization_percent=reading.utilization_percent,
        memory_used_mb=reading.memory_used_mb,
        temperature_c=reading.temperature_c,
        power_w=None if reading.power_mw is None else round(reading.power_mw / 1_000, 1),
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        throttled=throttled_by(reading.clock_events),
        age_s=round(age_s, 1),
        stale=age_s > STALE_S,
        idle_s=reading.quiet_ms // 1_000,
        held_idle=reading.is_idle,
    )
