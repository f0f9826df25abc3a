"""Binding of listeners, the refusal when an address can't be taken, and how many connections each may keep."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.wire.local_socket import SOCKET_NAME, address_of

BACKLOG: Final = 2_048
_CONNECTIONS_MIN: Final = 16


def connections_max(most: int, part: int) -> int:
    """Return how many connections a listener may keep: `most`, or one `part`-th of the files that we may open.

    What all listeners leave is for the log, the history and whatever else must never wait for a stranger.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files_max < 0 else max(_CONNECTIONS_MIN, min(most, files_max // part))


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket that nobody else can share. `setting` names the section of the settings it came from.

    Raises: StokerError `port_in_use` or `cannot_listen`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is spelled out because asyncio turns Nagle off only where it sees it: else answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Only against the wait after our own restart: on Linux it doesn't let two listeners share a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        raise cannot_listen(host, port, setting, fault) from fault
    return listener


@contextmanager
def local_socket(data_dir: Path) -> Iterator[socket.socket]:
    """Hold a socket in the data folder that this account alone can open, from entry to exit.

    The caller holds the folder, so one that lies there already is what a killed process left.

    Raises: StokerError `cannot_listen`.
    """
    path = data_dir / SOCKET_NAME
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            path.unlink()
        os.fchmod(listener.fileno(), 0o600)  # bind gives the file this mode: there is no moment at which others may
        with address_of(path) as address:
            listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        hint = "data_dir must be on a file system that has sockets, and this account must be able to write to it"
        message = f"can't listen on {path}: {fault.strerror or fault}"
        raise refusal_error("cannot_listen", message, hint, path=str(path)) from fault
    try:
        yield listener
    finally:
        with suppress(OSError):
            path.unlink()
        listener.close()


def why_not(host: str, port: int, setting: str) -> StokerError:
    """The refusal for a listener that a library failed to open without saying why.

    `setting` is a section, whose `port` is meant, or the name of another setting in it.
    """
    try:
        bind(host, port, setting).close()
    except StokerError as refused:
        return refused
    return _cannot(host, port, setting, "the library doesn't say why")


def cannot_listen(host: str, port: int, setting: str, fault: OSError) -> StokerError:
    if fault.errno == errno.EADDRINUSE:
        return refusal_error(
            "port_in_use",
            f"port {port} of {host} is in use by another program, perhaps another control plane",
            f"stop that program, or set {_key_of_port(setting)} to a free port",
            host=host,
            port=port,
        )
    return _cannot(host, port, setting, fault.strerror or str(fault))


def _cannot(host: str, port: int, setting: str, why: str) -> StokerError:
    host_key = f"{setting.partition('.')[0]}.host"
    hint = f"set {host_key} and {_key_of_port(setting)} to an address here and a port that this account may use"
    return refusal_error("cannot_listen", f"can't listen on {host} port {port}: {why}", hint, host=host, port=port)


def _key_of_port(setting: str) -> str:
    return setting if "." in setting else f"{setting}.port"
