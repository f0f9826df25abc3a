"""Wall clock and monotonic clocks of this machine: the only reader of its time.

The only reader of the machine's clock (the runner, which imports nothing of Stoker's, is the one exemption).

Rules: C1  `now` is anchored: the wall clock of a while ago plus what CLOCK_BOOTTIME counted since, so that it is right
           at once after a suspend. A step of the wall clock is followed within LOOK_S, by at most STEP_MAX_S with each
           look: a glitch of moments can't carry the log, whose time never runs backwards, to another year
       C2  `mono` counts on while the machine sleeps, as leases must; `awake` stands still meanwhile
       C3  `mono` starts at a random offset: a value from another clock, or a wall time taken for it, is wrong by hours
           and shows at once
Source: the offset is trio's (`trio._core._run.SystemClock`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.units import Instant, Mono

_OFFSET_LOW_S: Final = 10_000.0
_OFFSET_HIGH_S: Final = 1_000_000.0
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
LOOK_S: Final = 2
"""Between two looks at the wall clock."""
STEP_MAX_S: Final = 3_600
"""A clock that was days off is followed within minutes."""
_STEP_MIN_NS: Final = 100_000_000
"""Less may be a process that had to wait between two readings."""


class Readings(NamedTuple):
    """The machine's three clocks, in nanoseconds."""

    wall: Callable[[], int] = lambda: time.time_ns()
    boot: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    """Suspend included, set by nobody."""
    awake: Callable[[], int] = time.monotonic_ns
    """Suspend excluded, set by nobody."""


_OF_THIS_MACHINE: Final = Readings()


class SystemClock:
    """The machine's clock behind the `Clock` port."""

    def __init__(self, readings: Readings = _OF_THIS_MACHINE) -> None:
        self._offset_s = SystemEntropy().jitter(_OFFSET_LOW_S, _OFFSET_HIGH_S)
        self._read = readings
        self._look_at_ns = boot_ns = readings.boot()
        self._wall_over_boot_ns = readings.wall() - boot_ns

    def now(self) -> Instant:
        boot_ns = self._read.boot()
        if boot_ns >= self._look_at_ns:
            self._look_at_ns = boot_ns + LOOK_S * _NS_PER_S
            step_ns = self._read.wall() - boot_ns - self._wall_over_boot_ns
            if abs(step_ns) >= _STEP_MIN_NS:
                self._wall_over_boot_ns += max(-STEP_MAX_S * _NS_PER_S, min(step_ns, STEP_MAX_S * _NS_PER_S))
        return Instant((boot_ns + self._wall_over_boot_ns) // _NS_PER_MS)

    def mono(self) -> Mono:
        return Mono(self._read.boot() / _NS_PER_S + self._offset_s)

    def awake(self) -> Mono:
        return Mono(self._read.awake() / _NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        """A negative wait is no wait, but still lets others run."""
        await asyncio.sleep(max(0.0, seconds))
