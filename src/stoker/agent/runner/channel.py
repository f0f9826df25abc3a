"""Channel between the runner and one agent at a time: a UNIX socket in the data folder.

It is open to the folder's owner only: by its mode, and by asking the kernel for the account of the peer. A newer agent
replaces the older: after a restart the old connection may not have been noticed to be dead.

Limits: an agent that doesn't read is given up when `OUT_MAX` bytes wait for it; the next inventory says it all.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress

from stoker.agent.runner.protocol import BadFrame, Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

OUT_MAX: Final = 32 * 1024 * 1024
_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid, gid."""
_READ_BYTES: Final = 256 * 1024
"""Taken from the socket in one turn."""


def peer_uid(peer: socket.socket) -> int:
    """Return the uid of the process that opened this connection. Source: SO_PEERCRED in unix(7)."""
    uid: int = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid


class Channel:
    """The listening socket and the agent that is connected."""

    def __init__(self, path: str, epoll: select.epoll) -> None:
        """`path` is relative to the working directory: a UNIX address holds 107 bytes, a data folder's name may be
        longer. Raises OSError."""
        self._epoll = epoll
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(before)
        self._listener.listen(4)
        self.listening = self._listener.fileno()
        self._epoll.register(self.listening, select.EPOLLIN)
        self._agent: socket.socket | None = None
        self.talking = -1
        """Descriptor of the agent's connection. -1 = there is none."""
        self._decoder = Decoder()
        self._out = bytearray()

    def accept(self) -> bool:
        """Take a newer agent instead of the present one. False when it has gone again, or is of a foreign account."""
        try:
            agent, _ = self._listener.accept()
        except OSError:
            return False
        if peer_uid(agent) not in (0, os.geteuid()):
            agent.close()
            return False
        self.dismiss("another agent has connected to this runner")
        agent.setblocking(False)
        self._agent, self.talking = agent, agent.fileno()
        self._epoll.register(self.talking, select.EPOLLIN)
        return True

    def receive(self) -> list[dict[str, object]]:
        """Return the messages of the agent, as far as one turn takes them; none once it has gone."""
        if self._agent is None:
            return []
        try:
            received = self._agent.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        if not received:
            self.hang_up()
            return []
        try:
            return list(self._decoder.feed(received))
        except BadFrame as error:
            self.dismiss(str(error))
            return []

    def say(self, message: Mapping[str, object]) -> None:
        """Put a message on its way to the agent, if there is one; `flush` sends it."""
        if self._agent is None:
            return
        self._out += encode(message)
        if len(self._out) > OUT_MAX:
            self.hang_up()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        if self._agent is None or not self._out:
            return
        try:
            sent = self._agent.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.hang_up()
            return
        del self._out[:sent]
        wanted = select.EPOLLIN | (select.EPOLLOUT if self._out else 0)
        self._epoll.modify(self.talking, wanted)

    @property
    def waiting(self) -> bool:
        """Whether something is unsent."""
        return bool(self._out)

    def dismiss(self, why: str) -> None:
        """Tell the agent, if there is one, why it is left, and close the connection."""
        self.say({"say": "bye", "error": why})
        self.flush()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection to the agent, if there is one."""
        if self._agent is None:
            return
        self._epoll.unregister(self.talking)
        self._agent.close()
        self._agent, self.talking = None, -1
        self._decoder = Decoder()
        self._out.clear()
