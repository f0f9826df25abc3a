"""How does a body run in the foreground until someone asks it to stop?

The first SIGTERM or SIGINT asks for a clean stop. What a second one does is the body's to say.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_until_signal(
    body: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, again: Callable[[], object] | None = None
) -> None:
    """Run `body(stop)` to its end; `stop` is set by the first signal, `again` is called by every later one."""
    asyncio.run(_until_signal(body, again))


async def _until_signal(
    body: Callable[[asyncio.Event], Coroutine[Any, Any, None]], again: Callable[[], object] | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set() and again is not None:
            again()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, asked)
    await body(stop)
