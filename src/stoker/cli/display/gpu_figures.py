"""Text about what GPUs do at the moment, for `stoker gpu`, `node`, `status` and `top`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.wire.rest.gpu_figures import GpuFiguresView
    from stoker.wire.rest.job import JobView
    from stoker.wire.rest.node import GpuView

SHOWN_MAX: Final = 16
"""GPUs of one job that are shown a line each."""


def utilization(figures: "GpuFiguresView | None") -> str:
    """Return the utilisation; `?` stands behind figures that are stale."""
    return _with_unit(figures, "utilization_percent", "%")


def memory_used(figures: "GpuFiguresView | None") -> str:
    return _with_unit(figures, "memory_used_mb", " MiB")


def temperature(figures: "GpuFiguresView | None") -> str:
    return _with_unit(figures, "temperature_c", " C")


def power(figures: "GpuFiguresView | None") -> str:
    """Return the power, in whole watts."""
    if figures is None or figures.power_w is None:
        return ""
    return f"{figures.power_w:.0f} W{'?' * figures.stale}"


def remark(figures: "GpuFiguresView | None") -> str:
    """Return what is unusual about the figures; empty = nothing."""
    from stoker.cli.display.formatting import duration

    if figures is None:
        return ""
    parts = [f"held, and idle for {duration(figures.idle_s * 1_000)}" if figures.held_idle else ""]
    parts.append(f"slowed down ({', '.join(figures.throttled)})" if figures.throttled else "")
    parts.append(f"figures are {duration(int(figures.age_s) * 1_000)} old" if figures.stale else "")
    return ", ".join(filter(None, parts))


def figures_text(figures: "GpuFiguresView | None") -> str:
    """Return all figures as one line; empty = none were told."""
    shared = (temperature(figures), power(figures))
    if figures is not None and figures.of_whole_gpu:
        shared = (f"{' and '.join(filter(None, shared))} of the whole GPU", "")
    clock = _with_unit(figures, "sm_clock_mhz", " MHz")
    return ", ".join(filter(None, (utilization(figures), memory_used(figures), *shared, clock, remark(figures))))


def mean_utilization(gpus: "Sequence[GpuView]") -> str:
    """Return the mean utilisation of those GPUs that jobs hold; empty = none of them tells any."""
    told = [gpu.figures.utilization_percent for gpu in gpus if gpu.status == "busy" and gpu.figures]
    known = [each for each in told if each is not None]
    return f"{sum(known) // len(known)}%" if known else ""


def job_gpu_lines(job: "JobView") -> Iterator[tuple[str, object]]:
    """Yield (key, value) lines about what the GPUs of a live job do."""
    told = [gpu for gpu in job.gpus if gpu.figures is not None]
    for gpu in told[:SHOWN_MAX]:
        yield f"gpu of rank {gpu.rank}", f"{gpu.uuid} on {gpu.node}: {figures_text(gpu.figures)}"
    if len(told) > SHOWN_MAX:
        yield "", f"and {len(told) - SHOWN_MAX} more GPUs"


def _with_unit(figures: "GpuFiguresView | None", name: str, unit: str) -> str:
    value = getattr(figures, name, None)
    return "" if figures is None or value is None else f"{value}{unit}{'?' * figures.stale}"
