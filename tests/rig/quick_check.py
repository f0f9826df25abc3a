"""Do the brain's invariants hold, at the cost of what has changed since the last look?

`violations` walks over every job and makes every index from nothing, which at each of the 300,000 events of CI costs
more than everything else. Records are frozen, so: what `violations` says of a job
follows from its record, and is looked at anew only when that is another record; what final jobs contribute to the
indexes (the lists of their states and the list of ends) is kept here, derived from their records alone, and everything
else is made from nothing. The answer is the same; a test holds the two against each other on whole runs.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import TypeVar

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.indexes import end_of, rebuild
from stoker.brain.state.invariants import (
    drifted,
    each_job_consistent,
    no_gpu_memory_overdrawn,
    no_gpu_twice,
    no_node_overdrawn,
    only_waiting_jobs_claim,
)

T = TypeVar("T", JobId, tuple[Instant, JobId])


class QuickCheck:
    """Of one state; another state is looked at from the beginning."""

    def __init__(self, rebuild_every: int = 1) -> None:
        """`rebuild_every`: at every how many looks the indexes are made from nothing, and compared."""
        self._rebuild_every, self._looks = rebuild_every, 0
        self._state: ClusterState | None = None
        self._begin(ClusterState())

    def _begin(self, state: ClusterState) -> None:
        self._state = state
        self._seen: dict[JobId, Job] = {}
        self._open: dict[JobId, Job] = {}
        self._of_arrays: dict[JobId, Job] = {}
        """Arrays and members, the final ones too: an array is counted from all of them."""
        self._final: dict[JobState, list[JobId]] = {word: [] for word in sorted(FINAL)}
        self._ended: list[tuple[Instant, JobId]] = []
        self._ended_bytes = 0

    @property
    def open_jobs(self) -> Collection[Job]:
        """Those that hadn't ended when it last looked."""
        return self._open.values()

    def violations(self, state: ClusterState) -> list[str]:
        if state is not self._state:
            self._begin(state)
        changed = {job_id: job for job_id, job in state.jobs.items() if self._seen.get(job_id) is not job}
        for job_id, job in changed.items():
            self._take(self._seen.get(job_id), job)
        for job_id in [job_id for job_id in self._seen if job_id not in state.jobs]:
            self._take(self._seen[job_id], None)
        self._looks += 1
        return [
            *no_gpu_twice(state, self._open.values()),
            *no_node_overdrawn(state),
            *no_gpu_memory_overdrawn(state),
            *only_waiting_jobs_claim(state),
            *each_job_consistent(state, changed.values()),
            *(self._drifted(state) if self._looks % self._rebuild_every == 0 else ()),
        ]

    def _take(self, old: Job | None, new: Job | None) -> None:
        if old is not None:
            self._seen.pop(old.id)
            self._open.pop(old.id, None)
            self._of_arrays.pop(old.id, None)
            end = end_of(old)
            if end is not None:
                _drop(self._final[old.state], old.id)
                _drop(self._ended, (end, old.id))
                self._ended_bytes -= old.spec.memory_bytes
        if new is not None:
            self._seen[new.id] = new
            if new.array_of or new.members:
                self._of_arrays[new.id] = new
            end = end_of(new)
            if end is None:
                self._open[new.id] = new
            else:
                insort(self._final[new.state], new.id)
                insort(self._ended, (end, new.id))
                self._ended_bytes += new.spec.memory_bytes

    def _drifted(self, state: ClusterState) -> list[str]:
        fresh = rebuild(
            self._open | self._of_arrays,
            state.nodes,
            state.tenants,
            ended_max=state.policy.ended_jobs_max,
            ended_bytes_max=state.policy.ended_bytes_max,
            known=state.jobs,
        )
        fresh.warn_before(state.policy.time_limit_warning_ms)
        fresh.ended.entries, fresh.ended_bytes = self._ended, self._ended_bytes
        for word, ids in self._final.items():
            fresh.by_state[word].entries = ids
        return list(drifted(state.indexes, fresh))


def _drop(among: list[T], which: T) -> None:
    at = bisect_left(among, which)
    assert among[at] == which, f"{which} isn't in {among}"
    del among[at]
