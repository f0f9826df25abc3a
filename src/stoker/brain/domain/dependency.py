"""Dependencies of a job on other jobs.

A dependency is met, can never be met, or still waits. `state.dependencies` looks up the jobs that it names.
"""

from enum import StrEnum

import msgspec

from stoker.brain.domain.ids import JobId


class DependencyKind(StrEnum):
    """The condition on the other job. In Slurm's words: afterok, afterany, afternotok, after."""

    OK = "ok"
    """It succeeded; of an array: all of its members did."""
    ANY = "any"
    """It ended, however."""
    NOT_OK = "notok"
    """It ended otherwise than well."""
    AFTER = "after"
    """It started, or ended without ever having started."""


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """One condition on one other job."""

    kind: DependencyKind
    job: JobId = JobId(0)
    index: int | None = None
    """A member of the array `job`; None = the job or the whole array."""
    sibling: int | None = None
    """In a bulk submit: the job at this place of the list (0 = first) instead of `job`. Resolved at submit."""

    def __str__(self) -> str:
        if self.sibling is not None:
            return f"{self.kind}:#{self.sibling}"
        return f"{self.kind}:{self.job}" if self.index is None else f"{self.kind}:{self.job}_{self.index}"


class Verdict(StrEnum):
    """Whether the dependencies of a job are met."""

    MET = "met"
    WAITS = "waits"
    NEVER = "never"
