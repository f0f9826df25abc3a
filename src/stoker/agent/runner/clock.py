"""Clock of the runner.

The one exemption from the one clock: the runner imports nothing of Stoker's outside this folder.
"""

import time


def boot_s() -> float:
    """Return seconds since boot, suspend included: for every duration."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def awake_s() -> float:
    """Return seconds in which this machine was awake: for waits that a suspend mustn't shorten."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def pause(seconds: float) -> None:
    """Sleep, where nothing else is to be done meanwhile."""
    time.sleep(seconds)


def wall_ms() -> int:
    """Return milliseconds since 1970 UTC: for people."""
    return time.time_ns() // 1_000_000
