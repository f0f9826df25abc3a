"""Filter of a list of jobs.

It has one meaning for the state, for the history in its store, and for the simulated history of tests.

Rules: F1  a job is within the span from `since` to `until` if it was submitted before `until` and hadn't ended before
           `since`
       F2  without `members` an array is one row and its members none; with it the members are rows and the array isn't
"""

import msgspec

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.brain.domain.units import NEVER, Instant


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of jobs by state, tenant, class, user, name and time; a field that is left empty matches every job."""

    states: tuple[JobState, ...] = ()
    tenant: str = ""
    job_class: JobClass | None = None
    user: str = ""
    """As `Job.account`."""
    name: str = ""
    since: Instant = NEVER
    until: Instant = NEVER
    members: bool = False
    among: frozenset[TenantName] | None = None
    """Only jobs of these tenants. None = of every one."""

    @property
    def may_have_ended(self) -> bool:
        """Whether a job that ended can match: else the history has nothing to find."""
        return not self.states or any(state in FINAL for state in self.states)

    def is_row(self, job: Job) -> bool:
        """Return whether a job or array is a row of the list at all (F2)."""
        return job.members is None if self.members else not job.array_of

    def matches(self, job: Job, state: JobState) -> bool:
        """Return whether a job matches that is shown as being in `state`."""
        spec = job.spec
        return (
            (not self.states or state in self.states)
            and self.is_row(job)
            and (not self.tenant or spec.tenant == self.tenant)
            and (self.job_class is None or spec.job_class is self.job_class)
            and (not self.user or job.account == self.user)
            and (not self.name or spec.name == self.name)
            and (not self.until or job.submitted_at < self.until)
            and (self.among is None or spec.tenant in self.among)
            and (not self.since or job.ended_at == NEVER or job.ended_at >= self.since)
        )


def narrows(wanted: JobFilter) -> bool:
    """Return whether a filter names more than states."""
    return msgspec.structs.replace(wanted, states=()) != JobFilter()
