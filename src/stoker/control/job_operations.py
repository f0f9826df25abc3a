"""Operations on jobs that people ask for: cancel, hold, release, requeue, signal and update.

An operation on one job, one member or a whole array returns that record; one on several members returns those. Each is
returned as the operation left it, looked at before the wait for the disk: later some may have moved on.
"""

from collections.abc import Sequence
from signal import Signals
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import JobRef, count_of, member_id
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.units import NEVER, counted
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import JobOperation, UpdateJob
from stoker.brain.state.events.job import AboutJob, MemberMade, MembersCancelled
from stoker.brain.state.events.union import Event
from stoker.control.access import check_change, check_priority
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import ListedJobs, job_details, listed_jobs, members_named
from stoker.control.submission import ended_before
from stoker.wire.rest.job import JobDetails

NODES_NAMED_MAX: Final = 3
"""Nodes that an answer names; of more it says how many."""


class OperationResults(NamedTuple):
    """Several members of one array, as an operation left them."""

    seen: ListedJobs
    total: int
    """Members that were named."""
    changed: int
    """Members that the operation changed."""


async def carry_out_operation(
    control: ControlPlane, caller: Caller, command: JobOperation
) -> JobDetails | OperationResults:
    """Carry an operation out, durably.

    Raises: StokerError `token_unknown` or `not_allowed`, or as the brain refuses.
    """
    committer, ref = control.committer, command.target
    control.access.check(caller)
    job = committer.state.jobs.get(committer.state.locate(ref.job).job)
    if job is not None:  # else there is nothing that could be anyone's
        check_change(committer.state, caller, job)
    if isinstance(command, UpdateJob) and job is not None:
        command = await prepared(control, caller, command, job)
    committer.check_room()
    events = committer.tell(command)
    results = _results(control, ref, events)
    await committer.settled()
    return results


async def prepared(control: ControlPlane, caller: Caller, command: UpdateJob, job: Job) -> UpdateJob:
    """Return a change with what the history knows of the jobs that its dependencies name.

    Raises: StokerError `priority_above_tier` or `history_unavailable`.
    """
    changes = command.changes
    if changes.priority is not UNSET:
        check_priority(control.committer.state, caller, job.spec.tenant, changes.priority)
    if changes.after is UNSET or not changes.after:
        return command
    before = await ended_before(control, (replace(job.spec, after=changes.after),))
    return replace(command, ended=before.ended, no_members=before.no_members)


def reach_text(told: JobDetails, signal: int) -> str:
    """Return whom a signal was sent to: `USR1 was sent to 4 tasks on gpu-1, gpu-2`."""
    sent = f"{_signal_name(signal)} was sent to"
    if told.members is not None:
        return f"{sent} {counted(told.members.running, 'running member')}"
    attempt = told.job.live_attempt
    tasks = [task for task in attempt.open_tasks if task.started_at != NEVER] if attempt else []
    nodes = list(dict.fromkeys(task.placement.node for task in tasks))
    on = ", ".join(nodes) if len(nodes) <= NODES_NAMED_MAX else counted(len(nodes), "node")
    return f"{sent} {counted(len(tasks), 'task')} on {on}"


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name.removeprefix("SIG")
    except ValueError:  # one of the real-time signals has no name of its own
        return f"signal {number}"


def _results(control: ControlPlane, ref: JobRef, events: Sequence[Event]) -> JobDetails | OperationResults:
    state = control.committer.state
    total = 1 if ref.members is None else count_of(ref.members)
    if total > 1:
        return OperationResults(listed_jobs(control, members_named(state, ref)), total, _changed(state, events))
    job = state.find(ref)
    assert job is not None, f"{ref} took an order and is gone"
    return job_details(control, job)


def _changed(state: ClusterState, events: Sequence[Event]) -> int:
    """Return how many members these events are about."""
    lazy = 0
    records: dict[JobId, None] = {}
    for event in events:
        if isinstance(event, MembersCancelled):
            lazy += count_of(event.indexes)
        elif isinstance(event, MemberMade):
            spec, _ = state.jobs[event.array].as_array
            records[member_id(event.array, spec, event.index)] = None
        elif isinstance(event, AboutJob) and state.jobs[event.job].members is None:
            records[event.job] = None
    return lazy + len(records)
