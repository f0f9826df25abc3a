"""The Unix account that owns an end of a TCP connection of this machine.

A TCP connection over loopback has both of its ends in one kernel, which knows whose socket each end is. It is asked
over netlink (sock_diag), one message and one answer of some twenty microseconds, and where that isn't to be had its
table in /proc is read.

Rules: P1  None where the kernel doesn't tell: neither way works, or the connection comes from elsewhere
       P2  a peer that hung up before it was looked for has no owner any more: that is told apart from an account, for a
           request sent and left behind could be anybody's
       P3  a server that hasn't taken a connection from its queue yet is known by its listener. The connection was in
           that queue if it still waits after the listener was found: no two accounts listen at one address
Source: sock_diag(7), proc_pid_net(5) (`tcp`); linux/inet_diag.h, linux/sock_diag.h.
"""

import atexit
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Final, NamedTuple

GONE: Final = -1
"""P2: instead of a uid."""
LOOKS_MAX: Final = 3

_ANSWER_S: Final = 0.2
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NLMSG_ERROR: Final = 2
_NO_COOKIE: Final = 0xFFFFFFFF
_ALL_STATES: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_REQUEST: Final = struct.Struct("=BBBBI" + "2s2s16s16sIII")
"""inet_diag_req_v2: family, protocol, extensions, padding, states; ports, addresses, interface, cookie."""
_OWNER: Final = struct.Struct("=II")
"""At its place in inet_diag_msg: uid and inode."""
_OWNER_AT: Final = _HEADER.size + 4 + 48 + 12
_TABLES: Final[dict[int, str]] = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_LISTEN: Final = "0A"
_WILDCARDS: Final[dict[int, str]] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class _End(NamedTuple):
    address: str
    port: int


def tcp_owner(one: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the uid that owns the end `one` of a TCP connection, or GONE, or None (P1)."""
    near, far = _plain(one), _plain(other)
    return _owner(near, far, _diag()) if _is_local(near, far) else None


def server_owner(connection: socket.socket) -> int | None:
    """Return the uid of the process that answers a connection which this process made, or GONE, or None (P1, P3)."""
    here, there = _plain(connection.getsockname()[:2]), _plain(connection.getpeername()[:2])
    if not _is_local(here, there):
        return None
    with _Diag() as diag:  # of its own: a client may be used in several threads, and in processes that were forked
        for _ in range(LOOKS_MAX):
            owner = _owner(there, here, diag)
            if owner != GONE:
                return owner
            listener = _listener(there, diag)
            if _owner(there, here, diag) == GONE:
                return listener
    return None


def is_loopback(connection: socket.socket) -> bool:
    """Return whether both ends of a TCP connection are on this machine's loopback."""
    return _is_local(_plain(connection.getsockname()[:2]), _plain(connection.getpeername()[:2]))


def _is_local(one: _End, other: _End) -> bool:
    return ip_address(one.address).is_loopback and ip_address(other.address).is_loopback


def _plain(end: tuple[str, int]) -> _End:
    """An IPv4 address that a listener for both kinds shows as IPv6 is an IPv4 one."""
    address = ip_address(end[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return _End(str(mapped or address), end[1])


def _owner(one: _End, other: _End, diag: "_Diag") -> int | None:
    try:
        return _from_netlink(one, other, diag)
    except OSError:
        return _from_table(one, other)


def _listener(end: _End, diag: "_Diag") -> int | None:
    """Return the uid that owns the listener which takes connections to `end`, or GONE, or None (P1)."""
    try:
        # The kernel finds no connection from port 0, and then the listener that would get one.
        return _from_netlink(end, _End(_WILDCARDS[_family(end)], 0), diag)
    except OSError:
        return _listener_from_table(end)


def _family(end: _End) -> int:
    return socket.AF_INET6 if ":" in end.address else socket.AF_INET


# -- netlink ---------------------------------------------------------------------------------------------------------


class _Diag:
    """One netlink socket for many questions, of one thread. Raises: OSError where there are none, when it is asked."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        with suppress(OSError, AttributeError):  # another system than Linux has no such family
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            self._socket.settimeout(_ANSWER_S)
        self._sequence = 0

    def __enter__(self) -> "_Diag":
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def ask(self, family: int, one: _End, other: _End) -> bytes:
        """The answer with its header. Raises: OSError."""
        if self._socket is None:
            raise OSError("no netlink socket")
        self._sequence = (self._sequence + 1) & 0x7FFFFFFF
        body = _REQUEST.pack(
            *(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES),
            *(one.port.to_bytes(2), other.port.to_bytes(2), _packed(family, one), _packed(family, other)),
            *(0, _NO_COOKIE, _NO_COOKIE),
        )
        size = _HEADER.size + len(body)
        head = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._sequence, 0)
        self._socket.sendto(head + body, (0, 0))
        while True:
            answer = self._socket.recv(4_096)
            if len(answer) >= _HEADER.size and _HEADER.unpack_from(answer)[3] == self._sequence:
                return answer


@cache
def _diag() -> _Diag:
    """Return the one of a server, which asks from one thread, also when it may open no more files."""
    diag = _Diag()
    atexit.register(diag.close)
    return diag


def _packed(family: int, end: _End) -> bytes:
    return socket.inet_pton(family, end.address).ljust(16, b"\0")


def _from_netlink(one: _End, other: _End, diag: _Diag) -> int:
    """Raises: OSError where the kernel doesn't answer such questions."""
    answer = diag.ask(_family(one), one, other)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if number == 2:  # ENOENT: there is no such socket
            return GONE
        raise OSError(number, os.strerror(number))
    if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _OWNER_AT + _OWNER.size:
        raise OSError("an answer of another kind")
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return int(uid) if inode else GONE


# -- the table -------------------------------------------------------------------------------------------------------


def _from_table(one: _End, other: _End) -> int | None:
    family = _family(one)
    ends = [_as_listed(family, one), _as_listed(family, other)]
    try:
        rows = list(_rows(_TABLES[family]))
    except OSError:
        return None
    found = next((row for row in rows if row[1:3] == ends), None)
    if found is None:
        return GONE if rows else None
    return int(found[7]) if int(found[9]) else GONE


def _listener_from_table(end: _End) -> int | None:
    """A listener for both kinds is in the table of IPv6. The nearest address wins, as with a connection."""
    family = _family(end)
    looked = [(family, end.address), (family, _WILDCARDS[family])]
    if family == socket.AF_INET:
        looked += [(socket.AF_INET6, f"::ffff:{end.address}"), (socket.AF_INET6, "::")]
    for kind, address in looked:
        listed = _as_listed(kind, _End(address, end.port))
        with suppress(OSError):
            found = next((row for row in _rows(_TABLES[kind]) if row[1] == listed and row[3] == _LISTEN), None)
            if found is not None:
                return int(found[7])
    return None


def _rows(table: str) -> Iterator[list[str]]:
    with open(table) as lines:
        next(lines, None)
        for line in lines:
            yield line.split()


def _as_listed(family: int, end: _End) -> str:
    """The kernel prints an address as words of its own byte order."""
    packed = socket.inet_pton(family, end.address)
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{end.port:04X}"
