"""Foreground run of a daemon: until a signal asks it to stop, and without lines of the gRPC library in between."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def quiet_grpc() -> None:
    """Keep the C++ core of gRPC from writing to stderr past any logging, for example before the error of a port in use.

    Must run before gRPC is imported. A GRPC_VERBOSITY that is set already, as for debugging, is left alone.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def run_until_signal(
    body: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, again: Callable[[], object] | None = None
) -> None:
    """Run `body(stop)` to its end. The first SIGTERM or SIGINT sets `stop`, every later one calls `again`."""

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set() and again is not None:
                again()
            stop.set()

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
        await body(stop)

    asyncio.run(run())
