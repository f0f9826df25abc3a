"""Health of this node's GPUs: conditions, folded from one look after the other.

It reads no clock and asks no device: the same looks give the same conditions.

Rules: Q1  a GPU is lost once two looks in a row can't open it, or don't list it; what fails as a whole says nothing
       Q2  uncorrected memory errors count from the first look at the GPU; one more drains it, and so does an XID that
           `xids_drain` names. Other XIDs make it suspect, but for those that a program of a job causes (`XIDS_OF_JOBS`)
       Q3  it is hot from `hot_c` on, and cool again below `hot_c` - `COOLER_C`; from `hot_c` - `HEADROOM_C` on it is
           warm, which makes it suspect, until it is as cool as that
       Q10 a GPU on which a row of memory couldn't be replaced gets no work: it is to be tested and replaced. What runs
           there goes on, until an error hits it (Q2). One that waits for a reset to replace a row is suspect
       Q11 one whose clocks its driver holds down for `THROTTLED_LOOKS` looks in a row is suspect, until `CLEAN_LOOKS`
           in a row find it at its own speed. A power limit is no such reason: it is how large GPUs run
       Q4  a GPU that no task has is dirty while a process is on it, or more than `leftover_mb` of its memory is in use
       Q5  a dirty GPU is offered again as soon as it is clean; any other once `CLEAN_LOOKS` looks in a row found
           nothing wrong, after an error that drains it not before `error_clean_s`, which doubles with each error within
           a day
       Q8  one that doesn't answer where others do is kept back while no task has it; what else is known of it stays
       Q6  the words of a condition stay until its cause or its state changes, however its numbers move: each change is
           a new registration of the node
       Q9  MIG instances are GPUs here: what a look says is wrong with their GPU, it says of each of them. One that
           isn't listed any more while its GPU is there was taken away by who divides that: it is lost as long as a task
           has it or the node still offers it, and forgotten then. So is a whole GPU once MIG is on
Source: NVIDIA, "XID Errors", for which of them an application causes; "GPU Memory Error Management", "Row Remapping"
        and "RMA Policy", for what a failure and a pending row mean.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from stoker.brain.domain.gpu import index_text
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuProcess, GpuSample, throttled_by
from stoker.brain.domain.health import REASON_MAX, XIDS_DRAIN, GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import Instant

XIDS_OF_JOBS: Final = (13, 31, 43, 45, 68)
LOOKS_MAX: Final = 2
CLEAN_LOOKS: Final = 3
THROTTLED_LOOKS: Final = 3
COOLER_C: Final = 10
HEADROOM_C: Final = 5
ERROR_CLEAN_MAX_S: Final = 86_400.0
_INSTANCE: Final = "MIG-"
NOT_LISTED: Final = "it isn't listed any more"
_SOFT: Final = (HealthKind.WARM, HealthKind.THROTTLED, HealthKind.ROWS)
"""Kinds that make a GPU suspect for as long as they are seen. Rows that can't be replaced drain it."""
_SLOW: Final = {"hot": "it is too hot", "power_brake": "its power is braked from outside", "slowed": "by its hardware"}
_DIRT: Final = (HealthKind.PROCESS, HealthKind.MEMORY, HealthKind.UNANSWERED)

Found = tuple[HealthKind, str]


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of this node."""

    leftover_mb: int = 1_024
    """0 = none."""
    hot_c: int = 90
    """0 = none is too hot."""
    error_clean_s: float = 600.0
    xids_drain: tuple[int, ...] = XIDS_DRAIN
    ignored: tuple[str, ...] = ()
    """Beginnings of names of processes that make no GPU dirty."""


class GpuError(msgspec.Struct, frozen=True, kw_only=True):
    """The newest error of a GPU: `until` when it isn't trusted, on the clock that looks are folded with."""

    kind: HealthKind
    reason: str
    at_s: float
    until_s: float
    times: int = 1
    """Errors within a day of each other."""
    drains: bool = True
    """Whether it, or one before it that isn't old yet, keeps the GPU from new work. False = it is suspect only."""


class HealthMemory(msgspec.Struct, kw_only=True):
    """All that must outlive an agent."""

    conditions: dict[GpuUuid, GpuCondition] = {}
    errors: dict[GpuUuid, GpuError] = {}
    ecc: dict[GpuUuid, int] = {}


class GpuHealth:
    """Health of all GPUs of a node."""

    def __init__(
        self,
        rules: HealthRules,
        memory: HealthMemory | None = None,
        name_of: Callable[[int], str] = lambda pid: "",
        container_of: Callable[[int], str] = lambda pid: "",
    ) -> None:
        """`name_of`: the name of the process of a pid, empty = there is none that can be seen.

        `container_of`: the id of the container that it is in; empty = none.
        """
        self._container_of = container_of
        self._rules = rules
        self._name_of = name_of
        self.memory = memory or HealthMemory()
        self.offered: Collection[GpuUuid] = ()
        """GPUs that the node would offer if none had a condition."""
        self._missed: dict[GpuUuid, int] = {}
        # Looks in a row that didn't find it.
        self._clean: dict[GpuUuid, int] = {}
        # Looks in a row that found nothing wrong, while it has a condition.
        self._seen: dict[GpuUuid, GpuSample] = {}
        # Newest samples of GPUs that a look of this agent has found.
        self._throttled: dict[GpuUuid, int] = {}
        # Looks in a row that found its clocks held down.

    @property
    def conditions(self) -> tuple[GpuCondition, ...]:
        """Conditions of all GPUs that aren't healthy, in PCI order."""
        return tuple(sorted(self.memory.conditions.values(), key=lambda each: (each.index, each.uuid)))

    def fold(self, look: GpuLook, held: Collection[GpuUuid] | None, now: Instant, mono_s: float) -> bool:
        """Take a look at all GPUs; return whether a condition has changed.

        `held`: what tasks have, and had when the look began. None = nobody knows yet: then none is called dirty.
        """
        before = dict(self.memory.conditions)
        here = {sample.uuid: sample for sample in look.samples if sample.uuid}
        for uuid, seen in [*self._seen.items()]:
            if uuid not in here and self._is_taken_away(seen, look, here, held):
                self._forget(uuid)
            elif uuid not in here:
                here[uuid] = GpuSample(uuid=uuid, index=seen.index, parent=seen.parent, fault=NOT_LISTED)
        for uuid in [*self.memory.conditions]:  # of an agent before this one too
            if uuid.startswith(_INSTANCE) and uuid not in here and self._is_over(uuid, held):
                self._forget(uuid)
        for uuid, sample in here.items():
            self._fold_one(sample, is_held=held is None or uuid in held, now=now, mono_s=mono_s)
        return self.memory.conditions != before

    def _is_taken_away(
        self, seen: GpuSample, look: GpuLook, here: Collection[GpuUuid], held: Collection[GpuUuid] | None
    ) -> bool:
        """Return whether a device that isn't listed any more is to be forgotten (Q9)."""
        if not self._is_over(seen.uuid, held):
            return False
        return seen.uuid in look.divided or seen.parent in look.divided or seen.parent in here

    def _is_over(self, uuid: GpuUuid, held: Collection[GpuUuid] | None) -> bool:
        """Return whether nobody needs to know any more that this device is gone."""
        return held is not None and uuid not in held and uuid not in self.offered

    def _forget(self, uuid: GpuUuid) -> None:
        kept = self.memory
        tables: tuple[dict[GpuUuid, Any], ...] = (self._seen, self._missed, self._clean, self._throttled)
        for table in (*tables, kept.conditions, kept.errors, kept.ecc):
            table.pop(uuid, None)

    def judge_ended(self, samples: Iterable[GpuSample], now: Instant, mono_s: float) -> None:
        """Take a look at GPUs whose task has just ended."""
        for sample in samples:
            fresh = self._new_error(sample, mono_s)
            found = (HealthKind.LOST, sample.fault) if sample.fault else fresh
            if found is not None and (found is not fresh or self._drains(sample, found)):
                self._put(sample, HealthState.DRAINED, found, now)

    def faults_of(self, gpus: Collection[GpuUuid]) -> str:
        """Return in words what these GPUs have that can have ended their task; empty = nothing."""
        told = [
            f"GPU {index_text(each.index)} ({each.uuid}): {each.reason}"
            for each in self.conditions
            if each.uuid in gpus and each.ends_work
        ]
        return "; ".join(told)[:REASON_MAX]

    def dirt_of(self, sample: GpuSample) -> Found | None:
        """Return what keeps a GPU that no task has from being clean (Q4, Q8)."""
        if sample.unanswered:
            return HealthKind.UNANSWERED, sample.unanswered
        foreign = [each for each in sample.processes or () if not self._is_ignored(each)]
        if foreign:
            return HealthKind.PROCESS, self._process_text(foreign)
        used = sample.memory_used_mb or 0
        if self._rules.leftover_mb and used > self._rules.leftover_mb:
            return HealthKind.MEMORY, f"{used} MiB of its memory are in use, and no process of a job has them"
        return None

    def withhold(self, sample: GpuSample, found: Found, now: Instant) -> None:
        """Keep a GPU back for what was found after its task."""
        self._put(sample, HealthState.DRAINED, found, now)

    def _fold_one(self, sample: GpuSample, *, is_held: bool, now: Instant, mono_s: float) -> None:
        uuid = sample.uuid
        if sample.unanswered:
            if not is_held and uuid not in self.memory.conditions:
                self._put(sample, HealthState.DRAINED, (HealthKind.UNANSWERED, sample.unanswered), now)
            return  # Q8
        if not sample.fault:
            self._seen[uuid], self._missed[uuid] = sample, 0
        else:
            self._missed[uuid] = self._missed.get(uuid, 0) + 1
            if self._missed[uuid] < LOOKS_MAX and uuid not in self.memory.conditions:
                return  # Q1
        fresh = self._new_error(sample, mono_s)
        self._throttled[uuid] = self._throttled.get(uuid, 0) + 1 if throttled_by(sample.clock_events or 0) else 0
        found = fresh if fresh is not None and not sample.fault else self._cause(sample, is_held=is_held)
        is_soft = found is not None and found[0] in _SOFT and not _has_failed_rows(sample)
        known = self.memory.conditions.get(uuid)
        is_free = known is None or (known.state is HealthState.SUSPECT and known.kind in _SOFT)
        if found is None or (is_soft and not is_free):
            self._recover(sample, now, mono_s)  # what is soft keeps nothing back that is well again
            return
        self._clean[uuid] = 0
        if not is_soft and (found is not fresh or self._drains(sample, found)):
            self._put(sample, HealthState.DRAINED, found, now)
        elif is_free:
            self._put(sample, HealthState.SUSPECT, found, now)

    def _cause(self, sample: GpuSample, *, is_held: bool) -> Found | None:
        """What is wrong with it now, the gravest first."""
        if sample.fault:
            return HealthKind.LOST, sample.fault
        if _has_failed_rows(sample):
            return (
                HealthKind.ROWS,
                "a failing row of its memory can't be replaced: test it, it may have to be exchanged",
            )
        hot_c, kind = self._rules.hot_c, self._kind(sample.uuid)
        celsius = sample.temperature_c if hot_c else None
        if celsius is not None and celsius >= (hot_c - COOLER_C if kind is HealthKind.HOT else hot_c):
            return HealthKind.HOT, f"it has {celsius} C; {hot_c} are too hot"
        if not is_held and (dirt := self.dirt_of(sample)):
            return dirt
        if sample.rows is not None and sample.rows.pending:
            return HealthKind.ROWS, "a failing row of its memory is replaced once the GPU is reset"
        if self._throttled.get(sample.uuid, 0) >= THROTTLED_LOOKS:
            causes = (_SLOW[word] for word in throttled_by(sample.clock_events or 0))
            return HealthKind.THROTTLED, f"its driver holds its clocks down: {' and '.join(causes)}"
        if celsius is not None and celsius >= hot_c - (COOLER_C if kind is HealthKind.WARM else HEADROOM_C):
            return HealthKind.WARM, f"it is near {hot_c} C, from which on it is too hot for new work"
        return None

    def _new_error(self, sample: GpuSample, mono_s: float) -> Found | None:
        """An error that no look before this has told (Q2)."""
        found: Found | None = None
        told = [code for code in sample.xids if code not in XIDS_OF_JOBS]
        if told:
            found = HealthKind.XID, f"the driver reports XID {', '.join(map(str, told[:4]))}"
        known = self.memory.ecc.get(sample.uuid)
        if sample.ecc_errors is not None:
            self.memory.ecc[sample.uuid] = sample.ecc_errors
            if known is not None and sample.ecc_errors > known:
                found = HealthKind.ECC, f"{sample.ecc_errors - known} more uncorrected memory errors"
        if found is not None:
            last = self.memory.errors.get(sample.uuid)
            times = last.times + 1 if last and mono_s - last.at_s < ERROR_CLEAN_MAX_S else 1
            pause_s = min(self._rules.error_clean_s * 2 ** min(times - 1, 16), ERROR_CLEAN_MAX_S)
            drains = self._drains(sample, found) or (last is not None and last.drains and mono_s < last.until_s)
            self.memory.errors[sample.uuid] = GpuError(
                kind=found[0], reason=found[1], at_s=mono_s, until_s=mono_s + pause_s, times=times, drains=drains
            )
        return found

    def _drains(self, sample: GpuSample, error: Found) -> bool:
        return error[0] is HealthKind.ECC or any(code in self._rules.xids_drain for code in sample.xids)

    def _recover(self, sample: GpuSample, now: Instant, mono_s: float) -> None:
        """Nothing is wrong with it in this look (Q5)."""
        uuid, error = sample.uuid, self.memory.errors.get(sample.uuid)
        known = self.memory.conditions.get(uuid)
        if known is None:
            return
        self._clean[uuid] = self._clean.get(uuid, 0) + 1
        waits = error if error is not None and mono_s < error.until_s else None
        if waits is not None and (waits.drains or known.state is HealthState.SUSPECT):
            if known.state is not HealthState.SUSPECT:
                self._put(sample, HealthState.REPAIRING, (waits.kind, waits.reason), now)
        elif known.kind in _DIRT or self._clean[uuid] >= CLEAN_LOOKS:
            del self.memory.conditions[uuid]
            if waits is not None:
                self._put(sample, HealthState.SUSPECT, (waits.kind, waits.reason), now)
        elif known.state is HealthState.DRAINED:
            self._put(sample, HealthState.REPAIRING, (known.kind, known.reason), now)

    def _put(self, sample: GpuSample, state: HealthState, found: Found, now: Instant) -> None:
        known = self.memory.conditions.get(sample.uuid)
        if known is not None and (known.state, known.kind) == (state, found[0]):
            return  # Q6
        since = known.since if known is not None and known.kind is found[0] else now
        self.memory.conditions[sample.uuid] = GpuCondition(
            uuid=sample.uuid,
            index=sample.index,
            state=state,
            kind=found[0],
            reason=found[1][:REASON_MAX],
            since=since,
        )

    def _kind(self, uuid: GpuUuid) -> HealthKind | None:
        known = self.memory.conditions.get(uuid)
        return known.kind if known else None

    def _is_ignored(self, process: GpuProcess) -> bool:
        return self._name_of(process.pid).startswith(self._rules.ignored) if self._rules.ignored else False

    def _process_text(self, processes: Collection[GpuProcess]) -> str:
        shown = []
        for process in list(processes)[:3]:
            name, container = self._name_of(process.pid), self._container_of(process.pid)
            memory = "" if process.memory_mb is None else f" with {process.memory_mb} MiB"
            within = f" in container {container}" if container else ""
            shown.append(f"process {process.pid} ({name or 'not to be seen from here'}){within}{memory}")
        return (
            f"{', '.join(shown)} is on it, and no task of this node"
            if len(shown) == 1
            else (f"{', '.join(shown)} are on it, and no tasks of this node")
        )


def _has_failed_rows(sample: GpuSample) -> bool:
    return sample.rows is not None and sample.rows.failed and not sample.fault


def carried_over(kept: HealthMemory, mono_s: float) -> HealthMemory:
    """Return what an agent that starts takes over from the one before: times count anew from now."""
    errors: Mapping[GpuUuid, GpuError] = {
        uuid: msgspec.structs.replace(error, at_s=mono_s, until_s=mono_s + max(0.0, error.until_s - error.at_s))
        for uuid, error in kept.errors.items()
    }
    return HealthMemory(conditions=dict(kept.conditions), errors=dict(errors), ecc=dict(kept.ecc))
