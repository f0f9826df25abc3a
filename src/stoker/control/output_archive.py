"""Copying of what tasks wrote into the archive, so that it outlives its node.

The archive is a folder of the control plane's side (`output.archive_dir`), which a site asks for. Only the active
control plane copies, and only once a task has ended: what still runs is read on its node.

Rules: O1  each output is copied once its task has ended, WORKERS at a time, piece by piece
       O2  a node that can't answer is asked again after growing pauses, for PATIENCE_S; what it never had, or has
           forgotten, is not asked for again
       O3  at most WAITING_MAX outputs wait; beyond that those that wait longest are given up, and counted
       O4  an archive that can't be written is told once for each fault, and nothing is given up for it; no job waits
           for it, and no read fails for it
       O5  a control plane that becomes active looks through the ended tasks of its state for what was missed
       O6  a read of an ended task is answered by the archive if that has the output, else by the node
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Job
from stoker.brain.domain.report import LogChunk
from stoker.brain.state.events.job import TaskEnded
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, LogPlace, OutputArchive
from stoker.control.feed import Entry
from stoker.control.output_reader import CREDIT_BYTES, WITHOUT_OUTPUT, attempt_is_over

WORKERS: Final = 4
WAITING_MAX: Final = 10_000
PATIENCE_S: Final = 86_400.0
"""For which a silent node is asked again; a day outlasts a repair."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 300.0
FAULT_PAUSE_S: Final = 30.0
SWEEP_EVERY_S: Final = 3_600.0
_PASSING: Final = frozenset({"node_unreachable", "too_many_streams"})

ReadNode = Callable[[LogPlace, int, int, int], Awaitable[LogChunk]]
"""Place, offset, limit, milliseconds to wait."""


class _WaitingCopy:
    """An output that waits to be copied."""

    __slots__ = ("pause_s", "until_s")

    def __init__(self, now_s: float) -> None:
        self.pause_s = RETRY_FIRST_S
        self.until_s = now_s + PATIENCE_S


class OutputArchiver:
    """Copier of outputs into an archive, and their reader."""

    def __init__(self, committer: Committer, ports: ControlPorts, archive: OutputArchive, read_node: ReadNode) -> None:
        self._committer = committer
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._archive = archive
        self._read_node = read_node
        self._waiting: dict[LogPlace, _WaitingCopy] = {}
        # Those that wait for longest first.
        self._due: deque[LogPlace] = deque()
        self._later: list[tuple[float, LogPlace]] = []
        # Heap of those that are tried again, by when.
        self._news = asyncio.Event()
        self._told = ""
        committer.on_durable(self._committed, of_ours=True)

    async def read(self, place: LogPlace, offset: int, limit: int, wait_ms: int = 0) -> LogChunk:
        """Read an output as `JobOutput.read_log` does, from the archive if that has it (O6)."""
        if attempt_is_over(self._committer.state, place.key):
            self._archive.belong_to(self._committer.state.cluster_id)
            try:
                kept = await self._archive.read(place.key, offset, limit)
            except OSError as fault:
                self._tell(fault)
            else:
                if kept is not None:
                    return kept
        return await self._read_node(place, offset, limit, wait_ms)

    async def run(self) -> None:
        """Copy, and keep the archive within its bounds, until cancelled."""
        self._archive.belong_to(self._committer.state.cluster_id)
        self._waiting.clear()
        self._due.clear()
        self._later.clear()
        await self._look_through()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_bounds())
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _look_through(self) -> None:
        """Queue what ended tasks wrote that isn't archived yet, once this control plane is active (O5)."""
        for job in list(self._committer.state.jobs.values()):
            for place in _ended_tasks(job):
                try:
                    if await self._archive.has(place.key):
                        continue
                except OSError as fault:
                    self._tell(fault)
                self._await(place)

    def _committed(self, entries: Sequence[Entry]) -> None:
        for _, fact in entries:
            event = fact.event
            if not isinstance(event, TaskEnded) or event.end.cause in WITHOUT_OUTPUT:
                continue
            job = self._committer.state.jobs.get(event.job)
            for attempt in job.attempts if job is not None else ():
                if attempt.number == event.attempt:
                    node = attempt.tasks[event.rank].placement.node
                    self._await(LogPlace(node, TaskKey(event.job, event.attempt, event.rank)))

    def _await(self, place: LogPlace) -> None:
        if place in self._waiting:
            return
        self._waiting[place] = _WaitingCopy(self._clock.mono())
        self._due.append(place)
        while len(self._waiting) > WAITING_MAX:  # O3
            self._give_up(next(iter(self._waiting)), "too many outputs wait to be archived")
        self._news.set()

    async def _work(self) -> None:
        while True:
            now_s = self._clock.mono()
            while self._later and self._later[0][0] <= now_s:
                self._due.append(heappop(self._later)[1])
            if self._due:
                place = self._due.popleft()
                if place in self._waiting:  # it may have been given up
                    await self._try(place, self._waiting[place])
                continue
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._later[0][0] - now_s if self._later else None):
                    await self._news.wait()

    async def _try(self, place: LogPlace, wait: _WaitingCopy) -> None:
        try:
            size = await self._copy(place)
        except StokerError as fault:
            self._archive.give_up(place.key)
            if fault.refusal.code not in _PASSING:
                self._waiting.pop(place, None)  # O2: there is none
            elif self._clock.mono() > wait.until_s or place.node not in self._committer.state.nodes:
                self._give_up(place, fault.refusal.message)
            else:
                self._again(place, wait.pause_s)
                wait.pause_s = min(RETRY_MAX_S, 2 * wait.pause_s)
        except OSError as fault:
            self._archive.give_up(place.key)
            self._tell(fault)
            self._again(place, FAULT_PAUSE_S)
        else:
            self._told = ""
            self._waiting.pop(place, None)
            self._telemetry.count("outputs_archived")
            self._telemetry.count("output_bytes_archived", size)
        self._telemetry.gauge("outputs_to_archive", len(self._waiting))

    def _again(self, place: LogPlace, pause_s: float) -> None:
        heappush(self._later, (self._clock.mono() + pause_s, place))
        self._news.set()

    async def _copy(self, place: LogPlace) -> int:
        """Return how many bytes were copied. Raises: StokerError as `JobOutput.read_log` does, OSError."""
        offset = copied = 0
        while True:
            chunk = await self._read_node(place, offset, CREDIT_BYTES, 0)
            if chunk.data:
                await self._archive.write(place.key, chunk.offset, chunk.data)
                offset, copied = chunk.offset + len(chunk.data), copied + len(chunk.data)
                continue
            await self._archive.finish(place.key, chunk.size)
            return copied

    async def _keep_bounds(self) -> None:
        while True:
            try:
                removed = await self._archive.sweep()
            except OSError as fault:
                self._tell(fault)
            else:
                if removed:
                    self._telemetry.event("output_archive_swept", removed=removed)
            await self._clock.sleep(SWEEP_EVERY_S)

    def _give_up(self, place: LogPlace, why: str) -> None:
        self._waiting.pop(place, None)
        self._telemetry.count("outputs_not_archived")
        key = place.key
        self._telemetry.warn("output_not_archived", task_id=str(key.job), attempt=key.attempt, rank=key.rank, error=why)

    def _tell(self, fault: OSError) -> None:
        """Say once what is wrong with the archive (O4)."""
        if str(fault) != self._told:
            self._told = str(fault)
            self._telemetry.warn("output_archive_failed", error=str(fault))


def _ended_tasks(job: Job) -> Iterator[LogPlace]:
    for attempt in job.attempts:
        for rank, task in enumerate(attempt.tasks):
            if task.end is not None and task.end.cause not in WITHOUT_OUTPUT:
                yield LogPlace(task.placement.node, TaskKey(job.id, attempt.number, rank))
