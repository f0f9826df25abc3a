"""Where do people and programs reach this control plane?

One uvicorn server on the process's own event loop, on a socket that is bound already.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import uvicorn
from fastapi import FastAPI

from stoker.live.supervise import Duties

STOP_GRACE_S: Final = 1
"""For answers under way. Event streams end by themselves before."""
KEEP_ALIVE_S: Final = 75
"""Longer than most clients keep an idle connection, so that it is they who close it."""


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
            http="httptools",
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
