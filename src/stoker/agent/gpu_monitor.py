"""Monitor of this node's GPUs: their figures, looked at every few seconds, their health, and whether they are clean.

Rules: G1  a look that fails stops nothing: the figures grow old, and say how old they are; the next look comes later
           with each that fails in a row
       G2  where there is nothing to ask, it is asked again as seldom as for GPUs themselves
       G3  a GPU is quiet for as long as the same tasks hold it and none of them computes; one whose utilisation isn't
           told is never quiet
       G4  a heartbeat has the figures of a look once, also of a look that found no GPU
       G5  the end of a task is told only when each GPU that no other task has is clean, or known not to be, so that the
           node no longer offers it; a GPU may take `RELEASE_S` for that. An agent's first look is waited for; where
           none has ever succeeded nothing can be said, and nothing is held up
       G6  while a script says that what was killed is still leaving a GPU, the end of its task isn't told
       G7  an end names the fault of a GPU that was found with it, if the task didn't end well; a GPU that isn't listed
           any more is lost once two looks in a row miss it
       G8  no GPU is called dirty whose task is just ending, or had begun or ended while the look was under way
       G9  while somebody looks at this node, its GPUs are looked at every second or so, and what is seen is told at
           once. Health is judged no more often for that, but for errors, which the driver tells once: who looks on
           changes nothing
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from stoker.agent.gpu_health import LOOKS_MAX, NOT_LISTED, Found, GpuHealth, HealthMemory, carried_over
from stoker.agent.gpu_ports import Holders
from stoker.agent.machine import GpuWatch
from stoker.agent.runner.files import replace_file
from stoker.brain.domain.gpu_telemetry import QUIET_PERCENT, FigureWatch, GpuLook, GpuReading, GpuSample
from stoker.brain.domain.health import GpuCondition, HealthKind
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import SECOND_MS, Instant, Mono
from stoker.ports import Clock, ProbedGpu, Telemetry

HEALTH_NAME: Final = "gpu_health.json"
_HEALTH_BYTES_MAX: Final = 1 << 20
WATCH_EVERY_S_MIN: Final = 1.0
"""However often a control plane asks for figures."""
WATCH_S_MAX: Final = 60.0
"""However long: it asks again."""
PAUSE_MAX_S: Final = 60.0
"""Between two looks of which none succeeds."""
_NEARLY: Final = 0.9
"""Of a period: a look that came a little early is one of its own."""
RELEASE_S: Final = 5.0
"""A driver takes a second or two to give back what a large process had."""
STALE_S: Final = 20.0
LOOKS_STALE: Final = 4
"""Figures are stale after so many seconds, and so many looks that failed. REST calls them stale after the same."""
RELEASE_LOOK_S: Final = 0.1
"""Between two looks at a GPU that isn't clean yet; each pause is longer by half than the one before."""

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
    divided: tuple[GpuUuid, ...] = ()


class GpuMonitor:
    """The GpuCare port: monitor of this node's GPUs."""

    def __init__(
        self,
        sample: Sample,
        clock: Clock,
        telemetry: Telemetry,
        health: GpuHealth,
        *,
        period_s: float,
        seldom_s: float = PAUSE_MAX_S,
    ) -> None:
        """`sample` raises OSError, and NothingToAsk where there is no driver. `seldom_s`: between two looks then."""
        self._sample = sample
        self.health = health
        self.changed: Callable[[], None] = _ignore
        """Called when a condition has changed."""
        self.keep: Callable[[HealthMemory], None] = _ignore
        """Called when there is something that an agent which starts anew should know."""
        self.gates = True
        """Whether GPUs are looked at after each task (G5)."""
        self._releasing: dict[GpuUuid, int] = {}
        # GPUs whose task has ended and that aren't judged yet, and by how many ends.
        self._clock = clock
        self._telemetry = telemetry
        self.period_s = period_s
        self._seldom_s = seldom_s
        self._told = ""
        self._sent_at: Mono | None = None
        self._busy: dict[GpuUuid, tuple[tuple[TaskKey, ...], Mono]] = {}
        # Of each GPU that is held: by which tasks, and since when they have computed nothing.
        self._watched_every_s, self._watched_until = period_s, Mono(0.0)
        self._is_watched_anew = asyncio.Event()
        self._is_looked = asyncio.Event()
        # Set once a look has ended, well or not.
        self.figures: DeviceLook | None = None
        """Those of the newest look. None = none has succeeded."""
        self.clock_ahead_ms = 0
        """By how much a script moves the clock of this node."""

    def watch(self, asked: FigureWatch) -> None:
        """Look so often for so long (G9)."""
        every_s, for_s = asked.every_ms / SECOND_MS, asked.for_ms / SECOND_MS
        self._watched_every_s = min(max(every_s, WATCH_EVERY_S_MIN), self.period_s)
        self._watched_until = Mono(self._clock.mono() + min(for_s, WATCH_S_MAX))
        self._is_watched_anew.set()

    @property
    def _is_watched(self) -> bool:
        return self._clock.mono() < self._watched_until

    async def run(self, holders: Callable[[], Holders | None], tell: Callable[[], None]) -> None:
        """Look again and again, until cancelled."""
        failed, judged_at = 0, None
        while True:
            try:
                before = holders()
                look = await self.look(before or {})
                # An error of the driver is told once (G9).
                is_due = judged_at is None or look.at - judged_at >= _NEARLY * self.period_s
                if is_due or any(sample.xids for sample in look.samples):
                    judged_at = look.at
                    self._judge(before, holders())
            except NothingToAsk:
                await self._clock.sleep(self._seldom_s)  # G2
                continue
            except OSError as fault:
                failed += 1
                self._tell(str(fault))
                await self._clock.sleep(min(self.period_s * 2 ** min(failed, 10), PAUSE_MAX_S))  # G1
                continue
            failed = 0
            self._tell("")
            if self._is_watched:
                tell()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next look is due, which a watch that begins meanwhile brings forward (G9)."""
        began = self._clock.mono()
        while True:
            every_s = self._watched_every_s if self._is_watched else self.period_s
            due_s = every_s - (self._clock.mono() - began)
            if due_s <= 0:
                return
            self._is_watched_anew.clear()
            try:
                async with asyncio.timeout(due_s):
                    await self._is_watched_anew.wait()
            except TimeoutError:
                return

    async def look(self, holders: Holders) -> DeviceLook:
        """Look at every GPU now. Raises: OSError."""
        try:
            look = await self._sample(None, holders.keys())
        except OSError:
            self._is_looked.set()
            raise
        now = self._clock.mono()
        self.clock_ahead_ms = look.clock_ahead_ms
        readings = tuple(self._reading(sample, holders, now) for sample in look.samples if sample.uuid)
        self._busy = {uuid: busy for uuid, busy in self._busy.items() if uuid in holders}
        self.figures = DeviceLook(look.samples, readings, holders, now, look.simulated, look.divided)
        self._is_looked.set()
        return self.figures

    async def released(self, gpus: Collection[GpuUuid], *, went_well: bool) -> str:
        """Return once these GPUs are clean, or are known not to be (G5).

        What is returned are the faults of them that may have ended a task which didn't end well (G7); empty = none.
        """
        if not self.gates:
            return ""
        await self._is_looked.wait()  # of a task that ended while no agent was here
        figures = self.figures
        if figures is None:
            return ""
        seen = {sample.uuid: sample for sample in figures.samples if sample.uuid in gpus}
        for uuid in gpus:
            self._releasing[uuid] = self._releasing.get(uuid, 0) + 1
        try:
            told = self.health.faults_of(gpus)
            told = await self._until_clean(seen) or told if seen else told
            return "" if went_well else told
        finally:
            for uuid in gpus:
                self._releasing[uuid] -= 1
                if not self._releasing[uuid]:
                    del self._releasing[uuid]

    async def _until_clean(self, seen: Mapping[GpuUuid, GpuSample]) -> str:
        """Look until these GPUs, as they were seen last, are clean or withheld; return their faults."""
        told, before, pause_s, missed = "", self.health.conditions, RELEASE_LOOK_S, dict.fromkeys(seen, 0)
        deadline = self._clock.mono() + RELEASE_S
        samples: Sequence[GpuSample] = ()
        while True:
            unanswered = ""
            try:
                look = await self._sample([sample.index for sample in seen.values()], ())
                samples = _samples_of(seen, look.samples, missed)
            except OSError as fault:
                unanswered = str(fault)
            now, mono = self._clock.now(), self._clock.mono()
            self.health.judge_ended(samples, now, mono)
            told = self.health.faults_of(seen) or told
            dirty = [(sample, self.health.dirt_of(sample)) for sample in samples if not sample.fault]
            if not any(sample.releasing for sample in samples):  # G6
                if not unanswered and len(samples) == len(seen) and not any(found for _, found in dirty):
                    break
                if mono >= deadline:
                    if unanswered:
                        why = f"after a task it couldn't be asked whether it is clean: {unanswered}"
                        dirty = [(sample, (HealthKind.UNANSWERED, why)) for sample in seen.values()]
                    self._withhold(dirty, now)
                    break
            await self._clock.sleep(pause_s)
            pause_s *= 1.5
        if self.health.conditions != before:
            self._say_changed({each.uuid: each for each in before})
        return told

    def _withhold(self, dirty: Iterable[tuple[GpuSample, Found | None]], now: Instant) -> None:
        """Keep back those GPUs that aren't clean, or of which nobody knows."""
        for sample, found in dirty:
            if found is not None:
                self.health.withhold(sample, found, now)

    def _judge(self, before: Holders | None, after: Holders | None) -> None:
        """Fold the newest look into the health of the GPUs (G8)."""
        assert self.figures is not None, "it was just looked"
        held = None
        if before is not None and after is not None:
            held = {**before, **after, **self._releasing}.keys()
        look = GpuLook(samples=self.figures.samples, divided=self.figures.divided)
        known, errors = {each.uuid: each for each in self.health.conditions}, dict(self.health.memory.ecc)
        if self.health.fold(look, held, self._clock.now(), self._clock.mono()):
            self._say_changed(known)
        elif errors != self.health.memory.ecc:
            self.keep(self.health.memory)

    def _say_changed(self, known: Mapping[GpuUuid, GpuCondition]) -> None:
        """Log what has changed since these conditions were known, keep it, and have it registered."""
        for each in self.health.conditions:
            if known.get(each.uuid) != each:
                told = {"gpu_ids": each.uuid, "state": each.state, "kind": each.kind, "error": each.reason}
                self._telemetry.warn("gpu_health_changed", **told)
        for uuid in sorted(known.keys() - {each.uuid for each in self.health.conditions}):
            self._telemetry.event("gpu_healthy_again", gpu_ids=uuid)
        self.keep(self.health.memory)
        self.changed()

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
            sm_clock_mhz=sample.sm_clock_mhz,
            memory_clock_mhz=sample.memory_clock_mhz,
            clock_events=sample.clock_events or 0,
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


def _samples_of(
    seen: Mapping[GpuUuid, GpuSample], told: Iterable[GpuSample], missed: dict[GpuUuid, int]
) -> list[GpuSample]:
    """Return what a look tells of these GPUs, and of no others, whose indexes may have moved up.

    `missed` counts the looks in a row that don't list one.
    """
    samples, told = [], list(told)
    for uuid, known in seen.items():
        nameless = [each for each in told if not each.uuid and each.index == known.index]
        found = next((each for each in (*told, *nameless) if each.uuid == uuid or each in nameless), None)
        missed[uuid] = 0 if found is not None else missed[uuid] + 1
        if found is not None:
            samples.append(msgspec.structs.replace(found, uuid=uuid))
        elif missed[uuid] >= LOOKS_MAX:
            samples.append(GpuSample(uuid=uuid, index=known.index, parent=known.parent, fault=NOT_LISTED))
    return samples


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


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
    def stale_s(self) -> float:
        """Age in seconds up to which figures say something of now."""
        return max(STALE_S, LOOKS_STALE * self.monitor.period_s) if self.monitor else STALE_S

    @property
    def gpus(self) -> Sequence[ProbedGpu]:
        return self.watch.offered.gpus


class HealthFile:
    """File `gpu_health.json` in the agent's data folder: what ails its GPUs, for the agent that comes after it.

    After another boot of the machine nothing is known: its devices were reset.
    """

    def __init__(self, data_dir: Path, boot_id: str, telemetry: Telemetry) -> None:
        self._path = data_dir / HEALTH_NAME
        self._boot_id = boot_id
        self._telemetry = telemetry

    def read(self, mono_s: float) -> HealthMemory:
        """Return what is known of this boot; one that can't be read is passed over with a warning."""
        try:
            with self._path.open("rb") as file:
                kept = msgspec.json.decode(file.read(_HEALTH_BYTES_MAX), type=_KeptHealth)
        except FileNotFoundError:
            return HealthMemory()
        except (OSError, ValueError) as fault:
            self._telemetry.warn("gpu_health_unusable", error=f"{self._path} is passed over: {fault}")
            return HealthMemory()
        return carried_over(kept.memory, mono_s) if kept.boot_id == self._boot_id else HealthMemory()

    def keep(self, memory: HealthMemory) -> None:
        """Write down what is known now. A disk that doesn't take it stops nothing."""
        try:
            replace_file(str(self._path), msgspec.json.encode(_KeptHealth(boot_id=self._boot_id, memory=memory)))
        except OSError as fault:
            self._telemetry.warn("gpu_health_not_kept", error=str(fault))


class _KeptHealth(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str
    memory: HealthMemory
