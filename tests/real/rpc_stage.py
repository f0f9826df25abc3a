"""A control plane with its gRPC listener on a socket, in the test's own process, and tokens for it."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.logs import StructuredTelemetry
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.brain.domain.access import LOCAL, Role, Token
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.tenant import NO_TENANT, Tenant
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.commands import CreateToken, PutTenant, RevokeToken
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.control.settings import GrpcSettings
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.wire.gen import agent_pb2, agent_pb2_grpc
from stoker.wire.token import bearer, digest_of, fresh_token, id_of


@dataclass
class RpcStage:
    """One control plane and a channel to it."""

    control: LiveControlPlane
    port: int
    channel: aio.Channel
    said: io.BytesIO
    """The control plane's log."""

    async def token(
        self, role: Role, tenant: TenantName = DEFAULT_TENANT, *, user: str = "", lasts_s: float = 0
    ) -> str:
        """A new one. `lasts_s` 0 = it doesn't expire."""
        text = fresh_token(self.control.entropy)
        expires = Instant(self.control.committer.now() + int(lasts_s * 1_000)) if lasts_s else NEVER
        bound = tenant if role in (Role.USER, Role.LEAD, Role.VIEWER) else NO_TENANT
        token = Token(id=id_of(text), digest=digest_of(text), role=role, tenant=bound, user=user, expires_at=expires)
        await self.control.committer.ask(CreateToken(by=LOCAL, token=token))
        return text

    async def revoke(self, text: str) -> None:
        await self.control.committer.ask(RevokeToken(by=LOCAL, id=id_of(text)))

    async def tenant(self, name: str, parent: TenantName = NO_TENANT) -> TenantName:
        tenant = Tenant(name=TenantName(name), parent=parent)
        await self.control.committer.ask(PutTenant(by=LOCAL, tenant=tenant, create=True))
        return tenant.name


@asynccontextmanager
async def rpc_stage(
    folder: Path, *, open_to_owner: bool = True, settings: ControlSettings | None = None
) -> AsyncIterator[RpcStage]:
    clock, said = SystemClock(), io.BytesIO()
    world = ControlPorts(clock=clock, entropy=SystemEntropy(), telemetry=StructuredTelemetry(clock, stream=said))
    log, history = SqliteLog(folder), SqliteHistory(folder)
    await log.open()
    try:
        control = await recover_control(settings or ControlSettings(), log, history, world, open_to_owner=open_to_owner)
        async with active(control), RpcServer(GrpcSettings(port=0), control) as port:
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                yield RpcStage(control, port, channel, said)
    finally:
        await history.close()
        await log.close()


def shows(token: str, *more: tuple[str, str]) -> aio.Metadata:
    """Metadata that sends a token; an empty one sends none."""
    return aio.Metadata(*((("authorization", bearer(token)),) if token else ()), *more)


def code_of(fault: aio.AioRpcError) -> str:
    return str(dict(fault.trailing_metadata() or ())["stoker-code"])


def problem_of(fault: aio.AioRpcError) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dict(fault.trailing_metadata() or ())["stoker-problem"])
    return found


def node_port(address: str, roots: bytes) -> int:
    """The port at which the control plane at `address` wants certificates."""
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        return int(agent_pb2_grpc.JoinServiceStub(channel).Locate(agent_pb2.LocateRequest(), timeout=10).node_port)
