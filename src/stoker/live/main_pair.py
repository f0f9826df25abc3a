"""Start, serving and stop of one of several control planes, and the start of one that goes on alone from then on.

The second composition root of this runtime: it picks the adapters of `failover.tenure`. The sockets for
people are taken once; the one for agents and peers is taken anew in each tenure.

With `failover.enabled: false` a control plane that was one of several reads no lease record any more and waits for
nobody. If another one went on as well, one job's id would mean two jobs, and agents would obey both.

Rules: R5  a folder for the lease record that can't be right is refused at start; one out of reach is waited for,
           until `stop`, and people are told so meanwhile
       R6  a control plane whose tenure ends closes every stream of agents and people, so that they look for another one
       R7  a control plane that lacks a key of the cluster's secrets asks its peers for it, whether it is active or not;
           one that gets none says so, once. The active one makes the first key before any secret is set, and a standby
           asks for it: so no secret that was acknowledged is lost with the active one
       A1  only the one that the lease record calls active may go on alone, or one that was in sync when the last gave
           its lease back; and only if its log reaches as far as the record says
       A2  first it takes one more version of the record, in whose set it is alone: no other one takes over by itself
           from then on
       A3  where that can't be done it is refused; a person who knows better removes the mark of the folder by hand
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec.structs import replace

from stoker.adapters.data_folder.marks import MARK_NAME, replica_id, unmark_member
from stoker.adapters.data_folder.ownership import unusable
from stoker.adapters.lease_folder.lease import FileLease
from stoker.adapters.secret_keys import SecretKeys
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.api.http.app import UnavailableApp, create_app
from stoker.api.http.responses import problem_response
from stoker.api.http.server import serve_http
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.control.control_ports import ControlPorts
from stoker.control.job_secrets import lacking_keys
from stoker.control.supervisor import Duties, first_of
from stoker.live.control_plane import LiveControlPlane, quiet_collector
from stoker.live.failover.driver import Driver
from stoker.live.failover.links import PeerDown, PeerRefused
from stoker.live.failover.replication import Replication
from stoker.live.failover.tenure import OneLog, OwnLogs, TenurePorts, Tenures
from stoker.live.pages import web_pages
from stoker.live.rpc.replication import GrpcPeerLink, ReplicationService
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.live.tls import ServerTls
from stoker.ports import Lease, LeaseUnreachable
from stoker.wire.endpoints import PRODUCT

CALL_PART: Final = 0.4
"""Of the lease: how long one look or write of the lease record may take, so that its holder can try twice."""
SECRET_AGAIN_S: Final = 1.0
KEYS_LOOK_S: Final = 1.0
"""Between two looks at whether a key of the secrets is lacking here."""


class Pair:
    """One of several control planes: its ports, and the servers of its tenures."""

    def __init__(
        self,
        settings: ControlSettings,
        ports: ControlPorts,
        on_ready: Callable[[], None],
        credentials: Callable[[], Awaitable[ServerTls | None]],
    ) -> None:
        """`on_ready` is called once requests are answered, by a standby too. `credentials`: what to serve with, from
        the authority that all of them share."""
        self._credentials = credentials
        self._keys = SecretKeys(settings.secret_key_file)
        self._links: list[GrpcPeerLink] = []
        self._tls: ServerTls | None = None
        self._settings = settings
        self._ports = ports
        self._on_ready = on_ready
        self._between = UnavailableApp()
        self._secret = ""
        """By which peers know each other. Empty until the folder of the lease record could be read."""
        self._secret_trouble = ""
        """What is wrong with its file; empty = nothing."""

    async def run(self, listeners: Sequence[socket.socket], stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises: StokerError, LogDamaged, DutyEnded."""
        secure = self._settings.tls.http(self._settings.http.host)
        plain = [each for each in listeners if not secure or each.family == socket.AF_UNIX]
        async with AsyncExitStack() as undo, Duties() as duties, serve_http(self._between, plain, duties):
            tenure_ports = await self._tenure_ports(undo, stop)
            async with AsyncExitStack() as served:
                if self._tls is not None:
                    duties.begin("tls", self._tls.run(self._ports.telemetry))
                    if secure:  # which nothing can be before the authority was found, beside the lease record
                        secured = [each for each in listeners if each not in plain]
                        context = self._tls.http_context()
                        await served.enter_async_context(serve_http(self._between, secured, duties, context=context))
                tenures = Tenures(self._settings, tenure_ports, self._ports, self._serve)
                await first_of(tenures.run(stop), duties.until(asyncio.Event()))

    async def _tenure_ports(self, undo: AsyncExitStack, stop: asyncio.Event) -> TenurePorts:
        settings, ports = self._settings, self._ports
        folder, failover, clock = settings.data_dir, settings.failover, ports.clock
        if settings.store.url:
            # Only who asks for it needs the driver.
            from stoker.adapters.log_store import history_at, shared_log_at
            from stoker.adapters.postgres.lease import PostgresLease

            shared = PostgresLease(settings.store.url, clock, timeout_s=_call_s(settings))
            undo.push_async_callback(shared.close)
            self._tls = await self._credentials()
            one = OneLog(
                log=lambda: shared_log_at(folder, settings.store.url, clock, ports.entropy, ports.telemetry),
                uid=lambda: replica_id(folder, ports.entropy),
            )
            return TenurePorts(
                logs=one,
                history=lambda: history_at(folder, settings.store.url, failover.name, shared=True),
                lease=shared,
            )
        lease = FileLease(failover.folder, clock, timeout_s=_call_s(settings))
        undo.push_async_callback(lease.close)
        await self._read_secret(lease, stop)
        if not stop.is_set():
            self._tls = await self._credentials()
        links = [
            GrpcPeerLink(peer, lambda: self._secret, within_s=failover.timing.silence_s, tls=self._grpc_tls)
            for peer in failover.peers
        ]
        self._links = links
        for link in links:
            undo.push_async_callback(link.close)
        own = OwnLogs(
            log=lambda: SqliteLog(folder, telemetry=ports.telemetry, entropy=ports.entropy),
            links=links,
            incoming=lambda: IncomingFolder(folder),
            secret_trouble=lambda: self._secret_trouble,
        )
        return TenurePorts(logs=own, history=lambda: SqliteHistory(folder), lease=lease)

    @property
    def _grpc_tls(self) -> ServerTls | None:
        return self._tls if self._settings.tls.grpc else None

    async def _read_secret(self, lease: FileLease, stop: asyncio.Event) -> None:
        """Wait until the folder of the lease record can be reached, and read the secret in it, or make it (R5).

        Raises: StokerError `peer_secret_unusable` and others.
        """
        telemetry, told = self._ports.telemetry, ""
        while not self._secret and not stop.is_set():
            try:
                place = await lease.check_folder()
                self._secret = await lease.secret(self._ports.entropy, self._secret_noticed)
            except LeaseUnreachable as fault:
                if told != str(fault):
                    told = str(fault)
                    telemetry.warn("marker_unreachable", error=told)
                    self._between.app = problem_response(_no_marker_yet())
                await self._ports.clock.sleep(SECRET_AGAIN_S)
            else:
                telemetry.gauge("peer_secret_ok", 1)
                telemetry.event("marker_found", kind=place.kind, note=place.sentence)
                self._between.app = None

    def _secret_noticed(self, trouble: str) -> None:
        telemetry, self._secret_trouble = self._ports.telemetry, trouble
        telemetry.gauge("peer_secret_ok", 0 if trouble else 1)
        if trouble:
            telemetry.warn("peer_secret_changed", error=trouble)
        else:
            telemetry.event("peer_secret_as_it_was")

    @asynccontextmanager
    async def _serve(
        self, control: LiveControlPlane, driver: Driver, replication: Replication | None
    ) -> AsyncIterator[None]:
        """Serve one tenure from entry to exit, and close every stream at its end (R6)."""
        settings = self._settings
        peers = None
        if replication is not None:
            peers = ReplicationService(
                secret=lambda: self._secret,
                pinged=driver.pinged,
                accept=replication.accept,
                tls=self._grpc_tls,
                secret_keys=self._keys.exported,
            )
        if (tls := self._tls) is not None:
            control.access.fingerprint = lambda: tls.authority.fingerprint
        agents = RpcServer(settings.grpc, control, peers, self._grpc_tls)
        app = create_app(control, web_pages(control, settings))
        quiet_collector()
        async with agents as grpc_port, Duties() as duties:
            duties.begin("secret_keys", self._keep_keys(control, driver))
            self._between.app = app
            self._ports.telemetry.event(
                "serving",
                version=PRODUCT,
                http_port=settings.http.port,
                grpc_port=grpc_port,
                node_port=agents.node_port,
                data_dir=str(settings.data_dir),
                control=driver.machine.me.name,
            )
            self._on_ready()
            try:
                yield
            finally:
                self._between.app = None
                control.close_streams()

    async def _keep_keys(self, control: LiveControlPlane, driver: Driver) -> None:
        """Get the keys of the cluster's secrets that are lacking here, and make the first, for ever (R7)."""
        telemetry, told = self._ports.telemetry, ""
        while True:
            trouble = ""
            try:
                if lacking_keys(control.committer.state, self._keys):
                    trouble = await self._fetch_keys(control)
                elif self._links and self._tls is not None and not self._keys.exported():
                    await self._first_key(control, driver)
            except StokerError as fault:
                trouble = f"{fault.refusal.message}; {fault.refusal.hint}"
            if trouble and trouble != told:
                telemetry.warn("secret_key_unusable", error=trouble)
            told = trouble
            await self._ports.clock.sleep(KEYS_LOOK_S)

    async def _first_key(self, control: LiveControlPlane, driver: Driver) -> None:
        """Make it where this one is active, else ask for it. Raises: StokerError `secret_key_unusable`."""
        if driver.follows:
            await self._fetch_keys(control)
        elif not control.committer.state.secrets:
            self._keys.make()

    async def _fetch_keys(self, control: LiveControlPlane) -> str:
        """Ask the peers for keys; return why some are still lacking. Raises: StokerError `secret_key_unusable`."""
        said = ["a key of the secrets is lacking here, and no peer has it"]
        for link in self._links:
            try:
                keys = await link.secret_keys()
            except (PeerDown, PeerRefused) as fault:
                said.append(str(fault))
                continue
            if not keys:
                continue
            self._keys.add(keys)
            if not lacking_keys(control.committer.state, self._keys):
                self._ports.telemetry.event("secret_key_received", peer=link.address)
                return ""
        return "; ".join(said)


def _call_s(settings: ControlSettings) -> float:
    return CALL_PART * settings.failover.timing.lease_s


def _no_marker_yet() -> Refusal:
    """Return the refusal, which callers without a token get as well, so it doesn't name the folder."""
    return refuse(
        "not_active",
        "this control plane has just started, and can't reach the marker",
        "its log says why (marker_unreachable); once that is mended it goes on by itself. Meanwhile ask another one",
        active="",
    )


async def leave_the_others(settings: ControlSettings, ports: ControlPorts, name: str, end: Position) -> None:
    """Make sure that no other control plane goes on, and let the folder be that of a lone one.

    `name`: what it was called among them. `end`: of its log. Raises: StokerError `one_of_several` (A3).
    """
    folder = settings.data_dir.absolute()
    # A database takes the appends of one writer, however many think that they are it.
    why = "" if settings.store.url else await _why_not_alone(settings, ports, end)
    if why:
        message = f"{folder} is the data folder of {name}, one of several control planes, and can't go on alone: {why}"
        hint = (
            "start it with failover.enabled: true, or the one that was active with false and failover.marker as before;"
            f" if no other one will ever go on, and what this one lacks may be lost, remove {folder / MARK_NAME}"
        )
        raise StokerError(refuse("one_of_several", message, hint))
    try:
        unmark_member(folder)
    except OSError as fault:
        raise unusable(folder, fault) from fault


async def _why_not_alone(settings: ControlSettings, ports: ControlPorts, end: Position) -> str:
    if not settings.failover.marker:
        return "failover.marker is empty, so the others can't be told"
    lease = FileLease(settings.failover.folder, ports.clock, timeout_s=_call_s(settings))
    try:
        uid = replica_id(settings.data_dir.absolute(), ports.entropy)
        return await take_for_good(lease, uid, end, ports.entropy.uid())
    finally:
        await lease.close()


async def take_for_good(lease: Lease, uid: str, end: Position, mark: str) -> str:
    """Take the lease for good; return why that can't be, in words, empty = it is done (A1, A2).

    `uid`: of our data folder. `end`: of its log. `mark`: unique text, of this very write.
    """
    try:
        known = await lease.read()
        if known is None:
            return "the marker says nothing, so nobody knows whose log reaches furthest"
        last = f"{known.holder.name} was active last" if known.holder else "the lease was given back"
        me = next((one for one in known.in_sync if one.uid == uid), None)
        if me is None:
            return f"{last}, while this one isn't in sync"
        if known.holder not in (None, me):
            return last
        if known.lossy:
            return "it has taken over by force, and not yet left out the job ids that were lost"
        if end < known.position:
            return f"its log ends at {end}, before the marker's {known.position}"
        alone = replace(known, version=known.version + 1, holder=me, in_sync=(me,), position=end, mark=mark)
        return "" if await lease.put(alone) else "another one has taken over just now"
    except LeaseUnreachable as fault:
        return f"the marker can't be reached: {fault}"
    except StokerError as fault:
        return f"the marker can't be used: {fault.refusal.message}"
