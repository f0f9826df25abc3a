"""Start, serving and stop of a control plane of its own.

The composition root of this runtime: the only place here that picks adapters.

Rules: R1  nothing is served before the log is ours, read to its end, and holds our epoch
       R2  whatever essential part dies, the process stops with one clear refusal
       R3  a clean stop ends streams first, then saves; it takes a second or two and touches no job
       R4  without tokens nobody but the owner is served: another address than loopback is refused, unless whoever
           starts it has said that everybody may
       R5  whoever was one of several and is started alone makes sure first that no other one goes on
       R6  where TLS is off, an address that other machines reach is refused as R4 says
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stoker.adapters.audit_sink import sink_at
from stoker.adapters.authority import Authority, hosts_of_machine
from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.marks import has_served_tls, mark_member, mark_served_tls, member_in
from stoker.adapters.data_folder.ownership import hold_folder, unusable
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_store import history_at, log_at
from stoker.adapters.logs import StructuredTelemetry, library_logs
from stoker.adapters.metrics import Metrics
from stoker.adapters.notify_mail import MailServer
from stoker.adapters.notify_targets import Targets
from stoker.adapters.output_archive import OutputFolder
from stoker.adapters.secret_keys import SecretKeys
from stoker.api.http.app import create_app
from stoker.api.http.server import serve_http
from stoker.api.listen import bind, local_socket
from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.units import counted
from stoker.control.committer import LogTooNew
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.control.job_secrets import warn_of_lost_keys
from stoker.control.settings import NotifySettings, OutputSettings, is_loopback
from stoker.control.supervisor import DutyEnded
from stoker.live.control_plane import LiveControlPlane, quiet_collector, recover_control
from stoker.live.pages import web_pages
from stoker.live.rpc.server import RpcServer
from stoker.live.settings.control import ControlSettings
from stoker.live.tls import ServerTls
from stoker.ports import Clock, HistoryTooNew, LogConflict, LogDamaged, LogFailed
from stoker.wire.endpoints import PRODUCT

SWITCH_S: Final = 0.0005
"""How long a thread that has something to do waits for Python while another computes. An append takes Python a dozen
times: with the usual 5 ms it took 90 ms beside the audit of 100,000 jobs, with this 14."""


async def run_control(
    settings: ControlSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    open_to_owner: bool = False,
    insecure: bool = False,
) -> None:
    """Serve until `stop` is set. `on_ready` is called once requests are answered.

    `open_to_owner`: the account that starts it is served without a token, on this machine; `insecure`: so is whoever
    reaches it (R4).
    Raises: StokerError when it can't start, or when it had to stop.
    """
    if not insecure:
        _must_be_loopback(settings, open_to_owner=open_to_owner)
        _must_not_ship_in_clear(settings)
    if not __debug__:
        message = "Python runs with -O, which removes the checks that guard the ledger"
        raise StokerError(refuse("assertions_off", message, "start it without -O and without PYTHONOPTIMIZE"))
    sys.setswitchinterval(SWITCH_S)
    clock = SystemClock()
    metrics = Metrics()
    metrics.begin()
    telemetry = StructuredTelemetry(clock, metrics=metrics, level=settings.log.level, format=settings.log.format)
    vault = SecretKeys(settings.secret_key_file)
    sink, archive = sink_at(settings.audit.ship_to), archive_at(settings.output, clock)
    ports = ControlPorts(
        clock=clock,
        entropy=SystemEntropy(),
        telemetry=telemetry,
        vault=vault,
        audit_sink=sink,
        messenger=targets_of(settings.notify),
        output_archive=archive,
    )
    with library_logs(telemetry), as_refusals():
        try:
            await _run(settings, ports, stop, on_ready, open_to_owner=open_to_owner)
        finally:
            if sink is not None:
                await sink.close()
            if archive is not None:
                await archive.close()
    telemetry.event("stopped")


async def _run(
    settings: ControlSettings,
    ports: ControlPorts,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    *,
    open_to_owner: bool,
) -> None:
    if settings.failover.enabled:
        await _run_one_of_several(settings, ports, stop, on_ready)
        return
    log = log_at(settings.data_dir, settings.store.url, ports.clock, ports.entropy, ports.telemetry)
    history = history_at(settings.data_dir, settings.store.url, settings.failover.name)
    try:
        end = await log.open()
        if name := member_in(settings.data_dir):
            from stoker.live.main_pair import leave_the_others

            await leave_the_others(settings, ports, name, end)  # R5
        with _listeners(settings) as listeners:
            control = await recover_control(settings, log, history, ports, open_to_owner=open_to_owner)
            tokens = control.committer.state.tokens.values()
            joined = sum(1 for token in tokens if token.role is Role.AGENT and token.node)
            tls = await server_tls(
                settings, ports.clock, in_use=f"{counted(joined, 'node')} joined by it" if joined else ""
            )
            await _serve(control, tls, listeners, stop, on_ready)
    finally:
        await history.close()
        await log.close()


async def _run_one_of_several(
    settings: ControlSettings, ports: ControlPorts, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    # Only who asks for it needs it.
    from stoker.live.main_pair import Pair

    folder = settings.data_dir.absolute()
    held = hold_folder(folder)  # one that another process has is refused before its socket is taken
    try:
        mark_member(folder, settings.failover.name)
    except OSError as fault:
        raise unusable(folder, fault) from fault
    finally:
        held.release()

    async def credentials() -> ServerTls | None:
        in_use = "this control plane has served by it" if has_served_tls(folder) else ""
        tls = await server_tls(settings, ports.clock, in_use=in_use)
        if tls is not None:
            mark_served_tls(folder)
        return tls

    with _listeners(settings) as listeners:
        await Pair(settings, ports, on_ready, credentials).run(listeners, stop)


def archive_at(settings: OutputSettings, clock: Clock) -> OutputFolder | None:
    """Return the archive of what jobs wrote; None = there is none."""
    if not settings.archive_dir:
        return None
    bytes_max = settings.archive_max_gb << 30
    return OutputFolder(Path(settings.archive_dir), clock, bytes_max=bytes_max, days=settings.archive_days)


def targets_of(settings: NotifySettings) -> Targets:
    """Return whom people may have told of their jobs."""
    smtp = settings.smtp
    server = MailServer(
        host=smtp.host,
        port=smtp.port,
        starttls=smtp.starttls,
        user=smtp.user,
        password=lambda: Path(smtp.password_file).read_text().strip(),
        sender=smtp.sender,
    )
    return Targets(
        server=server if smtp.host else None,
        domains=[domain.lower() for domain in settings.mail_domains],
        webhooks=settings.webhooks,
        prefixes=settings.url_prefixes,
    )


def _must_not_ship_in_clear(settings: ControlSettings) -> None:
    """Refuse to send the audit trail to another machine in plain text. Raises: StokerError `plain_text`."""
    if host := settings.audit.host:
        message = f"whoever is between here and {host[:80]} could read the audit trail, since syslog is plain text"
        hint = "send it to the syslog of this machine (`syslog:///dev/log`), to pass it on, or say --insecure"
        raise StokerError(refuse("plain_text", message, hint, host=host[:80]))


def _must_be_loopback(settings: ControlSettings, *, open_to_owner: bool) -> None:
    """Refuse listeners that other machines can reach (R4, R6). Raises: StokerError `open_to_others`, `plain_text`."""
    beyond = next((host for host in (settings.http.host, settings.grpc.host) if not is_loopback(host)), None)
    if beyond is None:
        return
    if open_to_owner:
        message = f"on {beyond[:80]} whoever reaches this machine could run programs on it, since no token is wanted"
        hint = "listen on 127.0.0.1, or run `stoker control`, which wants tokens"
        raise StokerError(refuse("open_to_others", message, hint, host=beyond[:80]))
    if settings.tls.mode == "off":
        message = f"on {beyond[:80]} whoever is between could read tokens and jobs, since `tls.mode` is off"
        hint = "leave `tls.mode` out (auto), or say --insecure to mean it"
        raise StokerError(refuse("plain_text", message, hint, host=beyond[:80]))


@contextmanager
def _listeners(settings: ControlSettings) -> Iterator[Sequence[socket.socket]]:
    """Take the listeners, the one for TCP first, before the log is read, so that a port in use is told at once.

    The data folder is ours.
    """
    with bind(settings.http.host, settings.http.port, "http") as tcp, local_socket(settings.data_dir) as local:
        yield tcp, local


async def server_tls(settings: ControlSettings, clock: Clock, *, in_use: str = "") -> ServerTls | None:
    """Return the credentials to serve with, from the cluster's authority, which is made where there is none.

    `in_use`: a sentence that says who relies on it, so that none is made. None = nothing is encrypted.
    Raises: StokerError `authority_unusable`.
    """
    if not (settings.tls.grpc or settings.tls.http(settings.http.host)):
        return None
    named = (*settings.tls.names, urlsplit(settings.failover.http).hostname or "")

    def hosts() -> list[str]:
        given = [host for host in (settings.http.host, settings.grpc.host) if host not in ("0.0.0.0", "::")]
        return list(dict.fromkeys([*filter(None, named), *given, *hosts_of_machine()]))

    authority = await Authority.opened(settings.authority_dir.absolute(), clock.now, in_use=in_use)
    return ServerTls(authority, settings.failover.name, hosts, clock)


async def _serve(
    control: LiveControlPlane,
    tls: ServerTls | None,
    listeners: Sequence[socket.socket],
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    settings, telemetry = control.nodes.settings, control.telemetry
    agents = RpcServer(settings.grpc, control, tls=tls if settings.tls.grpc else None)
    for_owner_alone = control.access.open_to_owner and is_loopback(settings.http.host)
    app = create_app(control, web_pages(control, settings))
    quiet_collector()
    async with active(control) as duties:
        warn_of_lost_keys(control.committer.state, control.vault, telemetry)
        if tls is not None:
            duties.begin("tls", tls.run(telemetry))
        http_port: int = listeners[0].getsockname()[1]
        if tls is not None:
            control.access.fingerprint = lambda: tls.authority.fingerprint
        context = tls.http_context() if tls is not None and settings.tls.http(settings.http.host) else None
        serving = serve_http(app, listeners, duties, for_owner_alone=for_owner_alone, context=context)
        async with agents as grpc_port, serving:
            telemetry.event("scheduler_started", version=PRODUCT, epoch=control.committer.state.epoch)
            where = {"http_port": http_port, "grpc_port": grpc_port, "node_port": agents.node_port}
            telemetry.event("serving", **where, data_dir=str(settings.data_dir))
            on_ready()
            await duties.until(stop)
            telemetry.event("stopping")
            control.close_streams()


@contextmanager
def as_refusals() -> Iterator[None]:
    """Turn the errors that end a control plane into refusals that its operator can read."""
    try:
        yield
    except (LogTooNew, HistoryTooNew) as fault:
        hint = f"nothing was changed; start the version of Stoker that wrote it, or a newer one (this is {PRODUCT})"
        raise StokerError(refuse("store_too_new", str(fault), hint)) from fault
    except LogDamaged as fault:
        hint = "nothing was changed; the message says how to recover"
        raise StokerError(refuse("log_damaged", str(fault), hint)) from fault
    except (LogFailed, LogConflict) as fault:
        raise _log_failed(fault) from fault
    except DutyEnded as fault:
        if isinstance(fault.__cause__, LogFailed):
            raise _log_failed(fault.__cause__) from fault
        hint = "start it again: nothing that was acknowledged is lost; the log above says more"
        raise StokerError(refuse("part_died", str(fault), hint)) from fault


def _log_failed(fault: Exception) -> StokerError:
    hint = (
        "see whether the disk of data_dir, or the database of store.url, is full or broken, then start it again: "
        "nothing acknowledged is lost"
    )
    return StokerError(refuse("log_failed", f"the event log can't be written: {fault}", hint))
