"""The Unix account at the other end of a connection from this machine.

A TCP connection over loopback has both of its ends in one kernel, which knows whose socket the other end is. It is
asked over netlink (sock_diag), one message and one answer of some twenty microseconds, and where that isn't to be had
its table in /proc is read.

Rules: P1  None where the kernel doesn't tell: neither way works, or the connection comes from elsewhere
       P2  a peer that hung up before it was looked for has no owner any more: that is told apart from an account, for a
           request sent and left behind could be anybody's
Source: sock_diag(7), proc_pid_net(5) (`tcp`), unix(7) (SO_PEERCRED); linux/inet_diag.h, linux/sock_diag.h.
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from stoker.brain.domain.errors import Refusal, refuse

GONE: Final = -1
"""P2: instead of a uid."""
_ROOT: Final = 0

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
_TABLES: Final = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}


class _End(NamedTuple):
    address: str
    port: int


def peer_uid(connection: socket.socket) -> int | None:
    """The account at the other end, GONE, or None (P1). Only of a connection over loopback, or a Unix socket."""
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        return int(uid)
    with suppress(OSError, ValueError):
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        return tcp_owner(there, here)
    return None


def tcp_owner(one: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the uid that owns the end `one` of a TCP connection, or GONE, or None (P1)."""
    near, far = _plain(one), _plain(other)
    if not (ip_address(near.address).is_loopback and ip_address(far.address).is_loopback):
        return None
    try:
        return _from_netlink(near, far)
    except OSError:
        return _from_table(near, far)


def foreign_peer(uid: int | None) -> Refusal | None:
    """Return the refusal of an account that may not ask a control plane without tokens; None when it may."""
    ours = os.geteuid()
    if uid is None or uid in (ours, _ROOT):
        return None
    who = "a program that has hung up" if uid == GONE else f"uid {uid}"
    return refuse(
        "foreign_user",
        f"{who} asks, and this control plane serves uid {ours} alone",
        "start a cluster of your own with `stoker up`; one for several people is `stoker control`, which wants tokens",
        uid=uid,
        owner=ours,
    )


def _plain(end: tuple[str, int]) -> _End:
    """An IPv4 address that a listener for both kinds shows as IPv6 is an IPv4 one."""
    address = ip_address(end[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return _End(str(mapped or address), end[1])


# -- netlink ---------------------------------------------------------------------------------------------------------


class _Diag:
    """One netlink socket for all questions of a process."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._socket.settimeout(_ANSWER_S)
        self._sequence = 0

    def ask(self, family: int, one: _End, other: _End) -> bytes:
        """The answer with its header. Raises: OSError."""
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
    return _Diag()


def _packed(family: int, end: _End) -> bytes:
    return socket.inet_pton(family, end.address).ljust(16, b"\0")


def _from_netlink(one: _End, other: _End) -> int:
    """Raises: OSError where the kernel doesn't answer such questions."""
    family = socket.AF_INET6 if ":" in one.address else socket.AF_INET
    answer = _diag().ask(family, one, other)
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
    family = socket.AF_INET6 if ":" in one.address else socket.AF_INET
    ends = [_as_listed(family, one), _as_listed(family, other)]
    try:
        rows = list(_rows(_TABLES[family]))
    except OSError:
        return None
    found = next((row for row in rows if row[1:3] == ends), None)
    if found is None:
        return GONE if rows else None
    return int(found[7]) if int(found[9]) else GONE


def _rows(table: Path) -> Iterator[list[str]]:
    with table.open() as lines:
        next(lines, None)
        for line in lines:
            yield line.split()


def _as_listed(family: int, end: _End) -> str:
    """The kernel prints an address as words of its own byte order."""
    packed = socket.inet_pton(family, end.address)
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{end.port:04X}"
