"""Log lines and counters of the control plane for durable events, as the row of each event kind says.

Names and fields are those that users of the seeds already search for: `task_submitted`, `agent_registered`, `task_id`.
A bulk submit must not become ten thousand lines: beyond `LINES_MAX` of one kind in one batch only their number is
written.
"""

from collections.abc import Sequence
from typing import Final

from stoker.brain.domain.lifecycle import FAILED
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobFinished
from stoker.brain.state.events.row import Fields, LogLine, gpus_text, nodes_text
from stoker.brain.state.events.union import Event, row_of
from stoker.control.feed import Entry
from stoker.ports import Telemetry

LINES_MAX: Final = 32
"""Ends for which a second line is written, `task_failed`, which people search for."""


class Announcer:
    """A listener of the writer that logs and counts what became durable."""

    def __init__(self, state: ClusterState, telemetry: Telemetry) -> None:
        self._state = state
        self._telemetry = telemetry

    def committed(self, entries: Sequence[Entry]) -> None:
        """Log a batch of events that became durable."""
        by_kind: dict[type[Event], list[Fact]] = {}
        for _, fact in entries:
            by_kind.setdefault(type(fact.event), []).append(fact)
        for facts in by_kind.values():
            line = row_of(facts[0].event).log
            if line is not None:
                self._write_all(line, facts)

    def _write_all(self, line: LogLine[Event], facts: Sequence[Fact]) -> None:
        if line.counted:
            self._telemetry.count(line.name, len(facts))
        for fact in facts[:LINES_MAX]:
            self._write(line, fact)
        if len(facts) > LINES_MAX:
            self._telemetry.event(f"{line.name}_more", count=len(facts) - LINES_MAX)

    def _write(self, line: LogLine[Event], fact: Fact) -> None:
        fields = {**line.fields(fact.event), **self._job_fields(fact), "by": fact.by}
        write = self._telemetry.warn if line.warning else self._telemetry.event
        write(line.name, **fields)
        if isinstance(fact.event, JobFinished) and fact.event.state in FAILED:
            self._telemetry.event("task_failed", **fields)

    def _job_fields(self, fact: Fact) -> Fields:
        """Fields of every line about a job."""
        job_id = getattr(fact.event, "job", None)
        job = self._state.jobs.get(job_id) if job_id is not None else None
        if job is None:
            return {}
        ran = job.attempts if isinstance(fact.event, JobFinished) else ()
        placements = [task.placement for task in ran[-1].tasks] if ran else []
        where = {"agent_id": nodes_text(placements), "gpu_ids": gpus_text(placements)} if ran else {}
        return {**where, "task_id": job.label, "priority": job.spec.priority}
