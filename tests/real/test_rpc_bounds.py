"""Whom does the gRPC listener turn away before anything is asked: other accounts, wrong tokens, those in a hurry?"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.adapters.authority import Authority
from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.api.rpc import callers as live_callers
from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.units import Instant
from stoker.control import rate_limit as live_rates
from stoker.control.audit_actions import AuditAction
from stoker.control.audit_trail import AuditTrail
from stoker.control.settings import HttpSettings
from stoker.live.rpc import server as rpc_server
from stoker.live.settings.control import ControlSettings
from stoker.live.tls import ServerTls
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen import job_pb2
from stoker.wire.gen.agent_pb2_grpc import SchedulerServiceStub
from stoker.wire.gen.job_pb2_grpc import JobServiceStub
from stoker.wire.socket_owner import GONE
from stoker.wire.token import fresh_token, id_of
from tests.real.rpc_stage import code_of, rpc_stage, shows

REGISTRATION = pb.RegisterRequest(node="n1", boot_id="b", address="127.0.0.1", cpus=4, memory_mb=1_000)
EVERYTHING = job_pb2.ListRequest()


async def refused(call: aio.UnaryUnaryCall[object, object]) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as fault:
        await call
    return fault.value


async def test_where_no_token_is_wanted_the_kernel_is_asked_whose_the_peer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(live_callers, "foreign_peer", lambda uid: seen.append(uid))
    async with rpc_stage(tmp_path) as stage:
        await SchedulerServiceStub(stage.channel).RegisterAgent(REGISTRATION)
        await JobServiceStub(stage.channel).List(EVERYTHING)
    assert seen == [os.geteuid()] * 2


@pytest.mark.parametrize("uid", [54_321, GONE])
async def test_another_account_is_refused_where_no_token_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(live_callers, "tcp_owner", lambda one, other: uid)
    async with rpc_stage(tmp_path) as stage:
        for call in (
            SchedulerServiceStub(stage.channel).RegisterAgent(REGISTRATION),
            JobServiceStub(stage.channel).List(EVERYTHING),
        ):
            fault = await refused(call)
            assert (fault.code(), code_of(fault)) == (grpc.StatusCode.PERMISSION_DENIED, "foreign_user")
        stream = SchedulerServiceStub(stage.channel).Heartbeat()
        with pytest.raises(aio.AioRpcError):
            await stream.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
async def test_a_program_of_another_account_is_refused_in_earnest(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage, relay_as(65_534, stage.port) as port:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            fault = await refused(JobServiceStub(channel).List(EVERYTHING))
        assert code_of(fault) == "foreign_user"
        assert "uid 65534" in (fault.details() or "")
        await JobServiceStub(stage.channel).List(EVERYTHING)


@asynccontextmanager
async def relay_as(uid: int, port: int) -> AsyncIterator[int]:
    """A port whose connections reach the other one by a socket of that account."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        os.seteuid(uid)
        try:
            theirs = socket.socket()
        finally:
            os.seteuid(0)
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_connect(theirs, ("127.0.0.1", port))
        there_reader, there_writer = await asyncio.open_connection(sock=theirs)
        with suppress(OSError):
            await asyncio.gather(carry(reader, there_writer), carry(there_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_with_tokens_wanted_any_account_may_ask_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_callers, "tcp_owner", lambda one, other: 54_321)
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        await JobServiceStub(stage.channel).List(EVERYTHING, metadata=shows(await stage.token(Role.VIEWER)))


async def test_wrong_tokens_by_the_thousand_are_told_to_come_back_and_good_ones_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rates.WrongTokens.__init__, "__kwdefaults__", {"wrong_max": 5})
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        wrong = shows(fresh_token(SystemEntropy()))
        stub = JobServiceStub(stage.channel)
        codes = [code_of(await refused(stub.List(EVERYTHING, metadata=wrong))) for _ in range(5)]
        assert codes == ["token_unknown"] * 5
        fault = await refused(stub.List(EVERYTHING, metadata=wrong))
        assert (fault.code(), code_of(fault)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_wrong_tokens")
        assert 0 < int(str(dict(fault.trailing_metadata() or ())["retry-after"])) <= 60
        await stub.List(EVERYTHING, metadata=shows(await stage.token(Role.VIEWER)))


async def test_a_principal_in_a_hurry_is_told_when_to_come_back_and_an_agent_never(tmp_path: Path) -> None:
    settings = ControlSettings(http=HttpSettings(rate_per_principal=0.5))
    async with rpc_stage(tmp_path, open_to_owner=False, settings=settings) as stage:
        hasty, calm = shows(await stage.token(Role.VIEWER)), shows(await stage.token(Role.VIEWER))
        stub = JobServiceStub(stage.channel)
        await stub.List(EVERYTHING, metadata=hasty)
        fault = await refused(stub.List(EVERYTHING, metadata=hasty))
        assert code_of(fault) == "rate_limited"
        assert dict(fault.trailing_metadata() or ())["retry-after"] == "2"
        await stub.List(EVERYTHING, metadata=calm)
        agent = shows(await stage.token(Role.AGENT))
        for _ in range(5):
            await SchedulerServiceStub(stage.channel).RegisterAgent(REGISTRATION, metadata=agent)


async def test_who_is_turned_away_is_told_to_the_audit_trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str, str]] = []

    def note(trail: AuditTrail, by: Principal, asked: AuditAction, refusal: Refusal, now: Instant) -> None:
        told.append((by, asked.action, refusal.code))

    monkeypatch.setattr(AuditTrail, "refused", note)
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        viewer = await stage.token(Role.VIEWER)
        await refused(SchedulerServiceStub(stage.channel).RegisterAgent(REGISTRATION, metadata=shows(viewer)))
        await refused(JobServiceStub(stage.channel).Submit(job_pb2.SubmitRequest(), metadata=shows(viewer)))
        await refused(JobServiceStub(stage.channel).List(EVERYTHING))
        by = f"token:{id_of(viewer)}"
        joins, submits, asks = told
        assert (joins, submits) == ((by, "node_join", "not_allowed"), (by, "submit", "not_allowed"))
        assert asks == ("nobody", "ask", "token_missing")


async def test_strangers_who_connect_and_say_nothing_keep_nobody_out_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "CONNECTIONS_MAX", 20)
    monkeypatch.setattr(rpc_server, "HANDSHAKE_MS_MAX", 1_500)
    async with rpc_stage(tmp_path) as stage, AsyncExitStack() as crowd:
        mute = [await asyncio.open_connection("127.0.0.1", stage.port) for _ in range(40)]
        for _, writer in mute:
            crowd.callback(writer.close)
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in mute]
        await asyncio.wait(ends[20:], timeout=30)
        assert all(each.done() for each in ends[20:]), "those beyond the bound are closed at once"
        await JobServiceStub(stage.channel).List(EVERYTHING, wait_for_ready=True, timeout=30)
        await asyncio.wait(ends, timeout=30)
        assert all(each.done() for each in ends), "who never began to speak HTTP/2 is closed"
        await asyncio.gather(*ends, return_exceptions=True)


@pytest.mark.parametrize("asks", [False, True])
def test_grpc_is_told_of_a_certificate_once_and_of_the_next_one_too(tmp_path: Path, asks: bool) -> None:
    """Told anew at each handshake it died of strangers who hang up in the middle of theirs: G5."""
    clock = SystemClock()
    tls = ServerTls(Authority(tmp_path, clock.now), "a", lambda: ["localhost"], clock)
    certificates = rpc_server.CertificateNews(tls, asks=asks)
    assert [certificates() is not None for _ in range(3)] == [True, False, False]
    tls.credentials = tls.authority.server("a", ["localhost"])
    assert [certificates() is not None for _ in range(3)] == [True, False, False]


async def test_streams_that_want_no_token_are_bounded_and_give_their_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_callers, "OPEN_STREAMS_MAX", 3)
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        health = health_pb2_grpc.HealthStub(stage.channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            await watch.read()
        reflection = reflection_pb2_grpc.ServerReflectionStub(stage.channel).ServerReflectionInfo()
        await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await reflection.read()).list_services_response.service
        with pytest.raises(aio.AioRpcError) as fault:
            await health.Watch(health_pb2.HealthCheckRequest()).read()
        assert code_of(fault.value) == "too_many_streams"
        await health.Check(health_pb2.HealthCheckRequest())
        watches[0].cancel()
        async with asyncio.timeout(20):
            while True:
                with suppress(aio.AioRpcError):
                    await health.Watch(health_pb2.HealthCheckRequest()).read()
                    break
                await asyncio.sleep(0.05)
