"""The Unix account at the other end of a connection from this machine, and whether it may ask.

Source: unix(7) (SO_PEERCRED).
"""

import os
import socket
import struct
from contextlib import suppress
from typing import Final

from stoker.brain.domain.errors import Refusal, refuse
from stoker.wire.socket_owner import GONE, tcp_owner

_ROOT: Final = 0


def peer_uid(connection: socket.socket) -> int | None:
    """The account at the other end, GONE, or None where the kernel doesn't tell. Over loopback, or a Unix socket."""
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        return int(uid)
    with suppress(OSError, ValueError):
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        return tcp_owner(there, here)
    return None


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
