"""Where do people and programs reach this control plane?

One uvicorn server on the process's own event loop, on a socket that is bound already.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import uvicorn
from fastapi import FastAPI

from stoker.live.http.connections import KEEP_ALIVE_S, Connection, Connections, connections_max
from stoker.live.supervise import Duties

STOP_GRACE_S: Final = 1
"""For answers under way. Event streams end by themselves before."""


class _Server(uvicorn.Server):
    """Signals belong to whoever started the control plane: uvicorn would raise them again after it served, and so skip
    all that closes after it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_http(app: FastAPI, listener: socket.socket, duties: Duties) -> AsyncIterator[None]:
    """Serve from entry to exit."""
    server = _Server(
        uvicorn.Config(
            app,
            http=partial(Connection, Connections(connections_max())),  # type: ignore[arg-type]  # called as a class
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
    )
    serving = duties.begin("http", server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
