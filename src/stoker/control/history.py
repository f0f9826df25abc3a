"""Recorder of the history: facts of what ended are noted as they are applied, and written once they are durable.

Each fact is looked at right after it was applied, while the state still shows what it was about. Nothing is decided
from the history, and only snapshots wait for it: what a snapshot makes the log forget must be in the history first.

Rules: R1  only what is durable is written: the history is never ahead of the log
       R2  a history that can't be written stops nothing: it is told, counted and tried again
       R3  notes that no longer fit are dropped, and the history is filled anew from the state as soon as it can be
           written: what the state had forgotten by then is missing, and that is told
       R4  the same after a start whose snapshot is newer than the history
       R5  a history of another cluster is left alone, and nothing is answered from it; one that is ahead of a log that
           was put back is put back too, and filled anew: a job that had ended, was requeued and ended anew has lost its
           earlier end there
       R6  of several control planes that share one history the active one writes what happened, under its epoch; the
           others drop what it has written, write their own refusals, and answer reads from the same rows
Limits: `notes_max` notes wait, about 10 MiB beside what the state holds anyway; for the rest see R3.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from stoker.brain.domain.audit import AuditQuery, AuditRow
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JOB_ID_MAX, Epoch, JobId, NodeName, Position
from stoker.brain.domain.job import Job
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.domain.usage import CapacityChange, Holding, held_by
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.cluster_counts import gpus_offered
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobFinished, JobRequeued, JobsPruned, TaskEnded
from stoker.brain.state.events.node import NodeEvent
from stoker.control.audit_shipping import AuditShipper
from stoker.control.audit_trail import AuditTrail
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts
from stoker.control.feed import Entry
from stoker.control.history_batches import EndedAttempt, EndedJob, Note, batch_of, known_batch
from stoker.control.settings import HistorySettings
from stoker.ports import History, HistoryBatch, HistoryFailed, HistoryMark, HistoryTooNew

NOTES_MAX: Final = 50_000
"""Minutes of the busiest cluster, a day of a usual one."""
BATCH_MAX: Final = 500
"""Notes of one transaction: a few milliseconds of encoding, so that other work gets its turn soon."""
ROWS_MAX: Final = 2_000
"""Rows of the audit trail in one transaction. They are narrow."""
TRAIL_PERIOD_S: Final = 0.5
"""Rows of the audit trail wait for no more than that: a cluster that is submitted to fast has thousands a second."""
GATHER_S: Final = 0.25
"""So that a burst of ends shares one transaction."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
TRIM_PERIOD_S: Final = 600.0
LOOK_S: Final = 1.0
"""How often a standby looks how far the active one has written, while it has notes beyond that (R6)."""
LOOKS_MAX: Final = 10
"""Before a standby that is asked for a backup says that the active one doesn't write."""
_LOOK: Final = 1_000

_NODE_EVENTS: Final = frozenset(NodeEvent.__args__)
_NOTED: Final = frozenset({TaskEnded, JobRequeued, JobFinished, JobsPruned, *_NODE_EVENTS})


class Recorder:
    """The writer of one control plane's history. `run` and `run_trim` must be running for it to be kept up."""

    def __init__(
        self,
        state: ClusterState,
        store: History,
        ports: ControlPorts,
        settings: HistorySettings,
        *,
        notes_max: int = NOTES_MAX,
    ) -> None:
        """`state` is the newest snapshot's; facts after it are noted as they are applied."""
        self._store = store
        self._foreign = ""
        """Why it is another cluster's; empty = it isn't known to be."""
        self.trail = AuditTrail(state, ports.telemetry)
        self.shipper = AuditShipper(self.trail, ports.audit_sink, ports) if ports.audit_sink is not None else None
        self.fault = ""
        """Why it can't be written; empty while it can."""
        self._state = state
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._settings = settings
        self._notes_max = notes_max
        self._notes: deque[Note] = deque()
        self._ended: dict[JobId, Job] = {}
        self._offered: dict[NodeName, int] = {}
        self._dropped = 0
        self._pruned = JobId(0)
        self._pruned_known = state.position == 0
        self._covered = state.position
        """What happened after it is noted, or written; before it only the store can know."""
        self._mark = HistoryMark()
        self._met = False
        self._adopted = False
        self._gap = False
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._retry_s = RETRY_FIRST_S
        self._committer: Committer | None = None

    @property
    def store(self) -> History:
        """Raises: HistoryFailed while it is another cluster's (R5)."""
        if self._foreign:
            raise HistoryFailed(self._foreign)
        return self._store

    # -- noting ----------------------------------------------------------------------------------------------------

    def note(self, state: ClusterState, position: Position, fact: Fact) -> None:
        """Note a fact right after it was applied."""
        self.trail.note(state, position, fact)
        event = fact.event
        if type(event) not in _NOTED:
            return
        if isinstance(event, JobsPruned):
            self._pruned = max(self._pruned, *event.jobs)
        elif isinstance(event, TaskEnded):
            job = state.jobs[event.job]
            task = job.attempt(event.attempt).tasks[event.rank]
            self._add(held_by(job, event.attempt, task, fact.at, position))
        elif isinstance(event, JobFinished):
            job = state.jobs[event.job]
            self._ended[job.id] = job
            self._add(EndedJob(position, job))
        elif isinstance(event, JobRequeued):
            self._add(EndedAttempt(position, event.job, state.jobs[event.job].attempts[-1]))
        elif isinstance(event, NodeEvent):
            gpus = gpus_offered(state, event.node)
            if self._offered.get(event.node) != gpus:
                self._offered[event.node] = gpus
                self._add(CapacityChange(node=event.node, at=fact.at, gpus=gpus, position=position))

    def _add(self, note: Note) -> None:
        if len(self._notes) >= self._notes_max:
            self._give_up()
        if self._gap:
            self._dropped += 1
            return
        self._notes.append(note)

    def _give_up(self) -> None:
        """Drop all notes: the history is to be filled anew from the state (R3)."""
        self._dropped += len(self._notes)
        self._gap = True
        self._notes.clear()
        self._ended.clear()
        self._offered.clear()

    # -- recovery --------------------------------------------------------------------------------------------------

    async def relieve(self) -> None:
        """Write what would no longer fit, between the slices of a long replay, whose facts are all durable."""
        if (len(self._notes) < self._notes_max // 2 and not self.trail.is_half_full) or self.fault:
            return
        try:
            async with self._turn:
                mark = await self._store.open()
                if mark.cluster_id in ("", self._state.cluster_id) and mark.position >= self._covered:
                    self._drop_known(mark)
                    while self._writes and self._waits_through(self._durable):
                        await self._write_batch(self._durable)
        except HistoryFailed as fault:
            self._failed(fault)
        self._met = False

    async def follow(self, committer: Committer) -> None:
        """Take facts from this writer from now on, durable when it says so. Raises: HistoryTooNew."""
        self._committer = committer
        self.trail.replaying = False
        if self.shipper is not None:
            self.shipper.begin(self._state.last_at)
        committer.on_applied(self.note)
        committer.on_no_fact(self.trail.unheeded)
        committer.on_durable(self._durable_now)
        try:
            async with self._turn:
                await self._meet()
                await self.trail.number_on(self.store)
        except HistoryTooNew:
            raise
        except HistoryFailed as fault:
            self._failed(fault)
        self._news.set()

    def _durable_now(self, entries: Sequence[Entry]) -> None:
        if self._notes or self._gap:
            self._news.set()
        if self.trail.waiting:
            self.trail.news.set()

    # -- writing ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is durable until cancelled, with pauses that grow while the history can't be written."""
        self._met = self._met and not self._store.shared  # whoever was active before may have written since
        self._news.set()
        while True:
            await self._news.wait()
            await self._clock.sleep(self._retry_s if self.fault else GATHER_S if self._writes else LOOK_S)
            self._news.clear()
            if not await self.flush(None):
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def run_trail(self) -> None:
        """Write the audit trail until cancelled, also while no job ends."""
        while True:
            await self.trail.news.wait()
            await self._clock.sleep(TRAIL_PERIOD_S)
            self.trail.news.clear()
            if not self.fault:  # else `run` tries again, at its own pace
                await self.flush(None)

    async def run_trim(self) -> None:
        """Keep the history within its bounds until cancelled."""
        while True:
            await self._clock.sleep(TRIM_PERIOD_S)
            if self._writes:
                await self.trim()

    async def trim(self) -> None:
        """Drop what is older than the settings keep, and the oldest of more rows than they allow."""
        before = Instant(self._clock.now() - self._settings.keep_days * DAY_MS)
        try:
            dropped = await self.store.trim(before, self._settings.rows_max)
            audit = await self.store.trim_audit(before, self._settings.audit_rows_max)
        except HistoryFailed as fault:
            self._telemetry.count("history_faults")
            self._telemetry.warn("history_not_trimmed", error=str(fault))
            return
        if audit.beyond:
            self.trail.left_out(audit.beyond, self._clock.now())
        if dropped or audit.rows:
            self._telemetry.event("history_trimmed", jobs=dropped, audit_rows=audit.rows)

    async def flush(self, position: Position | None) -> bool:
        """Write what is durable, at least up to `position`; return False when it can't be written now (R2).

        `position` must be durable; None = only if there is something to write.
        """
        try:
            async with self._turn:
                await self._meet()
                if self._writes:
                    await self._write(position)
                else:
                    await self._look(position)
        except HistoryFailed as fault:
            self._failed(fault)
            return False
        if self.fault:
            self._telemetry.event("history_back", position=self._mark.position)
        self.fault, self._retry_s = "", RETRY_FIRST_S
        self._telemetry.gauge("history_ok", 1)
        self._telemetry.gauge("history_waiting", len(self._notes))
        self._telemetry.gauge("audit_rows_waiting", self.trail.waiting)
        return True

    async def _write(self, position: Position | None) -> None:
        if not self._adopted:
            await self._adopt()
        through = self._durable if position is None else position
        self._gap = self._gap or self._mark.position < self._covered  # R4
        while self._gap or self._waits_through(through) or self._mark.position < (position or 0):
            await (self._refill() if self._gap else self._write_batch(through))

    async def _adopt(self) -> None:
        """Take in, once, what the store finds from before it was used. Not at the start: it may take minutes."""
        known = HistoryMark(cluster_id=self._state.cluster_id, position=self._durable)
        mark = await self.store.adopt(known)
        if mark is not None:
            self._telemetry.event("history_adopted", position=mark.position)
            self._drop_known(mark)
        self._adopted = True

    async def _look(self, position: Position | None) -> None:
        """Drop what the active one has written, and write what only we know (R6).

        `position`: what happened up to there is waited for. Raises: HistoryFailed.
        """
        while rows := self.trail.refusals(ROWS_MAX):
            await self.store.add(rows)
            self.trail.added(rows)
        for tries in range(LOOKS_MAX):
            self._drop_known(self._ours(await self._store.mark()))
            if position is None or not self._is_owed(position):
                break
            if tries == LOOKS_MAX - 1:
                raise HistoryFailed(f"the active control plane has written it up to {self._mark.position} only")
            await self._clock.sleep(LOOK_S)
        if position is not None and self._mark.position < position:
            # What came after the mark is of no interest to the history, which so reaches as far.
            mark = HistoryMark(cluster_id=self._state.cluster_id, position=position)
            await self.store.record(HistoryBatch(mark=mark, epoch=self._epoch))
            self._mark = mark
        self._covered = max(self._covered, self._mark.position)
        if self._gap and self._mark.position >= self._state.position:
            self._gap, self._dropped = False, 0
        if self._notes or self._gap:
            self._news.set()

    def _is_owed(self, position: Position) -> bool:
        """Is there something up to this position that the active one has yet to write?"""
        notes = bool(self._notes) and self._notes[0].position <= position
        return notes or self._gap or self.trail.told_through(position)

    @property
    def _writes(self) -> bool:
        """Are we the one that writes what happened (R6)?"""
        if not self._store.shared:
            return True
        return self._committer is not None and self._committer.following is None

    @property
    def _epoch(self) -> Epoch | None:
        return self._state.epoch if self._store.shared else None

    @property
    def _durable(self) -> Position:
        return self._committer.durable if self._committer else self._state.position

    def _failed(self, fault: HistoryFailed) -> None:
        self._met = False
        self._news.set()
        self.fault = str(fault)
        self._telemetry.count("history_faults")
        self._telemetry.gauge("history_ok", 0)
        self._telemetry.gauge("history_waiting", len(self._notes))
        self._telemetry.warn("history_failed", error=self.fault, waiting=len(self._notes), dropped=self._dropped)

    def _waits_through(self, through: Position) -> bool:
        return self.trail.waits_through(through) or (bool(self._notes) and self._notes[0].position <= through)

    async def _write_batch(self, through: Position) -> None:
        """Write one batch of what happened up to `through`, which is durable (R1)."""
        some = [note for note in islice(self._notes, BATCH_MAX) if note.position <= through]
        left = len(some) < len(self._notes) and self._notes[len(some)].position <= through
        rows = self.trail.next_rows(ROWS_MAX, through)
        reached = self.trail.reach(len(rows), some[-1].position if left else through)
        mark = HistoryMark(cluster_id=self._state.cluster_id, position=reached)
        await self.store.record(batch_of(mark, some, rows, self._epoch))
        self.trail.written(len(rows))
        self._mark, self._covered = mark, max(self._covered, mark.position)
        if self._gap:
            return  # given up meanwhile, these too
        for note in some:
            self._notes.popleft()
            if isinstance(note, EndedJob) and self._ended.get(note.job.id) is note.job:
                del self._ended[note.job.id]

    async def _meet(self) -> None:
        """Find out what the store has, once and after each failure (R5)."""
        if self._met:
            return
        mark = self._ours(await self._store.open())
        if self._writes and mark.position > self._durable:
            self._telemetry.warn("history_put_back", ahead=mark.position, position=self._durable)
            mark = await self.store.rewind(HistoryMark(cluster_id=self._state.cluster_id, position=self._durable))
        self.trail.slot = self._store.writer_slot if self._store.shared else None
        self._drop_known(mark)
        self._pruned = max(self._pruned, await self._newest_forgotten())
        self._pruned_known = True
        self._met = True

    def _ours(self, mark: HistoryMark) -> HistoryMark:
        """Refuse the history of another cluster. Raises: HistoryFailed."""
        ours = self._state.cluster_id
        follows_from_nothing = self._store.shared and not ours
        if mark.cluster_id not in ("", ours) and not follows_from_nothing:
            words = f"the history is that of cluster {mark.cluster_id}, and this one is {ours}"
            self._foreign = f"{words}. To recover: {self._store.way_out}"
            raise HistoryFailed(self._foreign)
        self._foreign = ""
        return mark

    def _drop_known(self, mark: HistoryMark) -> None:
        while self._notes and self._notes[0].position <= mark.position:
            note = self._notes.popleft()
            if isinstance(note, EndedJob) and self._ended.get(note.job.id) is note.job:
                del self._ended[note.job.id]
        self.trail.drop_known(mark.position)
        self._mark = mark

    async def _newest_forgotten(self) -> JobId:
        """Return the newest job in the store that the state has no longer; 0 = none."""
        below = JobId(JOB_ID_MAX)
        while ids := await self.store.ids(None, below, _LOOK):
            gone = next((job for job in ids if job not in self._state.jobs), None)
            if gone is not None:
                return gone
            below = ids[-1]
        return JobId(0)

    async def _refill(self) -> None:
        """Write all that the state knows to have ended (R3, R4)."""
        jobs = [job for job in self._state.jobs.values() if job.is_final or job.attempts]
        nodes = list(self._state.nodes)
        position, at = self._state.position, self._state.last_at
        offers = [
            CapacityChange(node=node, at=at, gpus=gpus_offered(self._state, node), position=position) for node in nodes
        ]
        self._offered = {offer.node: offer.gpus for offer in offers}
        self._notes.clear()
        self._gap = False
        dropped, self._dropped = self._dropped, 0
        try:
            if self._committer is not None:
                await self._committer.settled()  # R1
            since = HistoryMark(cluster_id=self._state.cluster_id, position=self._mark.position)
            while self.trail.waits_through(position):
                rows = self.trail.next_rows(ROWS_MAX, position)
                await self.store.record(HistoryBatch(mark=since, audit=rows, epoch=self._epoch))
                self.trail.written(len(rows))
            for start in range(0, len(jobs), BATCH_MAX):
                await self.store.record(known_batch(since, jobs[start : start + BATCH_MAX], position, self._epoch))
            mark = HistoryMark(cluster_id=self._state.cluster_id, position=position)
            await self.store.record(HistoryBatch(mark=mark, offers=offers, epoch=self._epoch))
        except StokerError as fault:
            self._give_up()
            raise HistoryFailed(f"the event log has failed: {fault}") from fault
        except BaseException:
            self._give_up()
            raise
        self._mark, self._covered = mark, max(self._covered, position)
        if since.position or dropped:
            self._telemetry.warn("history_gap", after=since.position, before=position, dropped=dropped)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def newest_pruned(self) -> JobId:
        """Id above which the state has forgotten no job, so that none has to be looked for in the store."""
        return self._pruned if self._pruned_known else JobId(JOB_ID_MAX)

    def ended(self) -> dict[JobId, Job]:
        """Return jobs that ended and aren't in the store yet, to be asked after the state and before the store."""
        return dict(self._ended)

    async def recall(self, job: JobId) -> Job | None:
        """Return a job that ended, whether or not the state remembers it. Raises: HistoryFailed."""
        found = self._ended.get(job)
        if found is not None:
            return found
        return next(iter(await self.store.jobs((job,))), None)

    async def audit(self, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
        """Return the newest `most` audit rows that match, newest first, whether or not they are in the store.

        Raises: HistoryFailed.
        """
        fresh = {row.key: row for row in self.trail.unwritten(query) if not below or row.key < below}
        stored = await self.store.audit(query, below, most)
        found = {row.key: row for row in stored} | fresh
        return [found[key] for key in sorted(found, reverse=True)[:most]]

    def holdings(self) -> tuple[Position, list[Holding]]:
        """Return how far the store is to be believed, and the holdings that ended after that.

        Where another control plane writes it may be ahead of what we know, and of what we say still runs.
        """
        through = min(self._mark.position, self._state.position)
        return through, [note for note in self._notes if isinstance(note, Holding)]

    def offers(self) -> list[CapacityChange]:
        """Return changes of capacity after the store's mark."""
        return [note for note in self._notes if isinstance(note, CapacityChange)]
