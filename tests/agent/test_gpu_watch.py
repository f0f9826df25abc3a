"""Rules W1 to W6 of `agent/machine.py` (faults 45 and 69: the agent comes up before the driver), on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from stoker.agent.known_gpus import KnownGpus
from stoker.agent.machine import GpuWatch, describe
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.health import GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.ports import GpuFault, ProbedGpu, ProbeResult
from stoker.wire.agent_codec import FAULT_MAX
from tests.agent.twins import on_virtual_time
from tests.rig.sim_ports import Notes, SimClock
from tests.rig.virtual_loop import run_virtual

GONE = (
    "{} isn't listed any more (if taken out for good, remove `gpus.json` in its agent's data folder and restart the "
    "agent)"
)


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
    """Of an agent without a past."""
    with TemporaryDirectory() as folder:
        return restarted(driver, Path(folder))


def restarted(driver: Driver, data_dir: Path, **environ: str) -> tuple[GpuWatch, Notes]:
    notes = Notes(SimClock(), "n1")
    return GpuWatch(driver.probe, KnownGpus(data_dir, notes, environ), notes), notes


def in_a_folder(story: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    @wraps(story)
    def test(tmp_path: Path) -> None:
        run_virtual(partial(story, tmp_path))

    return test


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
async def test_the_fault_of_one_gpu_hides_no_other_that_is_not_listed_any_more() -> None:
    """A GPU with MIG on is a fault for years. A fault that may be that of the missing one is enough."""
    told = {"GPU-m": f"GPU-m: broken; GPU 1: {GONE.format('GPU-b')}"}
    told |= {where: f"{where}: broken" for where in ("GPU-b", "GPU 1", "GPU 7", "nvidia-smi")}
    for where, fault in told.items():
        less = replace(found("GPU-a"), faults=(GpuFault(where=where, error="broken"),))
        gpus, _ = watch(Driver(found("GPU-a", "GPU-b"), less))
        await gpus.look()
        await gpus.look()
        assert describe_of(await gpus.look()) == (1, fault)


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
    assert await changes(gpus, within_s=600) == [(1, f"GPU 1: {GONE.format('b')}"), (1, "GPU 3: is lost"), (2, "")]


@on_virtual_time
async def test_a_driver_that_breaks_after_the_start_hides_every_gpu_until_it_is_mended() -> None:
    broken = OSError("failed (exit 18): Driver/library version mismatch")
    driver = Driver(found("a", "b"), broken, broken, broken, found("a", "b"))
    gpus, _ = watch(driver)
    await gpus.look()
    assert await changes(gpus, within_s=600) == [(0, f"nvidia-smi: {broken}"), (2, "")]


def said_after_restarts(data_dir: Path, *starts: ProbeResult | OSError, **environ: str) -> tuple[int, str]:
    """What the node says at the last of some starts of its agent over one data folder."""
    said = (0, "")

    async def start(look: ProbeResult | OSError) -> None:
        nonlocal said
        said = describe_of(await restarted(Driver(look), data_dir, **environ)[0].look())

    for look in starts:
        run_virtual(partial(start, look))
    return said


def test_a_gpu_that_is_lost_while_the_agent_is_down_is_said_at_every_start_until_it_is_back(tmp_path: Path) -> None:
    four = found("a", "b", "c", "d")
    lost = (3, f"GPU 3: {GONE.format('d')}")
    assert said_after_restarts(tmp_path, four, found("a", "b", "c")) == lost
    assert said_after_restarts(tmp_path, OSError("no driver"), found("a", "b", "c")) == lost
    assert said_after_restarts(tmp_path, four) == (4, "")


def test_who_took_a_gpu_out_removes_the_file_and_starts_the_agent(tmp_path: Path) -> None:
    said_after_restarts(tmp_path, found("a", "b"), found("a"))
    (tmp_path / "gpus.json").unlink()
    assert said_after_restarts(tmp_path, found("a"), found("a")) == (1, "")


@pytest.mark.parametrize("other", [found("x"), found("a", "b", "x"), found("a", "x", "y", "z")])
def test_other_gpus_or_new_ones_in_the_place_of_old_ones_are_taken_as_they_are(
    tmp_path: Path, other: ProbeResult
) -> None:
    assert said_after_restarts(tmp_path, found("a", "b", "c"), other) == (len(other.gpus), "")
    assert said_after_restarts(tmp_path, other) == (len(other.gpus), ""), "and nothing else is known from then on"


def test_one_new_gpu_stands_in_for_one_of_two_that_are_gone_and_not_for_both(tmp_path: Path) -> None:
    assert "b isn't listed" in said_after_restarts(tmp_path, found("a", "b", "c"), found("a", "x"))[1]


def test_gpus_that_are_hidden_from_the_agent_from_now_on_were_given_away_and_not_lost(tmp_path: Path) -> None:
    said_after_restarts(tmp_path, found("a", "b"))
    assert said_after_restarts(tmp_path, found("a"), CUDA_VISIBLE_DEVICES="0") == (1, "")


def test_of_many_lost_gpus_some_are_named_and_what_to_do_stands_within_what_a_node_may_say(tmp_path: Path) -> None:
    names = [f"GPU-{number:08d}-0000-4000-8000-000000000000" for number in range(8)]
    _, said = said_after_restarts(tmp_path, found(*names), found())
    assert said.count("isn't listed any more") == 3
    assert "; 5 more: not listed either (if taken out for good, remove `gpus.json`" in said
    assert len(said) <= FAULT_MAX


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"visible":[null,null],"gpus":[{}]}', b"\xff" * 300_000])
def test_a_damaged_file_of_known_gpus_is_passed_over_with_a_warning_and_written_anew(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "gpus.json").write_bytes(content)

    async def start() -> None:
        gpus, notes = restarted(Driver(found("a", "b")), tmp_path)
        assert "known_gpus_unusable" in notes.lines[0]
        assert describe_of(await gpus.look()) == (2, "")

    run_virtual(start)
    assert "b isn't listed" in said_after_restarts(tmp_path, found("a"))[1]


def test_a_disk_that_does_not_take_what_is_known_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    gpus, notes = restarted(Driver(found("a")), tmp_path / "gone")

    async def look_twice() -> None:
        assert describe_of(await gpus.look()) == describe_of(await gpus.look()) == (1, "")

    run_virtual(look_twice)
    assert len(notes.lines) == 1
    assert "known_gpus_not_kept" in notes.lines[0]


def test_a_script_that_has_fewer_gpus_than_it_had_hides_none(tmp_path: Path) -> None:
    two, one = (replace(found(*names), simulated=True) for names in (("a", "b"), ("a",)))
    assert said_after_restarts(tmp_path, two, one) == (1, "")


def divided(*slots: int, fault: str = "") -> ProbeResult:
    """A whole GPU, and one with instances in these slots."""
    instances = tuple(
        ProbedGpu(
            uuid=GpuUuid(f"MIG-{slot}"), index=2_000 + slot, model="V MIG 1g", memory_mb=1, parent=GpuUuid("GPU-1")
        )
        for slot in slots
    )
    whole = found("GPU-0")
    faults = (GpuFault(where="GPU-1", error=fault),) if fault else ()
    return replace(whole, gpus=(*whole.gpus, *instances), faults=faults)


@in_a_folder
async def test_w6_instances_that_are_divided_anew_leave_no_fault_behind(tmp_path: Path) -> None:
    """Fault 70: fewer of them than before need nobody's hand."""
    looks = [found("GPU-0", "GPU-1"), divided(0, 1, 2, 3), divided(0, 4), found("GPU-0", "GPU-1")]
    gpus, notes = restarted(Driver(*[look for look in looks for _ in range(2)]), tmp_path)
    for look in looks:
        await gpus.look()
        assert (await gpus.look()).faults == ()
        assert gpus.offered == look
    assert notes.lines == []
    anew, _ = restarted(Driver(found("GPU-0", "GPU-1")), tmp_path)
    assert (await anew.look()).faults == ()


@in_a_folder
async def test_w6_while_a_gpu_has_no_instance_at_all_those_it_had_are_waited_for_by_its_fault_alone(
    tmp_path: Path,
) -> None:
    gpus, _ = restarted(Driver(divided(0, 1), divided(fault="no instance")), tmp_path)
    await gpus.look()
    anew, _ = restarted(Driver(divided(fault="no instance"), divided(0, 1)), tmp_path)
    assert [fault.where for fault in (await anew.look()).faults] == ["GPU-1"]
    assert (await anew.look()).faults == ()
    assert len(anew.offered.gpus) == 3


@in_a_folder
async def test_w6_an_instance_that_is_gone_with_its_gpu_is_a_fault(tmp_path: Path) -> None:
    gpus, _ = restarted(Driver(divided(0), found("GPU-0")), tmp_path)
    for _ in range(3):
        await gpus.look()
    assert [(fault.where, fault.error) for fault in gpus.offered.faults] == [("GPU 1:0", GONE.format("MIG-0"))]


def test_an_instance_that_is_lost_under_a_task_stays_known_to_the_cluster() -> None:
    lost = GpuCondition(
        uuid=GpuUuid("MIG-7"), index=2_007, state=HealthState.DRAINED, kind=HealthKind.LOST, reason="it isn't listed"
    )
    told = describe(AgentSettings(), NodeName("n1"), "uid", divided(0), "1", [lost]).inventory
    assert (len(told.gpus), told.gpus[-1].parent) == (2, "GPU-1")
    assert told.gpu_fault == "MIG-7: drained: it isn't listed"
    found = replace(divided(0), faults=(GpuFault(where="GPU 1:7", error="MIG-7 isn't listed any more"),))
    told = describe(AgentSettings(), NodeName("n1"), "uid", found, "1", [lost]).inventory
    assert told.gpu_fault == "GPU 1:7: MIG-7 isn't listed any more", "once is enough"


@on_virtual_time
async def test_gpus_that_the_environment_hides_are_said_once() -> None:
    """Else a node with CUDA_VISIBLE_DEVICES= in its unit offers none, and its log has no reason."""
    gpus, notes = watch(Driver(ProbeResult(gpus=(), hidden="CUDA_VISIBLE_DEVICES='': none is offered")))
    for _ in range(3):
        await gpus.look()
    assert len(notes.lines) == 1
    assert "CUDA_VISIBLE_DEVICES=''" in notes.lines[0]
