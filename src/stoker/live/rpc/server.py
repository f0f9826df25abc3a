"""gRPC servers of a control plane, for clients, agents and peers.

They are grpc.aio servers on the process's own event loop. With TLS there are two: one for everybody, at which clients
show a token and nodes join, and one at which agents and peers show a certificate; gRPC for Python can't leave that to
the caller on one port. Without TLS one serves all.

Rules: G1  a port that another program has is refused (gRPC's own default would share it in silence)
       G2  keepalive pings of agents are welcome however often: they tell a dead path from a quiet one
       G3  strangers are bounded: connections in all, the time in which one must begin to speak HTTP/2, calls of one
           connection at once
       G4  a handshake is answered with the newest certificate; connections that are open stay
       G5  gRPC is told of a certificate once. For each that it is told of it makes its TLS anew, and where it does so
           while handshakes fail, as those of strangers who say nothing, the process dies (seen with grpcio 1.85)
"""

import asyncio
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from stoker.api.listen import connections_max, why_not
from stoker.api.rpc.callers import Callers, Decoding, Gate
from stoker.api.rpc.jobs import JobService
from stoker.control.settings import GrpcSettings
from stoker.live.control_plane import LiveControlPlane
from stoker.live.rpc.agents import AgentService, JoinService
from stoker.live.rpc.replication import FRAME_BYTES_MAX, ReplicationService
from stoker.live.tls import ServerTls
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
    """gRPC servers whose listeners are taken at once, and which serve from `async with` entry to exit."""

    def __init__(
        self,
        settings: GrpcSettings,
        control: LiveControlPlane,
        peers: ReplicationService | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`peers`: for other control planes; None = this is the only one. `tls`: None = all is plain text.

        Raises: StokerError `port_in_use` or `cannot_listen`.
        """
        self._sessions = control.sessions
        callers = Callers(settings, control)
        agents = AgentService(control, callers, tls)
        self._public = _server(Gate(callers), Decoding())
        self._servers = [self._public]
        self.node_port = 0
        """For those who show a certificate; 0 without TLS."""
        with_certificate = self._public
        if tls is not None:
            with_certificate = _server(Decoding())
            self._servers.append(with_certificate)
            credentials = _credentials(tls, asks=True)
            self.node_port = _listen(with_certificate, settings.host, settings.node_port, "grpc.node_port", credentials)
            join = JoinService(control, callers, tls, self.node_port)
            agent_pb2_grpc.add_JoinServiceServicer_to_server(join, self._public)
        agent_pb2_grpc.add_SchedulerServiceServicer_to_server(agents, with_certificate)
        job_pb2_grpc.add_JobServiceServicer_to_server(JobService(control, callers), self._public)
        if peers is not None:
            replication_pb2_grpc.add_ReplicationServiceServicer_to_server(peers, with_certificate)
        self._health = _add_health(self._public, for_peers=peers is not None and tls is None)
        served = None if tls is None else _credentials(tls, asks=False)
        self.port = _listen(self._public, settings.host, settings.port, "grpc", served)
        callers.port = self.port

    async def __aenter__(self) -> int:
        """The port for everybody."""
        for server in self._servers:
            await server.start()
        return self.port

    async def __aexit__(self, *_: object) -> None:
        """Streams end first, each by a status, then the servers."""
        await self._health.enter_graceful_shutdown()
        self._sessions.close()
        await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in self._servers))


def _server(*interceptors: aio.ServerInterceptor) -> aio.Server:
    bounds = (
        ("grpc.max_allowed_incoming_connections", connections_max(CONNECTIONS_MAX, FILES_PART)),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
    )
    return aio.server(options=(*_OPTIONS, *bounds), interceptors=interceptors)


def _listen(server: aio.Server, host: str, port: int, setting: str, credentials: grpc.ServerCredentials | None) -> int:
    """Return the port that was taken (G1). Raises: StokerError `port_in_use` or `cannot_listen`."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as fault:
        raise why_not(host, port, setting) from fault


def _credentials(tls: ServerTls, *, asks: bool) -> grpc.ServerCredentials:
    """The credentials of a listener, which asks for its callers' certificates or for none (G4)."""
    certificates = CertificateNews(tls, asks=asks)
    first = certificates()
    assert first is not None, "nothing was told yet"
    return grpc.dynamic_ssl_server_credentials(
        first,
        certificates,  # type: ignore[arg-type]  # None = the one before, which the stubs leave out
        require_client_authentication=asks,
    )


class CertificateNews:
    """The certificate to serve with from now on, whenever that is another one than before (G4, G5).

    gRPC asks it at each handshake, from its own threads.
    """

    def __init__(self, tls: ServerTls, *, asks: bool) -> None:
        self._tls = tls
        self._asks = asks
        self._told: tuple[bytes, bytes, bytes | None] | None = None

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        held = self._tls.credentials
        now = held.key, held.chain, self._tls.authority.roots if self._asks else None
        if now == self._told:
            return None
        self._told = now
        key, chain, roots = now
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots)


def _add_health(server: aio.Server, *, for_peers: bool) -> health_aio.HealthServicer:
    ours = (agent_pb2, job_pb2, health_pb2, *((replication_pb2,) if for_peers else ()))
    services = (service for module in ours for service in module.DESCRIPTOR.services_by_name.values())
    names = (reflection.SERVICE_NAME, *(service.full_name for service in services))
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(names, server)
    return health
