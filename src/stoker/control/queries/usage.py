"""Report of usage: how much of the cluster each user or tenant has used.

What ended is summed by the history's store, what it hasn't got yet and what still runs is added here.

Rules: R1  everything is counted once: the store is asked for what it held at its mark, and what ended after that mark
           or still runs is taken from notes and state at the same instant
       R2  a job is one in the count of its line, however many attempts and tasks it had
       R3  capacity is what ready nodes offered, and what jobs held on nodes that offered nothing: so what is idle was
           really to be had, and nothing is ever more than used up
Limits: the `lines_max` largest lines are answered; the totals are of all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.brain.domain.ids import JobId, Position
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import (
    CapacityChange,
    Holding,
    UsageQuery,
    UsageSum,
    gpu_ms_of,
    gpu_ms_within,
    held_by,
    merged,
    offered,
    overlap_ms,
)
from stoker.brain.state.cluster import ClusterState
from stoker.control.control_plane import ControlPlane
from stoker.ports import Clock, History

LINES_MAX: Final = 1_000
SLICE: Final = 1_000
"""Holdings added up before others get a turn: about two milliseconds."""
_EVER: Final = Position(2**62)


class UsageReport(NamedTuple):
    """Usage in `lines`, the largest first, and capacity and allocation of the whole cluster, whatever was asked for."""

    lines: list[UsageSum]
    more: bool
    """There are lines beyond `lines_max`."""
    total: UsageSum
    capacity_gpu_ms: int
    allocated_gpu_ms: int


class _Cut(NamedTuple):
    """Holdings and capacity that the store hasn't got, at one instant."""

    mark: Position
    holdings: Sequence[Holding]
    again: list[JobId]
    """Jobs of which the store may have other holdings."""
    offers: Sequence[CapacityChange]


async def usage_report(
    control: ControlPlane, asked: UsageQuery, now: Instant, *, lines_max: int = LINES_MAX
) -> UsageReport:
    """Return the usage that was asked for; `asked.until` isn't after `now`. Raises: HistoryFailed."""
    store, clock = control.history.store, control.clock
    cut = _cut(control, now)
    asked = replace(asked, through=cut.mark)
    everything = UsageQuery(since=asked.since, until=asked.until, by=None, through=cut.mark)
    lines = await _lines(store, clock, asked, cut, lines_max)
    total = await _total(store, clock, replace(asked, by=None), cut)
    narrowed = asked.tenant or asked.user or asked.among is not None
    allocated = await _total(store, clock, everything, cut) if narrowed else total
    capacity = await _capacity_ms(store, everything, cut)
    return UsageReport(
        lines=lines[:lines_max],
        more=len(lines) > lines_max,
        total=total,
        capacity_gpu_ms=max(capacity, allocated.gpu_ms),
        allocated_gpu_ms=allocated.gpu_ms,
    )


def _cut(control: ControlPlane, now: Instant) -> _Cut:
    """Return what the store hasn't got, in one step: nothing ends, is written or is placed meanwhile (R1)."""
    state = control.committer.state
    mark, noted = control.history.holdings()
    holdings = [*noted, *_live(state, now)]
    known = dict.fromkeys(holding.job for holding in holdings)
    return _Cut(mark, holdings, [job for job in known if _may_be_there(state, job)], control.history.offers())


def _live(state: ClusterState, now: Instant) -> list[Holding]:
    found: list[Holding] = []
    for held in state.indexes.held.values():
        for job_id, attempt, rank in held:
            job = state.jobs[job_id]
            found.append(held_by(job, attempt, job.attempt(attempt).tasks[rank], now, state.position))
    return found


def _may_be_there(state: ClusterState, job_id: JobId) -> bool:
    job = state.jobs.get(job_id)
    return job is None or job.newest_attempt > 1 or len(job.attempts[-1].tasks) > 1


async def _lines(store: History, clock: Clock, asked: UsageQuery, cut: _Cut, lines_max: int) -> list[UsageSum]:
    more = await _summed(store, clock, asked, cut)
    # A line that what runs lifts among the largest may be a small one in the store.
    stored = {line.key: line for line in await store.usage(asked, lines_max + 1)}
    missing = [key for key in more if key not in stored]
    stored |= {line.key: line for line in await store.usage(asked, lines_max + 1, missing)}
    return merged(stored.values(), more)


async def _total(store: History, clock: Clock, asked: UsageQuery, cut: _Cut) -> UsageSum:
    nothing = UsageSum(key="", jobs=0, gpu_ms=0, cpu_ms=0)
    lines = await _lines(store, clock, asked, cut, 1)
    return lines[0] if lines else nothing


async def _summed(store: History, clock: Clock, asked: UsageQuery, cut: _Cut) -> dict[str, UsageSum]:
    """What the cut adds to each line."""
    charged = set(await store.charged(asked, cut.again))
    open_ended = replace(asked, through=_EVER)
    sums: dict[str, UsageSum] = {}
    for looked, holding in enumerate(cut.holdings, start=1):
        if looked % SLICE == 0:
            await clock.sleep(0)
        if not open_ended.counts(holding):
            continue
        key, ms = asked.key(holding), overlap_ms(holding, asked.since, asked.until)
        had = sums.get(key) or UsageSum(key=key, jobs=0, gpu_ms=0, cpu_ms=0)
        is_new = (key, holding.job) not in charged  # R2
        charged.add((key, holding.job))
        sums[key] = UsageSum(
            key=key,
            jobs=had.jobs + is_new,
            gpu_ms=had.gpu_ms + gpu_ms_of(holding, ms),
            cpu_ms=had.cpu_ms + ms * holding.cpus,
        )
    return sums


async def _capacity_ms(store: History, asked: UsageQuery, cut: _Cut) -> int:
    """Return the milliseconds of GPUs that were offered or held in the span that was asked for (R3)."""
    stored = await store.offers(asked.since, asked.until)
    # What was noted at the cut may have been written since, and then comes twice.
    by_place = {(each.at, each.node): each for each in (*stored, *cut.offers) if each.at < asked.until}
    offers = [by_place[place] for place in sorted(by_place)]
    offered_ms, closed = offered(offers, asked.since, asked.until)
    held_ms = await store.held(closed, cut.mark) + gpu_ms_within(cut.holdings, closed)
    return offered_ms + held_ms
