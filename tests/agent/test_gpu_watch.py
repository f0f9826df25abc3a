"""Rules W1 to W4 of `agent/machine.py` (faults 45 and 69: the agent comes up before the driver), on virtual time."""

import asyncio

from stoker.agent.machine import GpuWatch, describe
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.ports import GpuFault, ProbedGpu, ProbeResult
from tests.agent.twins import on_virtual_time
from tests.rig.sim_ports import Notes, SimClock


def found(*names: str, fault: str = "") -> ProbeResult:
    gpus = tuple(ProbedGpu(uuid=GpuUuid(name), index=i, model="V100", memory_mb=1) for i, name in enumerate(names))
    return ProbeResult(gpus=gpus, faults=(GpuFault(where="GPU 3", error=fault),) if fault else ())


class Driver:
    """Answers one look after the other; the last for ever."""

    def __init__(self, *looks: ProbeResult | OSError) -> None:
        self.looks = list(looks)
        self.asked = 0

    async def probe(self) -> ProbeResult:
        self.asked += 1
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, OSError):
            raise look
        return look


def watch(driver: Driver) -> tuple[GpuWatch, Notes]:
    notes = Notes(SimClock(), "n1")
    return GpuWatch(driver.probe, notes), notes


@on_virtual_time
async def test_a_probe_that_fails_leaves_a_node_without_gpus_and_says_so() -> None:
    gpus, notes = watch(Driver(OSError("nvidia-smi failed (exit 9): no driver")))
    assert (await gpus.look()).gpus == ()
    assert "no driver" in notes.lines[0]


@on_virtual_time
async def test_gpus_of_a_late_driver_are_offered_once_they_are_seen() -> None:
    driver = Driver(OSError("no driver"), OSError("no driver"), found("a", "b", fault="lost"), found("a", "b", "c"))
    gpus, notes = watch(driver)
    await gpus.look()
    offered: list[int] = []
    await gpus.watch(SimClock(), 30.0, 0, lambda better: offered.append(len(better.gpus)))
    assert offered == [2, 3]
    assert SimClock().mono() - 77.0 == 90.0
    assert len([line for line in notes.lines if "no driver" in line]) == 1


@on_virtual_time
async def test_a_node_whose_devices_cannot_be_read_says_why_and_takes_it_back_once_they_can() -> None:
    lost = found("a", fault="is lost")
    gpus, _ = watch(Driver(OSError("exit 18"), OSError("exit 18"), OSError("exit 9"), lost, found("a", "b")))
    described = [describe_of(await gpus.look())]
    await gpus.watch(SimClock(), 30.0, 0, lambda better: described.append(describe_of(better)))
    assert described == [(0, "nvidia-smi: exit 18"), (0, "nvidia-smi: exit 9"), (1, "GPU 3: is lost"), (2, "")]


def describe_of(result: ProbeResult) -> tuple[int, str]:
    inventory = describe(AgentSettings(), NodeName("n1"), "uid", result, "1.0").inventory
    return len(inventory.gpus), inventory.gpu_fault


@on_virtual_time
async def test_once_every_gpu_is_seen_it_is_looked_seldom_or_never() -> None:
    driver = Driver(found("a"))
    gpus, _ = watch(driver)
    await gpus.look()
    await gpus.watch(SimClock(), 30.0, 0, lambda better: None)
    assert driver.asked == 1
    assert await changes(gpus, within_s=601) == []
    assert driver.asked == 11


async def changes(gpus: GpuWatch, within_s: float) -> list[tuple[int, str]]:
    """What the node would say anew."""
    told: list[tuple[int, str]] = []
    task = asyncio.ensure_future(gpus.watch(SimClock(), 30.0, 60.0, lambda seen: told.append(describe_of(seen))))
    await asyncio.sleep(within_s)
    task.cancel()
    await asyncio.wait({task})
    return told


@on_virtual_time
async def test_a_driver_that_hiccups_takes_no_gpu_from_under_its_jobs() -> None:
    driver = Driver(found("a", "b"), found(fault="timed out"), found("a", "b"), OSError("gone"), found("a", "b"))
    gpus, notes = watch(driver)
    await gpus.look()
    assert await changes(gpus, within_s=600) == []
    assert "timed out" in " ".join(notes.lines)


@on_virtual_time
async def test_a_gpu_that_two_looks_in_a_row_miss_is_said_and_no_longer_offered_until_it_is_back() -> None:
    """Whether the driver says a word about it or not."""
    driver = Driver(*[found("a", "b")] * 2, *[found("a")] * 3, *[found("a", fault="is lost")] * 2, found("a", "b"))
    gpus, _ = watch(driver)
    await gpus.look()
    assert await changes(gpus, within_s=600) == [(1, "GPU 1: b isn't listed any more"), (1, "GPU 3: is lost"), (2, "")]


@on_virtual_time
async def test_a_driver_that_breaks_after_the_start_hides_every_gpu_until_it_is_mended() -> None:
    broken = OSError("failed (exit 18): Driver/library version mismatch")
    driver = Driver(found("a", "b"), broken, broken, broken, found("a", "b"))
    gpus, _ = watch(driver)
    await gpus.look()
    assert await changes(gpus, within_s=600) == [(0, f"nvidia-smi: {broken}"), (2, "")]
