"""How does a command that polls wait for the next look, and how long ago is an instant?

The one place of the command line that reads the machine's time. Not through the clock adapter: that brings an event
loop, which costs as much to import as `stoker list` takes to run.
"""

import time


def sleep_blocking(seconds: float) -> None:
    """Block for `seconds`; Ctrl-C raises KeyboardInterrupt."""
    time.sleep(seconds)


def now_ms() -> int:
    """Wall time in milliseconds since 1970, to measure spans for people."""
    return time.time_ns() // 1_000_000


def clock_text() -> str:
    """The time of day, for people."""
    return time.strftime("%H:%M:%S")


def mono_s() -> float:
    """Monotonic seconds, to bound a wait."""
    return time.monotonic()
