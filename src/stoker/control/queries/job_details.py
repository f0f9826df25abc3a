"""Details of jobs beside their records: why each waits, and how far each array is.

Why it waits is the loop's to say, and how far an array is depends on its members. Both are looked up at one instant,
together with the record, and travel with it: what is read later might not belong to the same moment.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.brain.alternatives import alternatives
from stoker.brain.domain.access import Caller
from stoker.brain.domain.alternative import Alternative
from stoker.brain.domain.array import JobRef, difference, indexes_of
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.sight import Sight
from stoker.brain.domain.units import counted
from stoker.brain.state.arrays import Tally, member_counts
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.lookups import find_job
from stoker.brain.state.wait_reason import shown_reason, waiting_by_reason
from stoker.control.access import Sights
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.planned_starts import reservation_of
from stoker.wire.rest.job import LIST_MAX, JobDetails, as_seen, members_view

SLICE: Final = 2_000
SEARCHES_MAX: Final = 16
"""Questions that wait for a search for alternatives; answers to more have none."""
_ENDING: Final = (JobState.RUNNING, JobState.STOPPING)
_ENDS: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class ListedJobs(NamedTuple):
    """Jobs at one instant; a plain record may be drawn later, since it doesn't change."""

    jobs: Sequence[Job]
    arrays: dict[JobId, JobDetails]


def job_details(control: ControlPlane, job: Job) -> JobDetails:
    """Return the details of `job`, which is as the state has it now or, if that has forgotten it, the history."""
    state = control.committer.state
    tally = None if job.members is None else state.indexes.arrays.get(job.id)
    if job.members is not None and tally is None:
        return _forgotten(job)
    shown_now = _releasing(control, job) or shown_reason(state, job, control.loop.planned_reason)
    reason = shown_now or _preparing(control, job)
    members = None if tally is None else members_view(member_counts(job, tally))
    shown = JobDetails(job, state.shown_state(job), reason, members)
    planned = reservation_of(control, job)
    return shown if planned is None else shown._replace(reservation=planned)


def _preparing(control: ControlPlane, job: Job) -> Reason | None:
    """Return what a node still does for a job that it is to start; None = nothing that it says."""
    if job.state is not JobState.STARTING or control.nodes is None:
        return None
    said = control.nodes.preparations(job.id)
    if not said:
        return None
    node, first = said[0]
    more = f"; {counted(len(said) - 1, 'other task')} of it {'waits' if len(said) == 2 else 'wait'} too"
    return Reason(ReasonCode.PREPARING, {"node": node, "text": first.text, "more": more if len(said) > 1 else ""})


def _releasing(control: ControlPlane, job: Job) -> Reason | None:
    """Return that nothing of a job is left but GPUs that aren't clean yet; None = there is, or no node says so."""
    attempt = job.live_attempt
    if attempt is None or job.state not in _ENDING or control.nodes is None:
        return None
    said = control.nodes.preparations(job.id)
    told = {each.key.rank for _, each in said if each.key.attempt == attempt.number}
    if not told or any(task.placement.rank not in told for task in attempt.open_tasks):
        return None
    node, first = said[0]
    more = f"; {counted(len(said) - 1, 'other task')} of it too" if len(said) > 1 else ""
    return Reason(ReasonCode.RELEASING, {"node": node, "text": first.text, "more": more})


def job_details_for(control: ControlPlane, caller: Caller, job: Job) -> JobDetails:
    """Return the details of a job as the caller sees it."""
    return as_seen(job_details(control, job), Sights(control.committer.state, caller)(job))


def in_list(now: JobDetails, sight: Sight, *, full: bool = False) -> JobDetails:
    """Return the details as answers with several jobs show them. `full`: with command and environment."""
    if full or sight is not Sight.FULL:
        return as_seen(now, sight)
    spec = replace(now.job.spec, command="", env={})
    return now._replace(job=replace(now.job, spec=spec))


def _forgotten(array: Job) -> JobDetails:
    """An array that only the history knows. What it says of the members may be older than their being forgotten."""
    counts, facts = member_counts(array, Tally()), array.reason.facts if array.reason else {}
    if "failed" in facts:
        counts = {state: int(facts[state.value]) for state in _ENDS}
    spec, _ = array.as_array
    whole = sum(counts.values()) == spec.count
    return JobDetails(array, array.state, array.reason, members_view(counts) if whole else None, forgotten=True)


def listed_jobs(control: ControlPlane, jobs: Sequence[Job]) -> ListedJobs:
    """Return these jobs as they are now, where each may have been found a little earlier."""
    known = control.committer.state.jobs
    arrays = {job.id: job_details(control, known.get(job.id, job)) for job in jobs if job.members is not None}
    return ListedJobs(jobs, arrays)


class AlternativeSearches:
    """Searches for alternatives of waiting jobs, one at a time, in turns with all that a control plane does.

    After each pass that a search tries the process rests for as long as that took, so searches take half of it at most.
    A job that has changed meanwhile has no alternatives.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def of(self, job: Job, reason: Reason | None) -> list[Alternative]:
        """Return the changes with which a waiting job would start now."""
        if self._waiting >= SEARCHES_MAX:
            return []
        self._waiting += 1
        try:
            async with self._turn:
                return await self._search(job, reason)
        finally:
            self._waiting -= 1

    async def _search(self, job: Job, reason: Reason | None) -> list[Alternative]:
        committer, clock = self._control.committer, self._control.clock
        found: list[Alternative] = []
        reservations = self._control.loop.reservations()
        steps = alternatives(committer.state, job, reason, reservations, committer.now())
        while committer.state.jobs.get(job.id) is job:
            began = clock.mono()
            try:
                each = next(steps)
            except StopIteration:
                return found
            if each is not None:
                found.append(each)
            await clock.sleep(clock.mono() - began)
        return []


async def queue_by_reason(control: ControlPlane) -> Mapping[ReasonCode, int]:
    """Return how many jobs and members of arrays wait for each reason, those that nothing waits for too.

    Others get a turn every SLICE steps, so a scrape never holds up the writer, and the counts may be of some
    milliseconds.
    """
    counts: Mapping[ReasonCode, int] = {}
    for step, so_far in enumerate(waiting_by_reason(control.committer.state, control.loop.planned_reason), 1):
        counts = so_far
        if step % SLICE == 0:
            await control.clock.sleep(0)
    return counts


def members_named(state: ClusterState, ref: JobRef) -> list[Job]:
    """Return the first LIST_MAX members that `ref` names, without those whose records are gone.

    Raises: StokerError `job_unknown`, `job_forgotten`, `not_an_array` or `member_unknown`.
    """
    array = state.jobs.get(ref.job)
    spec = array.spec.array if array is not None and array.members is not None else None
    unknown = difference(ref.members or (), spec.indexes) if spec is not None else ref.members
    if unknown:
        refusal = find_job(state, JobRef(ref.job, unknown))
        assert isinstance(refusal, Refusal), f"{ref} names what isn't there, and is found"
        raise StokerError(refusal)
    found: list[Job] = []
    for index in indexes_of(ref.members or ()):
        if len(found) == LIST_MAX:
            break
        member = state.find(JobRef(ref.job, ((index, index, 1),)))
        if member is not None:
            found.append(member)
    return found
