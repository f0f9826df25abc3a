"""Clock, chance and telemetry of a simulated run."""

import asyncio
import random
from typing import Final

from stoker.brain.domain.units import Instant, Mono

EPOCH_MS: Final = 1_800_000_000_000


class SimClock:
    """The Clock port on the virtual loop. Wall and monotonic time differ by an offset, as in the world.

    Each process has one of its own. All processes of a machine share its `rate`: how many seconds it counts in one.
    """

    def __init__(self, wall_offset_s: float = 0.0, *, rate: float = 1.0) -> None:
        self._wall_ms = EPOCH_MS + round(wall_offset_s * 1000)
        self._rate = rate
        self._ahead_s = self._slept_s = 0.0

    def now(self) -> Instant:
        return Instant(self._wall_ms + int(self._counted_s() * 1000))

    def mono(self) -> Mono:
        return Mono(77.0 + self._counted_s())

    def awake(self) -> Mono:
        return Mono(self._counted_s() - self._slept_s)

    def _counted_s(self) -> float:
        return asyncio.get_running_loop().time() * self._rate + self._ahead_s

    def correct(self, by_s: float) -> None:
        """The wall clock of the machine is set."""
        self._wall_ms += round(by_s * 1000)

    def suspend(self, for_s: float) -> None:
        """The machine has slept for so long in this very moment of all others, and its wall clock has gone on."""
        self._ahead_s += for_s
        self._slept_s += for_s

    def slept(self, for_s: float) -> None:
        """The machine has just slept for so long."""
        self._slept_s += for_s * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


class SimEntropy:
    """The Entropy port from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._drawn = 0

    def uid(self) -> str:
        self._drawn += 1
        return f"{self._random.getrandbits(64):016x}-{self._drawn}"

    def seed(self) -> int:
        return self._random.getrandbits(63)

    def jitter(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class Notes:
    """The Telemetry port: keeps what was said, for assertions and for the story of a failed seed."""

    def __init__(self, clock: SimClock, who: str, lines_max: int = 5_000) -> None:
        self._clock, self.who, self._lines_max = clock, who, lines_max
        self.lines: list[str] = []
        self.counts: dict[str, int] = {}
        self.gauges: dict[str, float] = {}

    def event(self, name: str, **fields: object) -> None:
        if len(self.lines) < self._lines_max:
            said = " ".join(f"{key}={value}" for key, value in fields.items())
            self.lines.append(f"{self._clock.mono():10.3f} {self.who} {name} {said}")

    def warn(self, name: str, **fields: object) -> None:
        self.event(name, **fields)
        self.count(name)

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        self.count(f"{name}_observed")
