"""Wall clock and monotonic clock of this machine: the only reader of its time.

The only reader of the machine's clock (the runner, which must count through a suspend, is the one exemption).

Rules: C1  `now` is the wall clock as it was at construction plus monotonic time since: a later step of the wall clock
           doesn't reach it, so limits fire neither early nor late
       C2  `mono` counts on while the machine sleeps, as leases must
       C3  `mono` starts at a random offset: a value from another clock, or a wall time taken for it, is wrong by hours
           and shows at once
Source: the offset is trio's (`trio._core._run.SystemClock`).
"""

import asyncio
import time
from typing import Final

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.units import Instant, Mono

_OFFSET_LOW_S: Final = 10_000.0
_OFFSET_HIGH_S: Final = 1_000_000.0
_NS_PER_MS: Final = 1_000_000


class SystemClock:
    """The machine's clock behind the `Clock` port."""

    def __init__(self) -> None:
        self._offset_s = SystemEntropy().jitter(_OFFSET_LOW_S, _OFFSET_HIGH_S)
        self._wall_anchor_ns = time.time_ns()
        self._mono_anchor_ns = time.monotonic_ns()

    def now(self) -> Instant:
        elapsed_ns = time.monotonic_ns() - self._mono_anchor_ns
        return Instant((self._wall_anchor_ns + elapsed_ns) // _NS_PER_MS)

    def mono(self) -> Mono:
        return Mono(time.clock_gettime(time.CLOCK_BOOTTIME) + self._offset_s)

    async def sleep(self, seconds: float) -> None:
        """A negative wait is no wait, but still lets others run."""
        await asyncio.sleep(max(0.0, seconds))
