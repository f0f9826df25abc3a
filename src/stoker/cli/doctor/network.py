"""Checks of ports and addresses: free here, reachable from here, and reachable for other nodes.

Source: proc_net_tcp(5): state 0A is LISTEN, addresses are hexadecimal.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stoker.brain.domain.errors import StokerError
from stoker.cli.doctor.finding import CheckResult, doubtful, fine, wrong
from stoker.cli.doctor.folder import held_by
from stoker.cli.doctor.machine import holder_of, words_of
from stoker.live.settings.control import ControlSettings
from stoker.wire.client.servers import parsed_servers

CONNECT_S: Final = 2.0
_LISTEN: Final = "0A"


def listener(section: str, host: str, port: int, data_dir: Path) -> Iterator[CheckResult]:
    if port == 0:
        yield fine("any free port will do")
        return
    fault = _cannot_bind(host, port)
    if fault is None:
        yield fine(f"port {port} of {host} is free")
    elif fault.errno == errno.EADDRINUSE:
        yield _taken(section, host, port, data_dir)
    elif fault.errno in (errno.EACCES, errno.EPERM):
        fix = f"set {section}.port to one above 1023, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE"
        yield wrong(f"this account may not listen on port {port}", fix)
    else:
        fix = f"set {section}.host to an address of this machine"
        yield wrong(f"can't listen on {host} port {port}: {fault.strerror or fault}", fix)


def _cannot_bind(host: str, port: int) -> OSError | None:
    """Taking the address without listening disturbs nobody."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as fault:
        return fault
    return None


def _taken(section: str, host: str, port: int, data_dir: Path) -> CheckResult:
    tables = [Path("/proc/net", name).read_text() for name in ("tcp", "tcp6") if Path("/proc/net", name).exists()]
    pids = [pid for pid in (holder_of(inode) for table in tables for inode in listening(table, port)) if pid]
    if pids and pids[0] == held_by(data_dir, Path("/proc/locks").read_text()):
        return fine(f"port {port} of {host} is this control plane's own: process {pids[0]} runs on this data_dir")
    who = f"process {pids[0]} ({words_of(pids[0])})" if pids else "a process that this account can't look into"
    return wrong(f"port {port} of {host} is taken by {who}", f"stop that, or set {section}.port to a free one")


def listening(table: str, port: int) -> list[str]:
    """Inodes of the sockets that listen on a port, in a table such as /proc/net/tcp."""
    rows = (line.split() for line in table.splitlines()[1:])
    wanted = f":{port:04X}"
    return [row[9] for row in rows if len(row) > 9 and row[1].endswith(wanted) and row[3] == _LISTEN]


def control(addresses: Sequence[str]) -> Iterator[CheckResult]:
    """Check that a control plane listens where the agent will look for one."""
    faults = {address: _cannot_connect(address) for address in addresses}
    reached = [address for address, fault in faults.items() if not fault]
    for address, fault in faults.items():
        fix = "see that `stoker control` runs there, that its grpc.host isn't loopback only, and no firewall is between"
        if not fault:
            yield fine(f"{address} takes connections")
        elif reached:
            yield doubtful(f"{address} can't be reached: {fault}", fix)
        else:
            yield wrong(f"{address} can't be reached: {fault}", fix)


def _cannot_connect(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as fault:
        return fault.strerror or str(fault)
    return ""


def node_address(given: str, found: Callable[[], str]) -> Iterator[CheckResult]:
    """`given` as in the settings; where that is empty the agent takes what `found` answers."""
    address = given or found()
    fix = "set node.address to the name or IP under which the other nodes reach this one"
    try:
        resolved = sorted({str(each[4][0]) for each in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)})
    except OSError as fault:
        yield wrong(f"{address} has no address: {fault.strerror or fault}", fix)
        return
    local = all(ip_address(each.partition("%")[0]).is_loopback for each in resolved)
    if local:
        why = ", which is taken because control.addresses are loopback too" if not given else ""
        yield doubtful(f"{address} is loopback{why}: ranks of a gang on other nodes can't meet here", fix)
    elif not any(_is_ours(each) for each in resolved):
        words = f"{address} ({', '.join(resolved)}) is no address of this machine"
        yield doubtful(words, f"{fix}, unless that is an address translation's")
    else:
        yield fine(f"other nodes will reach this one as {address}")


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def other_clusters(settings: ControlSettings) -> Iterator[CheckResult]:
    """Check the files and addresses of the clusters that the page `/clusters` shows beside this one."""
    from stoker.live.pages import token_in  # the only check that needs the pages

    own = _own_addresses(settings)
    for name, other in settings.web.clusters.items():
        key, found = f"web.clusters: {name}", list[CheckResult]()
        if other.token_file:
            try:
                token_in(other.token_file)
            except StokerError as fault:
                found.append(wrong(f"{key}: {fault.refusal.message}", fault.refusal.hint))
        if other.ca_file and not os.access(other.ca_file, os.R_OK):
            fix = "name a PEM file that the control plane's account can read"
            found.append(wrong(f"{key}: its ca_file {other.ca_file} can't be read", fix))
        for server in parsed_servers(",".join(other.servers)):
            if ((server.hostname or "").lower(), server.port) in own:
                fix = "name the servers of another cluster: this one is on its page anyway"
                found.append(wrong(f"{key}: {server.geturl()} is this control plane's own address", fix))
        yield from found or [fine(f"{key}: {len(other.servers)} servers; whether they answer is on the page /clusters")]


def _own_addresses(settings: ControlSettings) -> set[tuple[str, int]]:
    """Return host and port of each address under which this control plane may be reached."""
    hosts = {settings.http.host, "localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    own = {(host.lower(), settings.http.port) for host in (*hosts, *settings.tls.names)}
    itself = urlsplit(settings.http_url)
    return own | {(itself.hostname or "", itself.port or (443 if itself.scheme == "https" else 80))}
