"""TLS of the REST listener: handshakes within bounds, and certificates that change without a restart.

asyncio's own listener tells of a connection once its handshake is done, so that half-open ones would be in no count.

Rules: H1  a connection counts from when it is accepted (N8 of `connections`), so those that owe a handshake make place
           for new ones first, and one address can't have all places
       H2  who hasn't finished the handshake after HANDSHAKE_S is hung up on
       H3  who speaks plain HTTP is told once, in plain HTTP, what to write instead; nothing is read of the request
       H4  when no file can be opened, connections stay in the kernel's queue for PAUSE_S
       H5  new credentials are for handshakes from now on; connections that are open go on
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from stoker.api.http.connections import Connections, HttpConnection, last_answer
from stoker.brain.domain.errors import refuse

HANDSHAKE_S: Final = 10.0
GOODBYE_S: Final = 5.0
"""How long the end of a connection may take until it is cut: a client that is gone never says goodbye."""
TAKEN_MAX: Final = 64
"""Connections accepted in one go, before others have their turn."""
PAUSE_S: Final = 1.0
_FIRST_BYTE: Final = 0x16
"""Of a TLS handshake: RFC 8446, section 5.1."""
_PLAIN_BYTES_MAX: Final = 64 * 1024


def server_context(key: bytes, chain: bytes) -> ssl.SSLContext:
    """Return what a listener serves with: TLS 1.2 or newer. `key` and `chain` are PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Tickets would come before an answer, and a client that waits for its beginning sees them. Sessions are few.
    context.num_tickets = 0
    load_credentials(context, key, chain)
    return context


def load_credentials(context: ssl.SSLContext, key: bytes, chain: bytes) -> None:
    """Serve with another key and certificate chain (H5). The key is in no file of a disk."""
    memory = os.memfd_create("stoker-credentials", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(chain + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


class TlsListener:
    """A listener whose connections are served once their handshake is done."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        connections: Connections,
        protocol: Callable[[], HttpConnection],
    ) -> None:
        self._listener = listener
        self._context = context
        self._connections = connections
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._arrivals: set[_Arrival] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections from now on."""
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Accept no more, and hang up on those whose handshake isn't done."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        for arrival in self._arrivals:
            arrival.abort()
        await asyncio.gather(*(arrival.task for arrival in self._arrivals), return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(TAKEN_MAX):
            try:
                connection, (address, *_) = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # H4
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self.start)
                return
            connection.setblocking(False)
            arrival = _Arrival(connection, address, self._loop)
            if self._connections.add(arrival) is not None:
                connection.close()
                continue
            self._connections.owes(arrival)
            self._arrivals.add(arrival)
            arrival.task = self._loop.create_task(self._welcome(arrival))
            arrival.task.add_done_callback(partial(self._forget, arrival))

    async def _welcome(self, arrival: "_Arrival") -> None:
        with suppress(OSError):  # a TimeoutError and an SSLError are OSErrors
            async with asyncio.timeout(HANDSHAKE_S):  # H2
                if await arrival.first_byte() != _FIRST_BYTE:
                    await arrival.tell_plain()
                    return

            def served() -> HttpConnection:
                protocol = self._protocol()
                protocol.instead_of = arrival
                return protocol

            await self._loop.connect_accepted_socket(
                served,
                arrival.connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=GOODBYE_S,
            )
            arrival.is_served = True

    def _forget(self, arrival: "_Arrival", _task: "asyncio.Task[None]") -> None:
        """The task is over, or was cancelled before its first step."""
        if not arrival.is_served:
            arrival.connection.close()
        self._connections.remove(arrival)
        self._arrivals.discard(arrival)


class _Arrival:
    """A connection before its handshake is done."""

    task: "asyncio.Task[None]"

    def __init__(self, connection: socket.socket, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.address = address
        self.loop = loop
        self.is_served = False
        """Whether the handshake is done, so that the connection is its transport's."""

    def abort(self) -> None:
        self.task.cancel()

    def dismiss(self) -> None:
        """Before the handshake nothing can be said."""
        self.abort()

    async def first_byte(self) -> int:
        """Wait for the first byte that comes, and leave it there. Raises: OSError, also where none will come."""
        ready = self.loop.create_future()
        self.loop.add_reader(self.connection, _set, ready)
        try:
            await ready
        finally:
            self.loop.remove_reader(self.connection)
        first = self.connection.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError("it hung up")
        return first[0]

    async def tell_plain(self) -> None:
        """Answer a request of plain HTTP (H3), and wait until the client has read that. Raises: OSError."""
        hint = "write https:// before its name; `stoker login https://HOST:PORT --token T` learns whom to trust"
        refusal = refuse("tls_wanted", "this port speaks TLS, and http:// was asked for", hint)
        await self.loop.sock_sendall(self.connection, last_answer(refusal))
        self.connection.shutdown(socket.SHUT_WR)
        # What is unread when a connection is closed may cost its client the answer.
        left = _PLAIN_BYTES_MAX
        while left > 0 and (data := await self.loop.sock_recv(self.connection, left)):
            left -= len(data)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
