"""gRPC server of a control plane, for agents, clients and peers.

One grpc.aio server on the process's own event loop, with the standard health and reflection services.

Rules: G1  a port that another program has is refused (gRPC's own default would share it in silence)
       G2  keepalive pings of agents are welcome however often: they tell a dead path from a quiet one
       G3  strangers are bounded: connections in all, the time in which one must begin to speak HTTP/2, calls of one
           connection at once
"""

from typing import Final

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from stoker.api.listen import connections_max, why_not
from stoker.api.rpc.callers import Callers, Gate
from stoker.api.rpc.jobs import JobService
from stoker.control.settings import GrpcSettings
from stoker.live.control_plane import LiveControlPlane
from stoker.live.rpc.agents import AgentService
from stoker.live.rpc.replication import FRAME_BYTES_MAX, ReplicationService
from stoker.wire.gen import (
    agent_pb2,
    agent_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    replication_pb2,
    replication_pb2_grpc,
)

MESSAGE_BYTES_MAX: Final = 16 << 20
"""An inventory of 10,000 tasks is about 1 MiB."""
CONNECTIONS_MAX: Final = 5_000
"""Or a quarter of the files that this process may open: an agent needs one, and so does a client."""
FILES_PART: Final = 4
HANDSHAKE_MS_MAX: Final = 10_000
"""gRPC's own default is two minutes."""
CALLS_MAX: Final = 256
"""Of one connection at once; a client waits with the next ones."""
IDLE_MS_MAX: Final = 120_000
"""A connection without a call is closed then; clients open another by themselves. An agent always has a call."""
STOP_GRACE_S: Final = 0.5
"""For ends that are being made durable. Streams are closed before, so nothing else is left."""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
    ("grpc.max_concurrent_streams", CALLS_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class RpcServer:
    """gRPC server whose listener is taken at once, and which serves from `async with` entry to exit."""

    def __init__(
        self, settings: GrpcSettings, control: LiveControlPlane, peers: ReplicationService | None = None
    ) -> None:
        """`peers`: for other control planes; None = this is the only one.

        Raises: StokerError `port_in_use` or `cannot_listen`.
        """
        self._sessions = control.sessions
        callers = Callers(settings, control)
        bounds = (
            ("grpc.max_allowed_incoming_connections", connections_max(CONNECTIONS_MAX, FILES_PART)),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        )
        self._server = aio.server(options=(*_OPTIONS, *bounds), interceptors=(Gate(callers),))
        agent_pb2_grpc.add_SchedulerServiceServicer_to_server(AgentService(control, callers), self._server)
        job_pb2_grpc.add_JobServiceServicer_to_server(JobService(control, callers), self._server)
        if peers is not None:
            replication_pb2_grpc.add_ReplicationServiceServicer_to_server(peers, self._server)
        self._health = _add_health(self._server, for_peers=peers is not None)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port: int = self._server.add_insecure_port(f"{host}:{settings.port}")
        except RuntimeError as fault:
            raise why_not(settings.host, settings.port, "grpc") from fault
        callers.port = self.port

    async def __aenter__(self) -> int:
        """The port."""
        await self._server.start()
        return self.port

    async def __aexit__(self, *_: object) -> None:
        """Streams end first, each by a status, then the server."""
        await self._health.enter_graceful_shutdown()
        self._sessions.close()
        await self._server.stop(STOP_GRACE_S)


def _add_health(server: aio.Server, *, for_peers: bool) -> health_aio.HealthServicer:
    ours = (agent_pb2, job_pb2, health_pb2, *((replication_pb2,) if for_peers else ()))
    services = (service for module in ours for service in module.DESCRIPTOR.services_by_name.values())
    names = (reflection.SERVICE_NAME, *(service.full_name for service in services))
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(names, server)
    return health
