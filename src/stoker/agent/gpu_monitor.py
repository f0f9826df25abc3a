"""Figures of this node's GPUs, looked at every few seconds, for its heartbeat and its metrics page.

Rules: G1  a look that fails stops nothing: the figures grow old, and say how old they are; the next look comes later
           with each that fails in a row
       G2  where there is nothing to ask, it is asked again as seldom as for GPUs themselves
       G3  a GPU is quiet for as long as the same tasks hold it and none of them computes; one whose utilisation isn't
           told is never quiet
       G4  a heartbeat has the figures of a look once, also of a look that found no GPU
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from stoker.agent.machine import GpuWatch
from stoker.agent.ports import Holders
from stoker.brain.domain.gpu_telemetry import QUIET_PERCENT, GpuLook, GpuReading, GpuSample
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import SECOND_MS, Mono
from stoker.ports import Clock, ProbedGpu, Telemetry

PAUSE_MAX_S: Final = 60.0
"""Between two looks of which none succeeds."""

Sample = Callable[[Sequence[int] | None, Collection[GpuUuid]], Awaitable[GpuLook]]


class NothingToAsk(OSError):
    """There is no driver that could be asked for figures."""


class DeviceLook(NamedTuple):
    """Answer of the newest look, and what tasks held then."""

    samples: tuple[GpuSample, ...]
    readings: tuple[GpuReading, ...]
    holders: Holders
    at: Mono
    simulated: bool = False


class GpuMonitor:
    """The GpuCare port: monitor of this node's GPUs."""

    def __init__(
        self, sample: Sample, clock: Clock, telemetry: Telemetry, *, period_s: float, seldom_s: float = PAUSE_MAX_S
    ) -> None:
        """`sample` raises OSError, and NothingToAsk where there is no driver. `seldom_s`: between two looks then."""
        self._sample = sample
        self._clock = clock
        self._telemetry = telemetry
        self._period_s = period_s
        self._seldom_s = seldom_s
        self._told = ""
        self._sent_at: Mono | None = None
        self._busy: dict[GpuUuid, tuple[tuple[TaskKey, ...], Mono]] = {}
        # Of each GPU that is held: by which tasks, and since when they have computed nothing.
        self.figures: DeviceLook | None = None
        """Those of the newest look. None = none has succeeded."""
        self.clock_ahead_ms = 0
        """By how much a script moves the clock of this node."""
        self._asking = asyncio.Lock()

    async def run(self, holders: Callable[[], Holders]) -> None:
        """Look again and again, until cancelled."""
        failed = 0
        while True:
            try:
                await self.look(holders())
            except NothingToAsk:
                await self._clock.sleep(self._seldom_s)  # G2
                continue
            except OSError as fault:
                failed += 1
                self._tell(str(fault))
                await self._clock.sleep(min(self._period_s * 2 ** min(failed, 10), PAUSE_MAX_S))  # G1
                continue
            failed = 0
            self._tell("")
            await self._clock.sleep(self._period_s)

    async def look(self, holders: Holders) -> DeviceLook:
        """Look at every GPU now. Raises: OSError."""
        async with self._asking:
            look = await self._sample(None, holders.keys())
        now = self._clock.mono()
        self.clock_ahead_ms = look.clock_ahead_ms
        readings = tuple(self._reading(sample, holders, now) for sample in look.samples if sample.uuid)
        self._busy = {uuid: busy for uuid, busy in self._busy.items() if uuid in holders}
        self.figures = DeviceLook(look.samples, readings, holders, now, look.simulated)
        return self.figures

    def fill(self, beat: Beat) -> Beat:
        """Return a beat with the figures that none had before (G4), and with this node's clock."""
        at = self._clock.now() + self.clock_ahead_ms
        if self.figures is None or self.figures.at == self._sent_at:
            return msgspec.structs.replace(beat, at=at)
        self._sent_at = self.figures.at
        age_ms = round((self._clock.mono() - self.figures.at) * SECOND_MS)
        return msgspec.structs.replace(beat, at=at, gpus=self.figures.readings, gpus_age_ms=age_ms)

    def _reading(self, sample: GpuSample, holders: Holders, now: Mono) -> GpuReading:
        return GpuReading(
            uuid=sample.uuid,
            utilization_percent=sample.utilization_percent,
            memory_used_mb=sample.memory_used_mb,
            temperature_c=sample.temperature_c,
            power_mw=sample.power_mw,
            quiet_ms=round(self._quiet_s(sample, tuple(holders.get(sample.uuid, ())), now) * SECOND_MS),
        )

    def _quiet_s(self, sample: GpuSample, keys: tuple[TaskKey, ...], now: Mono) -> float:
        """Return for how long the tasks that hold it have computed nothing there (G3)."""
        if not keys:
            return 0.0
        before, since = self._busy.get(sample.uuid, ((), now))
        computes = sample.utilization_percent is None or sample.utilization_percent > QUIET_PERCENT
        if before != keys or computes:
            since = now
        self._busy[sample.uuid] = keys, since
        return now - since

    def _tell(self, trouble: str) -> None:
        """Once per trouble."""
        if trouble and trouble != self._told:
            self._telemetry.warn("gpu_figures_missing", error=trouble)
        elif self._told and not trouble:
            self._telemetry.event("gpu_figures_back")
        self._told = trouble


class MetricsSource(NamedTuple):
    """Parts of an agent that its metrics page reads."""

    node: NodeName
    monitor: GpuMonitor | None
    watch: GpuWatch
    mono: Callable[[], Mono]

    @property
    def figures(self) -> DeviceLook | None:
        """The newest look. None = there is none."""
        return self.monitor.figures if self.monitor else None

    @property
    def gpus(self) -> Sequence[ProbedGpu]:
        return self.watch.offered.gpus
