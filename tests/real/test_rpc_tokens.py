"""Which token may do what on the agents' service, and what becomes of a connection whose token is revoked."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.access import Role
from stoker.brain.domain.ids import NodeName
from stoker.control.access import LOOK_MAX_S
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen.agent_pb2_grpc import SchedulerServiceStub
from stoker.wire.token import fresh_token
from tests.real.rpc_stage import RpcStage, code_of, rpc_stage, shows

KEY = "stoker-session"
HeartbeatCall = aio.StreamStreamCall[pb.AgentReport, pb.ControlMessage]


def registration(node: str = "n1", uid: str = "") -> pb.RegisterRequest:
    gpus = [pb.Gpu(uuid=f"{node}-0", index=0, model="V100", memory_mb=16_384)]
    return pb.RegisterRequest(
        node=node, boot_id="b", address="127.0.0.1", gpus=gpus, cpus=4, memory_mb=1_000, agent_uid=uid or node
    )


def finished(node: str) -> pb.TaskFinishedRequest:
    end = pb.TaskEnd(cause="exited", at=1, exit_code=0)
    return pb.TaskFinishedRequest(node=node, key=pb.TaskKey(job=1, attempt=1), end=end)


async def joined(stage: RpcStage, token: str, node: str = "n1", uid: str = "") -> tuple[str, HeartbeatCall]:
    """The session and its stream, once its inventory was taken."""
    stub = SchedulerServiceStub(stage.channel)
    welcome = await stub.RegisterAgent(registration(node, uid), metadata=shows(token))
    call = stub.Heartbeat(metadata=shows(token, (KEY, welcome.session)))
    await call.write(pb.AgentReport(tasks=pb.TaskInventory(boot_id="b")))
    await call.write(pb.AgentReport(beat=pb.Beat(sequence=1)))
    await call.read()
    return welcome.session, call


async def refusal_of(call: "asyncio.Future[object] | aio.Call") -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as refused:
        await call  # type: ignore[misc]  # a call is awaitable, which its types don't say
    return refused.value.code(), code_of(refused.value)


WRONG = pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("", "token_missing"),
        ("stoker_abcdefgh_short", "token_unknown"),
        (fresh_token(SystemEntropy()), "token_unknown"),
        ("x" * 4_000, "token_unknown"),
    ],
    ids=["none", "cut", "another", "long"],
)


@WRONG
async def test_every_call_of_an_agent_wants_a_token(tmp_path: Path, shown: str, code: str) -> None:
    wanted = (grpc.StatusCode.UNAUTHENTICATED, code)
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        stub = SchedulerServiceStub(stage.channel)
        metadata = shows(shown)
        assert await refusal_of(stub.RegisterAgent(registration(), metadata=metadata)) == wanted
        assert await refusal_of(stub.TaskFinished(finished("n1"), metadata=metadata)) == wanted
        assert await refusal_of(asyncio.ensure_future(stub.Heartbeat(metadata=metadata).read())) == wanted
        assert await refusal_of(asyncio.ensure_future(stub.Logs(metadata=metadata).read())) == wanted
        assert not stage.control.committer.state.nodes


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.ADMIN])
async def test_a_person_can_register_no_agent_not_even_an_admin(tmp_path: Path, role: Role) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        metadata = shows(await stage.token(role))
        stub = SchedulerServiceStub(stage.channel)
        for call in (
            stub.RegisterAgent(registration(), metadata=metadata),
            stub.TaskFinished(finished("n1"), metadata=metadata),
            asyncio.ensure_future(stub.Heartbeat(metadata=metadata).read()),
            asyncio.ensure_future(stub.Logs(metadata=metadata).read()),
        ):
            assert await refusal_of(call) == (grpc.StatusCode.PERMISSION_DENIED, "not_allowed")
        assert not stage.control.committer.state.nodes


async def test_two_tokens_in_one_call_are_none(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        agent, admin = await stage.token(Role.AGENT), await stage.token(Role.ADMIN)
        metadata = shows(agent, ("authorization", f"Bearer {admin}"))
        call = SchedulerServiceStub(stage.channel).RegisterAgent(registration(), metadata=metadata)
        assert await refusal_of(call) == (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")


async def test_health_and_reflection_are_open(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        health = await health_pb2_grpc.HealthStub(stage.channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(stage.channel).ServerReflectionInfo(iter([request]))
        assert (await call.read()).list_services_response.service
        call.cancel()


async def test_a_revoked_token_ends_both_streams_at_once_and_leaves_the_nodes_work_alone(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        token, other = await stage.token(Role.AGENT), await stage.token(Role.AGENT)
        session, beats = await joined(stage, token)
        _, others = await joined(stage, other, "n2")
        logs = SchedulerServiceStub(stage.channel).Logs(metadata=shows(token, (KEY, session)))
        reads = [asyncio.ensure_future(beats.read()), asyncio.ensure_future(logs.read())]
        await asyncio.sleep(0.1)
        await stage.revoke(token)
        async with asyncio.timeout(LOOK_MAX_S / 3):  # not only when it is looked at again
            for read in reads:
                assert await refusal_of(read) == (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")
        assert not stage.control.sessions.connected(NodeName("n1"))
        assert NodeName("n1") in stage.control.committer.state.nodes
        await others.write(pb.AgentReport(beat=pb.Beat(sequence=2)))
        assert (await others.read()).beat.sequence == 2
        stub = SchedulerServiceStub(stage.channel)
        metadata = shows(token, (KEY, session))
        unknown = (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")
        assert await refusal_of(stub.TaskFinished(finished("n1"), metadata=metadata)) == unknown
        others.cancel()


async def test_a_log_stream_ends_with_its_token_also_where_no_other_stream_was_opened(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        token = await stage.token(Role.AGENT)
        stub = SchedulerServiceStub(stage.channel)
        welcome = await stub.RegisterAgent(registration(), metadata=shows(token))
        read = asyncio.ensure_future(stub.Logs(metadata=shows(token, (KEY, welcome.session))).read())
        await asyncio.sleep(0.1)
        await stage.revoke(token)
        assert await refusal_of(read) == (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")


async def test_a_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        token = await stage.token(Role.AGENT, lasts_s=1.5)
        _, beats = await joined(stage, token)
        async with asyncio.timeout(10):
            read = asyncio.ensure_future(beats.read())
            assert await refusal_of(read) == (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")


async def test_a_session_is_of_the_token_that_opened_it(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        token, other = await stage.token(Role.AGENT), await stage.token(Role.AGENT)
        session, beats = await joined(stage, token)
        stub = SchedulerServiceStub(stage.channel)
        metadata = shows(other, (KEY, session))
        unknown = (grpc.StatusCode.FAILED_PRECONDITION, "session_unknown")
        assert await refusal_of(asyncio.ensure_future(stub.Heartbeat(metadata=metadata).read())) == unknown
        assert await refusal_of(asyncio.ensure_future(stub.Logs(metadata=metadata).read())) == unknown
        assert await refusal_of(stub.TaskFinished(finished("n1"), metadata=metadata)) == unknown
        await beats.write(pb.AgentReport(beat=pb.Beat(sequence=2)))
        assert (await beats.read()).beat.sequence == 2
        beats.cancel()


async def test_an_agent_tells_no_end_of_another_nodes_task(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        token = await stage.token(Role.AGENT)
        session, beats = await joined(stage, token)
        _, others = await joined(stage, token, "n2")
        stub = SchedulerServiceStub(stage.channel)
        metadata = shows(token, (KEY, session))
        forbidden = (grpc.StatusCode.PERMISSION_DENIED, "not_allowed")
        assert await refusal_of(stub.TaskFinished(finished("n2"), metadata=metadata)) == forbidden
        no_session = (grpc.StatusCode.FAILED_PRECONDITION, "session_unknown")
        assert await refusal_of(stub.TaskFinished(finished("n1"), metadata=shows(token))) == no_session
        await stub.TaskFinished(finished("n1"), metadata=metadata)
        beats.cancel()
        others.cancel()


async def test_another_token_from_another_folder_does_not_get_a_connected_nodes_name(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        mine, theirs = await stage.token(Role.AGENT), await stage.token(Role.AGENT)
        _, beats = await joined(stage, mine, uid="mine")
        stub = SchedulerServiceStub(stage.channel)
        taken = (grpc.StatusCode.FAILED_PRECONDITION, "node_name_taken")
        assert await refusal_of(stub.RegisterAgent(registration(uid="theirs"), metadata=shows(theirs))) == taken
        assert stage.control.sessions.connected(NodeName("n1"))
        # The same agent with its next token, while its old connection isn't known to be dead.
        _, again = await joined(stage, theirs, uid="mine")
        assert await refusal_of(asyncio.ensure_future(beats.read())) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "session_replaced",
        )
        again.cancel()


@pytest.mark.parametrize("name", ["", "a b", "../n1", "n1\n", "x" * 64, "n\x1b[31m", "nöd"])
async def test_an_agent_joins_under_no_name_that_a_table_or_a_path_would_mind(tmp_path: Path, name: str) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        metadata = shows(await stage.token(Role.AGENT))
        call = SchedulerServiceStub(stage.channel).RegisterAgent(registration(name, "u"), metadata=metadata)
        assert await refusal_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed_message")
        assert not stage.control.committer.state.nodes


async def test_no_token_comes_into_the_log(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, open_to_owner=False) as stage:
        good, bad = await stage.token(Role.AGENT), fresh_token(SystemEntropy())
        _, beats = await joined(stage, good)
        await refusal_of(SchedulerServiceStub(stage.channel).RegisterAgent(registration(), metadata=shows(bad)))
        beats.cancel()
        said = stage.said.getvalue().decode()
        assert "agent_connected" in said
        assert good[16:] not in said
        assert bad[16:] not in said


async def test_without_tokens_wanted_whoever_sends_none_joins_and_one_that_is_sent_must_be_good(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        _, beats = await joined(stage, "")
        beats.cancel()
        bad = shows(fresh_token(SystemEntropy()))
        unknown = (grpc.StatusCode.UNAUTHENTICATED, "token_unknown")
        call = SchedulerServiceStub(stage.channel).RegisterAgent(registration("n2"), metadata=bad)
        assert await refusal_of(call) == unknown
