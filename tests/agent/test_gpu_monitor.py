"""Rules G1 to G4 of `agent/gpu_monitor.py`, on virtual time."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec

from stoker.agent.gpu_monitor import GpuMonitor, NothingToAsk
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuSample
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from tests.agent.twins import on_virtual_time
from tests.rig.sim_ports import Notes, SimClock

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
BEAT = Beat(sequence=1)
JOB, OTHER = TaskKey(JobId(1), 1, 0), TaskKey(JobId(2), 1, 0)


class Driver:
    """Two GPUs that compute as much as it says."""

    def __init__(self) -> None:
        self.percent: int | None = 0
        self.fault: OSError | None = None
        self.asked_at: list[float] = []
        self.held: Collection[GpuUuid] = ()

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        self.asked_at.append(SimClock().mono())
        self.held = tuple(held)
        if self.fault is not None:
            raise self.fault
        rows = [GpuSample(uuid=uuid, index=i, utilization_percent=self.percent) for i, uuid in enumerate((A, B))]
        return GpuLook(samples=tuple(rows))


def monitor(driver: Driver) -> tuple[GpuMonitor, Notes]:
    notes = Notes(SimClock(), "n1")
    return GpuMonitor(driver, SimClock(), notes, period_s=5.0, seldom_s=30.0), notes


async def running(gpus: GpuMonitor, held: dict[GpuUuid, list[TaskKey]], for_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await gpus.run(lambda: held)


def quiet_s(gpus: GpuMonitor) -> list[float]:
    assert gpus.figures is not None
    return [reading.quiet_ms / 1_000 for reading in gpus.figures.readings]


@on_virtual_time
async def test_gpus_are_looked_at_every_five_seconds_and_a_beat_has_each_look_once() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    assert gpus.fill(BEAT).gpus == ()
    await running(gpus, {}, 12.0)
    assert len(driver.asked_at) == 3
    told = gpus.fill(BEAT)
    assert ([reading.uuid for reading in told.gpus], told.gpus_age_ms) == ([A, B], 2_000)
    assert told.at == SimClock().now()
    assert gpus.fill(BEAT).gpus == ()


@on_virtual_time
async def test_a_look_that_fails_is_tried_again_later_and_later_and_told_once() -> None:
    driver = Driver()
    gpus, notes = monitor(driver)
    await gpus.look({})
    driver.fault = OSError("NVML didn't answer within 10 s")
    await running(gpus, {}, 300.0)
    pauses = [after - before for before, after in zip(driver.asked_at[1:], driver.asked_at[2:], strict=False)]
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert len(notes.lines) == 1
    assert gpus.fill(BEAT).gpus_age_ms >= 299_000, "what is told is old, and says so"
    driver.fault = None
    await running(gpus, {}, 1.0)
    assert gpus.fill(BEAT).gpus_age_ms < 2_000
    assert "gpu_figures_back" in notes.lines[-1]


@on_virtual_time
async def test_without_a_driver_it_is_asked_as_seldom_as_for_gpus_and_nothing_is_said() -> None:
    driver = Driver()
    driver.fault = NothingToAsk("there is no libnvidia-ml.so.1")
    gpus, notes = monitor(driver)
    await running(gpus, {}, 100.0)
    assert (len(driver.asked_at), notes.lines) == (4, [])


@on_virtual_time
async def test_a_gpu_is_quiet_for_as_long_as_the_same_tasks_hold_it_and_none_computes() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    await running(gpus, {A: [JOB]}, 301.0)
    assert (quiet_s(gpus), driver.held) == ([300.0, 0.0], (A,))
    assert gpus.figures is not None
    assert [reading.is_idle for reading in gpus.figures.readings] == [True, False]
    driver.percent = 2
    await running(gpus, {A: [JOB]}, 1.0)
    assert quiet_s(gpus) == [0.0, 0.0]
    driver.percent = 1
    await running(gpus, {A: [JOB]}, 21.0)
    assert quiet_s(gpus)[0] == 21.0, "since it last computed"
    await running(gpus, {A: [OTHER]}, 1.0)
    assert quiet_s(gpus)[0] == 0.0, "another task has just got it"
    driver.percent = None
    await running(gpus, {A: [OTHER]}, 61.0)
    assert quiet_s(gpus)[0] == 0.0, "nobody knows"


def test_a_sample_has_every_figure_of_a_reading() -> None:
    fields = {field.name for field in msgspec.structs.fields(GpuSample)}
    assert {"utilization_percent", "memory_used_mb", "temperature_c", "power_mw"} <= fields
