"""The output that a request means, and what of it is read first."""

from typing import Final

from starlette.requests import Request

from stoker.api.http.responses import caller_of, own_job_at
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.report import LogChunk
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import LogPlace
from stoker.control.output_reader import LogTails
from stoker.wire.rest.log import TAIL_FIRST_BYTES, LogQuery, last_lines

YET_TO_BEGIN: Final = frozenset({"not_started", "attempt_unknown"})
"""Refusals of an attempt that isn't there."""
LOOK_FIRST_S: Final = 0.05
LOOK_MAX_S: Final = 0.25
"""Between two looks at whether an attempt has begun: a look costs a microsecond, a person doesn't notice it."""


class LogReading:
    """One request for output."""

    def __init__(self, control: ControlPlane, request: Request, query: LogQuery) -> None:
        """Raises: StokerError `not_supported_here` where this runtime can't read output."""
        if control.output is None:
            raise StokerError(_not_supported_here())
        self._control = control
        self._request = request
        self.query = query
        self.tails: LogTails = control.output

    @property
    def caller(self) -> Caller:
        """The caller that reads."""
        return caller_of(self._request)

    async def watch(self) -> None:
        """Return once the caller may not read any more."""
        await self._control.access.watch(self.caller)

    @property
    def job(self) -> Job:
        """Raises: StokerError, such as `job_forgotten`."""
        job = own_job_at(self._request, self._control)
        if job.members is not None:
            spec, _ = job.as_array
            hint = f"name one of them, such as `{job.id}_{spec.indexes[0][0]}`"
            raise refusal_error("several_jobs", f"job {job.id} is an array: each of its members writes", hint)
        return job

    def place(self, attempt: int) -> LogPlace:
        """Where an attempt's output is, 0 = the newest. Raises: StokerError `not_started` or `attempt_unknown`."""
        job = self.job
        if not job.attempts:
            raise StokerError(_not_started(job))
        found = next((each for each in job.attempts if each.number == attempt), None) if attempt else job.attempts[-1]
        if found is None or self.query.rank >= len(found.tasks):
            raise StokerError(_attempt_unknown(job, attempt or job.attempts[-1].number, self.query.rank))
        return _place(job, found, self.query.rank)

    def check(self) -> None:
        """Check that what the request asks for is there, or may come to be. Raises: as `place`."""
        try:
            self.place(self.query.attempt)
        except StokerError:
            if not self._may_begin(self.query.attempt):
                raise

    async def begun(self, attempt: int, until_s: float) -> LogPlace:
        """The same, once the attempt has begun, if it may within that time. Raises: as `place`."""
        look_s = LOOK_FIRST_S
        while True:
            try:
                return self.place(attempt)
            except StokerError:
                left_s = until_s - self._control.clock.mono()
                if left_s <= 0 or self.tails.closed or not self._may_begin(attempt):
                    raise
            await self._control.clock.sleep(min(look_s, left_s))
            look_s = min(2 * look_s, LOOK_MAX_S)

    def _may_begin(self, attempt: int) -> bool:
        job = self.job
        newest = job.attempts[-1].number if job.attempts else 0
        return not job.is_final and max(attempt, 1) > newest

    async def first(self, place: LogPlace, limit: int, until_s: float) -> LogChunk:
        """Return what the request asks for, once it is there."""
        wait_s = until_s - self._control.clock.mono()
        if not self.query.tail:
            return await self.tails.read(place, self.query.offset, min(limit, self.query.limit), wait_s)
        # Most tails are short, so little is fetched first and the whole bound only if it must be.
        chunk = await self.tails.read(place, -TAIL_FIRST_BYTES, TAIL_FIRST_BYTES, wait_s)
        tail = last_lines(chunk.data, self.query.tail)
        if len(tail) == len(chunk.data) and chunk.offset > 0:
            chunk = await self.tails.read(place, -limit, limit, wait_s)
            tail = last_lines(chunk.data, self.query.tail)
        cut = len(chunk.data) - len(tail)
        return LogChunk(request=0, offset=chunk.offset + cut, data=tail, size=chunk.size, ended=chunk.ended)


def _not_supported_here() -> Refusal:
    return refuse(
        "not_supported_here",
        "this control plane has no agents, so it can't read the output of jobs",
        "read it where the system that runs the jobs keeps it",
    )


def _place(job: Job, attempt: Attempt, rank: int) -> LogPlace:
    return LogPlace(attempt.tasks[rank].placement.node, TaskKey(job.id, attempt.number, rank))


def _not_started(job: Job) -> Refusal:
    return refuse(
        "not_started",
        f"job {job.label} is {job.state} and has written nothing",
        f"`stoker why {job.label}` says what it waits for or what ended it",
        job_id=job.label,
        state=job.state.value,
    )


def _attempt_unknown(job: Job, attempt: int, rank: int) -> Refusal:
    newest = job.attempts[-1]
    return refuse(
        "attempt_unknown",
        f"job {job.label} has no rank {rank} of attempt {attempt}",
        f"attempts are {job.attempts[0].number} to {newest.number}, ranks 0 to {len(newest.tasks) - 1}",
        job_id=job.label,
        attempt=attempt,
        rank=rank,
    )
