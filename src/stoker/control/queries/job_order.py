"""Orders of a list of jobs: by a column, or what is live first.

Rules: S1  live first: what runs, then what waits, then what ended, each newest first
       S2  a column of which a job has no value, or the caller may not see it, puts that job last in both directions
       S3  jobs of equal value are sorted by id, in the same direction
       S4  a column that is not there is refused with those that there are
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FINAL, LIVE, JobState
from stoker.brain.domain.sight import Sight
from stoker.brain.domain.units import NEVER, Instant
from stoker.control.access import Sights

LIVE_FIRST: Final = "live"
GROUPS: Final[Mapping[str, tuple[JobState, ...]]] = {
    "live": tuple(state for state in JobState if state in LIVE),
    "waiting": tuple(state for state in JobState if state not in LIVE and state not in FINAL),
    "ended": tuple(state for state in JobState if state in FINAL),
}
"""States of each part of the list, in their order (S1). A cursor names the part: `waiting.12`."""
Value = int | str | None
SortKey = tuple[bool, int | str, JobId]
_STATES: Final = {state: at for at, state in enumerate(JobState)}


def _instant(at: Instant) -> Value:
    return None if at == NEVER else at


def _waited(job: Job, now: Instant) -> Value:
    """Its newest wait: of a job that was preempted that to run on."""
    attempts, over = job.attempts, job.ended_at != NEVER
    if attempts and attempts[-1].ended_at != NEVER and not over:
        return now - attempts[-1].ended_at
    if len(attempts) < 2:  # then the job's times are those of its attempt
        until = next((at for at in (job.started_at, job.ended_at) if at != NEVER), now)
        return until - job.submitted_at
    newest = attempts[-1]
    return next((at for at in (newest.started_at, newest.ended_at) if at != NEVER), now) - attempts[-2].ended_at


def _ran(job: Job, now: Instant) -> Value:
    if job.started_at == NEVER:
        return None
    over = job.ended_at or (job.attempts[-1].ended_at if job.attempts else NEVER)
    return (over or now) - job.started_at


_COLUMNS: Final[Mapping[str, Callable[[Job, JobState, Instant], Value]]] = {
    "id": lambda job, state, now: job.id,
    "name": lambda job, state, now: job.spec.name or None,
    "state": lambda job, state, now: _STATES[state],
    "gpus": lambda job, state, now: job.spec.demand.total_milli,
    "priority": lambda job, state, now: job.spec.priority,
    "tenant": lambda job, state, now: job.spec.tenant,
    "class": lambda job, state, now: job.spec.job_class.value,
    "user": lambda job, state, now: job.account or None,
    "partition": lambda job, state, now: job.spec.partition or None,
    "tasks": lambda job, state, now: job.spec.demand.tasks,
    "attempts": lambda job, state, now: len(job.attempts),
    "submitted": lambda job, state, now: job.submitted_at,
    "started": lambda job, state, now: _instant(job.started_at),
    "ended": lambda job, state, now: _instant(job.ended_at),
    "waited": lambda job, state, now: _waited(job, now),
    "ran": lambda job, state, now: _ran(job, now),
    "exit_code": lambda job, state, now: job.exit_code,
    "time_limit": lambda job, state, now: job.spec.time_limit_ms or None,
}
_TITLES: Final = {"prio": "priority", "exit": "exit_code"}
"""Titles in tables that are shorter than the names of their columns."""
_HIDDEN: Final = frozenset({"name", "user", "partition", "attempts", "exit_code"})
"""Columns that a reduced sight of a job doesn't show (S2): their order would tell them."""


class Order(NamedTuple):
    """Order by a column."""

    column: str
    descending: bool
    now: Instant
    """To which spans are measured that haven't ended."""
    sees: Sights

    def key(self, job: Job, state: JobState) -> SortKey:
        """Return what a job is sorted by, in this order's own direction (S2, S3)."""
        value: Value = None
        if self.column not in _HIDDEN or self.sees(job) is not Sight.REDUCED:
            value = _COLUMNS[self.column](job, state, self.now)
        missing = value is None
        return missing is not self.descending, value if value is not None else 0, job.id

    def is_after(self, key: SortKey, other: SortKey) -> bool:
        """Return whether a job of this key comes after one of the other."""
        return key < other if self.descending else key > other


def order_of(text: str, now: Instant, sees: Sights) -> Order | None:
    """Return the order by a column that a query names; None = newest first, or live first.

    Raises: StokerError `bad_parameter` (S4).
    """
    if text in ("", LIVE_FIRST):
        return None
    column = text.removeprefix("-")
    column = _TITLES.get(column, column)
    if column not in _COLUMNS:
        message = f"jobs can't be sorted by {column[:80]!r}: there is no such column"
        hint = f"sort by `{LIVE_FIRST}` or one of {', '.join(_COLUMNS)}; with `-` before it the largest come first"
        raise refusal_error("bad_parameter", message, hint, path="sort", got=column[:80])
    return Order(column, text.startswith("-"), now, sees)
