"""Periodic audit of the live state: its invariants, its indexes and the reports of nodes against the records.

The number of violations is the metric `stoker_ledger_drift`, which should be zero for ever.

Rules: A1  who holds what is compared in one step, over live attempts only: at most a few milliseconds on 200 nodes
       A2  job records are checked in slices, between which others run
       A3  all indexes are compared at once, and only while there are at most `INDEXED_JOBS_MAX` jobs: about 25 ms
       A4  indexes that have drifted are made anew from the records; a broken record is reported, never repaired
       A5  a node that is heard, and whose beats say in two audits, and for at least half a period between them, that it
           has other tasks than it should, while neither side changes, is made to open another stream: its inventory is
           compared then, which settles it. What was said last before we stood still counts for nothing
"""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.report import sum_of
from stoker.brain.domain.units import Mono
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.indexes import rebuild
from stoker.brain.state.invariants import each_job_consistent, indexes_derived, no_gpu_twice, no_orphan_beside_work
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, NodeReports

PERIOD_S: Final = 60.0
JOBS_PER_SLICE: Final = 500
INDEXED_JOBS_MAX: Final = 5_000
VIOLATIONS_SHOWN_MAX: Final = 20

_LEDGER: Final = ("on_node", "held", "ports", "gpu_owner", "free", "by_free", "free_milli", "shared", "returning")


class Audit:
    """Periodic comparison of the ledger with itself and with the reports of nodes, which may be None."""

    def __init__(
        self, committer: Committer, reports: NodeReports | None, ports: ControlPorts, *, period_s: float = PERIOD_S
    ) -> None:
        self._committer = committer
        self._reports = reports
        self._differing: dict[NodeName, tuple[int, int]] = {}
        self._clock = ports.clock
        self._looked_at = self._clock.mono()
        self._telemetry = ports.telemetry
        self._period_s = period_s

    async def run(self) -> None:
        """Check every period until cancelled, or until the writer has stopped."""
        while not self._committer.failed.is_set():
            await self._clock.sleep(self._period_s)
            await self.check()

    async def check(self) -> list[str]:
        """Return every violation found, in words, after repairing indexes that have drifted."""
        state = self._committer.state
        drift = list(_ledger_drift(state))
        if len(state.jobs) <= INDEXED_JOBS_MAX:
            drift = list(dict.fromkeys((*drift, *indexes_derived(state))))
        if drift:
            self._committer.rebuild_indexes()
        found = drift + list(self._agents_drift(state)) + [fault async for fault in self._record_faults(state)]
        self._telemetry.gauge("ledger_drift", len(found))
        for violation in found[:VIOLATIONS_SHOWN_MAX]:
            self._telemetry.warn("ledger_violated", what=violation)
        return found

    def _agents_drift(self, state: ClusterState) -> Iterator[str]:
        """Nodes whose tasks differ from the records (A5)."""
        if self._reports is None:
            return
        before, self._differing = self._differing, {}
        said_since, self._looked_at = Mono(self._looked_at + self._period_s / 2), self._clock.mono()
        for name, (theirs, said_at) in self._reports.task_sums().items():
            ours = sum_of(_tasks_on(state, name))
            if ours == theirs or not state.nodes[name].reachable:
                continue
            self._differing[name] = (ours, theirs)
            if before.get(name) == (ours, theirs) and said_at >= said_since:
                self._reports.compare_anew(name)
                yield f"node {name} has other tasks than the records say"

    async def _record_faults(self, state: ClusterState) -> AsyncIterator[str]:
        ids = iter(list(state.jobs))
        while some := list(islice(ids, JOBS_PER_SLICE)):
            for fault in each_job_consistent(state, [state.jobs[job] for job in some if job in state.jobs]):
                yield fault
            await self._clock.sleep(0)


def _ledger_drift(state: ClusterState) -> Iterator[str]:
    """Compare by whom things are held in the records with the indexes (A1)."""
    live = {job.id: job for job in state.jobs.values() if job.state in LIVE}
    fresh = rebuild(live, state.nodes, state.tenants, ended_max=state.policy.ended_jobs_max, known=state.jobs)
    for name in _LEDGER:
        if getattr(state.indexes, name) != getattr(fresh, name):
            yield f"index {name} has drifted from the records"
    if state.indexes.usage_ledger.amounts() != fresh.usage_ledger.amounts():
        yield "the counters of quota have drifted from the records"
    yield from no_gpu_twice(state, live.values())
    yield from no_orphan_beside_work(state)


def _tasks_on(state: ClusterState, node: NodeName) -> Iterator[TaskKey]:
    """Tasks that hold something there, and those that are told to stop."""
    yield from (TaskKey(*task) for task in state.indexes.held.get(node, ()))
    yield from (TaskKey(*stray.key) for stray in state.nodes[node].strays)
