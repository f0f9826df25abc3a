"""The HTTP servers of a control plane: TCP for everybody, a Unix socket for its own account.

One uvicorn server on the process's own event loop, on sockets that are bound already. Where TCP speaks TLS, its
connections are accepted by a listener of our own (`tls`); the Unix socket stays plain.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from stoker.api.http.connections import CONNECTIONS_MAX, FILES_PART, KEEP_ALIVE_S, Connections, HttpConnection
from stoker.api.http.tls import TlsListener
from stoker.api.listen import connections_max
from stoker.api.peer_credentials import foreign_peer, peer_uid
from stoker.brain.domain.errors import Refusal
from stoker.control.supervisor import Duties

STOP_GRACE_S: Final = 1
"""For answers under way. Event streams end by themselves before."""


class _QuietUvicorn(uvicorn.Server):
    """The uvicorn server without signal handling, which belongs to the program that starts the control plane.

    uvicorn would raise the signals again after it served, and so skip all that closes after it.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_http(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    duties: Duties,
    *,
    for_owner_alone: bool = False,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve HTTP from entry to exit; over TCP with TLS, where a `context` is given.

    Over a Unix socket only our own account and root may ask; `for_owner_alone` says the same of TCP, as far as the
    kernel tells who asks.
    """

    def admit(connection: socket.socket) -> Refusal | None:
        asked = for_owner_alone or connection.family == socket.AF_UNIX
        return foreign_peer(peer_uid(connection)) if asked else None

    connections = Connections(connections_max(CONNECTIONS_MAX, FILES_PART), admit)
    config = uvicorn.Config(
        app,
        http=partial(HttpConnection, connections),  # type: ignore[arg-type]  # as a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_GRACE_S,
    )
    server = _QuietUvicorn(config)
    plain = [each for each in listeners if context is None or each.family == socket.AF_UNIX]
    made = partial(HttpConnection, connections, config, server.server_state, {})
    secured = [TlsListener(each, context, connections, made) for each in listeners if each not in plain and context]
    serving = duties.begin("https" if secured else "http", server.serve(sockets=plain))
    for each in secured:
        each.start()
    try:
        yield
    finally:
        for each in secured:
            await each.stop()
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
