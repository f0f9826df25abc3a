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
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.control.settings import GrpcSettings
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.wire import agent_codec as codec
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


class Peer(agent_pb2_grpc.SchedulerServiceServicer):
    """A control plane that says which messages came."""

    def __init__(self, *, batches: bool) -> None:
        self.batches = batches
        self.over = asyncio.Event()
        self.reports: list[int] = []
        """How many reports each message had."""
        self.ends: list[int] = []

    async def RegisterAgent(self, request: pb.RegisterRequest, context: object) -> pb.RegisterResponse:
        return pb.RegisterResponse(epoch=1, session="s", batches=self.batches)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.AgentReport], context: aio.ServicerContext
    ) -> AsyncIterator[pb.ControlMessage]:
        stops = [pb.ControlMessage(stop=pb.Stop(key=pb.TaskKey(job=job, attempt=1))) for job in (1, 2)]
        assert ("stoker-batches", "1") in (context.invocation_metadata() or ())
        stops[0].more.append(stops[1])
        yield stops[0]
        async for report in request_iterator:
            self.reports.append(1 + len(report.more))
        await self.over.wait()

    async def TaskFinished(self, request: pb.TaskFinishedRequest, context: object) -> pb.TaskFinishedResponse:
        self.ends.append(1 + len(request.more))
        return pb.TaskFinishedResponse(epoch=1)

    async def Logs(self, request_iterator: AsyncIterator[pb.LogChunk], context: object) -> AsyncIterator[pb.LogRequest]:
        await self.over.wait()
        yield pb.LogRequest()


@pytest.mark.parametrize("batches", [True, False], ids=["of this version", "older"])
async def test_a_control_plane_gets_several_reports_and_ends_in_one_message_only_if_it_reads_them(
    batches: bool,
) -> None:
    """An older one would ignore all but the first, and a lost end would hold its GPUs for ever."""
    peer, server = Peer(batches=batches), aio.server()
    agent_pb2_grpc.add_SchedulerServiceServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        session = await GrpcLink([f"127.0.0.1:{port}"]).connect(contract.registration())
        instructions = session.instructions()
        assert [(await anext(instructions)).key.job for _ in range(2)] == [1, 2]
        await session.send(*(Beat(sequence=number) for number in range(3)))
        await session.finish(*(contract.finished(TaskKey(JobId(job), 1, 0)) for job in range(1, 4)))
        assert peer.ends == ([3] if batches else [1, 1, 1])
        await contract.until(lambda: sum(peer.reports) == 3)
        assert peer.reports == ([3] if batches else [1, 1, 1])
        await session.close()
    finally:
        peer.over.set()
        await server.stop(0)


async def test_an_agent_that_does_not_read_several_instructions_of_a_message_gets_each_by_itself() -> None:
    async with serving() as bench, aio.insecure_channel(bench.link.addresses.all[0]) as channel:
        stub = agent_pb2_grpc.SchedulerServiceStub(channel)
        welcome = await stub.RegisterAgent(codec.encode_registration(contract.registration()))
        call = stub.Heartbeat(metadata=aio.Metadata(("stoker-session", welcome.session)))
        jobs = [await contract.submit(bench, gpus=0) for _ in range(3)]
        await call.write(pb.AgentReport(tasks=pb.TaskInventory(boot_id="b")))
        came = [await call.read() for _ in jobs]
        assert [message.start.key.job for message in came] == jobs
        assert not any(message.more for message in came)
        call.cancel()


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
