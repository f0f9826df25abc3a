"""Connections to ports on which a task of this node listens, and to no other.

The control plane lets the owner of a job reach its ports. The loopback of a node is shared by all of its jobs and
services, so before a connection is used it is made sure, by the kernel's tables, that a process of that very task
listens there.

Rules: D1  all sockets that could take the connection belong to processes of the task: those bound to the very address,
           else those bound to every address. It is looked at before the connection is made, and once more after it
       D2  the loopback of IPv4 goes before that of IPv6
       D3  processes of a task are those with its mark, and their descendants
Source: proc_pid_net(5) (`tcp`, `tcp6`), proc_pid_fd(5).
"""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from stoker.agent.runner.files import opened
from stoker.agent.runner.process.procfs import every_proc, mark_of, with_descendants
from stoker.agent.runner.protocol import key_text
from stoker.agent.runner.session.frames import SOCKET_NAME, encode_control
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import SessionOpening

CONNECT_S: Final = 5.0
_LISTEN: Final = "0A"


_V4: Final = (socket.AF_INET, "127.0.0.1")
_ALL_V4: Final = (socket.AF_INET, "0.0.0.0")
_V6: Final = (socket.AF_INET6, "::1")
_ALL_V6: Final = (socket.AF_INET6, "::")
_MAPPED: Final = (socket.AF_INET6, "::ffff:127.0.0.1")
_LOOPBACKS: Final = (
    ("127.0.0.1", ((_V4, _MAPPED), (_ALL_V4, _ALL_V6))),
    ("::1", ((_V6,), (_ALL_V6,))),
)
_TABLES: Final = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


class TaskPorts:
    """The Dialer port on a real node."""

    def __init__(
        self, aside: Callable[[Callable[[TaskKey, int], str], TaskKey, int], Awaitable[str]], runner_folder: Path
    ) -> None:
        """`aside` looks in a thread: on a node of thousands of processes that takes some tenths of a second.
        `runner_folder`: the data folder of the runner, where its sessions are reached."""
        self._aside = aside
        self._runner_folder = runner_folder

    async def enter(self, key: TaskKey, opening: SessionOpening) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a session that the runner holds, and say which. Raises: OSError, whose text is for people."""
        try:
            with opened(self._runner_folder, os.O_PATH | os.O_DIRECTORY) as folder:
                reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        except (FileNotFoundError, ConnectionError) as fault:
            words = "the runner of this node holds no sessions: it is of an older version, or gone"
            raise OSError(errno.ECONNREFUSED, words) from fault
        fields = msgspec.structs.asdict(opening)
        writer.write(encode_control(type="open", key=key_text(key.job, key.attempt, key.rank), **fields))
        return reader, writer

    async def dial(self, key: TaskKey, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port on which the task listens. Raises: OSError, whose text is for people."""
        address = await self._aside(_address_of, key, port)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(address, port)
        try:
            if await self._aside(_address_of, key, port) != address:
                raise _nothing_listens(port)
        except OSError:
            writer.transport.abort()
            raise
        return reader, writer


def _address_of(key: TaskKey, port: int) -> str:
    """Return the loopback address at which the task listens on this port. Raises: OSError."""
    listeners = dict(_listeners(port))
    others = False
    if listeners:
        own = _sockets_of(key)
        for address, steps in _LOOPBACKS:
            taken = next((found for step in steps if (found := _at(listeners, step))), frozenset())
            if taken and taken <= own:
                return address
            others = others or bool(taken)
    if others:
        raise OSError(errno.EACCES, f"what listens on port {port} of its node is none of this task's")
    raise _nothing_listens(port)


def _nothing_listens(port: int) -> OSError:
    return OSError(errno.ECONNREFUSED, f"nothing of this task listens on port {port} of its node")


def _at(listeners: dict[tuple[int, str], frozenset[int]], step: tuple[tuple[int, str], ...]) -> frozenset[int]:
    return frozenset().union(*(listeners.get(each, frozenset()) for each in step))


def _listeners(port: int) -> Iterator[tuple[tuple[int, str], frozenset[int]]]:
    """Yield the inodes of sockets that listen on this port, by family and address."""
    found: dict[tuple[int, str], set[int]] = {}
    for family, table in _TABLES.items():
        with suppress(OSError), open(table) as lines:
            next(lines, None)
            for line in lines:
                row = line.split()
                address, _, number = row[1].partition(":")
                if row[3] == _LISTEN and int(number, 16) == port:
                    found.setdefault((family, _text(family, address)), set()).add(int(row[9]))
    for where, inodes in found.items():
        yield where, frozenset(inodes)


def _text(family: int, listed: str) -> str:
    """The kernel prints an address as words of its own byte order."""
    words = (int(listed[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(listed), 8))
    return socket.inet_ntop(family, b"".join(words))


def _sockets_of(key: TaskKey) -> Set[int]:
    """Return the inodes of all sockets that processes of a task hold (D3)."""
    mark = f"{key_text(key.job, key.attempt, key.rank)}."
    procs = every_proc()
    roots = {pid for pid in procs if mark_of(pid).startswith(mark)}
    found: set[int] = set()
    for proc in with_descendants(roots, procs):
        with suppress(OSError):
            for name in os.listdir(f"/proc/{proc.pid}/fd"):
                with suppress(OSError):
                    link = os.readlink(f"/proc/{proc.pid}/fd/{name}")
                    if link.startswith("socket:["):
                        found.add(int(link[8:-1]))
    return found
