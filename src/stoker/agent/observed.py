"""Observed state of the tasks on this node.

It is a fold of the runner's one report stream, plus what the daemon itself decided (a start on its way to the runner, a
task it refused to start). It holds no clock and does no I/O: the same reports give the same answer.

Rules: O1  a runner's inventory replaces all that was known of the runner: what isn't in it isn't there
       O2  a start is noted before it goes to the runner, so no inventory is ever sent that lacks it
       O3  an end stays offered until the control plane has it; after that its task is remembered for `SETTLED_MAX`
           newer ones, so that a start or stop that comes late is answered and never acted on
       O4  a task's phase never goes back
       O5  every inventory names the tasks whose ends have arrived: where the control plane's log is older than that, it
           asks for them
Limits: of an end that has arrived only the key stays here, 150 bytes; the runner keeps the rest.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from stoker.agent.ports import RunnerInventory, TaskEnding, TaskOver, TaskRunning
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.report import Beat, Preparation, Started, TaskInventory, TaskPhase, TaskStatus, sum_of

RELEASING_MAX: Final = 1_000
"""Of one heartbeat."""
_RELEASING: Final = "it waits for its GPUs to come clean"
SETTLED_MAX: Final = 10_000
"""As many ends as the runner keeps. Older ones are forgotten here."""

_ORDER: Final = {phase: place for place, phase in enumerate(TaskPhase)}


class Observed:
    """Tasks of this node: open ones, ends on their way, and ends that have arrived."""

    def __init__(self) -> None:
        self.open: dict[TaskKey, TaskStatus] = {}
        """Tasks that may have processes here, and hold their GPUs."""
        self.offered: dict[TaskKey, TaskOver] = {}
        """Ends that the control plane isn't known to have."""
        self.held_back: dict[TaskKey, None] = {}
        """Of those, the ends that aren't told yet, since the GPUs of their tasks aren't clean: these are ending."""
        self._own: dict[TaskKey, TaskOver] = {}
        # Of `offered`, those of tasks that never reached the runner.
        self._settled: dict[TaskKey, TaskOver | None] = {}
        # Ends that have arrived, oldest first. None = the runner keeps it.
        self._pids: dict[TaskKey, int] = {}
        self._sequence = 0

    # --- folding ------------------------------------------------------------------------------------------------

    def inventory(self, report: RunnerInventory) -> None:
        """Replace all that was known of the runner by its inventory (O1); ends of tasks that never reached it stay."""
        self.open = {status.key: status for status in report.tasks if status.phase is not TaskPhase.ENDED}
        self.offered = {over.key: over for over in report.ends} | self._own
        self._pids.clear()
        for status in report.tasks:
            if status.phase is TaskPhase.ENDED and status.key not in self.offered:
                self._remember(status.key, self._settled.get(status.key))

    def starting(self, start: Start) -> None:
        """Note a start before it goes to the runner (O2)."""
        assert start.key not in self.open, f"started twice: {start.key}"
        self.open[start.key] = TaskStatus(
            key=start.key, phase=TaskPhase.STARTING, gpus=start.gpus, gpu_share=start.gpu_share
        )

    def withdrawn(self, key: TaskKey) -> None:
        """Forget a start that never went to the runner, and whose stream has ended: it will come again."""
        self.open.pop(key, None)

    def advanced(self, report: TaskRunning | TaskEnding) -> None:
        """Note that a task runs, or is ending; its phase never goes back (O4)."""
        running = report if isinstance(report, TaskRunning) else None
        phase = TaskPhase.RUNNING if running else TaskPhase.ENDING
        known = self.open.get(report.key)
        if known is None or _ORDER[known.phase] >= _ORDER[phase]:
            return  # a task that isn't open has ended
        started_at = running.at if running else known.started_at
        self.open[report.key] = replace(known, phase=phase, started_at=started_at)
        if running:
            self._pids[report.key] = running.pid

    def over(self, report: TaskOver) -> None:
        """Note the end of a task, and offer it to the control plane (O3)."""
        self.open.pop(report.key, None)
        self._pids.pop(report.key, None)
        self._settled.pop(report.key, None)
        self.offered[report.key] = report

    def faulted(self, key: TaskKey, gpu_fault: str) -> None:
        """Note what was found wrong with the GPUs of a task whose end is still to be told."""
        over = self.offered.get(key)
        if over is not None:
            self.offered[key] = replace(over, end=replace(over.end, gpu_fault=gpu_fault))

    def refused(self, report: TaskOver) -> None:
        """Note the end of a task that never reached the runner, by the daemon's own decision."""
        self._own[report.key] = report
        self.over(report)

    def settled(self, key: TaskKey) -> bool:
        """Note that the control plane has an end on disk. True = the runner keeps a record of it, which may go now."""
        self.offered.pop(key, None)
        own = self._own.pop(key, None)
        self._remember(key, own)
        return own is None

    def forgotten(self, key: TaskKey) -> None:
        """Note that the runner keeps no record of a task any more."""
        self._settled.pop(key, None)

    def _remember(self, key: TaskKey, over: TaskOver | None) -> None:
        self._settled.pop(key, None)
        self._settled[key] = over
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]

    # --- answers ------------------------------------------------------------------------------------------------

    def knows(self, key: TaskKey) -> bool:
        """Return True for a task that is open, or whose end is known."""
        return key in self.open or key in self.offered or key in self._settled

    def reoffer(self, key: TaskKey) -> bool:
        """Offer an end again that the control plane once had and seems to lack. False = the runner keeps it."""
        own = self._settled.get(key)
        if own is None:
            return False
        self.refused(own)
        return True

    def has_arrived(self, key: TaskKey) -> bool:
        """Return True if the control plane, or another before it, had the end of this task already."""
        return key in self._settled

    def started(self, key: TaskKey) -> Started | None:
        """Return the report that the task runs; None = it doesn't. The pid is 0 if an earlier agent started it."""
        status = self.open.get(key)
        if status is None or status.phase is TaskPhase.STARTING:
            return None
        return Started(key=key, at=status.started_at, pid=self._pids.get(key, 0))

    def holders(self, gpus: Iterable[GpuUuid]) -> dict[GpuUuid, list[TaskStatus]]:
        """Return those of the GPUs that open tasks hold, each with its tasks."""
        held: dict[GpuUuid, list[TaskStatus]] = {}
        for status in self.open.values():
            for gpu in status.gpus:
                held.setdefault(gpu, []).append(status)
        return {gpu: held[gpu] for gpu in gpus if gpu in held}

    def held(self) -> dict[GpuUuid, list[TaskKey]]:
        """Return the open tasks that have each GPU which any has."""
        held: dict[GpuUuid, list[TaskKey]] = {}
        for status in self.open.values():
            for gpu in status.gpus:
                held.setdefault(gpu, []).append(status.key)
        return held

    @property
    def is_empty(self) -> bool:
        """Whether no task is known here, not even one that ended."""
        return not (self.open or self.offered or self._settled)

    def renounce(self) -> None:
        """Forget every end, since all were another cluster's. What runs is left to the runner's next inventory."""
        for known in (self.offered, self._own, self._settled):
            known.clear()

    def has_job(self, job: JobId) -> bool:
        """Return True if a task of the job is open."""
        return any(key.job == job for key in self.open)

    def task_inventory(self, boot_id: str) -> TaskInventory:
        """Return the first report of a new stream. Ends that have arrived are only named: a log may lack them (O5)."""
        ended = (TaskStatus(key=key, phase=TaskPhase.ENDED) for key in self.offered)
        return TaskInventory(boot_id=boot_id, tasks=(*self.open.values(), *ended), kept=tuple(self._settled))

    def beat(self, preparing: tuple[Preparation, ...] = ()) -> Beat:
        """Return the next beat, with the tasks that are ending, prepared, or waiting for GPUs to be clean."""
        self._sequence += 1
        ending = tuple(key for key, status in self.open.items() if status.phase is TaskPhase.ENDING)
        ending = (*ending, *(key for key in self.held_back if key in self.offered))
        tasks_sum = sum_of((*self.open, *self.held_back))
        releasing = (Preparation(key=key, text=_RELEASING) for key in self.held_back if key in self.offered)
        told = (*preparing, *islice(releasing, RELEASING_MAX))
        return Beat(sequence=self._sequence, ending=ending, tasks_sum=tasks_sum, preparing=told)
