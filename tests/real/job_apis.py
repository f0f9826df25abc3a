"""REST and gRPC of one control plane side by side, to hold the answers of both against each other."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpc import aio
from starlette.types import ASGIApp

from stoker.api.http.app import create_app
from stoker.brain.domain.access import Role
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Registration
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.gen.job_pb2_grpc import JobServiceStub
from tests.api.http.plane import Reply, asgi_ask
from tests.real.rpc_stage import RpcStage, problem_of, rpc_stage, shows

JOBS: Final = "/api/v1/jobs"


@dataclass
class JobApis:
    """Tokens: an admin's, a user's and a viewer's of tenant `mine`, a user's of tenant `theirs`, an agent's."""

    stage: RpcStage
    app: ASGIApp
    stub: JobServiceStub
    admin: str
    user: str
    viewer: str
    stranger: str
    agent: str

    async def rest(self, token: str, method: str, path: str, body: object = None, **headers: str) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        sent = {"host": "127.0.0.1:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if token:
            sent["authorization"] = f"Bearer {token}"
        return await asgi_ask(self.app, method, path, data, sent)

    async def submit(self, token: str, *jobs: pb.NewJob, key: str | None = None) -> pb.SubmitResponse:
        request = pb.SubmitRequest(jobs=jobs, idempotency_key=key)
        return await self.stub.Submit(request, metadata=shows(token))

    async def get(self, token: str, job_id: str) -> pb.Job:
        (job,) = (await self.stub.Get(pb.GetRequest(id=job_id), metadata=shows(token))).jobs
        return job

    async def list(self, token: str, **wanted: Any) -> pb.ListResponse:  # noqa: ANN401  # fields of a message
        return await self.stub.List(pb.ListRequest(**wanted), metadata=shows(token))

    async def cancel(self, token: str, job_id: str) -> pb.CancelResponse:
        return await self.stub.Cancel(pb.CancelRequest(id=job_id), metadata=shows(token))


@asynccontextmanager
async def job_apis(folder: Path) -> AsyncIterator[JobApis]:
    """With two nodes of four GPUs, which run nothing."""
    async with rpc_stage(folder, open_to_owner=False) as stage:
        mine, theirs = await stage.tenant("mine"), await stage.tenant("theirs")
        for node in ("n1", "n2"):
            gpus = tuple(Gpu(uuid=GpuUuid(f"{node}-{i}"), index=i, model="V100", memory_mb=16_384) for i in range(4))
            inventory = Inventory(
                boot_id="b", address="a", gpus=gpus, cpus=64, memory_mb=64_000, labels={"zone": "a", "disk": "ssd"}
            )
            await stage.control.sessions.register(Registration(node=NodeName(node), inventory=inventory))
        yield JobApis(
            stage=stage,
            app=create_app(stage.control),
            stub=JobServiceStub(stage.channel),
            admin=await stage.token(Role.ADMIN, user="root"),
            user=await stage.token(Role.USER, mine, user="anna"),
            viewer=await stage.token(Role.VIEWER, mine),
            stranger=await stage.token(Role.USER, theirs, user="bob"),
            agent=await stage.token(Role.AGENT),
        )


def message_of(body: Mapping[str, Any]) -> pb.NewJob:
    """The job that a body of REST means, as a message."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        match name, value:
            case "command", str():
                fields["shell"] = value
            case "command", _:
                fields["argv"] = value
            case "priority", str():
                fields["priority_word"] = value
            case (("after" | "exclude" | "tolerate"), str()):
                fields[name] = [value]
            case "class", _:
                fields["job_class"] = value
            case _:
                fields[name] = value
    return pb.NewJob(**fields)


def problem_in(reply: Reply) -> dict[str, Any]:
    assert reply.status >= 400, reply.body
    found: dict[str, Any] = reply.json
    return found


async def problem_from(call: object) -> dict[str, Any]:
    """The problem that a call of gRPC is refused with."""
    try:
        answer = await call  # type: ignore[misc]  # a call is awaitable, which its types don't say
    except aio.AioRpcError as fault:
        return problem_of(fault)
    raise AssertionError(f"not refused: {answer}")
