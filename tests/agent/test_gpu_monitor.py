"""Rules G1 to G9 of `agent/gpu_monitor.py`, on virtual time."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from stoker.agent.gpu_health import GpuHealth, HealthMemory, HealthRules
from stoker.agent.gpu_monitor import HEALTH_NAME, RELEASE_S, GpuMonitor, HealthFile, NothingToAsk
from stoker.brain.domain.gpu_telemetry import FigureWatch, GpuLook, GpuSample
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import Instant
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
        self.used_mb = [0]
        """Of the first GPU, look by look; the last for ever."""
        self.looks = 0
        self.released_at = 0
        """The look from which on what was killed has left it."""
        self.xids: tuple[int, ...] = ()
        self.uuids = [A, B]
        """By their indexes."""
        self.takes_s = 0.0

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        self.asked_at.append(SimClock().mono())
        self.held = tuple(held)
        if self.takes_s:
            await SimClock().sleep(self.takes_s)
        if self.fault is not None:
            raise self.fault
        self.looks += 1
        rows = [GpuSample(uuid=uuid, index=i, utilization_percent=self.percent) for i, uuid in enumerate(self.uuids)]
        used = self.used_mb.pop(0) if len(self.used_mb) > 1 else self.used_mb[0]
        rows[0] = msgspec.structs.replace(
            rows[0], memory_used_mb=used, releasing=self.looks < self.released_at, xids=self.xids
        )
        return GpuLook(samples=tuple(row for row in rows if indexes is None or row.index in indexes))


def monitor(driver: Driver) -> tuple[GpuMonitor, Notes]:
    notes = Notes(SimClock(), "n1")
    return GpuMonitor(driver, SimClock(), notes, GpuHealth(HealthRules()), period_s=5.0, seldom_s=30.0), notes


async def running(
    gpus: GpuMonitor, held: dict[GpuUuid, list[TaskKey]], for_s: float, tell: Callable[[], None] = lambda: None
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await gpus.run(lambda: held, tell)


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


@on_virtual_time
async def test_a_gpu_is_released_as_soon_as_it_is_clean() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    await gpus.look({})
    driver.used_mb = [9_000, 9_000, 3]
    began = SimClock().mono()
    assert await gpus.released((A,), went_well=True) == ""
    assert (driver.looks, gpus.health.conditions) == (4, ())
    assert SimClock().mono() - began < 0.5


@on_virtual_time
async def test_of_a_task_that_ended_while_no_agent_was_here_the_gpu_is_looked_at_first() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    driver.used_mb, driver.takes_s = [9_000], 0.5
    release = asyncio.ensure_future(gpus.released((A,), went_well=True))
    await running(gpus, {}, 2.0)
    assert not release.done()
    await running(gpus, {}, 10.0)
    assert (release.done(), [each.kind for each in gpus.health.conditions]) == (True, ["memory"])


@on_virtual_time
async def test_where_no_look_ever_succeeds_no_end_is_held_up() -> None:
    driver = Driver()
    for driver.fault in (OSError("NVML hangs"), NothingToAsk("no library")):
        gpus, _ = monitor(driver)
        await running(gpus, {}, 1.0)
        assert await gpus.released((A,), went_well=True) == ""


@on_virtual_time
async def test_one_that_does_not_get_clean_in_time_is_kept_back_before_the_end_is_told() -> None:
    driver = Driver()
    gpus, notes = monitor(driver)
    told: list[str] = []
    gpus.changed = lambda: told.extend(each.kind for each in gpus.health.conditions)
    await gpus.look({})
    driver.used_mb = [9_000]
    began = SimClock().mono()
    await gpus.released((A,), went_well=True)
    assert RELEASE_S <= SimClock().mono() - began < 2 * RELEASE_S
    assert (told, [each.uuid for each in gpus.health.conditions]) == (["memory"], [A])
    assert "9000 MiB of its memory are in use" in notes.lines[-1]
    driver.fault, driver.used_mb = OSError("NVML didn't answer within 10 s"), [0]
    await gpus.released((B,), went_well=True)
    assert told[1:] == ["memory", "unanswered"]
    driver.fault = None
    await running(gpus, {}, 6.0)
    assert gpus.health.conditions == (), "one clean look offers both again"


@on_virtual_time
async def test_while_what_was_killed_is_leaving_a_gpu_its_end_is_not_told_however_long_that_takes() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    await gpus.look({})
    driver.released_at = 12
    began = SimClock().mono()
    await gpus.released((A,), went_well=False)
    assert (driver.looks, gpus.health.conditions) == (12, ())
    assert SimClock().mono() - began > 2 * RELEASE_S


@on_virtual_time
async def test_an_end_names_the_error_that_was_found_with_it_unless_it_went_well() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    await gpus.look({})
    driver.xids = (79,)
    assert await gpus.released((A,), went_well=False) == "GPU 0 (GPU-a): the driver reports XID 79"
    assert await gpus.released((A,), went_well=True) == ""
    assert [each.kind for each in gpus.health.conditions] == ["xid"]


@on_virtual_time
async def test_g7_an_end_names_a_gpu_that_is_not_listed_any_more() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    await gpus.look({})
    driver.uuids = [A]
    gone = "GPU 1 (GPU-b): it isn't listed any more"
    assert await gpus.released((B,), went_well=False) == gone, "its program noticed first"
    await running(gpus, {B: [JOB]}, 20.0)
    assert await gpus.released((B,), went_well=False) == gone, "the newest look doesn't know it any more"
    assert await gpus.released((B,), went_well=True) == await gpus.released((A,), went_well=False) == ""


@on_virtual_time
async def test_a_gpu_in_the_place_of_one_that_is_gone_is_not_judged_for_it() -> None:
    """Without the first GPU the driver counts the others anew."""
    driver = Driver()
    gpus, _ = monitor(driver)
    await gpus.look({})
    driver.uuids, driver.used_mb = [B], [9_000]
    assert await gpus.released((A,), went_well=False) == "GPU 0 (GPU-a): it isn't listed any more"
    assert [each.uuid for each in gpus.health.conditions] == [A], "the other is its task's"


@on_virtual_time
async def test_no_gpu_is_dirty_whose_task_began_or_ended_while_the_look_was_under_way() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    driver.used_mb = [9_000]
    answers: list[dict[GpuUuid, list[TaskKey]] | None] = [{A: [JOB]}, {}, {}, {A: [JOB]}, None, {}]
    for _ in range(3):
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await gpus.run(lambda: answers.pop(0), lambda: None)
        assert gpus.health.conditions == ()
    await running(gpus, {}, 1.0)
    assert [each.kind for each in gpus.health.conditions] == ["memory"]


@on_virtual_time
async def test_what_ails_gpus_is_known_to_the_next_agent_until_the_machine_boots() -> None:
    with TemporaryDirectory() as folder:
        assert_kept_until_the_next_boot(Path(folder))


def assert_kept_until_the_next_boot(tmp_path: Path) -> None:
    notes = Notes(SimClock(), "n1")
    file = HealthFile(tmp_path, "boot-1", notes)
    assert file.read(0.0) == HealthMemory()
    health = GpuHealth(HealthRules())
    health.fold(GpuLook(samples=(GpuSample(uuid=A, index=0, xids=(79,), ecc_errors=3),)), (), Instant(5), 100.0)
    file.keep(health.memory)
    again = file.read(1_000.0)
    assert (again.conditions, again.ecc) == (health.memory.conditions, {A: 3})
    assert again.errors[A].until_s == 1_600.0
    assert HealthFile(tmp_path, "boot-2", notes).read(0.0) == HealthMemory()
    (tmp_path / HEALTH_NAME).write_text("{")
    assert file.read(0.0) == HealthMemory()
    assert "gpu_health_unusable" in notes.lines[-1]


@on_virtual_time
async def test_while_somebody_looks_on_it_is_looked_every_second_and_told_at_once_and_then_as_before() -> None:
    driver, told = Driver(), [0.0]
    gpus, _ = monitor(driver)
    began = SimClock().mono()
    looking = asyncio.ensure_future(running(gpus, {}, 40.0, lambda: told.append(SimClock().mono() - began)))
    await SimClock().sleep(2.0)
    gpus.watch(FigureWatch(every_ms=1_000, for_ms=10_000))
    await SimClock().sleep(5.0)
    gpus.watch(FigureWatch(every_ms=1_000, for_ms=10_000))  # as long as a page is open
    await looking
    at = [round(each - began) for each in driver.asked_at]
    assert at == [0, *range(2, 18), 22, 27, 32, 37], "a look at once, one a second, and the lease ends by itself"
    assert [round(each) for each in told[1:]] == list(range(2, 17))


@on_virtual_time
async def test_no_control_plane_has_it_looked_more_often_than_every_second_nor_for_long() -> None:
    driver = Driver()
    gpus, _ = monitor(driver)
    gpus.watch(FigureWatch(every_ms=0, for_ms=86_400_000))
    await running(gpus, {}, 70.5)
    assert 60 <= len(driver.asked_at) <= 65
    driver.asked_at.clear()
    gpus.watch(FigureWatch(every_ms=3_600_000, for_ms=60_000))
    await running(gpus, {}, 21.0)
    assert len(driver.asked_at) == 5, "nor more seldom than without"


@on_virtual_time
async def test_who_looks_on_changes_nothing_of_what_becomes_of_a_gpu() -> None:
    """One that isn't listed is lost after two looks of the usual period, not after two seconds; an error counts."""
    driver = Driver()
    gpus, _ = monitor(driver)
    looking = asyncio.ensure_future(running(gpus, {}, 30.0))
    await SimClock().sleep(0.5)
    gpus.watch(FigureWatch(every_ms=1_000, for_ms=30_000))
    await SimClock().sleep(0.1)
    driver.uuids = [A]
    await SimClock().sleep(3.5)
    assert (driver.looks, gpus.health.conditions) == (5, ())
    driver.uuids, driver.xids = [A, B], (79,)
    await SimClock().sleep(1.0)
    driver.xids = ()
    assert {each.kind for each in gpus.health.conditions} == {"xid"}
    await looking
