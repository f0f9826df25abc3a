"""A task that writes as fast as it can harms nobody: not its node's runner, not its agent, not the disk.

Concerns issue "must show" 3 of daily work; measured by hand at 1,100 MB/s on two cores.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.agent.daemon import Daemon
from stoker.agent.ports import AgentPorts
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Start, Stop
from stoker.brain.domain.report import Beat, LogRequest, Report, Started
from tests.agent.twins import TwinControl, TwinSession, key, registration
from tests.contracts.runner import Listener, agent_on
from tests.real.runner_node import PATH, RealNode, node_in
from tests.rig.sim_ports import Notes, SimClock

MIB = 1 << 20
HEAD_BYTES = 2 * MIB
TAIL_BYTES = 4 * MIB
WRITTEN_BYTES = 400_000_000
LINE = b"x" * 99 + b"\n"
FLOOD = (
    "import sys; block = (b'x' * 99 + b'\\\\n') * 1_000; out = sys.stdout.buffer; out.write(b'first\\\\n'); "
    "[out.write(block) for _ in range(4_000)]; out.write(b'last\\\\n')"
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, head_bytes_max=HEAD_BYTES, tail_bytes_max=TAIL_BYTES) as node:
        yield node


def disk_bytes(node: RealNode) -> int:
    total = 0
    for path in (node.folder / "agent" / "output").rglob("*"):
        with suppress(FileNotFoundError):  # dropped meanwhile
            total += path.stat().st_blocks * 512
    return total


async def flooded(node: RealNode, agent: Listener, **start: object) -> tuple[list[float], list[int]]:
    """Until the flood of 400 MB is over: how long other tasks took, and what it occupied on disk meanwhile."""
    await agent.runner.start(node.shell(key(1), f'exec python3 -c "{FLOOD}"', **start))
    await agent.running(key(1))
    took_s, occupied = [], []
    for job in range(2, 1_000):
        began = time.monotonic()
        await agent.runner.start(node.shell(key(job), f"echo {job}"))
        await agent.end(key(job))
        took_s.append(time.monotonic() - began)
        occupied.append(disk_bytes(node))
        assert (await agent.runner.read_log(key(job), 0, 100)).data == b"%d\n" % job
        if agent.overs(key(1)):
            return took_s, occupied
    raise AssertionError("the flood didn't end")


@pytest.mark.parametrize("start", [{}, {"output": "/dev/null"}], ids=["plain", "with a file"])
async def test_a_flood_ends_with_head_and_tail_kept_and_nobody_waits_for_it(
    node: RealNode, start: dict[str, str]
) -> None:
    async with agent_on(node) as agent:
        took_s, occupied = await flooded(node, agent, **start)
        assert (await agent.end(key(1))).clean
        # Whatever this machine is busy with: had they waited for the flood, a few at most would have ended meanwhile.
        assert len(took_s) >= 10
        assert max(took_s) < sum(took_s) / 3
        assert max(occupied) <= HEAD_BYTES + 3 * TAIL_BYTES + MIB
        size = len(b"first\nlast\n") + WRITTEN_BYTES
        head = await agent.runner.read_log(key(1), 0, 6 + len(LINE))
        assert (head.data, head.size, head.ended) == (b"first\n" + LINE, size, True)
        tail = await agent.runner.read_log(key(1), -TAIL_BYTES, 2 * TAIL_BYTES)
        assert len(tail.data) == TAIL_BYTES, "as much of the end is kept as was promised"
        assert tail.data.endswith(LINE + b"last\n")
        assert node.rss_kb() < 20_000


class TimedSession(TwinSession):
    """Notes when each sign of life was sent."""

    def __init__(self, control: TwinControl, epoch: Epoch) -> None:
        super().__init__(control, epoch)
        self.beats_s: list[float] = []

    async def send(self, report: Report) -> None:
        await super().send(report)
        if isinstance(report, Beat):
            self.beats_s.append(time.monotonic())


class TimedControl(TwinControl):
    def session_of(self) -> TwinSession:
        return TimedSession(self, self.epoch)


async def test_signs_of_life_are_on_time_while_a_flood_is_read_by_twenty(node: RealNode) -> None:
    """The real daemon on the real runner; only the control plane is a twin. It takes what it asked for, and asks
    again."""
    control = TimedControl()
    control.heartbeat_s = 0.5
    ports = AgentPorts(
        link=control,
        runner=node.agent(),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        telemetry=Notes(SimClock(), "node-1"),
    )
    agent = asyncio.create_task(Daemon(registration(1), ports, node_env={"PATH": PATH}).run())
    try:
        await until(lambda: control.sessions and control.session.reports)
        session = control.session
        assert isinstance(session, TimedSession)
        control.tell(flood())
        await until(lambda: any(isinstance(report, Started) for report in session.reports))
        for reader in range(20):
            session.wanted.put_nowait(LogRequest(request=reader, key=key(1), offset=0, limit=MIB, wait_ms=10_000))
        answered, read_to = 0, dict.fromkeys(range(20), 0)
        while answered < 100 or len(session.beats_s) < 7:
            await asyncio.sleep(0.005)
            for chunk in control.chunks:
                assert not chunk.error
                assert not chunk.ended
                assert chunk.offset >= read_to[chunk.request], "no reader is sent back"
                offset = read_to[chunk.request] = chunk.offset + len(chunk.data)
                request = LogRequest(request=chunk.request, key=key(1), offset=offset, limit=MIB, wait_ms=10_000)
                session.wanted.put_nowait(request)
            answered += len(control.chunks)
            control.chunks.clear()
        gaps = [after - before for before, after in zip(session.beats_s, session.beats_s[1:], strict=False)]
        assert max(gaps) < 3 * control.heartbeat_s, "else the node would be called unreachable"
        control.tell(Stop(key=key(1), epoch=Epoch(1), grace_ms=0))
        await until(lambda: control.finished)
    finally:
        agent.cancel()
        await asyncio.wait({agent})


def flood() -> Start:
    return Start(
        key=key(1), epoch=Epoch(1), command="exec yes", env={}, workdir=os.getcwd(), gpus=(), cpus=1, memory_mb=0
    )


async def until(true: object) -> None:
    assert callable(true)
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)
