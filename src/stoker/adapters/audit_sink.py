"""Targets that the audit trail is sent to as it happens: a file, or a syslog server.

Rules: T1  `send` answers within SEND_S_MAX, whatever the target does: a thread of its own writes
       T2  a file is only appended to, one JSON object a line, readable by its owner alone, and synced after each batch;
           it is opened anew when its name stands for another file, as after a rotation
       T3  what was sent in part is sent again as a whole; the torn line before it ends in a newline
       T4  a message holds nothing that acts on the terminal of who reads it
Source: RFC 5424 (the syslog protocol), RFC 5426 (over UDP), RFC 6587, 3.4.1 (over TCP, with octet counting).
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.adapters.logs import safe_json
from stoker.brain.domain.audit import AuditRow

SEND_S_MAX: Final = 5.0
_CALL_S: Final = 4.0
_AUTHPRIV: Final = 10
"""The facility of messages about who may do what, which only root reads (RFC 5424, 6.2.1)."""
_WARNING, _NOTICE = 4, 5
_SYSLOG_PORT: Final = 514


class SentRow(NamedTuple):
    """A row of the audit trail, and the JSON object that tells it."""

    row: AuditRow
    text: bytes


class _Destination(Protocol):
    name: str

    def write(self, rows: Sequence[SentRow]) -> None:
        """Raises: OSError."""

    def close(self) -> None: ...


class TargetSink:
    """The `AuditSink` port on a file or a socket."""

    def __init__(self, target: _Destination) -> None:
        self._target = target
        self._thread = BoundedThread("stoker-audit", (OSError,))

    async def send(self, rows: Sequence[tuple[AuditRow, bytes]]) -> str:
        sent = [SentRow(row, safe_json(text)) for row, text in rows]
        try:
            await self._thread.ask(partial(self._target.write, sent), SEND_S_MAX)
        except TookTooLong as fault:
            return f"{self._target.name}: {fault}"
        except OSError as fault:
            return f"{self._target.name}: {fault.strerror or fault}"
        return ""

    async def close(self) -> None:
        with suppress(TookTooLong, OSError):
            await self._thread.ask(self._target.close, SEND_S_MAX)
        self._thread.close()


def sink_at(url: str) -> TargetSink | None:
    """Return the target that the setting `audit.ship_to` names, which was checked; None for the empty text."""
    parts = urlsplit(url)
    if not url:
        return None
    if parts.scheme == "file":
        return TargetSink(AppendedFile(Path(parts.path)))
    if parts.scheme == "syslog":
        return TargetSink(Syslog(socket.SOCK_DGRAM, parts.path or "/dev/log"))
    kind = socket.SOCK_DGRAM if parts.scheme == "syslog+udp" else socket.SOCK_STREAM
    return TargetSink(Syslog(kind, (parts.hostname or "", parts.port or _SYSLOG_PORT)))


class AppendedFile:
    """A file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._fd = -1
        self._torn = False

    def write(self, rows: Sequence[SentRow]) -> None:
        self._open()
        left = memoryview(b"\n" * self._torn + b"".join(row.text + b"\n" for row in rows))
        self._torn = True  # until all of it is there
        while left:
            left = left[os.write(self._fd, left) :]
        os.fsync(self._fd)
        self._torn = False

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            there = os.stat(self._path)
            if self._fd >= 0 and os.path.samestat(os.fstat(self._fd), there):
                return
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd, self._torn = os.open(self._path, flags, 0o600), False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Syslog:
    """A syslog server behind a socket of this machine, UDP or TCP."""

    def __init__(self, kind: socket.SocketKind, address: str | tuple[str, int]) -> None:
        """`address`: the path of a socket, or host and port."""
        self.name = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        self._kind = kind
        self._address = address
        self._socket: socket.socket | None = None
        self._host = socket.gethostname() or "-"

    def write(self, rows: Sequence[SentRow]) -> None:
        try:
            server = self._connected()
            for row in rows:
                message = self._message(row)
                if self._kind == socket.SOCK_STREAM:
                    server.sendall(b"%d %s" % (len(message), message))
                else:
                    server.send(message)
        except OSError:
            self.close()
            raise

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._kind == socket.SOCK_STREAM and _has_ended(self._socket):
            self.close()
        if self._socket is None:
            self._socket = self._connect()
        return self._socket

    def _connect(self) -> socket.socket:
        if isinstance(self._address, str):
            made = socket.socket(socket.AF_UNIX, self._kind)
        elif self._kind == socket.SOCK_STREAM:
            return socket.create_connection(self._address, _CALL_S)
        else:
            family, *_ = socket.getaddrinfo(*self._address, type=self._kind)[0]
            made = socket.socket(family, self._kind)
        try:
            made.settimeout(_CALL_S)
            made.connect(self._address)
        except OSError:
            made.close()
            raise
        return made

    def _message(self, sent: SentRow) -> bytes:
        priority = 8 * _AUTHPRIV + (_WARNING if sent.row.refused else _NOTICE)
        at = datetime.fromtimestamp(sent.row.at / 1_000, UTC).isoformat(timespec="milliseconds")
        head = f"<{priority}>1 {at} {self._host} stoker {os.getpid()} {sent.row.action[:32]} - "
        return head.encode("ascii", "replace") + sent.text

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _has_ended(server: socket.socket) -> bool:
    """Has the other end closed the connection? A syslog server sends nothing."""
    try:
        return not server.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
