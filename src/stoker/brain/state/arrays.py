"""Progress of arrays: how many members are live, waiting or ended, and whether another may start.

Derived from the records of arrays and of their members.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Final

import msgspec

from stoker.brain.domain.array import count_of
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import LIVE, JobState

_LIVE: Final = tuple(sorted(LIVE))


class Tally(msgspec.Struct):
    """The members of one array that are records."""

    open: dict[JobId, None] = msgspec.field(default_factory=dict)
    """They haven't ended."""
    states: dict[JobState, int] = msgspec.field(default_factory=dict)
    """How many are in each state; without zeros."""

    @property
    def live(self) -> int:
        """The number of members that hold GPUs."""
        return sum(self.states.get(state, 0) for state in _LIVE)

    @property
    def ok(self) -> int:
        return self.states.get(JobState.SUCCEEDED, 0)

    @property
    def bad(self) -> int:
        """The number of members that ended otherwise than well."""
        return sum(self.states.values()) - len(self.open) - self.ok


class Tallies(dict[JobId, Tally]):
    """One for each array that is known, or of which a member is."""

    def __init__(self, jobs: Mapping[JobId, Job]) -> None:
        super().__init__()
        self._jobs = jobs
        self._ascending: list[JobId] = []
        """The keys, so that the array with the id of some member is found without a look at all of them."""

    def job_changed(self, old: Job | None, new: Job | None) -> None:
        changed = new or old
        assert changed is not None, "a change has a before or an after"
        if changed.array_of:
            tally = self._tally(changed.array_of)
            if old:
                self._count(tally, old, -1)
            if new:
                self._count(tally, new, 1)
            self._drop_empty(changed.array_of)
        elif changed.members is not None:
            self._tally(changed.id)
            self._drop_empty(changed.id)

    def _tally(self, array: JobId) -> Tally:
        tally = self.get(array)
        if tally is None:
            tally = self[array] = Tally()
            insort(self._ascending, array)
        return tally

    def _count(self, tally: Tally, member: Job, by: int) -> None:
        count = tally.states.get(member.state, 0) + by
        if count:
            tally.states[member.state] = count
        else:
            del tally.states[member.state]
        if member.is_final:
            return
        if by > 0:
            tally.open[member.id] = None
        else:
            del tally.open[member.id]

    def _drop_empty(self, array: JobId) -> None:
        if array not in self._jobs and self[array] == Tally():
            del self[array]
            del self._ascending[bisect_left(self._ascending, array)]

    def below(self, job: JobId) -> JobId | None:
        """The newest array that is older than this id. If the id is that of a member, then of this array."""
        at = bisect_left(self._ascending, job)
        return self._ascending[at - 1] if at else None

    def slots_left(self, array: Job) -> int | None:
        """Members that its own limit lets start now. None = it has no limit."""
        most = array.spec.array.running_max if array.spec.array else 0
        return max(0, most - self[array.id].live) if most else None

    def shown(self, array: Job) -> JobState:
        """The public word: an array is `running` while any of its members is live."""
        return JobState.RUNNING if not array.is_final and self[array.id].live else array.state

    def is_over(self, array: Job) -> bool:
        """Return whether all members have ended while the array hasn't yet."""
        members = array.members
        return members is not None and not array.is_final and not members.lazy and not self[array.id].open


def member_counts(array: Job, tally: Tally) -> dict[JobState, int]:
    """Return the number of members in each state, with those whose records are gone.

    Of a member that went wrong and was not cancelled only that is still known, so it counts as failed.
    """
    _, members = array.as_array
    counts = dict(tally.states)
    for state, count in (
        (array.state, members.waiting),
        (JobState.SUCCEEDED, members.pruned_ok),
        (JobState.FAILED, members.pruned_bad - members.pruned_cancelled),
        (JobState.CANCELLED, members.pruned_cancelled + sum(count_of(each.indexes) for each in members.cancelled)),
    ):
        if count:
            counts[state] = counts.get(state, 0) + count
    return counts
