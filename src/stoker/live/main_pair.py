"""Start, serving and stop of a control plane that is one of several.

The second composition root of this runtime: it picks the adapters of `failover.tenure`. The sockets for
people are taken once; the one for agents and peers is taken anew in each tenure.

Rules: R5  a folder for the lease record that can't be right is refused at start; one out of reach is waited for,
           until `stop`, and people are told so meanwhile
       R6  a control plane whose tenure ends closes every stream of agents and people, so that they look for another one
"""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from stoker.adapters.data_folder.marks import replica_id
from stoker.adapters.lease_folder.lease import FileLease
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.api.http.app import create_app
from stoker.api.http.responses import problem_response
from stoker.api.http.server import serve_http
from stoker.api.http.unavailable_app import UnavailableApp
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.control.control_ports import ControlPorts
from stoker.control.supervisor import Duties, first_of
from stoker.live.control_plane import LiveControlPlane
from stoker.live.failover.alone import leave_the_others
from stoker.live.failover.driver import Driver
from stoker.live.failover.links import Offer
from stoker.live.failover.replication import Replication
from stoker.live.failover.sender import Sender
from stoker.live.failover.tenure import OneLog, OwnLogs, TenurePorts, Tenures
from stoker.live.rpc.peer_link import GrpcPeerLink
from stoker.live.rpc.replication import PeerEndpoint
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.ports import Entropy, LeaseUnreachable, Telemetry
from stoker.wire.endpoints import PRODUCT

CALL_PART: Final = 0.4
"""Of the lease: how long one look or write of the lease record may take, so that its holder can try twice."""
SECRET_AGAIN_S: Final = 1.0


async def run_pair(
    settings: ControlSettings,
    ports: ControlPorts,
    listeners: Sequence[socket.socket],
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until `stop`. `on_ready` is called once requests are answered, by a standby too.

    Raises: StokerError, LogDamaged, DutyEnded.
    """
    async with AsyncExitStack() as undo:
        secret = _Secret(ports.telemetry)
        servers = _PairServers(settings, ports, secret, on_ready)
        async with Duties() as duties, serve_http(servers.between, listeners, duties):
            tenure_ports = await _tenure_ports(settings, ports, undo, secret, servers.between, stop)
            await first_of(
                Tenures(settings, tenure_ports, ports, servers.serve).run(stop), duties.until(asyncio.Event())
            )


class _Secret:
    """Secret by which peers know each other; empty until the folder of the lease record could be read."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.text = ""
        self._trouble = ""
        self._telemetry = telemetry

    def __call__(self) -> str:
        return self.text

    def trouble(self) -> str:
        """Return what is wrong with its file; empty = nothing."""
        return self._trouble

    async def read(self, lease: FileLease, entropy: Entropy) -> None:
        """Read the secret, or make it. Raises: StokerError `peer_secret_unusable`, LeaseUnreachable."""
        self.text = await lease.secret(entropy, self._noticed)
        self._telemetry.gauge("peer_secret_ok", 1)

    def _noticed(self, trouble: str) -> None:
        self._trouble = trouble
        self._telemetry.gauge("peer_secret_ok", 0 if trouble else 1)
        if trouble:
            self._telemetry.warn("peer_secret_changed", error=trouble)
        else:
            self._telemetry.event("peer_secret_as_it_was")


async def _tenure_ports(
    settings: ControlSettings,
    ports: ControlPorts,
    undo: AsyncExitStack,
    secret: _Secret,
    between: UnavailableApp,
    stop: asyncio.Event,
) -> TenurePorts:
    folder, failover, clock = settings.data_dir, settings.failover, ports.clock
    call_s = CALL_PART * failover.timing.lease_s
    if settings.store.url:
        # Only who asks for it needs the driver.
        from stoker.adapters.log_store import shared_log_at
        from stoker.adapters.postgres.lease import PostgresLease

        shared = PostgresLease(settings.store.url, clock, timeout_s=call_s)
        undo.push_async_callback(shared.close)
        one = OneLog(
            log=lambda: shared_log_at(folder, settings.store.url, clock, ports.entropy, ports.telemetry),
            uid=lambda: replica_id(folder, ports.entropy),
        )
        return TenurePorts(logs=one, history=lambda: SqliteHistory(folder), lease=shared)
    lease = FileLease(failover.folder, clock, timeout_s=call_s)
    undo.push_async_callback(lease.close)
    await _prepare(lease, ports, secret, between, stop)
    links = [GrpcPeerLink(peer, secret, within_s=failover.timing.silence_s) for peer in failover.peers]
    for link in links:
        undo.push_async_callback(link.close)
    own = OwnLogs(
        log=lambda: SqliteLog(folder, telemetry=ports.telemetry, entropy=ports.entropy),
        links=links,
        incoming=lambda: IncomingFolder(folder),
        secret_trouble=secret.trouble,
    )
    return TenurePorts(logs=own, history=lambda: SqliteHistory(folder), lease=lease)


async def why_not_alone(settings: ControlSettings, ports: ControlPorts, end: Position) -> str:
    """Take the lease for good, for a start alone; return why it can't be had, empty = it is ours. `end`: of our log."""
    failover = settings.failover
    if not failover.marker:
        return "failover.marker is empty, so the others can't be told"
    lease = FileLease(failover.folder, ports.clock, timeout_s=CALL_PART * failover.timing.lease_s)
    try:
        uid = replica_id(settings.data_dir.absolute(), ports.entropy)
        return await leave_the_others(lease, uid, end, ports.entropy.uid())
    finally:
        await lease.close()


async def _prepare(
    lease: FileLease, ports: ControlPorts, secret: _Secret, between: UnavailableApp, stop: asyncio.Event
) -> None:
    """Wait until the folder of the lease record can be reached, and read the secret (R5)."""
    told = ""
    while not secret.text and not stop.is_set():
        try:
            place = await lease.check_folder()
            await secret.read(lease, ports.entropy)
        except LeaseUnreachable as fault:
            if told != str(fault):
                told = str(fault)
                ports.telemetry.warn("marker_unreachable", error=told)
                between.app = problem_response(_no_marker_yet())
            await ports.clock.sleep(SECRET_AGAIN_S)
        else:
            ports.telemetry.event("marker_found", kind=place.kind, note=place.sentence)
            between.app = None


def _no_marker_yet() -> Refusal:
    """Return the refusal, which callers without a token get as well, so it doesn't name the folder."""
    return refuse(
        "not_active",
        "this control plane has just started, and can't reach the marker",
        "its log says why (marker_unreachable); once that is mended it goes on by itself. Meanwhile ask another one",
        active="",
    )


class _PairServers:
    """Servers for people, agents and peers, of the control plane of each tenure."""

    def __init__(
        self, settings: ControlSettings, ports: ControlPorts, secret: Callable[[], str], on_ready: Callable[[], None]
    ) -> None:
        self.between = UnavailableApp()
        self._settings = settings
        self._telemetry = ports.telemetry
        self._secret = secret
        self._on_ready = on_ready

    @asynccontextmanager
    async def serve(
        self, control: LiveControlPlane, driver: Driver, replication: Replication | None
    ) -> AsyncIterator[None]:
        """Serve one tenure from entry to exit, and close every stream at its end (R6)."""
        endpoint = PeerEndpoint(
            secret=self._secret,
            pinged=driver.pinged,
            accept=replication.accept if replication else _accepts_nobody,
        )
        agents = RpcServer(self._settings.grpc, control, None if replication is None else endpoint)
        app = create_app(control)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        async with agents as grpc_port:
            self.between.app = app
            self._telemetry.event(
                "serving",
                version=PRODUCT,
                http_port=self._settings.http.port,
                grpc_port=grpc_port,
                data_dir=str(self._settings.data_dir),
                control=driver.machine.me.name,
            )
            self._on_ready()
            try:
                yield
            finally:
                self.between.app = None
                control.close_streams()


def _accepts_nobody(offer: Offer) -> Sender:
    raise StokerError(refuse("not_active", "the log is in a database that all reach", "follow it there"))
