"""What time is it for the runner?

The one exemption from the one clock: the runner imports nothing of Stoker's outside this folder.
"""

import time


def boot_s() -> float:
    """Seconds since boot, suspend included: for every duration."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def awake_s() -> float:
    """Seconds in which this machine was awake: for waits that a suspend mustn't shorten."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def pause(seconds: float) -> None:
    """For whoever has nothing else to do meanwhile."""
    time.sleep(seconds)


def wall_ms() -> int:
    """Milliseconds since 1970 UTC: for people."""
    return time.time_ns() // 1_000_000
