"""The simulated link keeps the rules of the Link port, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from stoker.live.control_plane import LiveControlPlane
from tests.contracts import link as contract
from tests.rig.assembly import ControlProcess
from tests.rig.sim_link import SimLink
from tests.rig.sim_log import SimDisk
from tests.rig.sim_network import SimNetwork
from tests.rig.sim_ports import SimClock, SimEntropy
from tests.rig.virtual_loop import run_virtual


@dataclass
class SimBench:
    link: SimLink
    process: ControlProcess

    @property
    def control(self) -> LiveControlPlane:
        return self.process.parts

    async def go_away(self) -> None:
        await self.process.kill()


@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
def test_the_simulated_link_keeps_the_rule_that(rule: Callable[[contract.Bench], Awaitable[None]]) -> None:
    async def story() -> None:
        clock, entropy = SimClock(), SimEntropy(1)
        network = SimNetwork(clock, entropy)
        process = ControlProcess(SimDisk(), network, clock, entropy)
        await process.start()
        try:
            await rule(SimBench(SimLink(network, contract.NODE), process))
        finally:
            await process.kill()
            await asyncio.sleep(10)

    run_virtual(story)
