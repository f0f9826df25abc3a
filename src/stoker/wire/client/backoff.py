"""Back-off of clients: waiting before the next request, and random jitter.

The one place of the client library that blocks, reads a clock, and draws: a program that uses it has no Clock and no
Entropy of ours to hand in, and importing the adapters would cost the command line more than its answer does.
"""

import os
import time
from typing import Final

_SPREAD: Final = 0.5
"""A pause is drawn from within this share of its length, so that many clients don't come back together."""


def sleep_blocking(seconds: float) -> None:
    """Block for `seconds`; Ctrl-C raises KeyboardInterrupt."""
    time.sleep(seconds)


async def sleep_async(seconds: float) -> None:
    """Let others run for `seconds`."""
    import asyncio

    await asyncio.sleep(seconds)


def mono_s() -> float:
    """Seconds of a clock that only runs forward."""
    return time.monotonic()


def jittered(seconds: float) -> float:
    """A pause of about `seconds`."""
    lot = int.from_bytes(os.urandom(4), "big") / (1 << 32)
    return seconds * (1 - _SPREAD + 2 * _SPREAD * lot)


def fresh_key() -> str:
    """An idempotency key that nobody else draws."""
    return os.urandom(16).hex()
