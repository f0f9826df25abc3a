"""The gRPC link keeps the rules of the Link port, against the real server on a socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from grpc import aio

from stoker.adapters.clock import SystemClock
from stoker.agent.identity import root_shown
from stoker.agent.link_grpc import _REFUSALS, GrpcLink
from stoker.agent.ports import LinkDown
from stoker.brain.domain.errors import StokerError
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.control.settings import GrpcSettings
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen import agent_pb2_grpc
from tests.contracts import link as contract
from tests.rig.sim_history import SimHistory
from tests.rig.sim_log import SimDisk, SimLog
from tests.rig.sim_ports import Notes, SimClock, SimEntropy


@dataclass
class GrpcBench:
    control: LiveControlPlane
    link: GrpcLink
    server: AsyncExitStack = field(repr=False)

    async def go_away(self) -> None:
        await self.server.aclose()


@asynccontextmanager
async def serving() -> AsyncIterator[GrpcBench]:
    clock, entropy = SystemClock(), SimEntropy(1)
    world = ControlPorts(clock=clock, entropy=entropy, telemetry=Notes(SimClock(), "control"))
    disk = SimDisk()
    log = SimLog(disk, clock, entropy)
    await log.open()
    control = await recover_control(ControlSettings(), log, SimHistory(disk.archive, clock), world)
    async with active(control), AsyncExitStack() as server:
        port = await server.enter_async_context(RpcServer(GrpcSettings(host="127.0.0.1", port=0), control))
        yield GrpcBench(control, GrpcLink([f"127.0.0.1:{port}"]), server)


@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
async def test_the_grpc_link_keeps_the_rule_that(rule: Callable[[contract.Bench], Awaitable[None]]) -> None:
    async with serving() as bench:
        await rule(bench)


async def test_the_address_that_answers_is_used() -> None:
    async with serving() as bench:
        (address,) = bench.link.addresses.all
        link = GrpcLink(["127.0.0.1:1", address])
        session = await link.connect(contract.registration())
        await session.close()


async def test_when_nobody_answers_every_address_is_named_with_its_reason() -> None:
    with pytest.raises(LinkDown, match=r"127\.0\.0\.1:1: unavailable.*; 127\.0\.0\.1:2: unavailable"):
        await GrpcLink(["127.0.0.1:1", "127.0.0.1:2"]).connect(contract.registration())


async def test_an_agent_that_asks_in_plain_text_where_tls_is_spoken_is_told_how_to_join() -> None:
    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As a TLS server does that is sent anything else."""
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(LinkDown, match=r"if it speaks TLS, .* `stoker agent join`"):
            await GrpcLink([f"127.0.0.1:{port}"]).connect(contract.registration())


async def test_a_node_that_joins_where_no_tls_is_spoken_is_told_so() -> None:
    token = f"stoker_aaaaaaaa_{'x' * 43}.{'y' * 42}A"
    async with serving() as bench:
        (address,) = bench.link.addresses.all
        with pytest.raises(StokerError, match=rf"{address} speaks no TLS") as caught:
            await asyncio.to_thread(root_shown, [address], token)
    assert caught.value.refusal.code == "no_server"


async def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    """What a control plane in SIGSTOP looks like."""
    given_up, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await given_up.wait()
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LinkDown):
            await GrpcLink([f"127.0.0.1:{port}"], register_timeout_s=0.5).connect(contract.registration())
        given_up.set()
        await closed.wait()


async def test_an_instruction_that_makes_no_sense_breaks_the_stream_by_name() -> None:
    """A control plane of another version must be noticed, not half obeyed."""
    over = asyncio.Event()

    class Odd(agent_pb2_grpc.SchedulerServiceServicer):
        async def RegisterAgent(self, request: pb.RegisterRequest, context: object) -> pb.RegisterResponse:
            return pb.RegisterResponse(epoch=1, session="s")

        async def Heartbeat(
            self, request_iterator: AsyncIterator[pb.AgentReport], context: object
        ) -> AsyncIterator[pb.ControlMessage]:
            yield pb.ControlMessage(start=pb.Start(key=pb.TaskKey(job=1, attempt=1)))
            await over.wait()

        async def TaskFinished(self, request: pb.TaskFinishedRequest, context: object) -> pb.TaskFinishedResponse:
            return pb.TaskFinishedResponse()

        async def Logs(
            self, request_iterator: AsyncIterator[pb.LogChunk], context: object
        ) -> AsyncIterator[pb.LogRequest]:
            await over.wait()
            yield pb.LogRequest()

    server = aio.server()
    agent_pb2_grpc.add_SchedulerServiceServicer_to_server(Odd(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        session = await GrpcLink([f"127.0.0.1:{port}"]).connect(contract.registration())
        assert session.heartbeat_s == 5
        with pytest.raises(LinkDown, match="`shell` or `argv`"):
            await anext(session.instructions())
        await session.close()
    finally:
        over.set()
        await server.stop(0)


def test_a_passing_trouble_never_counts_as_a_refusal() -> None:
    assert grpc.StatusCode.UNAVAILABLE not in _REFUSALS
    assert grpc.StatusCode.DEADLINE_EXCEEDED not in _REFUSALS
