"""Planned starts: the reservations of the last plan, of single jobs and members and as a list.

A plan names jobs by their ids, and so members of arrays that are no records. Since it was made a job may have been
held, have started or be gone: then its reservation says nothing any more.
"""

from msgspec.structs import replace

from stoker.brain.domain.array import index_of
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, lazy_member
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster import ClusterState
from stoker.control.control_plane import ControlPlane


def reservation_of(control: ControlPlane, job: Job) -> Reservation | None:
    """Return when and where the last plan says that a job starts at the latest, or the next member of an array."""
    if job.is_final or job.blocked or job.not_before != NEVER or job.state is JobState.HELD:
        return None
    if job.members is None:
        return control.loop.reservation(job.id) if job.state is JobState.PENDING else None
    spec, _ = job.as_array
    of_members = (each for each in control.loop.reservations() if job.id < each.job <= job.id + spec.count)
    return min(of_members, key=lambda each: (each.at, each.job), default=None)


def planned_jobs(control: ControlPlane, wanted: JobFilter) -> list[Job]:
    """Return the matching jobs with a reservation, the earliest planned start first; members are rows of their own."""
    state, jobs = control.committer.state, list[Job]()
    wanted = replace(wanted, members=True)
    for each in sorted(control.loop.reservations(), key=lambda each: (each.at, each.job)):
        job = state.jobs.get(each.job) or _member(state, each.job)
        if job is not None and reservation_of(control, job) and wanted.matches(job, state.shown_state(job)):
            jobs.append(job)
    return jobs


def _member(state: ClusterState, job: JobId) -> Job | None:
    """The member with this id that is no record."""
    array = state.jobs.get(max((each for each in state.indexes.arrays if each < job), default=JobId(0)))
    if array is None or array.members is None:
        return None
    spec, _ = array.as_array
    return lazy_member(array, index_of(array.id, spec, job)) if job <= array.id + spec.count else None
