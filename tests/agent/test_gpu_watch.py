"""Rules W1 to W3 of `agent/machine.py` (faults 45 and 69: the agent comes up before the driver), on virtual time."""

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
    await gpus.until_settled(SimClock(), 30.0, lambda better: offered.append(len(better.gpus)))
    assert offered == [2, 3]
    assert SimClock().mono() - 77.0 == 90.0
    assert len([line for line in notes.lines if "no driver" in line]) == 1


@on_virtual_time
async def test_a_node_whose_devices_cannot_be_read_says_why_and_takes_it_back_once_they_can() -> None:
    lost = found("a", fault="is lost")
    gpus, _ = watch(Driver(OSError("exit 18"), OSError("exit 18"), OSError("exit 9"), lost, found("a", "b")))
    described = [describe_of(await gpus.look())]
    await gpus.until_settled(SimClock(), 30.0, lambda better: described.append(describe_of(better)))
    assert described == [(0, "nvidia-smi: exit 18"), (0, "nvidia-smi: exit 9"), (1, "GPU 3: is lost"), (2, "")]


def describe_of(result: ProbeResult) -> tuple[int, str]:
    inventory = describe(AgentSettings(), NodeName("n1"), "uid", result, "1.0").inventory
    return len(inventory.gpus), inventory.gpu_fault


@on_virtual_time
async def test_once_every_gpu_is_seen_nobody_looks_again() -> None:
    driver = Driver(found("a"))
    gpus, _ = watch(driver)
    await gpus.look()
    await gpus.until_settled(SimClock(), 30.0, lambda better: None)
    assert driver.asked == 1


@on_virtual_time
async def test_a_driver_that_hiccups_takes_no_gpu_from_under_its_jobs() -> None:
    driver = Driver(found("a", "b", fault="GPU c is lost"), found(fault="timed out"), OSError("gone"), found("a"))
    gpus, _ = watch(driver)
    await gpus.look()
    changes: list[ProbeResult] = []
    task = asyncio.ensure_future(gpus.until_settled(SimClock(), 30.0, changes.append))
    await asyncio.sleep(300)
    task.cancel()
    await asyncio.wait({task})
    assert changes == []
    assert [gpu.uuid for gpu in (await gpus.look()).gpus] == ["a", "b"]
