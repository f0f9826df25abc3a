"""Counting models of queue disciplines: one pool of GPUs, no nodes, as published tables of completion times have it.

These are yardsticks that the engine is held against, not the engine: they know of a job its submission, its GPUs and,
where the policy is called an oracle, how long it will run.

Rules: M1  `fifo` starts the oldest job or nothing
       M2  `first-fit` starts the oldest job that fits; `sjf` the shortest that fits
       M3  `easy` starts in order of age; the first that doesn't fit gets a reservation at the earliest time at which
           enough GPUs will be free, and of the EASY_DEPTH behind it those start that end before it or leave its GPUs
       M4  `srtf`, `srsf` and `las` decide anew at each event: jobs in their order, each that fits into what is left
           runs, every other is preempted; equals go by submission, then by the trace's order
       M5  a preempted job has `restart_ms` more to do: what is lost since its last checkpoint, and the start
       M6  `las` has one queue for each threshold of GPU-time that a job has had; within a queue age decides
Naive: bring all jobs into order at each event. But of those that run, all whose rank is before the first waiting job
stay in any case, since together they fit; only the others are weighed again.
Source: EASY: Lifka, "The ANL/IBM SP Scheduling System" (1995). SRSF and 2D-LAS: Gu et al., "Tiresias", NSDI 2019.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from stoker.brain.domain.units import HOUR_MS
from stoker.sim.outcome import Progress, SimOutcome
from stoker.sim.trace import TraceJob

EASY_DEPTH: Final = 500
"""Jobs behind the first that backfill looks at; those further behind wait."""
LAS_THRESHOLDS_MS: Final = (1 * HOUR_MS, 10 * HOUR_MS, 100 * HOUR_MS)
"""GPU-milliseconds of service after which a job goes to the next queue of `las`."""
_NEVER: Final = 1 << 62


def run_fifo(jobs: Sequence[TraceJob], gpus: int, progress: Progress) -> SimOutcome:
    """Run all jobs, each when it is the oldest and fits (M1)."""
    return _run_to_end(jobs, gpus, _Fifo(jobs), progress)


def run_first_fit(jobs: Sequence[TraceJob], gpus: int, progress: Progress) -> SimOutcome:
    """Run all jobs, the oldest that fits first (M2)."""
    return _run_to_end(jobs, gpus, _FirstFit(jobs, lambda _: 0), progress)


def run_sjf(jobs: Sequence[TraceJob], gpus: int, progress: Progress) -> SimOutcome:
    """Run all jobs, the shortest that fits first (M2)."""
    return _run_to_end(jobs, gpus, _FirstFit(jobs, lambda job: job.duration_ms), progress)


def run_easy(jobs: Sequence[TraceJob], gpus: int, progress: Progress) -> SimOutcome:
    """Run all jobs by age, with backfill (M3)."""
    return _run_to_end(jobs, gpus, _Easy(jobs), progress)


class _Fifo:
    """The queue of `fifo`."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self._jobs = jobs
        self._queue: deque[int] = deque()

    def add(self, number: int) -> None:
        self._queue.append(number)

    def start(self, now: int, free: int, running: list[tuple[int, int]], *, freed: bool) -> list[int]:
        """Take out what starts now. `running` has (end, number); `freed`: whether a job has ended."""
        started: list[int] = []
        while self._queue and self._jobs[self._queue[0]].total_gpus <= free:
            started.append(self._queue.popleft())
            free -= self._jobs[started[-1]].total_gpus
        return started


class _FirstFit:
    """The queue of `first-fit` and of `sjf`: a heap for each number of GPUs, so that only what may fit is looked at."""

    def __init__(self, jobs: Sequence[TraceJob], rank: Callable[[TraceJob], int]) -> None:
        self._jobs = jobs
        self._rank = rank
        self._heaps: dict[int, list[tuple[int, int]]] = {}

    def add(self, number: int) -> None:
        job = self._jobs[number]
        heappush(self._heaps.setdefault(job.total_gpus, []), (self._rank(job), number))

    def start(self, now: int, free: int, running: list[tuple[int, int]], *, freed: bool) -> list[int]:
        """Take out what starts now."""
        started: list[int] = []
        while heads := [(heap[0], gpus) for gpus, heap in self._heaps.items() if heap and gpus <= free]:
            _, gpus = min(heads)
            started.append(heappop(self._heaps[gpus])[1])
            free -= gpus
        return started


class _Easy:
    """The queue of `easy`, and the reservation of its first job."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self._jobs = jobs
        self._queue: list[int] = []
        self._head = -1
        """The job that has the reservation; -1 = none."""
        self._at = 0
        """When it will start."""
        self._spare = 0
        """GPUs that it will leave then."""
        self._seen = 0
        """Places of the queue that were looked at since GPUs were last freed: they don't fit now either."""

    def add(self, number: int) -> None:
        self._queue.append(number)

    def start(self, now: int, free: int, running: list[tuple[int, int]], *, freed: bool) -> list[int]:
        """Take out what starts now."""
        started: list[int] = []
        while self._queue and self._jobs[self._queue[0]].total_gpus <= free:
            started.append(self._queue.pop(0))
            free -= self._jobs[started[-1]].total_gpus
            freed = True  # what was looked at was behind another reservation
        if not self._queue or not free:
            self._seen = 0 if freed else self._seen
            return started
        if self._queue[0] != self._head:
            self._reserve(free, running, [(now + self._jobs[each].duration_ms, each) for each in started])
        return started + self._backfill(now, free, 1 if freed else max(self._seen, 1))

    def _reserve(self, free: int, running: list[tuple[int, int]], started: list[tuple[int, int]]) -> None:
        """Durations are known, so a reservation is right from the beginning and is made once."""
        self._head = self._queue[0]
        lacking = self._jobs[self._head].total_gpus - free
        ends = [*running, *started]
        heapify(ends)
        while lacking > 0 or (ends and ends[0][0] == self._at):
            self._at, number = heappop(ends)
            lacking -= self._jobs[number].total_gpus
        self._spare = -lacking

    def _backfill(self, now: int, free: int, first: int) -> list[int]:
        started: list[int] = []
        place = first
        while place < min(len(self._queue), EASY_DEPTH + 1) and free:
            job = self._jobs[self._queue[place]]
            in_time = now + job.duration_ms <= self._at
            if job.total_gpus <= free and (in_time or job.total_gpus <= self._spare):
                started.append(self._queue.pop(place))
                free -= job.total_gpus
                self._spare -= 0 if in_time else job.total_gpus
            else:
                place += 1
        self._seen = place if free else 0
        return started


def _run_to_end(
    jobs: Sequence[TraceJob], gpus: int, queue: _Fifo | _FirstFit | _Easy, progress: Progress
) -> SimOutcome:
    """Run all jobs without preemption."""
    ended = [0] * len(jobs)
    running: list[tuple[int, int]] = []
    free, following = gpus, 0
    while following < len(jobs) or running:
        arrival = jobs[following].submit_ms if following < len(jobs) else _NEVER
        now = min(arrival, running[0][0] if running else _NEVER)
        before = free
        while running and running[0][0] == now:
            number = heappop(running)[1]
            free += jobs[number].total_gpus
            ended[number] = now
            progress(1)
        while following < len(jobs) and jobs[following].submit_ms == now:
            queue.add(following)
            following += 1
        for number in queue.start(now, free, running, freed=free > before):
            free -= jobs[number].total_gpus
            heappush(running, (now + jobs[number].duration_ms, number))
    return SimOutcome(ended_ms=ended, held_ms=[job.duration_ms for job in jobs], preemptions=[0] * len(jobs))


def run_srtf(jobs: Sequence[TraceJob], gpus: int, progress: Progress, restart_ms: int) -> SimOutcome:
    """Run all jobs, those with the least time left first (M4)."""
    return _Preemptive(jobs, gpus, restart_ms, weighted=False).run(progress)


def run_srsf(jobs: Sequence[TraceJob], gpus: int, progress: Progress, restart_ms: int) -> SimOutcome:
    """Run all jobs, those with the least GPU-time left first (M4)."""
    return _Preemptive(jobs, gpus, restart_ms, weighted=True).run(progress)


def run_las(
    jobs: Sequence[TraceJob],
    gpus: int,
    progress: Progress,
    restart_ms: int,
    thresholds: Sequence[int] = LAS_THRESHOLDS_MS,
) -> SimOutcome:
    """Run all jobs, those in the queue of the least attained GPU-time first (M6)."""
    return _Preemptive(jobs, gpus, restart_ms, thresholds=thresholds).run(progress)


_Rank = tuple[int, int]
"""What a job is ordered by, then its number, which is the order of submission."""


class _Group:
    """The jobs that want the same number of GPUs, each list in order of rank."""

    __slots__ = ("gpus", "running", "waiting")

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.running: list[_Rank] = []
        self.waiting: list[_Rank] = []


class _Preemptive:
    """A run in which jobs may be preempted.

    The first part of a rank is, without thresholds, the time left of a waiting job and the end of a running one, from
    which `now` has to be taken; with them it is the queue of `las`, of both.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        gpus: int,
        restart_ms: int,
        *,
        weighted: bool = False,
        thresholds: Sequence[int] | None = None,
    ) -> None:
        self._jobs = jobs
        self._free = gpus
        self._restart_ms = restart_ms
        self._weighted = weighted
        self._thresholds = thresholds
        count = len(jobs)
        self._groups = {gpus: _Group(gpus) for gpus in sorted({job.total_gpus for job in jobs})}
        self._left = [job.duration_ms for job in jobs]
        self._since = [0] * count
        self._attained = [0] * count
        self._level = [0] * count
        self._version = [0] * count
        """Rises whenever what was foreseen for the job no longer holds."""
        self._foreseen: list[tuple[int, int, int]] = []
        """(time, job, version) of ends and of steps to the next queue."""
        self._now = 0
        self._ended = [0] * count
        self._held = [0] * count
        self._preemptions = [0] * count

    def run(self, progress: Progress) -> SimOutcome:
        jobs, foreseen = self._jobs, self._foreseen
        following = 0
        while True:
            while foreseen and foreseen[0][2] != self._version[foreseen[0][1]]:
                heappop(foreseen)
            arrival = jobs[following].submit_ms if following < len(jobs) else _NEVER
            self._now = now = min(arrival, foreseen[0][0] if foreseen else _NEVER)
            if now == _NEVER:
                break
            while foreseen and foreseen[0][0] == now:
                _, number, version = heappop(foreseen)
                if version == self._version[number] and self._came(number):
                    progress(1)
            while following < len(jobs) and jobs[following].submit_ms == now:
                self._wait(following)
                following += 1
            self._decide()
        return SimOutcome(ended_ms=self._ended, held_ms=self._held, preemptions=self._preemptions)

    def _came(self, number: int) -> bool:
        """Take note that a running job has reached its end (True) or the next queue."""
        group = self._groups[self._jobs[number].total_gpus]
        _remove(group.running, self._running_rank(number))
        self._account(number)
        if self._left[number] > 0:
            self._run_on(number, group)
            return False
        self._free += group.gpus
        self._ended[number] = self._now
        return True

    def _account(self, number: int) -> None:
        """Book what a running job has had until now."""
        had = self._now - self._since[number]
        self._left[number] -= had
        self._held[number] += had
        self._version[number] += 1
        if self._thresholds is not None:
            self._attained[number] += had * self._jobs[number].total_gpus
            while self._next_threshold(number) <= self._attained[number]:
                self._level[number] += 1

    def _next_threshold(self, number: int) -> int:
        assert self._thresholds is not None
        level = self._level[number]
        return self._thresholds[level] if level < len(self._thresholds) else _NEVER

    def _running_rank(self, number: int) -> _Rank:
        if self._thresholds is not None:
            return self._level[number], number
        return self._since[number] + self._left[number], number

    def _run_on(self, number: int, group: _Group) -> None:
        """Let a job run from now on."""
        self._since[number] = self._now
        insort(group.running, self._running_rank(number))
        at = self._now + self._left[number]
        if self._thresholds is not None and self._level[number] < len(self._thresholds):
            lacking = self._next_threshold(number) - self._attained[number]
            at = min(at, self._now - -lacking // group.gpus)
        heappush(self._foreseen, (at, number, self._version[number]))

    def _wait(self, number: int) -> None:
        rank = self._left[number] if self._thresholds is None else self._level[number]
        insort(self._groups[self._jobs[number].total_gpus].waiting, (rank, number))

    def _decide(self) -> None:
        """Choose anew who runs (M4)."""
        first = min(
            (
                (group.waiting[0][0] * self._weight(group), group.waiting[0][1])
                for group in self._groups.values()
                if group.waiting
            ),
            default=None,
        )
        if first is None:
            return
        left = self._free
        tails = {gpus: self._place_behind(group, first) for gpus, group in self._groups.items()}
        for gpus, place in tails.items():
            left += gpus * (len(self._groups[gpus].running) - place)
        if not any(group.waiting and group.gpus <= left for group in self._groups.values()):
            return  # then all that run stay
        kept, started = self._weigh(tails, left)
        starting: list[tuple[int, _Group]] = []
        for gpus, count in started.items():
            group = self._groups[gpus]
            starting += [(number, group) for _, number in group.waiting[:count]]
            del group.waiting[:count]
        for gpus, place in tails.items():
            self._preempt(self._groups[gpus], place + kept[gpus])
        for number, group in starting:
            self._free -= group.gpus
            self._run_on(number, group)
        assert self._free >= 0, f"more GPUs are held than there are: {self._free}"

    def _weight(self, group: _Group) -> int:
        return group.gpus if self._weighted else 1

    def _place_behind(self, group: _Group, first: _Rank) -> int:
        """Return the first place of those that run at which one stands behind the first waiting job."""
        if self._thresholds is not None:
            return bisect_left(group.running, first)
        whole, rest = divmod(first[0], self._weight(group))
        at = self._now + whole
        return bisect_left(group.running, (at + 1, -1) if rest else (at, first[1]))

    def _weigh(self, tails: dict[int, int], left: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return, by GPUs, how many of each tail stay and how many of those that wait start."""
        kept, started = dict.fromkeys(tails, 0), dict.fromkeys(tails, 0)
        heads: list[tuple[_Rank, int, bool]] = []
        for gpus, place in tails.items():
            self._push(heads, gpus, place, runs=True)
            self._push(heads, gpus, 0, runs=False)
        while heads and left:
            _, gpus, runs = heappop(heads)
            if gpus > left:
                continue  # nor will the next of its kind
            left -= gpus
            count = kept if runs else started
            count[gpus] += 1
            self._push(heads, gpus, count[gpus] + (tails[gpus] if runs else 0), runs=runs)
        return kept, started

    def _push(self, heads: list[tuple[_Rank, int, bool]], gpus: int, place: int, *, runs: bool) -> None:
        group = self._groups[gpus]
        listed = group.running if runs else group.waiting
        if place < len(listed):
            first, number = listed[place]
            passed = self._now if runs and self._thresholds is None else 0
            heappush(heads, (((first - passed) * self._weight(group), number), gpus, runs))

    def _preempt(self, group: _Group, place: int) -> None:
        """Take back the GPUs of those that run from this place on."""
        numbers = [number for _, number in group.running[place:]]
        del group.running[place:]
        for number in numbers:
            self._account(number)
            self._left[number] += self._restart_ms
            self._preemptions[number] += 1
            self._free += group.gpus
            self._wait(number)


def _remove(ranks: list[_Rank], rank: _Rank) -> None:
    place = bisect_left(ranks, rank)
    assert ranks[place] == rank, f"{rank} isn't where its order has it"
    del ranks[place]
