"""Rules K1 to K3 of `agent/node_health.py`, and A24 of the daemon, on virtual time; faults 154 and 155."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.agent.node_health import NodeChecks, NodeHealth
from tests.agent.twins import Node, key, on_virtual_time, running, start
from tests.rig.sim_ports import SimClock


class SiteCheck:
    """Answers one run after the other; the last for ever."""

    def __init__(self, *answers: tuple[int, str] | OSError) -> None:
        self.answers = list(answers)
        self.runs = 0

    async def __call__(self) -> tuple[int, str]:
        self.runs += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


async def told(checks: NodeChecks, for_s: float) -> list[str]:
    said: list[str] = []
    health = NodeHealth(checks, SimClock(), said.append)
    with suppress(TimeoutError):
        async with asyncio.timeout(for_s), asyncio.TaskGroup() as duties:
            duties.create_task(health.watch_disk())
            duties.create_task(health.run_check())
    return said


@on_virtual_time
async def test_the_sites_check_says_what_is_wrong_once_until_it_finds_nothing() -> None:
    bad = (2, "looking at the scratch disk\nscratch is read-only\n")
    check = SiteCheck(
        (0, "fine"), bad, bad, (0, ""), (1, " "), OSError("/x didn't answer within 30 s"), (-9, ""), (0, "")
    )
    assert await told(NodeChecks(Path("/"), check=check), 600.0) == [
        "health.check (exit 2): scratch is read-only",
        "",
        "health.check (exit 1): it wrote nothing",
        "health.check: /x didn't answer within 30 s",
        "health.check (signal 9): it wrote nothing",
        "",
    ]
    assert check.runs == 10, "once a minute"


class Disk:
    f_frsize, f_blocks = 1 << 20, 100_000

    def __init__(self, left_mb: int) -> None:
        self.f_bavail = left_mb


@on_virtual_time
async def test_a_nearly_full_disk_is_a_fault_until_clearly_more_is_left() -> None:
    left = [5_000, 255, 100, 300, 319, 320, 5_000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: Disk(left.pop(0) if len(left) > 1 else left[0]))
        said = await told(NodeChecks(Path("/"), disk_min_mb=256), 300.0)
    assert said == ["its data folder has 255 MiB left, and is to have 256", ""]


@on_virtual_time
async def test_of_a_small_disk_a_twentieth_is_enough() -> None:
    disk = Disk(6)
    disk.f_blocks = 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: disk)
        assert await told(NodeChecks(Path("/"), disk_min_mb=256), 100.0) == []


@on_virtual_time
async def test_a_node_that_ails_says_so_starts_nothing_and_what_runs_there_goes_on() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, 1, gpus=(0,))
        node.daemon.ail("health.check (exit 1): no")
        await node.until(lambda: len(node.control.registered) == 2)
        assert node.control.registered[-1].inventory.fault == "health.check (exit 1): no"
        await node.connected(streams=2)
        node.control.tell(start(key(2), gpus=(1,)))
        await node.until(lambda: node.control.finished)
        assert [one.key for one in node.control.finished] == [key(2)]
        node.daemon.ail("")
        await node.until(lambda: node.control.registered[-1].inventory.fault == "")
