"""Filter of a list of jobs.

It has one meaning for the state, for the history in its store, and for the simulated history of tests.

Rules: F1  a job is within the span from `since` to `until` if it was submitted before `until` and hadn't ended before
           `since`
       F2  without `members` an array is one row and its members none; with it the members are rows and the array isn't
       F3  a name with `*` (any letters) or `?` (any one) in it is a pattern; every other letter stands for itself
       F4  the members of one array are rows of its list, and nothing else is
"""

import re
from fnmatch import translate
from functools import lru_cache
from typing import Final

import msgspec

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import Requirement, labels_meet

NAME_PATTERN_MAX: Final = 256
"""Characters of a pattern; beyond it a look at many names would cost too much."""
NAME_STARS_MAX: Final = 8
"""Stars of a pattern, for the same reason."""


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of jobs; a field that is left empty matches every job."""

    states: tuple[JobState, ...] = ()
    tenant: str = ""
    job_class: JobClass | None = None
    user: str = ""
    """As `Job.account`."""
    name: str = ""
    """A name, or a pattern (F3)."""
    labels: tuple[Requirement, ...] = ()
    """Conditions on the job's labels, all of which must hold."""
    array: JobId = JobId(0)
    """Only members of this array, with `members` (F4). 0 = of any or none."""
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
            and (not self.name or spec.name == self.name or (is_pattern(self.name) and self._is_like(spec.name)))
            and (not self.labels or labels_meet(self.labels, spec.labels))
            and (not self.array or job.array_of == self.array)
            and (not self.until or job.submitted_at < self.until)
            and (self.among is None or spec.tenant in self.among)
            and (not self.since or job.ended_at == NEVER or job.ended_at >= self.since)
        )

    def _is_like(self, name: str) -> bool:
        return _pattern(self.name).fullmatch(name) is not None


def is_pattern(name: str) -> bool:
    """Return whether the name of a filter is a pattern (F3)."""
    return "*" in name or "?" in name


@lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    # Of its own syntax fnmatch has one letter more, which here stands for itself.
    return re.compile(translate(name.replace("[", "[[]")))


def narrows(wanted: JobFilter) -> bool:
    """Return whether a filter names more than states."""
    return msgspec.structs.replace(wanted, states=()) != JobFilter()
