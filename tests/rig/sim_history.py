"""A history that survives the process, as plain lists: as slow and as obvious as it can be."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from stoker.adapters.history_sql.statements import unborn
from stoker.brain.domain.audit import OK, AuditQuery, AuditRow, AuditTrim, surplus_of
from stoker.brain.domain.ids import JobId, NodeName, Position, Principal
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import (
    CapacityChange,
    Holding,
    NodeInterval,
    UsageQuery,
    UsageSum,
    gpu_ms_within,
    overlap_ms,
)
from stoker.ports import Clock, HistoryBatch, HistoryFailed, HistoryMark

_PIECE_BYTES = 1_000


@dataclass(slots=True)
class SimArchive:
    """What is on the platter."""

    mark: HistoryMark = field(default_factory=HistoryMark)
    jobs: dict[JobId, tuple[Position, Job]] = field(default_factory=dict)
    attempts: dict[tuple[JobId, int], tuple[Position, Attempt]] = field(default_factory=dict)
    holdings: dict[tuple[JobId, int, int], Holding] = field(default_factory=dict)
    offers: dict[tuple[NodeName, Instant], CapacityChange] = field(default_factory=dict)
    audit: dict[int, AuditRow] = field(default_factory=dict)
    fault: str = ""
    """Why it can't be used now."""
    batches: int = 0
    epoch: int = 0
    """The newest that has written, where several may."""


class SimHistory:
    """The History port on an archive."""

    way_out = "take another archive"

    def __init__(
        self,
        archive: SimArchive | Callable[[], SimArchive],
        clock: Clock,
        *,
        took_s: float = 0.002,
        shared_as: int | None = None,
        cut_off: Callable[[], bool] = bool,
    ) -> None:
        """A function is asked for the archive when it is opened: it may be exchanged before.

        `shared_as`: the slot of this control plane among several with one archive, from which it may be cut off.
        """
        self.shared, self.writer_slot = shared_as is not None, shared_as or 0
        self._place, self._cut_off = archive, cut_off
        self._archive = self._found()
        self._clock, self._took_s = clock, took_s
        self._open = False

    def _found(self) -> SimArchive:
        return self._place if isinstance(self._place, SimArchive) else self._place()

    async def _reach(self) -> SimArchive:
        await self._clock.sleep(self._took_s)
        if self._archive.fault or not self._open or self._cut_off():
            raise HistoryFailed(self._archive.fault or "it isn't open, or can't be reached")
        return self._archive

    async def open(self) -> HistoryMark:
        self._archive = self._found()
        self._open = not self._archive.fault
        return (await self._reach()).mark

    async def mark(self) -> HistoryMark:
        return (await self._reach()).mark

    async def add(self, rows: Sequence[AuditRow]) -> None:
        (await self._reach()).audit.update({row.key: row for row in rows})

    async def adopt(self, mark: HistoryMark) -> HistoryMark | None:
        return None

    async def record(self, batch: HistoryBatch) -> None:
        archive = await self._reach()
        if self.shared and ((batch.epoch or 0) < archive.epoch or batch.mark.position < archive.mark.position):
            raise HistoryFailed(f"epoch {batch.epoch} is over, or {archive.mark.position} is told already")
        archive.epoch = max(archive.epoch, batch.epoch or 0)
        archive.batches += 1
        for position, job in batch.jobs:
            archive.jobs[job.id] = (position, job)
            for attempt in job.attempts:
                if attempt.outcome:
                    archive.attempts[job.id, attempt.number] = (position, attempt)
        for position, job_id, attempt in batch.attempts:
            archive.attempts[job_id, attempt.number] = (position, attempt)
        for holding in batch.holdings:
            archive.holdings[holding.job, holding.attempt, holding.rank] = holding
        for offer in batch.offers:
            archive.offers[offer.node, offer.at] = offer
        for row in batch.audit:
            archive.audit[row.key] = row
        archive.mark = batch.mark

    async def rewind(self, mark: HistoryMark) -> HistoryMark:
        archive = await self._reach()
        jobs = len(archive.jobs)
        archive.jobs = {key: kept for key, kept in archive.jobs.items() if kept[0] <= mark.position}
        archive.attempts = {key: kept for key, kept in archive.attempts.items() if kept[0] <= mark.position}
        archive.holdings = {key: kept for key, kept in archive.holdings.items() if kept.position <= mark.position}
        archive.offers = {key: kept for key, kept in archive.offers.items() if kept.position <= mark.position}
        archive.audit = {key: row for key, row in archive.audit.items() if row.position <= mark.position}
        archive.mark = mark if len(archive.jobs) == jobs else HistoryMark(cluster_id=mark.cluster_id)
        return archive.mark

    async def ids(self, wanted: JobFilter | None, below: JobId, most: int) -> list[JobId]:
        archive = await self._reach()
        found = [
            job.id
            for _, job in archive.jobs.values()
            if job.id < below and (wanted is None or wanted.matches(job, job.state))
        ]
        return sorted(found, reverse=True)[:most]

    async def jobs(self, ids: Sequence[JobId]) -> list[Job]:
        archive = await self._reach()
        return [archive.jobs[job][1] for job in sorted(set(ids), reverse=True) if job in archive.jobs]

    async def arrays(self, below: JobId, most: int) -> list[Job]:
        archive = await self._reach()
        found = {job.id: job for _, job in archive.jobs.values() if job.id < below and unborn(job)}
        return [found[job] for job in sorted(found, reverse=True)[:most]]

    async def usage(self, query: UsageQuery, most: int, keys: Sequence[str] | None = None) -> list[UsageSum]:
        archive = await self._reach()
        by_key: dict[str, list[Holding]] = {}
        for holding in archive.holdings.values():
            if query.counts(holding) and (keys is None or query.key(holding) in keys):
                by_key.setdefault(query.key(holding), []).append(holding)
        sums = [_sum(query, key, holdings) for key, holdings in by_key.items()]
        sums.sort(key=lambda line: (-line.gpu_ms, -line.cpu_ms, line.key))
        return sums if keys is not None else sums[:most]

    async def charged(self, query: UsageQuery, jobs: Sequence[JobId]) -> list[tuple[str, JobId]]:
        archive = await self._reach()
        found = [holding for holding in archive.holdings.values() if query.counts(holding) and holding.job in jobs]
        return sorted({(query.key(holding), holding.job) for holding in found})

    async def offers(self, since: Instant, until: Instant) -> list[CapacityChange]:
        archive = await self._reach()
        newest: dict[NodeName, CapacityChange] = {}
        for offer in sorted(archive.offers.values(), key=lambda offer: offer.at):
            if offer.at <= since:
                newest[offer.node] = offer
        within = [offer for offer in archive.offers.values() if since < offer.at < until]
        return sorted((*newest.values(), *within), key=lambda offer: (offer.at, offer.node))

    async def held(self, spans: Sequence[NodeInterval], through: Position) -> int:
        archive = await self._reach()
        return gpu_ms_within((each for each in archive.holdings.values() if each.position <= through), spans)

    async def audit(self, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
        archive = await self._reach()
        found = [row for key, row in archive.audit.items() if query.matches(row) and (not below or key < below)]
        return sorted(found, key=lambda row: -row.key)[:most]

    async def trim(self, before: Instant, rows_max: int) -> int:
        archive = await self._reach()
        oldest = sorted(archive.jobs.values(), key=lambda kept: (kept[1].ended_at, kept[1].id))
        surplus = len(oldest) - rows_max
        gone = [job.id for at, (_, job) in enumerate(oldest) if job.ended_at < before or at < surplus]
        for job in gone:
            del archive.jobs[job]
        archive.attempts = {key: kept for key, kept in archive.attempts.items() if kept[1].ended_at >= before}
        archive.holdings = {key: kept for key, kept in archive.holdings.items() if kept.until >= before}
        offers = list(archive.offers.values())
        kept = [offer for offer in offers if offer.at >= before or _still_holds(offer, offers, before)]
        archive.offers = {(offer.node, offer.at): offer for offer in kept}
        return len(gone)

    async def trim_audit(self, before: Instant, rows_max: int) -> AuditTrim:
        archive = await self._reach()
        had = len(archive.audit)
        beyond: Counter[Principal] = Counter()
        for factless, most in ((True, rows_max // 4), (False, rows_max)):
            rows = {key: row for key, row in archive.audit.items() if not factless or row.outcome != OK}
            for by, surplus in surplus_of(Counter(row.by for row in rows.values()), most).items():
                theirs = (key for key, row in rows.items() if row.by == by)
                for key in sorted(theirs, key=lambda key: (not factless and rows[key].job == 0, key))[:surplus]:
                    del archive.audit[key]
                beyond[by] += surplus
        archive.audit = {key: row for key, row in archive.audit.items() if row.at >= before}
        return AuditTrim(had - len(archive.audit), beyond)

    async def copy(self) -> "SimCopy":
        return SimCopy(_frozen(await self._reach()))

    async def close(self) -> None:
        self._open = False


class SimCopy:
    """The HistoryCopy port in memory."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._left = content

    async def read(self) -> bytes:
        piece, self._left = self._left[:_PIECE_BYTES], self._left[_PIECE_BYTES:]
        return piece

    async def close(self) -> None:
        self._left = b""


class _Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy holds. A job or attempt stands behind the position where it ended."""

    mark: HistoryMark
    jobs: list[tuple[Position, Job]]
    attempts: list[tuple[JobId, Position, Attempt]]
    holdings: list[Holding]
    offers: list[CapacityChange]
    audit: list[AuditRow]


def _frozen(archive: SimArchive) -> bytes:
    return msgspec.json.encode(
        _Frozen(
            mark=archive.mark,
            jobs=list(archive.jobs.values()),
            attempts=[(job, *kept) for (job, _), kept in archive.attempts.items()],
            holdings=list(archive.holdings.values()),
            offers=list(archive.offers.values()),
            audit=list(archive.audit.values()),
        )
    )


def archive_in(content: bytes) -> SimArchive:
    """What a copy is of."""
    frozen = msgspec.json.decode(content, type=_Frozen)
    return SimArchive(
        mark=frozen.mark,
        jobs={job.id: (position, job) for position, job in frozen.jobs},
        attempts={(job, attempt.number): (position, attempt) for job, position, attempt in frozen.attempts},
        holdings={(each.job, each.attempt, each.rank): each for each in frozen.holdings},
        offers={(offer.node, offer.at): offer for offer in frozen.offers},
        audit={row.key: row for row in frozen.audit},
    )


def _sum(query: UsageQuery, key: str, holdings: Sequence[Holding]) -> UsageSum:
    spans = [(overlap_ms(holding, query.since, query.until), holding) for holding in holdings]
    return UsageSum(
        key=key,
        jobs=len({holding.job for holding in holdings}),
        gpu_ms=sum(ms * len(holding.gpus) for ms, holding in spans),
        cpu_ms=sum(ms * holding.cpus for ms, holding in spans),
    )


def _still_holds(old: CapacityChange, offers: Sequence[CapacityChange], before: Instant) -> bool:
    return old.gpus > 0 and not any(other.node == old.node and old.at < other.at <= before for other in offers)
