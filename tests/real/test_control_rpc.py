"""The agents' gRPC service seen from outside: health, reflection, and statuses for what is wrong."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.live.rpc import server
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen.agent_pb2_grpc import SchedulerServiceStub
from tests.real.rpc_stage import code_of, problem_of, rpc_stage

KEY = "stoker-session"


def registration(node: str = "n1") -> pb.RegisterRequest:
    gpus = [pb.Gpu(uuid=f"{node}-0", index=0, model="V100", memory_mb=16_384)]
    return pb.RegisterRequest(node=node, boot_id="b", address="127.0.0.1", gpus=gpus, cpus=4, memory_mb=1_000)


async def test_the_standard_health_and_reflection_services_answer(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        channel = stage.channel
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {"stoker.v1.SchedulerService", "grpc.health.v1.Health"} <= names
        call.cancel()


async def test_a_refusal_arrives_with_its_code_its_words_and_its_hint(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        channel = stage.channel
        stub = SchedulerServiceStub(channel)
        twice = registration()
        twice.gpus.append(twice.gpus[0])
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.RegisterAgent(twice)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert code_of(refused.value) == "bad_inventory"
        assert "n1" in (refused.value.details() or "")
        problem = problem_of(refused.value)
        assert (problem["code"], problem["status"]) == ("bad_inventory", 400)
        assert problem["message"] in (refused.value.details() or "")
        assert problem["hint"] in (refused.value.details() or "")


async def test_a_message_that_makes_no_sense_is_refused_and_hurts_nobody(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        channel = stage.channel
        stub = SchedulerServiceStub(channel)
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.TaskFinished(pb.TaskFinishedRequest(node="n1"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        welcome = await stub.RegisterAgent(registration())
        call = stub.Heartbeat(metadata=aio.Metadata((KEY, welcome.session)))
        await call.write(pb.AgentReport(started=pb.Started(key=pb.TaskKey(job=-1))))
        with pytest.raises(aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.RegisterAgent(registration())).session != welcome.session


async def test_a_stream_of_an_unknown_session_ends_with_the_advice_to_register(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        channel = stage.channel
        for metadata in (aio.Metadata(), aio.Metadata((KEY, "gone"))):
            stub = SchedulerServiceStub(channel)
            for call in (stub.Heartbeat(metadata=metadata), stub.Logs(metadata=metadata)):
                with pytest.raises(aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                assert "register" in (refused.value.details() or "")


async def test_an_agent_that_says_goodbye_gets_a_clean_end(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        control, channel = stage.control, stage.channel
        stub = SchedulerServiceStub(channel)
        welcome = await stub.RegisterAgent(registration())
        call = stub.Heartbeat(metadata=aio.Metadata((KEY, welcome.session)))
        await call.write(pb.AgentReport(tasks=pb.TaskInventory(boot_id="b")))
        await call.write(pb.AgentReport(beat=pb.Beat(sequence=1)))
        message = await call.read()
        assert isinstance(message, pb.ControlMessage)
        assert (message.beat.sequence, message.beat.epoch) == (1, welcome.epoch)
        await call.done_writing()
        assert await call.read() is aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        async with asyncio.timeout(30):
            while control.sessions.connected("n1"):  # type: ignore[arg-type]  # a node's name in plain text
                await asyncio.sleep(0.01)


async def test_a_stopping_control_plane_ends_streams_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, not only once the grace is over that calls have."""
    monkeypatch.setattr(server, "STOP_GRACE_S", 50.0)
    async with rpc_stage(tmp_path) as stage:
        channel = stage.channel
        stub = SchedulerServiceStub(channel)
        welcome = await stub.RegisterAgent(registration())
        call = stub.Heartbeat(metadata=aio.Metadata((KEY, welcome.session)))
        await call.write(pb.AgentReport(tasks=pb.TaskInventory(boot_id="b")))
        ending = asyncio.ensure_future(call.code())
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
    async with asyncio.timeout(30):
        assert await ending in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
    assert asyncio.get_running_loop().time() - began < server.STOP_GRACE_S / 2
